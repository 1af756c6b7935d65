"""ADMM, the iteration of OSQP, for (LC), (R) and (C) by attention; without a second term it is the proximal method.

Split the problem into ½xᵀAx + bᵀx and g(z) with z = Kx: for (LC) K = C and g keeps z ≤ d, for (R) and (C) K = I and
g is the ℓ1 term. With the scaled dual u = y/ρ, all of z and u follow from v = z + u, because z = prox(v) and
u = v − z. In v, relaxed ADMM is one short line (the Douglas–Rachford form):

    z = prox(v),   x = W(ρKᵀ(2z − v) − b),   v ← v + α(Kx − z),   W = (A + ρKᵀK)⁻¹,   dual = ρ(v − z).

Proof sketch of the layer. prox is a ReLU network on the v-token: v − ReLU(v − d) for (LC), the threshold networks
of the other constructions for (R) and (C). The rest is linear in (z, v): heads from the v-token to the rows of K
(value the row: Kᵀ), to the rows of W, and again to the rows of K (value the identity: K) give x and Kx, and the
residual adds to v. W is formed once per problem, by Newton–Schulz attention layers or, faster, by a factorisation.
Convergence: v ↦ v + α(Kx − z) is an averaged operator for 0 < α < 2, whatever ρ > 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from time2decide.attention.layers import LinearAttentionHead, slot_selector
from time2decide.attention.loop import Algorithm, State
from time2decide.attention.newton_schulz import newton_schulz_inverse
from time2decide.attention.projected_gradient import projection_threshold_loop
from time2decide.core.validation import ArrayLike, expect, per_instance, validate_choice, validate_positive
from time2decide.qp.problem import QP
from time2decide.qp.projections import soft_threshold

Linear = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class AdmmSplitting:
    """Data of a layer: K (batch, k, n), W (batch, n, n), ρ (batch, 1, 1) and α."""

    K: Tensor
    W: Tensor
    rho: Tensor
    alpha: float


def admm_splitting(qp: QP, rho: ArrayLike = None, alpha: float = 1.8, inverse_by: str = "cholesky") -> AdmmSplitting:
    """Choose ρ and form W.

    By default ρ = f/√(λ_min λ_max) of KA⁻¹Kᵀ over its nonzero eigenvalues. f = 1 is the best choice when every
    row is active; the measured best for the paper's problems, where few are, is 0.5 for (LC) and 2 for (C).
    """
    validate_choice("inverse_by", inverse_by, ("cholesky", "newton_schulz"))
    expect(validate_positive("alpha", alpha) < 2, "alpha", "0 < alpha < 2", alpha)
    eye = torch.eye(qp.n, dtype=qp.A.dtype, device=qp.A.device)
    K = qp.C if qp.m else eye.expand(len(qp), qp.n, qp.n)
    if rho is None:
        values = torch.linalg.eigvalsh(K @ torch.cholesky_solve(K.mT, torch.linalg.cholesky(qp.A)))
        values = torch.where(values[:, -1:] > 0, values, 1.0)  # constraints without variables: any ρ will do
        small = torch.where(values > 1e-9 * values[:, -1:], values, torch.inf).amin(-1)
        weight = {"LC": 0.5, "C": 2.0}.get(qp.kind, 1.0) / (small * values[:, -1]).sqrt()
    else:
        weight = per_instance("rho", rho, qp.b, (len(qp),), allow_negative=True).expand(len(qp))
        least = weight.min().item()
        expect(least > 0, "rho", "a positive number", least)
    rho3 = weight.view(-1, 1, 1)
    H = qp.A + rho3 * K.mT @ K
    if inverse_by == "newton_schulz":
        values = torch.linalg.eigvalsh(H)
        W = newton_schulz_inverse(H, 2 / (values[:, 0] + values[:, -1]))
    else:
        W = torch.cholesky_inverse(torch.linalg.cholesky(H))
    return AdmmSplitting(K, W, rho3, alpha)


class ADMM(nn.Module):
    """Tokens of width 2n + k + 1 in slots (content n, identity n, dual k, constant 1).

        row i of W: [wᵢ, eᵢ, 0, 0]   row i of K: [Kᵢ, 0, eᵢ, 0]   b: [b, 0, 0, 1]

    gather: query and key the dual slots, value the content: ρKᵀs at a token that holds s = 2z − v in its dual
    slots. offset: query and key the constant, value the content: b. solve: query the content, key the identity,
    value the content: x = W·content. measure: query and key the content, value the dual slots: Kx.
    """

    def __init__(self, n: int, k: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.n, self.k, self.width = n, k, 2 * n + k + 1
        content, identity = slot_selector(n, self.width, 0, dtype), slot_selector(n, self.width, n, dtype)
        dual, constant = slot_selector(k, self.width, 2 * n, dtype), slot_selector(1, self.width, 2 * n + k, dtype)
        self.gather = LinearAttentionHead(dual.mT, dual.mT, content.mT, content)
        self.offset = LinearAttentionHead(constant.mT, constant.mT, content.mT, content)
        self.solve = LinearAttentionHead(content.mT, identity.mT, content.mT, content)
        self.measure = LinearAttentionHead(content.mT, content.mT, dual.mT, dual)

    def data_tokens(self, qp: QP, parts: AdmmSplitting) -> Tensor:
        """Rows of W, rows of K, and b: (batch, n + k + 1, width)."""
        n, k = self.n, self.k
        rows = qp.A.new_zeros(len(qp), n + k + 1, self.width)
        rows[:, :n, :n] = parts.W
        rows[:, :n, n : 2 * n] = torch.eye(n, dtype=qp.A.dtype, device=qp.A.device)
        rows[:, n : n + k, :n] = parts.K
        rows[:, n : n + k, 2 * n : 2 * n + k] = torch.eye(k, dtype=qp.A.dtype, device=qp.A.device)
        rows[:, -1, :n] = qp.b
        rows[:, -1, -1] = 1
        return rows


def admm_form(qp: QP, parts: AdmmSplitting, form: str) -> Algorithm:
    """Heads over the data tokens: scores over cached keys in every layer, or all of them multiplied out once."""
    model = ADMM(qp.n, parts.K.shape[1], qp.A.dtype).to(qp.A.device)
    data = model.data_tokens(qp, parts)
    return _algorithm(qp, parts, (_cached if form == "literal" else _multiplied)(model, data, parts))


def _cached(model: ADMM, data: Tensor, parts: AdmmSplitting) -> Linear:
    """x and Kx from s = 2z − v by three heads: a row's score is its dual slot, then its slot of ρKᵀs − b, then kᵢx."""
    n, k = model.n, model.k
    rows = model.gather.cache(data)[1][:, n : n + k, :n].contiguous()  # values of the rows of K
    minus_b = -model.offset.cache(data)[1][:, -1:, :n]
    inverse = model.solve.cache(data)[1][:, :n, :n].contiguous()  # values of the rows of W
    keys = model.measure.cache(data)[0][:, :, n : n + k].contiguous()  # (batch, n, k)

    def linear(s: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.bmm(torch.baddbmm(minus_b, s * parts.rho, rows), inverse)
        return x, torch.bmm(x, keys)

    return linear


def _multiplied(model: ADMM, data: Tensor, parts: AdmmSplitting) -> Linear:
    """The heads' states multiplied out once: x and Kx are one product each with s."""
    n, k = model.n, model.k
    solve, measure = model.solve.state(data)[..., :n], model.measure.state(data)[..., 2 * n : 2 * n + k]
    to_x = parts.rho * model.gather.state(data)[..., :n] @ solve  # (batch, k, n)
    shift_x = -model.offset.state(data)[..., :n] @ solve  # (batch, 1, n)
    both = torch.cat([to_x, to_x @ measure], dim=-1)  # (batch, k, n + k)
    shift = torch.cat([shift_x, shift_x @ measure], dim=-1)

    def linear(s: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.baddbmm(shift, s, both)
        return out[..., :n], out[..., n:]

    return linear


def _algorithm(qp: QP, parts: AdmmSplitting, linear: Linear) -> Algorithm:
    """The loop's three functions from the linear part; the state is (v,)."""

    def prox(v: Tensor) -> Tensor:
        return torch.minimum(v, qp.d.unsqueeze(1)) if qp.m else soft_threshold(v, _threshold(qp, parts, v))

    def start(x: Tensor, dual: Tensor) -> State:
        v = (parts.K @ x.unsqueeze(-1)).mT  # (batch, 1, k)
        return (v + dual.unsqueeze(1) / parts.rho if qp.m else v,)

    def step(state: State) -> State:
        v = state[0]
        z = prox(v)
        return (v + parts.alpha * (linear(2 * z - v)[1] - z),)

    def read(state: State) -> tuple[Tensor, Tensor]:
        v = state[0]
        z = prox(v)
        if not qp.m:  # z is sparse and, for (C), inside the ball
            return z.squeeze(1), qp.d[:, :0]
        return linear(2 * z - v)[0].squeeze(1), (parts.rho * (v - z)).squeeze(1)

    return Algorithm(start, step, read)


def _threshold(qp: QP, parts: AdmmSplitting, v: Tensor) -> Tensor:
    """θ of the ℓ1 network: λ/ρ for (R), the loop's answer for (C), 0 without an ℓ1 term."""
    if qp.l1_penalty is not None:
        return qp.l1_penalty.view(-1, 1, 1) / parts.rho
    if qp.l1_radius is None:
        return torch.zeros_like(parts.rho)
    radius = qp.l1_radius.view(-1, 1, 1)
    return projection_threshold_loop(v.abs(), radius, torch.zeros_like(radius))
