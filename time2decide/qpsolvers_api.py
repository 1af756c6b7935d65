"""The interface of qpsolvers: `solve_qp`, `solve_problem`, `Problem` and what comes back, and a way to register there.

    min ½xᵀPx + qᵀx  subject to  Gx ≤ h,  Ax = b,  lb ≤ x ≤ ub

The names P, q, G, h, A, b are theirs; the multipliers are z of Gx ≤ h, y of Ax = b and z_box of the bounds, positive at
ub and negative at lb. qpsolvers itself need not be installed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from time2decide.core.validation import ArrayLike, InputError, as_tensor, labels_of, validate_choice, validate_labels
from time2decide.qp.plain_arrays import solve_plain_arrays
from time2decide.qp.problem import QP
from time2decide.qp.solution import Solution, Status
from time2decide.qp.sparse import SparseQP
from time2decide.solving import METHODS, solve

#: Sparse matrices are made dense for methods other than ``exact``; beyond this many entries they are refused.
MOST_ENTRIES = 10**8
_MANY, _THIN = 250_000, 0.1  # entries, and the share in use, from which sparse matrices stay sparse
_NAMES = ("P", "q", "G", "h", "A", "b", "lb", "ub")


class ProblemError(InputError):
    """The problem is ill-formed, or its objective has no lower bound."""


@dataclass
class Problem:
    """A quadratic program in the notation of qpsolvers; matrices may be scipy-sparse."""

    P: ArrayLike
    q: ArrayLike
    G: ArrayLike = None
    h: ArrayLike = None
    A: ArrayLike = None
    b: ArrayLike = None
    lb: ArrayLike = None
    ub: ArrayLike = None

    def unpack(self) -> tuple[ArrayLike, ...]:
        """P, q, G, h, A, b, lb, ub."""
        return tuple(getattr(self, name) for name in _NAMES)

    @property
    def is_unconstrained(self) -> bool:
        """Whether there is no constraint at all."""
        return all(getattr(self, name) is None for name in _NAMES[2:])

    @property
    def stays_sparse(self) -> bool:
        """Whether matrices are scipy-sparse and large enough for a sparse factorisation to pay."""
        given = [value for value in (self.P, self.G, self.A) if value is not None]
        if not any(hasattr(value, "toarray") for value in given):
            return False
        entries = sum(float(np.prod(np.shape(value))) for value in given)
        used = sum(value.nnz if hasattr(value, "nnz") else np.count_nonzero(value) for value in given)
        return bool(entries > _MANY and used < _THIN * entries)

    def as_qp(self, sparse: bool = False) -> QP | SparseQP:
        """The same problem as a `QP`, or as a `SparseQP` if asked for, validated."""
        if sparse:
            try:
                return SparseQP(self.P, self.q, self.G, self.h, self.A, self.b, self.lb, self.ub)
            except InputError as error:
                raise _in_their_names(error) from None
        self._check_labels()
        P, q = _dense("P", self.P), _vector("q", self.q)
        n = len(q)
        if P.ndim != 2:
            raise ProblemError(f"P: expected 2 dimensions, found shape {P.shape}")
        if P.shape != (n, n):
            raise ProblemError(f"P: expected shape ({n}, {n}) to match q, found {P.shape}")
        rows, bounds = _pair("G", self.G, "h", self.h, n)
        equal, values = _pair("A", self.A, "b", self.b, n)
        lb, ub = _limit("lb", self.lb, n), _limit("ub", self.ub, n)
        for name, value in (("h", bounds), ("lb", lb), ("ub", ub)):
            if value is not None and np.isnan(value).any():
                raise ProblemError(f"{name}: expected numbers, found NaN")
        try:
            return QP(P, q, rows, bounds, E=equal, f=values, lb=lb, ub=ub)
        except InputError as error:
            raise _in_their_names(error) from None

    def _check_labels(self) -> None:
        """Raise where objects of pandas name variables or rows otherwise than others do."""
        values = dict(zip(_NAMES, self.unpack(), strict=True))
        if not any(hasattr(value, "to_numpy") for value in values.values()):
            return
        variables = {name: labels_of(values[name]) for name in ("P", "G", "A")}
        variables |= {"P's rows": labels_of(values["P"], 0)}
        variables |= {name: _vector_labels(values[name]) for name in ("q", "lb", "ub")}
        try:
            validate_labels(variables, "variables")
            for matrix, right in (("G", "h"), ("A", "b")):
                rows = labels_of(values[matrix], 0) if hasattr(values[matrix], "columns") else None
                validate_labels({f"{matrix}'s rows": rows, right: _vector_labels(values[right])}, "rows")
        except InputError as error:
            raise ProblemError(str(error)) from None


@dataclass
class ProblemSolution:
    """The solution: x and the multipliers y, z and z_box, None where there are no such constraints or no answer."""

    problem: Any
    extras: dict[str, Any] = field(default_factory=dict)
    found: bool | None = None
    obj: float | None = None
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    z: np.ndarray | None = None
    z_box: np.ndarray | None = None
    build_time: float | None = None
    solve_time: float | None = None

    def primal_residual(self) -> float:
        """max(|Ax − b|, Gx − h, lb − x, x − ub, 0); infinite without an answer."""
        return self._residuals()[0]

    def dual_residual(self) -> float:
        """‖Px + q + Gᵀz + Aᵀy + z_box‖∞; infinite without an answer."""
        return self._residuals()[1]

    def duality_gap(self) -> float:
        """|xᵀPx + qᵀx + hᵀz + bᵀy + (the bounds that pull)ᵀz_box|; infinite without an answer."""
        return self._residuals()[2]

    def is_optimal(self, eps_abs: float) -> bool:
        """Whether all three residuals are below `eps_abs`."""
        return max(self._residuals()) < eps_abs

    def _residuals(self) -> tuple[float, float, float]:
        if self.x is None or not self.found:
            return np.inf, np.inf, np.inf
        values = (v if v is None or hasattr(v, "toarray") else _dense("", v) for v in _unpacked(self.problem))
        P, q, G, h, A, b, lb, ub = values
        x = self.x
        gradient, misses, gap = P @ x + q.ravel(), [0.0], float(x @ P @ x + q.ravel() @ x)
        for matrix, right, dual, equation in ((G, h, self.z, False), (A, b, self.y, True)):
            if matrix is not None and right is not None and dual is not None and dual.size:
                matrix = matrix if hasattr(matrix, "toarray") else np.atleast_2d(matrix)
                right = right.ravel()
                miss = matrix @ x - right
                misses.append(float((np.abs(miss) if equation else miss).max()))
                gradient = gradient + matrix.T @ dual
                gap += float(np.where(dual != 0, right, 0.0) @ dual)
        for bound, sign in ((lb, -1.0), (ub, 1.0)):
            if bound is not None:
                limit = np.broadcast_to(bound.ravel(), x.shape)
                misses.append(float((sign * (x - limit)).max()))
                pull = np.zeros_like(x) if self.z_box is None else np.maximum(sign * self.z_box, 0)
                gap += float(np.where(pull > 0, sign * np.where(pull > 0, limit, 0.0) * pull, 0.0).sum())
        if self.z_box is not None and self.z_box.size:
            gradient = gradient + self.z_box
        return max(misses), float(np.abs(gradient).max()), abs(gap)


def _in_their_names(error: InputError) -> ProblemError:
    """The error with the names of qpsolvers."""
    theirs = {"A": "P", "b": "q", "C": "G", "d": "h", "E": "A", "f": "b"}
    name, colon, rest = str(error).partition(":")
    return ProblemError(f"{theirs.get(name, name)}{colon}{rest}")


def solve_problem(
    problem: Any, solver: str = "exact", initvals: ArrayLike = None, verbose: bool = False, **options: Any
) -> Any:
    """Solve a `Problem`, ours or that of qpsolvers, and return the solution in the same notation.

    `solver` is a method of `solve`, `initvals` a point to start from, and `options` go to `solve`, as ``tol``.
    An infeasible problem has ``found = False``; one whose objective has no lower bound raises `ProblemError`.
    """
    validate_choice("solver", solver, METHODS)
    begun = time.perf_counter()
    mine = problem if isinstance(problem, Problem) else Problem(*_unpacked(problem))
    qp = mine.as_qp(sparse=solver == "exact" and mine.stays_sparse)
    initial = None
    if initvals is not None:
        start = _vector("initvals", initvals)
        if start.shape != (qp.n,) or not np.isfinite(start).all():
            raise ProblemError(f"initvals: expected {qp.n} finite numbers, found {start.tolist()[:8]}")
        initial = None if solver == "neural" or isinstance(qp, SparseQP) else (start, np.zeros(qp.m))
    built = time.perf_counter()
    answer = solve(qp, solver, initial=initial, **options)
    solved = time.perf_counter()
    if answer.status == Status.UNBOUNDED:
        raise ProblemError("P, q: expected an objective with a lower bound, found an unbounded problem")
    if verbose:
        print(f"time2decide {solver}: {answer.status}, KKT residual {answer.kkt_residual:.2e}")
    kind: Any = ProblemSolution
    if type(problem).__module__.split(".")[0] == "qpsolvers":
        kind = import_module("qpsolvers").Solution  # their solution for their problem
    result = kind(problem)
    _fill(result, mine, answer)
    result.build_time, result.solve_time = built - begun, solved - built
    return result


def _fill(result: Any, problem: Problem, answer: Solution) -> None:
    result.extras = {"status": str(answer.status)}
    result.found = answer.status == Status.OPTIMAL
    if not result.found:
        return
    result.x, result.obj = answer.x, float(answer.objective)
    result.z = answer.dual if problem.G is not None else np.empty(0)
    result.y = answer.dual_eq if problem.A is not None else np.empty(0)
    result.z_box = answer.dual_box if answer.dual_box is not None else np.empty(0)


def solve_qp(
    P: ArrayLike,
    q: ArrayLike,
    G: ArrayLike = None,
    h: ArrayLike = None,
    A: ArrayLike = None,
    b: ArrayLike = None,
    lb: ArrayLike = None,
    ub: ArrayLike = None,
    solver: str = "exact",
    initvals: ArrayLike = None,
    verbose: bool = False,
    **options: Any,
) -> np.ndarray | None:
    """Minimise ½xᵀPx + qᵀx subject to Gx ≤ h, Ax = b, lb ≤ x ≤ ub, with the signature of qpsolvers.

    `solver` is a method of `solve`. Matrices may be scipy-sparse; large ones stay so with
    the method ``exact``, and `initvals` is not used for them. Entries of h, lb and ub that are
    infinite or beyond ±1e20 mean no constraint. Returns x, or None when no point satisfies the constraints or the
    method did not converge. An objective without a lower bound raises `ProblemError`.
    """
    if isinstance(solver, str) and solver == "exact" and initvals is None and not verbose and not options:
        quick = solve_plain_arrays(P, q, G, h, A, b, lb, ub)
        if quick is not None:
            return quick[0]
    found = solve_problem(Problem(P, q, G, h, A, b, lb, ub), solver, initvals, verbose, **options)
    return None if not found.found else np.asarray(found.x)


def register_in_qpsolvers(name: str = "time2decide") -> None:
    """Make ``qpsolvers.solve_qp(..., solver="time2decide")`` work; qpsolvers has no plugin mechanism of its own."""
    import qpsolvers

    def solve_theirs(problem: Any, initvals: ArrayLike = None, verbose: bool = False, **options: Any) -> Any:
        try:
            return solve_problem(problem, options.pop("method", "exact"), initvals, verbose, **options)
        except ProblemError as error:
            raise qpsolvers.ProblemError(str(error)) from error

    qpsolvers.solvers.solve_function[name] = solve_theirs
    for names in (qpsolvers.available_solvers, qpsolvers.dense_solvers, qpsolvers.sparse_solvers):
        if name not in names:
            names.append(name)


def _unpacked(problem: Any) -> tuple[ArrayLike, ...]:
    missing = [name for name in ("P", "q") if not hasattr(problem, name)]
    if missing:
        raise ProblemError(f"problem: expected a Problem, found {type(problem).__name__}")
    return tuple(getattr(problem, name, None) for name in _NAMES)


def _dense(name: str, value: ArrayLike) -> np.ndarray:
    if type(value) is np.ndarray and value.dtype == np.float64:
        return value
    if hasattr(value, "toarray"):
        if np.prod(value.shape) > MOST_ENTRIES:
            raise ProblemError(
                f"{name}: expected at most {MOST_ENTRIES:g} entries of a sparse matrix, found {value.shape}"
            )
        value = value.toarray()
    try:
        return np.asarray(as_tensor(name, value).detach().cpu().double().numpy())
    except InputError as error:
        raise ProblemError(str(error)) from None


def _vector(name: str, value: ArrayLike) -> np.ndarray:
    """(k,) from (k,), or from a column or row of a matrix."""
    array = _flat(_dense(name, value))
    if array.ndim != 1:
        raise ProblemError(f"{name}: expected 1 dimension, found shape {array.shape}")
    return array


def _vector_labels(value: ArrayLike) -> list[Any] | None:
    """The names of a vector, which may be a column or a row of a DataFrame; one number has none."""
    size = np.size(value) if hasattr(value, "to_numpy") else 0
    return labels_of(value, 0 if np.shape(value)[0] == size else -1) if size > 1 else None


def _flat(array: np.ndarray) -> np.ndarray:
    return array.ravel() if array.ndim == 2 and 1 in array.shape else array


def _limit(name: str, value: ArrayLike, n: int) -> np.ndarray | None:
    if value is None:
        return None
    side = _flat(_dense(name, value))
    if side.shape not in ((), (1,), (n,)):
        raise ProblemError(f"{name}: expected a number or shape ({n},), found {side.shape}")
    return np.broadcast_to(side, (n,))


def _pair(
    matrix_name: str, matrix: ArrayLike, vector_name: str, vector: ArrayLike, n: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Both or neither of a constraint matrix and its right-hand side."""
    if matrix is None and vector is None:
        return None, None
    if matrix is None or vector is None:
        missing = matrix_name if matrix is None else vector_name
        raise ProblemError(f"{missing}: expected together with its other half ({matrix_name} and {vector_name})")
    rows = np.atleast_2d(_dense(matrix_name, matrix))
    values = _vector(vector_name, np.atleast_1d(_dense(vector_name, vector)))
    if rows.shape != (len(values), n):
        raise ProblemError(f"{matrix_name}: expected shape ({len(values)}, {n}), found {rows.shape}")
    return rows, values
