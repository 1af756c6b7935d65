"""A forecast of the next return from an asset's own lags, by a regression whose penalty the window chooses."""

from __future__ import annotations

import torch
from torch import Tensor

LAGS = 16
PENALTIES = (1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0)  # relative to the variance of the window
_SHARPNESS = 10.0
_LEAST = 0.05  # of 1 − h: a row that fits itself carries little about the others
LEAST_WINDOW = LAGS + 4


def lag_forecast(windows: Tensor, lags: int = LAGS) -> Tensor:
    """One-step forecasts (...) of standardised windows (..., T), T ≥ lags + 4, in float64.

    For every penalty p the ridge coefficients β_p = (XᵀX + p·I)⁻¹Xᵀy come from one eigendecomposition, and so do the
    errors it would have made on each row had that row been left out, e_i / (1 − h_i). Penalties are averaged with
    weights ∝ (mean squared left-out error)^−sharpness: a window decides for itself how much of its past to trust.
    """
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
    return (weights * means).sum(-1)
