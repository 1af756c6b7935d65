"""What ``make run`` shows: the next allocation of 20 stocks, and how its maker would have fared, on real prices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from time2decide.backtesting.walk_forward import backtest, with_intervals
from time2decide.cli.backtest import COLUMNS, DEFAULT_STRATEGIES, latest_decision, print_summary, strategy_meanings
from time2decide.cli.console import console, step_progress
from time2decide.cli.decide import show_decision
from time2decide.markets.tables import load_returns
from time2decide.reports.backtest_page import write_page

ROWS = 1000
BUDGETS = (0.1, 0.5, 1.0)
COST_BPS = 10.0
STRATEGIES = (*DEFAULT_STRATEGIES.split(","), "pto-ridge", "soft-persistence", "oracle")


def main(rows: int = ROWS, folder: Path = Path("run")) -> None:
    """Decide after the last day of the bundled prices, compare all strategies on the last days, write the report."""
    torch.set_num_threads(1)
    began = time.monotonic()
    screen = console(110)
    table = load_returns("sp500").iloc[-rows:]
    screen.print(
        f"[bold]20 stocks of the S&P 500, the last {len(table)} trading days of the bundled prices.[/]\n"
        "Every day each strategy picks weights for the next one: none negative, of sum 1, and not further from "
        "today's than a turnover budget γ allows. It sees the past only. Trading costs 10 basis points.\n"
    )
    with step_progress(len(STRATEGIES) - 1) as progress:
        result = backtest(table, STRATEGIES, BUDGETS, cost_bps=COST_BPS, progress=progress)
    summary = with_intervals(result)
    decision = latest_decision(result, table, 0.1)
    if decision is not None:
        decision["input"] |= {"source": "sp500", "values": "prices", "values_guessed": False}
        show_decision(decision, screen)
    screen.print()
    print_summary(result, summary, "sp500", COST_BPS)
    screen.print()
    for line in conclusions(summary.to_dict(orient="records")):
        screen.print(line)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"source": "sp500", "values": "prices", "cost_bps": COST_BPS, "window": 96}
    facts["columns"] = COLUMNS | strategy_meanings(result)
    page = write_page(result, summary, folder / "report.html", facts, decision)
    screen.print(f"\nOpen {page} in a browser: every curve, what was held, and the latest decision explained.")
    screen.print(
        f"Done in {time.monotonic() - began:.0f} s. Your own data: time2decide decide returns.csv --turnover 0.5"
    )


def conclusions(rows: list[dict[str, Any]]) -> list[str]:
    """What the table says, for somebody who reads only this."""
    lines = ["[bold]In words[/] (the oracle knows each next return and is not in the ranking)"]
    for budget in dict.fromkeys(row["turnover_l1"] for row in rows):
        field = [row for row in rows if row["turnover_l1"] == budget and row["strategy"] != "oracle"]
        best = max(field, key=lambda row: row["sharpe"])
        better = [row["strategy"] for row in field if row["sharpe_excess_low"] > 0]
        worse = [row["strategy"] for row in field if row["sharpe_excess_high"] < 0]
        ours = next(row for row in field if row["strategy"] == "time2decide")
        lines.append(
            f"  γ = {budget:g}: best Sharpe ratio after costs {best['sharpe']:.2f} ({best['strategy']}); time2decide "
            f"{ours['sharpe']:.2f}. Better than equal weights by the 95 % interval: "
            f"{', '.join(better) or 'nobody'}; worse: {', '.join(worse) or 'nobody'}."
        )
    lines.append(
        "  Daily returns of real stocks are close to unpredictable and every trade costs: whoever trades much loses "
        "much. Time2Decide was trained on synthetic markets that can be predicted; `time2decide train decide --data` "
        "fits it to a market of your own."
    )
    return lines


if __name__ == "__main__":
    main()
