"""ISTA on (R): the gradient head followed by a fixed two-layer ReLU network, x ← S_{γλ}(x − γ(Ax + b))."""

from __future__ import annotations

import torch
from torch import Tensor

from time2decide.attention.gradient import GradientDescent, gradient_token_algorithm
from time2decide.attention.layers import SoftThresholdFFN
from time2decide.attention.loop import Algorithm, State, primal_algorithm
from time2decide.qp.problem import QP
from time2decide.qp.projections import soft_threshold


class ISTA(GradientDescent):
    """The gradient construction plus a feed-forward network on the content slots of the iterate's row."""

    def __init__(self, n: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(n, dtype)
        self.ffn = SoftThresholdFFN(n, dtype)

    def threshold(self, tokens: Tensor, theta: Tensor) -> Tensor:
        """Apply the network to the iterate's content; theta is (batch, 1, 1)."""
        shrunk = tokens[:, -1:].clone()
        shrunk[..., : self.n] = self.ffn(tokens[:, -1:, : self.n], theta)
        return torch.cat([tokens[:, :-1], shrunk], dim=1)


def ista_literal(qp: QP, step: Tensor) -> Algorithm:
    """Attention layer, then the network with W₁ = [I; −I], W₂ = [I, −I]."""
    model = ISTA(qp.n, qp.A.dtype).to(qp.A.device)
    theta = _level(qp, step)
    return gradient_token_algorithm(qp, model, lambda state: (model.threshold(model(state[0], step), theta),))


def ista_state(qp: QP, step: Tensor) -> Algorithm:
    """Cached attention; the ±identity weights of the network are applied elementwise."""
    M, c = ISTA(qp.n, qp.A.dtype).to(qp.A.device).state(qp, step)
    theta = _level(qp, step)

    def layer(state: State) -> State:
        return (soft_threshold(torch.baddbmm(c, state[0], M), theta),)

    return primal_algorithm(layer)


def _level(qp: QP, step: Tensor) -> Tensor:
    assert qp.l1_penalty is not None
    return (step * qp.l1_penalty).view(-1, 1, 1)
