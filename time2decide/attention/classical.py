"""The classical iterations, written as well as we can write them: the reference for equality and for speed.

Everything that does not change between iterations is formed once: a gradient step is the single product
x(I − γA) − γb. Iterates are rows (batch, 1, n).
"""

from __future__ import annotations

import torch
from torch import Tensor

from time2decide.attention.acceleration import Prox
from time2decide.attention.admm import AdmmSplitting
from time2decide.attention.loop import Algorithm, State, primal_algorithm, primal_dual_algorithm
from time2decide.qp.problem import QP
from time2decide.qp.projections import simplex_threshold, soft_threshold
from time2decide.qp.solution import proximal_map


def _gradient_map(qp: QP, step: Tensor) -> tuple[Tensor, Tensor]:
    """M, c with x − γ(Ax + b) = xM + c for a row x."""
    gamma = step.view(-1, 1, 1)
    eye = torch.eye(qp.n, dtype=qp.A.dtype, device=qp.A.device)
    return eye - gamma * qp.A, -gamma * qp.b.unsqueeze(1)


def classical_gradient(qp: QP, step: Tensor) -> Algorithm:
    """x ← x − γ(Ax + b)."""
    M, c = _gradient_map(qp, step)
    return primal_algorithm(lambda state: (torch.baddbmm(c, state[0], M),))


def classical_ista(qp: QP, step: Tensor) -> Algorithm:
    """x ← S_{γλ}(x − γ(Ax + b))."""
    M, c = _gradient_map(qp, step)
    assert qp.l1_penalty is not None
    level = (step * qp.l1_penalty).view(-1, 1, 1)
    return primal_algorithm(lambda state: (soft_threshold(torch.baddbmm(c, state[0], M), level),))


def classical_projected_gradient(qp: QP, step: Tensor) -> Algorithm:
    """x ← projection of x − γ(Ax + b) onto ‖x‖₁ ≤ B, by sorting."""
    M, c = _gradient_map(qp, step)
    assert qp.l1_radius is not None
    radius = qp.l1_radius.view(-1, 1, 1)

    def one(state: State) -> State:
        y = torch.baddbmm(c, state[0], M)
        return (soft_threshold(y, simplex_threshold(y.abs(), radius).clamp_min_(0)),)

    return primal_algorithm(one)


def classical_arrow_hurwicz(qp: QP, step: Tensor, dual_step: Tensor) -> Algorithm:
    """x ← x − γ(Ax + b + Cᵀλ), then λ ← [λ + η(Cx − d)]₊."""
    M, c = _gradient_map(qp, step)
    pull = -step.view(-1, 1, 1) * qp.C  # (batch, m, n)
    eta = dual_step.view(-1, 1, 1)
    push, bound = eta * qp.C.mT, eta * qp.d.unsqueeze(1)  # (batch, n, m), (batch, 1, m)

    def one(state: State) -> State:
        x, dual = state
        x = torch.baddbmm(torch.baddbmm(c, x, M), dual, pull)
        return x, torch.baddbmm(dual, x, push).sub_(bound).relu_()

    return primal_dual_algorithm(one)


def classical_accelerated(qp: QP, step: Tensor, beta: Tensor, prox: Prox | None = None) -> Algorithm:
    """Nesterov's method with adaptive restart, with the proximal map of the ℓ1 term when there is one (FISTA).

    y = x + β(x − x₋), then x ← prox(y − γ(Ay + b)); `beta` is the largest momentum.
    """
    gamma, cap = step.view(-1, 1), beta.view(-1, 1)
    prox = prox or (lambda y: proximal_map(qp, y, step))

    def one(state: State) -> State:
        x, previous, t = state
        grown = (1 + torch.sqrt(1 + 4 * t**2)) / 2
        y = x + torch.minimum((t - 1) / grown, cap) * (x - previous)
        new = prox(y - gamma * (torch.einsum("bij,bj->bi", qp.A, y) + qp.b))
        restart = ((y - new) * (new - x)).sum(-1, keepdim=True) > 0
        return new, x, torch.where(restart, torch.ones_like(t), grown)

    return Algorithm(
        start=lambda x, dual: (x, x, torch.ones_like(cap)),
        step=one,
        read=lambda state: (state[0], qp.d[:, :0]),
    )


def classical_newton_schulz(qp: QP, scale: Tensor) -> Algorithm:
    """X ← X(2I − AX) from X = scale·I, read out as x = −Xb."""
    eye = torch.eye(qp.n, dtype=qp.A.dtype, device=qp.A.device)
    return Algorithm(
        start=lambda x, dual: (scale.view(-1, 1, 1) * eye,),
        step=lambda state: (2 * state[0] - state[0] @ qp.A @ state[0],),
        read=lambda state: (-(state[0] @ qp.b.unsqueeze(-1)).squeeze(-1), qp.b.new_zeros(len(qp), 0)),
    )


def classical_admm(qp: QP, parts: AdmmSplitting) -> Algorithm:
    """OSQP's iteration with its own variables x, z, y: solve, relax, project, update the multiplier."""
    K, W, rho, alpha = parts.K, parts.W, parts.rho, parts.alpha
    b = qp.b.unsqueeze(1)

    def prox(v: Tensor) -> Tensor:
        if qp.m:
            return torch.minimum(v, qp.d.unsqueeze(1))
        if qp.l1_penalty is not None:
            return soft_threshold(v, qp.l1_penalty.view(-1, 1, 1) / rho)
        if qp.l1_radius is None:
            return v
        return soft_threshold(v, simplex_threshold(v.abs(), qp.l1_radius.view(-1, 1, 1)).clamp_min_(0))

    def solve(z: Tensor, y: Tensor) -> Tensor:
        return ((rho * z - y) @ K - b) @ W

    def start(x: Tensor, dual: Tensor) -> State:
        point = (K @ x.unsqueeze(-1)).mT
        v = point + dual.unsqueeze(1) / rho if qp.m else point
        z = prox(v)
        return z, rho * (v - z)

    def one(state: State) -> State:
        z, y = state
        relaxed = alpha * (solve(z, y) @ K.mT) + (1 - alpha) * z
        new = prox(relaxed + y / rho)
        return new, y + rho * (relaxed - new)

    def read(state: State) -> tuple[Tensor, Tensor]:
        z, y = state
        if not qp.m:
            return z.squeeze(1), qp.d[:, :0]
        return solve(z, y).squeeze(1), y.squeeze(1)

    return Algorithm(start, one, read)
