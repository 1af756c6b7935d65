"""The oracle: the best feasible allocation of every step with that step's returns known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from time2decide.core.validation import ArrayLike, as_array, as_tensor, expect, validate_count, validate_positive
from time2decide.markets.allocation import best_allocations, half_turnover, validate_oracle_budgets
from time2decide.markets.covariance import Covariance, empirical_covariance
from time2decide.markets.portfolio import validate_covariance

#: The paper's seven turnover budgets γ.
BUDGETS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
#: Steps of history before the first decision, and of every covariance estimate.
WINDOW = 96
RISK_AVERSION = 0.1


def oracle_path(
    returns: ArrayLike,
    turnover_l1: float | Sequence[float],
    risk_aversion: float = RISK_AVERSION,
    window: int = WINDOW,
    *,
    covariance: Covariance = empirical_covariance,
) -> ArrayLike:
    """s*_t = argmax sᵀr_t − λ sᵀΣ̂_t s over {s ≥ 0, 1ᵀs = 1, ‖s − s*_{t−1}‖₁ ≤ γ}, step after step.

    Exact (each step is certified, see `allocation.py`), sequential in t, and batched over series and budgets.

    Parameters
    ----------
    returns : (series, time, assets), or (time, assets) for one series
    turnover_l1 : number, or a sequence of k numbers
        γ, the full ℓ1 distance allowed per step. All budgets are solved together.
    risk_aversion : float
        λ
    window : int
        Σ̂_t is estimated from the `window` returns before t; nothing is traded before step `window`, so the
        allocations of the steps 0 … window − 1 are uniform, and the oracle starts from uniform.
    covariance : callable
        Windows (series, window, assets) -> (series, assets, assets); the empirical covariance by default.

    Returns
    -------
    Allocations in the shape of `returns`; with a sequence of budgets (series, k, time, assets). Row t is what the
    oracle holds while returns[:, t] is earned.
    """
    array = validate_oracle_returns(returns, window)
    weight = validate_positive("risk_aversion", risk_aversion, allow_zero=True)
    budgets = validate_oracle_budgets(turnover_l1)
    expect(callable(covariance), "covariance", "a function of windows", type(covariance).__name__)
    series, time, m = array.shape
    half = np.broadcast_to(half_turnover(budgets), (series, len(budgets)))

    def curvature(step: int) -> np.ndarray:
        sigma = _covariance_at(window + step, covariance, array[:, step : window + step])
        with np.errstate(over="ignore"):  # refused by `best_allocations`
            return 2 * weight * sigma

    path = np.full((series, len(budgets), time, m), 1.0 / m)
    path[:, :, window:] = best_oracle_path(array[:, window:], curvature, half)
    if as_tensor("turnover_l1", turnover_l1).dim() == 0:
        path = path[:, 0]
    if as_tensor("returns", returns).dim() == 2:
        path = path[0]
    return as_tensor("path", path) if isinstance(returns, Tensor) else path


def best_oracle_path(returns: np.ndarray, curvature: Callable[[int], np.ndarray], half: np.ndarray) -> np.ndarray:
    """The best allocation of every step, from uniform and each near the one before, (n, k, time, m).

    returns (n, time, m), curvature of a step 2λΣ (n, m, m), half = γ/2 (n, k).
    """
    n, time, m = returns.shape
    path, weights = np.empty((n, half.shape[1], time, m)), np.full((n, half.shape[1], m), 1.0 / m)
    for t in range(time):
        path[:, :, t] = weights = best_allocations(returns[:, None, t], curvature(t), weights, half)
    return path


def _covariance_at(t: int, covariance: Covariance, windows: np.ndarray) -> np.ndarray:
    """Σ̂_t (series, m, m), checked."""
    series, _, m = windows.shape
    sigma = np.asarray(covariance(windows))
    shape, real = sigma.shape == (series, m, m), sigma.dtype.kind in "fiu"
    found = f"dtype {sigma.dtype}" if not real else "NaN or an overflow" if shape else f"shape {sigma.shape}"
    good = shape and real and np.isfinite(sigma).all()
    expect(good, "covariance", f"finite numbers ({series}, {m}, {m}) at step {t}", found)
    if covariance is not empirical_covariance:  # which is semidefinite by its form
        validate_covariance(sigma)
    return sigma


def validate_oracle_returns(returns: ArrayLike, window: int) -> np.ndarray:
    """Returns as a float64 array (series, time, assets) with more than `window` finite steps, or an `InputError`."""
    validate_count("window", window, least=2)
    array = as_array("returns", returns)
    expect(array.ndim in (2, 3) and array.size, "returns", "shape (series, time, assets)", array.shape)
    array = array if array.ndim == 3 else array[None]  # (series, time, assets)
    expect(array.shape[1] > window, "returns", f"more than {window} steps (the window)", array.shape[1])
    return array
