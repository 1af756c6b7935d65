"""What a decision network is trained on and for: episodes with the network's own history, and the two losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.policy.episodes import Episodes
from time2decide.policy.network import HISTORY, Policy, PolicyInput, unit
from time2decide.qp.projections import project_portfolio

_FAR = 20.0  # in weights: beyond it a score is decided
_INERTIA = (0.1, 10.0)  # range of ω in `utility_loss`, in units of forecast error
_PAIRS = 160_000  # of assets, in decisions that are made at once while histories are gathered: what caches hold
Place = tuple[Tensor, Tensor, Tensor]  # episode, budget and step of decisions, each (n,)


class Group:
    """Episodes with the same number of assets, and the network's own allocations on them."""

    def __init__(self, data: Episodes) -> None:
        self.data = data
        length, m = data.oracle.shape[2:]
        self.steps = length - HISTORY
        self.own = data.oracle.clone()
        stale = 0.5 * self.own[:, :, :1] + 0.5 / m  # nobody knows the oracle's path at the start
        self.own[:, :, :HISTORY] = stale

    def observation(self, episode: Tensor, budget: Tensor, step: Tensor, hindsight: Tensor) -> PolicyInput:
        """What the network sees at decisions (episode, budget, step), each (n,)."""
        past = step[:, None] + torch.arange(HISTORY - 1, -1, -1)  # row HISTORY + step is the decision itself
        index = episode[:, None], budget[:, None], past
        history = torch.where(hindsight[:, None, None] > 0, self.data.oracle[index], self.own[index])
        return PolicyInput(
            self.data.features[self.data.windows[episode, step]],
            history.transpose(1, 2),  # (n, m, HISTORY)
            hindsight,
            self.data.turnover_l1[episode, budget],
            self.data.risk_aversion[episode],
        )

    @torch.no_grad()
    def gather(self, model: Policy, chosen: Tensor) -> None:
        """Roll the network out on the chosen episodes and remember its weights."""
        k, m = self.data.turnover_l1.shape[1], self.own.shape[-1]
        for part in torch.split(chosen, max(_PAIRS // (k * m * m), 1)):
            episode, budget = part.repeat_interleave(k), torch.arange(k).repeat(len(part))
            for s in range(self.steps):
                step = torch.full_like(episode, s)
                observation = self.observation(episode, budget, step, torch.zeros(len(episode)))
                target = _target(model, observation, torch.tensor(_INERTIA[0]))
                weights = project_portfolio(target, observation.allocations[..., 0], observation.turnover_l1)
                self.own[episode, budget, HISTORY + s] = torch.as_tensor(weights)


def policy_loss(model: Policy, observation: PolicyInput, data: Episodes, place: Place, return_weight: float) -> Tensor:
    """Weighted ‖ŝ − s*‖² + λ_r·(r̂ − r)²/unit², the latter linear beyond 3 units as Huber has it.

    The weights make every γ and noise level count about the same.
    """
    episode, budget, step = place
    answer = model(observation)
    target = data.oracle[episode, budget, HISTORY + step]
    gamma, noise = observation.turnover_l1.clamp_min(0.25), data.noise[episode]
    weight = gamma**-1.5 / (0.5 + (noise / 0.01).clamp(max=1.0))
    decision = (weight * (answer.weights - target).square().sum(-1)).mean()
    error = (answer.forecast - data.returns[episode, step]) / unit(observation.features)[:, None]
    return decision + return_weight * nn.functional.huber_loss(error, torch.zeros_like(error), delta=3.0)


def utility_loss(
    model: Policy,
    group: Group,
    place: Place,
    inertia: Tensor,
    unroll: int,
    cost: float = 0.0,
) -> Tensor:
    """Minus the utility of consecutive decisions, differentiated through the projection that makes them feasible.

    A network for utility with scores q and curvature κ moves the weights p to argmax qᵀs − 2λ pᵀΣs − κ/2 ‖s‖² −
    ω/2 ‖s − p‖², that is Π((q − 2λΣp + ωp)/(κ + ω)), with a random ω (`inertia`): small ones act like the exact
    optimum that is used later, large ones have gradients everywhere. Any other network is taken at its word, s = Π(ŝ).
    Utility is that above equal weights less `cost` times what is traded, in units of the volatility of the assets and
    of what a budget can move.
    """
    data, (episode, budget, step) = group.data, place
    first = step.clamp_max(max(group.steps - unroll, 0))
    history, total = None, torch.zeros(())
    for ahead in range(min(unroll, group.steps)):
        now = first + ahead
        observation = group.observation(episode, budget, now, torch.zeros(len(episode)))
        history = observation.allocations if history is None else history
        observation = replace(observation, allocations=history)
        current = history[..., 0]
        weights = project_portfolio(_target(model, observation, inertia), current, observation.turnover_l1)
        weights = torch.as_tensor(weights)
        earned = _utility(weights, data.returns[episode, now], data.covariance[episode, now], observation.risk_aversion)
        earned = earned - cost * (weights - current).abs().sum(-1)
        total = total - (earned / _size(observation.features.scale, observation.turnover_l1)).mean()
        history = torch.cat([weights[..., None], history[..., :-1]], dim=-1)
    return total / unroll


def draw_inertia(count: int, rng: np.random.Generator) -> Tensor:
    """ω of `utility_loss` in units of forecast error, log-uniform, (count, 1)."""
    low, high = np.log(_INERTIA)
    return torch.from_numpy(np.exp(rng.uniform(low, high, (count, 1)))).float()


def _target(model: Policy, observation: PolicyInput, inertia: Tensor) -> Tensor:
    """Target weights before they are projected, (n, m)."""
    answer = model(observation)
    if model.config.objective == "oracle":
        return answer.weights
    o, current = observation.features, observation.allocations[..., 0]
    risk = (
        2 * observation.risk_aversion[:, None] * o.scale * torch.einsum("nij,nj->ni", o.correlation, o.scale * current)
    )
    gradient = answer.scores - risk
    omega = inertia * unit(o)[:, None]
    pull = (gradient - gradient.mean(-1, keepdim=True)) / (answer.curvature[:, None] + omega)
    return pull.clamp(-_FAR, _FAR) + current * omega / (answer.curvature[:, None] + omega)


def rollout_utility(group: Group, cost: float) -> Tensor:
    """Utility as in `utility_loss` of what was gathered last, mean over episodes and budgets, (S,)."""
    data = group.data
    current, weights = group.own[:, :, HISTORY - 1 : -1], group.own[:, :, HISTORY:]  # (n, k, S, m) each
    earned = _utility(weights, data.returns[:, None], data.covariance[:, None], data.risk_aversion[:, None, None])
    earned = earned - cost * (weights - current).abs().sum(-1)
    scale = data.features.scale[data.windows][:, None]  # (n, 1, S, m)
    return (earned / _size(scale, data.turnover_l1[..., None])).mean((0, 1))


def _utility(weights: Tensor, returns: Tensor, covariance: Tensor, risk_aversion: Tensor) -> Tensor:
    """(s − 1/m)ᵀr − λ sᵀΣs of weights (…, m)."""
    earned = (weights * (returns - returns.mean(-1, keepdim=True))).sum(-1)
    return earned - risk_aversion * torch.einsum("...i,...ij,...j->...", weights, covariance, weights)


def _size(scale: Tensor, turnover_l1: Tensor) -> Tensor:
    """The unit of a utility: what a budget can move, of assets with deviations `scale` (…, m)."""
    return scale.square().mean(-1).sqrt() * turnover_l1.clamp_min(0.25)
