"""What a decision is given, checked: a history of returns, the weights held, a turnover budget."""

from __future__ import annotations

import numpy as np
import pandas as pd

from time2decide.core.validation import ArrayLike, InputError, as_tensor, validate_finite, validate_positive
from time2decide.forecasting.features import LEAST_WINDOW
from time2decide.markets.oracle import WINDOW
from time2decide.markets.tables import load_returns, looks_like_prices

MOST_ASSETS = 100
_LARGEST, _STILL = 1e6, 1e-15  # of a return, and of the deviation of the liveliest asset
_MOST_RISK = 1e6


def validate_returns(returns: ArrayLike | pd.DataFrame) -> np.ndarray:
    """Past returns as an array (time, assets) of at least 20 rows and 2 to 100 assets, or an `InputError`."""
    if isinstance(returns, pd.DataFrame):
        returns = load_returns(returns).to_numpy()
    kind = str(getattr(returns, "dtype", ""))
    if kind in ("bool", "torch.bool"):
        raise InputError(f"returns: expected real numbers, found dtype {kind}")
    tensor = as_tensor("returns", returns)
    if tensor.dim() != 2:
        raise InputError(f"returns: expected shape (time, assets), found {tuple(tensor.shape)}")
    if tensor.shape[0] < LEAST_WINDOW:
        raise InputError(f"returns: expected at least {LEAST_WINDOW} rows, found {tensor.shape[0]}")
    if not 2 <= tensor.shape[1] <= MOST_ASSETS:
        raise InputError(f"returns: expected 2 to {MOST_ASSETS} assets, found {tensor.shape[1]}")
    validate_finite("returns", tensor)
    array: np.ndarray = tensor.detach().cpu().double().numpy()
    if (array < -1).any():
        raise InputError(f"returns: expected returns of at least -1, found {array.min():g}")
    if (array == array[0]).all():
        raise InputError("returns: expected returns that vary, found the same row throughout")
    if looks_like_prices(array):
        raise InputError(f"returns: expected returns, found what look like prices (median {np.median(array):g})")
    if (largest := np.abs(array).max()) > _LARGEST:
        raise InputError(f"returns: expected returns of at most {_LARGEST:g}, found {largest:g}")
    if array[-WINDOW:].std(axis=0).max() < _STILL:
        raise InputError(f"returns: expected an asset that moves in the last {WINDOW} rows, found none")
    return array


def validate_weights(weights: ArrayLike | pd.Series | None, assets: int, names: list[str] | None = None) -> np.ndarray:
    """Weights on the simplex, (assets,); uniform for None. A Series is put into the order of `names`."""
    if weights is None:
        return np.full(assets, 1.0 / assets)
    if isinstance(weights, pd.Series) and names is not None:
        unknown = [str(name) for name in weights.index if name not in names]
        missing = [str(name) for name in names if name not in weights.index]
        if unknown or missing or weights.index.has_duplicates:
            found = f"unknown {unknown}" if unknown else f"without {missing}" if missing else "an asset twice"
            raise InputError(f"previous_weights: expected one weight for each asset, found {found}")
        weights = weights.reindex(names).to_numpy()
    array = as_tensor("previous_weights", weights).detach().cpu().double().numpy()
    if array.shape != (assets,) or not np.isfinite(array).all():
        found = f"shape {array.shape}" if array.shape != (assets,) else "one that is not finite"
        raise InputError(f"previous_weights: expected {assets} finite numbers, found {found}")
    if (array < -1e-6).any():
        raise InputError(f"previous_weights: expected non-negative weights, found {array.min():g}")
    if abs(array.sum() - 1) > 1e-3:
        raise InputError(f"previous_weights: expected a sum of 1, found {array.sum():g}")
    array = np.maximum(array, 0.0)
    return np.asarray(array / array.sum())


def validate_turnover(turnover_l1: float) -> float:
    """γ in (0, 2], or an `InputError`."""
    gamma = validate_positive("turnover_l1", turnover_l1)
    if gamma > 2:
        raise InputError(f"turnover_l1: expected a number in (0, 2], found {turnover_l1:g}")
    return gamma


def validate_risk_aversion(risk_aversion: float) -> float:
    """λ in [0, 1e6], or an `InputError`."""
    risk = validate_positive("risk_aversion", risk_aversion, allow_zero=True)
    if risk > _MOST_RISK:
        raise InputError(f"risk_aversion: expected a number in [0, {_MOST_RISK:g}], found {risk_aversion:g}")
    return risk
