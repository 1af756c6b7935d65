"""What perfect use of a covariance could save: decisions of the exact solver with Σ, with less of it, and without.

Σ of the utility is the sample covariance of the last 96 returns, so the sample covariance is exact by definition. Every
arm decides by the exact solver on its own history, from forecasts that are perfect (the next returns) or a backbone's.
No architecture that reads covariances can save more than these differences without forecasting better.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from time2decide.backtesting.baselines import oracle_rollout
from time2decide.core.table import Table
from time2decide.experiments.portfolio_scores import (
    CONFIDENCE,
    paired_portfolio_scores,
    portfolio_gain,
    portfolio_rows_of,
    tasks_on_lmc,
)
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.forecasting.timepfn import TimePFN, TimePFNForecaster
from time2decide.markets.covariance import empirical_covariance
from time2decide.markets.oracle import WINDOW, best_oracle_path
from time2decide.markets.synthetic import MARKETS, LMCConfig, synthetic_returns

_BUDGETS = (0.5, 1.0, 2.0)
_RISKS = (0.1, 1.0, 10.0, 100.0)
_PERFECT, _FORECAST = "the next returns", "TimePFN's forecasts"
_FULL, _NONE = "Σ", "nothing"


def _diagonal(sigma: np.ndarray) -> np.ndarray:
    return np.asarray(sigma * np.eye(sigma.shape[-1]))


def _mean_variance(sigma: np.ndarray) -> np.ndarray:
    mean = np.trace(sigma, axis1=-2, axis2=-1)[..., None, None] / sigma.shape[-1]
    return np.asarray(mean * np.eye(sigma.shape[-1]))


#: What is known of risk -> the matrix in place of Σ̂ (series, m, m).
KNOWN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    _FULL: lambda sigma: sigma,
    "its diagonal": _diagonal,
    "the mean variance": _mean_variance,
    _NONE: np.zeros_like,
}


def _tasks(preset: str) -> list[Config]:
    """One task per market and λ."""
    sizes: Config = {"evaluation": [30, 250], "length": 1024, "seed": 0, "backbone": "small"}
    markets, risks = (("clean",), _RISKS[-1:]) if preset == "smoke" else (tuple(MARKETS), _RISKS)
    if preset == "smoke":
        sizes |= {"evaluation": [2, 4], "length": 128}
    return [{"market": market, "risk_aversion": risk, **sizes} for market in markets for risk in risks]


def _run(config: Config) -> list[Row]:
    """Scores of every arm against the oracle, which knows the next returns and Σ."""
    count, steps = config["evaluation"]
    lmc = LMCConfig(length=config["length"])
    returns = synthetic_returns(config["market"], count=count, seed=config["seed"], config=lmc)[:, : WINDOW + steps]
    windows = [returns[:, t : t + WINDOW] for t in range(steps)]
    sigma = np.stack([empirical_covariance(window) for window in windows])  # (steps, series, m, m)
    forecaster = TimePFNForecaster(TimePFN.from_pretrained(config["backbone"]))
    forecasts = {_PERFECT: returns[:, WINDOW:], _FORECAST: np.stack([forecaster(one) for one in windows], axis=1)}
    paths = {
        (of, known): _decisions(mean, config["risk_aversion"] * np.stack([matrix(one) for one in sigma]))
        for of, mean in forecasts.items()
        for known, matrix in KNOWN.items()
    }
    oracle = paths[_PERFECT, _FULL]
    return [
        {"forecasts": of, "strategy": known, **row}
        for (of, known), path in paths.items()
        for row in portfolio_rows_of(
            oracle_rollout(path, np.asarray(_BUDGETS), WINDOW, config["risk_aversion"]), returns, oracle
        )
    ]


def _decisions(mean: np.ndarray, risk: np.ndarray) -> np.ndarray:
    """Exact decisions for forecasts (series, steps, m) and λΣ (steps, series, m, m), uniform before the first."""
    series, _, m = mean.shape
    half = np.broadcast_to(np.asarray(_BUDGETS) / 2, (series, len(_BUDGETS)))
    decided = best_oracle_path(mean, lambda step: 2 * risk[step], half)  # (series, budgets, steps, m)
    return np.concatenate([np.full((series, len(_BUDGETS), WINDOW, m), 1 / m), decided], axis=2)


def _tables(rows: list[Row]) -> list[Table]:
    """MSE and regret with what is known of risk; then what Σ saves against knowing nothing of it."""
    series, steps = rows[0]["evaluation"]
    sizes = f"{series} series × {steps} decisions"
    found = []
    for of, here in grouped_rows(rows, "forecasts").items():
        for key, title in {"mse": "MSE to the oracle", "regret": "regret"}.items():
            cells = [
                [f"{market}, λ = {risk:g}", *(_figures(own, budget, key) for budget in _BUDGETS)]
                for (market, risk), own in grouped_rows(here, "market", "risk_aversion").items()
            ]
            caption = f"{title} × 1e4, the exact solver with {of} and {' / '.join(KNOWN)} of Σ; {sizes}"
            found.append(Table(caption, ["", *(f"γ={g:g}" for g in _BUDGETS)], cells))
    return [*found, *(_saved(rows, of, sizes) for of in (_PERFECT, _FORECAST))]


def _figures(rows: list[Row], budget: float, key: str) -> str:
    scores = {row["strategy"]: 1e4 * row[key] for row in rows if row["turnover_l1"] == budget}
    return " / ".join(f"{scores[known]:z.1f}" for known in KNOWN)


def _saved(rows: list[Row], of: str, sizes: str) -> Table:
    """Regret that Σ saves against knowing nothing of risk, and its share."""
    cells = []
    for (market, risk), own in grouped_rows(rows, "market", "risk_aversion").items():
        line = [market, f"{risk:g}"]
        for budget in _BUDGETS:
            here = [row for row in own if row["forecasts"] == of]
            with_, without = paired_portfolio_scores(here, _FULL, _NONE, budget, "regret")
            middle, low, high = portfolio_gain(with_, without, "regret")
            share = f", {100 * (1 - with_.mean() / without.mean()):.0f} %" if of != _PERFECT and without.mean() else ""
            line.append(f"{middle:z.1f} [{low:z.1f}, {high:z.1f}]{share}")
        cells.append(line)
    caption = f"Regret × 1e4 that perfect use of Σ saves with {of}, {CONFIDENCE:.0%} intervals; {sizes}"
    return Table(caption, ["market", "λ", *(f"γ={g:g}" for g in _BUDGETS)], cells)


EXPERIMENTS = (
    Experiment(
        id="covariance-worth",
        title="What perfect use of a covariance could save",
        paper="None: the paper says that covariance tokens improve decisions, at λ = 0.1",
        presets={"smoke": "10 s", "cpu": "10 min"},
        tasks=tasks_on_lmc(_tasks),
        run=_run,
        tables=_tables,
    ),
)
