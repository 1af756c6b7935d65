"""The estimators of `markets.estimators` as skfolio covariance estimators, with gaps and `partial_fit`.

They go wherever skfolio takes a covariance (priors of optimisers, `online_covariance_forecast_evaluation`, online grid
search). An estimator of your own is a subclass of `OnlineCovarianceEstimator` that makes its own `OnlineCovariance`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from skfolio.moments.covariance import BaseCovariance
from sklearn.utils.validation import validate_data

from time2decide.core.validation import expect
from time2decide.forecasting.market_state import MarketState
from time2decide.markets.estimators import LEAST_OBSERVATIONS, CombinedIEWMA, IteratedEWMA, OnlineCovariance, RollingQIS


@dataclass(kw_only=True, eq=False, repr=False)
class OnlineCovarianceEstimator(BaseCovariance):
    """Base class: a covariance that is carried forward row by row.

    A subclass is a dataclass (``@dataclass(eq=False, repr=False)``) whose fields are its parameters, and implements
    `_make`.

    `fit` starts anew; `partial_fit` continues. A NaN return is a step without an observation: the
    averages of the asset stay as they are. `active_mask` is False where an asset is not listed; it is then forgotten,
    and its row and column of `covariance_` are NaN until it has `min_observations` again.

    Parameters
    ----------
    min_observations : int
        Observations of an asset before its covariances are given; NaN until then.
    nearest, higham, higham_max_iteration
        As in every covariance estimator of skfolio.

    Attributes
    ----------
    covariance_ : ndarray of shape (n_assets, n_assets)
    """

    __metadata_request__fit: ClassVar[dict[str, bool]] = {"active_mask": True}
    __metadata_request__partial_fit: ClassVar[dict[str, bool]] = {"active_mask": True}

    min_observations: int = LEAST_OBSERVATIONS
    nearest: bool = True
    higham: bool = False
    higham_max_iteration: int = 100

    def __post_init__(self) -> None:
        self.assume_centered = True

    @abstractmethod
    def _make(self) -> OnlineCovariance:
        """The estimator behind this class, with its parameters and no observations."""

    def fit(self, X: Any, y: Any = None, *, active_mask: Any = None) -> OnlineCovarianceEstimator:
        """Start anew and take all rows of X (n_observations, n_assets)."""
        if hasattr(self, "covariance_"):
            del self.covariance_
        return self.partial_fit(X, y, active_mask=active_mask)

    def partial_fit(self, X: Any, y: Any = None, *, active_mask: Any = None) -> OnlineCovarianceEstimator:
        """Take the next rows of X (n_observations, n_assets)."""
        first = not hasattr(self, "covariance_")
        rows = validate_data(self, X, reset=first, dtype=np.float64, ensure_all_finite="allow-nan")
        if first:
            self._state = self._make()
        if active_mask is None:
            self._state.update(rows)
        else:
            active = np.asarray(active_mask, dtype=bool)
            expect(active.shape == rows.shape, "active_mask", f"shape {rows.shape} as X", active.shape)
            self._update_listed(rows, active)
        covariance = self._state.covariance()
        if active_mask is not None:
            covariance[~active[-1]], covariance[:, ~active[-1]] = np.nan, np.nan
        self._set_covariance((covariance + covariance.T) / 2)
        return self

    def _update_listed(self, rows: np.ndarray, active: np.ndarray) -> None:
        """Rows in blocks of one universe each; what is not listed in a block is forgotten before it."""
        changes = np.flatnonzero((active[1:] != active[:-1]).any(axis=1)) + 1
        for start, stop in zip([0, *changes], [*changes, len(rows)], strict=True):
            listed = active[start]
            if self._state.observations.size:
                self._state.forget(~listed)
            self._state.update(np.where(listed, rows[start:stop], np.nan))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


@dataclass(eq=False, repr=False)
class IEWMACovariance(OnlineCovarianceEstimator):
    """Iterated EWMA: volatilities and correlations with a half-life each (see `markets.estimators.IteratedEWMA`).

    Parameters
    ----------
    volatility_half_life, correlation_half_life : float
    clip : float
        Largest standardised return that enters the correlations.
    shrinkage : float in [0, 1]
        Share of constant correlation.
    quadratic : bool
        Clean the correlations by quadratic inverse shrinkage.
    """

    volatility_half_life: float = 63.0
    correlation_half_life: float = 125.0
    clip: float = 4.2
    shrinkage: float = 0.0
    quadratic: bool = False

    def _make(self) -> OnlineCovariance:
        return IteratedEWMA(
            self.volatility_half_life,
            self.correlation_half_life,
            clip=self.clip,
            shrinkage=self.shrinkage,
            quadratic=self.quadratic,
            least=self.min_observations,
        )


@dataclass(eq=False, repr=False)
class TwoScaleCovariance(IEWMACovariance):
    """`IEWMACovariance` with half-lives 63 and 250, shrunk by 0.3 to constant correlation."""

    correlation_half_life: float = 250.0
    clip: float = 6.0
    shrinkage: float = 0.3


@dataclass(eq=False, repr=False)
class CMIEWMACovariance(OnlineCovarianceEstimator):
    """Several iterated EWMAs, combined by the likelihood of the last steps (`markets.estimators.CombinedIEWMA`).

    Parameters
    ----------
    pairs : sequence of (volatility half-life, correlation half-life)
    memory : int
        Steps of the likelihood.
    clip : float
        Largest standardised return that enters the correlations.
    """

    pairs: Sequence[tuple[float, float]] = ((10, 21), (21, 63), (63, 125), (125, 250), (250, 500))
    memory: int = 10
    clip: float = 4.2

    def _make(self) -> OnlineCovariance:
        return CombinedIEWMA(self.pairs, self.memory, clip=self.clip, least=self.min_observations)


@dataclass(eq=False, repr=False)
class QISCovariance(OnlineCovarianceEstimator):
    """Quadratic inverse shrinkage of the last `window` rows (`markets.estimators.RollingQIS`)."""

    window: int = 504

    def _make(self) -> OnlineCovariance:
        return RollingQIS(self.window, self.min_observations)


@dataclass(eq=False, repr=False)
class ReactiveCovariance(OnlineCovarianceEstimator):
    """The covariance of the default policy: slow cleaned correlations, pooled volatilities, a level that reacts."""

    def _make(self) -> OnlineCovariance:
        return MarketCovariance(self.min_observations)


class MarketCovariance(OnlineCovariance):
    """`MarketState.covariance` of the rows so far."""

    def _start(self, m: int) -> None:
        self._rows = np.empty((0, m))
        self._state = MarketState(m)

    def _update(self, rows: np.ndarray) -> None:
        self._rows = np.vstack([self._rows, rows])
        self._state.extend(rows)

    def _estimate(self, assets: np.ndarray) -> np.ndarray:
        return self._state.covariance()[np.ix_(assets, assets)]

    def _forget(self, assets: np.ndarray) -> None:
        self._rows[:, assets] = np.nan
        self._state = MarketState(len(assets)).extend(self._rows)
