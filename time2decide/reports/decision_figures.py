"""Pictures for users: the paths of a backtest, and the turnover frontier of a decision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from time2decide.backtesting.walk_forward import Backtest
from time2decide.core.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (4, 2, 1, 2, 1, 2)))  # of the lines, in turn
_INK, _GREY, _BLUE, _RED = "#1f2933", "#7b8794", "#0072B2", "#D55E00"


def _backtest_figure(result: Backtest, turnover_l1: float) -> Figure:
    """Wealth after costs, drawdown and turnover of every strategy at one budget."""
    from matplotlib.figure import Figure

    chosen = result.frame[(result.frame["turnover_l1"] == turnover_l1) & (result.frame["series"] == 0)]
    figure = Figure(figsize=(9, 8), layout="constrained")
    wealth, drawdown, traded = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.5, 1.5))
    for i, (name, path) in enumerate(chosen.groupby("strategy", sort=False)):
        time, value = path["time"].to_numpy(), path["wealth"].to_numpy()
        line: dict[str, Any] = {"linestyle": _DASHES[i % len(_DASHES)], "linewidth": 1.4 if i else 2.8}
        line |= {"color": f"C{i % 10}", "alpha": 1.0 if i else 0.7}  # a wide line below shows thin dashes on it
        wealth.plot(time, value, label=str(name), **line)
        drawdown.plot(time, value / np.maximum.accumulate(np.maximum(value, 1.0)) - 1, **line)
        smooth = path["traded"].rolling(max(1, len(value) // 50), min_periods=1).mean()
        traded.plot(time, smooth.to_numpy(), **line)
    wealth.set_yscale("log")
    wealth.legend(loc="upper left", fontsize="small", ncols=2, handlelength=3.5)
    labels = {wealth: "wealth after costs", drawdown: "drawdown", traded: "traded per step"}
    for axes, label in labels.items():
        axes.set_ylabel(label)
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle(f"Turnover budget ‖s_t − s_(t−1)‖₁ ≤ {turnover_l1:g}")
    return figure


def backtest_figure_name(turnover_l1: float) -> str:
    """The file name of a budget's picture: every digit counts, or two budgets would share one."""
    return f"backtest-turnover-{repr(float(turnover_l1)).removesuffix('.0')}.png"


def write_backtest_figures(result: Backtest, folder: Path) -> list[Path]:
    """One PNG per budget; the files are replaced whole."""
    written = []
    for budget in result.frame["turnover_l1"].unique():
        path = folder / backtest_figure_name(budget)
        with atomic_path(path) as temporary:
            _backtest_figure(result, budget).savefig(temporary, format="png", dpi=130)
        written.append(path)
    return written


def _frontier_figure(facts: dict[str, Any]) -> Figure:
    """Two panels over the turnover, from `decision_facts` with a frontier."""
    import matplotlib
    from matplotlib.figure import Figure

    frontier, days = facts["frontier"], facts.get("days", 1.0)
    curve, stop = frontier["curve"], frontier["stops_paying_at"]
    style: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}
    style |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK)
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(8.5, 6.4), layout="constrained")
        gain, price = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    x = [100 * t for t in curve["turnover_l1"]]
    gain.plot(x, [1e4 * g for g in curve["gain"]], color=_BLUE, lw=2)
    price.plot(x, [1e4 * p for p in curve["price"]], color=_BLUE, lw=2)
    price.fill_between(x, [1e4 * p for p in curve["price"]], color=_BLUE, alpha=0.12, lw=0)
    gain.set_ylabel("gain in utility beside no trade,\nnet of costs (bp of the portfolio)")
    price.set_ylabel("shadow price: gain of one\nmore unit of turnover (bp)")
    price.set_xlabel("turnover ‖new − current‖₁, bought plus sold (% of the portfolio)")
    _marks(gain, price, facts)
    period = facts.get("period", "period")
    over = f"the next {period}" if round(days) <= 1 else f"{days:.0f} {period}s"
    pays = "no trade pays for its cost" if stop < 5e-5 else f"trading pays up to a turnover of {100 * stop:.1f} %"
    figure.suptitle(f"Turnover frontier after {facts['input']['last']}, over {over}: {pays}", fontsize=12)
    return figure


def _marks(gain: Axes, price: Axes, facts: dict[str, Any]) -> None:
    """This decision, its budget, and where trading stops paying."""

    curve, stop = facts["frontier"]["curve"], 100 * facts["frontier"]["stops_paying_at"]
    here, budget = 100 * facts["turnover"], 100 * facts["turnover_l1"]
    height = 1e4 * float(np.interp(facts["turnover"], curve["turnover_l1"], curve["gain"]))
    gain.plot([here], [height], "o", ms=9, color=_RED, zorder=5, label="this decision")
    right = max(stop, here, 1.0) * 1.06
    for axes in (gain, price):
        axes.axvline(stop, color=_GREY, lw=1, ls=":")
        if budget <= right:
            axes.axvline(budget, color=_INK, lw=1, ls="--", label="budget γ")
        axes.set_xlim(left=0.0, right=right)
        axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))  # the least trade that constraints ask for may cost
    gain.plot([], [], color=_GREY, lw=1, ls=":", label="stops paying")
    gain.legend(loc="lower center", fontsize="small", framealpha=1.0, edgecolor="none", ncols=3)


def write_frontier_figure(facts: dict[str, Any], path: Path) -> None:
    """The picture as a PNG or SVG file, replaced whole."""
    with atomic_path(path) as temporary:
        _frontier_figure(facts).savefig(temporary, format=path.suffix.lower()[1:], dpi=130)
