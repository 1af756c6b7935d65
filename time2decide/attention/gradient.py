"""Gradient descent on (U) by one linear attention head: one layer is x ← x − γ(Ax + b)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from time2decide.attention.layers import LinearAttentionHead, slot_selector
from time2decide.attention.loop import Algorithm, primal_algorithm
from time2decide.qp.problem import QP


class GradientDescent(nn.Module):
    """The transformer of the first construction.

    Tokens have width 2n + 1, in three groups of slots (content, identity, constant):

        row i of A: [aᵢ, eᵢ, 0]      b: [0, b, 1]      iterate: [x, 0, 1]

    The head has W_Q = W_K = [Eᵀ Sᵀ] (content and constant), W_V = Rᵀ (identity) and W_O = E. The iterate's query
    is [x, 1]; row i of A answers ⟨x, aᵢ⟩eᵢ, b answers b, the iterate itself has value 0, so the sum over all
    tokens is Ax + b. The residual on the iterate's row with factor −γ makes one step.
    """

    def __init__(self, n: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.n, self.width = n, 2 * n + 1
        content = slot_selector(n, self.width, 0, dtype)
        identity = slot_selector(n, self.width, n, dtype)
        constant = slot_selector(1, self.width, 2 * n, dtype)
        query = torch.cat([content, constant]).mT
        self.head = LinearAttentionHead(W_Q=query, W_K=query, W_V=identity.mT, W_O=content)

    def data_tokens(self, qp: QP) -> Tensor:
        """Rows of A and b, (batch, n + 1, 2n + 1)."""
        batch, n = len(qp), self.n
        rows = qp.A.new_zeros(batch, n + 1, self.width)
        rows[:, :n, :n] = qp.A
        rows[:, :n, n : 2 * n] = torch.eye(n, dtype=qp.A.dtype, device=qp.A.device)
        rows[:, n, n : 2 * n] = qp.b
        rows[:, n, 2 * n] = 1
        return rows

    def iterate_token(self, x: Tensor) -> Tensor:
        """[x, 0, 1] for x (batch, n), as (batch, 1, 2n + 1)."""
        token = x.new_zeros(len(x), 1, self.width)
        token[:, 0, : self.n] = x
        token[:, 0, 2 * self.n] = 1
        return token

    def forward(self, tokens: Tensor, step: Tensor) -> Tensor:
        """One layer on all tokens (batch, n + 2, 2n + 1): attention at the last row, residual on it alone."""
        iterate = tokens[:, -1:]
        moved = iterate - step.view(-1, 1, 1) * self.head(iterate, tokens)
        return torch.cat([tokens[:, :-1], moved], dim=1)

    def cached(self, qp: QP, step: Tensor) -> Callable[[Tensor], Tensor]:
        """One layer on rows x (batch, 1, n), with keys and values of the data tokens formed once.

        Every call forms the scores ⟨x, aᵢ⟩. The value of row i of A is eᵢ, so that its score goes to slot i as it is;
        that of b is b, and its score is 1.
        """
        n, gamma = self.n, -step.view(-1, 1, 1)
        keys, values = self.head.cache(self.data_tokens(qp))
        rows, b = keys[:, :n, :n].contiguous(), values[:, n:, :n].contiguous()
        return lambda x: torch.addcmul(x, torch.baddbmm(b, x, rows), gamma)

    def state(self, qp: QP, step: Tensor) -> tuple[Tensor, Tensor]:
        """The cached state with residual and γ folded in: M (batch, n, n), c (batch, 1, n), layer x ← xM + c.

        The iterate's own token is left out of the state: its value is zero.
        """
        n = self.n
        cached = self.head.state(self.data_tokens(qp))[:, :, :n]  # (batch, n + 1, n), rows [x slots; constant]
        gamma = step.view(-1, 1, 1)
        eye = torch.eye(n, dtype=qp.A.dtype, device=qp.A.device)
        return (eye - gamma * cached[:, :n]).contiguous(), (-gamma * cached[:, n:]).contiguous()


def gradient_layer(qp: QP, step: Tensor, form: str) -> Callable[[Tensor], Tensor]:
    """x ↦ x − γ(Ax + b) on rows: scores over cached keys ("literal"), or KᵀV formed once ("state")."""
    model = GradientDescent(qp.n, qp.A.dtype).to(qp.A.device)
    if form == "literal":
        return model.cached(qp, step)
    M, c = model.state(qp, step)
    return lambda x: torch.baddbmm(c, x, M)


def gradient_form(qp: QP, step: Tensor, form: str) -> Algorithm:
    """Gradient descent by attention."""
    layer = gradient_layer(qp, step, form)
    return primal_algorithm(lambda state: (layer(state[0]),))
