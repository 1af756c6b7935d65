"""One call for every solver: ``solve(qp, method=...)``, and the same under the signature of qpsolvers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from time2decide.attention import FORMS, build, run
from time2decide.attention import METHODS as CONSTRUCTIONS
from time2decide.core.validation import (
    ArrayLike,
    as_tensor,
    expect,
    refuse,
    validate_choice,
    validate_count,
    validate_finite,
    validate_flag,
    validate_positive,
)
from time2decide.qp.exact import Rows, solve_exact, solve_proximally, solve_rows
from time2decide.qp.problem import QP
from time2decide.qp.solution import Solution, Status

#: Every method of `solve`.
METHODS = ("exact", *CONSTRUCTIONS, "neural", "neural+polish")


def solve(
    qp: QP,
    method: str = "exact",
    *,
    steps: int | None = None,
    tol: float | None = None,
    form: str = "state",
    max_steps: int = 200_000,
    check_every: int = 10,
    history: bool = False,
    initial: tuple[ArrayLike, ArrayLike] | None = None,
    **options: Any,
) -> Solution:
    """Solve a batch of quadratic programs.

    Parameters
    ----------
    qp : QP
    method : str
        ``exact`` (DAQP), or a construction: ``gradient`` and ``nesterov`` for class U, ``arrow_hurwicz`` for LC,
        ``ista`` for R, ``projected_gradient`` for C, ``fista`` for R and C, ``admm`` for LC, R and C,
        ``newton_schulz`` for all; or the learned solver for U and LC: ``neural``, and ``neural+polish``, whose
        answers are certified (``Solution.how`` says how each was obtained).
    steps : int, optional
        Run exactly this many layers. By default, layers until the KKT residual is at most `tol`, and for the
        learned solver the depth of its checkpoint (its closing passes come on top).
    tol : float
        KKT residual at which an instance counts as solved: by default 1e-8, and 1e-5 in float32.
    form : {"state", "literal", "classical"}
        How a construction is run: linear attention with cached state, token by token as in the proofs, or the
        classical iteration that it equals.
    max_steps, check_every : int
        Limit on layers, and how often the stopping rule looks at the residual.
    history : bool
        Keep the KKT residual after every layer in ``Solution.history``.
    initial : (x, dual), optional
        Starting point of an iterative method; zeros by default.
    **options
        ``step_size``, ``dual_step`` (step sizes; checked against the conditions for convergence), ``rho``,
        ``alpha``, ``inverse_by`` (ADMM), ``checkpoint`` (a name or folder, for the learned solver).

    Returns
    -------
    Solution
        With ``status`` per instance; nothing is raised for instances without an answer.
    """
    expect(isinstance(qp, QP), "qp", "a QP", type(qp).__name__)
    validate_choice("method", method, METHODS)
    default = 1e-8 if qp.A.dtype == torch.float64 else 1e-5
    tol = default if tol is None else validate_positive("tol", tol)
    history = validate_flag("history", history)
    validate_choice("form", form, FORMS)
    validate_count("max_steps", max_steps)
    validate_count("check_every", check_every)
    if method == "exact" or method.startswith("neural"):
        given = {"steps": steps is not None, "history": history, "initial": initial is not None}
        extra = [*options, *(name for name, is_given in given.items() if is_given)]
        extra = [name for name in extra if method == "exact" or name not in ("steps", "checkpoint")]
        refuse(f"{name}: expected no such option for method {method!r}" for name in extra)
        if method == "exact":
            return solve_exact(qp, tol=tol)
        from time2decide.neural.solver import solve_neural  # only now: the constructions do not need it

        return solve_neural(qp, tol=tol, polish=method == "neural+polish", depth=steps, **options)
    algorithm = build(qp, method, form, **options)
    start = None if initial is None else _starting_point(qp, initial)
    ended = run(
        algorithm,
        qp,
        steps=steps,
        tol=tol,
        max_steps=max_steps,
        check_every=check_every,
        history=history,
        initial=start,
    )
    status = np.where((ended.residual <= tol).cpu().numpy(), Status.OPTIMAL, Status.NOT_CONVERGED).astype("<U16")
    status[ended.infeasible.numpy()] = Status.INFEASIBLE
    return Solution.build(qp, ended.x, ended.dual, status, method, steps=ended.steps.numpy(), history=ended.history)


def _starting_point(qp: QP, initial: tuple[ArrayLike, ArrayLike]) -> tuple[torch.Tensor, torch.Tensor]:
    pair = isinstance(initial, (tuple, list)) and len(initial) == 2
    expect(pair, "initial", "a pair (x, dual)", type(initial).__name__)
    parts = []
    for name, value in zip(("initial x", "initial dual"), initial, strict=True):
        tensor = as_tensor(name, value)
        validate_finite(name, tensor)
        parts.append(tensor.unsqueeze(0) if qp.single and tensor.dim() == 1 else tensor)
    return parts[0], parts[1]


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

    `solver` is a method of `solve`. Matrices may be scipy-sparse; infinite entries of h, lb and ub mean no
    constraint. Returns x, or None when no point satisfies the constraints, the objective has no minimum or the
    method did not converge.
    """
    validate_choice("solver", solver, METHODS)
    P, q = _dense("P", P, 2), _dense("q", q, 1)
    n = len(q)
    expect(P.shape == (n, n), "P", f"shape ({n}, {n}) to match q", P.shape)
    QP(P, q)  # the usual checks of P and q
    rows, bounds = _pair("G", G, "h", h, n)
    equal_rows, values = _pair("A", A, "b", b, n)
    expect(np.isfinite(values).all(), "b", "finite numbers", "NaN or infinity")
    start = np.zeros(n) if initvals is None else _dense("initvals", initvals, 1)
    expect(start.shape == (n,) and np.isfinite(start).all(), "initvals", f"{n} finite numbers", f"{start.tolist()[:8]}")
    for name, limit, sign in (("ub", ub, 1.0), ("lb", lb, -1.0)):
        if limit is not None:
            side = _dense(name, limit, None)
            expect(side.shape in ((), (1,), (n,)), name, f"a number or shape ({n},)", side.shape)
            side = np.broadcast_to(side, (n,))
            rows, bounds = np.vstack([rows, sign * np.eye(n)]), np.append(bounds, sign * side)
    expect(not np.isnan(bounds).any(), "h, lb, ub", "numbers", "NaN")
    if (bounds == -np.inf).any():
        return None
    keep = bounds < np.inf
    rows, bounds = rows[keep], bounds[keep]
    if solver == "exact":
        refuse(f"{name}: expected no such option for solver 'exact'" for name in options)
        return _exact_with_equalities(P, q, rows, bounds, equal_rows, values)
    C = np.vstack([rows, equal_rows, -equal_rows])
    d = np.concatenate([bounds, values, -values])
    qp = QP(P, q, C, d) if len(d) else QP(P, q)
    initial = None if initvals is None else (start, np.zeros(len(d)))
    answer = solve(qp, solver, initial=initial, **options)
    if verbose:
        print(f"time2decide {solver}: {answer.status}, KKT residual {answer.kkt_residual:.2e}")
    return answer.x if answer.status == Status.OPTIMAL else None


def _exact_with_equalities(
    P: np.ndarray, q: np.ndarray, rows: np.ndarray, bounds: np.ndarray, equal_rows: np.ndarray, values: np.ndarray
) -> np.ndarray | None:
    """DAQP with equality rows as such; its answer is checked. With singular P its multipliers are good to 1e-5 only."""
    G, upper = np.vstack([rows, equal_rows]), np.concatenate([bounds, values])
    equal = np.arange(len(upper)) >= len(bounds)
    problem = Rows(P[None], q[None], G[None], upper[None], equal)
    for attempt in (solve_rows, partial(solve_proximally, weight=1e-6), partial(solve_proximally, weight=1e-4)):
        x, dual, flag = attempt(problem)
        point, multipliers = x[0], dual[0]
        violation = np.where(equal, np.abs(G @ point - upper), G @ point - upper)
        reach = np.abs(upper) + np.abs(G) @ np.abs(point)
        gradient = np.abs(P @ point + q + G.T @ multipliers).max()
        steep = (np.abs(q) + np.abs(P) @ np.abs(point) + np.abs(G.T) @ np.abs(multipliers)).max()
        if flag[0] in (1, 2) and np.all(violation <= 1e-6 * reach.max(initial=0)) and gradient <= 1e-4 * steep:
            return point
    return None


def _dense(name: str, value: ArrayLike, dims: int | None) -> np.ndarray:
    tensor = as_tensor(name, value.toarray() if hasattr(value, "toarray") else value)
    array = np.asarray(tensor.detach().cpu().double().numpy())
    expect(dims is None or array.ndim == dims, name, f"{dims} dimension{'s' * (dims == 2)}", f"shape {array.shape}")
    return array


def _pair(
    matrix_name: str, matrix: ArrayLike, vector_name: str, vector: ArrayLike, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Both or neither of a constraint matrix and its right-hand side; empty arrays when neither is given."""
    if matrix is None and vector is None:
        return np.zeros((0, n)), np.zeros(0)
    halves = {matrix_name: matrix, vector_name: vector}
    both = f"expected together with its other half ({matrix_name} and {vector_name})"
    refuse(f"{name}: {both}" for name, half in halves.items() if half is None)
    rows = np.atleast_2d(_dense(matrix_name, matrix, None))
    values = np.atleast_1d(_dense(vector_name, vector, None))
    expect(values.ndim == 1, vector_name, "1 dimension", f"shape {values.shape}")
    expect(rows.shape == (len(values), n), matrix_name, f"shape ({len(values)}, {n})", rows.shape)
    expect(np.isfinite(rows).all(), matrix_name, "finite numbers", "NaN or infinity")
    return rows, values
