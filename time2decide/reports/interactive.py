"""Figures for the page: one plotly panel each, so that panels stack on a narrow screen. Pure functions of rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from statistics import mean
from typing import Any

from time2decide.experiments.paper import published
from time2decide.reports.backtest_page import COLOURS
from time2decide.reports.theory_figures import published_r2

Row = dict[str, Any]
Panel = dict[str, Any]  # a plotly figure as JSON: data and layout
_SAMPLES = [5, 10, 20, 50, 100, 200, 500]
_MARKS = 150  # points kept of a curve: enough for the eye


def convergence(rows: list[Row]) -> list[Panel]:
    """KKT residual by layer, one panel per class."""
    panels = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        data = []
        for colour, row in zip(COLOURS, (row for row in rows if row["kind"] == kind), strict=False):
            layers = _thin(len(row["construction"]))
            for form, style in (("construction", {"width": 5}), ("classical", {"width": 1.5, "dash": "dot"})):
                values = [max(row[form][i], 1e-17) for i in layers]
                line = {**style, "color": colour}
                wide = form == "construction"
                data.append(_line(layers, values, row["method"], line, opacity=0.5 if wide else 1, showlegend=wide))
        panels.append(_panel(f"class {kind}: layers (wide), classical (dots)", data, "layer", "KKT residual", y="log"))
    return panels


def qp_grid(rows: list[Row]) -> list[Panel]:
    """R² by depth at the best number of heads, ours and the paper's."""
    panels = []
    for n, m in dict.fromkeys((row["n"], row["m"]) for row in rows):
        data = []
        for colour, name in zip(COLOURS, dict.fromkeys(row["architecture"] for row in rows), strict=False):
            chosen = [row for row in rows if (row["n"], row["m"], row["architecture"]) == (n, m, name)]
            layers = sorted({row["layers"] for row in chosen})
            ours = [max(row["r2"] for row in chosen if row["layers"] == layer) for layer in layers]
            data.append(_line(layers, ours, name, {"color": colour, "width": 2.5}, mode="lines+markers"))
            theirs = [_best_published(n, m, layer, name) for layer in layers]
            data.append(_line(layers, theirs, f"{name}, paper", {"color": colour, "width": 1.5, "dash": "dot"}))
        panels.append(_panel(f"R² at ({n}, {m}), best number of heads", data, "layers", "R²", x="log"))
        panels[-1]["layout"]["xaxis"] |= {"tickvals": layers, "ticktext": [str(layer) for layer in layers]}
    return panels


def qp_histograms(rows: list[Row]) -> list[Panel]:
    """Share of the test instances by NMSE."""
    panels = []
    for n, m in dict.fromkeys((row["n"], row["m"]) for row in rows):
        data = []
        for colour, row in zip(COLOURS, (r for r in rows if (r["n"], r["m"]) == (n, m)), strict=False):
            counts, edges = row["nmse_counts"], row["nmse_edges"]
            share = [100 * count / sum(counts) for count in counts[1:-1]]
            data.append(_line(edges[:-1], share, row["architecture"], {"color": colour, "shape": "hv"}, fill="tozeroy"))
        panels.append(_panel(f"NMSE at ({n}, {m})", data, "NMSE", "% of instances", x="log"))
    return panels


def portfolio(rows: list[Row]) -> list[Panel]:
    """MSE to the oracle by turnover budget, one panel per market; the paper's Time2Decide and PtO dotted."""
    panels = []
    for market in dict.fromkeys(row["market"] for row in rows):
        chosen = [row for row in rows if row["market"] == market and row["strategy"] != "oracle"]
        budgets = list(dict.fromkeys(row["turnover_l1"] for row in chosen))
        data = []
        for colour, name in zip(cycle(COLOURS), dict.fromkeys(row["strategy"] for row in chosen), strict=False):
            values = [
                mean(row["mse"] for row in chosen if row["strategy"] == name and row["turnover_l1"] == budget)
                for budget in budgets
            ]
            data.append(_line(budgets, values, name, {"color": colour, "width": 2}, mode="lines+markers"))
        paper = published("time2decide_mse_summary" + ("" if market == "clean" else "_noisy"))
        for dash, name in (("dot", "Time2Decide"), ("dash", "Predict-then-Optimize")):
            values = [paper.get((f"gamma={budget}", name)) for budget in budgets]
            data.append(_line(budgets, values, f"paper: {name}", {"color": "#8a8f98", "width": 2, "dash": dash}))
        panels.append(_panel(f"{market}: MSE to the oracle", data, "turnover budget γ", "MSE"))
    return panels


def toy_pto(rows: list[Row]) -> list[Panel]:
    """Shrinkage, regret and decision error; dots are simulated, with bars of three standard errors."""
    names = {"pto": ("predict-then-optimise", "#c0504d"), "e2e": ("end-to-end", "#2f6fb7")}
    exact = next((row for row in rows if row["kind"] == "exact"), None)
    shrinkage = (
        [] if exact is None else [_line(exact["numbers"], exact["rho"], "ρ", {"color": "#2f6fb7", "width": 2.5})]
    )
    regret, error = [], []
    for rule, (name, colour) in names.items():
        if exact is not None:
            regret.append(_line(exact["numbers"], exact[rule], f"{name}, exact", {"color": colour, "width": 2}))
        regret.append(_dots([row for row in rows if row["kind"] == "simulated"], "n", rule, name, colour))
        signal = [row for row in rows if row["kind"] == "signal" and row["count"] > 1]
        curve = [row[f"{rule}_exact"] for row in signal]
        error.append(_line([row["signal"] for row in signal], curve, f"{name}, exact", {"color": colour, "width": 2}))
        error.append(_dots(signal, "signal", rule, name, colour))
    panels = [
        _panel("(a) optimal shrinkage ρ", shrinkage, "samples n", "ρ", x="log"),
        _panel("(b) regret", regret, "samples n", "regret", x="log", y="log"),
        _panel("(c) decision error", error, "observed signal |δ̂|", "|w − w*|"),
    ]
    for panel in panels[:2]:
        panel["layout"]["xaxis"] |= {"tickvals": _SAMPLES, "ticktext": [str(n) for n in _SAMPLES]}
    panels[1]["layout"]["yaxis"]["dtick"] = 1
    return panels


def parity(rows: list[Row]) -> list[Panel]:
    """R² by arm."""
    arms = list(dict.fromkeys(row["arm"] for row in rows))[::-1]
    ours = [mean(row["r2"] for row in rows if row["arm"] == arm) for arm in arms]
    known = [(arm, published_r2(next(row for row in rows if row["arm"] == arm))) for arm in arms]
    theirs = [(arm, value) for arm, value in known if value is not None]
    data = [
        {"type": "bar", "orientation": "h", "x": ours, "y": arms, "name": "ours", "marker": {"color": "#2f6fb7"}},
        {
            "type": "scatter",
            "mode": "markers",
            "x": [value for _, value in theirs],
            "y": [arm for arm, _ in theirs],
            "name": "paper",
            "marker": {"symbol": "line-ns-open", "size": 16, "color": "#c0504d", "line": {"width": 3}},
        },
    ]
    panel = _panel("R² by arm", data, "R²", "", y="category")
    panel["layout"]["height"] = 110 + 30 * len(arms)
    panel["layout"]["yaxis"]["tickfont"] = {"size": 11}
    return [panel]


def _line(x: list[Any], y: list[Any], name: str, line: dict[str, Any], *, mode: str = "lines", **more: Any) -> Panel:
    return {"type": "scatter", "mode": mode, "x": x, "y": y, "name": name, "line": line, **more}


def _dots(rows: list[Row], x: str, rule: str, name: str, colour: str) -> Panel:
    bars = {"type": "data", "array": [3 * row[f"{rule}_se"] for row in rows], "color": colour}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [row[x] for row in rows],
        "y": [row[rule] for row in rows],
        "error_y": bars,
        "name": f"{name}, simulated",
        "marker": {"color": colour, "size": 6},
    }


def _panel(title: str, data: list[Panel], xlabel: str, ylabel: str, *, x: str = "linear", y: str = "linear") -> Panel:
    axes = {"automargin": True, "gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.45)"}
    exponent = {"exponentformat": "power", "nticks": 8}
    layout = {
        "title": {"text": title, "font": {"size": 15}, "x": 0.02},
        "xaxis": {**axes, "title": {"text": xlabel}, "type": x},
        "yaxis": {**axes, **(exponent if y == "log" else {}), "title": {"text": ylabel}, "type": y},
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "font": {"size": 11}},
        "margin": {"l": 55, "r": 12, "t": 44, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": 330,
    }
    return {"data": data, "layout": layout}


def _thin(count: int) -> list[int]:
    """Every early layer, fewer later ones."""
    return sorted({round((count - 1) * (i / _MARKS) ** 2) for i in range(_MARKS + 1)})


def _best_published(n: int, m: int, layers: int, name: str) -> float | None:
    prefix = f"n={n};m={m};layers={layers};"
    found = [v for (place, row), v in published("qp_r2").items() if row == name and place.startswith(prefix) and v == v]
    return max(found, default=None)


#: Experiment -> its panels.
PANELS: dict[str, Callable[[list[Row]], list[Panel]]] = {
    "convergence": convergence,
    "qp-grid": qp_grid,
    "qp-histograms": qp_histograms,
    **{f"portfolio-{name}": portfolio for name in ("baselines", "clean", "noisy")},
    "toy-pto": toy_pto,
    "parity": parity,
}
