"""An algorithm is a start, a step and a read-out; the loop is written once.

Classical iterations, literal transformers and their state form all are an `Algorithm`, and one layer is one step.
Iterates are rows of shape (batch, 1, n), as tokens are: a layer is then one batched row-times-matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from time2decide.core.validation import expect, validate_count, validate_positive
from time2decide.qp.problem import QP
from time2decide.qp.solution import kkt

State = tuple[Tensor, ...]
_FARTHEST = 1e6  # a problem whose feasible points are all farther away, in constraint distances, counts as infeasible


@dataclass(frozen=True)
class Algorithm:
    """One iteration of a method on one batch of problems.

    start : (x (batch, n), dual (batch, m)) -> state
    step : state -> state, one layer
    read : state -> (x (batch, n), dual (batch, m))
    """

    start: Callable[[Tensor, Tensor], State]
    step: Callable[[State], State]
    read: Callable[[State], tuple[Tensor, Tensor]]


def primal_algorithm(step: Callable[[State], State]) -> Algorithm:
    """An algorithm whose state is the row of the iterate alone, (batch, 1, n)."""
    return Algorithm(
        start=lambda x, dual: (x.unsqueeze(1),),
        step=step,
        read=lambda state: (state[0].squeeze(1), state[0].new_zeros(len(state[0]), 0)),
    )


def primal_dual_algorithm(step: Callable[[State], State]) -> Algorithm:
    """An algorithm whose state is the rows of x and of λ, (batch, 1, n) and (batch, 1, m)."""
    return Algorithm(
        start=lambda x, dual: (x.unsqueeze(1), dual.unsqueeze(1)),
        step=step,
        read=lambda state: (state[0].squeeze(1), state[1].squeeze(1)),
    )


@dataclass(frozen=True)
class Run:
    """Where a loop ended: x (batch, n), dual (batch, m), layers used and KKT residual per instance.

    `infeasible` (batch,) marks instances whose duals proved that no point satisfies the constraints; x and dual are
    NaN there.
    """

    x: Tensor
    dual: Tensor
    steps: Tensor
    residual: Tensor
    infeasible: Tensor
    history: Tensor | None  # (layers + 1, batch) of KKT residuals


@torch.no_grad()
def run(
    algorithm: Algorithm,
    qp: QP,
    *,
    steps: int | None = None,
    tol: float = 1e-8,
    max_steps: int = 200_000,
    check_every: int = 10,
    history: bool = False,
    initial: tuple[Tensor, Tensor] | None = None,
) -> Run:
    """Run exactly `steps` layers, or layers until every KKT residual is at most `tol`.

    With a stopping rule the residual is looked at every `check_every` layers. An instance keeps the answer it had
    when it first met the tolerance, so that an answer does not depend on the rest of its batch, and is given up when
    its duals prove it infeasible.
    """
    tol = validate_positive("tol", tol)
    validate_count("check_every", check_every)
    limit = validate_count("max_steps", max_steps) if steps is None else validate_count("steps", steps, least=0)
    state = algorithm.start(*_initial_point(qp, initial))
    x, dual = algorithm.read(state)
    residual = kkt(qp, x, dual).worst
    trace = [residual]
    reached = torch.full((len(qp),), limit, dtype=torch.int64)
    open_ = (residual > tol).cpu()
    reached[~open_] = 0
    infeasible = torch.zeros_like(open_)
    last_dual = dual
    done = 0
    while done < limit and (steps is not None or bool(open_.any())):
        for _ in range(1 if history else min(check_every, limit - done) if steps is None else limit):
            state = algorithm.step(state)
            done += 1
        new_x, new_dual = algorithm.read(state)
        new_residual = kkt(qp, new_x, new_dual).worst
        trace.append(new_residual)
        if steps is None:
            move = open_.to(x.device).unsqueeze(-1)
            x, dual = torch.where(move, new_x, x), torch.where(move, new_dual, dual)
            residual = torch.where(move.squeeze(-1), new_residual, residual)
        else:
            x, dual, residual = new_x, new_dual, new_residual
        newly = open_ & (new_residual <= tol).cpu()
        if steps is None and qp.m:
            proven = open_ & ~newly & proves_infeasible(qp, new_dual - last_dual).cpu()
            infeasible, newly, last_dual = infeasible | proven, newly | proven, new_dual
        reached[newly] = done
        open_ = open_ & ~newly
        if bool(torch.isinf(new_residual).all()):
            break  # diverged: no later layer can recover
    x, dual = (torch.where(infeasible.to(x.device).unsqueeze(-1), torch.nan, part) for part in (x, dual))
    return Run(x, dual, reached, residual, infeasible, torch.stack(trace) if history else None)


def proves_infeasible(qp: QP, change: Tensor) -> Tensor:
    """Whether a change of the duals (batch, m) shows that Cx ≤ d has no solution, (batch,).

    Farkas: if some y ≥ 0 has Cᵀy = 0 and dᵀy < 0, there is none, and the change of the duals of an infeasible problem
    tends to such a y. In numbers, for any y ≥ 0 a point with Cx ≤ d has −dᵀy ≤ −xᵀCᵀy ≤ ‖x‖₁‖Cᵀy‖∞, so it is farther
    from 0 than −dᵀy / ‖Cᵀy‖∞; this is asked to be `_FARTHEST` times the distance of the farthest constraint.
    """
    y = change.clamp_min(0)
    length = qp.C.norm(dim=-1)  # (batch, m)
    distance = torch.where(length > 0, qp.d.abs() / length, 0.0).amax(-1)  # (batch,)
    pull = torch.einsum("bij,bi->bj", qp.C, y).abs().amax(-1)
    rounding = torch.finfo(y.dtype).eps * torch.einsum("bij,bi->bj", qp.C.abs(), y).amax(-1)
    return -(qp.d * y).sum(-1) > _FARTHEST * distance * (pull + rounding)


def _initial_point(qp: QP, initial: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """The given point, or zeros, which are feasible for the paper's problems."""
    zeros = qp.A.new_zeros(len(qp), qp.n), qp.A.new_zeros(len(qp), qp.m)
    if initial is None:
        return zeros
    for name, given, expected in zip(("x", "dual"), initial, zeros, strict=True):
        expect(given.shape == expected.shape, f"initial {name}", f"shape {tuple(expected.shape)}", tuple(given.shape))
    return initial[0].to(qp.A), initial[1].to(qp.A).clamp_min(0)
