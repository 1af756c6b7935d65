"""Pictures of a backtest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from time2decide.backtesting.walk_forward import Backtest
from time2decide.core.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def backtest_figure(result: Backtest, turnover_l1: float | None = None) -> Figure:
    """Wealth after costs, drawdown and amount traded of every strategy at one budget (the first by default)."""
    from matplotlib.figure import Figure

    budgets = result.frame["turnover_l1"].unique()
    budget = budgets[0] if turnover_l1 is None else turnover_l1
    chosen = result.frame[(result.frame["turnover_l1"] == budget) & (result.frame["series"] == 0)]
    figure = Figure(figsize=(9, 8), layout="constrained")
    wealth, drawdown, traded = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.5, 1.5))
    for name, path in chosen.groupby("strategy", sort=False):
        time, value = path["time"].to_numpy(), path["wealth"].to_numpy()
        wealth.plot(time, value, label=str(name), linewidth=1.2)
        drawdown.plot(time, value / np.maximum.accumulate(np.maximum(value, 1.0)) - 1, linewidth=1.0)
        width = max(1, len(value) // 50)
        smooth = path["traded"].rolling(width, min_periods=1).mean().to_numpy()
        traded.plot(time, smooth, linewidth=1.0)
    wealth.set_yscale("log")
    wealth.legend(loc="upper left", fontsize="small", ncols=2)
    _label(wealth, "wealth after costs")
    _label(drawdown, "drawdown")
    _label(traded, "traded per step")
    figure.suptitle(f"Turnover budget ‖s_t − s_(t−1)‖₁ ≤ {budget:g}")
    return figure


def picture_name(turnover_l1: float) -> str:
    """The file name of a budget's picture: every digit counts, or two budgets would share one."""
    return f"backtest-turnover-{repr(float(turnover_l1)).removesuffix('.0')}.png"


def write_figures(result: Backtest, folder: Path) -> list[Path]:
    """One PNG per budget; the files are replaced whole."""
    written = []
    for budget in result.frame["turnover_l1"].unique():
        path = folder / picture_name(budget)
        with atomic_path(path) as temporary:
            backtest_figure(result, budget).savefig(temporary, format="png", dpi=130)
        written.append(path)
    return written


def _label(axes: Axes, text: str) -> None:
    axes.set_ylabel(text)
    axes.grid(visible=True, alpha=0.3)
