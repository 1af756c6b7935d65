"""Features of a window of returns: two forecasts with their errors, and second-order statistics.

Everything is per asset and indifferent to the order of the assets; scale and level of an asset are kept apart from
its standardised values, as TimePFN does, so that a model knows them only if it is given them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from time2decide.core.checkpoints import checkpoint_checksum
from time2decide.core.validation import expect
from time2decide.forecasting.kernel_bank import kernel_bank

EXPERTS = 2  # kernel bank, lag regression
LAGS = 16
PENALTIES = (1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0)  # relative to the variance of the window
_SHARPNESS = 10.0
_LEAST = 0.05  # of 1 − h: a row that fits itself carries little about the others
LEAST_WINDOW = LAGS + 4
VERSION = 1  # of the numbers: raise it when the same window has other features, so that caches are not mixed


@dataclass(frozen=True)
class WindowFeatures:
    """Statistics of n windows of m assets, float32.

    Attributes
    ----------
    level, scale : (n, m)
        Mean and standard deviation of each asset's window.
    forecasts, deviations : (n, m, experts)
        Next value and its standard error in units of `scale`, relative to `level`.
    ahead : (n, m)
        Mean of the next `AHEAD` values in the same units.
    recent : (n, m, 2)
        The last value and the one before, in the same units.
    correlation, innovation : (n, m, m)
        Correlations of the returns, and of the one-step forecast errors, inside the window.
    """

    level: Tensor
    scale: Tensor
    forecasts: Tensor
    deviations: Tensor
    ahead: Tensor
    recent: Tensor
    correlation: Tensor
    innovation: Tensor

    def __getitem__(self, index: Tensor) -> WindowFeatures:
        return WindowFeatures(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


def window_features(windows: np.ndarray | Tensor) -> WindowFeatures:
    """Features of windows of returns (n, T, m), T ≥ 20; of a tensor it can be differentiated."""
    fits = windows.ndim == 3 and windows.shape[1] >= LEAST_WINDOW
    expect(fits, "windows", f"(n, at least {LEAST_WINDOW} steps, m)", tuple(windows.shape))
    n, steps, m = windows.shape
    tensor = windows if isinstance(windows, Tensor) else torch.from_numpy(np.ascontiguousarray(windows))
    x = tensor.double().transpose(1, 2).contiguous()  # (n, m, T)
    level = x.mean(-1)
    centred = x - level[..., None]
    scale = centred.square().mean(-1).clamp_min(1e-300).sqrt()  # has a derivative at 0
    tiny = 1e-6 * scale.amax(-1, keepdim=True) + 1e-300  # an asset that does not move stays at 0
    z = centred / scale.clamp_min(tiny)[..., None]
    bank_mean, bank_deviation, ahead = kernel_bank(steps).forecast(z.reshape(n * m, steps))
    lag = lag_forecast(z)
    return WindowFeatures(
        level=level.float(),
        scale=scale.clamp_min(tiny).float(),
        forecasts=torch.stack([bank_mean.view(n, m), lag.mean.float()], dim=-1),
        deviations=torch.stack([bank_deviation.view(n, m), lag.deviation.float()], dim=-1),
        ahead=ahead.view(n, m),
        recent=z[..., -2:].flip(-1).float(),
        correlation=(z @ z.mT / steps).float(),
        innovation=_correlation(lag.residuals).float(),
    )


def _correlation(errors: Tensor) -> Tensor:
    """Correlation about zero of errors (n, m, rows), (n, m, m)."""
    unit = errors / errors.square().sum(-1, keepdim=True).clamp_min(1e-24).sqrt()
    return unit @ unit.mT


class CachedFeatures:
    """`window_features` that keeps its latest answers, by the content of the windows: several networks share them."""

    def __init__(self, most: int = 4096) -> None:
        self.most = most
        self._seen: OrderedDict[str, WindowFeatures] = OrderedDict()

    def __call__(self, windows: np.ndarray) -> WindowFeatures:
        key = _content(windows)
        if key not in self._seen:
            self.remember(windows, window_features(windows))
        self._seen.move_to_end(key)
        return self._seen[key]

    def remember(self, windows: np.ndarray, answer: WindowFeatures) -> None:
        """Keep an answer that is known already."""
        self._seen[_content(windows)] = answer
        if len(self._seen) > self.most:
            self._seen.popitem(last=False)


def _content(windows: np.ndarray) -> str:
    return checkpoint_checksum({"windows": torch.from_numpy(np.ascontiguousarray(windows))})


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
    """One-step forecasts of standardised windows (..., T), T ≥ lags + 4, in float64, by regression on their own past.

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
    residuals = (weights[..., None, :] @ errors)[..., 0, :]  # (..., rows)
    return LagForecast((weights * means).sum(-1), residuals.square().mean(-1).sqrt(), residuals)
