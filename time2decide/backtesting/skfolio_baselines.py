"""Baselines that are fitted once a month: skfolio's optimisers, and ours beside them.

A `_Refitted` strategy fits target weights once a month of the table (21 days, 4 weeks), moves towards them as far as
the turnover budget allows, step by step, and once it is there lets the weights drift until the next fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from time2decide.core.validation import InputError
from time2decide.markets.constraints import Constraints
from time2decide.markets.estimators import EWMA, IteratedEWMA, RollingQIS
from time2decide.markets.periods import YEAR
from time2decide.markets.portfolio import solve_portfolio
from time2decide.simulation.engine import UNLIMITED, Observation, continues_observation

_FITS = 12  # a year
_ROWS = int(YEAR)  # last ones that a fit sees, at most
_STILL = 1e-4  # standard deviation below which an asset hardly moves
_THERE = 1e-9  # distance from the target that counts as none

#: Returns (time, m) and the observation -> weights (m,).
Fit = Callable[[np.ndarray, Observation], np.ndarray]


@dataclass
class _Refitted:
    """Weights of a rule that is fitted to the last rows every `every` steps, a month unless given.

    A fit is kept as long as each window continues the one before; another series starts with a new fit.

    Attributes
    ----------
    fit : function of (returns (time, m), observation) -> weights
        The observation carries λ, the constraints and the benchmark.
    history : int
        Last rows of the window that a fit reads, at most.
    uses_risk_aversion, uses_cost : bool
        Whether its decisions depend on λ and on the cost of trading.
    """

    fit: Fit
    name: str
    history: int = _ROWS
    every: int | None = None
    uses_risk_aversion: bool = False
    uses_cost: bool = False
    wants_hindsight: bool = False
    orders: bool = True  # once it is there it trades nothing
    _last: np.ndarray | None = field(default=None, repr=False, compare=False)
    _age: int = field(default=0, repr=False, compare=False)
    _target: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    _there: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=bool), repr=False, compare=False)

    def decide(self, observation: Observation) -> np.ndarray:
        window = observation.returns
        self._age = self._age + 1 if continues_observation(self._last, window) else 0
        self._last = window
        every = max(round(observation.periods_per_year / _FITS), 1) if self.every is None else self.every
        if self._age % every == 0:
            fitted = [self.fit(_moving(series[-self.history :]), observation) for series in window]
            self._target = np.stack(fitted)[:, None]  # (series, 1, m)
            self._there = np.zeros(observation.previous.shape[:2], dtype=bool)
        else:
            reached = observation.previous if observation.delay else observation.allocations[:, :, -1]
            self._there |= np.abs(reached - self._target).max(-1) <= _THERE
        return np.where(self._there[..., None], observation.previous, self._target)


def _moving(returns: np.ndarray) -> np.ndarray:
    """Returns (time, m) in which every asset moves: cash and bills by .1 bp at random, since optimisers refuse them."""
    still = returns.std(axis=0) < _STILL
    if not still.any():
        return returns
    return np.asarray(returns + still * np.random.default_rng(0).normal(0.0, 0.1 * _STILL, returns.shape))


def _by_estimator(estimator: Any) -> Fit:
    """The weights of an skfolio optimiser, cut off at 0; one that optimises (MeanRisk) gets the constraints."""

    def fit(returns: np.ndarray, observation: Observation) -> np.ndarray:
        from sklearn.base import clone

        optimiser = clone(estimator)
        if observation.constraints is not None and isinstance(optimiser, _skfolio().MeanRisk):
            for one in filter(None, (optimiser, optimiser.fallback)):
                one.set_params(**_in_skfolio(observation.constraints, returns.shape[1]))
            return np.asarray(optimiser.fit(returns).weights_, dtype=float)
        weights = np.maximum(np.asarray(optimiser.fit(returns).weights_, dtype=float), 0.0)
        return np.asarray(weights / weights.sum())

    return fit


def _in_skfolio(constraints: Constraints, m: int) -> dict[str, Any]:
    """Constraints as parameters of skfolio's MeanRisk."""
    lower, upper = constraints.bounds(m)
    least, most = (constraints.exposure - cash for cash in constraints.cash[::-1])
    budget = {"budget": most} if least == most else {"budget": None, "min_budget": least, "max_budget": most}
    widest = abs(constraints.exposure) + m * np.abs(np.minimum(lower, 0.0)).max()  # for infinite bounds
    parameters = {"min_weights": lower, "max_weights": np.minimum(upper, widest), **budget}
    rows = [(limit.coefficients, limit.high) for limit in constraints.limits if np.isfinite(limit.high)]
    rows += [(-limit.coefficients, -limit.low) for limit in constraints.limits if np.isfinite(limit.low)]
    if rows:
        parameters["left_inequality"] = np.stack([row for row, _ in rows])
        parameters["right_inequality"] = np.array([high for _, high in rows])
    return parameters


def skfolio_inverse_volatility() -> _Refitted:
    """Weights proportional to 1/σ_i."""

    def fit(returns: np.ndarray, observation: Observation) -> np.ndarray:
        inverse = 1.0 / returns.std(axis=0)
        return np.asarray(inverse / inverse.sum())

    return _Refitted(fit, "inverse-volatility")


def skfolio_minimum_variance() -> _Refitted:
    """The long-only portfolio of least variance under the Ledoit–Wolf covariance."""
    return _Refitted(_by_estimator(_skfolio().MeanRisk(prior_estimator=_shrunk_prior())), "minimum-variance")


def skfolio_mean_variance() -> _Refitted:
    """The long-only portfolio of greatest ratio of shrunk mean to risk; least variance where no mean is positive."""
    skfolio = _skfolio()
    best = skfolio.MeanRisk(
        objective_function=skfolio.ObjectiveFunction.MAXIMIZE_RATIO,
        prior_estimator=_shrunk_prior(),
        fallback=skfolio.MeanRisk(prior_estimator=_shrunk_prior()),
    )
    return _Refitted(_by_estimator(best), "mean-variance-shrunk")


def skfolio_hierarchical() -> _Refitted:
    """Hierarchical risk parity: risk is split along a tree of correlated groups (López de Prado 2016)."""
    return _Refitted(_by_estimator(_skfolio().HierarchicalRiskParity()), "hierarchical")


def skfolio_risk_budgeting() -> _Refitted:
    """Every asset contributes the same share of the variance, under the Ledoit–Wolf covariance."""
    return _Refitted(_by_estimator(_skfolio().RiskBudgeting(prior_estimator=_shrunk_prior())), "risk-budgeting")


def _ledoit_wolf(returns: np.ndarray) -> np.ndarray:
    from sklearn.covariance import ledoit_wolf

    return np.asarray(ledoit_wolf(returns)[0])


#: Name -> covariance of returns (time, m), and the rows that it reads at most.
COVARIANCES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int]] = {
    "lw": (_ledoit_wolf, _ROWS),
    "qis": (lambda returns: RollingQIS(504, least=3).update(returns).covariance(), 504),
    "ewma": (lambda returns: EWMA(63, least=3).update(returns).covariance(), 504),
    "iewma": (lambda returns: IteratedEWMA(63, 125, least=3).update(returns).covariance(), 504),
}


def skfolio_mean_variance_under(covariance: str, *, with_mean: bool) -> _Refitted:
    """argmax sᵀμ̂ − λ (s−b)ᵀΣ(s−b) under the constraints, Σ one of `COVARIANCES`; the budget counts on the way there.

    With a mean μ̂ is the mean return shrunk by Bayes–Stein; without one it is 0: the portfolio of least variance.
    """
    estimate, history = COVARIANCES[covariance]

    def fit(returns: np.ndarray, observation: Observation) -> np.ndarray:
        sigma = estimate(returns)
        m = len(sigma)
        mean = bayes_stein_mean(returns, sigma) if with_mean else np.zeros(m)
        risk = observation.risk_aversion if with_mean else 0.5
        options: dict[str, Any] = {"constraints": observation.constraints, "benchmark": observation.benchmark}
        start = np.full(m, 1.0 / m)
        return solve_portfolio(mean, sigma, start, risk_aversion=risk, turnover_l1=UNLIMITED, **options).weights

    name = f"{'mean' if with_mean else 'minimum'}-variance-{covariance}"
    return _Refitted(fit, name, history, uses_risk_aversion=with_mean)


def bayes_stein_mean(returns: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Mean returns shrunk to that of the least variance portfolio μ₀ (Jorion 1986), for returns (time, m).

    μ̂ = (1 − w) μ + w μ₀ 1,   w = (m + 2) / (m + 2 + T (μ − μ₀)ᵀ Σ⁻¹ (μ − μ₀))
    """
    (steps, m), mean = returns.shape, returns.mean(axis=0)
    safest = np.linalg.solve(covariance, np.ones(m))
    base = float(safest @ mean / safest.sum())
    distance = float((mean - base) @ np.linalg.solve(covariance, mean - base))
    weight = (m + 2) / (m + 2 + steps * max(distance, 0.0))
    return np.asarray((1 - weight) * mean + weight * base)


def _shrunk_prior() -> object:
    from skfolio.moments import LedoitWolf, ShrunkMu
    from skfolio.prior import EmpiricalPrior

    return EmpiricalPrior(mu_estimator=ShrunkMu(), covariance_estimator=LedoitWolf())


def _skfolio() -> Any:
    try:
        from skfolio import optimization
    except ImportError:
        raise InputError("strategies: expected the package skfolio (pip install 'time2decide[skfolio]')") from None
    return optimization
