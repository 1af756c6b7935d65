"""What perfect use of a covariance could save: decisions of the exact solver with Σ, with less of it, and without.

Σ of the utility is the sample covariance of the last 96 returns, so the sample covariance is exact by definition. Every
arm decides by the exact solver on its own history, from forecasts that are perfect (the next returns) or a backbone's.
No architecture that reads covariances can save more than these differences without forecasting better. Beside it the
policy itself, with covariance tokens and without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from time2decide.backtesting.baselines import oracle_rollout
from time2decide.backtesting.registry import make_strategy
from time2decide.core.table import Table
from time2decide.experiments.portfolio_scores import (
    CONFIDENCE,
    paired_portfolio_scores,
    portfolio_gain,
    portfolio_rows_of,
    scored_portfolio_rows,
    tasks_on_lmc,
)
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.forecasting.timepfn import TimePFN, TimePFNForecaster
from time2decide.markets.covariance import empirical_covariance
from time2decide.markets.oracle import WINDOW, best_oracle_path, oracle_path
from time2decide.markets.policy_config import NAMED
from time2decide.markets.synthetic import MARKETS, LMCConfig, synthetic_returns
from time2decide.policy.market_decision import MarketStrategy
from time2decide.policy.market_policy import MarketPolicy
from time2decide.simulation.engine import Strategy

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


_POLICY, _BLIND, _ALL, _PTO = "time2decide", "time2decide-nocov", "time2decide + kernel bank", "pto-timepfn"


def _strategies() -> dict[str, Strategy]:
    """The policy in the paper's setting, without covariance tokens, with more experts, and predict-then-optimise."""
    more = MarketStrategy(MarketPolicy(replace(NAMED[_POLICY], kernels=True)), _ALL)
    return {name: make_strategy(name) for name in (_POLICY, _BLIND, _PTO)} | {_ALL: more}


def _policy_tasks(preset: str) -> list[Config]:
    """One task per market and λ."""
    sizes: Config = {"evaluation": [30, 200], "length": 1024, "seed": 0}
    markets, risks = (("clean",), _RISKS[-1:]) if preset == "smoke" else (tuple(MARKETS), (100.0, 10.0, 0.1))
    if preset == "smoke":
        sizes |= {"evaluation": [2, 4], "length": 128}
    return [{"market": market, "risk_aversion": risk, **sizes} for risk in risks for market in markets]


def _run_policy(config: Config) -> list[Row]:
    """Scores of the policy on its own history, from its first row on, against the oracle of the same utility."""
    count, steps = config["evaluation"]
    lmc, risk = LMCConfig(length=config["length"]), config["risk_aversion"]
    returns = synthetic_returns(config["market"], count=count, seed=config["seed"], config=lmc)[:, : WINDOW + steps]
    oracle = np.asarray(oracle_path(returns, list(_BUDGETS), risk))
    return [
        row
        for name, strategy in _strategies().items()
        for row in scored_portfolio_rows(name, strategy, returns, oracle, budgets=_BUDGETS, risk_aversion=risk)
    ]


def _policy_tables(rows: list[Row]) -> list[Table]:
    """Regret of every strategy; what the policy saves against predict-then-optimise, and what its tokens are worth."""
    series, steps = rows[0]["evaluation"]
    cells = grouped_rows(rows, "market", "risk_aversion")
    names = (_PTO, _BLIND, _POLICY, _ALL)
    regret = [
        [market, f"{risk:g}", *(" / ".join(f"{_regret(own, name, g):z.1f}" for name in names) for g in _BUDGETS)]
        for (market, risk), own in cells.items()
    ]
    heads = ["market", "λ", *(f"γ={g:g}" for g in _BUDGETS)]
    sizes = f"{series} series × {steps} decisions, from the first row on"
    found = [Table(f"Regret × 1e4 of {' / '.join(names)}; {sizes}", heads, regret)]
    for other, ours in ((_PTO, _POLICY), (_PTO, _ALL), (_BLIND, _POLICY)):
        saved = []
        for (market, risk), own in cells.items():
            line = [market, f"{risk:g}"]
            for budget in _BUDGETS:
                pair = paired_portfolio_scores(own, ours, other, budget, "regret")
                middle, low, high = portfolio_gain(*pair, "regret")
                line.append(f"{middle:z.2f} [{low:z.2f}, {high:z.2f}]")
            saved.append(line)
        found.append(Table(f"Regret × 1e4 that {ours} saves beside {other}, {CONFIDENCE:.0%} intervals", heads, saved))
    return found


def _regret(rows: list[Row], name: str, budget: float) -> float:
    return float(1e4 * next(r["regret"] for r in rows if r["strategy"] == name and r["turnover_l1"] == budget))


EXPERIMENTS = (
    Experiment(
        id="policy-worth",
        title="The policy beside predict-then-optimise on the same forecasts, with and without covariance tokens",
        paper="Time2Decide decides better than predict-then-optimise, and covariance tokens improve it",
        presets={"smoke": "10 s", "cpu": "25 min"},
        tasks=tasks_on_lmc(_policy_tasks),
        run=_run_policy,
        tables=_policy_tables,
    ),
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
