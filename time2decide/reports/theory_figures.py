"""Figures of the theory: the three panels on predict-then-optimise, and R² by arm for the parity barrier."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from time2decide.experiments.paper import published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
_RULES = {"pto": ("predict-then-optimise", "#c0504d"), "e2e": ("end-to-end", "#1f5fa8")}
_TICKS = [5, 10, 20, 50, 100, 200, 500]


def toy_pto(rows: list[Row]) -> Figure:
    """Shrinkage and regret by number of samples, decision error by signal strength."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if not row["error"]]
    figure = Figure(figsize=(11.5, 3.7), layout="constrained")
    shrinkage, regret, error = figure.subplots(1, 3)
    for row in (row for row in rows if row["kind"] == "exact"):
        shrinkage.plot(row["numbers"], row["rho"], color="#1f5fa8", lw=1.8, label="end-to-end: ρ")
        shrinkage.fill_between(row["numbers"], row["rho"], 1, color="#1f5fa8", alpha=0.12, lw=0)
        shrinkage.axhline(1, color="#c0504d", lw=1.5, ls="--", label="predict-then-optimise: 1")
        for rule, (name, colour) in _RULES.items():
            regret.plot(row["numbers"], row[rule], color=colour, lw=1.6, label=f"{name}, exact")
    _points(regret, [row for row in rows if row["kind"] == "simulated"], "n")
    signal = [row for row in rows if row["kind"] == "signal" and row["count"] > 1]
    for rule, (name, colour) in _RULES.items():
        error.plot(
            [r["signal"] for r in signal], [r[f"{rule}_exact"] for r in signal], color=colour, lw=1.6, label=name
        )
    _points(error, signal, "signal")
    shrinkage.set(title="(a) trust in the estimate", xlabel="samples n", ylim=(0, 1.08))
    regret.set(title="(b) regret", xlabel="samples n", yscale="log")
    number = next((row["n"] for row in signal if "n" in row), 50)
    error.set(title=f"(c) decision error |w − w*|, n = {number}", xlabel="observed signal |δ̂|", ylim=(0, None))
    for axis in (shrinkage, regret):
        axis.set_xscale("log")
        axis.set_xticks(_TICKS, [str(tick) for tick in _TICKS])
        axis.minorticks_off()
    figure.suptitle("dots: simulation, bars of three standard errors", fontsize=9, color="#555555")
    for axis in (shrinkage, regret, error):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8.5, frameon=False)
    return figure


def _points(axis: Axes, rows: list[Row], x: str) -> None:
    """Simulated means with bars of three standard errors."""
    for rule, (_, colour) in _RULES.items():
        bars = [3 * row[f"{rule}_se"] for row in rows]
        values = [row[rule] for row in rows]
        axis.errorbar([row[x] for row in rows], values, bars, fmt="o", ms=3.5, color=colour, capsize=2, lw=1)


def parity(rows: list[Row]) -> Figure:
    """One bar per arm, the mean over seeds; the paper's figure as a mark."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if not row["error"]]
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    figure = Figure(figsize=(8.5, 0.38 * len(arms) + 1.2), layout="constrained")
    axis = figure.subplots()
    for place, arm in enumerate(arms):
        chosen = [row for row in rows if row["arm"] == arm]
        value = mean(row["r2"] for row in chosen)
        odd = all(row["oddness"] < 1e-3 for row in chosen)
        theirs = published_r2(chosen[0])
        axis.barh(place, value, color="#b9bec6" if odd else "#1f5fa8", height=0.62)
        if theirs is not None:
            axis.plot([theirs] * 2, [place - 0.4, place + 0.4], color="#c0504d", lw=2.5)
        axis.text(
            max(value, 0) + 0.02, place, f"{value:.3f}" + ("  odd in the data" if odd else ""), va="center", fontsize=9
        )
    axis.plot([], [], color="#c0504d", lw=2.5, label="paper")
    axis.axvline(0, color="#555555", lw=0.8)
    axis.set_yticks(range(len(arms)), arms)
    axis.invert_yaxis()
    axis.set(xlabel="R² of the covariance of unseen series", xlim=(-0.85, 1.12))
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.legend(frameon=False, loc="lower left")
    return figure


def published_r2(row: Row) -> float | None:
    """The paper's R² of the arm, if it has one."""
    place = f"layers={row['model']['layers']};heads={row['model']['heads']}"
    return published("parity_barrier_r2").get((place, row["arm"].split(" ")[0]))
