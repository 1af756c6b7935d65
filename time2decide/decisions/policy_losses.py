"""What a decision network is trained on and for: stretches with the network's own history, and the two losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.decisions.policy import HISTORY, Policy, Situation
from time2decide.decisions.policy_data import Stretches
from time2decide.qp.projections import project_portfolio

_FAR = 20.0  # in weights: beyond it a score is decided
_ROWS = 2048  # decisions per call while histories are gathered


class Group:
    """Stretches with the same number of assets, and the network's own allocations on them."""

    def __init__(self, data: Stretches) -> None:
        self.data = data
        length, m = data.oracle.shape[2:]
        self.steps = length - HISTORY
        self.own = data.oracle.clone()
        stale = 0.5 * self.own[:, :, :1] + 0.5 / m  # nobody knows the oracle's path at the start
        self.own[:, :, :HISTORY] = stale

    def situation(self, stretch: Tensor, budget: Tensor, step: Tensor, hindsight: Tensor) -> Situation:
        """The situations of decisions (stretch, budget, step), each (n,)."""
        past = step[:, None] + torch.arange(HISTORY - 1, -1, -1)  # row HISTORY + step is the decision itself
        index = stretch[:, None], budget[:, None], past
        history = torch.where(hindsight[:, None, None] > 0, self.data.oracle[index], self.own[index])
        return Situation(
            self.data.outlook[stretch * self.steps + step],
            history.transpose(1, 2),  # (n, m, HISTORY)
            hindsight,
            self.data.turnover_l1[stretch, budget],
            self.data.risk_aversion[stretch],
        )

    @torch.no_grad()
    def gather(self, model: Policy, chosen: Tensor) -> None:
        """Roll the network out on the chosen stretches and remember what it held."""
        k = self.data.turnover_l1.shape[1]
        for part in torch.split(chosen, max(_ROWS // k, 1)):
            stretch, budget = part.repeat_interleave(k), torch.arange(k).repeat(len(part))
            for s in range(self.steps):
                step = torch.full_like(stretch, s)
                situation = self.situation(stretch, budget, step, torch.zeros(len(stretch)))
                weights = model(situation).weights
                previous = situation.allocations[..., 0]
                held = project_portfolio(weights, previous, situation.turnover_l1)
                self.own[stretch, budget, HISTORY + s] = torch.as_tensor(held)


def policy_loss(
    model: Policy, situation: Situation, data: Stretches, place: tuple[Tensor, Tensor, Tensor], return_weight: float
) -> Tensor:
    """Weighted ‖ŝ − s*‖² + λ_r·(r̂ − r)²/unit², the latter linear beyond 3 units as Huber has it.

    The weights make every γ and noise level count about the same.
    """
    stretch, budget, step = place
    answer = model(situation)
    target = data.oracle[stretch, budget, HISTORY + step]
    gamma, noise = situation.turnover_l1.clamp_min(0.25), data.noise[stretch]
    weight = gamma**-1.5 / (0.5 + (noise / 0.01).clamp(max=1.0))
    decision = (weight * (answer.weights - target).square().sum(-1)).mean()
    o = situation.outlook
    unit = (o.scale[..., None] * o.deviations).square().mean((1, 2)).sqrt()[:, None].clamp_min(1e-30)  # (n, 1)
    error = (answer.forecast - data.returns[stretch, step]) / unit
    return decision + return_weight * nn.functional.huber_loss(error, torch.zeros_like(error), delta=3.0)


def utility_loss(
    model: Policy, group: Group, place: tuple[Tensor, Tensor, Tensor], unroll: int, rng: np.random.Generator
) -> Tensor:
    """Minus the utility of consecutive decisions, differentiated through the projection that makes them feasible.

    Weights move from p towards the scores q, s = Π(p + κ·q/unit), with a random κ: large ones act like the exact
    optimiser that is used later, small ones have gradients everywhere. Utility is that above equal weights, in units
    of the volatility of the assets and of what a budget can move.
    """
    data, (stretch, budget, step) = group.data, place
    first = step.clamp_max(max(group.steps - unroll, 0))
    push = torch.from_numpy(np.exp(rng.uniform(np.log(0.1), np.log(3.0), (len(stretch), 1)))).float()
    history, total = None, torch.zeros(())
    for ahead in range(min(unroll, group.steps)):
        now = first + ahead
        situation = group.situation(stretch, budget, now, torch.zeros(len(stretch)))
        history = situation.allocations if history is None else history
        situation = replace(situation, allocations=history)
        o, held = situation.outlook, history[..., 0]
        unit = (o.scale[..., None] * o.deviations).square().mean((1, 2)).sqrt()[:, None].clamp_min(1e-30)  # (n, 1)
        scores = model(situation).scores
        wanted = held + (push * (scores - scores.mean(-1, keepdim=True)) / unit).clamp(-_FAR, _FAR)
        weights = torch.as_tensor(project_portfolio(wanted, held, situation.turnover_l1))
        returns = data.returns[stretch, now]
        earned = (weights * (returns - returns.mean(-1, keepdim=True))).sum(-1)
        risk = torch.einsum("ni,nij,nj->n", weights, data.covariance[stretch, now], weights)
        utility = (earned - situation.risk_aversion * risk) / o.scale.square().mean(-1).sqrt()
        total = total - (utility / situation.turnover_l1.clamp_min(0.25)).mean()
        history = torch.cat([weights[..., None], history[..., :-1]], dim=-1)
    return total / unroll
