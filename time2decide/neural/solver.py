"""The learned solver as a method of `solve`: any size, any units, single or batch, with or without a certificate."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from time2decide.neural.equivariant import EquivariantSolver
from time2decide.neural.polish import Polished, polish
from time2decide.qp import QP, InputError, Solution, Status, kkt
from time2decide.qp.checks import check_positive

KINDS = ("U", "LC")
_NUMBERS_AT_ONCE = 2**21  # of the widest activation: larger batches are cut, which is faster and bounds memory
Checkpoint = str | Path | EquivariantSolver | None


def solve_neural(
    qp: QP,
    *,
    tol: float = 1e-8,
    polish: bool = False,
    depth: int | None = None,
    checkpoint: Checkpoint = None,
) -> Solution:
    """Solve a batch of class LC or U with the learned solver.

    Parameters
    ----------
    qp : QP
        Every A positive definite.
    tol : float
        KKT residual at which an instance counts as solved. The network computes in float32: without `polish`, a
        residual of 1e-4 or so is the best to hope for.
    polish : bool
        Certify every answer in float64 and correct those that are wrong. ``Solution.how`` says how each was
        obtained: ``predicted`` (the network's active set is optimal), ``repaired`` or ``exact``. A float32 problem
        is certified before the answer is rounded to float32.
    depth : int, optional
        Passes through the looped layer before the closing ones; that of the checkpoint by default.
    checkpoint : name, folder or EquivariantSolver, optional
        The bundled one by default.
    """
    tol = check_positive("tol", tol)
    model = load_solver(checkpoint, qp.A.device)
    x, dual = predict(qp, depth=depth, checkpoint=model)
    passes = (model.config.depth if depth is None else depth) + model.config.closing
    steps = np.full(len(qp), passes if qp.m else 0)
    if not polish:
        solved = (kkt(qp, x, dual).worst <= tol).cpu().numpy()
        status = np.where(solved, Status.OPTIMAL, Status.NOT_CONVERGED).astype("<U16")
        return Solution.build(qp, x, dual, status, "neural", steps=steps)
    answer = _polished(qp, dual > 0, tol)
    return Solution.build(
        qp,
        answer.x.to(qp.A),
        answer.dual.to(qp.A),
        answer.status,
        "neural+polish",
        steps=steps,
        how=answer.how,
    )


@torch.no_grad()
def predict(qp: QP, *, depth: int | None = None, checkpoint: Checkpoint = None) -> tuple[Tensor, Tensor]:
    """The network's x (batch, n) and dual (batch, m) in the precision of `qp`, as for a warm start.

    The problem is scaled in its own precision before it is rounded to float32, so that its units do not matter.
    """
    if qp.kind not in KINDS:
        raise InputError(f"qp: expected a problem of class LC or U for a learned solver, found class {qp.kind}")
    model = load_solver(checkpoint, qp.A.device)
    scaled, units = _scale(qp)
    _check_definite(scaled.A)
    size = max(1, min(2048, _NUMBERS_AT_ONCE // (qp.m * max(model.config.hidden, qp.m) + qp.n**2)))
    parts = [
        model(*(getattr(scaled, name)[i : i + size].float() for name in ("A", "b", "C", "d")), depth=depth)
        for i in range(0, len(qp), size)
    ]
    x, dual = (torch.cat(part).to(qp.A) for part in zip(*parts, strict=True))
    return units.x * x, units.dual * dual


class _Units(NamedTuple):
    """x = units.x · x̂ and dual = units.dual · dual̂, from the scaled problem back to the given one."""

    x: Tensor  # (batch, n)
    dual: Tensor  # (batch, m)


def _scale(qp: QP) -> tuple[QP, _Units]:
    """The same problem with unit diagonal of A, unit rows of C, and b and d of order one.

        Â = A/(rrᵀ),   Ĉ = C/(w rᵀ),   b̂ = b/(rt),   d̂ = d/(wt),   x = t·x̂/r,   dual = t·dual̂/w

    with r the square roots of the diagonal of A, w the lengths of the rows of C/rᵀ and t the largest of |b/r|, |d/w|.
    """
    diagonal = qp.A.diagonal(dim1=1, dim2=2)
    if bool((diagonal <= 0).any()):
        raise _not_definite(int((diagonal <= 0).any(1).nonzero()[0]))
    r = diagonal.sqrt()  # (batch, n)
    C = qp.C / r.unsqueeze(1)
    length = C.norm(dim=-1)  # (batch, m)
    w = torch.where(length > 0, length, 1.0)
    b, d = qp.b / r, qp.d / w
    t = torch.cat([b, d], dim=-1).abs().amax(-1, keepdim=True)  # (batch, 1)
    t = torch.where(t > 0, t, 1.0)
    scaled = QP(qp.A / (r.unsqueeze(2) * r.unsqueeze(1)), b / t, C / w.unsqueeze(-1), d / t, check=False)
    return scaled, _Units(t / r, t / w)


def _check_definite(A: Tensor) -> None:
    """Raise unless every A (batch, n, n), of unit diagonal, is positive definite beyond rounding.

    The smallest pivot of Cholesky's factorisation bounds the smallest eigenvalue from above.
    """
    L, info = torch.linalg.cholesky_ex(A.double())
    pivot = L.diagonal(dim1=1, dim2=2).square().amin(-1)
    bad = (info > 0) | (pivot <= 10 * A.shape[-1] * torch.finfo(A.dtype).eps)
    if bool(bad.any()):
        raise _not_definite(int(bad.nonzero()[0]))


def _not_definite(index: int) -> InputError:
    return InputError(
        f"A: expected positive definite for a learned solver, found a singular matrix in problem {index}; "
        "method='exact' takes semidefinite A"
    )


def _polished(qp: QP, active: Tensor, tol: float) -> Polished:
    """`polish` in float64 over parts of the batch."""
    double = qp.to(torch.float64)
    size = max(1, _NUMBERS_AT_ONCE // (qp.n + qp.m) ** 2)
    parts = [polish(double[i : i + size], active[i : i + size], tol=tol) for i in range(0, len(qp), size)]
    x, dual, residual = (torch.cat([getattr(p, name) for p in parts]) for name in ("x", "dual", "residual"))
    status, how = (np.concatenate([getattr(p, name) for p in parts]) for name in ("status", "how"))
    return Polished(x, dual, residual, status, how)


def load_solver(checkpoint: Checkpoint = None, device: str | torch.device = "cpu") -> EquivariantSolver:
    """The solver of a checkpoint, on a device; the bundled one is read once and kept."""
    if isinstance(checkpoint, EquivariantSolver):
        return checkpoint
    if checkpoint is None:
        return _bundled(str(device))
    return EquivariantSolver.from_pretrained(checkpoint).to(device)


@cache
def _bundled(device: str) -> EquivariantSolver:
    return EquivariantSolver.from_pretrained("qp").requires_grad_(False).to(device)
