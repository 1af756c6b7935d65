"""The learned solver as a method of `solve`: any size, any units, single or batch, with or without a certificate."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from time2decide.attention.loop import Judge
from time2decide.core.validation import expect, validate_count, validate_positive
from time2decide.neural.equivariant import EquivariantSolver
from time2decide.neural.polish import EXACT, PREDICTED, PolishedPrediction
from time2decide.neural.polish import polish_prediction as polish_active_sets
from time2decide.qp import QP, STATUS_TEXT, Solution, Status, kkt, solve_exact

KINDS = ("U", "LC")
#: Beyond this the network costs seconds a problem and its float32 inverses lose the active set.
MOST_CONSTRAINTS = 500
_NUMBERS_AT_ONCE = 2**21  # of the widest activation: larger batches are cut, which is faster and bounds memory
_PIVOT = 1e-11  # below this an answer may hang by the rounding of A, which only the exact solver looks at
Checkpoint = str | Path | EquivariantSolver | None


def solve_neural(
    qp: QP,
    *,
    tol: float = 1e-8,
    polish: bool = False,
    depth: int | None = None,
    checkpoint: Checkpoint = None,
    initial: tuple[Tensor, Tensor] | None = None,
) -> Solution:
    """Solve a batch of class LC or U with the learned solver.

    Parameters
    ----------
    qp : QP
        The network takes positive definite A. With `polish` the exact solver answers where A is singular and beyond
        `MOST_CONSTRAINTS`; without, such problems of a batch are not converged, and a batch of nothing else is refused.
    tol : float
        Tolerance of the rule by which an answer is optimal, relative and the same in all units. The network computes
        in float32: without `polish`, 1e-4 is what can be asked for.
    polish : bool
        Certify every answer in float64 and correct those that are wrong. ``Solution.how`` says how each was
        obtained: ``predicted`` (the network's active set is optimal), ``repaired`` or ``exact``. A float32 problem
        is certified before the answer is rounded to float32.
    depth : int, optional
        Passes through the looped layer before the closing ones; that of the checkpoint by default.
    checkpoint : name, folder or EquivariantSolver, optional
        The bundled one by default.
    initial : (x, dual), optional
        With `polish`: the active set of this point is taken for the prediction, and the network is not asked.
    """
    tol = validate_positive("tol", tol)
    model = load_neural_solver(checkpoint, qp.A.device)
    passes = model.config.depth if depth is None else validate_count("steps", depth, least=0)
    method = "neural+polish" if polish else "neural"
    _validate_class(qp)
    usable = _definite(qp) & torch.tensor(qp.m <= MOST_CONSTRAINTS)
    if not polish:
        _refuse_unusable(qp, usable)
    x, dual = torch.full_like(qp.b, torch.nan), torch.full_like(qp.d, torch.nan)
    status = np.full(len(qp), Status.NOT_CONVERGED, dtype=STATUS_TEXT)
    how, index = np.full(len(qp), EXACT, dtype="<U9"), usable.cpu().numpy()
    if index.any():
        scaled, x_unit, dual_unit = _scale(qp[usable])
        if polish and initial is not None:
            answer = _polished(scaled, _active_at(qp[usable], *(part[usable] for part in initial)), tol)
        else:
            found = _predict(scaled, model, depth)
            answer = _polished(scaled, found[1] > 0, tol) if polish else _judged(scaled, *found, tol)
        x[usable], dual[usable] = (x_unit * answer.x).to(qp.A), (dual_unit * answer.dual).to(qp.A)
        status[index], how[index] = answer.status, answer.how
    if polish and not index.all():
        exact = solve_exact(qp[~usable], tol=tol)
        rest = len(exact.qp)
        x[~usable], dual[~usable] = (torch.as_tensor(v).reshape(rest, -1).to(x) for v in (exact.x, exact.dual))
        status[~index] = np.atleast_1d(exact.status)
    steps = np.where(index, passes + model.config.closing if qp.m else 0, 0)
    return Solution.build(qp, x, dual, None, None, status, method, steps=steps, how=how if polish else None)


def _judged(scaled: QP, x: Tensor, dual: Tensor, tol: float) -> PolishedPrediction:
    """The network's own answer with its status, not polished."""
    x, dual, solved = Judge(scaled, tol)(x, dual)
    status = np.where(solved.numpy(), Status.OPTIMAL, Status.NOT_CONVERGED).astype(STATUS_TEXT)
    return PolishedPrediction(x, dual, kkt(scaled, x, dual).worst, status, np.full(len(scaled), PREDICTED, dtype="<U9"))


def _active_at(qp: QP, x: Tensor, dual: Tensor) -> Tensor:
    """The constraints that hold with equality at x, or pull by their multiplier, (batch, m)."""
    x, dual = x.to(qp.A), dual.to(qp.A)
    slack = qp.d - torch.einsum("bij,bj->bi", qp.C, x)
    reach = qp.d.abs() + torch.einsum("bij,bj->bi", qp.C.abs(), x.abs())
    return (dual > 0) | (slack <= 1e-9 * reach)


@torch.no_grad()
def predict_solution(qp: QP, *, checkpoint: Checkpoint = None) -> tuple[Tensor, Tensor]:
    """The network's x (batch, n) and dual (batch, m) in the precision of `qp`, as for a warm start.

    The problem is scaled in float64 before it is rounded to float32, so that its units do not matter.
    """
    _validate_class(qp)
    _refuse_unusable(qp, _definite(qp))
    scaled, x_unit, dual_unit = _scale(qp)
    x, dual = _predict(scaled, load_neural_solver(checkpoint, qp.A.device), None)
    return (x_unit * x).to(qp.A), (dual_unit * dual).to(qp.A)


@torch.no_grad()
def _predict(scaled: QP, model: EquivariantSolver, depth: int | None) -> tuple[Tensor, Tensor]:
    size = max(1, min(2048, _NUMBERS_AT_ONCE // (scaled.m * max(model.config.hidden, scaled.m) + scaled.n**2)))
    parts = [
        model(*(getattr(scaled, name)[i : i + size].float() for name in ("A", "b", "C", "d")), depth=depth)
        for i in range(0, len(scaled), size)
    ]
    x, dual = (torch.cat(part).to(scaled.A) for part in zip(*parts, strict=True))
    return x, dual


def _scale(qp: QP) -> tuple[QP, Tensor, Tensor]:
    """The same problem in float64 with unit diagonal of A, unit rows of C, and b and d of order one.

    Also the units t/r (batch, n) and t/w (batch, m) by which its answers are multiplied:

        Â = A/(rrᵀ),   Ĉ = C/(w rᵀ),   b̂ = b/(rt),   d̂ = d/(wt),   x = t·x̂/r,   dual = t·dual̂/w

    with r the square roots of the diagonal of A, w the lengths of the rows of C/rᵀ and t the largest of |b/r|, |d/w|.
    """
    qp = qp.to(torch.float64)
    diagonal = qp.A.diagonal(dim1=1, dim2=2)
    r = diagonal.sqrt()  # (batch, n)
    C = qp.C / r.unsqueeze(1)
    length = C.norm(dim=-1)  # (batch, m)
    w = torch.where(length > 0, length, 1.0)
    b, d = qp.b / r, qp.d / w
    t = torch.cat([b, d], dim=-1).abs().amax(-1, keepdim=True)  # (batch, 1)
    t = torch.where(t > 0, t, 1.0)
    scaled = QP(qp.A / (r.unsqueeze(2) * r.unsqueeze(1)), b / t, C / w.unsqueeze(-1), d / t, check=False)
    return scaled, t / r, t / w


def _validate_class(qp: QP) -> None:
    expect(qp.kind in KINDS, "qp", "a problem of class LC or U for a learned solver", f"class {qp.kind}")


def _definite(qp: QP) -> Tensor:
    """Whether each A is positive definite beyond the rounding it came with, (batch,).

    Scaled to unit diagonal; the smallest pivot of Cholesky's factorisation bounds the smallest eigenvalue from above.
    """
    diagonal = qp.A.diagonal(dim1=1, dim2=2).double()
    r = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
    L, info = torch.linalg.cholesky_ex(qp.A.double() / (r.unsqueeze(2) * r.unsqueeze(1)))
    pivot = L.diagonal(dim1=1, dim2=2).square().amin(-1)
    good = (info == 0) & (pivot > max(10 * qp.n * torch.finfo(qp.A.dtype).eps, _PIVOT))
    return good & (diagonal > 0).all(-1)


def _refuse_unusable(qp: QP, usable: Tensor) -> None:
    """Raise if there is nothing that the network can do."""
    few, others = f"at most {MOST_CONSTRAINTS} constraints for a learned solver", "methods 'exact' and 'neural+polish'"
    expect(qp.m <= MOST_CONSTRAINTS, "qp", few, f"{qp.m}; {others} take more")
    found = f"a singular matrix in problem 0; {others} take semidefinite A"
    expect(usable.any(), "A", "positive definite for a learned solver", found)


def _polished(qp: QP, active: Tensor, tol: float) -> PolishedPrediction:
    """`polish` over parts of the batch."""
    size = max(1, _NUMBERS_AT_ONCE // (qp.n + qp.m) ** 2)
    parts = [polish_active_sets(qp[i : i + size], active[i : i + size], tol=tol) for i in range(0, len(qp), size)]
    x, dual, residual = (torch.cat([getattr(p, name) for p in parts]) for name in ("x", "dual", "residual"))
    status, how = (np.concatenate([getattr(p, name) for p in parts]) for name in ("status", "how"))
    return PolishedPrediction(x, dual, residual, status, how)


def load_neural_solver(checkpoint: Checkpoint = None, device: str | torch.device = "cpu") -> EquivariantSolver:
    """The solver of a checkpoint, on a device; the bundled one is read once and kept."""
    if isinstance(checkpoint, EquivariantSolver):
        return checkpoint
    if checkpoint is None:
        return _bundled(str(device))
    return EquivariantSolver.from_pretrained(checkpoint).to(device)


@cache
def _bundled(device: str) -> EquivariantSolver:
    return EquivariantSolver.from_pretrained("qp").requires_grad_(False).to(device)
