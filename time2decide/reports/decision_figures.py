"""Pictures for users: paths of a backtest, turnover frontier of a decision, and attention layers that decide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from time2decide.attention.decision_head import LAYERS, attention_decision
from time2decide.backtesting.walk_forward import Backtest
from time2decide.core.files import atomic_path
from time2decide.markets.portfolio import solve_portfolio

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


def _layers_figure(
    mean: np.ndarray, covariance: np.ndarray, previous: np.ndarray, assets: Sequence[str], layers: int, **terms: Any
) -> Figure:
    """One decision by attention layers: weights, utility lost, and what each token pulls, layer by layer."""
    from matplotlib.figure import Figure

    path = np.asarray(attention_decision(mean, covariance, previous, layers=layers, trace=True, **terms))
    exact = solve_portfolio(mean, covariance, previous, **terms)
    lost = 1e4 * np.maximum(float(exact.utility) - exact.problem.utility(path), 1e-16)
    done = np.flatnonzero(lost > 1e-9).max(initial=0) + 6  # what follows is flat
    path, lost = path[:done], lost[:done]
    pull = -2 * terms["risk_aversion"] * (path - terms.get("benchmark", 0.0)) @ covariance  # (layers + 1, m)
    pull, forecast = (1e4 * (part - part.mean(-1, keepdims=True)) for part in (pull, mean))
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    (weights, loss), (tokens, last) = figure.subplots(2, 2, width_ratios=(3, 2))
    shown = np.argsort(-np.abs(path[-1] - previous))[:6]  # those traded most
    for i in range(len(mean)):
        named = (
            {"label": assets[i], "color": f"C{list(shown).index(i)}", "lw": 1.8}
            if i in shown
            else {"color": _GREY, "lw": 0.6}
        )
        weights.plot(100 * path[:, i], **named)
    weights.legend(fontsize="small", ncols=3, framealpha=0.9)
    weights.set(ylabel="weight (%)", xlabel="layer", title="The iterate: the six assets traded most, others grey")
    loss.semilogy(lost, color=_BLUE)
    loss.set(ylabel="utility lost (bp)", xlabel="layer", title="Behind the exact decision")
    size = float(np.abs(pull).max())
    image = tokens.imshow(pull.T, aspect="auto", cmap="RdBu", vmin=-size, vmax=size, interpolation="nearest")
    figure.colorbar(image, ax=tokens, label="pull on its asset (bp)", shrink=0.9)
    tokens.set(xlabel="layer", title="Covariance tokens: −2λσᵢᵀ(s − b), less their mean")
    place, wide = np.arange(len(mean)), 0.4
    last.barh(place - wide / 2, forecast, wide, color=_BLUE, label="forecast token")
    last.barh(place + wide / 2, pull[-1], wide, color=_RED, label="covariance token")
    last.invert_yaxis()
    last.legend(fontsize="small")
    last.set(xlabel="pull (bp), less the mean of all assets", title="After the last layer")
    for axes in (tokens, last):
        axes.set_yticks(place, assets, fontsize=max(3, min(8, 160 // len(mean))))
    return figure


def write_layers_figure(
    mean: np.ndarray, covariance: np.ndarray, previous: np.ndarray, path: Path, *, assets: Sequence[str] = (),
    layers: int = LAYERS, **terms: Any,
) -> None:  # fmt: skip
    """The attention layers at one decision as a PNG or SVG file; `terms` are those of `solve_portfolio`."""
    names = list(assets) or [str(i) for i in range(len(mean))]
    with atomic_path(path) as temporary:
        figure = _layers_figure(mean, covariance, previous, names, layers, **terms)
        figure.savefig(temporary, format=path.suffix.lower()[1:], dpi=130)
