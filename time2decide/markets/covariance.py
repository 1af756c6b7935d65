"""Covariance of a window of returns: the empirical one of the paper in bulk, any other through its estimator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from time2decide.core.validation import expect

#: Windows (series, window, assets) -> covariances (series, assets, assets).
Covariance = Callable[[np.ndarray], np.ndarray]


def empirical_covariance(windows: np.ndarray) -> np.ndarray:
    """Σ̂ = Σ_τ (r_τ − r̄)(r_τ − r̄)ᵀ / (w − 1) of every window, (..., w, m) -> (..., m, m)."""
    with np.errstate(over="ignore", invalid="ignore"):  # whoever uses the result refuses what is not finite
        centred = windows - windows.mean(axis=-2, keepdims=True)
        return np.asarray(centred.swapaxes(-1, -2) @ centred / (windows.shape[-2] - 1))


def rolling_covariances(returns: np.ndarray, window: int) -> np.ndarray:
    """Σ̂ of every `window` consecutive rows, (..., time, m) -> (..., time − window + 1, m, m)."""
    ends = range(window, returns.shape[-2] + 1)
    return np.stack([empirical_covariance(returns[..., end - window : end, :]) for end in ends], axis=-3)


def covariance_by(estimator: object) -> Covariance:
    """A covariance from any estimator of scikit-learn or skfolio (with `fit` and `covariance_`).

    Examples
    --------
    >>> from sklearn.covariance import LedoitWolf
    >>> covariance_by(LedoitWolf())(np.random.default_rng(0).normal(size=(2, 96, 4))).shape
    (2, 4, 4)
    """

    fits = hasattr(estimator, "fit") and hasattr(estimator, "get_params")
    expect(fits, "estimator", "one of scikit-learn or skfolio", type(estimator).__name__)

    def estimate(windows: np.ndarray) -> np.ndarray:
        from sklearn.base import clone  # takes a second to import, and few need it

        fitted = (clone(estimator).fit(window) for window in windows.reshape(-1, *windows.shape[-2:]))
        flat = np.stack([np.asarray(one.covariance_) for one in fitted])
        return flat.reshape(*windows.shape[:-2], *flat.shape[-2:])  # (..., m, m)

    return estimate
