"""The turnover frontier of a decision as a picture: what turnover brings net of cost, what the next unit is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from time2decide.core.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _GREY, _BLUE, _RED = "#1f2933", "#7b8794", "#0072B2", "#D55E00"


def frontier_figure(facts: dict[str, Any]) -> Figure:
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
    gain.set_ylabel("gain in utility, net of costs\n(bp of the portfolio)")
    price.set_ylabel("shadow price: gain of one\nmore unit of turnover (bp)")
    price.set_xlabel("turnover ‖new − current‖₁, bought plus sold (% of the portfolio)")
    _marks(gain, price, facts)
    over = "the next period" if round(days) <= 1 else f"{days:.0f} days"
    pays = "no trade pays for its cost" if stop < 5e-5 else f"trading pays up to a turnover of {100 * stop:.1f} %"
    figure.suptitle(f"Turnover frontier after {facts['input']['last']}, over {over}: {pays}", fontsize=12)
    return figure


def _marks(gain: Axes, price: Axes, facts: dict[str, Any]) -> None:
    """This decision, its budget, and where trading stops paying."""
    import numpy as np

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
        axes.set_ylim(bottom=0.0)
    gain.plot([], [], color=_GREY, lw=1, ls=":", label="stops paying")
    gain.legend(loc="lower center", fontsize="small", framealpha=1.0, edgecolor="none", ncols=3)


def write_frontier(facts: dict[str, Any], path: Path) -> None:
    """The picture as a PNG or SVG file, replaced whole."""
    with atomic_path(path) as temporary:
        frontier_figure(facts).savefig(temporary, format=path.suffix.lower()[1:], dpi=130)
