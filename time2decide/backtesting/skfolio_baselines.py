"""Baselines from skfolio, as strategies for the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from time2decide.core.validation import InputError
from time2decide.simulation.engine import Observation

EVERY = 21  # steps between two fits, a month of days


@dataclass
class Skfolio:
    """Any skfolio optimiser, fitted to the engine's window every `every` steps and held in between.

    The engine imposes the turnover budget: it moves towards the fitted weights as far as the budget allows, step by
    step. A fit is kept as long as each window continues the one before; another series starts with a new fit.
    """

    estimator: Any
    name: str
    every: int = EVERY
    wants_hindsight: bool = False
    _last: np.ndarray | None = field(default=None, repr=False, compare=False)
    _age: int = field(default=0, repr=False, compare=False)
    _target: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    def decide(self, observation: Observation) -> np.ndarray:
        window, last = observation.returns, self._last
        goes_on = last is not None and last.shape == window.shape and np.array_equal(window[:, :-1], last[:, 1:])
        self._age = self._age + 1 if goes_on else 0
        if self._age % self.every == 0:
            self._target = np.stack([self._fit(series) for series in window])[:, None]  # (series, 1, m)
        self._last = window
        return self._target

    def _fit(self, returns: np.ndarray) -> np.ndarray:
        from sklearn.base import clone

        fitted = clone(self.estimator).fit(returns)
        weights = np.maximum(np.asarray(fitted.weights_, dtype=float), 0.0)
        return np.asarray(weights / weights.sum())


def inverse_volatility(every: int = EVERY) -> Skfolio:
    """Weights proportional to 1/σ_i."""
    return Skfolio(_skfolio().InverseVolatility(), "inverse-volatility", every)


def minimum_variance(every: int = EVERY) -> Skfolio:
    """The long-only portfolio of least variance under the Ledoit–Wolf covariance."""
    return Skfolio(_skfolio().MeanRisk(prior_estimator=_shrunk_prior()), "minimum-variance", every)


def mean_variance_shrunk(every: int = EVERY) -> Skfolio:
    """The long-only portfolio of greatest ratio of shrunk mean to risk; least variance where no mean is positive."""
    skfolio = _skfolio()
    best = skfolio.MeanRisk(
        objective_function=skfolio.ObjectiveFunction.MAXIMIZE_RATIO,
        prior_estimator=_shrunk_prior(),
        fallback=skfolio.MeanRisk(prior_estimator=_shrunk_prior()),
    )
    return Skfolio(best, "mean-variance-shrunk", every)


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
