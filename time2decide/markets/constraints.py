"""Constraints of a portfolio: bounds per asset, net exposure, cash, and named linear limits such as groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from time2decide.core.validation import InputError, describe_value, expect, is_text, refuse_masked
from time2decide.markets.validation import weights_in_order

_ROUNDING = 1e-6  # of current weights, which come from files and other programs
_LARGEST = 1e6  # of a return and an exposure, as of returns everywhere
_BROKEN = 1e-9  # by which a limit must be exceeded, relative to its largest coefficient, to be called broken


class Limit(NamedTuple):
    """low ≤ coefficientsᵀ s ≤ high: a group (coefficients 0 and 1) or an exposure to a factor.

    Coefficients are (m,), or a Series by asset.
    """

    name: str
    coefficients: np.ndarray
    low: float
    high: float

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"limit {self.name!r}"

    @property
    def size(self) -> float:
        """The largest coefficient, 1 if all are 0."""
        return float(np.abs(self.coefficients).max(initial=0.0)) or 1.0

    def scaled(self) -> Limit:
        """The same limit with coefficients of at most 1, for which one tolerance fits any unit."""
        size = self.size
        return self._replace(coefficients=self.coefficients / size, low=self.low / size, high=self.high / size)


@dataclass(frozen=True, eq=False)
class Constraints:
    """Constraints of a portfolio; the defaults are long-only and fully invested.

    Parameters
    ----------
    lower, upper : number, (m,), or Series by asset
        Bounds of each weight; a negative lower bound allows short positions.
    exposure : float
        e, the sum of all weights and cash.
    cash : (least, most)
        Bounds of what may be left uninvested, which is not part of the turnover.
    cash_return : float
        What cash earns per period.
    limits : tuple of Limit
    assets : tuple of text
        Names of the columns that these are for; they are refused for others. Any unless given.
    """

    lower: float | np.ndarray = 0.0
    upper: float | np.ndarray = np.inf
    exposure: float = 1.0
    cash: tuple[float, float] = (0.0, 0.0)
    cash_return: float = 0.0
    limits: tuple[Limit, ...] = ()
    assets: tuple[str, ...] = ()

    def aligned(self, names: Sequence[Any] | None) -> Constraints:
        """The same constraints for columns of these names: each Series is put into their order.

        Without names, numbers are taken as they stand.
        """
        self.validate_assets(names)
        labelled = [_is_series(value) for value in (self.lower, self.upper, *(one.coefficients for one in self.limits))]
        if not any(labelled):
            return self
        lower, upper = _in_order("lower", self.lower, names), _in_order("upper", self.upper, names)
        limits = [one._replace(coefficients=_in_order(one.where, one.coefficients, names)) for one in self.limits]
        return replace(self, lower=lower, upper=upper, limits=tuple(limits))

    def validate_assets(self, names: Sequence[str] | None) -> None:
        """Raise unless these are constraints for columns of these names, in this order."""
        if self.assets and names is not None:
            theirs, own = list(map(str, names)), list(map(str, self.assets))
            expected = f"constraints for {', '.join(theirs[:5])}, … in this order"
            expect(theirs == own, "constraints", expected, f"those for {', '.join(own[:5])}, …")

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            value = getattr(self, name)
            numbers = _floats(name, value)
            if not _is_series(value):
                object.__setattr__(self, name, numbers if numbers.ndim else float(numbers))
            elif self.assets:
                object.__setattr__(self, name, _in_order(name, value, self.assets))
        for name in ("exposure", "cash_return"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
            size = abs(getattr(self, name))
            expect(size <= _LARGEST, name, f"a number of at most {_LARGEST:g}", f"{size:g}")
        pair = isinstance(self.cash, (tuple, list, np.ndarray)) and np.shape(self.cash) == (2,)
        expect(pair, "cash", "a pair (least, most)", describe_value(self.cash))
        least, most = (_number("cash", value) for value in self.cash)
        expect(least <= most, "cash", "least ≤ most", f"{least:g} and {most:g}")
        object.__setattr__(self, "cash", (least, most))
        several = isinstance(self.limits, (tuple, list)) and not isinstance(self.limits, Limit)
        expect(several, "limits", "a tuple of Limit", describe_value(self.limits))
        object.__setattr__(self, "limits", tuple(_limit(limit, self.assets) for limit in self.limits))
        names = [limit.name for limit in self.limits]
        again = next((name for i, name in enumerate(names) if name in names[:i]), None)
        expect(again is None, "limits", "distinct names", f"{again!r} twice")

    def bounds(self, m: int) -> tuple[np.ndarray, np.ndarray]:
        """l and u, (m,) each; they may be infinite."""
        pair = []
        for name, value in (("lower", self.lower), ("upper", self.upper)):
            array = _floats(name, value)
            fits = array.shape in ((), (m,))
            found = "NaN" if fits else f"shape {array.shape}"
            expect(fits and not np.isnan(array).any(), name, f"a number or {m} numbers", found)
            absent = np.inf if name == "lower" else -np.inf
            expect((array != absent).all(), name, "bounds that some weight meets", absent)
            pair.append(np.broadcast_to(array, (m,)))
        if (pair[0] > pair[1]).any():
            i = int(np.argmax(pair[0] > pair[1]))
            low, high = float(pair[0][i]), float(pair[1][i])
            raise InputError(f"lower: expected at most the upper bound {high!r}, found {low!r} (asset {i})")
        return pair[0], pair[1]

    def excess(self, weights: np.ndarray, previous: np.ndarray, turnover_l1: float) -> float:
        """By how much weights (m,) exceed the constraint that they break most; at most 0 if they break none.

        For a limit, relative to its largest coefficient.
        """
        limits = [limit.scaled() for limit in self.limits]
        lower, upper = self.bounds(len(weights))
        cash, values = self.exposure - weights.sum(), [limit.coefficients @ weights for limit in limits]
        off = [(lower - weights).max(), (weights - upper).max(), self.cash[0] - cash, cash - self.cash[1]]
        off += [limit.low - value for limit, value in zip(limits, values, strict=True)]
        off += [value - limit.high for limit, value in zip(limits, values, strict=True)]
        return float(max(*off, np.abs(weights - previous).sum() - turnover_l1))

    def fix(self, weights: np.ndarray, fixed: np.ndarray) -> Constraints:
        """The same constraints with the weights of some assets, (m,) bool, fixed at those of `weights`.

        Bounds of fixed assets wait, and so do limits on none but these if `weights` breaks them.
        """
        lower, upper = self.bounds(len(weights))
        limits = []
        for one in self.limits_for(len(weights)):
            value, rounding = float(one.coefficients @ weights), _BROKEN * one.size
            met = one.low - rounding <= value <= one.high + rounding
            limits += [one] if met or one.coefficients[~fixed].any() else []
        lower, upper = np.where(fixed, weights, lower), np.where(fixed, weights, upper)
        return replace(self, lower=lower, upper=upper, limits=tuple(limits))

    def among(self, weights: np.ndarray, chosen: np.ndarray) -> Constraints:
        """The constraints that remain for some assets, (m,) bool, if the others keep these weights."""
        lower, upper = self.bounds(len(weights))
        rest = np.where(chosen, 0.0, weights)
        limits = []
        for one in self.limits_for(len(weights)):
            used = float(one.coefficients @ rest)
            limits.append(Limit(one.name, one.coefficients[chosen], one.low - used, one.high - used))
        names = tuple(name for name, kept in zip(self.assets, chosen, strict=True) if kept) if self.assets else ()
        return replace(
            self,
            lower=lower[chosen],
            upper=upper[chosen],
            exposure=self.exposure - float(rest.sum()),
            limits=tuple(limits),
            assets=names,
        )

    def limits_for(self, m: int) -> tuple[Limit, ...]:
        """The limits, whose coefficients must be (m,)."""
        for limit in self.limits:
            shape = np.shape(limit.coefficients)
            expect(shape == (m,), limit.where, f"{m} coefficients", f"shape {shape}")
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
            least, most = previous.min(initial=0.0), np.abs(off).max(initial=0.0)
            expect(near.min(initial=0.0) >= 0, "previous", "non-negative weights", f"{least:.6g}")
            expect(most <= _ROUNDING, "previous", "weights that sum to 1", f"a sum off by {most:.3g}")
        if self.cash[0] < self.cash[1] or not near.size:
            return near
        share = np.abs(near) / np.maximum(np.abs(near).sum(-1, keepdims=True), np.finfo(float).tiny)
        return np.asarray(near - np.where(np.abs(off) <= _ROUNDING, off, 0.0) * share)


def _floats(name: str, value: Any) -> np.ndarray:
    """A float64 array of real numbers, not necessarily finite."""
    refuse_masked(name, value)
    try:
        array = np.asarray(value)
        expect(array.dtype.kind in "fiu", name, "numbers", describe_value(value))
        return array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name}: expected numbers, found {describe_value(value)}") from None


def _is_series(value: Any) -> bool:
    return hasattr(value, "reindex")


def _in_order(name: str, value: Any, names: Sequence[Any] | None) -> Any:
    """The numbers of a Series in the order of `names`, or as they stand if there are none."""
    if not _is_series(value):
        return value
    return _floats(name, value if names is None else weights_in_order(name, value, list(names)))


def _number(name: str, value: Any) -> float:
    array = _floats(name, value)
    expect(array.shape == () and np.isfinite(array), name, "a finite number", describe_value(value))
    return float(array)


def _limit(limit: Any, assets: tuple[str, ...]) -> Limit:
    """The limit with float64 coefficients, all finite, and low ≤ high; a Series is kept where no assets are stated."""
    expect(isinstance(limit, Limit), "limits", "a tuple of Limit", describe_value(limit))
    where, name = limit.where, limit.name
    expect(isinstance(name, str) and is_text(name), "limits", "names that are text", describe_value(name))
    coefficients = _floats(where, limit.coefficients)
    expect(np.isfinite(coefficients).all(), where, "finite coefficients", "others")
    ends = _floats(where, [limit.low, limit.high])
    expect(ends.shape == (2,) and ends[0] <= ends[1], where, "low ≤ high", f"{limit.low} and {limit.high}")
    if _is_series(limit.coefficients):
        coefficients = _in_order(where, limit.coefficients, assets) if assets else limit.coefficients
    return Limit(name, coefficients, float(ends[0]), float(ends[1]))


LONG_ONLY = Constraints()
