"""From target weights to weights that are held: drift, the delay of a trade, and the turnover budget at its moment.

Weights decided on data up to the close of row t − 1 are traded at the close of row t − 1 + delay and held from then on.
At that moment the target becomes what is held, exactly, with two exceptions: an asset that cannot be traded then, or
that has no order, keeps its weight, the others making room in proportion; and where prices have moved so far that the
trade would exceed the turnover budget, ‖target − drifted‖₁ > γ, it goes towards the target as far as γ allows.

What a policy knows at t are the weights held then and the targets still on their way. It decides from what they lead to
if prices stand still: with a delay of one row, the weights held after the trade at this close.
"""

from __future__ import annotations

import numpy as np

from time2decide.markets.constraints import Constraints

SAME = 1e-10  # difference of weights that is no order
_ROUNDING = 1e-12  # of a sum of weights and of a turnover


def portfolio_returns(weights: np.ndarray, returns: np.ndarray, rules: Constraints | None = None) -> np.ndarray:
    """What weights (..., m) earn, sᵀr, and what their cash does at the rate of the constraints."""
    earned = np.einsum("...m,...m->...", weights, returns)
    return earned if rules is None else earned + rules.cash_return * (rules.exposure - weights.sum(-1))


def drifted_weights(weights: np.ndarray, returns: np.ndarray, rules: Constraints | None = None) -> np.ndarray:
    """Weights after drift by returns, both (..., m): s ⊙ (1 + r) / (1 + sᵀr); the same weights if nothing is left."""
    grown = weights * (1 + returns)
    cash = 1 - weights.sum(-1, keepdims=True)
    total = grown.sum(-1, keepdims=True) + np.where(np.abs(cash) > _ROUNDING, cash, 0.0)
    if rules is not None and rules.cash_return:
        total = total + rules.cash_return * (rules.exposure - weights.sum(-1, keepdims=True))
    return np.asarray(np.divide(grown, total, out=np.array(weights, dtype=float), where=total > 0))


def traded_towards(
    target: np.ndarray, now: np.ndarray, budget: np.ndarray | float, fixed: np.ndarray | None = None
) -> np.ndarray:
    """Weights after a trade from `now` to `target`, both (..., m), within a budget (...) on its ℓ1 length.

    The assets of `fixed` (..., m) bool keep their weight; what that takes from the others is shared in proportion.
    """
    if fixed is not None and fixed.any():
        free = np.where(fixed, 0.0, np.abs(target))
        kept = np.where(fixed, now, target)
        room, size = (kept - target).sum(-1, keepdims=True), free.sum(-1, keepdims=True)
        part = np.divide(room, size, out=np.zeros(size.shape), where=size > 0)
        target = np.where(size > 0, kept - free * np.minimum(part, 1.0), now)
    length = np.abs(target - now).sum(-1, keepdims=True)
    most = np.broadcast_to(budget, length.shape[:-1])[..., None]
    share = np.divide(most, length, out=np.ones(length.shape), where=length > most + _ROUNDING)
    return np.where(share < 1, now + share * (target - now), target)


def when_traded(delay: int, period: str) -> str:
    """When a decision is traded, in words."""
    if delay == 0:
        return "at the same close, at which nobody can trade"
    return "at the next close" if delay == 1 else f"{delay} {period}s later"
