"""Derivatives of the answer with respect to every part of the problem, and a layer for networks.

Near an answer at which no constraint is active by accident, the active set stays as it is, and x and the multipliers
are a smooth function of the data: the solution of a linear system. Its derivative is that of the answer (the implicit
function theorem). At a degenerate answer, where a constraint holds with equality and a multiplier of zero or active
rows depend on each other, there is no derivative; one of the one-sided ones is given, with a `DegenerateWarning`.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.validation import ArrayLike, validate_flag, validate_positive
from time2decide.qp.certificate import Arrays, Point, batch_times, transposed_times
from time2decide.qp.exact import solve_exact
from time2decide.qp.problem import FIELDS, QP
from time2decide.qp.solution import Solution, Status

_WEAK = 1e-9  # slack and multiplier below this share of their terms: active by accident


class DegenerateWarning(UserWarning):
    """The answer has no derivative: a constraint is active by accident, or active rows depend on each other."""


def qp_needs_gradient(qp: QP) -> bool:
    """Whether the answer must carry derivatives."""
    return (
        not qp.numpy
        and torch.is_grad_enabled()
        and any(getattr(qp, name) is not None and getattr(qp, name).requires_grad for name in FIELDS)
    )


def solution_with_gradient(qp: QP, solution: Solution) -> Solution:
    """The same solution, with x and multipliers as differentiable functions of the data of `qp`."""
    parts = [torch.as_tensor(v).reshape(len(qp), -1) for v in (solution.x, solution.dual)]
    zeros = [qp.b.new_zeros(len(qp), 0 if qp.E is None else qp.E.shape[1]), torch.zeros_like(qp.b)]
    for value, zero in zip((solution.dual_eq, solution.dual_box), zeros, strict=True):
        parts.append(zero if value is None else torch.as_tensor(value).reshape(len(qp), -1))
    solved = torch.from_numpy(np.atleast_1d(solution.status) == Status.OPTIMAL)
    apply: Any = _Answer.apply
    x, dual, equal, box = apply(solved, *(part.detach() for part in parts), *(getattr(qp, name) for name in FIELDS))
    built = Solution.build(qp, x, dual, equal, box, np.atleast_1d(solution.status), solution.method)
    return replace(solution, x=built.x, dual=built.dual, dual_eq=built.dual_eq, dual_box=built.dual_box)


class _Answer(torch.autograd.Function):
    """Passes a finished answer on and differentiates it."""

    @staticmethod
    def forward(ctx: Any, solved: Tensor, x: Tensor, rows: Tensor, equal: Tensor, box: Tensor, *fields: Tensor) -> Any:
        ctx.solved, ctx.like = solved.numpy(), x
        ctx.present = [field is not None for field in fields]
        ctx.save_for_backward(x, rows, equal, box, *(field for field in fields if field is not None))
        return x.clone(), rows.clone(), equal.clone(), box.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        saved = [tensor.detach().cpu().double() for tensor in ctx.saved_tensors]
        data = iter(saved[4:])
        qp = object.__new__(QP)
        for name, there in zip(FIELDS, ctx.present, strict=True):
            setattr(qp, name, next(data) if there else None)
        point = Point(*(tensor.numpy() for tensor in saved[:4]))
        wanted = [np.ascontiguousarray(g.detach().cpu().double().numpy()) for g in upstream]
        found = _backward(Arrays.of(qp), point, ctx.solved, wanted)
        gradients = [
            torch.from_numpy(found[name]).to(ctx.like) if there and needed else None
            for name, there, needed in zip(FIELDS, ctx.present, ctx.needs_input_grad[5:], strict=True)
        ]
        return None, None, None, None, None, *gradients


def _backward(p: Arrays, point: Point, solved: np.ndarray, wanted: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The gradient of each field, from those of x, dual, dual_eq and dual_box."""
    x, rows, equal, box = (np.where(solved[:, None], part, 0.0) for part in point)
    gx, g_rows, g_equal, g_box = (np.where(solved[:, None], part, 0.0) for part in wanted)
    fixed, at_bound, active, signs, ball = _active(p, Point(x, rows, equal, box), solved)
    m, equations = p.d.shape[1], p.f.shape[1]
    pinned = np.where(at_bound, -g_box, 0.0)  # dz at a bound is −d(gradient)
    # rows of N: the active ones of C first, then E, then the ball
    order = np.argsort(~active, axis=1, kind="stable")
    counts = active.sum(1)
    most = int(counts.max(initial=0))
    N = np.concatenate(
        [np.take_along_axis(p.C, order[:, :most, None], 1), p.E, signs[:, None] * ball[:, None, None]], 1
    )
    used = np.concatenate([np.arange(most) < counts[:, None], np.ones((len(x), equations), bool), ball[:, None]], 1)
    picked = np.take_along_axis(np.where(active, g_rows, 0.0), order[:, :most], 1)
    w = np.concatenate([picked, g_equal, np.zeros((len(x), 1))], 1) + batch_times(N, pinned)
    v = gx + batch_times(p.A, pinned)
    u, s = _solve(p.A, N, used, fixed, v, np.where(used, w, 0.0), solved)
    u = np.where(fixed, pinned, u)
    y = np.concatenate([np.take_along_axis(np.where(active, rows, 0.0), order[:, :most], 1), equal], 1)
    dN = y[:, :, None] * u[:, None, :] + s[:, :-1, None] * x[:, None, :]  # of rows and equations
    dC, dd = np.zeros_like(p.C), np.zeros_like(p.d)
    np.put_along_axis(dC, order[:, :most, None], np.where(used[:, :most, None], dN[:, :most], 0.0), 1)
    np.put_along_axis(dd, order[:, :most], np.where(used[:, :most], -s[:, :most], 0.0), 1)
    moved = np.where(at_bound, v + batch_times(p.A, np.where(fixed, 0.0, u)) + transposed_times(N, s), 0.0)
    outer = u[:, :, None] * x[:, None, :]
    return {
        "A": (outer + outer.transpose(0, 2, 1)) / 2,
        "b": u,
        "C": dC if m else np.zeros_like(p.C),
        "d": dd,
        "E": dN[:, most:],
        "f": -s[:, most:-1],
        "lb": np.where(x == p.lb, moved, 0.0),
        "ub": np.where((x == p.ub) & (x != p.lb), moved, 0.0),
        "l1_penalty": (signs * u).sum(1),
        "l1_radius": np.where(ball, -s[:, -1], 0.0),
    }


def _active(p: Arrays, point: Point, solved: np.ndarray) -> tuple[np.ndarray, ...]:
    """Fixed variables, those at a bound, active rows of C, signs of free variables (ℓ1), whether the ball binds."""
    x, rows, equal, box = point
    size = np.abs(x)
    terms = batch_times(np.abs(p.A), size) + np.abs(p.b) + transposed_times(np.abs(p.C), rows) + np.abs(box)
    slack, reach = p.d - batch_times(p.C, x), np.abs(p.d) + batch_times(np.abs(p.C), size)
    active = rows > 0
    touching = (x == p.lb) | (x == p.ub)
    at_bound = touching & ((box != 0) | (p.lb == p.ub))
    weak = ((slack <= _WEAK * reach) & ~active).any(1)
    weak |= (active & (rows * np.abs(p.C).max(2, initial=0) <= _WEAK * terms.max(1, keepdims=True))).any(1)
    weak |= (touching & (np.abs(box) <= _WEAK * terms) & (p.lb != p.ub)).any(1)
    fixed, signs, ball = at_bound, np.zeros_like(x), np.zeros(len(x), bool)
    if p.sparse:
        gradient = batch_times(p.A, x) + p.b + transposed_times(p.C, rows) + transposed_times(p.E, equal) + box
        ball = size.sum(1) >= p.radius * (1 - 1e-9)
        fixed = at_bound | (x == 0)
        signs = np.sign(x)
        level = np.where(ball, np.abs(gradient).max(1, initial=0), p.penalty)
        weak |= ((x == 0) & ~at_bound & (np.abs(gradient) >= level[:, None] * (1 - _WEAK))).any(1)
    if (weak & solved).any():
        _warn(int(np.flatnonzero(weak & solved)[0]), "a constraint is active by accident")
    return fixed, at_bound, active, signs, ball


def _solve(
    A: np.ndarray, N: np.ndarray, used: np.ndarray, fixed: np.ndarray, v: np.ndarray, w: np.ndarray, solved: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """u (batch, n) and s (batch, r) of the adjoint system; singular ones by least squares, with a warning."""
    from time2decide.qp.adjoint import adjoint  # compiled: only where derivatives are asked for

    order = np.argsort(~used, axis=1, kind="stable")
    packed = np.ascontiguousarray(np.take_along_axis(N, order[:, :, None], 1))
    free = np.argsort(fixed, axis=1, kind="stable")
    u, s_packed, good = np.zeros_like(v), np.zeros_like(w), np.empty(len(v), np.bool_)
    sides = np.ascontiguousarray(np.take_along_axis(w, order, 1))
    adjoint(np.ascontiguousarray(A), packed, used.sum(1), free, (~fixed).sum(1), v, sides, u, s_packed, good)
    s = np.zeros_like(w)
    np.put_along_axis(s, order, s_packed, 1)
    for i in map(int, np.flatnonzero(~good & solved)):
        loose, rows = ~fixed[i], used[i]
        k, r = int(loose.sum()), int(rows.sum())
        K = np.zeros((k + r, k + r))
        K[:k, :k], K[k:, :k] = A[i][np.ix_(loose, loose)], N[i][np.ix_(rows, loose)]
        K[:k, k:] = K[k:, :k].T
        answer, _, rank, _ = np.linalg.lstsq(K, -np.append(v[i][loose], w[i][rows]), rcond=1e-12)
        if rank < k + r:
            _warn(i, "its active constraints depend on each other, or its objective is flat")
        u[i][loose], s[i][rows] = answer[:k], answer[k:]
    return u, s


def _warn(index: int, why: str) -> None:
    warnings.warn(f"the answer of problem {index} has no derivative: {why}", DegenerateWarning, stacklevel=2)


class QPLayer(nn.Module):
    """min ½xᵀPx + qᵀx subject to Gx ≤ h, Ax = b, lb ≤ x ≤ ub as a layer of a network.

    All arguments may carry a batch dimension, may be left out from G on, and may require gradients; answers are exact
    and so are their derivatives. P must be symmetric, and its gradient is.

    Parameters
    ----------
    duals : bool
        Return (x, z, y, z_box) with the multipliers of Gx ≤ h, Ax = b and the bounds, instead of x alone.
    tol : float
        Tolerance of `solve`.
    check : bool
        False skips the checks of values in every forward pass.

    Raises
    ------
    ValueError
        In `forward`, where a problem of the batch is infeasible or unbounded: a loss of NaN would be found too late.
    """

    def __init__(self, *, duals: bool = False, tol: float = 1e-8, check: bool = True) -> None:
        super().__init__()
        self.duals, self.check = validate_flag("duals", duals), validate_flag("check", check)
        self.tol = validate_positive("tol", tol)

    def forward(
        self,
        P: ArrayLike,
        q: ArrayLike,
        G: ArrayLike = None,
        h: ArrayLike = None,
        A: ArrayLike = None,
        b: ArrayLike = None,
        lb: ArrayLike = None,
        ub: ArrayLike = None,
    ) -> Any:
        """x (batch, n), or (x, z, y, z_box)."""
        qp = QP(P, q, G, h, E=A, f=b, lb=lb, ub=ub, check=self.check)
        answer = solve_exact(qp, tol=self.tol)
        status = np.atleast_1d(answer.status)
        bad = np.flatnonzero(status != Status.OPTIMAL)
        if len(bad):
            raise ValueError(f"problem {bad[0]}: expected one with an answer, found it {status[bad[0]]}")
        if qp_needs_gradient(qp):
            answer = solution_with_gradient(qp, answer)
        return (answer.x, answer.dual, answer.dual_eq, answer.dual_box) if self.duals else answer.x
