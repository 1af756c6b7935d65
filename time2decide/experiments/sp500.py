"""Twenty stocks of the S&P 500, walk-forward with costs: Time2Decide as shipped and fine-tuned beside the field's.

The last 30 % of the days are the test. The fine-tuned network has been fitted to days that end a window before
them; every other strategy sees the days before the one it decides, as the engine gives them.
"""

from __future__ import annotations

from typing import Any

import torch

from time2decide.decisions import backtest, with_intervals
from time2decide.decisions.fine_tuning import FineTuning, fine_tune
from time2decide.decisions.time2decide import PRETRAINED, Learned, load_policy
from time2decide.experiments.portfolio import fingerprint
from time2decide.experiments.registry import Experiment
from time2decide.forecasting.memory import RememberedOutlooks
from time2decide.markets import WINDOW, load_returns

STRATEGIES = ("uniform", "inverse-volatility", "minimum-variance", "mean-variance-shrunk", "pto-ar1")
BUDGETS = [0.1, 0.5, 1.0]
Row = dict[str, Any]
_KEYS = ("annual_return", "annual_volatility", "sharpe", "max_drawdown", "turnover", "traded", "regret", "mse")
_SMALL = {"steps": 4, "batch": 8, "stretches": 2, "decisions": 4, "check_every": 2, "budgets": [0.5]}


def tasks(preset: str) -> list[Row]:
    """One task: the fine-tuning and all rollouts share the same days."""
    networks = {name: fingerprint(name) for name in ("decide", "decide-utility") if _bundled(name)}
    common: Row = {"seed": 0, "cost_bps": 10.0, "share": 0.7, "networks": networks}
    if preset == "smoke":
        return [common | {"rows": 900, "assets": 4, "budgets": [0.5], "last": 30, "tuning": _SMALL}]
    return [common | {"rows": None, "assets": None, "budgets": BUDGETS, "last": None, "tuning": {}}]


def _bundled(name: str) -> bool:
    return (PRETRAINED[name] / "model.safetensors").is_file()


def run(config: Row) -> list[Row]:
    """Fine-tune on the first days, then walk over the last ones with every strategy."""
    torch.set_num_threads(1)
    table = load_returns("sp500")
    table = table.iloc[-(config["rows"] or len(table)) :, : config["assets"] or table.shape[1]]
    tuning = dict(config["tuning"])
    if "budgets" in tuning:
        tuning["budgets"] = tuple(tuning["budgets"])
    recipe = FineTuning(share=config["share"], seed=config["seed"], cost_bps=config["cost_bps"], **tuning)
    tuned, notes = fine_tune(table.to_numpy(), load_policy("decide")[0], recipe)
    first = int(config["share"] * len(table))
    test = table.iloc[first - WINDOW :]  # the first decision is about the first day of the test
    test = test.iloc[: WINDOW + (config["last"] or len(test))]
    remembered = RememberedOutlooks(most=len(test))
    ours = [
        Learned(load_policy("decide")[0], "hindsight", "time2decide", remembered),
        Learned(load_policy("decide")[0], "own", "time2decide-own", remembered),
        Learned(tuned, "own", "time2decide-tuned", remembered),
    ]
    if "decide-utility" in config["networks"]:
        ours.append(Learned(load_policy("decide-utility")[0], "own", "time2decide-utility", remembered))
    result = backtest(test, [*ours, *STRATEGIES], config["budgets"], cost_bps=config["cost_bps"])
    rows = []
    for row in with_intervals(result).to_dict(orient="records"):
        kept = {key: float(row[key]) for key in row if key.startswith(_KEYS)}
        rows.append({"strategy": row["strategy"], "turnover_l1": float(row["turnover_l1"]), **kept})
    about = {
        "first_day": str(test.index[WINDOW].date()),
        "last_day": str(test.index[-1].date()),
        "steps_kept": notes["steps_kept"],
        "validation_losses": notes["validation_losses"],
    }
    return [row | about for row in rows]


def show(rows: list[Row]) -> str:
    """One block per budget, best Sharpe ratio first, and who is different from 1/N beyond the interval."""
    rows = [row for row in rows if not row["error"]]
    if not rows:
        return "no rows"
    first = rows[0]
    lines = [
        f"S&P 500 set, {first['first_day']} to {first['last_day']}, {first['cost_bps']:g} bp per amount traded, 95 % "
        "intervals by block bootstrap",
        f"fine-tuning kept step {first['steps_kept']}, validation losses {first['validation_losses']}",
    ]
    header = ("strategy", "net Sharpe", "minus 1/N", "return", "volatility", "drawdown", "traded", "regret bp")
    for budget in sorted({row["turnover_l1"] for row in rows}):
        field = sorted((r for r in rows if r["turnover_l1"] == budget), key=lambda r: -r["sharpe"])
        lines += ["", f"γ = {budget:g}", _line(header)]
        lines += [_line(_cells(row)) for row in field]
        better = [row["strategy"] for row in field if row["sharpe_excess_low"] > 0]
        worse = [row["strategy"] for row in field if row["sharpe_excess_high"] < 0]
        lines.append(f"better than 1/N beyond the interval: {', '.join(better) or 'none'}")
        lines.append(f"worse: {', '.join(worse) or 'none'}")
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return cells[0].ljust(22) + "".join(cell.rjust(width) for cell, width in zip(cells[1:], _WIDTHS, strict=True))


_WIDTHS = (22, 24, 26, 12, 10, 9, 11)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row["strategy"],
        f"{row['sharpe']:.2f} [{row['sharpe_low']:.2f}, {row['sharpe_high']:.2f}]",
        f"{row['sharpe_excess']:+.2f} [{row['sharpe_excess_low']:+.2f}, {row['sharpe_excess_high']:+.2f}]",
        f"{row['annual_return']:.1%} [{row['annual_return_low']:.1%}, {row['annual_return_high']:.1%}]",
        f"{row['annual_volatility']:.1%}",
        f"{row['max_drawdown']:.1%}",
        f"{row['traded']:.3f}",
        f"{1e4 * row['regret']:.1f}",
    )


EXPERIMENTS = (
    Experiment(
        id="sp500",
        title="Real prices: walk-forward on 20 stocks with costs, as shipped and fine-tuned",
        paper="– (beyond the paper)",
        presets={"smoke": "20 s", "cpu": "10 min"},
        tasks=tasks,
        run=run,
        show=show,
    ),
)
