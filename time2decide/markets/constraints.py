"""What a portfolio may be: bounds per asset, net exposure, cash, and named linear limits such as groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from time2decide.core.validation import InputError

_ROUNDING = 1e-6  # of current weights, which come from files and other programs


class Limit(NamedTuple):
    """low ≤ coefficientsᵀ s ≤ high: a group (coefficients 0 and 1) or an exposure to a factor."""

    name: str
    coefficients: np.ndarray
    low: float
    high: float


@dataclass(frozen=True)
class Constraints:
    """What a portfolio may be; the defaults are long-only and fully invested.

    Parameters
    ----------
    lower, upper : number or (m,)
        Bounds of each weight; a negative lower bound allows short positions.
    exposure : float
        e, the sum of all weights and cash.
    cash : (least, most)
        Bounds of what may be left uninvested, which is not part of the turnover.
    cash_return : float
        What cash earns per period.
    limits : tuple of Limit
    assets : tuple of text
        Names for messages; numbers unless given.
    """

    lower: float | np.ndarray = 0.0
    upper: float | np.ndarray = np.inf
    exposure: float = 1.0
    cash: tuple[float, float] = (0.0, 0.0)
    cash_return: float = 0.0
    limits: tuple[Limit, ...] = ()
    assets: tuple[str, ...] = ()

    def bounds(self, m: int) -> tuple[np.ndarray, np.ndarray]:
        """l and u, (m,) each; they may be infinite."""
        pair = []
        for name, value in (("lower", self.lower), ("upper", self.upper)):
            array = np.asarray(value, dtype=np.float64)
            if array.shape not in ((), (m,)) or np.isnan(array).any():
                found = "NaN" if array.shape in ((), (m,)) else f"shape {array.shape}"
                raise InputError(f"{name}: expected a number or {m} numbers, found {found}")
            pair.append(np.broadcast_to(array, (m,)))
        if (pair[0] > pair[1]).any():
            i = int(np.argmax(pair[0] > pair[1]))
            raise InputError(
                f"lower: expected at most the upper bound {pair[1][i]:g}, found {pair[0][i]:g} (asset {i})"
            )
        return pair[0], pair[1]

    def excess(self, weights: np.ndarray, previous: np.ndarray, turnover_l1: float) -> float:
        """By how much weights (m,) exceed the constraint that they break most; at most 0 if they break none."""
        lower, upper = self.bounds(len(weights))
        cash, held = self.exposure - weights.sum(), [limit.coefficients @ weights for limit in self.limits]
        off = [(lower - weights).max(), (weights - upper).max(), self.cash[0] - cash, cash - self.cash[1]]
        off += [limit.low - value for limit, value in zip(self.limits, held, strict=True)]
        off += [value - limit.high for limit, value in zip(self.limits, held, strict=True)]
        return float(max(*off, np.abs(weights - previous).sum() - turnover_l1))

    def limits_for(self, m: int) -> tuple[Limit, ...]:
        """The limits, whose coefficients must be (m,)."""
        for limit in self.limits:
            if np.shape(limit.coefficients) != (m,):
                found = np.shape(limit.coefficients)
                raise InputError(f"limit {limit.name!r}: expected {m} coefficients, found shape {found}")
        return self.limits

    def inside(self, previous: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        """Current weights (rows, m) without rounding against the bounds and the net exposure.

        Long-only and fully invested, anything beyond rounding is refused. With other constraints current weights may
        lie outside, because those can change from one day to the next.
        """
        near = np.clip(previous, lower, upper)
        near = np.where(np.abs(near - previous) <= _ROUNDING, near, previous)
        off = near.sum(-1, keepdims=True) - (self.exposure - self.cash[0])
        if self is LONG_ONLY:
            if near.min(initial=0.0) < 0:
                raise InputError(f"previous: expected non-negative weights, found {previous.min():.6g}")
            if np.abs(off).max(initial=0.0) > _ROUNDING:
                raise InputError(
                    f"previous: expected weights that sum to 1, found a sum off by {np.abs(off).max():.3g}"
                )
        if self.cash[0] < self.cash[1] or not near.size:
            return near
        share = np.abs(near) / np.maximum(np.abs(near).sum(-1, keepdims=True), np.finfo(float).tiny)
        return np.asarray(near - np.where(np.abs(off) <= _ROUNDING, off, 0.0) * share)


LONG_ONLY = Constraints()
