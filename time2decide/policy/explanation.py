"""Why this change: derivatives of the wanted trade with respect to every asset's returns and covariances.

What the network wants to trade in the direction that was taken is φ = ½ Σ_i sign(s_i − p_i) ŝ_i, with ŝ its answer
before the budget is imposed (afterwards the amount is γ/2 wherever the budget binds, whatever the returns). It is
differentiated through the network and the forecasts, back to the window of returns. The oracle's past allocations,
which the network also reads, are held fixed: they are a step function of the returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from time2decide.forecasting.features import WindowFeatures, window_features
from time2decide.policy.model import Decision, Time2Decide
from time2decide.policy.network import Policy, PolicyInput
from time2decide.qp.projections import project_portfolio


@dataclass(frozen=True)
class Explanation:
    """What each asset contributed to a change, in units of weight; arrays are (m,).

    pull : Σ_t ∂φ/∂r_tj · (r_tj − r̄_j)
        To first order, what asset j's returns of the window argue for (+) or against (−) the change made.
    sensitivity : σ_j · (Σ_t (∂φ/∂r_tj)²)^½
        How far the wanted amount would move, if asset j's returns had come out differently by their own noise.
    covariance : Σ_j |∂φ/∂C_ij · C_ij| + |∂φ/∂ log σ_i|
        How much rests on row i of the covariance: its correlations, those of its forecast errors, and its scale.
    hindsight : float
        ℓ1 change of the decision if the network were not told what would have been best before, and read the weights
        held instead; 0 for a network that reads those anyway.
    """

    pull: np.ndarray
    sensitivity: np.ndarray
    covariance: np.ndarray
    hindsight: float


def explain(model: Time2Decide, decision: Decision) -> Explanation:
    """The explanation of a decision of this model."""
    window = decision.observation.returns
    moving = torch.from_numpy(_stirred(window)).requires_grad_()  # (1, T, m)
    direction = torch.from_numpy(np.sign(decision.weights - decision.previous)) / 2

    def amount(seen: WindowFeatures) -> Tensor:
        return direction @ _target(model.policy, replace(decision.inputs, features=seen))

    (by_return,) = torch.autograd.grad(amount(window_features(moving)), moving)
    slope = by_return[0].numpy()  # (T, m)
    centred = window[0] - window[0].mean(axis=0)
    return Explanation(
        pull=(slope * centred).sum(axis=0),
        sensitivity=centred.std(axis=0) * np.sqrt((slope**2).sum(axis=0)),
        covariance=_covariance_rows(decision.inputs.features, amount),
        hindsight=_resting_on_hindsight(model, decision),
    )


def _resting_on_hindsight(model: Time2Decide, decision: Decision) -> float:
    if not model.strategy().wants_hindsight:
        return 0.0
    target = model.strategy("own").decide(decision.observation)[0, 0]
    weights = np.asarray(project_portfolio(target, decision.previous, decision.turnover_l1))
    return float(np.abs(weights - decision.weights).sum())


def _stirred(returns: np.ndarray) -> np.ndarray:
    """Returns (1, T, m) in which an asset that stands still moves imperceptibly: a standstill has no slopes."""
    deviation = returns.std(axis=1, keepdims=True)
    noise = 1e-8 * deviation.max() * np.random.default_rng(0).standard_normal(returns.shape)
    return np.where(deviation > 0, returns, returns + noise)


def _covariance_rows(seen: WindowFeatures, amount: Callable[[WindowFeatures], Tensor]) -> np.ndarray:
    """How much rests on each row of the covariance, with the forecasts held fixed."""
    parts = [part.detach().clone().requires_grad_() for part in (seen.scale, seen.correlation, seen.innovation)]
    changed = replace(seen, scale=parts[0], correlation=parts[1], innovation=parts[2])
    slopes = torch.autograd.grad(amount(changed), parts, allow_unused=True)
    scale, *rows = (
        (torch.zeros_like(part) if slope is None else slope * part)[0].abs().double().detach()
        for slope, part in zip(slopes, parts, strict=True)
    )
    return np.asarray(scale + sum(row.sum(-1) for row in rows))


def _target(policy: Policy, inputs: PolicyInput) -> Tensor:
    """The answer as a differentiable function of the inputs, (m,).

    Of a network trained on utility, which goes to the best asset, the softmax of its scores is taken, in units of
    forecast error.
    """
    output = policy(inputs)
    if policy.config.objective != "utility":
        return output.weights[0].double()
    scores, unit = output.scores[0].double(), output.deviation[0].double().square().mean().sqrt().detach()
    return torch.softmax(scores / unit, dim=-1)
