"""Arrow–Hurwicz on (LC) by a macro-block of two attention blocks.

x ← x − γ(Ax + b + Cᵀλ),   then   λ ← [λ + η(Cx − d)]₊
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from time2decide.attention.layers import LinearAttentionHead, slot_selector
from time2decide.attention.loop import Algorithm, State, primal_dual_algorithm
from time2decide.qp.problem import QP


class ArrowHurwicz(nn.Module):
    """The transformer of the second construction.

    Tokens have width 2n + m + 1, in slots (content n, identity n, dual m, constant 1):

        row i of A: [aᵢ, eᵢ, 0, bᵢ]    row i of C: [cᵢ, 0, eᵢ, −dᵢ]    iterate: [x, 0, 0, 1]    dual: [0, 0, λ, 0]

    First block, two heads: from the iterate, query and key [content, constant], value the identity slots: Ax + b.
    From the dual token, query and key the dual slots, value the content: Cᵀλ. Their sum, times −γ, is added to
    the iterate's row. Second block, from the new iterate: query and key [content, constant], value the dual
    slots: Cx − d; times η it is added to the dual row and a ReLU on the dual slots follows.

    The dual token's constant slot is 0, not 1 as in the paper: with 1 its key meets the iterate's query and its
    own value λ enters the sum, so that attention over all tokens would give Cx − d + λ. No head needs that 1.
    """

    def __init__(self, n: int, m: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.n, self.m, self.width = n, m, 2 * n + m + 1
        content = slot_selector(n, self.width, 0, dtype)
        identity = slot_selector(n, self.width, n, dtype)
        dual = slot_selector(m, self.width, 2 * n, dtype)
        constant = slot_selector(1, self.width, 2 * n + m, dtype)
        point = torch.cat([content, constant]).mT
        self.objective_head = LinearAttentionHead(W_Q=point, W_K=point, W_V=identity.mT, W_O=content)
        self.multiplier_head = LinearAttentionHead(W_Q=dual.mT, W_K=dual.mT, W_V=content.mT, W_O=content)
        self.constraint_head = LinearAttentionHead(W_Q=point, W_K=point, W_V=dual.mT, W_O=dual)

    def data_tokens(self, qp: QP) -> Tensor:
        """Rows of A with b, rows of C with −d: (batch, n + m, width)."""
        n, m = self.n, self.m
        rows = qp.A.new_zeros(len(qp), n + m, self.width)
        rows[:, :n, :n] = qp.A
        rows[:, :n, n : 2 * n] = torch.eye(n, dtype=qp.A.dtype, device=qp.A.device)
        rows[:, :n, -1] = qp.b
        rows[:, n:, :n] = qp.C
        rows[:, n:, 2 * n : 2 * n + m] = torch.eye(m, dtype=qp.A.dtype, device=qp.A.device)
        rows[:, n:, -1] = -qp.d
        return rows

    def iterate_tokens(self, x: Tensor, dual: Tensor) -> Tensor:
        """The iterate's and the dual's token: (batch, 2, width)."""
        rows = x.new_zeros(len(x), 2, self.width)
        rows[:, 0, : self.n] = x
        rows[:, 0, -1] = 1
        rows[:, 1, 2 * self.n : 2 * self.n + self.m] = dual
        return rows

    def forward(self, tokens: Tensor, step: Tensor, dual_step: Tensor) -> Tensor:
        """One macro-block on all tokens (batch, n + m + 2, width)."""
        data, x, dual = tokens[:, :-2], tokens[:, -2:-1], tokens[:, -1:]
        x = x - step.view(-1, 1, 1) * (self.objective_head(x, tokens) + self.multiplier_head(dual, tokens))
        tokens = torch.cat([data, x, dual], dim=1)
        dual = torch.relu(dual + dual_step.view(-1, 1, 1) * self.constraint_head(x, tokens))
        return torch.cat([data, x, dual], dim=1)


def arrow_hurwicz_form(qp: QP, step: Tensor, dual_step: Tensor, form: str) -> Algorithm:
    """Arrow–Hurwicz by attention: scores over cached keys ("literal"), or the heads' states formed once ("state")."""
    return (_cached if form == "literal" else _multiplied)(qp, step, dual_step)


def _cached(qp: QP, step: Tensor, dual_step: Tensor) -> Algorithm:
    """The macro-block with keys and values of the data tokens formed once, and scores in every layer.

    Rows of A have unit vectors as values, and so have rows of C in the second block: their scores go to the slots of
    their rows as they are. In the first block the key of a row of C is a unit vector: its score is its multiplier.
    """
    n, m = qp.n, qp.m
    model = ArrowHurwicz(n, m, qp.A.dtype).to(qp.A.device)
    data, gamma, eta = model.data_tokens(qp), -step.view(-1, 1, 1), dual_step.view(-1, 1, 1)
    keys = model.objective_head.cache(data)[0]  # (batch, n + 1, n + m), those of both blocks
    rows, b = keys[:, :n, :n].contiguous(), keys[:, n:, :n].contiguous()
    limits, minus_d = keys[:, :n, n:].contiguous(), keys[:, n:, n:].contiguous()
    pull = model.multiplier_head.cache(data)[1][:, n:, :n].contiguous()  # (batch, m, n)

    def layer(state: State) -> State:
        x, dual = state
        x = torch.addcmul(x, torch.baddbmm(torch.baddbmm(b, x, rows), dual, pull), gamma)
        return x, torch.addcmul(dual, torch.baddbmm(minus_d, x, limits), eta).relu_()

    return primal_dual_algorithm(layer)


def _multiplied(qp: QP, step: Tensor, dual_step: Tensor) -> Algorithm:
    """The same weights with the three heads' states cached, residual and step sizes folded in."""
    n, m = qp.n, qp.m
    model = ArrowHurwicz(n, m, qp.A.dtype).to(qp.A.device)
    data = model.data_tokens(qp)
    gamma, eta = step.view(-1, 1, 1), dual_step.view(-1, 1, 1)
    objective = model.objective_head.state(data)[:, :, :n]  # (batch, n + 1, n)
    M = torch.eye(n, dtype=qp.A.dtype, device=qp.A.device) - gamma * objective[:, :n].contiguous()
    c = -gamma * objective[:, n:].contiguous()
    pull = -gamma * model.multiplier_head.state(data)[:, :, :n].contiguous()  # (batch, m, n)
    constraint = eta * model.constraint_head.state(data)[:, :, 2 * n : 2 * n + m]  # (batch, n + 1, m)
    push = constraint[:, :n].mT.contiguous().mT  # stored by constraint: faster to read for few constraints
    shift = constraint[:, n:].contiguous()

    def layer(state: State) -> State:
        x, dual = state
        x = torch.baddbmm(torch.baddbmm(c, x, M), dual, pull)
        return x, torch.baddbmm(dual, x, push).add_(shift).relu_()

    return primal_dual_algorithm(layer)
