"""From a predicted active set to an answer with a certificate.

If the set is right, the answer solves a linear system; whether it is right is read off the optimality conditions
of the problem itself. So a prediction is either certified, in float64, or known to be wrong:

1. solve the KKT system of the predicted set, in a batch, and judge the answer;
2. where that fails, repair the set a few times: first the primal-dual active set step, which exchanges every
   constraint that is on the wrong side, then exchanges of the worst one alone, which cannot overshoot;
3. where that fails too, call the exact solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from time2decide.attention.loop import Judge
from time2decide.qp import QP, STATUS_TEXT, Status, kkt, solve_exact

FULL_EXCHANGES, SINGLE_EXCHANGES = 4, 4  # rounds of each repair
PREDICTED, REPAIRED, EXACT = "predicted", "repaired", "exact"


@dataclass(frozen=True)
class PolishedPrediction:
    """Certified answers: x (batch, n), dual (batch, m), KKT residual, status and how each was obtained (batch,)."""

    x: Tensor
    dual: Tensor
    residual: Tensor
    status: np.ndarray
    how: np.ndarray


class _Factors(NamedTuple):
    """Data of every round, formed once: A = LLᵀ, V = L⁻¹Cᵀ, the unit-diagonal scores of M = VᵀV, and q."""

    L: Tensor  # (batch, n, n)
    V: Tensor  # (batch, n, m)
    scores: Tensor  # (batch, m, m)
    S: Tensor  # (batch, m) square roots of the diagonal of M, 1 for an all-zero row of C
    free: Tensor  # (batch, n) L⁻¹b

    def at(self, rows: Tensor) -> _Factors:
        return _Factors(*(tensor[rows] for tensor in self))


@torch.no_grad()
def polish_prediction(qp: QP, active: Tensor, *, tol: float = 1e-8) -> PolishedPrediction:
    """Answers that are optimal to `tol`, by the rule of ``time2decide.qp.certificate``, from predicted active sets.

    Parameters
    ----------
    qp : QP
        Of class LC or U, float64, every A positive definite.
    active : (batch, m) of bool
        Constraints that are expected to hold with equality.
    """
    factors = _factorise(qp)
    active = active & (qp.C != 0).any(-1)  # an all-zero row cannot hold anything
    x, dual, exchange = _solve_on(qp, factors, active)
    x, dual, solved = Judge(qp, tol)(x, dual)
    how = np.full(len(qp), PREDICTED, dtype="<U9")
    for turn in range(FULL_EXCHANGES + SINGLE_EXCHANGES if qp.m else 0):
        rows = (~solved).nonzero().squeeze(-1).to(active.device)  # (open,)
        if not len(rows):
            break
        wrong = exchange[rows]
        if turn >= FULL_EXCHANGES:
            wrong = torch.where(wrong == wrong.amax(-1, keepdim=True), wrong, 0.0)
        active[rows] ^= wrong > 0
        new_x, new_dual, exchange[rows] = _solve_on(qp[rows], factors.at(rows), active[rows])
        new_x, new_dual, repaired = Judge(qp[rows], tol)(new_x, new_dual)
        index = rows.cpu()
        x[rows], dual[rows], solved[index] = new_x, new_dual, repaired
        how[index[repaired].numpy()] = REPAIRED
    status = np.where(solved.numpy(), Status.OPTIMAL, Status.NOT_CONVERGED).astype(STATUS_TEXT)
    return _fall_back(qp, PolishedPrediction(x, dual, kkt(qp, x, dual).worst, status, how), tol)


def _fall_back(qp: QP, answer: PolishedPrediction, tol: float) -> PolishedPrediction:
    """The exact solver's answer where there is no certificate yet."""
    rows = torch.from_numpy(np.flatnonzero(answer.status != Status.OPTIMAL)).to(qp.A.device)
    if not len(rows):
        return answer
    exact = solve_exact(qp[rows], tol=tol)
    answer.x[rows], answer.dual[rows] = (
        torch.as_tensor(v).reshape(len(rows), -1).to(qp.A) for v in (exact.x, exact.dual)
    )
    answer.residual[rows] = kkt(qp[rows], answer.x[rows], answer.dual[rows]).worst
    index = rows.cpu().numpy()
    answer.status[index] = np.atleast_1d(exact.status)
    answer.how[index] = EXACT
    return answer


def _factorise(qp: QP) -> _Factors:
    L = torch.linalg.cholesky_ex(qp.A).L
    both = torch.linalg.solve_triangular(L, torch.cat([qp.C.mT, qp.b.unsqueeze(-1)], -1), upper=False)
    V, free = both[..., :-1], both[..., -1]  # (batch, n, m), (batch, n)
    M = V.mT @ V
    diagonal = M.diagonal(dim1=1, dim2=2)
    S = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
    return _Factors(L, V, M / (S.unsqueeze(-1) * S.unsqueeze(-2)), S, free)


def _solve_on(qp: QP, factors: _Factors, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x and dual with the rows of `active` as equations, and how far each constraint is on the wrong side.

        min ½xᵀAx + bᵀx  s.t.  cᵢx = dᵢ for active i:   K·(S·dual) = −a·q/S,   K = aM̂a + (1 − a)I

    The last value is (batch, m): the amount by which a multiplier or a slack, each in units of S, is below zero.
    Dependent active rows make K singular; whatever comes out then fails the check.
    """
    gate = active.to(qp.A.dtype)
    K = gate.unsqueeze(-1) * factors.scores * gate.unsqueeze(-2)
    K.diagonal(dim1=1, dim2=2).copy_(torch.ones_like(gate))
    root = torch.linalg.cholesky_ex(K).L

    def step(free: Tensor, violation: Tensor) -> tuple[Tensor, Tensor]:
        """Solve A·dx + Cᵀ·dλ = −L·free and cᵢ·dx = −violationᵢ on the active rows."""
        q = torch.einsum("bnm,bn->bm", factors.V, free) - violation
        scaled = torch.cholesky_solve((-gate * q / factors.S).unsqueeze(-1), root).squeeze(-1)
        multiplier = gate * scaled / factors.S
        right = free + torch.einsum("bnm,bm->bn", factors.V, multiplier)
        return -torch.linalg.solve_triangular(factors.L.mT, right.unsqueeze(-1), upper=True).squeeze(-1), multiplier

    x, dual = step(factors.free, -qp.d)
    # One refinement: the residuals of a problem with κ(A) = 1e9 are then as small as those of any other.
    gradient = torch.einsum("bij,bj->bi", qp.A, x) + qp.b + torch.einsum("bij,bi->bj", qp.C, dual)
    free = torch.linalg.solve_triangular(factors.L, gradient.unsqueeze(-1), upper=False).squeeze(-1)
    dx, multiplier = step(free, torch.einsum("bij,bj->bi", qp.C, x) - qp.d)
    x, dual = x + dx, dual + multiplier
    slack = qp.d - torch.einsum("bij,bj->bi", qp.C, x)
    wrong = torch.where(active, -dual * factors.S, -slack / factors.S).clamp_min(0)
    return x, dual.clamp_min(0), torch.nan_to_num(wrong)
