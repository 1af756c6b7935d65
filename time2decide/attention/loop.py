"""An algorithm is a start, a step and a read-out; the loop is written once.

Classical iterations, literal transformers and their state form all are an `Algorithm`, and one layer is one step.
Iterates are rows of shape (batch, 1, n), as tokens are: a layer is then one batched row-times-matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from time2decide.qp.certificate import Arrays, OptimalityRule, Point
from time2decide.qp.problem import QP
from time2decide.qp.solution import STATUS_TEXT, Status, kkt

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


def iterates(algorithm: Algorithm, x: Tensor, dual: Tensor, layers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(x, dual) before the first layer and after each: the layers alone, which autograd may follow."""
    state = algorithm.start(x, dual)
    yield algorithm.read(state)
    for _ in range(layers):
        state = algorithm.step(state)
        yield algorithm.read(state)


class Run(NamedTuple):
    """Result of `run`: x (batch, n), dual (batch, m), layers used and status per instance.

    Infeasible are instances whose duals proved that no point satisfies the constraints; x and dual are NaN there.
    """

    x: Tensor
    dual: Tensor
    steps: Tensor
    status: np.ndarray
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
    """Run exactly `steps` layers, or layers until every answer is optimal to `tol` by the rule of `certificate`.

    With a stopping rule the answer is looked at every `check_every` layers. An instance keeps the answer it had
    when it first met the tolerance, so that an answer does not depend on the rest of its batch, and is given up when
    its duals prove it infeasible. `initial` is (x, dual), zeros unless given, which are feasible for the paper's
    problems.
    """
    limit = max_steps if steps is None else steps
    judge = Judge(qp, tol)
    x, dual = (torch.zeros_like(qp.b), torch.zeros_like(qp.d)) if initial is None else initial
    state = algorithm.start(x.to(qp.A), dual.to(qp.A).clamp_min(0))
    x, dual, solved = judge(*algorithm.read(state))
    trace = [kkt(qp, x, dual).worst] if history else []
    reached = torch.full((len(qp),), limit, dtype=torch.int64)
    reached[solved] = 0
    infeasible = torch.zeros_like(solved)
    last_dual = dual
    done = 0
    while done < limit and (steps is not None or not bool((solved | infeasible).all())):
        for _ in range(1 if history else min(check_every, limit - done) if steps is None else limit):
            state = algorithm.step(state)
            done += 1
        new_x, new_dual, optimal = judge(*algorithm.read(state))
        if history:
            trace.append(kkt(qp, new_x, new_dual).worst)
        open_ = ~(solved | infeasible)
        move = (open_ if steps is None else torch.ones_like(open_)).to(x.device).unsqueeze(-1)
        x, dual = torch.where(move, new_x, x), torch.where(move, new_dual, dual)
        newly = open_ & optimal
        solved = solved | newly if steps is None else optimal
        if steps is None and qp.m:
            proven = open_ & ~newly & duals_prove_infeasible(qp, new_dual - last_dual).cpu()
            infeasible, newly, last_dual = infeasible | proven, newly | proven, new_dual
        reached[newly] = done
        if not bool(torch.isfinite(new_x).all(-1).any()):
            break  # diverged: no later layer can recover
    x, dual = (torch.where(infeasible.to(x.device).unsqueeze(-1), torch.nan, part) for part in (x, dual))
    status = np.where(solved.numpy(), Status.OPTIMAL, Status.NOT_CONVERGED).astype(STATUS_TEXT)
    status[infeasible.numpy()] = Status.INFEASIBLE
    return Run(x, dual, reached, status, torch.stack(trace) if history else None)


class Judge:
    """Whether points are optimal: by the rule of `certificate`, and with a KKT residual of at most `tol`.

    Where the units of a problem put that residual out of reach, the rule at a sharper tolerance takes its place.
    Entries of x below the tolerance are set to zero where that makes a point optimal.
    """

    def __init__(self, qp: QP, tol: float) -> None:
        self.qp, self.arrays, self.tol = qp.detached(), Arrays.of(qp), tol
        self.sharp = 1e-10 if qp.A.dtype == torch.float64 else tol
        curve = np.diagonal(self.arrays.A, axis1=1, axis2=2)
        self.unit = np.where(curve > 0, np.abs(self.arrays.b) / np.where(curve > 0, curve, 1.0), 0.0)

    def __call__(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (batch, n), dual (batch, m) and whether they are optimal (batch,), on the CPU."""
        p = self.arrays
        point, rows = (part.detach().cpu().double().numpy() for part in (x, dual))
        none = np.zeros_like(p.f), np.zeros_like(p.b)
        solved = self._holds(slice(None), Point(point, rows, *none))
        if not solved.all():
            size = np.abs(point)
            small = (size > 0) & (size <= self.tol * np.maximum(size.max(-1, keepdims=True), self.unit))
            again = ~solved & small.any(-1)
            if again.any():
                cut = np.where(small, 0.0, point)
                better = np.zeros_like(solved)
                better[again] = self._holds(again, Point(cut, rows, *none).at(again))
                if better.any():
                    x = torch.where(torch.from_numpy(small & better[:, None]).to(x.device), 0.0, x)
                    solved = solved | better
        return x, dual, torch.from_numpy(solved)

    def _holds(self, index: slice | np.ndarray, point: Point) -> np.ndarray:
        p = self.arrays.at(index)
        residual = OptimalityRule(p).residual(point)
        solved = residual <= self.tol
        if solved.any() and self.sharp < self.tol:
            qp = self.qp if isinstance(index, slice) else self.qp[torch.from_numpy(index)]
            small = (kkt(qp, point.x, point.rows).worst <= self.tol).numpy()
            solved &= small | (residual <= self.sharp)
        return solved


def duals_prove_infeasible(qp: QP, change: Tensor) -> Tensor:
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
