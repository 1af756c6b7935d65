"""Figures of the paper from stored rows, with matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from time2decide.core.files import atomic_path
from time2decide.experiments.store import results_root
from time2decide.reports.portfolio_figures import portfolio
from time2decide.reports.theory_figures import parity, toy_pto

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
_TITLES = {
    "U": "unconstrained (U)",
    "R": "ℓ1-penalised (R)",
    "C": "ℓ1-constrained (C)",
    "LC": "linear constraints (LC)",
}
_NAMES = {
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
_COLOURS = ("#1f5fa8", "#2a9d5c", "#8e44ad")


def draw(experiment: str, rows: list[Row], preset: str, root: str | Path | None = None) -> list[Path]:
    """Draw the figures of an experiment into ``results/figures``; returns the files written."""
    if experiment not in FIGURES or all(row["error"] for row in rows):
        return []
    path = results_root(root) / "figures" / (f"{experiment}.png" if preset == "cpu" else f"{experiment}-{preset}.png")
    with atomic_path(path) as temporary:
        FIGURES[experiment](rows).savefig(temporary, format="png", dpi=150, metadata={"Software": None})
    return [path]


def convergence(rows: list[Row]) -> Figure:
    """KKT residual by layer: the construction as a line, the classical iteration as dashes on top of it."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if not row["error"]]
    kinds = [kind for kind in _TITLES if any(row["kind"] == kind for row in rows)]
    figure = Figure(figsize=(3.6 * len(kinds), 3.9), layout="constrained")
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axis, kind in zip(axes, kinds, strict=True):
        for colour, row in zip(_COLOURS, (row for row in rows if row["kind"] == kind), strict=False):
            for form, style in _STYLES.items():
                axis.plot([max(v, 1e-16) for v in row[form]], color=colour, **style)
            axis.plot([], [], color=colour, lw=3, label=_NAMES[row["method"]])
        axis.set(title=_TITLES[kind], xlabel="layer = iteration", yscale="log", ylim=(1e-16, 30))
        axis.set_xscale("symlog", linthresh=10, linscale=0.6)
        axis.set_xlim(0, 1000)
        axis.set_xticks([0, 10, 100, 1000], ["0", "10", "100", "1000"])
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8.5, loc="lower left", framealpha=0.9, edgecolor="none")
    axes[0].set_ylabel("KKT residual")
    figure.suptitle("wide line: attention layers      dashes on top: classical iteration", fontsize=10, color="#555555")
    return figure


def qp_histograms(rows: list[Row]) -> Figure:
    """One row of panels per size, one column per error; both transformers in each panel."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if not row["error"]]
    sizes = sorted({(row["n"], row["m"]) for row in rows})
    figure = Figure(figsize=(11, 2.6 * len(sizes) + 0.4), layout="constrained")
    panels = figure.subplots(len(sizes), len(_ERRORS), squeeze=False)
    for (n, m), line in zip(sizes, panels, strict=True):
        for axis, (error, title) in zip(line, _ERRORS.items(), strict=True):
            for colour, row in zip(_COLOURS, (r for r in rows if (r["n"], r["m"]) == (n, m)), strict=False):
                counts, edges = row[f"{error}_counts"], row[f"{error}_edges"]
                share = [100 * count / sum(counts) for count in counts[1:-1]]
                axis.stairs(share, edges, color=colour, fill=True, alpha=0.35)
                axis.stairs(share, edges, color=colour, lw=1.3, label=_histogram_label(row, error))
            axis.set(xscale="log", xlabel=f"{title}, ({n}, {m})")
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_ylim(0, 1.3 * axis.get_ylim()[1])  # room for the legend above the highest bar
            axis.legend(fontsize=7.5, frameon=False, loc="upper left")
        line[0].set_ylabel("% of test instances")
    return figure


def _histogram_label(row: Row, error: str) -> str:
    name = row["architecture"].removesuffix("Transformer")
    if error == "nmse":
        return f"{name}: median {row['nmse_median']:.3g}, p95 {row['nmse_p95']:.3g}"
    below = 100 * row[f"{error}_counts"][0] / sum(row[f"{error}_counts"])
    return f"{name}: {below:.0f}% below {row[f'{error}_edges'][0]:.0e}"


FIGURES: dict[str, Callable[[list[Row]], Figure]] = {
    "convergence": convergence,
    "qp-histograms": qp_histograms,
    "toy-pto": toy_pto,
    "parity": parity,
    "portfolio-clean": portfolio,
    "portfolio-noisy": portfolio,
}
