"""``make run``: the next trades of 20 stocks, and the record of the policy and its baselines on real prices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from time2decide.backtesting.walk_forward import backtest, with_intervals
from time2decide.cli.backtest import print_backtest_summary, write_backtest_report
from time2decide.cli.console import console, step_progress, use_one_thread
from time2decide.cli.decide import show_decision
from time2decide.markets.tables import load_returns
from time2decide.policy.decision_facts import decision_facts
from time2decide.policy.market_decision import RISK_AVERSION

ROWS = 8312  # all of them
WINDOW = 520  # the market policy wants years
BUDGETS = (0.1,)
COST_BPS = 10.0
STRATEGIES = (
    *("market", "market-risk", "uniform", "inverse-volatility", "minimum-variance", "minimum-variance-qis"),
    *("minimum-variance-iewma", "mean-variance-shrunk", "hierarchical"),
)


def main(rows: int = ROWS, window: int = WINDOW, folder: Path = Path("run")) -> None:
    """Decide after the last day of the bundled prices, compare the strategies on the last years, write the page."""
    use_one_thread()
    began = time.monotonic()
    screen = console(110)
    table = load_returns("sp500").iloc[-rows:]
    screen.print(
        f"[bold]20 stocks of the S&P 500, the last {len(table)} trading days of the bundled prices.[/]\n"
        f"Every day each strategy picks long-only weights of sum 1 for the next day, within a turnover budget γ of the "
        f"current ones. It sees the past only, at least {window} days. Trading costs {COST_BPS:g} bp; λ = "
        f"{RISK_AVERSION:g}.\n"
    )
    terms: dict[str, Any] = {"cost_bps": COST_BPS, "risk_aversion": RISK_AVERSION}
    with step_progress(STRATEGIES) as progress:
        result = backtest(table, STRATEGIES, BUDGETS, **terms, window=window, progress=progress)
    summary = with_intervals(result)
    # of somebody who holds equal weights
    decision = decision_facts(table, None, BUDGETS[0], **terms, with_uncertainty=False, with_frontier=True)
    decision["input"] |= {"source": "sp500", "values": "prices", "values_guessed": False}
    show_decision(decision, screen)
    screen.print()
    print_backtest_summary(result, summary, "sp500")
    folder.mkdir(parents=True, exist_ok=True)
    page = write_backtest_report(result, summary, folder / "report.html", "sp500", "prices", decision)
    screen.print(f"\nOpen {page} in a browser: the decision, its verdict, the record and every curve.")
    screen.print(
        f"Done in {time.monotonic() - began:.0f} s, {time.process_time():.0f} s of processor time. "
        "Your own data: time2decide decide returns.csv --turnover 0.5"
    )


if __name__ == "__main__":
    main()
