"""Regression of a series on its own past, fitted inside the window, and weighed by how well it predicted it.

For every penalty p the ridge coefficients β_p = (XᵀX + p·I)⁻¹Xᵀy come from one eigendecomposition, and so do the
errors it would have made on each row had that row been left out, e_i / (1 − h_i). Penalties are averaged with weights
∝ (mean squared left-out error)^−sharpness: a window decides for itself how much of its past to trust.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LAGS = 16
PENALTIES = (1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0)  # relative to the variance of the window
_SHARPNESS = 10.0
_LEAST = 0.05  # of 1 − h: a row that fits itself says little about the others


class LagForecast(NamedTuple):
    """Forecast and its left-out errors.

    mean : (..., )   forecast of the next value
    deviation : (..., )   root mean square of the left-out errors
    residuals : (..., T − lags)   left-out errors, oldest first
    """

    mean: Tensor
    deviation: Tensor
    residuals: Tensor


def lag_forecast(windows: Tensor, lags: int = LAGS) -> LagForecast:
    """One-step forecasts of standardised windows (..., T), T ≥ lags + 4, in float64."""
    steps = windows.shape[-1]
    z = windows.double()
    rows = z.unfold(-1, lags, 1)  # (..., T − lags + 1, lags)
    X, y = rows[..., :-1, :], z[..., lags:]
    values, vectors = torch.linalg.eigh(X.mT @ X)  # (..., lags), (..., lags, lags)
    rotated = X @ vectors
    target = (rotated.mT @ y[..., None])[..., 0]
    penalties = z.new_tensor(PENALTIES)[:, None] * (steps - lags)
    shrunk = values.clamp_min(0)[..., None, :] + penalties  # (..., penalties, lags)
    slopes = target[..., None, :] / shrunk
    means = (slopes @ (rows[..., -1:, :] @ vectors).mT)[..., 0]  # (..., penalties)
    fitted = slopes @ rotated.mT  # (..., penalties, rows)
    leverage = shrunk.reciprocal() @ rotated.square().mT
    errors = (y[..., None, :] - fitted) / (1 - leverage).clamp_min(_LEAST)
    weights = torch.softmax(-_SHARPNESS * errors.square().mean(-1).clamp_min(1e-12).log(), dim=-1)
    residuals = (weights[..., None, :] @ errors)[..., 0, :]  # (..., rows)
    return LagForecast((weights * means).sum(-1), residuals.square().mean(-1).sqrt(), residuals)
