"""Derivatives of the answer with respect to every part of the problem, of any order, and a layer for networks.

Near an answer at which no constraint is active by accident, the active set stays as it is, and x and the multipliers
are a smooth function of the data: the solution of a linear system. Its derivative is that of the answer (the implicit
function theorem). It is written in x, the multipliers, the data and `_KKTSolve`, all of which have derivatives
themselves, so that derivatives of derivatives are right. At a degenerate answer, where a constraint holds with
equality and a multiplier of zero or active rows depend on each other, there is no derivative; one of the one-sided ones
is given, with a `DegenerateWarning`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple

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
    x, dual, equal, box = _differentiable(qp, lambda fields: solution)
    built = Solution.build(qp, x, dual, equal, box, np.atleast_1d(solution.status), solution.method)
    return replace(solution, x=built.x, dual=built.dual, dual_eq=built.dual_eq, dual_box=built.dual_box)


def outside_graphs(function: Any) -> Any:
    """`function`, called as it is by programs that `torch.compile` traces: what solves is not for a graph."""

    message = f"{function.__qualname__} solves outside the graph: use fullgraph=False"

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(msg=message)
            return torch.compiler.disable(function)(*arguments, **options)  # type: ignore[no-untyped-call]
        return function(*arguments, **options)

    return call


Solver = Callable[[tuple[Tensor | None, ...]], Solution]


def _differentiable(qp: QP, solver: Solver) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, dual, dual_eq and dual_box, batched, with derivatives; `solver` answers the problem of given fields."""
    apply: Any = _Answer.apply
    x, dual, equal, box, *_ = apply(solver, *(getattr(qp, name) for name in FIELDS))
    return x, dual, equal, box


class _Active(NamedTuple):
    """What holds at an answer; none of it changes with the data near by."""

    solved: Tensor  # (batch,) of bool
    fixed: Tensor  # (batch, n) of bool: variables that a bound or an ℓ1 term holds
    at_bound: Tensor  # (batch, n) of bool
    rows: Tensor  # (batch, m) of bool: active rows of C
    signs: Tensor  # (batch, n): of the free variables, with ℓ1 terms
    ball: Tensor  # (batch,) of bool: whether ‖x‖₁ ≤ B binds
    weak: Tensor  # (batch,) of bool: a constraint is active by accident


class _Data(NamedTuple):
    """What derivatives need of a problem, in float64 on the CPU."""

    A: Tensor
    C: Tensor
    E: Tensor
    lb: Tensor | None
    ub: Tensor | None

    @classmethod
    def of(cls, fields: dict[str, Tensor | None]) -> _Data:
        """The same fields; no equations where there are none."""
        A, C = _double(fields["A"]), _double(fields["C"])
        E = A.new_zeros(len(A), 0, A.shape[-1]) if fields["E"] is None else _double(fields["E"])
        lb, ub = (None if fields[name] is None else _double(fields[name]) for name in ("lb", "ub"))
        return cls(A, C, E, lb, ub)

    def normals(self, active: _Active) -> tuple[Tensor, Tensor]:
        """N (batch, r, n), rows of C, of E and of the ball, and which of them hold with equality, (batch, r)."""
        N, used = [self.C, self.E], [active.rows, active.solved[:, None].expand(self.E.shape[:2])]
        if active.signs.shape[-1]:
            N, used = [*N, active.signs[:, None]], [*used, active.ball[:, None]]
        return torch.cat(N, 1), torch.cat(used, 1)


class _Answer(torch.autograd.Function):
    """x, dual, dual_eq and dual_box, and their `_Active`."""

    @staticmethod
    def forward(solver: Solver, *fields: Tensor | None) -> Any:
        solution, qp = solver(fields), object.__new__(QP)
        for name, field in zip(FIELDS, fields, strict=True):
            setattr(qp, name, field)
        parts = [solution.x, solution.dual, solution.dual_eq, solution.dual_box]
        widths = (qp.n, qp.m, 0 if qp.E is None else qp.E.shape[1], qp.n)
        x, rows, equal, box = (
            qp.b.new_zeros(len(qp), width) if part is None else torch.as_tensor(part).detach().reshape(len(qp), -1)
            for part, width in zip(parts, widths, strict=True)
        )
        solved = np.atleast_1d(solution.status) == Status.OPTIMAL
        point = Point(*(np.where(solved[:, None], _double(part).numpy(), 0.0) for part in (x, rows, equal, box)))
        active = _active(Arrays.of(qp), point, solved)
        return x.clone(), rows.clone(), equal.clone(), box.clone(), *map(torch.from_numpy, active)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[4:])
        ctx.save_for_backward(*output, *inputs[1:])
        ctx.save_for_forward(*output, *inputs[1:])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        like, point, active, fields = _saved(ctx)
        wanted = [torch.where(active.solved[:, None], _double(g), 0.0) for g in upstream[:4]]
        needed = {name for name, asked in zip(FIELDS, ctx.needs_input_grad[1:], strict=True) if asked}
        found = _pulled_back(_Data.of(fields), point, active, wanted, needed)
        return None, *(found[name].to(like) if name in needed else None for name in FIELDS)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Any:
        like, point, active, fields = _saved(ctx)
        moved = {name: None if t is None else _double(t) for name, t in zip(FIELDS, tangents, strict=True)}
        return *(part.to(like) for part in _pushed_forward(_Data.of(fields), point, active, moved)), *[None] * len(
            active
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, solver: Solver, *fields: Tensor | None) -> Any:
        return _in_one_batch(_Answer, info.batch_size, in_dims, solver, *fields)


def _saved(ctx: Any) -> tuple[Tensor, list[Tensor], _Active, dict[str, Tensor | None]]:
    """A tensor of the dtype of the answer, the answer (zero where there is none), what is active, and the fields."""
    saved = ctx.saved_tensors
    active = _Active(*saved[4:11])
    point = [torch.where(active.solved[:, None], _double(part), 0.0) for part in saved[:4]]
    return saved[0], point, active, dict(zip(FIELDS, saved[11:], strict=True))


def _double(tensor: Any) -> Tensor:
    return tensor.to("cpu", torch.float64)


def _in_one_batch(function: Any, size: int, in_dims: Any, *inputs: Any) -> Any:
    """A batch of batches as one batch, for `torch.func.vmap`."""
    flat = []
    for value, dim in zip(inputs, in_dims, strict=True):
        if isinstance(value, Tensor):
            value = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
            value = value.flatten(0, 1)
        flat.append(value)
    outputs = function.apply(*flat)
    return tuple(out.unflatten(0, (size, -1)) for out in outputs), (0,) * len(outputs)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Mv for (batch, r, c) and (batch, c)."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _pulled_back(
    data: _Data, point: list[Tensor], active: _Active, wanted: list[Tensor], needed: set[str]
) -> dict[str, Tensor]:
    """The gradient of each needed field, from those of x, dual, dual_eq and dual_box."""
    x, rows, equal, _ = point
    m, p = rows.shape[1], equal.shape[1]
    pinned = torch.where(active.at_bound, -wanted[3], 0.0)  # dz at a bound is −d(gradient)
    N, used = data.normals(active)
    w = torch.cat([wanted[1], wanted[2], x.new_zeros(len(x), N.shape[1] - m - p)], 1) + _times(N, pinned)
    v = wanted[0] + _times(data.A, pinned)
    inner, s = solve_kkt(data.A, N, used, active.fixed, active.weak, v, w)
    u = inner + pinned
    found = {"b": u, "d": -s[:, :m], "f": -s[:, m : m + p], "l1_radius": -s[:, m + p :].sum(-1)}
    if "A" in needed:
        outer = u.unsqueeze(2) * x.unsqueeze(1)
        found["A"] = (outer + outer.mT) / 2
    for name, dual, mult in (("C", rows, s[:, :m]), ("E", equal, s[:, m : m + p])):
        if name in needed:
            found[name] = torch.baddbmm(dual.unsqueeze(2) * u.unsqueeze(1), mult.unsqueeze(2), x.unsqueeze(1))
    if needed & {"lb", "ub"}:
        moved = torch.where(active.at_bound, v + _times(data.A, inner) + _times(N.mT, s), 0.0)
        low = torch.zeros_like(active.at_bound) if data.lb is None else x == data.lb
        found |= {"lb": torch.where(low, moved, 0.0), "ub": torch.where(low, 0.0, moved)}
    if "l1_penalty" in needed:
        found["l1_penalty"] = (active.signs * u).sum(1)
    return found


def _pushed_forward(
    data: _Data, point: list[Tensor], active: _Active, moved: dict[str, Tensor | None]
) -> tuple[Tensor, ...]:
    """How x, dual, dual_eq and dual_box move when the fields move; the adjoint of `_pulled_back`."""
    x, rows, equal, _ = point

    def change(name: str, like: Tensor) -> Tensor:
        value = moved[name]
        return torch.zeros_like(like) if value is None else value

    dA, dC, dE = change("A", data.A), change("C", data.C), change("E", data.E)
    low = torch.zeros_like(active.at_bound) if data.lb is None else x == data.lb
    pinned = torch.where(active.at_bound, torch.where(low, change("lb", x), change("ub", x)), 0.0)
    N, used = data.normals(active)
    force = _times((dA + dA.mT) / 2, x) + change("b", x) + _times(dC.mT, rows) + _times(dE.mT, equal)
    w = [_times(dC, x) - change("d", rows), _times(dE, x) - change("f", equal)]
    if active.signs.shape[-1]:
        force = force + change("l1_penalty", x[:, 0]).unsqueeze(-1) * active.signs
        w.append(-change("l1_radius", x[:, 0]).unsqueeze(-1))
    force = force + _times(data.A, pinned)
    u, s = solve_kkt(data.A, N, used, active.fixed, active.weak, force, torch.cat(w, 1) + _times(N, pinned))
    box = torch.where(active.at_bound, -(force + _times(data.A, u) + _times(N.mT, s)), 0.0)
    m, p = rows.shape[1], equal.shape[1]
    return u + pinned, s[:, :m], s[:, m : m + p], box


def _active(p: Arrays, point: Point, solved: np.ndarray) -> tuple[np.ndarray, ...]:
    """The parts of `_Active`."""
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
    fixed, signs, ball = at_bound, np.zeros((len(x), 0)), np.zeros(len(x), bool)
    if p.sparse:
        gradient = batch_times(p.A, x) + p.b + transposed_times(p.C, rows) + transposed_times(p.E, equal) + box
        ball = (size.sum(1) >= p.radius * (1 - 1e-9)) & solved
        fixed = at_bound | (x == 0)
        signs = np.sign(x)
        level = np.where(ball, np.abs(gradient).max(1, initial=0), p.penalty)
        weak |= ((x == 0) & ~at_bound & (np.abs(gradient) >= level[:, None] * (1 - _WEAK))).any(1)
    return solved, fixed | ~solved[:, None], at_bound & solved[:, None], active, signs, ball, weak & solved


def solve_kkt(
    A: Tensor, N: Tensor, used: Tensor, fixed: Tensor, weak: Tensor, v: Tensor, w: Tensor
) -> tuple[Tensor, Tensor]:
    """u (batch, n) on the variables that are not fixed and s (batch, r) on the rows in use with

        [A  Nᵀ] [u]     [v]
        [N  0 ] [s] = − [w],

    zero elsewhere; singular systems by least squares, with a warning, which is also given for a problem marked weak.
    The matrix is symmetric, so that derivatives of any order are solutions of the same system.
    """
    apply: Any = _KKTSolve.apply
    return apply(A, N, used, fixed, weak, v, w)


class _KKTSolve(torch.autograd.Function):
    """`solve_kkt`."""

    @staticmethod
    def forward(A: Tensor, N: Tensor, used: Tensor, fixed: Tensor, weak: Tensor, v: Tensor, w: Tensor) -> Any:
        from time2decide.qp.adjoint import adjoint  # compiled: only where derivatives are asked for

        if weak.any():
            _warn(int(weak.nonzero()[0]), "a constraint is active by accident")
        arrays = [np.ascontiguousarray(tensor.numpy()) for tensor in (A, N, used, fixed, v, w)]
        u, s, good = np.zeros(v.shape), np.zeros(w.shape), np.empty(len(v), np.bool_)
        adjoint(*arrays, u, s, good)
        for i in map(int, np.flatnonzero(~good)):
            loose, rows, k = ~arrays[3][i], arrays[2][i], int((~arrays[3][i]).sum())
            K = np.zeros((k + int(rows.sum()),) * 2)
            K[:k, :k], K[k:, :k] = arrays[0][i][np.ix_(loose, loose)], arrays[1][i][np.ix_(rows, loose)]
            K[:k, k:] = K[k:, :k].T
            side = -np.append(arrays[4][i][loose], arrays[5][i][rows])
            answer, _, rank, _ = np.linalg.lstsq(K, side, rcond=1e-12)
            if rank < len(K):
                _warn(i, "its active constraints depend on each other, or its objective is flat")
            u[i][loose], s[i][rows] = answer[:k], answer[k:]
        return torch.from_numpy(u), torch.from_numpy(s)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        A, N, used, fixed, weak, _, _ = inputs
        ctx.save_for_backward(A, N, used, fixed, weak, *output)
        ctx.save_for_forward(A, N, used, fixed, weak, *output)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        A, N, used, fixed, weak, u, s = ctx.saved_tensors
        v, w = solve_kkt(A, N, used, fixed, weak, *upstream)
        dA = v.unsqueeze(2) * u.unsqueeze(1) if ctx.needs_input_grad[0] else None
        dN = torch.baddbmm(s.unsqueeze(2) * v.unsqueeze(1), w.unsqueeze(2), u.unsqueeze(1))
        return None if dA is None else (dA + dA.mT) / 2, dN, None, None, None, v, w

    @staticmethod
    def jvp(ctx: Any, dA: Any, dN: Any, _used: Any, _fixed: Any, _weak: Any, dv: Any, dw: Any) -> Any:
        A, N, used, fixed, weak, u, s = ctx.saved_tensors
        dv = torch.zeros_like(u) if dv is None else dv
        dw = torch.zeros_like(s) if dw is None else dw
        dv = dv if dA is None else dv + _times((dA + dA.mT) / 2, u)
        dv, dw = (dv, dw) if dN is None else (dv + _times(dN.mT, s), dw + _times(dN, u))
        return solve_kkt(A, N, used, fixed, weak, dv, dw)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        return _in_one_batch(_KKTSolve, info.batch_size, in_dims, *inputs)


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

    @outside_graphs
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
        if qp.traced:
            parts = _differentiable(qp, lambda fields: self._answers(_checked(fields, self.check)))
            built = Solution.build(qp, *parts, np.full(len(qp), Status.OPTIMAL), "exact")
        else:
            built = self._answers(qp)
            built = solution_with_gradient(qp, built) if qp_needs_gradient(qp) else built
        return (built.x, built.dual, built.dual_eq, built.dual_box) if self.duals else built.x

    def _answers(self, qp: QP) -> Solution:
        """The solution of the problems; raises where one has none."""
        answer = solve_exact(qp, tol=self.tol)
        status = np.atleast_1d(answer.status)
        bad = np.flatnonzero(status != Status.OPTIMAL)
        if len(bad):
            raise ValueError(f"problem {bad[0]}: expected one with an answer, found it {status[bad[0]]}")
        return answer


def _checked(fields: tuple[Tensor | None, ...], check: bool) -> QP:
    """The problem of these fields, checked only now: values could not be seen before."""
    return QP(**dict(zip(FIELDS, fields, strict=True)), check=check)
