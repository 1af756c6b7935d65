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
from torch import Tensor

from time2decide.attention.gradient import gradient_layer
from time2decide.attention.loop import Algorithm, State
from time2decide.attention.projected_gradient import projection_threshold_loop
from time2decide.qp.problem import QP
from time2decide.qp.projections import soft_threshold

Prox = Callable[[Tensor], Tensor]  # what follows the gradient, on rows (batch, 1, n)


def accelerated_form(qp: QP, step: Tensor, beta: Tensor, form: str, prox: Prox | None = None) -> Algorithm:
    """Both attention blocks, then the network or the loop; `beta` is the largest momentum.

    The scores of the first block are β(1, −1) and (1, −1), whatever the iterates.
    """
    gradient, cap = gradient_layer(qp, step, form), beta.view(-1, 1, 1)
    prox = prox or _threshold(qp, step)

    def layer(state: State) -> State:
        x, previous, t = state
        weight, grown = _next_momentum(t, cap)
        y = torch.addcmul(x, weight, x - previous)
        new = prox(gradient(y))
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


def _threshold(qp: QP, step: Tensor) -> Prox:
    """S_θ with the θ of the class: γλ for (R), the loop's answer for (C), none for (U)."""
    if qp.l1_penalty is not None:
        level = (step * qp.l1_penalty).view(-1, 1, 1)
        return lambda y: soft_threshold(y, level)
    if qp.l1_radius is not None:
        radius = qp.l1_radius.view(-1, 1, 1)
        return lambda y: soft_threshold(y, projection_threshold_loop(y.abs(), radius, torch.zeros_like(radius)))
    return lambda y: y
