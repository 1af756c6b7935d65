"""Figure of the portfolio tables: MSE to the oracle and regret by turnover budget, ours and the paper's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from time2decide.experiments.paper import published
from time2decide.experiments.portfolio_tables import PUBLISHED, bootstrap_error, values
from time2decide.markets import BUDGETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
_LINES = {
    "uniform": ("uniform", "#999999"),
    "lag1-oracle": ("lag-1 oracle", "#b07aa1"),
    "soft-persistence": ("soft persistence", "#8c6d31"),
    "sft (hindsight)": ("SFT, hindsight", "#76b7b2"),
    "pto": ("predict-then-optimise", "#c0504d"),
    "time2decide (own)": ("Time2Decide, own history", "#1f5fa8"),
    "time2decide (hindsight)": ("Time2Decide, hindsight", "#2a9d5c"),
    "time2decide-utility (own)": ("Time2Decide, utility", "#e08214"),
}
_ERROR = tuple(name for name in _LINES if name != "time2decide-utility (own)")
_REGRET = ("lag1-oracle", "pto", "time2decide (hindsight)", "time2decide-utility (own)")


def portfolio(rows: list[Row]) -> Figure:
    """One line of two panels per market."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if not row["error"]]
    markets = list(dict.fromkeys(row["market"] for row in rows))
    figure = Figure(figsize=(11, 4.2 * len(markets)), layout="constrained")
    panels = figure.subplots(len(markets), 2, squeeze=False)
    for market, (error, regret) in zip(markets, panels, strict=True):
        chosen = [row for row in rows if row["market"] == market]
        _lines(error, chosen, _ERROR, "mse", 1.0)
        paper = published(PUBLISHED[market])
        theirs = [paper.get((f"gamma={g}", "Time2Decide")) for g in BUDGETS]
        error.plot(BUDGETS, theirs, color="black", ls=":", lw=1.6, label="the paper's Time2Decide")
        _lines(regret, chosen, _REGRET, "regret", 1e4)
        error.set(title=f"{market}: MSE to the oracle", xlabel="turnover budget γ", ylim=(0, None))
        regret.set(title=f"{market}: regret per step, basis points", xlabel="turnover budget γ")
        regret.axhline(0.0, color="#555555", lw=0.8)
        for axis in (error, regret):
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(fontsize=8, frameon=False, loc="upper left", ncols=2)
            low, high = axis.get_ylim()
            axis.set_ylim(min(low, 0.0) if axis is regret else 0.0, 1.3 * high)  # room for the legend
    figure.suptitle("bands: one standard error over series", fontsize=9, color="#555555")
    return figure


def _lines(axis: Axes, rows: list[Row], names: tuple[str, ...], key: str, scale: float) -> None:
    for name in names:
        scores = [scale * values(rows, name, g, key) for g in BUDGETS]
        if not all(len(found) for found in scores):
            continue
        label, colour = _LINES[name]
        middle = [float(found.mean()) for found in scores]
        width = [bootstrap_error(found) for found in scores]
        axis.plot(BUDGETS, middle, color=colour, lw=1.8, marker="o", ms=3, label=label)
        low, high = ([m + sign * w for m, w in zip(middle, width, strict=True)] for sign in (-1, 1))
        axis.fill_between(BUDGETS, low, high, color=colour, alpha=0.13, lw=0)
