"""The oracle: the best feasible allocation of every step with that step's returns known.

`oracle_path` goes step by step; one step, `mean_variance_step`, is s = argmax sᵀr − λ sᵀΣs on the simplex, near the
last weights, exactly and in bulk. The feasible set {s ≥ 0, 1ᵀs = 1, ‖s − p‖₁ ≤ γ} is a polytope on which a *linear*
objective is maximised by a greedy rule: sell the worst holdings, γ/2 in all, and buy the best asset. At a point s with
gradient g = r − 2λΣs that rule also measures how far s is from optimal, because the objective is concave:

    f(s*) − f(s) ≤ gap(s) = max_v gᵀ(v − s).

Returns dwarf risk at one step's horizon, so the greedy answer is usually its own certificate (gap 0): over 99 % of
the steps of the paper's data. Only the others are given to the path solver of `portfolio.py`, all together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from time2decide.core.validation import (
    ArrayLike,
    InputError,
    as_array,
    as_tensor,
    expect,
    validate_count,
    validate_positive,
    validate_simplex,
)
from time2decide.markets.covariance import Covariance, empirical_covariance
from time2decide.markets.portfolio import PortfolioProblem, solve_portfolio_rows, validate_covariance

_CERTIFIED = 1e-14  # gap relative to the data (return differences and curvature): a few units of rounding
_VERTEX_ROUNDS = 2


def mean_variance_step(
    returns: ArrayLike,
    covariance: ArrayLike,
    previous: ArrayLike,
    turnover_l1: ArrayLike,
    risk_aversion: float = 0.1,
) -> ArrayLike:
    """argmax sᵀr − λ sᵀΣs over {s ≥ 0, 1ᵀs = 1, ‖s − previous‖₁ ≤ turnover_l1}, for a batch of decisions.

    Parameters
    ----------
    returns : (..., m)
        Known or predicted returns r.
    covariance : (..., m, m)
        Σ, positive semidefinite.
    previous : (..., m)
        Current weights: non-negative, of sum 1.
    turnover_l1 : number or (...)
        γ, the full ℓ1 distance that may be traded: 2 allows any move.
    risk_aversion : float
        λ ≥ 0. Where the maximiser is not unique (equal assets, λ = 0), one of them is returned.

    Returns
    -------
    (..., m), numpy unless `returns` is a tensor.
    """
    r, S = as_array("returns", returns), as_array("covariance", covariance)
    p, gamma = as_array("previous", previous), as_array("turnover_l1", turnover_l1)
    m = r.shape[-1] if r.ndim else 0
    fits = m and p.shape[-1:] == (m,) and S.shape[-2:] == (m, m)
    expect(fits, "returns", "(..., m) as in previous and covariance", f"{r.shape} and {S.shape}")
    weight = validate_positive("risk_aversion", risk_aversion, allow_zero=True)
    validate_covariance(S)
    p = validate_simplex("previous", p)
    shapes = {"returns": r.shape[:-1], "previous": p.shape[:-1], "covariance": S.shape[:-2], "turnover_l1": gamma.shape}
    try:
        lead = np.broadcast_shapes(*shapes.values())
    except ValueError:
        raise InputError(f"returns: expected one batch shape in all arguments, found {shapes}") from None
    rows = int(np.prod(lead, dtype=int))
    r_rows, p_rows = (np.broadcast_to(array, (*lead, m)).reshape(rows, 1, m) for array in (r, p))  # (rows, 1, m)
    curvature = 2 * weight * np.broadcast_to(S, (*lead, m, m)).reshape(rows, m, m)
    half = half_turnover(np.broadcast_to(gamma, lead).reshape(rows, 1))
    answer = best_allocations(r_rows, curvature, p_rows, half).reshape(*lead, m)
    return as_tensor("answer", answer) if isinstance(returns, Tensor) else answer


def validate_oracle_budgets(turnover_l1: ArrayLike) -> np.ndarray:
    """One or several budgets γ as an array (k,), or an `InputError`."""
    budgets = np.atleast_1d(as_array("turnover_l1", turnover_l1))
    expect(budgets.ndim == 1 and budgets.size, "turnover_l1", "a number or a list of numbers", f"shape {budgets.shape}")
    half_turnover(budgets)
    return budgets


def half_turnover(turnover_l1: np.ndarray) -> np.ndarray:
    """γ/2, what may be bought and what may be sold; γ above 2 means the same as 2."""
    good = np.isfinite(turnover_l1).all() and (turnover_l1 >= 0).all()
    expect(good, "turnover_l1", "non-negative numbers", turnover_l1.ravel().tolist()[:8])
    return np.asarray(np.minimum(turnover_l1, 2.0) / 2)


def best_allocations(r: np.ndarray, curvature: np.ndarray, p: np.ndarray, half: np.ndarray) -> np.ndarray:
    """The engine behind `mean_variance_step`; of its data it checks only that they are finite.

    r (n, k or 1, m), curvature 2λΣ (n, m, m), p (n, k, m), half = γ/2 (n, k); returns (n, k, m).
    """
    r = r - r.max(-1, keepdims=True)  # a constant does not matter on the simplex, and its rounding does
    scale = np.maximum(np.abs(r).max(-1), np.abs(curvature).max((-2, -1))[:, None])  # (n, k or 1)
    # every comparison with NaN is false: the greedy step would sell nothing
    overflow = "NaN or an overflow (check the size of the returns)"
    expect(np.isfinite(scale).all(), "covariance", "finite numbers", overflow)
    s = greedy_allocations(r - p @ curvature, p, half)
    for _ in range(_VERTEX_ROUNDS):
        gap, target = _certify(r - s @ curvature, p, half, s)
        open_ = gap > _CERTIFIED * scale
        if not open_.any():
            return s
        s = np.where(open_[..., None], target, s)
    open_ = _certify(r - s @ curvature, p, half, s)[0] > _CERTIFIED * scale
    i, j = np.nonzero(open_)
    if i.size:
        s[i, j] = _solve_open(np.broadcast_to(r, p.shape)[i, j], curvature, i, p[i, j], 2 * half[i, j])
    return s


def _solve_open(
    r: np.ndarray, curvature: np.ndarray, which: np.ndarray, p: np.ndarray, gamma: np.ndarray
) -> np.ndarray:
    """Decisions (rows, m) by the path solver; row i has the matrix curvature[which[i]], and keeps the sum of p[i]."""
    rows, m = r.shape
    problem = PortfolioProblem(
        mean=r,
        dense=np.require(curvature, dtype=np.float64, requirements=["C", "W"]),
        loadings=np.zeros((len(curvature), 0, 0)),
        specific=np.zeros((len(curvature), 0)),
        which=which,
        previous=p,
        lower=np.zeros((rows, m)),
        upper=np.ones((rows, m)),
        cost=np.zeros((rows, m)),
        benchmark=None,
        risk_aversion=np.full(rows, 0.5),  # Q = 2λΣ is the curvature itself
        turnover_l1=gamma,
        exposure=p.sum(-1),
        cash=np.zeros((rows, 3)),
    )
    return solve_portfolio_rows(problem, np.zeros((rows, m), np.int64))[0]


def greedy_allocations(gradient: np.ndarray, p: np.ndarray, half: np.ndarray) -> np.ndarray:
    """argmax gᵀs over the feasible set: the worst holdings are sold, `half` in all, and the best asset is bought.

    gradient and p are (..., m), half is (...). Nothing is sold that is as good as the best. Feasible to rounding.
    """
    order = np.argsort(gradient, axis=-1, kind="stable")  # worst first
    sorted_gradient = np.take_along_axis(gradient, order, axis=-1)
    weights = np.take_along_axis(p, order, axis=-1)
    for_sale = np.where(sorted_gradient < sorted_gradient[..., -1:], weights, 0.0)
    sold_before = np.cumsum(for_sale, axis=-1) - for_sale
    sold = np.clip(half[..., None] - sold_before, 0.0, for_sale)
    kept = weights - sold
    kept[..., -1] += sold.sum(-1)
    answer: np.ndarray = np.empty_like(kept)
    np.put_along_axis(answer, order, kept, axis=-1)
    return answer


def _certify(gradient: np.ndarray, p: np.ndarray, half: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """gap = max_v gᵀ(v − s) over the feasible set, (...), and the v that attains it, (..., m)."""
    target = greedy_allocations(gradient, p, half)
    return np.einsum("...m,...m->...", gradient, target - s), target


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

    Exact (each step is certified, see `mean_variance_step`), sequential in t, and batched over series and budgets.

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
