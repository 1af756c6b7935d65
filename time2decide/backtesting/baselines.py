"""Baselines: the strategies that need no training.

All are frozen dataclasses with `decide(observation)`. A parameter that is tuned per turnover budget may be a tuple with
one entry per budget of the rollout. The oracle is not here, because it knows the future: see `oracle_rollout`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from time2decide.core.validation import expect
from time2decide.forecasting.simple import Forecaster, persistence, ridge
from time2decide.forecasting.timepfn import TimePFN, TimePFNForecaster
from time2decide.markets.allocation import best_allocations, greedy_allocations
from time2decide.markets.covariance import Covariance
from time2decide.simulation.decisions import solve_observation
from time2decide.simulation.engine import Observation, Rollout

PerBudget = float | tuple[float, ...]


@dataclass(frozen=True)
class Uniform:
    """1/m, always."""

    name: str = "uniform"
    wants_hindsight: bool = False
    uses_risk_aversion: bool = False
    uses_cost: bool = False

    def decide(self, observation: Observation) -> np.ndarray:
        m = observation.returns.shape[-1]
        return np.full(m, 1.0 / m)


@dataclass(frozen=True)
class LagOneOracle:
    """s*_{t−1}, what would have been best one step ago: causal, and nearly PtO with a persistence forecast."""

    name: str = "lag1-oracle"
    wants_hindsight: bool = True

    def decide(self, observation: Observation) -> np.ndarray:
        return observation.oracle_history()[:, :, -1]


@dataclass(frozen=True)
class SoftForecast:
    """softmax(r̂ / τσ), σ the root mean square one-step change of the window, so that τ has no unit.

    With the persistence forecast this is soft persistence. MSE to a one-hot oracle is a Brier score: certainty pays
    only for those who are right.
    """

    forecaster: Forecaster = persistence
    temperature: PerBudget = 1.0
    name: str = "soft-persistence"
    wants_hindsight: bool = False

    def decide(self, observation: Observation) -> np.ndarray:
        change = np.diff(observation.returns, axis=1)
        scale = np.sqrt((change**2).mean(axis=(1, 2))) + np.finfo(float).tiny
        score = (self.forecaster(observation.returns) / scale[:, None])[:, None] / _per_budget(
            self.temperature, observation
        )
        weights = np.exp(score - score.max(-1, keepdims=True))  # (series, budgets, m)
        return np.asarray(weights / weights.sum(-1, keepdims=True))


@dataclass(frozen=True)
class PredictThenOptimise:
    """PtO: forecast r̂, then solve the oracle's own problem with r̂ in place of r_t, around the weights held.

    `shrinkage` ρ multiplies the forecast's deviation from its cross-sectional mean; 1 is plain PtO and 0 leaves
    the portfolio of least variance. `covariance` replaces the empirical one.
    """

    forecaster: Forecaster = persistence
    shrinkage: PerBudget = 1.0
    covariance: Covariance | None = None
    name: str = "pto-persistence"
    wants_hindsight: bool = False
    uses_cost: bool = False

    def decide(self, observation: Observation) -> np.ndarray:
        forecast = self.forecaster(observation.returns)[:, None]  # (series, 1, m)
        mean = forecast.mean(-1, keepdims=True)
        shrunk = mean + _per_budget(self.shrinkage, observation) * (forecast - mean)
        sigma = observation.covariance if self.covariance is None else self.covariance(observation.returns)
        if observation.constraints is not None or observation.benchmark is not None:
            return solve_observation(observation, shrunk, sigma[:, None])[0]
        half = np.broadcast_to(observation.turnover_l1 / 2, observation.previous.shape[:-1]).clip(max=1.0)
        return best_allocations(shrunk, 2 * observation.risk_aversion * sigma, observation.previous, half)


@dataclass(frozen=True)
class AveragedOracle:
    """E[s*_t | observation], estimated: the oracle's greedy step from s*_{t−1}, averaged over scenarios of r_t.

    Scenario j is the forecast plus `spread` times a one-step change r_j − r_{j−1} seen in the window (their mean
    removed). The MSE to the oracle is least at the conditional mean, so this is the shape of a calibrated answer.
    """

    forecaster: Forecaster = ridge
    spread: PerBudget = 0.5
    scenarios: int = 24
    name: str = "averaged-oracle"
    wants_hindsight: bool = True

    def decide(self, observation: Observation) -> np.ndarray:
        anchor = observation.oracle_history()[:, :, -1]  # (series, budgets, m)
        change = np.diff(observation.returns, axis=1)
        chosen = np.linspace(0, change.shape[1] - 1, min(self.scenarios, change.shape[1])).round().astype(int)
        change = change[:, chosen] - change[:, chosen].mean(axis=1, keepdims=True)  # (series, scenarios, m)
        spread = _per_budget(self.spread, observation)[..., None]  # (budgets or 1, 1, 1)
        scenario = self.forecaster(observation.returns)[:, None, None] + spread * change[:, None]
        risk = 2 * observation.risk_aversion * (anchor @ observation.covariance)
        gradient = scenario - risk[:, :, None]  # (series, budgets, scenarios, m)
        start = np.broadcast_to(anchor[:, :, None], gradient.shape)
        half = np.broadcast_to(observation.turnover_l1[:, None] / 2, gradient.shape[:-1]).clip(max=1.0)
        return np.asarray(greedy_allocations(gradient, start, half).mean(axis=2))


def oracle_rollout(oracle: np.ndarray, turnover_l1: np.ndarray, window: int, risk_aversion: float) -> Rollout:
    """The oracle's path, (series, budgets, time, m), as the rollout of a strategy that knows the future."""
    return Rollout("oracle", oracle, oracle, turnover_l1, window, risk_aversion)


def backbone_pto(
    backbone: TimePFN, returns_scale: float = 1.0, shrinkage: PerBudget = 1.0, name: str = "pto-timepfn"
) -> PredictThenOptimise:
    """Predict-then-optimise with the backbone's forecast of returns."""
    return PredictThenOptimise(TimePFNForecaster(backbone, returns_scale), shrinkage, name=name)


def _per_budget(value: PerBudget, observation: Observation) -> np.ndarray:
    """(budgets, 1), or (1, 1) for a number that is the same for all."""
    array = np.atleast_1d(np.asarray(value, dtype=float))[:, None]
    budgets = len(observation.turnover_l1)
    expect(len(array) in (1, budgets), "strategy", f"1 or {budgets} values per parameter", len(array))
    return array
