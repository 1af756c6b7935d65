"""Simple forecasts of the next returns from a window of past ones: (series, window, m) -> (series, m).

Each is a function of the window alone, fitted inside it, so that no forecast can know more than the strategy does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from time2decide.core.validation import expect

Forecaster = Callable[[np.ndarray], np.ndarray]


def persistence(returns: np.ndarray) -> np.ndarray:
    """r̂_t = r_{t−1}"""
    return returns[:, -1]


def ar1(returns: np.ndarray) -> np.ndarray:
    """r̂_t = r̄ + φ (r_{t−1} − r̄) per asset, with φ the least-squares slope of the window, kept in [−1, 1]."""
    mean = returns.mean(axis=1)
    centred = returns - mean[:, None]
    before, after = centred[:, :-1], centred[:, 1:]
    energy = np.einsum("nwm,nwm->nm", before, before)
    cross = np.einsum("nwm,nwm->nm", before, after)
    slope = np.divide(cross, energy, out=np.zeros_like(cross), where=energy > 0)  # a constant asset stays
    return np.asarray(mean + np.clip(slope, -1.0, 1.0) * centred[:, -1])


def ridge(returns: np.ndarray, lags: int = 16, penalty: float = 0.1) -> np.ndarray:
    """r̂_t by ridge regression on the asset's own last `lags` returns, fitted per asset inside the window.

    β = (XᵀX + penalty · v · rows · I)⁻¹ Xᵀy on returns minus their mean, v the variance of the asset, so that the
    penalty has no unit.
    """
    window = returns.shape[1]
    expect(window > lags, "window", f"more than the {lags} lags of the ridge forecast", window)
    mean = returns.mean(axis=1, keepdims=True)
    centred = (returns - mean).transpose(0, 2, 1)  # (series, m, window)
    history = np.lib.stride_tricks.sliding_window_view(centred, lags, axis=-1)  # (series, m, window - lags + 1, lags)
    X, y = history[..., :-1, :], centred[..., lags:]
    rows = window - lags
    variance = np.einsum("nmw,nmw->nm", centred, centred) / window
    scale = np.where(variance > 0, variance, 1.0)
    gram = X.swapaxes(-1, -2) @ X + (penalty * rows * scale)[..., None, None] * np.eye(lags)
    slopes = np.linalg.solve(gram, X.swapaxes(-1, -2) @ y[..., None])[..., 0]  # (series, m, lags)
    forecast = np.einsum("nml,nml->nm", slopes, history[..., -1, :])
    return np.asarray(mean[:, 0] + forecast)
