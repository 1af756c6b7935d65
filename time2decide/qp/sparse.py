"""Sparse problems: scipy.sparse matrices from the data to a certified answer; nothing of size n × n is formed.

    minimise ½xᵀAx + bᵀx   subject to   Cx ≤ d,  Ex = f,  lb ≤ x ≤ ub

PIQP's interior point shows an active set, in units in which rows and columns are of size one. The sparse KKT system of
that set gives the exact answer, and the rule of `certificate`, with the same terms, judges it. Where no attempt is
certified and the problem is small enough, the dense route has the last word, and its proofs of infeasibility.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.linalg import splu

from time2decide.core.validation import InputError, as_floats, expect
from time2decide.qp.certificate import Form, proves_infeasible
from time2decide.qp.engines import Entries, Units, connected_parts, equilibration, inexactness, units_of
from time2decide.qp.exact import solve_exact
from time2decide.qp.problem import LARGEST, NO_BOUND, QP
from time2decide.qp.solution import KKT, Solution, Status

_EPS = float(np.finfo(float).eps)
_CANCEL = 1e-3  # share of the tolerance for what is left of multipliers that cancel each other, as in `certificate`
_FAR = 1e8  # times the numbers of a problem: x beyond it is not certified here
_SHIFT = 1e-8  # regularisation of KKT systems, in units in which their rows are of size one
_SHARP = 1e-12  # level at which nothing better is looked for
_SNAP = (1e-14, 1e-11, 1e-8)  # entries below these shares of the largest may be rounding
_SMALL, _ENOUGH = 1e-9, 4  # absolute residual, and points of one attempt, after which a sharp answer is taken
_ROUNDS = 3  # active sets that are tried one after the other
_DENSE = 4_000_000  # entries of A, C and E up to which the dense route is asked
_PIQP = ({"eps_abs": 1e-10, "eps_rel": 1e-10}, {"eps_abs": 1e-12, "eps_rel": 1e-12, "preconditioner_scale_cost": True})
Vectors = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # x and the multipliers of C, E and the bounds


@dataclass(frozen=True, eq=False)
class SparseQP:
    """One quadratic program whose matrices are scipy.sparse, checked when it is made; `solve` takes it as a `QP`.

    Parameters
    ----------
    A : (n, n) sparse, symmetric positive semidefinite; b : (n,)
    C, d : (m, n) sparse and (m,); E, f : (p, n) sparse and (p,)
        Both or neither of a pair. Rows of Cx ≤ d without a bound are left out of the work.
    lb, ub : (n,) or number, optional
        Infinite entries, and those beyond ±1e20, mean no bound.
    """

    A: Any
    b: np.ndarray
    C: Any = None
    d: Any = None
    E: Any = None
    f: Any = None
    lb: Any = None
    ub: Any = None
    single: bool = field(default=True, init=False)
    numpy: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        n = int(np.size(self.b))
        self._set(A=_matrix("A", self.A, n), b=_numbers("b", self.b, (n,)))
        expect(self.A.shape == (n, n), "A", f"shape ({n}, {n}) to match b", self.A.shape)
        for names in (("C", "d"), ("E", "f")):
            given = [getattr(self, name) is not None for name in names]
            expect(given[0] == given[1], names[not given[1]], f"together with {names[given[1]]}", "nothing")
            matrix = _matrix(names[0], getattr(self, names[0]) if given[0] else sparse.csc_matrix((0, n)), n)
            right = _numbers(names[1], getattr(self, names[1]) if given[0] else np.zeros(0), (matrix.shape[0],))
            self._set(**{names[0]: matrix, names[1]: right})
        expect(bool(np.isfinite(self.f).all() and np.isfinite(self.b).all()), "b, f", "finite numbers", "others")
        for name, absent in (("lb", -np.inf), ("ub", np.inf)):
            value = getattr(self, name)
            side = np.full(n, absent) if value is None else _numbers(name, value, (n,))
            self._set(**{name: np.where(np.abs(side) >= NO_BOUND, np.copysign(np.inf, side), side)})
        self._set(d=np.where(self.d >= NO_BOUND, np.inf, self.d))
        _check_semidefinite(self.A)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return 1

    @property
    def n(self) -> int:
        """Number of variables."""
        return len(self.b)

    @property
    def m(self) -> int:
        """Number of rows of C."""
        return len(self.d)

    def dense(self) -> QP:
        """The same problem as a `QP`."""
        rows = (self.C.toarray(), self.d) if self.m else (None, None)
        equal = {"E": self.E.toarray(), "f": self.f} if len(self.f) else {}
        return QP(self.A.toarray(), self.b, *rows, **equal, lb=self.lb, ub=self.ub)

    def kkt(self, x: np.ndarray, rows: np.ndarray, equal: np.ndarray, box: np.ndarray) -> KKT:
        """The optimality conditions at a point, from the data of the problem alone."""
        slack = self.C @ x - self.d
        stationarity = self.A @ x + self.b + self.C.T @ rows + self.E.T @ equal + box
        excess = np.concatenate([slack, np.abs(self.E @ x - self.f), x - self.ub, self.lb - x])
        with np.errstate(invalid="ignore"):
            away = np.where(box > 0, self.ub - x, np.where(box < 0, x - self.lb, 0.0))
            products = np.append(np.where(rows != 0, rows * slack, 0.0), box * away)
        largest = np.abs(stationarity), np.maximum(excess, 0.0), np.maximum(-rows, 0.0), np.abs(products)
        return KKT(*(torch.tensor([part.max(initial=0.0)]) for part in largest))

    @np.errstate(all="ignore")
    def residual(self, x: np.ndarray, rows: np.ndarray, equal: np.ndarray, box: np.ndarray) -> float:
        """The largest of primal residual, dual residual and duality gap, absolute; infinite without a point."""
        slack = self.C @ x - self.d, np.abs(self.E @ x - self.f), self.lb - x, x - self.ub
        dual = np.abs(self.A @ x + self.b + self.C.T @ rows + self.E.T @ equal + box).max()
        side = np.where(box > 0, self.ub, np.where(box < 0, self.lb, 0.0))
        gap = x @ (self.A @ x) + self.b @ x + np.where(rows != 0, self.d, 0.0) @ rows + self.f @ equal + side @ box
        worst = max(float(dual), abs(float(gap)), *(float(part.max(initial=0.0)) for part in slack))
        return worst if np.isfinite(worst) else np.inf

    def objective(self, x: np.ndarray) -> float:
        """½ xᵀAx + bᵀx."""
        return float(x @ (self.A @ x) / 2 + self.b @ x)


def _matrix(name: str, value: Any, n: int) -> Any:
    matrix = sparse.csc_matrix(value, dtype=float)
    expect(matrix.shape[1] == n, name, f"{n} columns to match b", f"shape {matrix.shape}")
    largest = float(np.abs(matrix.data).max(initial=0.0))
    expect(largest <= LARGEST, name, f"finite numbers of at most {LARGEST:g}", f"{largest:g}")  # NaN is not
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _numbers(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = as_floats(name, value)
    array = np.broadcast_to(array, shape) if array.ndim == 0 else array.reshape(-1)
    expect(array.shape == shape, name, f"shape {shape}", array.shape)
    expect(not np.isnan(array).any(), name, "numbers", "NaN")
    return np.ascontiguousarray(array)


def _check_semidefinite(A: Any) -> None:
    """Raise unless A is symmetric and, but for rounding, has pivots that are not negative."""
    top = float(np.abs(A.data).max(initial=0.0))
    off = float(np.abs((A - A.T).data).max(initial=0.0))
    expect(off <= 1e-9 * top, "A", "a symmetric matrix", f"entries that differ by {off:g} from those across")
    diagonal = A.diagonal()
    lifted = diagonal + 1e-9 * np.maximum(diagonal, 1e-9 * top)
    if A.nnz > np.count_nonzero(diagonal):
        used = np.flatnonzero(np.diff(A.indptr))
        if (lifted[used] > 0).all():
            root = sparse.diags(1 / np.sqrt(lifted[used]))
            unit = (root @ A[np.ix_(used, used)] @ root + 1e-9 * sparse.identity(len(used))).tocsc()
            options = {"SymmetricMode": True}
            factor = splu(unit, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
            lifted = factor.U.diagonal()
    if lifted.min(initial=0.0) < 0:
        raise InputError("A: expected positive semidefinite, found a negative eigenvalue")


class _Terms:
    """The problem with what every look at a point needs: sizes of the entries, and units."""

    def __init__(self, p: SparseQP) -> None:
        self.kept = np.flatnonzero(p.d < np.inf)
        self.p = p if len(self.kept) == p.m else _with_rows(p, self.kept)
        self.A, self.C, self.E = abs(self.p.A), abs(self.p.C), abs(self.p.E)
        self.lb, self.ub = (np.where(np.isfinite(side), np.abs(side), 0.0) for side in (p.lb, p.ub))

    @cached_property
    def form(self) -> Form:
        """low ≤ (x, Gx) ≤ high with sparse matrices."""
        p, G = self.p, sparse.vstack([self.p.C, self.p.E], format="csc")
        low = np.concatenate([p.lb, np.full(p.m, -np.inf), p.f])
        return Form(p.A, p.b, G, low, np.concatenate([p.ub, p.d, p.f]))

    @cached_property
    def units(self) -> Units:
        """In which rows and columns are of size one."""
        return units_of(self.form, self.entries, self.factors)

    @cached_property
    def factors(self) -> np.ndarray:
        """Factors of the columns, then of the rows, that make both of size one."""
        return equilibration(self.entries, len(self.form.low))

    @cached_property
    def entries(self) -> Entries:
        """The entries of the matrices, row by row."""
        stacked = sparse.vstack([self.p.A, self.form.G], format="csr").tocoo()
        return Entries(stacked.row, stacked.col, np.abs(stacked.data))

    @cached_property
    def parts(self) -> np.ndarray:
        """The connected part of the problem that each variable belongs to."""
        return connected_parts(self.p.n, self.entries)

    def level(self, point: Vectors, tol: float) -> float:
        """The tolerance at which a point is optimal by the rule of `certificate`, rounding aside as in `exact`."""
        p, (x, rows, equal, box) = self.p, point
        if not all(np.isfinite(part).all() for part in point) or rows.min(initial=0.0) < 0:
            return np.inf
        size, rounding = np.abs(x), _EPS * (100 + len(x))
        product, terms = p.A @ x, self.A @ size + np.abs(p.b)
        left = np.abs(product + p.b + p.C.T @ rows + p.E.T @ equal + box)
        excuse = terms + np.abs(box) + _CANCEL * (self.C.T @ np.abs(rows) + self.E.T @ np.abs(equal))
        slack, reach = p.d - p.C @ x, np.abs(p.d) + self.C @ size
        off, span = np.abs(p.f - p.E @ x), np.abs(p.f) + self.E @ size
        room = np.where(box > 0, np.abs(p.ub - x), np.where(box < 0, np.abs(x - p.lb), 0.0))
        worst = max(_share(p.lb - x, self.lb + size), _share(x - p.ub, self.ub + size))
        gap = size @ left + rows @ np.abs(slack) + np.abs(equal) @ off + np.abs(box) @ room
        tight = (np.abs(slack)[rows > 0] <= rounding * reach[rows > 0]).all() and (off <= rounding * span).all()
        exact = tight and (room <= rounding * size).all() and (left <= rounding * terms).all()
        if not exact:
            worst = max(worst, _share(np.array([gap]), np.array([size @ (np.abs(product) + np.abs(p.b))])))
        if size.max(initial=0.0) > _FAR * self._natural:
            return np.inf
        found = max(worst, _share(left, excuse), _share(-slack, reach), _share(off, span))
        if found <= _SHARP or tol < _SHARP or worst > tol:
            return found
        unit = self.factors[: p.n]
        inexact, forces = inexactness(self.A, p.b, x, unit, self.parts)
        left, slack = left - forces - self.A @ inexact, slack + self.C @ inexact
        return max(worst, _share(left, excuse), _share(-slack, reach), _share(off - self.E @ inexact, span))

    @cached_property
    def _natural(self) -> float:
        """The size that the numbers of the problem suggest for x."""
        sides = np.concatenate([np.abs(self.p.d), np.abs(self.p.f), self.lb, self.ub, [0.0]])
        curve = float(self.A.data.max(initial=0.0))
        return float(max(sides.max(), np.abs(self.p.b).max() / curve if curve > 0 else 0.0)) or np.inf


def _share(miss: np.ndarray, terms: np.ndarray) -> float:
    """The largest miss beside its terms: none where nothing is missed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(miss > 0, miss / terms, 0.0).max(initial=0.0))


def _with_rows(p: SparseQP, kept: np.ndarray) -> SparseQP:
    """The problem with these rows of C alone."""
    other = object.__new__(SparseQP)
    other._set(**{**vars(p), "C": p.C[kept], "d": p.d[kept]})
    return other


class SparseAnswer(NamedTuple):
    """x and multipliers, the tolerance at which they are optimal, and whether infeasibility is proved."""

    point: Vectors
    level: float
    infeasible: bool = False


@np.errstate(all="ignore")  # of numbers at the ends of what floats hold; the certificate judges what comes of them
def solve_sparse(p: SparseQP, tol: float) -> SparseAnswer:
    """The best certified answer of a few attempts; the multipliers are those of all rows of C."""
    terms = _Terms(p)
    none = (np.full(p.n, np.nan), np.full(terms.p.m, np.nan), np.full(len(p.f), np.nan), np.full(p.n, np.nan))
    best, proved = SparseAnswer(none, np.inf), bool((p.lb > p.ub).any())
    for settings in () if proved else _PIQP:
        found, infeasible = _interior_point(terms.p, settings)
        if infeasible and proves_infeasible(terms.form, np.concatenate([found[3], found[1], found[2]])):
            proved = True
            break
        least = np.inf  # absolute residual of the best, among answers that are sharp
        for turn, point in enumerate(_candidates(terms, found)):
            level = terms.level(point, tol)
            residual = terms.p.residual(*point) if level <= _SHARP else np.inf
            if residual < least or (least == np.inf and (level < best.level or not np.isfinite(best.point[0]).all())):
                best, least = SparseAnswer(point, level), residual
            if best.level <= _SHARP and (least <= _SMALL or turn >= _ENOUGH):
                break
        if best.level <= min(tol, 1e-10):
            break
    x, rows, equal, box = none if proved else best.point
    whole = np.zeros(p.m) if np.isfinite(x).all() else np.full(p.m, np.nan)
    whole[terms.kept] = rows
    return SparseAnswer((x, whole, equal, box), best.level, proved)


def _interior_point(p: SparseQP, settings: dict[str, Any]) -> tuple[Vectors, bool]:
    """PIQP's last point, and whether it takes the problem for infeasible."""
    import piqp

    solver = piqp.SparseSolver()
    gap = {"eps_duality_gap_abs": settings["eps_abs"], "eps_duality_gap_rel": settings["eps_rel"]}
    for name, value in {**settings, **gap}.items():
        setattr(solver.settings, name, value)
    solver.setup(p.A, p.b, p.E, p.f, p.C, np.full(p.m, -np.inf), p.d, p.lb, p.ub)
    status, found = solver.solve(), solver.result
    box = np.array(found.z_bu) - np.array(found.z_bl)
    point = np.array(found.x), np.maximum(np.array(found.z_u), 0.0), np.array(found.y), box
    return point, status == piqp.PIQP_PRIMAL_INFEASIBLE


def _candidates(terms: _Terms, point: Vectors) -> Iterator[Vectors]:
    """The answers on the active set that a point shows, then on the one that this answer shows, the point itself with
    every constraint on one side, and all without entries that are nothing but rounding."""
    raw = _inside(terms.p, point)
    found = []
    for _ in range(_ROUNDS):
        point = _polished(terms, point)
        if not np.isfinite(point[0]).all():
            break
        found.append(point)
        yield point
    low, high, tight = _active_set(terms, raw)
    x = np.where(low, terms.p.lb, np.where(high, terms.p.ub, raw[0]))
    separated = x, np.where(tight, raw[1], 0.0), raw[2], np.where(low | high, raw[3], 0.0)
    yield separated
    yield raw
    for level in _SNAP:
        for base in (*found[:1], separated):
            rounded = _snapped(terms, base, level)
            yield rounded
            yield _polished(terms, rounded)


def _snapped(terms: _Terms, point: Vectors, level: float) -> Vectors:
    """Entries below a share of the largest, in units of size one, set to zero."""
    units, (n, m), x = terms.units, (terms.p.n, terms.p.m), point[0]
    stretch = units.stretch[n : n + m], units.stretch[n + m :], units.stretch[:n]
    top = max(float(np.abs(part / by).max(initial=0.0)) for part, by in zip(point[1:], stretch, strict=True))
    duals = [np.where(np.abs(part / by) <= level * top, 0.0, part) for part, by in zip(point[1:], stretch, strict=True)]
    size = np.abs(x / units.unit)
    return _inside(terms.p, (np.where(size <= level * size.max(initial=0.0), 0.0, x), duals[0], duals[1], duals[2]))


def _inside(p: SparseQP, point: Vectors) -> Vectors:
    """Within the bounds, and no multiplier where there is no bound."""
    x, rows, equal, box = point
    box = np.where(np.isfinite(p.ub) | (box < 0), box, 0.0)
    return np.clip(x, p.lb, p.ub), np.maximum(rows, 0.0), equal, np.where(np.isfinite(p.lb) | (box > 0), box, 0.0)


def _polished(terms: _Terms, point: Vectors) -> Vectors:
    """The solution of the equations of an active set: fixed variables take their bounds exactly."""
    p, (x, rows, equal, _) = terms.p, point
    low, high, tight = _active_set(terms, point)
    fixed = low | high
    free, r = np.flatnonzero(~fixed), np.flatnonzero(tight)
    start = np.where(low, p.lb, np.where(high, p.ub, 0.0))
    N = sparse.vstack([p.C[r], p.E], format="csr")
    values, by = (
        np.append(p.d[r], p.f),
        np.concatenate([terms.factors[free], terms.factors[p.n :][np.append(r, p.m + np.arange(len(p.f)))]]),
    )
    inner = np.flatnonzero(np.diff(N[:, free].tocsr().indptr))
    guess = np.append(rows[r], equal)
    M = N[inner][:, free]
    K = sparse.bmat([[p.A[free][:, free], M.T], [M, None]], format="csc") if len(inner) else p.A[free][:, free].tocsc()
    right = np.append(-(p.b + p.A @ start)[free], (values - N @ start)[inner])
    answer = _refined(
        K, right, by[np.append(np.arange(len(free)), len(free) + inner)], len(free), np.append(x[free], guess[inner])
    )
    start[free], guess[inner] = answer[: len(free)], answer[len(free) :]
    new = np.zeros(p.m)
    new[r] = np.maximum(guess[: len(r)], 0.0)
    equal = guess[len(r) :]
    g = p.A @ start + p.b + p.C.T @ new + p.E.T @ equal
    down, up = np.where(low, np.minimum(-g, 0.0), 0.0), np.where(high, np.maximum(-g, 0.0), 0.0)
    return np.clip(start, p.lb, p.ub), new, equal, np.where(low & (p.lb == p.ub), -g, down + up)


def _active_set(terms: _Terms, point: Vectors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Variables at their lower and upper bounds, and tight rows: where a multiplier beside the largest is larger than
    the slack beside the largest x, in units of size one."""
    p, units, (x, rows, _, box) = terms.p, terms.units, point
    n, stretch = p.n, units.stretch
    far = float(np.abs(x / units.unit).max(initial=0.0))
    strong = max(np.abs(rows / stretch[n : n + p.m]).max(initial=0.0), np.abs(box / stretch[:n]).max(initial=0.0))
    level = units.slope * far / strong if far > 0 and strong > 0 else 1.0
    pull = level * units.length / (units.slope * stretch**2)
    low = (p.lb == p.ub) | (x - p.lb < -box * pull[:n]) | ((x <= p.lb) & (box <= 0))
    high = ~low & ((p.ub - x < box * pull[:n]) | ((x >= p.ub) & (box >= 0)))
    return low, high, p.d - p.C @ x < rows * pull[n : n + p.m]


def _refined(K: Any, right: np.ndarray, by: np.ndarray, k: int, answer: np.ndarray) -> np.ndarray:
    """K⁻¹ right near a guess: K + shift is factorised in units of size one, the answer refined against K itself."""
    if not len(right):
        return answer
    scale = sparse.diags(by)
    shift = sparse.diags(np.append(np.full(k, _SHIFT), np.full(len(right) - k, -_SHIFT)), format="csc")
    unit = (scale @ K @ scale + shift).tocsc()
    try:
        factor = splu(unit, diag_pivot_thresh=0.0, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    except RuntimeError:  # singular in spite of the shift
        return answer
    best, least = answer, np.inf
    for _ in range(30):
        left = by * (right - K @ answer)
        miss = float(np.abs(left).max())
        if not miss < 0.9 * least:
            break
        best, least = answer, miss
        answer = answer + by * factor.solve(left)
    return best


def solve_sparse_qp(p: SparseQP, tol: float) -> Solution:
    """The solution of a sparse problem; of a small one that stays open, what the dense route says."""
    found = solve_sparse(p, tol)
    if found.level <= tol:
        return Solution(p, *found.point, str(Status.OPTIMAL), "exact")
    if found.infeasible:
        return Solution(p, *found.point, str(Status.INFEASIBLE), "exact")
    if p.n * (p.n + p.m + len(p.f)) > _DENSE:
        return Solution(p, *found.point, str(Status.NOT_CONVERGED), "exact")
    answer = solve_exact(p.dense(), tol=tol)
    equal = np.zeros(0) if answer.dual_eq is None else answer.dual_eq
    return Solution(p, answer.x, answer.dual, equal, answer.dual_box, answer.status, "exact")
