"""Validation of what a decision is made from: a history of returns, the current weights, γ and λ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from time2decide.core.validation import ArrayLike, InputError, as_tensor, validate_finite, validate_positive

if TYPE_CHECKING:
    import pandas as pd

MOST_ASSETS = 100
LARGEST_RISK_AVERSION = 1e6
_LARGEST, _STILL = 1e6, 1e-15  # of a return, and of the deviation of the most volatile asset
_PRICE_LIKE = 0.5  # nobody has a table of returns that are all positive and typically above 50 %


def looks_like_prices(array: np.ndarray) -> bool:
    """All positive and typically above 0.5."""
    return bool((array > 0).all() and np.median(array) > _PRICE_LIKE)


def validate_returns(returns: ArrayLike | pd.DataFrame, least_rows: int, window: int) -> np.ndarray:
    """Past returns as an array (time, assets) with 2 to 100 assets, at least one of which moves in the window."""
    if hasattr(returns, "columns"):
        from time2decide.markets.tables import load_returns

        returns = load_returns(returns).to_numpy()
    array = validate_real_returns(returns)
    if array.ndim != 2:
        raise InputError(f"returns: expected shape (time, assets), found {array.shape}")
    rows, assets = array.shape
    expected = f"at least {least_rows} rows and 2 to {MOST_ASSETS} assets"
    if rows < least_rows or not 2 <= assets <= MOST_ASSETS:
        raise InputError(f"returns: expected {expected}, found {rows} rows and {assets} assets")
    if array.max() > _LARGEST:
        raise InputError(f"returns: expected returns of at most {_LARGEST:g}, found {array.max():g}")
    if (array == array[0]).all() or array[-window:].std(axis=0).max() < _STILL:
        raise InputError(f"returns: expected an asset that moves in the last {window} rows, found none")
    return array


def validate_real_returns(returns: ArrayLike) -> np.ndarray:
    """Finite simple returns of at least −1 that do not look like prices, as a float64 array."""
    kind = str(getattr(returns, "dtype", ""))
    if kind in ("bool", "torch.bool"):
        raise InputError(f"returns: expected real numbers, found dtype {kind}")
    tensor = as_tensor("returns", returns)
    validate_finite("returns", tensor)
    array = np.asarray(tensor.detach().cpu().double().numpy())
    if array.size and looks_like_prices(array):
        raise InputError(f"returns: expected returns, found what look like prices (median {np.median(array):g})")
    if array.size and array.min() < -1:
        place = tuple(int(i) for i in np.unravel_index(array.argmin(), array.shape))
        raise InputError(f"returns: expected returns of at least -1, found {array[place]:g} at index {place}")
    return array


def validate_weights(weights: ArrayLike | pd.Series | None, assets: int, names: list[str] | None = None) -> np.ndarray:
    """Weights on the simplex, (assets,); uniform for None. A Series is put into the order of `names`."""
    if weights is None:
        return np.full(assets, 1.0 / assets)
    if hasattr(weights, "reindex") and names is not None:
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
    if (array < -1e-6).any() or abs(array.sum() - 1) > 1e-3:
        found = f"{array.min():g}" if (array < -1e-6).any() else f"a sum of {array.sum():g}"
        raise InputError(f"previous_weights: expected non-negative weights of sum 1, found {found}")
    array = np.maximum(array, 0.0)
    return np.asarray(array / array.sum())


def validate_turnover(turnover_l1: float) -> float:
    """γ in (0, 2], or an `InputError`."""
    return validate_positive("turnover_l1", turnover_l1, most=2)


def validate_risk_aversion(risk_aversion: float) -> float:
    """λ in [0, 1e6], or an `InputError`."""
    return validate_positive("risk_aversion", risk_aversion, allow_zero=True, most=LARGEST_RISK_AVERSION)
