"""Constraints of a portfolio: bounds per asset, exposure, cash, linear limits; which of them contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from time2decide.core.validation import InputError, as_floats, describe_value, expect, is_text
from time2decide.markets.validation import weights_in_order

_ROUNDING = 1e-6  # of current weights, which come from files and other programs
_LARGEST = 1e6  # of a return and an exposure, as of returns everywhere
_BROKEN = 1e-9  # by which a limit must be exceeded, relative to its largest coefficient, to be called broken
_BUDGET = "the turnover budget"
_NAMED = 3  # bounds that are listed one by one
_WORK = 12_000  # linear programs · assets, about, to find which bounds are needed
_Row = tuple[Any, np.ndarray, np.ndarray]  # sparse rows over (s, t), their lower and upper limits


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
            numbers = as_floats(name, value)
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
            array = as_floats(name, value)
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


def _is_series(value: Any) -> bool:
    return hasattr(value, "reindex")


def _in_order(name: str, value: Any, names: Sequence[Any] | None) -> Any:
    """The numbers of a Series in the order of `names`, or as they stand if there are none."""
    if not _is_series(value):
        return value
    return as_floats(name, value if names is None else weights_in_order(name, value, list(names)))


def _number(name: str, value: Any) -> float:
    array = as_floats(name, value)
    expect(array.shape == () and np.isfinite(array), name, "a finite number", describe_value(value))
    return float(array)


def _limit(limit: Any, assets: tuple[str, ...]) -> Limit:
    """The limit with float64 coefficients, all finite, and low ≤ high; a Series is kept where no assets are stated."""
    expect(isinstance(limit, Limit), "limits", "a tuple of Limit", describe_value(limit))
    where, name = limit.where, limit.name
    expect(isinstance(name, str) and is_text(name), "limits", "names that are text", describe_value(name))
    coefficients = as_floats(where, limit.coefficients)
    expect(np.isfinite(coefficients).all(), where, "finite coefficients", "others")
    ends = as_floats(where, [limit.low, limit.high])
    expect(ends.shape == (2,) and ends[0] <= ends[1], where, "low ≤ high", f"{limit.low} and {limit.high}")
    if _is_series(limit.coefficients):
        coefficients = _in_order(where, limit.coefficients, assets) if assets else limit.coefficients
    return Limit(name, coefficients, float(ends[0]), float(ends[1]))


LONG_ONLY = Constraints()


def refuse_contradictions(
    constraints: Constraints,
    assets: Sequence[str],
    previous: np.ndarray | None = None,
    turnover_l1: float | None = None,
) -> None:
    """Raise an `InputError` that names the constraints which contradict each other, if no portfolio meets them all.

    The names are a smallest set in the sense that without any one of them the others can be met (a deletion filter
    over linear programs); of hundreds of bounds some may be named that could go. With `previous` and `turnover_l1` the
    turnover budget is one of the constraints.
    """
    m = len(assets)
    lower, upper = (bound.copy() for bound in constraints.bounds(m))
    rows = _rows(constraints, m, previous, turnover_l1)
    if _can_be_met(rows, lower, upper):
        return
    least = _least_turnover(rows, lower, upper)
    for name in list(rows):
        fewer = {other: row for other, row in rows.items() if other != name}
        rows = rows if _can_be_met(fewer, lower, upper) else fewer
    conflicts = list(rows)
    for word, bound, absent in (("upper", upper, np.inf), ("lower", lower, -np.inf)):
        needed = _needed_bounds(rows, lower, upper, bound, absent)
        named = [f"the {word} bound of {assets[i]} ({bound[i]:g})" for i in needed]
        many = f"the {word} bounds of {len(named)} assets (sum {bound[needed].sum():g})"
        conflicts += named if len(named) <= _NAMED else [many]
    found = f"none for {' and '.join(conflicts)}{least}"
    raise InputError(f"constraints: expected some portfolio that meets them all, found {found}")


def some_portfolio_meets(constraints: Constraints, previous: np.ndarray, turnover_l1: float) -> bool:
    """Whether a portfolio meets the constraints within the turnover budget, to 1e-9."""
    lower, upper = constraints.bounds(len(previous))
    return _can_be_met(_rows(constraints, len(previous), previous, turnover_l1), lower, upper)


def _needed_bounds(
    rows: dict[str, _Row], lower: np.ndarray, upper: np.ndarray, bound: np.ndarray, absent: float
) -> np.ndarray:
    """Places of `bound`, one of the two others, that cannot be left out; the rest become `absent`.

    Whole blocks are left out first, halved where they are needed: a linear program per asset would take minutes. Where
    many assets would need too many, what is undecided counts as needed.
    """
    blocks, programs, most = [np.arange(len(bound))], 0, max(20, _WORK // len(bound))
    while blocks and programs < most:
        block = blocks.pop()
        kept = bound[block].copy()
        if (kept == absent).all():
            continue
        bound[block], programs = absent, programs + 1
        if _can_be_met(rows, lower, upper):
            bound[block] = kept
            blocks += [half for half in np.array_split(block, 2) if 0 < len(half) < len(block)]
    return np.flatnonzero(np.isfinite(bound))


def _rows(constraints: Constraints, m: int, previous: np.ndarray | None, turnover_l1: float | None) -> dict[str, _Row]:
    """Everything but bounds by name, as rows over s and t ≥ |s − p|."""
    from scipy import sparse

    total = (constraints.exposure - constraints.cash[1], constraints.exposure - constraints.cash[0])
    invested = f"{total[0]:g}" if total[0] == total[1] else f"{total[0]:g} to {total[1]:g}"
    named = [(f"the sum of weights ({invested})", np.ones(m), *total)]
    named += [(f"{one.name} ({_span(one.low, one.high)})", *one.scaled()[1:]) for one in constraints.limits]
    rows: dict[str, _Row] = {}
    for name, coefficients, low, high in named:
        matrix = sparse.csr_matrix(np.hstack([coefficients, np.zeros(m)])[None])
        rows[name] = (matrix, np.array([low]), np.array([high]))
    if previous is not None and turnover_l1 is not None and turnover_l1 < np.inf:
        eye = sparse.identity(m, format="csr")
        matrix = sparse.bmat([[eye, -eye], [-eye, -eye], [None, np.ones((1, m))]], format="csr")
        most = np.concatenate([previous, -previous, [turnover_l1]])
        rows[f"{_BUDGET} ({turnover_l1:g})"] = (matrix, np.full(len(most), -np.inf), most)
    return rows


def _span(low: float, high: float) -> str:
    """The numbers from low to high in words; either may be infinite."""
    if low == high:
        return f"{low:g}"
    if low == -np.inf:
        return f"at most {high:g}"
    return f"at least {low:g}" if high == np.inf else f"{low:g} to {high:g}"


def _least_turnover(rows: dict[str, _Row], lower: np.ndarray, upper: np.ndarray) -> str:
    """The least turnover that meets all rows but the turnover budget, for a message; empty if none does."""
    budget = next((name for name in rows if name.startswith(_BUDGET)), None)
    if budget is None:
        return ""
    matrix, low, high = rows[budget]
    rows = {**rows, budget: (matrix, low, np.append(high[:-1], np.inf))}
    least = _minimum(rows, lower, upper, np.repeat([0.0, 1.0], len(lower)))
    return (
        ""
        if least is None or np.isnan(least)
        else f"; the least turnover that works is {np.ceil(1e4 * least - 1e-3) / 1e4:g}"
    )


def _can_be_met(rows: dict[str, _Row], lower: np.ndarray, upper: np.ndarray) -> bool:
    if (lower > upper).any():
        return False
    return not rows or _minimum(rows, lower, upper, np.zeros(2 * len(lower))) is not None


def _minimum(rows: dict[str, _Row], lower: np.ndarray, upper: np.ndarray, objective: np.ndarray) -> float | None:
    """The minimum of a linear objective over s and t; None if no point meets the rows, NaN if it was not found."""
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    free = np.full(len(lower), np.inf)
    matrix = sparse.vstack([row[0] for row in rows.values()], format="csc")
    low, high = (np.concatenate([row[i] for row in rows.values()]) for i in (1, 2))
    bounds = Bounds(np.concatenate([lower, -free]), np.concatenate([upper, free]))
    limits = LinearConstraint(matrix, low - 1e-9, high + 1e-9)
    solved = milp(objective, constraints=limits, bounds=bounds)
    if solved.status == 2:
        return None
    return float("nan") if solved.fun is None else float(solved.fun)
