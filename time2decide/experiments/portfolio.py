"""Time2Decide and everything it is compared with, on the same evaluation series, step by step.

Every row keeps its score on each series, so that strategies are compared in pairs: the difference on the same series,
with an interval by bootstrap over series. What is tuned (temperature, shrinkage ρ) is tuned on validation series.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from time2decide.backtesting.baselines import AveragedOracle, LagOneOracle, PredictThenOptimise, SoftForecast, Uniform
from time2decide.core.cache import cached_tensors
from time2decide.core.cache import fingerprint as file_fingerprint
from time2decide.experiments.portfolio_baselines import tune
from time2decide.experiments.portfolio_tables import show
from time2decide.experiments.registry import Experiment
from time2decide.forecasting.features import VERSION, CachedFeatures, WindowFeatures, window_features
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets import BUDGETS, WINDOW, LMCConfig, synthetic_oracle, synthetic_returns
from time2decide.policy.model import PRETRAINED, NetworkForecast, PolicyStrategy, load_policy
from time2decide.policy.paper_model import pretrained_strategy
from time2decide.simulation.engine import Strategy, rollout
from time2decide.simulation.metrics import score

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
SHRINKAGES = (1.0, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
RETURNS_SCALE = 100.0  # of what the backbone is given: its normalisation cannot resolve returns as they are
SPREADS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.3)
Config = dict[str, Any]
Row = dict[str, Any]


def tasks(markets: tuple[str, ...], preset: str) -> list[Config]:
    """One task per market, seed and strategy, with what it depends on: its grid, the weights of its network."""
    if preset == "smoke":
        sizes, seeds, markets = {"evaluation": 2, "validation": 1, "length": 128}, range(1), markets[:1]
    else:
        sizes = {"evaluation": 30, "validation": 4 if preset == "cpu" else 30, "length": 1024}
        seeds = range(3 if preset == "cpu" else 10)
    return [
        {"market": market, "seed": seed, "strategy": name, **sizes, **_needs(name)}
        for market in markets
        for seed in seeds
        for name in MAKERS
    ]


def _needs(name: str) -> Config:
    maker = MAKERS[name]
    needs: Config = {"network": fingerprint(maker.network)} if maker.network else {}
    needs |= {"grid": list(maker.grid)} if maker.grid else {}
    return needs | ({"aim": maker.aim} if maker.aim != "mse" else {})


def fingerprint(name: str) -> str:
    """Of the weights of a bundled network."""
    return file_fingerprint(PRETRAINED[name] / "model.safetensors")


def run(config: Config) -> list[Row]:
    """Tune on validation series if there is something to tune, then score on the evaluation series."""
    maker = MAKERS[config["strategy"]]
    remembered = Remembered()
    policy = load_policy(maker.network)[0] if maker.network else None
    parameters: list[float] | None = None
    if maker.grid:
        known = series_of(config, "validation", remembered, policy is not None)
        parameters = tune(lambda values: maker.make(policy, remembered, values), config["grid"], *known, maker.aim)
    returns, oracle = series_of(config, "evaluation", remembered, policy is not None)
    strategy = maker.make(policy, remembered, tuple(parameters) if parameters else None)
    return scored(strategy, returns, oracle, parameters)


def series_of(config: Config, split: str, remembered: Remembered, look: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Returns and the oracle's path of a split, with the features_of of all windows in memory if they are needed."""
    lmc = LMCConfig(length=config["length"])
    options: dict[str, Any] = {"count": config[split], "seed": config["seed"], "config": lmc}
    returns = synthetic_returns(config["market"], split, **options)
    if look:
        key = {"market": config["market"], "split": split, **options, "config": asdict(lmc)}
        remembered.learn(returns, key)
    return returns, synthetic_oracle(config["market"], split, **options)


Make = Callable[[Any, "Remembered", Any], Strategy]


def _pto(name: str) -> Make:
    return lambda policy, look, rho: PredictThenOptimise(
        NetworkForecast(policy, look), 1.0 if rho is None else rho, name=name
    )


def _network(name: str, history: str) -> Make:
    return lambda policy, look, _: PolicyStrategy(policy, history, name, look)


class Maker(NamedTuple):
    """How a strategy is made: of a bundled network, features_of and tuned values."""

    make: Make
    network: str | None = None
    grid: tuple[float, ...] | None = None  # of what is tuned
    aim: str = "mse"  # the score that it is tuned for


MAKERS: dict[str, Maker] = {
    "uniform": Maker(lambda *_: Uniform()),
    "pretrained": Maker(lambda *_: pretrained_strategy(TimePFN.from_pretrained(), RETURNS_SCALE)),
    "lag1-oracle": Maker(lambda *_: LagOneOracle()),
    "soft-persistence": Maker(lambda _, __, values: SoftForecast(temperature=values), None, TEMPERATURES),
    "pto": Maker(_pto("pto"), "decide"),
    "pto-shrunk": Maker(_pto("pto-shrunk"), "decide", SHRINKAGES),
    "pto-shrunk (regret)": Maker(_pto("pto-shrunk (regret)"), "decide", SHRINKAGES, "regret"),
    "averaged-oracle": Maker(lambda p, look, v: AveragedOracle(NetworkForecast(p, look), v), "decide", SPREADS),
    "sft (own)": Maker(_network("sft (own)", "own"), "decide-blind"),
    "sft (hindsight)": Maker(_network("sft (hindsight)", "hindsight"), "decide-blind"),
    "time2decide (own)": Maker(_network("time2decide (own)", "own"), "decide"),
    "time2decide (hindsight)": Maker(_network("time2decide (hindsight)", "hindsight"), "decide"),
    "time2decide-utility (own)": Maker(_network("time2decide-utility (own)", "own"), "decide-utility"),
}


def scored(
    strategy: Strategy,
    returns: np.ndarray,
    oracle: np.ndarray,
    parameters: list[float] | None = None,
    budgets: tuple[float, ...] = BUDGETS,
) -> list[Row]:
    """One row per budget: means, and the scores of every series; `violation` of the constraints at worst."""
    result = rollout(returns, strategy, budgets, oracle=oracle)
    scores = score(result, returns, oracle)
    held = result.allocations[:, :, WINDOW - 1 :]
    excess = np.abs(np.diff(held, axis=2)).sum(-1) - np.asarray(budgets)[:, None]
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
        for k, (budget, means) in enumerate(zip(budgets, scores.rows(), strict=True))
    ]


class Remembered(CachedFeatures):
    """Features of whole series, kept on disk between tasks, because all networks see the same windows."""

    def learn(self, returns: np.ndarray, key: Config) -> None:
        """Look at every window of returns (series, time, m), or read what was seen under the same key before."""
        steps = range(WINDOW, returns.shape[1])

        def make() -> dict[str, torch.Tensor]:
            looks = [window_features(returns[:, t - WINDOW : t]) for t in steps]
            return {f.name: torch.stack([getattr(one, f.name) for one in looks]) for f in fields(WindowFeatures)}

        tensors = cached_tensors({"kind": "features", "version": VERSION, **key}, make)
        for i, t in enumerate(steps):
            one = WindowFeatures(**{field: tensor[i] for field, tensor in tensors.items()})
            self.remember(returns[:, t - WINDOW : t], one)


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
        "1 h",
    ),
    _experiment(
        "portfolio-noisy",
        "Time2Decide against every baseline on noisy returns",
        "Table of Section 5.2 (noisy)",
        ("noisy", "noisy-matched"),
        "2 h",
    ),
)
