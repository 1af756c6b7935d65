"""Validation of what a decision is made from: a history of returns, the current weights, γ and λ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from time2decide.core.validation import (
    ArrayLike,
    as_array,
    as_tensor,
    describe_value,
    expect,
    refuse_booleans,
    validate_count,
    validate_positive,
)

if TYPE_CHECKING:
    import pandas as pd

    from time2decide.markets.constraints import Constraints

LARGEST_RISK_AVERSION = 1e6
MOST_ASSETS = 1_000  # of a table: a decision takes minutes and gigabytes beyond
_LARGEST, _STILL = 1e6, 1e-15  # of a return, and of the deviation of the most volatile asset
_LARGEST_WEIGHT = 1e6  # in either direction
_SUM = 1e-3  # by which current weights of a file may miss their sum
_SUM_ROUNDING = 1e-9  # of a sum
_MOST_DELAY = 21  # rows between a decision and its trade
_PRICE_LIKE = 0.5  # nobody has a table of returns that are all positive and typically above 50 %


def looks_like_prices(array: np.ndarray) -> bool:
    """All positive and typically above 0.5."""
    return bool((array > 0).all() and np.median(array) > _PRICE_LIKE)


def validate_delay(delay: int) -> int:
    """Rows between a decision and its trade: 0 is the close that it is made from."""
    validate_count("delay", delay, least=0)
    expect(delay <= _MOST_DELAY, "delay", f"at most {_MOST_DELAY} rows", delay)
    return delay


def validate_returns(
    returns: ArrayLike | pd.DataFrame, least_rows: int, window: int, gaps: str = "refuse"
) -> np.ndarray:
    """Past returns as an array (time, assets) with at least 2 assets, at least one of which moves in the window.

    With gaps kept, returns may be missing (NaN).
    """
    if hasattr(returns, "columns"):
        from time2decide.markets.tables import load_returns

        returns = load_returns(returns, gaps=gaps).to_numpy()
    missing, filled = None, returns
    if gaps != "refuse":
        _expect_table(returns)
        numbers = as_tensor("returns", returns).detach().cpu().numpy()
        missing = np.isnan(numbers)
        found = f"what look like prices (median {np.median(numbers[~missing]):g})" if (~missing).any() else "no number"
        expect((~missing).any() and not looks_like_prices(numbers[~missing]), "returns", "returns", found)
        filled = np.where(missing, numbers.dtype.type(0), numbers)
    array = validate_real_returns(filled)
    expect(array.ndim == 2, "returns", "shape (time, assets)", array.shape)
    rows, assets = array.shape
    expected = f"at least {least_rows} rows and 2 assets"
    expect(rows >= least_rows and assets >= 2, "returns", expected, f"{rows} rows and {assets} assets")
    expect(assets <= MOST_ASSETS, "returns", f"at most {MOST_ASSETS} assets", assets)
    expect(array.max() <= _LARGEST, "returns", f"returns of at most {_LARGEST:g}", f"{array.max():g}")
    moves = (array != array[0]).any() and array[-window:].std(axis=0).max() >= _STILL
    expect(moves, "returns", f"an asset that moves in the last {window} rows", "none")
    return array if missing is None else np.where(missing, np.nan, array)


def validate_real_returns(returns: ArrayLike) -> np.ndarray:
    """Finite simple returns of at least −1 that do not look like prices, as a float64 array."""
    _expect_table(returns)
    array = as_array("returns", returns)
    if array.size:
        found = f"what look like prices (median {np.median(array):g})"
        expect(not looks_like_prices(array), "returns", "returns", found)
        place = tuple(int(i) for i in np.unravel_index(array.argmin(), array.shape))
        expect(array[place] >= -1, "returns", "returns of at least -1", f"{array[place]:g} at index {place}")
    return array


def _expect_table(returns: object) -> None:
    """Raise for what is neither a table nor an array of numbers."""
    none = isinstance(returns, (Mapping, set, str, bytes, Path, type(None)))
    expect(not none, "returns", "a DataFrame or array", describe_value(returns))
    refuse_booleans("returns", returns)


def validate_weights(weights: ArrayLike | pd.Series | None, assets: int, names: list[str] | None = None) -> np.ndarray:
    """Weights on the simplex, (assets,); uniform for None. A Series is put into the order of `names`."""
    array = validate_any_weights("previous_weights", weights, assets, names)
    found = f"{array.min():g}" if (array < -1e-6).any() else f"a sum of {array.sum():g}"
    fits = bool((array >= -1e-6).all() and abs(array.sum() - 1) <= _SUM)
    expect(fits, "previous_weights", "non-negative weights of sum 1", found)
    array = np.maximum(array, 0.0)
    return np.asarray(array / array.sum())


def validate_current_weights(
    name: str,
    weights: ArrayLike | pd.Series | None,
    assets: int,
    names: list[str] | None,
    constraints: Constraints,
) -> np.ndarray:
    """Current weights (assets,) under constraints: of sum 1, less with cash, more with borrowing.

    How much cash there is now is not limited: a portfolio drifts, and begins as cash. Without either, a sum within
    rounding is made 1.
    """
    array = validate_any_weights(name, weights, assets, names)
    cash, borrowing = allows_cash(constraints), allows_borrowing(constraints)
    total = float(array.sum())
    fits = (cash or total >= 1 - _SUM) and (borrowing or total <= 1 + _SUM)
    wanted = "weights of sum 1" + (" or less (the rest is cash)" if cash else "") + (" or more" if borrowing else "")
    why = "" if cash or borrowing else "; the constraints allow neither cash nor borrowing"
    expect(fits, name, wanted, f"a sum of {total:.6g}{why}")
    pinned = not (cash or borrowing) and abs(total - 1) > 1e-6  # smaller differences are the solver's to remove
    return np.asarray(array / total) if pinned else array


def was_scaled(total: float, weights: np.ndarray) -> bool:
    """Whether current weights of this sum were made to sum to 1, beyond rounding."""
    return abs(total - 1) > _SUM_ROUNDING >= abs(float(weights.sum()) - 1)


def allows_cash(constraints: Constraints | None) -> bool:
    """Whether the weights may sum to less than 1."""
    return constraints is not None and (constraints.cash[1] > 0 or constraints.exposure < 1)


def allows_borrowing(constraints: Constraints | None) -> bool:
    """Whether the weights may sum to more than 1."""
    return constraints is not None and (constraints.cash[0] < 0 or constraints.exposure > 1)


def validate_any_weights(
    name: str, weights: ArrayLike | pd.Series | None, assets: int, names: list[str] | None = None
) -> np.ndarray:
    """Weights (assets,) of any sign and sum, uniform for None; none is beyond 1e6.

    A Series is put into the order of `names`.
    """
    if weights is None:
        return np.full(assets, 1.0 / assets)
    if hasattr(weights, "reindex") and names is not None:
        weights = weights_in_order(name, weights, names, "weight")
    refuse_booleans(name, weights)
    array = as_tensor(name, weights).detach().cpu().double().numpy()
    found = f"shape {array.shape}" if array.shape != (assets,) else "one that is not finite"
    fits = array.shape == (assets,) and bool(np.isfinite(array).all())
    expect(fits, name, f"{assets} finite numbers", found)
    largest = float(np.abs(array).max(initial=0.0))  # beyond, squares and sums of weights lose their digits
    expect(largest <= _LARGEST_WEIGHT, name, f"weights of at most {_LARGEST_WEIGHT:g}", f"{largest:g}")
    return np.asarray(array)


def weights_in_order(name: str, numbers: pd.Series, names: list[str], what: str = "number") -> np.ndarray:
    """The numbers of a Series in the order of `names`, which must be its labels."""
    unknown = [str(asset) for asset in numbers.index if asset not in names]
    missing = [str(asset) for asset in names if asset not in numbers.index]
    found = f"unknown {unknown}" if unknown else f"without {missing}" if missing else "an asset twice"
    fits = not (unknown or missing or numbers.index.has_duplicates)
    expect(fits, name, f"one {what} for each asset", found)
    return np.asarray(numbers.reindex(names).to_numpy())


def validate_turnover(turnover_l1: float) -> float:
    """γ in (0, 2], or an `InputError`."""
    return validate_positive("turnover_l1", turnover_l1, most=2)


def validate_risk_aversion(risk_aversion: float) -> float:
    """λ in [0, 1e6], or an `InputError`."""
    return validate_positive("risk_aversion", risk_aversion, allow_zero=True, most=LARGEST_RISK_AVERSION)
