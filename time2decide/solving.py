"""One call for every solver: ``solve(qp, method=...)``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.attention import FORMS, build, run
from time2decide.attention import METHODS as CONSTRUCTIONS
from time2decide.attention.methods import has_definite_curvature
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
from time2decide.qp.exact import solve_exact, solve_warm
from time2decide.qp.gradients import outside_graphs, qp_needs_gradient, solution_with_gradient
from time2decide.qp.problem import QP
from time2decide.qp.solution import STATUS_TEXT, Solution, Status
from time2decide.qp.sparse import SparseQP, solve_sparse_qp

#: Every method of `solve`.
METHODS = ("exact", *CONSTRUCTIONS, "neural", "neural+polish")
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-5}


@outside_graphs
def solve(
    qp: QP | SparseQP,
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
    qp : QP or SparseQP
        Methods other than ``exact`` take equations and bounds as rows of Cx ≤ d, and no `SparseQP`.
    method : str
        ``exact`` (DAQP, and PIQP where that gives up), or a construction: ``gradient`` and ``nesterov`` for class U,
        ``arrow_hurwicz`` for LC, ``ista`` for R, ``projected_gradient`` for C, ``fista`` for R and C, ``admm`` and
        ``newton_schulz`` for all four; or the learned solver for U and LC: ``neural``, and ``neural+polish``, whose
        answers are certified (``Solution.how`` says how each was obtained).
    steps : int, optional
        Run exactly this many layers. By default, layers until the answer is optimal to `tol`, and for the learned
        solver the depth of its checkpoint (its closing passes come on top).
    tol : float
        An answer is optimal if every optimality condition holds to `tol`, relative to the terms it is summed from (the
        rule is in ``time2decide.qp.certificate``). By default 1e-8, 1e-5 in float32, and 1e-4 for ``neural``, which
        computes in float32.
    form : {"state", "literal", "classical"}
        How a construction is run: linear attention with cached state, token by token as in the proofs, or the
        classical iteration that it equals.
    max_steps, check_every : int
        Limit on layers, and how often the stopping rule looks at the answer.
    history : bool
        Keep the KKT residual after every layer in ``Solution.history``.
    initial : (x, dual), optional
        Starting point of an iterative method, or warm start of ``exact`` and ``neural+polish``, which start from the
        constraints that are active there; zeros by default.
    **options
        ``step_size``, ``dual_step`` (step sizes; checked against the conditions for convergence), ``rho``,
        ``alpha``, ``inverse_by`` (ADMM), ``checkpoint`` (a name or folder, for the learned solver).

    Returns
    -------
    Solution
        With ``status`` per instance; nothing is raised for instances without an answer. Where the data requires
        gradients, x and the multipliers of ``exact`` and ``neural+polish`` carry them; the other methods refuse.
    """
    validate_choice("method", method, METHODS)
    if isinstance(qp, SparseQP):
        expect(method == "exact", "method", "'exact' for a sparse problem", repr(method))
        chosen = {"steps": steps is not None, "history": history, "initial": initial is not None}
        extra = [*options, *(name for name, is_set in chosen.items() if is_set)]
        refuse(f"{name}: expected no such option for a sparse problem" for name in extra)
        return solve_sparse_qp(qp, _TOLERANCE[torch.float64] if tol is None else validate_positive("tol", tol))
    expect(isinstance(qp, QP), "qp", "a QP or a SparseQP", type(qp).__name__)
    expect(not qp.traced, "qp", "data outside the transforms of torch.func (QPLayer works within)", "traced data")
    differentiable = method in ("exact", "neural+polish")
    where = "data that requires no gradient (methods 'exact' and 'neural+polish' are differentiable)"
    expect(differentiable or not qp_needs_gradient(qp), "qp", where, f"gradients asked for with method {method!r}")
    default = 1e-4 if method == "neural" else _TOLERANCE[qp.A.dtype]
    tol = default if tol is None else validate_positive("tol", tol)
    history = validate_flag("history", history)
    validate_choice("form", form, FORMS)
    validate_count("max_steps", max_steps)
    validate_count("check_every", check_every)
    iterative = method in CONSTRUCTIONS
    if iterative and steps is not None:
        validate_count("steps", steps, least=0)
    if not iterative:
        chosen = {"steps": steps is not None, "history": history, "initial": initial is not None and method == "neural"}
        extra = [*options, *(name for name, is_set in chosen.items() if is_set)]
        extra = [name for name in extra if method == "exact" or name not in ("steps", "checkpoint")]
        refuse(f"{name}: expected no such option for method {method!r}" for name in extra)
    if method == "exact" and initial is not None:
        quick = solve_warm(qp, initial, tol)
        if quick is not None:
            return quick
    start = None if initial is None else _starting_point(qp, initial)
    if iterative:
        limits = {"steps": steps, "tol": tol, "max_steps": max_steps, "check_every": check_every, "history": history}
        return _split_duals(qp, _iterate(qp.as_inequalities(), method, form, start, limits, options))
    if method == "exact":
        answer = solve_exact(qp, tol=tol, initial=start)
    else:
        from time2decide.neural.solver import solve_neural  # only now: the constructions do not need it

        options |= {"polish": method == "neural+polish", "depth": steps, "initial": start}
        answer = _split_duals(qp, solve_neural(qp.as_inequalities(), tol=tol, **options))
    return solution_with_gradient(qp, answer) if qp_needs_gradient(qp) else answer


def _split_duals(qp: QP, solution: Solution) -> Solution:
    """The solution of `qp` from that of ``qp.as_inequalities()``."""
    if solution.qp is qp:
        return solution
    rows, equal, box = qp.split_dual(torch.as_tensor(solution.dual).reshape(len(qp), -1))
    parts = Solution.build(qp, qp.b, rows, equal, box, np.zeros(len(qp)), "")
    return replace(solution, qp=qp, dual=parts.dual, dual_eq=parts.dual_eq, dual_box=parts.dual_box)


def _iterate(
    qp: QP, method: str, form: str, start: tuple[Tensor, Tensor] | None, limits: dict[str, Any], options: dict[str, Any]
) -> Solution:
    """A construction on the problems with definite A; the others of a batch are not converged, x is NaN there."""
    usable = has_definite_curvature(qp)
    whole = bool(usable.all()) or not bool(usable.any())  # none: the method says why
    part = qp if whole else qp[usable]
    first = start if whole or start is None else (start[0][usable], start[1][usable])
    x, dual, steps, status, history = run(build(part, method, form, **options), part, initial=first, **limits)
    if not whole:

        def among(values: Tensor, rest: float) -> Tensor:
            every = values.new_full((len(qp), *values.shape[1:]), rest)
            every[usable.to(values.device)] = values
            return every

        x, dual, steps = among(x, torch.nan), among(dual, torch.nan), among(steps, 0)
        history = None if history is None else among(history.mT, torch.nan).mT
        solved, status = status, np.full(len(qp), Status.NOT_CONVERGED, dtype=STATUS_TEXT)
        status[usable.cpu().numpy()] = solved
    return Solution.build(qp, x, dual, None, None, status, method, steps=steps.numpy(), history=history)


def _starting_point(qp: QP, initial: tuple[ArrayLike, ArrayLike]) -> tuple[Tensor, Tensor]:
    """x (batch, n) and the multipliers (batch, rows) of ``qp.as_inequalities()``; short ones are of Cx ≤ d alone."""
    pair = isinstance(initial, (tuple, list)) and len(initial) == 2
    expect(pair, "initial", "a pair (x, dual)", type(initial).__name__)
    parts = []
    for name, value in zip(("initial x", "initial dual"), initial, strict=True):
        tensor = as_tensor(name, value)
        validate_finite(name, tensor)
        parts.append(tensor.unsqueeze(0) if qp.single and tensor.dim() == 1 else tensor)
    x, dual = parts
    rows = qp.as_inequalities().m
    for name, found, lengths in (("x", x, (qp.n,)), ("dual", dual, (qp.m, rows))):
        fits = found.shape in [(len(qp), length) for length in lengths]
        expect(fits, f"initial {name}", f"shape {(len(qp), lengths[0])}", tuple(found.shape))
    if dual.shape[1] < rows:
        dual = torch.cat([dual, dual.new_zeros(len(qp), rows - dual.shape[1])], dim=1)
    return x, dual
