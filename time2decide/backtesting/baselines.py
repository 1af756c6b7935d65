"""Baselines: the strategies that need no training.

A parameter that is tuned per turnover budget may be a tuple with one entry per budget of the rollout. The oracle is no
strategy, because it knows the future: see `oracle_rollout`.

The last two are for real daily returns and carry their state forward day by day. `TwoScaleMinimumVariance` looks at
risk alone. `PooledRule` adds forecasts of one regression over all assets, attenuated by the record of their own worth.
Both weigh the cost of a trade against what it buys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from time2decide.core.validation import expect
from time2decide.forecasting.simple import Forecaster, persistence, ridge
from time2decide.forecasting.timepfn import TimePFN, TimePFNForecaster
from time2decide.markets.covariance import Covariance
from time2decide.markets.estimators import VarianceEWMA, ewma_decay, two_scale
from time2decide.markets.oracle import best_allocations, greedy_allocations
from time2decide.markets.periods import YEAR
from time2decide.simulation.engine import Observation, Rollout, continues_observation, solve_observation

_LASTS = 20.0  # steps over which the cost of a trade made for risk is divided
_FORECAST_LASTS = 3.0  # and of a trade made on a forecast
_HARDLY = 0.02  # worth of the forecasts below which trades are made for risk
_MINIMUM_VARIANCE_AVERSION = 25.0  # λ that stands for "risk alone" when costs are weighed against it
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
        temperature = _per_budget(self.temperature, observation)
        score = (self.forecaster(observation.returns) / scale[:, None])[:, None] / temperature
        weights = np.exp(score - score.max(-1, keepdims=True))  # (series, budgets, m)
        return np.asarray(weights / weights.sum(-1, keepdims=True))


@dataclass(frozen=True)
class PredictThenOptimise:
    """PtO: forecast r̂, then solve the oracle's own problem with r̂ in place of r_t, around the current weights.

    `shrinkage` ρ multiplies the forecast's deviation from its cross-sectional mean; 1 is plain PtO and 0 leaves
    the portfolio of least variance. `covariance` replaces the empirical one.
    """

    forecaster: Forecaster = persistence
    shrinkage: PerBudget = 1.0
    covariance: Covariance | None = None
    name: str = "pto-persistence"
    wants_hindsight: bool = False
    uses_cost: bool = False
    orders: bool = True

    def decide(self, observation: Observation) -> np.ndarray:
        forecast = self.forecaster(observation.returns)[:, None]  # (series, 1, m)
        mean = forecast.mean(-1, keepdims=True)
        shrunk = mean + _per_budget(self.shrinkage, observation) * (forecast - mean)
        sigma = observation.covariance if self.covariance is None else self.covariance(observation.returns)
        if observation.constraints is not None or observation.benchmark is not None or observation.min_trade:
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
        change = np.diff(observation.returns, axis=1)
        chosen = np.linspace(0, change.shape[1] - 1, min(self.scenarios, change.shape[1])).round().astype(int)
        change = change[:, chosen] - change[:, chosen].mean(axis=1, keepdims=True)  # (series, scenarios, m)
        spread = _per_budget(self.spread, observation)[..., None]  # (budgets or 1, 1, 1)
        scenario = self.forecaster(observation.returns)[:, None, None] + spread * change[:, None]
        return _average_step(observation, scenario)


def _average_step(observation: Observation, scenario: np.ndarray) -> np.ndarray:
    """The oracle's greedy step from s*_{t−1}, averaged over scenarios (series, budgets or 1, scenarios, m) of r_t."""
    anchor = observation.oracle_history()[:, :, -1]  # (series, budgets, m)
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


@dataclass
class _DailyRule:
    """A rule that weighs costs and carries the state of each series forward."""

    uses_cost: bool = field(default=True, kw_only=True)
    orders: bool = field(default=True, kw_only=True)
    wants_hindsight: bool = field(default=False, kw_only=True)
    _last: np.ndarray | None = field(default=None, repr=False, compare=False, kw_only=True)
    _states: list[_PooledState] = field(default_factory=list, repr=False, compare=False, kw_only=True)

    def carry_forward(self, window: np.ndarray) -> list[_PooledState]:
        """States of the series of a window (series, time, m): one row further if it continues the last, or new."""
        if continues_observation(self._last, window):
            for state, series in zip(self._states, window, strict=True):
                state.update(series[-1:])
        else:
            self._states = [_PooledState(series) for series in window]
        self._last = window
        return self._states


@dataclass
class TwoScaleMinimumVariance(_DailyRule):
    """argmin λ sᵀΣs + c/20 ‖s − p‖₁ within the budget, every day: λ = 25, Σ the two-scale covariance, c the cost.

    Σ has volatilities with half-life 63 and correlations with half-life 250, shrunk by 0.3 to constant correlation.
    """

    name: str = "two-scale-minvar"
    uses_risk_aversion: bool = False

    def decide(self, observation: Observation) -> np.ndarray:
        states = self.carry_forward(observation.returns)
        sigma = np.stack([state.covariance() for state in states])[:, None]  # (series, 1, m, m)
        risk, cost = _MINIMUM_VARIANCE_AVERSION, observation.cost_bps / 1e4 / _LASTS
        return solve_observation(observation, np.zeros(sigma.shape[:-1]), sigma, risk_aversion=risk, cost=cost)[0]


@dataclass
class PooledRule(_DailyRule):
    """argmax sᵀ(ρ f ⊙ σ) − λ sᵀΣs − c/τ ‖s − p‖₁ within the budget, every day.

    f: one regression over all assets, of standardised returns less their cross-sectional mean on their own past (the
    last three, means of 5, 21 and 63, the year before the last month), fitted with forgetting (half-life 750).
    ρ in [0, 1]: what the forecasts were worth, the slope b of outcomes on forecasts made before them (half-life 500)
    times 1 − (2 se / b)², and 0 while b is within two standard errors of 0.
    τ: 3 steps if the forecasts are worth something (ρ ≥ 0.02), else 20.
    """

    name: str = "pooled-rule"
    uses_risk_aversion: bool = True

    def decide(self, observation: Observation) -> np.ndarray:
        states = self.carry_forward(observation.returns)
        worth = np.array([state.worth() for state in states])[:, None, None]
        mean = worth * np.stack([state.forecast() for state in states])[:, None]  # (series, 1, m)
        sigma = np.stack([state.covariance() for state in states])[:, None]
        cost = observation.cost_bps / 1e4 / np.where(worth < _HARDLY, _LASTS, _FORECAST_LASTS)
        return solve_observation(observation, mean, sigma, cost=np.broadcast_to(cost, mean.shape))[0]


class _PooledState:
    """State of a market after its last row: covariance, volatilities, the regression and its record."""

    _BLEND = ((10.0, 0.3), (21.0, 0.4), (63.0, 0.3))  # half-lives and shares of the variance that standardises
    _LONG = int(YEAR)  # rows that the features look back
    _FORGET, _RECORD = 750.0, 500.0  # half-lives of the regression and of its record
    _PENALTY = 200.0

    def __init__(self, returns: np.ndarray) -> None:
        m = returns.shape[1]
        self._covariance = two_scale(least=2)
        self._variances = [(VarianceEWMA(half_life, m), share) for half_life, share in self._BLEND]
        self._past = np.zeros((0, m))  # standardised returns less their cross-sectional mean
        self._gram, self._cross = np.eye(7) * self._PENALTY, np.zeros(7)
        self._products, self._squares = 0.0, 1e-6  # of forecasts with outcomes and with themselves
        self.update(returns)

    def update(self, rows: np.ndarray) -> None:
        """Take the next rows (steps, m)."""
        self._covariance.update(rows)
        for row in rows:
            scale = self._deviation()
            known = np.isfinite(scale) & (scale > 0)
            outcome = np.where(known, np.clip(row / np.where(known, scale, 1.0), -6, 6), 0.0)
            outcome -= outcome.mean()
            if len(self._past) == self._LONG:
                self._learn(outcome)
            self._past = np.concatenate([self._past, outcome[None]])[-self._LONG :]
            for variance, _ in self._variances:
                variance.standardise(row[None])

    def _learn(self, outcome: np.ndarray) -> None:
        """One more outcome for the regression, and for the record of the forecast that was made before it."""
        features, forecast = self._features(), self._standard_forecast()
        keep = ewma_decay(self._FORGET)
        self._gram, self._cross = keep * self._gram + features.T @ features, keep * self._cross + features.T @ outcome
        keep = ewma_decay(self._RECORD)
        self._products = keep * self._products + float(forecast @ outcome)
        self._squares = keep * self._squares + float(forecast @ forecast)

    def _features(self) -> np.ndarray:
        """(m, 7), each of about unit size."""
        a = self._past
        means = (a[-5:].mean(0), a[-21:].mean(0) * 4.5, a[-63:].mean(0) * 8, a[: self._LONG - 21].mean(0) * 15)
        return np.stack((a[-1], a[-2], a[-3], *means), axis=1)

    def _standard_forecast(self) -> np.ndarray:
        forecast = self._features() @ np.linalg.solve(self._gram, self._cross)
        return np.asarray(forecast - forecast.mean())

    def _deviation(self) -> np.ndarray:
        return np.sqrt(sum(share * variance.value() for variance, share in self._variances))

    def covariance(self) -> np.ndarray:
        """Σ of the next returns, (m, m)."""
        return self._covariance.covariance()

    def forecast(self) -> np.ndarray:
        """f ⊙ σ in units of returns, (m,); 0 before a year of rows."""
        if len(self._past) < self._LONG:
            return np.zeros(self._past.shape[1])
        return np.asarray(self._standard_forecast() * self._deviation())

    def worth(self) -> float:
        """ρ"""
        slope, error = self._products / self._squares, 1 / np.sqrt(self._squares)
        return float(np.clip(slope * max(0.0, 1 - (2 * error / slope) ** 2), 0, 1)) if slope > 0 else 0.0
