"""ISTA on (R): the gradient head followed by a fixed two-layer ReLU network, x ← S_{γλ}(x − γ(Ax + b)).

The network is `layers.SoftThresholdFFN` on the content slots of the iterate's row; its weights ±1 stand alone in their
rows and are applied elementwise.
"""

from __future__ import annotations

from torch import Tensor

from time2decide.attention.gradient import gradient_layer
from time2decide.attention.loop import Algorithm, primal_algorithm
from time2decide.qp.problem import QP
from time2decide.qp.projections import soft_threshold


def ista_form(qp: QP, step: Tensor, form: str) -> Algorithm:
    """Attention layer, then the network."""
    layer = gradient_layer(qp, step, form)
    assert qp.l1_penalty is not None
    theta = (step * qp.l1_penalty).view(-1, 1, 1)
    return primal_algorithm(lambda state: (soft_threshold(layer(state[0]), theta),))
