"""The learned solver as a method of `solve`: any size, any units, single or batch, with or without a certificate."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from time2decide.core.validation import expect, refuse, validate_count, validate_positive
from time2decide.neural.equivariant import EquivariantSolver
from time2decide.neural.polish import EXACT, Polished, polish
from time2decide.qp import QP, Solution, Status, kkt, solve_exact

KINDS = ("U", "LC")
#: Beyond this the network costs seconds a problem and its float32 inverses lose the active set.
MOST_CONSTRAINTS = 500
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
        Every A positive definite. The cost of a pass grows with m³, and beyond `MOST_CONSTRAINTS` the network is
        refused; with `polish` the exact solver answers instead.
    tol : float
        KKT residual at which an instance counts as solved, in the units of `_scale`: the same problem in other units
        has the same answer and status. The network computes in float32: without `polish`, a residual of 1e-5 or so is
        the best to hope for.
    polish : bool
        Certify every answer in float64 and correct those that are wrong. ``Solution.how`` says how each was
        obtained: ``predicted`` (the network's active set is optimal), ``repaired`` or ``exact``. A float32 problem
        is certified before the answer is rounded to float32.
    depth : int, optional
        Passes through the looped layer before the closing ones; that of the checkpoint by default.
    checkpoint : name, folder or EquivariantSolver, optional
        The bundled one by default.
    """
    tol = validate_positive("tol", tol)
    model = load_solver(checkpoint, qp.A.device)
    passes = model.config.depth if depth is None else validate_count("steps", depth, least=0)
    if polish and qp.kind == "LC" and qp.m > MOST_CONSTRAINTS:
        return _exactly(qp, tol)
    scaled, units = _scale(qp)
    x, dual = _predict(scaled, model, depth)
    steps = np.full(len(qp), passes + model.config.closing if qp.m else 0)
    if not polish:
        solved = (kkt(scaled, x, dual).worst <= tol).cpu().numpy()
        status = np.where(solved, Status.OPTIMAL, Status.NOT_CONVERGED).astype("<U16")
        return _given_units(qp, units, x, dual, status, "neural", steps=steps)
    answer = _polished(scaled, dual > 0, tol)
    return _given_units(qp, units, answer.x, answer.dual, answer.status, "neural+polish", steps=steps, how=answer.how)


def _given_units(
    qp: QP, units: _Units, x: Tensor, dual: Tensor, status: np.ndarray, method: str, **extra: np.ndarray
) -> Solution:
    """The solution of `qp` from that of the scaled problem."""
    x, dual = (units.x * x).to(qp.A), (units.dual * dual).to(qp.A)
    return Solution.build(qp, x, dual, status, method, **extra)


def _exactly(qp: QP, tol: float) -> Solution:
    """The exact solver's answers, marked as such."""
    exact = solve_exact(qp, tol=tol)
    x, dual = (torch.as_tensor(part).reshape(len(qp), -1) for part in (exact.x, exact.dual))
    status, how = np.atleast_1d(exact.status), np.full(len(qp), EXACT)
    return Solution.build(qp, x, dual, status, "neural+polish", steps=np.zeros(len(qp), dtype=int), how=how)


@torch.no_grad()
def predict(qp: QP, *, depth: int | None = None, checkpoint: Checkpoint = None) -> tuple[Tensor, Tensor]:
    """The network's x (batch, n) and dual (batch, m) in the precision of `qp`, as for a warm start.

    The problem is scaled in float64 before it is rounded to float32, so that its units do not matter.
    """
    scaled, units = _scale(qp)
    x, dual = _predict(scaled, load_solver(checkpoint, qp.A.device), depth)
    return (units.x * x).to(qp.A), (units.dual * dual).to(qp.A)


@torch.no_grad()
def _predict(scaled: QP, model: EquivariantSolver, depth: int | None) -> tuple[Tensor, Tensor]:
    size = max(1, min(2048, _NUMBERS_AT_ONCE // (scaled.m * max(model.config.hidden, scaled.m) + scaled.n**2)))
    parts = [
        model(*(getattr(scaled, name)[i : i + size].float() for name in ("A", "b", "C", "d")), depth=depth)
        for i in range(0, len(scaled), size)
    ]
    x, dual = (torch.cat(part).to(scaled.A) for part in zip(*parts, strict=True))
    return x, dual


class _Units(NamedTuple):
    """x = units.x · x̂ and dual = units.dual · dual̂, from the scaled problem back to the given one."""

    x: Tensor  # (batch, n)
    dual: Tensor  # (batch, m)


def _scale(qp: QP) -> tuple[QP, _Units]:
    """The same problem in float64 with unit diagonal of A, unit rows of C, and b and d of order one.

        Â = A/(rrᵀ),   Ĉ = C/(w rᵀ),   b̂ = b/(rt),   d̂ = d/(wt),   x = t·x̂/r,   dual = t·dual̂/w

    with r the square roots of the diagonal of A, w the lengths of the rows of C/rᵀ and t the largest of |b/r|, |d/w|.
    """
    expect(qp.kind in KINDS, "qp", "a problem of class LC or U for a learned solver", f"class {qp.kind}")
    most = f"at most {MOST_CONSTRAINTS} constraints for a learned solver"
    expect(qp.m <= MOST_CONSTRAINTS, "qp", most, f"{qp.m}; methods 'exact' and 'neural+polish' take more")
    precision = torch.finfo(qp.A.dtype).eps
    qp = qp.to(torch.float64)
    diagonal = qp.A.diagonal(dim1=1, dim2=2)
    _refuse_singular((diagonal <= 0).any(1))
    r = diagonal.sqrt()  # (batch, n)
    C = qp.C / r.unsqueeze(1)
    length = C.norm(dim=-1)  # (batch, m)
    w = torch.where(length > 0, length, 1.0)
    b, d = qp.b / r, qp.d / w
    t = torch.cat([b, d], dim=-1).abs().amax(-1, keepdim=True)  # (batch, 1)
    t = torch.where(t > 0, t, 1.0)
    scaled = QP(qp.A / (r.unsqueeze(2) * r.unsqueeze(1)), b / t, C / w.unsqueeze(-1), d / t, check=False)
    _check_definite(scaled.A, precision)
    return scaled, _Units(t / r, t / w)


def _check_definite(A: Tensor, precision: float) -> None:
    """Raise unless every A (batch, n, n), of unit diagonal, is positive definite beyond the rounding it came with.

    The smallest pivot of Cholesky's factorisation bounds the smallest eigenvalue from above.
    """
    L, info = torch.linalg.cholesky_ex(A)
    pivot = L.diagonal(dim1=1, dim2=2).square().amin(-1)
    _refuse_singular((info > 0) | (pivot <= 10 * A.shape[-1] * precision))


def _refuse_singular(bad: Tensor) -> None:
    """Raise for the first problem that is marked, (batch,) of bool."""
    refuse(
        f"A: expected positive definite for a learned solver, found a singular matrix in problem {int(index)}; "
        "method='exact' takes semidefinite A"
        for index in bad.nonzero()
    )


def _polished(qp: QP, active: Tensor, tol: float) -> Polished:
    """`polish` over parts of the batch."""
    size = max(1, _NUMBERS_AT_ONCE // (qp.n + qp.m) ** 2)
    parts = [polish(qp[i : i + size], active[i : i + size], tol=tol) for i in range(0, len(qp), size)]
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
