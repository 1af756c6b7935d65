"""Certificates: whether an answer is optimal, or a problem infeasible or unbounded, from the data of the problem alone.

All are scale-free. A residual is compared with the terms it is summed from, row by row and component by component, so
that neither a large row nor a large variable can hide what happens in a small one. With

    r = Ax + b + Cᵀλ + Eᵀμ + z (+ the subgradient of the ℓ1 terms),   s = |A||x| + |b| + |z| + 10⁻³(|C|ᵀλ + |E|ᵀ|μ|),

a point is optimal if cᵢx − dᵢ ≤ tol·(|dᵢ| + |cᵢ||x|), the same for equations and bounds, |rⱼ| ≤ tol·sⱼ, λ ≥ 0, and the
duality gap Σ|xⱼrⱼ| + Σλᵢ|cᵢx − dᵢ| + … is at most tol times Σ|xⱼ|(|Ax|ⱼ + |bⱼ|), the size of the objective. The gap is
what tells a point far from the answer of an ill-conditioned problem, where every rⱼ is small beside the sⱼ it is left
over from. Where even rounding leaves a larger gap, residuals of the size of rounding are enough. Where all terms of a
row are themselves rounding, as at degenerate points, a `RoundingFloor` says how large that rounding is. Where that is
not enough, `exact` judges the problem without its noise: bounds that rounding alone tells from 0. Where x is so
far beyond the numbers of the problem that rows are lost in rounding, something has to ask for its size: see
`_is_adrift`. Else any x far along the null space of A would solve a singular problem.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from time2decide.qp.problem import QP

_EPS = float(np.finfo(float).eps)
_CANCEL = 1e-3  # share of the tolerance for what is left of multipliers that cancel each other
_LARGE = 1e-3  # share of the largest variable from which one counts as large
_HELD = 1e-13  # share of its terms that is left of a row or of Ax where it still says how large x is
_FAR = 1e8  # times the numbers of a problem: x beyond it is looked at
_LOST = 1e13  # the same: rows say nothing of x any more
_SEEN = 1e-6  # share of its right-hand side by which a row is missed
_NO_BOUND = 1e15  # a bound that stands for none


class Arrays(NamedTuple):
    """A batch of problems in float64 without gaps: no rows, infinite bounds, no penalty where nothing was given."""

    A: np.ndarray  # (batch, n, n)
    b: np.ndarray  # (batch, n)
    C: np.ndarray  # (batch, m, n)
    d: np.ndarray  # (batch, m)
    E: np.ndarray  # (batch, p, n)
    f: np.ndarray  # (batch, p)
    lb: np.ndarray  # (batch, n)
    ub: np.ndarray  # (batch, n)
    penalty: np.ndarray  # (batch,)
    radius: np.ndarray  # (batch,)

    @classmethod
    def of(cls, qp: QP) -> Arrays:
        """The arrays of a problem; views of its tensors where those are float64 on the CPU."""
        batch, n = len(qp), qp.n

        def array(name: str, shape: tuple[int, ...], fill: float = 0.0) -> np.ndarray:
            tensor = getattr(qp, name)
            if tensor is None:  # one number for all; np.broadcast_to takes five times as long
                return np.ndarray((batch, *shape), float, np.array(fill), strides=(0,) * (1 + len(shape)))
            tensor = tensor.detach()
            exact = tensor.dtype is torch.float64 and tensor.device.type == "cpu"
            return np.asarray((tensor if exact else tensor.cpu().double()).numpy())

        A, b, C, d = (array(name, ()) for name in ("A", "b", "C", "d"))
        lb, ub = array("lb", (n,), -np.inf), array("ub", (n,), np.inf)
        penalty, radius = array("l1_penalty", ()), array("l1_radius", (), np.inf)
        return cls(A, b, C, d, array("E", (0, n)), array("f", (0,)), lb, ub, penalty, radius)

    def at(self, index: np.ndarray | slice) -> Arrays:
        """The problems at `index`."""
        return Arrays(*(array[index] for array in self))

    @property
    def sparse(self) -> bool:
        """Whether there are ℓ1 terms."""
        return bool(distinct_entries(self.penalty).any() or (distinct_entries(self.radius) < np.inf).any())


def distinct_entries(array: np.ndarray) -> np.ndarray:
    """The entries of a batch, or only the first where all share its memory."""
    return array if array.strides[0] else array[:1]


class Point(NamedTuple):
    """x with the multipliers of Cx ≤ d, Ex = f and the bounds (positive at ub, negative at lb), batched."""

    x: np.ndarray  # (batch, n)
    rows: np.ndarray  # (batch, m)
    equal: np.ndarray  # (batch, p)
    box: np.ndarray  # (batch, n)

    def at(self, index: np.ndarray | slice) -> Point:
        """The points at `index`."""
        return Point(*(array[index] for array in self))


class RoundingFloor(NamedTuple):
    """Residuals that are rounding: in the rows of C and E and in the components of the gradient, batched."""

    rows: np.ndarray  # (batch, m)
    equal: np.ndarray  # (batch, p)
    gradient: np.ndarray  # (batch, n)


def batch_times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Mv for (batch, r, c) and (batch, c)."""
    return np.asarray(np.matmul(matrix, vector[..., None])[..., 0])


def transposed_times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Mᵀv for (batch, r, c) and (batch, r)."""
    return np.asarray(np.matmul(vector[..., None, :], matrix)[..., 0, :])


def is_optimal(p: Arrays, point: Point, tol: float, floor: RoundingFloor | None = None) -> np.ndarray:
    """Whether each point is optimal by the rule above, (batch,) of bool."""
    return np.asarray(OptimalityRule(p).residual(point, floor) <= tol)


class OptimalityRule:
    """The rule above for the problems `p`: what does not depend on the point is formed once."""

    def __init__(self, p: Arrays) -> None:
        self.p = p
        self.A, self.b, self.C, self.E = np.abs(p.A), np.abs(p.b), np.abs(p.C), np.abs(p.E)
        self.bounded = bool((p.lb > -np.inf).any() or (p.ub < np.inf).any())
        self.lb, self.ub = (np.where(np.isfinite(bound), np.abs(bound), 0.0) for bound in (p.lb, p.ub))

    @cached_property
    def unit(self) -> np.ndarray:
        """The size that the numbers of a problem suggest for x, (batch,); infinite where they say nothing."""
        radius = self.p.radius[:, None]
        sides = np.concatenate([np.abs(self.p.d), np.abs(self.p.f), self.lb, self.ub, radius], axis=-1)
        largest = np.where(sides < _NO_BOUND, sides, 0.0).max(-1)
        curve = self.A.max((-1, -2))
        slope = np.divide(self.b.max(-1), curve, out=np.zeros(len(curve)), where=curve > 0)
        unit = np.maximum(largest, slope)
        return np.where(unit > 0, unit, np.inf)

    def residual(self, point: Point, floor: RoundingFloor | None = None) -> np.ndarray:
        """The smallest `tol` at which each point is optimal, (batch,); infinite where there is none."""
        return self.measure(point).level(floor)

    def measure(self, point: Point) -> _Measured:
        """The residual of each condition of the rule, and the terms that it is compared with."""
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            return self._measure(point)

    def _measure(self, point: Point) -> _Measured:
        p = self.p
        x, rows, equal, box = point
        size, rounding = np.abs(x), _EPS * (100 + x.shape[1])
        product = batch_times(p.A, x)
        gradient, terms = product + p.b, batch_times(self.A, size) + self.b
        worth = size * (np.abs(product) + self.b)  # what the objective is summed from
        excuse = terms  # what the gradient is compared with
        worst, gap, tight = np.zeros(len(x)), np.zeros(len(x)), np.ones(len(x), dtype=bool)
        if self.bounded:
            worst = np.maximum(_share(p.lb - x, self.lb + size), _share(x - p.ub, self.ub + size))
            slack = np.where(box > 0, p.ub - x, np.where(box < 0, x - p.lb, 0.0))
            tight, gap = _pulled(box, slack, rounding * size)
            gradient, excuse = gradient + box, excuse + np.abs(box)
        misses: list[tuple[np.ndarray, np.ndarray] | None] = [None, None]
        for i, (matrix, sizes, bound, dual) in enumerate(((p.C, self.C, p.d, rows), (p.E, self.E, p.f, equal))):
            if not bound.shape[1]:
                continue
            gradient = gradient + transposed_times(matrix, dual)
            excuse = excuse + _CANCEL * transposed_times(sizes, np.abs(dual))
            slack, reach = bound - batch_times(matrix, x), np.abs(bound) + batch_times(sizes, size)
            misses[i] = (np.abs(slack) if i else -slack), reach
            at, more = _pulled(dual, slack, rounding * reach)
            tight, gap = tight & at, gap + more
        if p.sparse:
            level, total = _l1_level(p, x, gradient), size.sum(-1)
            gradient = _l1_residual(x, gradient, level)
            terms, excuse, worth = (v + level[:, None] * by for v, by in ((terms, 1), (excuse, 1), (worth, size)))
            reach = total + np.where(p.radius < np.inf, p.radius, 0.0)
            worst = np.maximum(worst, _share((total - p.radius)[:, None], reach[:, None]))
            gap = gap + np.where(level > p.penalty, (level - p.penalty) * np.abs(p.radius - total), 0.0)
        left = np.abs(gradient)
        exact = tight & (left <= rounding * terms).all(-1)
        gap = _share((gap + (size * left).sum(-1))[:, None], worth.sum(-1)[:, None])
        worst = np.where(exact, worst, np.maximum(worst, gap))
        worst = np.where((rows >= 0).all(-1) & np.isfinite(x).all(-1), worst, np.inf)
        for k in map(int, np.flatnonzero(size.max(-1) > _FAR * self.unit)):
            worst[k] = np.inf if _is_adrift(p.at(slice(k, k + 1)), x[k], float(self.unit[k])) else worst[k]
        return _Measured(worst, misses[0], misses[1], (left, excuse))


class _Measured(NamedTuple):
    """The conditions of the rule at some points: what no rounding excuses, and (miss, terms) of the others."""

    worst: np.ndarray  # (batch,)
    rows: tuple[np.ndarray, np.ndarray] | None  # (batch, m)
    equal: tuple[np.ndarray, np.ndarray] | None  # (batch, p)
    gradient: tuple[np.ndarray, np.ndarray]  # (batch, n)

    def level(self, floor: RoundingFloor | None = None) -> np.ndarray:
        """The smallest `tol` at which each point is optimal, rounding up to `floor` left aside, (batch,)."""
        worst = self.worst
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            for part, least in zip(self[1:], floor or (0.0, 0.0, 0.0), strict=True):
                if part is not None:
                    worst = np.maximum(worst, _share(part[0] - least, part[1]))
        return worst


def _is_adrift(p: Arrays, x: np.ndarray, unit: float) -> bool:
    """Whether nothing asks for the size of the large variables, and it hides what a row misses, for one problem.

    What asks for it is a bound, an entry of Ax that is not rounding, a row that is not lost in the rounding of its
    terms, or a tight row whose other variables have their size already. Equations that fix several variables together
    are not seen; so a point at which every row holds is left alone until no digit of it can be right.
    """
    size, matrix = np.abs(x), np.concatenate([p.C[0], p.E[0]])
    right, terms = np.concatenate([p.d[0], p.f[0]]), np.abs(matrix) * size
    over = matrix @ x - right
    miss = np.append(np.maximum(over[: len(p.d[0])], 0.0), np.abs(over[len(p.d[0]) :]))
    counts = np.abs(right) > _SEEN * unit * np.abs(matrix).max(-1, initial=0.0)  # others are rounding themselves
    if size.max() <= _LOST * unit and not (counts & (miss > _SEEN * np.abs(right))).any():
        return False
    reach, pull = terms.sum(-1), np.abs(p.A[0]) @ size
    held = (np.abs(p.A[0] @ x) + np.abs(p.b[0]) > _HELD * pull) & (pull > 0)
    held |= (x <= p.lb[0]) | (x >= p.ub[0])
    held |= (terms[np.abs(right) > _HELD * reach] > 0).any(0)
    free, tight = (terms > 0) & ~held, np.abs(over) <= _HELD * reach
    while (last := tight & (free.sum(-1) == 1)).any():
        held |= free[last].any(0)
        free[:, held] = False
    return bool((~held & (size > _LARGE * size.max())).any())


def _pulled(dual: np.ndarray, slack: np.ndarray, rounding: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether every constraint with a multiplier holds with equality but for rounding, and Σ|dual·slack|, (batch,)."""
    pulls = dual != 0
    slack = np.where(pulls, np.abs(slack), 0.0)
    return np.asarray((slack <= rounding).all(-1)), (np.abs(dual) * slack).sum(-1)


def _share(miss: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """The largest miss beside its terms, (batch,) from (batch, k): none where nothing is missed."""
    return np.asarray(np.where(miss > 0, miss / terms, np.where(miss <= 0, 0.0, np.inf)).max(-1, initial=0.0))


def _l1_level(p: Arrays, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """λ + θ with θ ≥ 0 the multiplier of ‖x‖₁ ≤ B that fits best, (batch,)."""
    size = np.abs(x)
    total, count = size.sum(-1), (x != 0).sum(-1)
    fitted = -(np.sign(x) * gradient).sum(-1) / np.maximum(count, 1)
    fitted = np.where(count > 0, fitted, np.abs(gradient).max(-1))
    binds = total >= p.radius * (1 - 1e-6)
    return np.asarray(np.where(binds, np.maximum(fitted, p.penalty), p.penalty))


def _l1_residual(x: np.ndarray, gradient: np.ndarray, level: np.ndarray) -> np.ndarray:
    """The gradient less the nearest subgradient of level·‖x‖₁, (batch, n)."""
    tau = level[:, None]
    off = np.sign(gradient) * np.maximum(np.abs(gradient) - tau, 0.0)
    return np.asarray(np.where(x != 0, gradient + tau * np.sign(x), off))


class Form(NamedTuple):
    """One problem min ½xᵀHx + gᵀx with low ≤ (x, Gx) ≤ high; low = high marks an equation. ℓ1 terms are lifted.

    One multiplier for each of the k bounds and r rows: positive at `high`, negative at `low`.
    """

    H: np.ndarray  # (k, k)
    g: np.ndarray  # (k,)
    G: np.ndarray  # (r, k)
    low: np.ndarray  # (k + r,)
    high: np.ndarray  # (k + r,)


Rounding = Callable[[], tuple[np.ndarray, np.ndarray]]


@np.errstate(invalid="ignore")  # numpy 2.0 warns of products of finite numbers; NaN is refused below
def is_surely_optimal(form: Form, x: np.ndarray, y: np.ndarray, tol: float, rounding: Rounding | None = None) -> bool:
    """A sufficient condition for the rule above in few steps, for one problem without ℓ1 terms.

    Residuals and the gap are compared with |Hx| + |g| first and with all terms only where that fails, as where Hx is
    small because large terms cancel: then its rounding depends on the order of the sum. A point at which Hx + g is the
    rounding of Hx is refused: |H||x| is at most hᵀ|x|·h for a semidefinite H with diagonal h². `rounding` gives how
    inexact the variables and the forces on them are, both (k,), and is asked where a row or a component needs it.
    """
    k = len(x)
    product, size, across = form.H @ x, np.abs(x), form.G @ x
    force = np.abs(product) + np.abs(form.g)
    left = np.abs(product + form.g + y[:k] + y[k:] @ form.G)
    if size.max(initial=0.0) > _FAR:  # perhaps nothing asks for it: left to the rule
        return False
    value = np.concatenate([x, across])
    active = y.nonzero()[0]
    pull = y[active]
    slack = np.abs(value[active] - np.where(pull > 0, form.high[active], form.low[active]))
    if not size @ left + np.abs(pull) @ slack <= tol * (size @ force) and not _gap_is_rounding(
        form, size, left, active, slack
    ):
        return False
    root = np.sqrt(np.abs(form.H.diagonal()))
    drowned = force <= (1e-12 * (root @ size)) * root
    if drowned.any() and form.g[drowned].any():
        return False
    over = np.maximum(value - form.high, form.low - value)
    out = (over > 0).nonzero()[0]
    if len(out) and out[0] < k:
        return False
    off = (left > tol * (force + np.abs(y[:k]))).nonzero()[0]
    return _rows_hold(form, size, over[out], out, tol, rounding) and _forces_cancel(
        form, size, y, left[off], off, tol, rounding
    )


def _gap_is_rounding(form: Form, size: np.ndarray, left: np.ndarray, active: np.ndarray, slack: np.ndarray) -> bool:
    """Whether the duality gap is that of rounding alone: then the rule does not ask for a smaller one."""
    rounding = _EPS * (100 + len(size))
    reach = np.concatenate([size, np.abs(form.G) @ size])[active]
    terms = np.abs(form.H) @ size + np.abs(form.g)
    return bool((left <= rounding * terms).all() and (slack <= rounding * reach).all())


def _rows_hold(
    form: Form, size: np.ndarray, over: np.ndarray, out: np.ndarray, tol: float, rounding: Rounding | None
) -> bool:
    """Whether the rows `out` (places in `form.high`) are violated by rounding only."""
    if not len(out):
        return True
    sizes = np.abs(form.G[out - len(size)])
    reach = np.minimum(np.abs(form.high[out]), np.abs(form.low[out])) + sizes @ size
    if (over <= tol * reach).all():
        return True
    return rounding is not None and bool((over - sizes @ rounding()[0] <= tol * reach).all())


def _forces_cancel(
    form: Form,
    size: np.ndarray,
    y: np.ndarray,
    left: np.ndarray,
    off: np.ndarray,
    tol: float,
    rounding: Rounding | None,
) -> bool:
    """Whether what is left of the forces on the variables `off` is rounding."""
    if not len(off):
        return True
    k, curve = len(size), np.abs(form.H[off])
    excuse = curve @ size + np.abs(form.g[off]) + np.abs(y[off])
    pulls = y[k:].nonzero()[0]
    excuse = excuse + _CANCEL * (np.abs(y[k:][pulls]) @ np.abs(form.G[np.ix_(pulls, off)]))
    if (left <= tol * excuse).all():
        return True
    if rounding is None:
        return False
    inexact, forces = rounding()
    return bool((left - forces[off] - curve @ inexact <= tol * excuse).all())


def proves_infeasible(form: Form, y: np.ndarray) -> bool:
    """Farkas: (I, G)ᵀy = 0 while the bounds that y points at add up to less than nothing.

    What is left of the sum in a component, beside its terms, times 10⁴ must be less than the deficit beside its own:
    then there is no feasible point within 10⁴ times the size that the bounds give to x.
    """
    k = len(form.g)
    bound = np.where(y > 0, form.high, np.where(y < 0, form.low, 0.0))
    if not np.isfinite(y).all() or not np.isfinite(bound).all():
        return False
    left = y[:k] + form.G.T @ y[k:]
    size = np.abs(y[:k]) + np.abs(form.G).T @ np.abs(y[k:])
    terms = bound * y
    share = float(np.divide(np.abs(left), size, out=np.zeros(k), where=size > 0).max(initial=0.0))
    return bool(share <= 1e-13 and terms.sum() < -max(1e4 * share, 1e-14) * np.abs(terms).sum())


def proves_unbounded(form: Form, v: np.ndarray) -> bool:
    """A direction along which the objective falls for ever: Hv = 0, gᵀv < 0, and no bound in the way."""
    if not np.isfinite(v).all() or not v.any():
        return False
    size = np.abs(v)
    flat = np.abs(form.H @ v) <= 1e-13 * (np.abs(form.H) @ size)
    way, reach = np.append(v, form.G @ v), np.append(np.zeros(len(v)), np.abs(form.G) @ size)
    blocked = ((form.high < np.inf) & (way > 1e-13 * reach)) | ((form.low > -np.inf) & (way < -1e-13 * reach))
    fall = form.g * v
    return bool(flat.all() and not blocked.any() and fall.sum() < -1e-9 * np.abs(fall).sum())
