"""Figures from stored rows: one function each, for the page (SVG that follows its colours) and for files (PNG)."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from time2decide.core.files import atomic_path
from time2decide.experiments.claims import published, published_mse
from time2decide.experiments.qp_recipes import BEST
from time2decide.experiments.store import Row, grouped_rows, make_from_stored_rows, measured_rows, results_root
from time2decide.experiments.theory import published_parity_r2
from time2decide.markets.oracle import BUDGETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#3a414b"  # of text and axes; the page puts its own colour of text in its place
_BLUE, _GREEN, _PURPLE, _RED, _GREY = "#2f75c0", "#2a9d5c", "#9657b8", "#cf5b53", "#9aa1ab"
_COLOURS = (_BLUE, _GREEN, _PURPLE, _RED, "#e08214", "#3fa7a7", "#a88632", "#c7669d", _GREY, "#6b7fd6", "#7a9a2e")
_CLASSES = {
    "U": "unconstrained (U)",
    "R": "ℓ1-penalised (R)",
    "C": "ℓ1-constrained (C)",
    "LC": "linear constraints (LC)",
}
_METHODS = {
    "gradient": "gradient descent",
    "ista": "ISTA",
    "projected_gradient": "projected gradient",
    "arrow_hurwicz": "Arrow–Hurwicz",
    "nesterov": "Nesterov",
    "fista": "FISTA",
    "admm": "ADMM",
    "newton_schulz": "Newton–Schulz",
}
_STYLES: dict[str, dict[str, Any]] = {
    "construction": {"lw": 3.2, "alpha": 0.45},
    "classical": {"lw": 1.2, "ls": (0, (3, 2))},
}
_ERRORS = {"nmse": "NMSE", "violation": "constraint violation", "objective_error": "|objective gap|"}
_RULES = {"pto": ("predict-then-optimise", _RED), "e2e": ("end-to-end", _BLUE)}
_SAMPLES = [5, 10, 20, 50, 100, 200, 500]


def draw(experiment: str, rows: list[Row], preset: str, root: str | Path | None = None) -> list[Path]:
    """Write the figure of an experiment as PNG into ``results/figures``; returns the files written."""
    good = measured_rows(rows)
    if experiment not in FIGURES or not good:
        return []
    path = figure_path(experiment, preset, root)
    with atomic_path(path) as temporary:
        options: dict[str, Any] = {"format": "png", "dpi": 150, "metadata": {"Software": None}}
        make_from_stored_rows(lambda rows: _figure(experiment, rows).savefig(temporary, **options), good)
    return [path]


def figure_path(experiment: str, preset: str | None, root: str | Path | None = None) -> Path:
    """The PNG of an experiment's figure."""
    return results_root(root) / "figures" / f"{experiment}{'' if preset == 'cpu' else f'-{preset}'}.png"


def figure_svg(experiment: str, rows: list[Row]) -> str:
    """The figure as SVG for a page: no background, text and axes in the page's colour; empty if there is none."""
    import matplotlib

    good = measured_rows(rows)
    if experiment not in FIGURES or not good:
        return ""
    out = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": experiment}):
        options: dict[str, Any] = {"format": "svg", "transparent": True, "metadata": {"Date": None, "Creator": None}}
        make_from_stored_rows(lambda rows: _figure(experiment, rows).savefig(out, **options), good)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # several figures share a page, ids may not
    width = float(re.search(r'width="([\d.]+)pt"', text)[1])  # type: ignore[index]
    size = f'style="max-width:{1.25 * width:.0f}pt;min-width:{min(0.7 * width, 480):.0f}pt"'
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"|height="[\d.]+pt" width="[\d.]+pt"', size, text, count=1)
    return text.replace(_INK, "currentColor")


def _figure(experiment: str, rows: list[Row]) -> Figure:
    import matplotlib

    style: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
    style |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK)
    style |= {"axes.grid": True, "grid.color": _GREY, "grid.alpha": 0.3, "axes.titlesize": 11, "legend.fontsize": 8.5}
    with matplotlib.rc_context(style):
        return FIGURES[experiment](rows)


def _panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure of equal panels, and its axes (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _convergence(rows: list[Row]) -> Figure:
    """KKT residual by layer: the construction as a line, the classical iteration as dashes on top of it."""
    kinds = [kind for kind in _CLASSES if any(row["kind"] == kind for row in rows)]
    figure, axes = _panels(1, len(kinds), 3.6, 3.9, sharey=True)
    for axis, kind in zip(axes[0], kinds, strict=True):
        for colour, row in zip(_COLOURS, (row for row in rows if row["kind"] == kind), strict=False):
            for form, style in _STYLES.items():
                axis.plot([max(v, 1e-16) for v in row[form]], color=colour, **style)
            axis.plot([], [], color=colour, lw=3, label=_METHODS[row["method"]])
        axis.set(title=_CLASSES[kind], xlabel="layer = iteration", yscale="log", ylim=(1e-20, 30))
        axis.set_xscale("symlog", linthresh=10, linscale=0.6)
        axis.set_xlim(0, 1000)
        axis.set_xticks([0, 10, 100, 1000], ["0", "10", "100", "1000"])
        axis.legend(loc="lower left")
    axes[0][0].set_ylabel("KKT residual")
    figure.suptitle("wide line: attention layers (state form), dashes on top: classical iteration", fontsize=10)
    return figure


def _qp_grid(rows: list[Row]) -> Figure:
    """R² by depth at the best number of heads, ours and the paper's; a star is the best recipe's."""
    sizes = grouped_rows(rows, "n", "m")
    figure, axes = _panels(-(-len(sizes) // 3), min(len(sizes), 3), 5.2, 3.4)
    for axis, ((n, m), here) in zip(axes.flat, sizes.items(), strict=False):
        for colour, (name, own) in zip(_COLOURS, grouped_rows(here, "architecture").items(), strict=False):
            plain, best = ([row for row in own if (row.get("recipe") == BEST) == so] for so in (False, True))
            depth = {k: max(row["r2"] for row in some) for k, some in sorted(grouped_rows(plain, "layers").items())}
            if best:
                top = max(best, key=lambda row: row["r2"])
                axis.plot([top["layers"]], [top["r2"]], color=colour, marker="*", ms=11, label=f"{name}, best recipe")
            axis.plot(list(depth), list(depth.values()), color=colour, marker="o", ms=3.5, lw=2, label=name)
            theirs = [_best_published(n, m, layers, name) for layers in depth]
            axis.plot(list(depth), theirs, color=colour, ls=":", lw=1.6, label=f"{name}, paper")
        axis.set(title=f"({n}, {m}), best number of heads", xlabel="layers", ylabel="R²", xscale="log")
        axis.set_xticks(list(depth), [str(layers) for layers in depth])
        axis.minorticks_off()
        axis.legend()
    return figure


def _best_published(n: int, m: int, layers: int, name: str) -> float:
    prefix = f"n={n};m={m};layers={layers};"
    found = [v for (place, row), v in published("qp_r2").items() if row == name and place.startswith(prefix) and v == v]
    return max(found, default=float("nan"))


def _qp_histograms(rows: list[Row]) -> Figure:
    """One row of panels per size, one column per error; both transformers in each panel."""
    sizes = grouped_rows(rows, "n", "m")
    figure, panels = _panels(len(sizes), len(_ERRORS), 3.7, 2.6)
    for ((n, m), here), line in zip(sizes.items(), panels, strict=True):
        for axis, (error, title) in zip(line, _ERRORS.items(), strict=True):
            for colour, row in zip(_COLOURS, here, strict=False):
                counts, edges = row[f"{error}_counts"], row[f"{error}_edges"]
                share = [100 * count / sum(counts) for count in counts[1:-1]]
                axis.stairs(share, edges, color=colour, fill=True, alpha=0.35)
                axis.stairs(share, edges, color=colour, lw=1.3, label=_histogram_label(row, error))
            axis.set(xscale="log", xlabel=f"{title}, ({n}, {m})")
            axis.set_ylim(0, 1.35 * axis.get_ylim()[1])  # room for the legend above the highest bar
            axis.grid(visible=False)
            axis.legend(fontsize=7.5, loc="upper left")
        line[0].set_ylabel("% of test instances")
    return figure


def _histogram_label(row: Row, error: str) -> str:
    name = row["architecture"].removesuffix("Transformer")
    if error == "nmse":
        return f"{name}: median {row['nmse_median']:.3g}, p95 {row['nmse_p95']:.3g}"
    below = 100 * row[f"{error}_counts"][0] / sum(row[f"{error}_counts"])
    return f"{name}: {below:.0f}% below {row[f'{error}_edges'][0]:.0e}"


def _portfolio_baselines(rows: list[Row]) -> Figure:
    """MSE to the oracle by turnover budget, one panel per market; the paper's Time2Decide dotted."""
    markets = grouped_rows((row for row in rows if row["strategy"] != "oracle"), "market")
    figure, axes = _panels(1, len(markets), 4.2, 4.2, sharey=True)
    for axis, (market, here) in zip(axes[0], markets.items(), strict=True):
        for colour, (name, own) in zip(cycle(_COLOURS), grouped_rows(here, "strategy").items(), strict=False):
            mse = {
                budget: mean(row["mse"] for row in some) for budget, some in grouped_rows(own, "turnover_l1").items()
            }
            axis.plot(list(mse), list(mse.values()), color=colour, lw=1.8, marker="o", ms=3, label=name)
        _paper_line(axis, market)
        axis.set(title=f"{market}: MSE to the oracle", xlabel="turnover budget γ")
    axes[0][0].set_ylim(bottom=0)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6)
    return figure


def _paper_line(axis: Axes, market: str) -> None:
    theirs = {g: found for g in BUDGETS if (found := published_mse(market, "Time2Decide", g)) is not None}
    axis.plot(list(theirs), list(theirs.values()), color=_INK, ls=":", lw=1.6, label="the paper's Time2Decide")


def _toy_pto(rows: list[Row]) -> Figure:
    """Shrinkage and regret by number of samples, decision error by signal strength."""
    figure, ((shrinkage, regret, error),) = _panels(1, 3, 3.85, 3.7)
    for row in (row for row in rows if row["kind"] == "exact"):
        shrinkage.plot(row["numbers"], row["rho"], color=_BLUE, lw=1.8, label="end-to-end: ρ")
        shrinkage.fill_between(row["numbers"], row["rho"], 1, color=_BLUE, alpha=0.12, lw=0)
        shrinkage.axhline(1, color=_RED, lw=1.5, ls="--", label="predict-then-optimise: 1")
        for rule, (name, colour) in _RULES.items():
            regret.plot(row["numbers"], row[rule], color=colour, lw=1.6, label=f"{name}, exact")
    _points(regret, [row for row in rows if row["kind"] == "simulated"], "n")
    signal = [row for row in rows if row["kind"] == "signal" and row["count"] > 1]
    for rule, (name, colour) in _RULES.items():
        exact = [row[f"{rule}_exact"] for row in signal]
        error.plot([row["signal"] for row in signal], exact, color=colour, lw=1.6, label=name)
    _points(error, signal, "signal")
    shrinkage.set(title="(a) shrinkage of the estimate", xlabel="samples n", ylim=(0, 1.08))
    regret.set(title="(b) regret", xlabel="samples n", yscale="log")
    number = next((row["n"] for row in signal if "n" in row), 50)
    error.set(title=f"(c) decision error |w − w*|, n = {number}", xlabel="observed signal |δ̂|", ylim=(0, None))
    for axis in (shrinkage, regret):
        axis.set_xscale("log")
        axis.set_xticks(_SAMPLES, [str(number) for number in _SAMPLES])
        axis.minorticks_off()
    figure.suptitle("dots: simulation, bars of three standard errors", fontsize=9)
    for axis in (shrinkage, regret, error):
        axis.legend()
    return figure


def _points(axis: Axes, rows: list[Row], x: str) -> None:
    """Simulated means with bars of three standard errors."""
    for rule, (_, colour) in _RULES.items():
        bars, heights = ([scale * row[key] for row in rows] for scale, key in ((3, f"{rule}_se"), (1, rule)))
        axis.errorbar([row[x] for row in rows], heights, bars, fmt="o", ms=3.5, color=colour, capsize=2, lw=1)


def _parity(rows: list[Row]) -> Figure:
    """One bar per arm, the mean over seeds; the paper's figure as a mark."""
    arms = grouped_rows(rows, "arm")
    figure, ((axis,),) = _panels(1, 1, 8.5, 0.38 * len(arms) + 1.2)
    for place, chosen in enumerate(arms.values()):
        value, theirs = mean(row["r2"] for row in chosen), published_parity_r2(chosen[0])
        odd = all(row["oddness"] < 1e-3 for row in chosen)
        axis.barh(place, value, color=_GREY if odd else _BLUE, height=0.62)
        if theirs is not None:
            axis.plot([theirs] * 2, [place - 0.4, place + 0.4], color=_RED, lw=2.5)
        label = f"{value:.3f}" + ("  odd in the data" if odd else "")
        axis.text(max(value, theirs or 0.0, 0.0) + 0.02, place, label, va="center", fontsize=9)
    axis.plot([], [], color=_RED, lw=2.5, label="paper")
    axis.axvline(0, color=_INK, lw=0.8)
    axis.set_yticks(range(len(arms)), list(arms))
    axis.invert_yaxis()
    axis.set(xlabel="R² of the covariance of unseen series", xlim=(-0.85, 1.15))
    axis.spines["left"].set_visible(False)
    axis.grid(visible=False)
    axis.tick_params(axis="y", length=0)
    axis.legend(loc="lower left")
    return figure


FIGURES: dict[str, Callable[[list[Row]], Figure]] = {
    "convergence": _convergence,
    "qp-grid": _qp_grid,
    "qp-histograms": _qp_histograms,
    "portfolio-baselines": _portfolio_baselines,
    "toy-pto": _toy_pto,
    "parity": _parity,
}
