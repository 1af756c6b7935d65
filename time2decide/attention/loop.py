"""An algorithm is a start, a step and a read-out; the loop is written once.

Classical iterations, literal transformers and their state form all are an `Algorithm`, and one layer is one step.
Iterates are rows of shape (batch, 1, n), as tokens are: a layer is then one batched row-times-matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from time2decide.qp.checks import InputError, check_count, check_positive
from time2decide.qp.problem import QP
from time2decide.qp.solution import kkt

State = tuple[Tensor, ...]


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


@dataclass(frozen=True)
class Run:
    """Where a loop ended: x (batch, n), dual (batch, m), layers used and KKT residual per instance."""

    x: Tensor
    dual: Tensor
    steps: Tensor
    residual: Tensor
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
    when it first met the tolerance, so that an answer does not depend on the rest of its batch.
    """
    tol = check_positive("tol", tol)
    check_count("check_every", check_every)
    limit = check_count("max_steps", max_steps) if steps is None else check_count("steps", steps, least=0)
    state = algorithm.start(*_initial_point(qp, initial))
    x, dual = algorithm.read(state)
    residual = kkt(qp, x, dual).worst
    trace = [residual]
    reached = torch.full((len(qp),), limit, dtype=torch.int64)
    open_ = (residual > tol).cpu()
    reached[~open_] = 0
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
        reached[newly] = done
        open_ = open_ & ~newly
        if bool(torch.isinf(new_residual).all()):
            break  # diverged: no later layer can recover
    return Run(x, dual, reached, residual, torch.stack(trace) if history else None)


def _initial_point(qp: QP, initial: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """The given point, or zeros, which are feasible for the paper's problems."""
    zeros = qp.A.new_zeros(len(qp), qp.n), qp.A.new_zeros(len(qp), qp.m)
    if initial is None:
        return zeros
    for name, given, expected in zip(("x", "dual"), initial, zeros, strict=True):
        if given.shape != expected.shape:
            raise InputError(f"initial {name}: expected shape {tuple(expected.shape)}, found {tuple(given.shape)}")
    return initial[0].to(qp.A), initial[1].to(qp.A).clamp_min(0)
