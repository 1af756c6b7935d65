"""Projected gradient on (C): the ISTA layer whose threshold is found by a feedback loop.

The loop of the construction is θ ← θ + η[‖S_θ(y)‖₁ − B]₊. With η ≤ 1/n, as in the paper, the excess shrinks by
1 − |active|/n per turn. With η = 1/|active|, where the active set is {i : |yᵢ| > θ}, one turn lands exactly on the
answer as soon as the active set is right: the excess is linear in θ there. Seen as Newton's method on the convex
piecewise linear function θ ↦ ‖S_θ(y)‖₁ − B, it ends after finitely many turns from any start: from the right of
the root one turn goes to its left, and from the left the active set only shrinks. A layer therefore starts its
loop from the threshold of the layer before, and needs one or two turns once the iterates settle.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from time2decide.attention.gradient import gradient_layer
from time2decide.attention.loop import Algorithm, State, primal_algorithm
from time2decide.core.validation import expect
from time2decide.qp.problem import QP
from time2decide.qp.projections import is_single_vector, soft_threshold

ETAS = ("active", "paper")  # η = 1/|active set|, or the paper's 1/n


def projected_gradient_form(qp: QP, step: Tensor, form: str, *, eta: str = "active") -> Algorithm:
    """Attention layer, then the network in its loop on the scalar θ, which the state carries from layer to layer."""
    expect(eta in ETAS, "eta", f"one of {', '.join(ETAS)}", f"{eta!r}")
    layer = gradient_layer(qp, step, form)
    assert qp.l1_radius is not None
    radius = qp.l1_radius.view(-1, 1, 1)
    loop = projection_threshold_loop if eta == "active" else _paper_loop

    def one(state: State) -> State:
        y = layer(state[0])
        theta = loop(y.abs(), radius, state[1])
        return soft_threshold(y, theta), theta

    return replace(primal_algorithm(one), start=lambda x, dual: (x.unsqueeze(1), torch.zeros_like(radius)))


def _paper_loop(size: Tensor, radius: Tensor, theta: Tensor, tol: float = 1e-14) -> Tensor:
    """θ ← θ + [‖S_θ(y)‖₁ − B]₊/n from θ = 0."""
    theta = torch.zeros_like(theta)
    for _ in range(100_000):
        excess = ((size - theta).relu_().sum(-1, keepdim=True) - radius).relu_()
        if bool((excess <= tol * radius.clamp_min(1)).all()):
            break
        theta = theta + excess / size.shape[-1]
    return theta


def projection_threshold_loop(size: Tensor, radius: Tensor, theta: Tensor) -> Tensor:
    """θ ≥ 0 with Σ(size − θ)₊ = radius, or 0 where the sum of sizes is within it; starts from `theta`.

    size (batch, 1, n), radius and theta (batch, 1, 1). Threshold sets are nested, so that equal counts before and
    after a turn mean equal sets: then the turn was exact.
    """
    if is_single_vector(size):
        return torch.full_like(theta, _loop_of_one(size.numpy().ravel(), radius.item(), theta.item()))
    before = None
    for _ in range(2 * size.shape[-1] + 4):
        over = (size - theta).relu_()
        excess = over.sum(-1, keepdim=True).sub_(radius)
        count = over.sign_().sum(-1, keepdim=True)
        if before is not None and torch.equal(before, count):
            if count.amin().item() > 0:
                break
            # a start beyond every entry: max(size) − radius is at most θ, and is θ where the radius is 0
            lowest = (size.amax(-1, keepdim=True) - radius).clamp_min_(0)
            restart = torch.where(count > 0, theta, lowest)
            if torch.equal(restart, theta):
                break
            theta, before = restart, None
            continue
        theta, before = torch.addcdiv(theta, excess, count.clamp(min=1)).clamp_min_(0), count
    return theta


def _loop_of_one(size: np.ndarray, radius: float, theta: float) -> float:
    """The same loop for one problem in numpy, whose calls cost less than torch's on short vectors."""
    before = -1
    for _ in range(2 * len(size) + 4):  # rounding can make two sets alternate at a tie; either is exact then
        active = size[size > theta]
        count = len(active)
        if count == before:
            break
        if count:
            theta, before = max(0.0, (float(np.add.reduce(active)) - radius) / count), count
        else:  # a start beyond every entry: max(size) − radius is at most θ, and is θ where the radius is 0
            theta, before = max(0.0, float(size.max()) - radius), 0 if radius == 0 else -1
    return theta
