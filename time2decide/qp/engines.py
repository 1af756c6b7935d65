"""The solvers that answers come from, one problem at a time, and the linear system that makes an answer exact.

DAQP, an active-set method, is fast and exact on small and medium problems with definite A. PIQP, an interior-point
method, takes singular and large ones. HiGHS takes linear programs and the linear programs that prove a problem
infeasible or unbounded. None is believed: `certificate` judges what they return.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import lapack
from scipy.sparse.linalg import splu

try:
    import daqp
except ImportError:  # the compiled kernel and PIQP do without it
    daqp = None

from time2decide.qp.certificate import Arrays, Form, OptimalityRule, Point, RoundingFloor
from time2decide.qp.problem import CholeskyFactor, cholesky_factor

HAS_DAQP = daqp is not None
_NO_BOUND = 1e30  # DAQP's infinity
_DAQP = {"primal_tol": 1e-11, "dual_tol": 1e-12, "iter_limit": 10_000}
_LOOSE = {"primal_tol": 1e-8, "dual_tol": 1e-10, "iter_limit": 1_000}  # where the rounding of DAQP is larger
_PIQP = {
    "eps_abs": 1e-10,
    "eps_rel": 1e-12,
    "eps_duality_gap_abs": 1e-10,
    "eps_duality_gap_rel": 1e-13,
    "max_iter": 250,
}
_ROUNDING = 1e-12  # of the largest term, in units of size one
_SHIFT = 1e-8  # regularisation of singular KKT systems, in units in which their rows are of size one
_THIN = 0.1  # share of entries in use below which a sparse factorisation pays, if there are many
_MANY, _MANY_LU = 10_000, 100_000  # entries from which on PIQP's sparse solver and a sparse LU pay
_WHITE = 48  # variables from which on a change of coordinates pays
_PROXIMAL = (1e-4, 1e-6)  # weights of the rounds from an interior point to an active set
_EQUALITY = 5  # DAQP's mark of an equation


class EngineAnswer(NamedTuple):
    """Answer of an engine to a `Form`."""

    x: np.ndarray  # (k,)
    y: np.ndarray  # (k + r,), the multipliers
    sure: bool = True  # whether the engine takes it for the answer, or gave up there


def lift_l1(p: Arrays, i: int) -> Form:
    """Problem i with its ℓ1 terms as linear ones: t ≥ |x|, then λ·1ᵀt in the objective and 1ᵀt ≤ B as a row."""
    A, b, C, d, E, f, lb, ub, penalty, radius = (array[i] for array in p)
    G, low, high = np.vstack([C, E]), np.append(np.full(len(d), -np.inf), f), np.append(d, f)
    if not penalty and radius == np.inf:
        return Form(A, b, G, np.append(lb, low), np.append(ub, high))
    n, eye = len(b), np.eye(len(b))
    H = np.zeros((2 * n, 2 * n))
    H[:n, :n] = A
    extra = np.block([[eye, -eye], [-eye, -eye]])  # x ≤ t, −x ≤ t
    if radius < np.inf:
        extra = np.vstack([extra, np.append(np.zeros(n), np.ones(n))])
    above = np.append(np.zeros(2 * n), radius)[: len(extra)]
    G = np.vstack([np.hstack([G, np.zeros_like(G)]), extra])
    low = np.concatenate([lb, np.full(n, -np.inf), low, np.full(len(extra), -np.inf)])
    high = np.concatenate([ub, np.full(n, np.inf), high, above])
    return Form(H, np.append(b, np.full(n, penalty)), G, low, high)


def unlift_l1(p: Arrays, x: np.ndarray, y: np.ndarray) -> Point:
    """The point (batch of one) of an answer to `lift_l1`."""
    n, m, equal, k = p.b.shape[1], p.d.shape[1], p.f.shape[1], len(x)
    return Point(x[None, :n], np.maximum(y[None, k : k + m], 0), y[None, k + m : k + m + equal], y[None, :n])


def by_daqp(form: Form, start: EngineAnswer | None = None, factor: CholeskyFactor | None = None) -> EngineAnswer | None:
    """DAQP's answer, or None where it has none.

    `start` is a point near the answer, `factor` what `cholesky_factor` says of H, where that is known.
    """
    if not HAS_DAQP:
        return None
    k, low, high = len(form.g), form.low, form.high
    bounded = bool(low[:k].max() > -np.inf or high[:k].min() < np.inf)
    if not bounded:  # leave the bounds out where there are none
        low, high = low[k:], high[k:]
    equal = low == high
    sides = np.minimum(high, _NO_BOUND), np.maximum(low, -_NO_BOUND), _EQUALITY * equal.astype(np.int32)
    L, singular, diagonal = factor or cholesky_factor(form.H)
    white = not singular and k >= _WHITE and not diagonal  # DAQP itself makes use of a diagonal H
    if white:
        matrices = _whitened(L, form.g, np.vstack([np.eye(k), form.G]) if bounded else form.G)
    else:
        matrices = tuple(np.ascontiguousarray(array) for array in (form.H, form.g, form.G))
    more: dict[str, Any] = {}
    if start is not None:
        more["primal_start"] = np.ascontiguousarray(np.tril(L).T @ start.x if white else start.x, dtype=float)
    if k < _WHITE and np.count_nonzero(equal) > 1:  # DAQP's own rule leaves residuals of 1e-10 here
        more["eq_reduction"] = 1
    # DAQP adds proximal rounds to a singular problem, which tight tolerances end too early
    for settings in (_LOOSE, _DAQP) if singular else (_DAQP, _LOOSE):
        x, _, flag, info = daqp.solve(*matrices, *sides, **more, **settings)
        if flag > 0:
            break
    else:
        return None
    x = lapack.dtrtrs(L, x, lower=1, trans=1)[0] if white else x
    return _at_bounds(form, x, info["lam"] if bounded else np.concatenate([np.zeros(k), info["lam"]]), bounded)


def _at_bounds(form: Form, x: np.ndarray, y: np.ndarray, bounded: bool) -> EngineAnswer:
    """DAQP's answer within the bounds, with active ones met exactly, also where they are written as rows."""
    k = len(x)
    if bounded:
        low, high = form.low[:k], form.high[:k]
        x = np.where(y[:k] > 0, high, np.where(y[:k] < 0, low, np.minimum(np.maximum(x, low), high)))
    rows = y[k:]
    active = rows.nonzero()[0]
    bound = np.where(rows[active] > 0, form.high[k:][active], form.low[k:][active])
    return EngineAnswer(x if bound.all() else _put_on_rows(x, form.G[active], bound), y)


def _put_on_rows(x: np.ndarray, rows: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """x with active rows of one entry, which are bounds, met exactly: zero stays zero."""
    used = rows != 0
    single = used.sum(axis=1) == 1
    if single.any():
        x = x.copy()
        column = used[single].argmax(axis=1)
        x[column] = bound[single] / rows[single, column]
    return x


def _whitened(L: np.ndarray, g: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """The matrices of DAQP in z = Lᵀx, in which A = LLᵀ is the identity: LAPACK forms rows·L⁻ᵀ faster than DAQP."""
    return np.eye(len(g)), lapack.dtrtrs(L, g, lower=1)[0], lapack.dtrtrs(L, rows.T, lower=1)[0].T


def rows_by_daqp(
    A: np.ndarray, b: np.ndarray, C: np.ndarray, d: np.ndarray, factor: CholeskyFactor
) -> EngineAnswer | None:
    """DAQP on Cx ≤ d alone, for definite A, with the multipliers of the rows."""
    if not HAS_DAQP:
        return None
    sides = d, np.full(len(d), -_NO_BOUND), np.zeros(len(d), dtype=np.int32)
    white = len(b) >= _WHITE and not factor.diagonal
    matrices = _whitened(factor.L, b, C) if white else (A, b, C)
    x, _, flag, info = daqp.solve(*matrices, *sides, **_DAQP)
    if flag <= 0:
        return None
    x = lapack.dtrtrs(factor.L, x, lower=1, trans=1)[0] if white else x
    y = np.maximum(info["lam"], 0.0)
    if not d.all():  # where a bound is zero, rounding is all there is to compare with
        active = y.nonzero()[0]
        x = _put_on_rows(x, C[active], d[active])
    return EngineAnswer(x, y)


def by_piqp(form: Form) -> EngineAnswer | None:
    """PIQP's last point: the one it calls solved, or the one where it gave up. None where it sees no answer."""
    import piqp  # where DAQP is enough, it need not be loaded

    k = len(form.g)
    rows = form.low[k:] < form.high[k:]
    finite = np.abs(np.append(form.low, form.high))
    if (finite[finite < np.inf] >= _NO_BOUND).any():  # numbers that PIQP takes for infinity
        return None
    thin = is_sparse(form)
    solver = piqp.SparseSolver() if thin else piqp.DenseSolver()
    store = sparse.csc_matrix if thin else np.asfortranarray
    for name, value in _PIQP.items():
        setattr(solver.settings, name, value)
    low, high = form.low[k:], form.high[k:]
    some, equations = bool(rows.any()), bool((~rows).any())
    solver.setup(
        store(form.H),
        form.g,
        store(form.G[~rows]) if equations else None,
        high[~rows] if equations else None,
        store(form.G[rows]) if some else None,
        low[rows] if some else None,
        high[rows] if some else None,
        form.low[:k],
        form.high[:k],
    )
    status = solver.solve()
    if status in (piqp.PIQP_PRIMAL_INFEASIBLE, piqp.PIQP_DUAL_INFEASIBLE):
        return None
    found = solver.result
    y = np.empty(len(form.low))
    y[:k] = found.z_bu - found.z_bl
    y[k:][rows] = found.z_u - found.z_l if some else 0.0
    y[k:][~rows] = found.y if equations else 0.0
    x = np.array(found.x)
    return EngineAnswer(x, y, status == piqp.PIQP_SOLVED) if np.isfinite(x).all() and np.isfinite(y).all() else None


def is_sparse(form: Form) -> bool:
    """Whether sparse factorisations are worth their set-up: many variables, few of the entries in use."""
    size = form.H.size + form.G.size
    return size > _MANY and bool(np.count_nonzero(form.H) + np.count_nonzero(form.G) < _THIN * size)


def crossover(form: Form, x: np.ndarray) -> Iterator[EngineAnswer]:
    """From an interior point to an active set: DAQP on x ← argmin f(x) + w/2 ‖x − x_before‖², for a scaled form.

    Where answers are not unique, this is the one nearest to `x`; near an answer a round or two are enough.
    """
    for weight in _PROXIMAL:
        definite = form.H + weight * np.eye(len(form.g))
        answer = by_daqp(form._replace(H=definite, g=form.g - weight * x))
        if answer is None:
            return
        yield answer
        x = answer.x


def by_highs(form: Form) -> EngineAnswer | None:
    """HiGHS' vertex of a linear program."""
    k = len(form.g)
    found = _linear_program(form.g, form)
    if found is None or found.status != 0:
        return None
    y = np.zeros(len(form.low))
    y[:k] = -(found.lower.marginals + found.upper.marginals)
    equal = form.low[k:] == form.high[k:]
    above, below = ~equal & (form.high[k:] < np.inf), ~equal & (form.low[k:] > -np.inf)
    y[k:][equal] = -found.eqlin.marginals if equal.any() else 0.0
    pulls = -found.ineqlin.marginals if (above | below).any() else np.zeros(0)
    y[k:][above] += pulls[: above.sum()]
    y[k:][below] -= pulls[above.sum() :]
    return EngineAnswer(np.asarray(found.x), y)


def _linear_program(cost: np.ndarray, form: Form):  # type: ignore[no-untyped-def]
    """scipy's result of min costᵀx over the constraints of a form: rows above, then rows below, then equations."""
    from scipy.optimize import OptimizeWarning, linprog  # slow to import

    k = len(cost)
    low, high = form.low[k:], form.high[k:]
    equal = low == high
    above, below = ~equal & (high < np.inf), ~equal & (low > -np.inf)
    G = np.vstack([form.G[above], -form.G[below]])
    h = np.append(high[above], -low[below])
    bounds = np.stack([form.low[:k], form.high[:k]], axis=1)
    if (bounds[:, 0] > bounds[:, 1]).any():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        return linprog(
            cost,
            G if len(h) else None,
            h if len(h) else None,
            form.G[equal] if equal.any() else None,
            high[equal] if equal.any() else None,
            bounds,
            method="highs",
        )


class Units(NamedTuple):
    """x = unit·x̂, y = slope·stretch·ŷ and bound = length/stretch·bound̂, from a scaled form back to the given one."""

    unit: np.ndarray  # (k,)
    stretch: np.ndarray  # (k + r,)
    length: float
    slope: float

    def back(self, answer: EngineAnswer) -> EngineAnswer:
        """An answer of the scaled form in the given units."""
        return EngineAnswer(answer.x * self.unit, answer.y * (self.slope * self.stretch), answer.sure)


class Entries(NamedTuple):
    """The entries in use of (H; G): rows, columns and sizes."""

    row: np.ndarray  # of int, H first
    column: np.ndarray  # of int
    size: np.ndarray  # |value|


def entries_of(*matrices: np.ndarray) -> Entries:
    """The entries in use of matrices, one above the other."""
    stacked = np.vstack(matrices)
    place = np.flatnonzero((stacked != 0).ravel())  # far faster than np.nonzero of two dimensions
    row, column = np.divmod(place, stacked.shape[1])
    return Entries(row, column, np.abs(stacked.ravel()[place]))


def equilibration(entries: Entries, count: int, rounds: int = 4) -> np.ndarray:
    """Factors of the columns, then of the rows, that make the KKT matrix of size one, (count,): Ruiz' method."""
    row, column, size = entries
    by = np.ones(count)
    for _ in range(rounds):
        now, top = size * by[row] * by[column], np.zeros(count)
        np.maximum.at(top, column, now)
        np.maximum.at(top, row, now)
        top[top == 0] = 1.0
        by /= np.sqrt(top)
    return by


def units_of(form: Form, entries: Entries, by: np.ndarray) -> Units:
    """Units in which rows, columns and objective are of size one.

    `by` are the factors of `equilibration`; one unit of length for x makes bounds of order one as well.
    """
    k = len(form.g)
    row, column, size = entries
    stretch = np.append(1 / by[:k], by[k:])
    sizes = np.abs(np.append(form.low, form.high) * np.append(stretch, stretch))
    sizes = sizes[(sizes > 0) & (sizes < np.inf)]
    length = float(np.exp(np.median(np.log(sizes)))) if len(sizes) else 1.0
    steepest = float((size * by[row] * by[column])[row < k].max(initial=0))
    slope = max(steepest * length, float(np.abs(form.g * by[:k]).max(initial=0))) or 1.0
    return Units(length * by[:k], stretch, length, slope)


def scaled_form(form: Form, units: Units) -> Form:
    """The same problem in these units."""
    k = len(form.g)
    column, row = 1 / units.stretch[:k], units.stretch[k:]
    H, G = form.H * column * column[:, None], form.G * column * row[:, None]
    low, high = form.low * units.stretch, form.high * units.stretch
    return Form(
        H * (units.length / units.slope), form.g * column / units.slope, G, low / units.length, high / units.length
    )


def snapped_answer(p: Arrays, point: Point, units: Units, level: float, least: float = 0.0) -> Point:
    """Entries of x and of the multipliers below `level` times the largest, in units of size one, set to zero.

    The largest x is at least `least`: at a cone's apex all of it is rounding.
    """
    n, m = p.b.shape[1], p.d.shape[1]
    k = len(units.unit)
    rows = slice(k, k + m), slice(k + m, k + m + p.f.shape[1])

    def cut(value: np.ndarray, unit: np.ndarray, top: float) -> np.ndarray:
        return np.where(np.abs(value / unit) <= level * top, 0.0, value)

    pulls = [
        (point.rows, units.stretch[rows[0]]),
        (point.equal, units.stretch[rows[1]]),
        (point.box, units.stretch[:n]),
    ]
    largest = max(float(np.abs(value / unit).max(initial=0)) for value, unit in pulls)
    top = max(float(np.abs(point.x / units.unit[:n]).max(initial=0)), least)
    return Point(cut(point.x, units.unit[:n], top), *(cut(value, unit, largest) for value, unit in pulls))


def connected_parts(n: int, entries: Entries) -> np.ndarray:
    """The connected part of the problem that each variable belongs to, (n,) of int: the smallest index in it."""
    row, column, _ = entries
    label, before = np.arange(n), None
    while before is None or not np.array_equal(label, before):
        before = label
        lowest = np.full(row[-1] + 1 if len(row) else 0, n)
        np.minimum.at(lowest, row, label[column])
        label = label.copy()
        np.minimum.at(label, column, lowest[row])
        label = label[label]  # halves what is left of a long chain
    return label


def inexactness(
    A: np.ndarray, b: np.ndarray, x: np.ndarray, unit: np.ndarray, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rounding of variables and of forces: that of the largest one that each is coupled with, both (n,).

    Sizes are compared in units of size one, and only within a connected part of the problem: what happens in one part
    does not touch the others.
    """

    def rounding_in_part(values: np.ndarray) -> np.ndarray:
        top = np.zeros(len(parts))
        np.maximum.at(top, parts, values)
        return _ROUNDING * top[parts]

    size = np.abs(x)
    return rounding_in_part(size / unit) * unit, rounding_in_part((np.abs(A) @ size + np.abs(b)) * unit) / unit


def rounding_floor(rule: OptimalityRule, point: Point, unit: np.ndarray, parts: np.ndarray) -> RoundingFloor:
    """The part of each residual that can be rounding."""
    A, C, E = rule.A[0], rule.C[0], rule.E[0]
    inexact, forces = inexactness(A, rule.b[0], point.x[0], unit, parts)
    return RoundingFloor((C @ inexact)[None], (E @ inexact)[None], (forces + A @ inexact)[None])


Pair = tuple[np.ndarray, np.ndarray]  # x (n,) and the multipliers of some rows


class _Active(NamedTuple):
    """Active set of an approximate point: variables with a known value, active rows, signs, the ball."""

    fixed: np.ndarray  # (n,) bool
    value: np.ndarray  # (n,)
    rows: np.ndarray  # (m,) bool
    signs: np.ndarray  # (n,) of the variables that are neither fixed nor zero, with ℓ1 terms only
    ball: bool


def separated_answer(p: Arrays, point: Point, units: Units) -> Point:
    """An interior point with every constraint on one side: at its bound, or without a multiplier."""
    active = _active_set(p, point, units)
    return point._replace(
        x=np.where(active.fixed, active.value, point.x),
        rows=np.where(active.rows, point.rows, 0.0),
        box=np.where(active.fixed, point.box, 0.0),
    )


def polish_active(p: Arrays, point: Point, units: Units) -> Point:
    """The exact answer on the active set that an approximate point (batch of one) shows.

    What is fixed by a bound, or zero by an ℓ1 term, takes its value exactly; the rest solves the KKT system

        [A_FF  G_Fᵀ] [x_F]   [−b_F − A_FZ x_Z]
        [G_F    0  ] [ y ] = [ values        ]

    and stays as near to the given point as it lets it.
    """
    A, b, C, d, E, f, lb, ub, penalty, radius = (array[0] for array in p)
    x, rows, equal, _ = (array[0] for array in point)
    active = _active_set(p, point, units)
    ball = [active.signs[None]] if active.ball else []
    G = np.vstack([C[active.rows], E, *ball])
    values = np.concatenate([d[active.rows], f, [radius] if active.ball else []])
    guess = np.concatenate([rows[active.rows], equal, [0.0] if active.ball else []])
    new_x, y = _equality_solve(A, b + penalty * active.signs, G, values, active, (x, guess))
    count = int(active.rows.sum())
    new_rows = np.zeros_like(rows)
    new_rows[active.rows] = y[:count]
    new_equal = y[count : count + len(f)]
    gradient = A @ new_x + b + C.T @ new_rows + E.T @ new_equal
    if penalty or active.ball:  # an ℓ1 term explains part of the gradient at a bound
        tau = penalty + (y[-1] if active.ball else 0.0)
        rest = np.sign(gradient) * np.maximum(np.abs(gradient) - tau, 0)
        gradient = np.where(new_x == 0, rest, gradient + tau * np.sign(new_x))
    low, high = active.fixed & (active.value == lb), active.fixed & (active.value == ub)
    box = np.where(
        low & high, -gradient, np.where(low, np.minimum(-gradient, 0), np.where(high, np.maximum(-gradient, 0), 0))
    )
    return Point(new_x[None], np.maximum(new_rows, 0)[None], new_equal[None], box[None])


def _active_set(p: Arrays, point: Point, units: Units) -> _Active:
    """A constraint is active where its multiplier beside the largest one is larger than its slack beside the largest x.

    Both are compared in units of size one.
    """
    A, b, C, d, E, _, lb, ub, penalty, radius = (array[0] for array in p)
    x, rows, equal, box = (array[0] for array in point)
    n, k = len(x), len(units.unit)
    far = float(np.abs(x / units.unit[:n]).max(initial=0))
    strong = max(
        float(np.abs(rows / units.stretch[k : k + len(d)]).max(initial=0)),
        float(np.abs(box / units.stretch[:n]).max(initial=0)),
    )
    level = units.slope * far / strong if far > 0 and strong > 0 else 1.0
    pull = level * units.length / (units.slope * units.stretch**2)  # multiplier to slack, in given units
    low = (lb == ub) | (x - lb < -box * pull[:n]) | ((x <= lb) & (box <= 0))
    high = ~low & ((ub - x < box * pull[:n]) | ((x >= ub) & (box >= 0)))
    fixed, value = low | high, np.where(low, lb, np.where(high, ub, 0.0))
    tight = d - C @ x < rows * pull[k : k + len(d)]
    if not penalty and radius == np.inf:
        return _Active(fixed, value, tight, np.zeros(n), False)
    size = np.abs(x)
    gradient = A @ x + b + C.T @ rows + E.T @ equal + box
    ball = bool(size.sum() >= radius * (1 - 1e-5))
    tau = max(penalty, float(np.abs(gradient[~fixed]).max(initial=0))) if ball else penalty
    zero = (tau - np.abs(gradient)) * pull[:n] > size  # the multipliers of x ≤ t and −x ≤ t are both there
    zero |= size == 0
    fixed, value = fixed | zero, np.where(zero & ~fixed, 0.0, value)
    return _Active(fixed, value, tight, np.where(fixed, np.sign(value), np.sign(x)), ball)


def _equality_solve(
    A: np.ndarray, b: np.ndarray, G: np.ndarray, values: np.ndarray, active: _Active, guess: Pair
) -> Pair:
    """x and y of min ½xᵀAx + bᵀx with Gx = values and some variables fixed, near a guess.

    K + δ·diag(I, −I) is factorised in units in which its rows are of size one, δ = 0 unless K is singular or sparse,
    and the guess is refined against K itself.
    """
    fixed, free = active.fixed, ~active.fixed
    x, y = np.where(fixed, active.value, 0.0), guess[1].copy()
    inner = (G[:, free] != 0).any(axis=1)  # the other rows say nothing of x and keep their multipliers
    G, values = G[inner], values[inner]
    k, r = int(free.sum()), len(values)
    if not k:
        return x, y
    K = np.zeros((k + r, k + r))
    K[:k, :k] = A[np.ix_(free, free)]
    K[k:, :k] = G[:, free]
    K[:k, k:] = G[:, free].T
    right = np.append(-b[free] - A[np.ix_(free, fixed)] @ x[fixed], values - G[:, fixed] @ x[fixed])
    unit = np.ones(k + r)
    for _ in range(4):  # symmetric equilibration
        top = np.abs(K * unit * unit[:, None]).max(axis=1, initial=0)
        unit = unit / np.sqrt(np.where(top > 0, top, 1.0))
    apply, singular = _factorised(K * unit * unit[:, None], k)
    answer = np.append(guess[0][free], y[inner])
    best, least = answer, np.inf
    for _ in range(40 if singular else 5):
        left = unit * (right - K @ answer)
        miss = float(np.abs(left).max())
        if not miss < (0.9 if singular else 1.0) * least:
            break
        best, least = answer, miss
        answer = answer + unit * apply(left)
    x[free], y[inner] = best[:k], best[k:]
    return x, y


def _factorised(S: np.ndarray, k: int) -> tuple[Callable[[np.ndarray], np.ndarray], bool]:
    """S⁻¹ as a function, for a KKT matrix with k variables, and whether S was shifted for it."""
    shift = np.append(np.full(k, _SHIFT), np.full(len(S) - k, -_SHIFT))
    if S.size > _MANY_LU and np.count_nonzero(S) < _THIN * S.size:
        shifted = sparse.csc_matrix(S) + sparse.diags(shift, format="csc")
        return splu(shifted, diag_pivot_thresh=0.1, options={"SymmetricMode": True}).solve, True
    lu, pivots, info = lapack.dgetrf(S)
    singular = info != 0 or lapack.dgecon(lu, np.abs(S).sum(axis=0).max())[0] < 1e-13
    if singular:
        lu, pivots, _ = lapack.dgetrf(S + np.diag(shift))
    return lambda right: lapack.dgetrs(lu, pivots, right)[0], singular
