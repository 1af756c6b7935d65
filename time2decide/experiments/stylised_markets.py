"""Markets of which it is known what can be predicted: nothing at all, or much.

Without predictability: independent normal returns, Student's with 4 degrees of freedom, and GARCH(1, 1) volatilities
with one common factor. With it: AR(1) and VAR(1) returns, regimes of drift, and sinusoids in noise. Each has 16 assets;
decisions begin after 96 rows, budgets and costs are measured from drifted weights, γ = 0.5 and 10 basis points.
Utility is mean − λ · variance of net returns, per day.
"""

from __future__ import annotations

import math

import numpy as np

from time2decide.backtesting.registry import make_strategy
from time2decide.core.table import Table
from time2decide.experiments.real_markets import policy_fingerprint, real_market_net_paths
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.simulation.metrics import realised_utility

_FIRST, _SETTLED, _ASSETS, _BUDGET, _COST_BPS = 96, 100, 16, 0.5, 10.0
_RISKS = {"nothing": (10.0, 100.0), "much": (1.0, 10.0)}
_KINDS = {"normal": "nothing", "garch": "nothing", "student": "nothing"} | dict.fromkeys(
    ("ar1", "var1", "regimes", "sinusoids"), "much"
)
_STRATEGIES = {
    "nothing": ("market", "uniform", "minimum-variance", "minimum-variance-qis", "minimum-variance-iewma"),
    "much": ("market", "uniform", "pto-ridge", "pto-timepfn"),
}


def stylised_market(kind: str, rows: int, assets: int, rng: np.random.Generator) -> np.ndarray:
    """Returns (rows, assets) of one kind; volatilities of the unpredictable ones differ between assets."""
    noise = 0.01 * rng.normal(size=(rows, assets))
    if kind == "sinusoids":
        angle = 2 * np.pi * np.arange(rows)[:, None] / rng.uniform(8, 60, assets) + rng.uniform(0, 2 * np.pi, assets)
        return 0.01 * np.sin(angle) + 0.5 * noise
    if kind == "regimes":
        ends = np.cumsum(rng.uniform(size=rows) < 1 / 60)
        return np.asarray(0.004 * rng.normal(size=(ends[-1] + 1, assets))[ends] + noise)
    if kind in ("ar1", "var1"):
        matrix = 0.4 * np.eye(assets) if kind == "ar1" else rng.normal(size=(assets, assets))
        if kind == "var1":
            matrix *= 0.6 / np.abs(np.linalg.eigvals(matrix)).max()
        returns = noise.copy()
        for t in range(1, rows):
            returns[t] += matrix @ returns[t - 1]
        return returns
    scale = np.exp(0.5 * rng.normal(size=assets))
    if kind == "student":
        return np.asarray(scale * 0.01 * rng.standard_t(4, (rows, assets)) / math.sqrt(2))
    return np.asarray(scale * (_garch(rows, assets, rng) if kind == "garch" else noise))


def _garch(rows: int, assets: int, rng: np.random.Generator) -> np.ndarray:
    """One factor and own shocks, each with the variance h' = 0.05 + a·x² + b·h."""
    loading, factor, own = rng.uniform(0.5, 1.5, assets), 1.0, np.ones(assets)
    returns = np.empty((rows, assets))
    for t in range(rows):
        f, e = math.sqrt(factor) * rng.normal(), np.sqrt(own) * rng.normal(size=assets)
        returns[t] = 0.01 * (0.6 * loading * f + 0.8 * e)
        factor, own = 0.05 + 0.1 * f * f + 0.85 * factor, 0.05 + 0.08 * e * e + 0.87 * own
    return returns


def stylised_market_tasks(preset: str) -> list[Config]:
    """One task per kind of market and strategy."""
    size = {"series": 2, "rows": 220} if preset == "smoke" else {"series": 20, "rows": 1024}
    return [
        {"market": kind, "predictable": much, "strategy": name, **size, "seed": 0} | policy_fingerprint(name)
        for kind, much in _KINDS.items()
        for name in _STRATEGIES[much]
    ]


def run_stylised_market(config: Config) -> list[Row]:
    """Utility and turnover at each λ: mean over series, and the utility of each series for paired comparisons."""
    kind, number = config["market"], list(_KINDS).index(config["market"])
    draws = [np.random.default_rng([config["seed"], number, series]) for series in range(config["series"])]
    returns = np.stack([stylised_market(kind, config["rows"], _ASSETS, rng) for rng in draws])
    cells = (_BUDGET,), _RISKS[config["predictable"]], (_COST_BPS,)
    rows = []
    for (_, risk, _), (net, traded) in real_market_net_paths(
        returns, make_strategy(config["strategy"]), *cells, _FIRST, delay=0
    ).items():
        utility = realised_utility(net, risk)
        row: Row = {"risk_aversion": risk, "utility": float(utility.mean()), "utilities": utility.tolist()}
        row |= {"variance": float(net.var(-1).mean()), "traded": float(traded[:, _SETTLED:].mean())}
        rows.append(row)
    return rows


def stylised_market_tables(rows: list[Row]) -> list[Table]:
    """One table for markets without predictability and one for those with it."""
    found = []
    for much, here in grouped_rows(rows, "predictable").items():
        lines = []
        for (kind, risk), cells in grouped_rows(here, "market", "risk_aversion").items():
            ours = next((row for row in cells if row["strategy"] == "market"), None)
            for row in cells:
                figures = [f"{1e4 * row['utility']:.2f}", _paired(ours, row), f"{1e4 * risk * row['variance']:.2f}"]
                lines.append([kind, f"{risk:g}", row["strategy"], *figures, f"{row['traded']:.4f}"])
        columns = ["returns", "λ", "strategy", "utility", "market less this", "λ · variance", "traded a day"]
        note = (
            f"In bp a day, net of {_COST_BPS:g} bp, γ = {_BUDGET:g}; mean over {here[0]['series']} series, ± standard "
            f"error of the paired difference; traded after the first {_SETTLED} days."
        )
        found.append(Table(f"Stylised markets: {much} to predict", columns, lines, note))
    return found


def _paired(ours: Row | None, other: Row) -> str:
    if ours is None or ours is other:
        return "–"
    difference = 1e4 * (np.array(ours["utilities"]) - np.array(other["utilities"]))
    return f"{difference.mean():+.2f} ± {difference.std(ddof=1) / math.sqrt(len(difference)):.2f}"


EXPERIMENTS = (
    Experiment(
        id="stylised-markets",
        title="Markets of which it is known what can be predicted",
        paper="– (beyond the paper)",
        presets={"smoke": "30 s", "cpu": "20 min"},
        tasks=stylised_market_tasks,
        run=run_stylised_market,
        tables=stylised_market_tables,
    ),
)
