"""Time2Decide and everything it is compared with, on the same evaluation series, step by step.

Every row keeps its score on each series, so that strategies are compared in pairs: the difference on the same series,
with an interval by bootstrap over series. What is tuned (temperature, shrinkage ρ) is tuned on validation series.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from time2decide.decisions import AveragedOracle, LagOneOracle, PredictThenOptimise, SoftForecast, Strategy, Uniform
from time2decide.decisions.metrics import score, squared_distance
from time2decide.decisions.rollout import rollout
from time2decide.decisions.time2decide import PRETRAINED, Learned, NetworkForecast, load_policy
from time2decide.experiments.portfolio_tables import show
from time2decide.experiments.registry import Experiment
from time2decide.forecasting.outlook import Outlook, outlook
from time2decide.markets import BUDGETS, WINDOW, LMCConfig, synthetic_oracle, synthetic_returns

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
SHRINKAGES = (1.0, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
SPREADS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.3)
Config = dict[str, Any]
Row = dict[str, Any]


def tasks(markets: tuple[str, ...], preset: str) -> list[Config]:
    """One task per market and seed; the weights of the networks are part of the configuration."""
    networks = {name: fingerprint(name) for name in sorted(PRETRAINED)}
    grids = {"temperatures": TEMPERATURES, "shrinkages": SHRINKAGES, "spreads": SPREADS}
    common = {"networks": networks, "grids": {name: list(grid) for name, grid in grids.items()}}
    if preset == "smoke":
        small = {"evaluation": 2, "validation": 1, "length": 128}
        return [{"market": markets[0], "seed": 0, **small, **common}]
    sizes = {"evaluation": 30, "validation": 4 if preset == "cpu" else 30, "length": 1024}
    seeds = range(3 if preset == "cpu" else 10)
    return [{"market": market, "seed": seed, **sizes, **common} for market in markets for seed in seeds]


def fingerprint(name: str) -> str:
    """Of the weights of a bundled network."""
    return hashlib.sha256((PRETRAINED[name] / "model.safetensors").read_bytes()).hexdigest()[:16]


def run(config: Config) -> list[Row]:
    """Tune on validation series, then score every strategy on the evaluation series."""
    options: dict[str, Any] = {"seed": config["seed"], "config": LMCConfig(length=config["length"])}
    market, remembered = config["market"], Remembered()
    known = synthetic_returns(market, "validation", count=config["validation"], **options)
    known_oracle = synthetic_oracle(market, "validation", count=config["validation"], **options)
    chosen = strategies(known, known_oracle, config["grids"], remembered)
    returns = synthetic_returns(market, "evaluation", count=config["evaluation"], **options)
    oracle = synthetic_oracle(market, "evaluation", count=config["evaluation"], **options)
    rows = []
    for strategy, parameters in chosen:
        rows += scored(strategy, returns, oracle, parameters)
    return rows


def strategies(
    returns: np.ndarray, oracle: np.ndarray, grids: dict[str, list[float]], remembered: Remembered
) -> list[tuple[Strategy, list[float] | None]]:
    """Every strategy of the tables with what was tuned on validation series."""
    decide, utility, blind = (load_policy(name)[0] for name in ("decide", "decide-utility", "decide-blind"))
    forecast = NetworkForecast(decide, remembered)
    pto = partial(PredictThenOptimise, forecast, name="pto-shrunk")
    soft: Callable[..., Strategy] = SoftForecast

    def tuned(make: Callable[[tuple[float, ...]], Strategy], grid: list[float]) -> tuple[Strategy, list[float]]:
        best = tune(make, grid, returns, oracle)
        return make(tuple(best)), best

    return [
        (Uniform(), None),
        (LagOneOracle(), None),
        tuned(lambda v: soft(temperature=v), grids["temperatures"]),
        (PredictThenOptimise(forecast, name="pto"), None),
        tuned(lambda v: pto(shrinkage=v), grids["shrinkages"]),
        tuned(lambda v: AveragedOracle(forecast, v), grids["spreads"]),
        (Learned(blind, "own", "sft (own)", remembered), None),
        (Learned(blind, "hindsight", "sft (hindsight)", remembered), None),
        (Learned(decide, "own", "time2decide (own)", remembered), None),
        (Learned(decide, "hindsight", "time2decide (hindsight)", remembered), None),
        (Learned(utility, "own", "time2decide-utility (own)", remembered), None),
    ]


def tune(
    make: Callable[[tuple[float, ...]], Strategy], grid: list[float], returns: np.ndarray, oracle: np.ndarray
) -> list[float]:
    """The value of the grid with the least MSE at each budget; all are run together, as extra budgets."""
    budgets, values = np.tile(BUDGETS, len(grid)), np.repeat(grid, len(BUDGETS))
    target = np.tile(oracle, (1, len(grid), 1, 1))  # (series, grid × budgets, time, m)
    result = rollout(returns, make(tuple(values.tolist())), budgets.tolist(), oracle=target)
    errors = squared_distance(result.raw, target, WINDOW).mean(axis=0).reshape(len(grid), len(BUDGETS))
    return [float(grid[i]) for i in errors.argmin(axis=0)]


def scored(
    strategy: Strategy, returns: np.ndarray, oracle: np.ndarray, parameters: list[float] | None = None
) -> list[Row]:
    """One row per budget: means, and the scores of every series; `violation` of the constraints at worst."""
    result = rollout(returns, strategy, BUDGETS, oracle=oracle)
    scores = score(result, returns, oracle)
    held = result.allocations[:, :, WINDOW - 1 :]
    excess = np.abs(np.diff(held, axis=2)).sum(-1) - np.asarray(BUDGETS)[:, None]
    worst = np.maximum(np.maximum(np.abs(held.sum(-1) - 1).max((0, 2)), -held.min((0, 2, 3))), excess.max((0, 2)))
    return [
        {
            "strategy": strategy.name,
            "turnover_l1": float(budget),
            "parameter": None if parameters is None else parameters[k],
            **means,
            "violation": float(max(worst[k], 0.0)),
            "mse_series": np.round(scores.mse[:, k], 8).tolist(),
            "regret_series": np.round(scores.regret[:, k], 9).tolist(),
        }
        for k, (budget, means) in enumerate(zip(BUDGETS, scores.rows(), strict=True))
    ]


class Remembered:
    """`outlook` with a memory: all networks see the same windows."""

    def __init__(self) -> None:
        self.seen: dict[bytes, Outlook] = {}

    def __call__(self, windows: np.ndarray) -> Outlook:
        key = hashlib.blake2b(np.ascontiguousarray(windows).tobytes(), digest_size=16).digest()
        if key not in self.seen:
            self.seen[key] = outlook(windows)
        return self.seen[key]


def _experiment(name: str, title: str, paper: str, markets: tuple[str, ...], hours: str) -> Experiment:
    return Experiment(
        id=name,
        title=title,
        paper=paper,
        presets={"smoke": "20 s", "cpu": hours, "paper": "1 day"},
        tasks=partial(tasks, markets),
        run=run,
        show=show,
    )


EXPERIMENTS = (
    _experiment(
        "portfolio-clean",
        "Time2Decide against every baseline on clean returns",
        "Table of Section 5.2 (clean)",
        ("clean",),
        "30 min",
    ),
    _experiment(
        "portfolio-noisy",
        "Time2Decide against every baseline on noisy returns",
        "Table of Section 5.2 (noisy)",
        ("noisy", "noisy-matched"),
        "1 h",
    ),
)
