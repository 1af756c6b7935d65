"""Nesterov's method on (U) and FISTA on (R) and (C), with two iterate tokens.

    y = x + β(x − x₋),   x₋ ← x,   x ← prox(y − γ(Ay + b))

A layer is two attention blocks. The first mixes the two iterate tokens by their identity: each carries a slot that
says which of the two it is, queries and keys read only these slots and the values are the contents, so that the
head adds β(x − x₋) to the first and x − x₋ to the second. The second block is the gradient head at the first
token, and the feed-forward network of ISTA or its threshold loop follows.

The momentum is β = min((t − 1)/t₊, (√κ − 1)/(√κ + 1)) with t₊ = (1 + √(1 + 4t²))/2, where t is a scalar carried
from layer to layer as the threshold is. When the score ⟨y − x, x − x₋⟩ of the new iterate is positive the momentum
points uphill and t goes back to 1 (O'Donoghue and Candès): the method then follows the conditioning on the
support, which is better than κ. Rate: with γ = 1/L the error shrinks by about 1 − 1/√κ per layer instead of 1 − 1/κ.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from time2decide.attention.gradient import GradientDescent
from time2decide.attention.layers import LinearAttentionHead, SoftThresholdFFN, slot_selector
from time2decide.attention.loop import Algorithm, State
from time2decide.attention.projected_gradient import projection_threshold_loop
from time2decide.qp.problem import QP
from time2decide.qp.projections import soft_threshold

Prox = Callable[[Tensor], Tensor]  # what follows the gradient, on rows (batch, 1, n)


class Accelerated(nn.Module):
    """Gradient tokens widened by two slots, (current, previous), that are set on the iterate tokens only."""

    def __init__(self, n: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.gradient = GradientDescent(n, dtype)
        self.ffn = SoftThresholdFFN(n, dtype)
        self.n, self.width = n, self.gradient.width + 2
        which = slot_selector(2, self.width, self.width - 2, dtype)  # the two identity slots
        content = slot_selector(n, self.width, 0, dtype)
        # query [current, previous] -> key weights: the scores become β(1, −1) and (1, −1) after scaling rows by β
        difference = torch.tensor([[1.0, -1.0], [1.0, -1.0]], dtype=dtype)
        self.mixing_head = LinearAttentionHead(W_Q=which.mT @ difference, W_K=which.mT, W_V=content.mT, W_O=content)

    def tokens(self, qp: QP, x: Tensor) -> Tensor:
        """Data tokens, then the current and the previous iterate: (batch, n + 3, 2n + 3)."""
        narrow = torch.cat([self.gradient.data_tokens(qp), *2 * [self.gradient.iterate_token(x)]], dim=1)
        which = narrow.new_zeros(len(qp), qp.n + 3, 2)
        which[:, -2, 0] = which[:, -1, 1] = 1
        return torch.cat([narrow, which], dim=2)

    def forward(self, tokens: Tensor, step: Tensor, beta: Tensor) -> Tensor:
        """Both attention blocks; the network or the loop on the current token is left to the caller."""
        data, pair = tokens[:, :-2], tokens[:, -2:]
        share = torch.stack([beta, torch.ones_like(beta)], dim=1).unsqueeze(-1)  # (batch, 2, 1)
        pair = pair + share * self.mixing_head(pair, tokens)
        narrow = self.gradient.width
        moved = self.gradient(torch.cat([data[..., :narrow], pair[:, :1, :narrow]], dim=1), step)[:, -1:]
        current = torch.cat([moved, pair[:, :1, narrow:]], dim=2)
        return torch.cat([data, current, pair[:, 1:]], dim=1)


def accelerated_literal(qp: QP, step: Tensor, beta: Tensor, prox: Prox | None = None) -> Algorithm:
    """The token matrix goes through both blocks, scores and all; `beta` is the largest momentum."""
    model = Accelerated(qp.n, qp.A.dtype).to(qp.A.device)
    n, cap, prox = qp.n, beta.view(-1, 1, 1), prox or _threshold(qp, step, model.ffn)

    def layer(state: State) -> State:
        tokens, t = state
        weight, grown = _next_momentum(t, cap)
        x, previous = tokens[:, -2:-1, :n], tokens[:, -1:, :n]
        y = torch.addcmul(x, weight, x - previous)
        tokens = model(tokens, step, weight.flatten())
        new = prox(tokens[:, -2:-1, :n])
        current = torch.cat([new, tokens[:, -2:-1, n:]], dim=2)
        return torch.cat([tokens[:, :-2], current, tokens[:, -1:]], dim=1), _restarted(grown, y, new, x)

    return Algorithm(
        start=lambda x, dual: (model.tokens(qp, x), torch.ones_like(cap)),
        step=layer,
        read=lambda state: (state[0][:, -2, :n], qp.d[:, :0]),
    )


def accelerated_state(qp: QP, step: Tensor, beta: Tensor, prox: Prox | None = None) -> Algorithm:
    """Cached attention: by linearity the gradient is read once, at y."""
    M, c = GradientDescent(qp.n, qp.A.dtype).to(qp.A.device).state(qp, step)
    cap, prox = beta.view(-1, 1, 1), prox or _threshold(qp, step, soft_threshold)

    def layer(state: State) -> State:
        x, previous, t = state
        weight, grown = _next_momentum(t, cap)
        y = torch.addcmul(x, weight, x - previous)
        new = prox(torch.baddbmm(c, y, M))
        return new, x, _restarted(grown, y, new, x)

    return Algorithm(
        start=lambda x, dual: (x.unsqueeze(1), x.unsqueeze(1), torch.ones_like(cap)),
        step=layer,
        read=lambda state: (state[0].squeeze(1), qp.d[:, :0]),
    )


def _next_momentum(t: Tensor, cap: Tensor) -> tuple[Tensor, Tensor]:
    """β of this layer and t of the next, both (batch, 1, 1)."""
    grown = (1 + (1 + 4 * t * t).sqrt()) / 2
    return torch.minimum((t - 1) / grown, cap), grown


def _restarted(t: Tensor, y: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """t, set back to 1 where the momentum points uphill."""
    uphill = ((y - new) * (new - old)).sum(-1, keepdim=True) > 0
    return torch.where(uphill, torch.ones_like(t), t)


def _threshold(qp: QP, step: Tensor, shrink: Callable[[Tensor, Tensor], Tensor]) -> Prox:
    """S_θ with the θ of the class: γλ for (R), the loop's answer for (C), none for (U)."""
    if qp.l1_penalty is not None:
        level = (step * qp.l1_penalty).view(-1, 1, 1)
        return lambda y: shrink(y, level)
    if qp.l1_radius is not None:
        radius = qp.l1_radius.view(-1, 1, 1)
        return lambda y: shrink(y, projection_threshold_loop(y.abs(), radius, torch.zeros_like(radius)))
    return lambda y: y
