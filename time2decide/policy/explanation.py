"""Uncertainty and explanation of one decision of a decision network.

Uncertainty: the same decision for perturbed histories. Reasons: what the network wants to trade in the
direction that was taken is φ = ½ Σ_i sign(s_i − p_i) ŝ_i, with ŝ its answer before the budget is imposed (afterwards
the amount is γ/2 wherever the budget binds, whatever the returns). φ is differentiated through the network and the
forecasts, back to the window of returns. The oracle's past allocations, which the network also reads, are held fixed:
they are a step function of the returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.validation import validate_count
from time2decide.forecasting.features import LAGS, WindowFeatures, lag_forecast, window_features
from time2decide.markets.constraints import Constraints
from time2decide.markets.oracle import WINDOW
from time2decide.policy.market_decision import MarketDecision
from time2decide.policy.model import MEMORY, Decision, Time2Decide
from time2decide.policy.network import Policy, PolicyInput
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.metrics import stationary_bootstrap

NOISE_LEVELS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # standard deviations of the added noise, in those of each asset
_BLOCK = 8.0  # mean length of the blocks of resampled residuals
_MARKET_MEMBERS, _MARKET_ROWS, _MARKET_BLOCK = 24, 1000, 63.0  # of `market_uncertainty`: ensemble, rows, mean block


@dataclass(frozen=True)
class Explanation:
    """Contribution of each asset to a change of weights, in units of weight; arrays are (m,).

    pull : Σ_t ∂φ/∂r_tj · (r_tj − r̄_j)
        To first order, what asset j's returns of the window argue for (+) or against (−) the change made.
    sensitivity : σ_j · (Σ_t (∂φ/∂r_tj)²)^½
        How far the wanted amount would move, if asset j's returns had come out differently by their own noise.
    covariance : Σ_j |∂φ/∂C_ij · C_ij| + |∂φ/∂ log σ_i|
        How much rests on row i of the covariance: its correlations, those of its forecast errors, and its scale.
    hindsight : float
        ℓ1 change of the decision if the network did not see what would have been best before, and read its own
        weights instead; 0 for a network that reads those anyway.
    """

    pull: np.ndarray
    sensitivity: np.ndarray
    covariance: np.ndarray
    hindsight: float


def explain(model: Time2Decide, decision: Decision) -> Explanation:
    """The explanation of a decision of this model, a network of synthetic markets."""
    policy = model.policy
    assert isinstance(policy, Policy)
    window = decision.observation.returns
    moving = torch.from_numpy(_without_constants(window)).requires_grad_()  # (1, T, m)
    direction = torch.from_numpy(np.sign(decision.weights - decision.previous)) / 2

    def amount(seen: WindowFeatures) -> Tensor:
        return direction @ _target(policy, replace(decision.inputs, features=seen))

    (by_return,) = torch.autograd.grad(amount(window_features(moving)), moving)
    slope = by_return[0].numpy()  # (T, m)
    centred = window[0] - window[0].mean(axis=0)
    return Explanation(
        pull=(slope * centred).sum(axis=0),
        sensitivity=centred.std(axis=0) * np.sqrt((slope**2).sum(axis=0)),
        covariance=_covariance_rows(decision.inputs.features, amount),
        hindsight=_effect_of_hindsight(model, decision),
    )


def _effect_of_hindsight(model: Time2Decide, decision: Decision) -> float:
    if not model.strategy().wants_hindsight:
        return 0.0
    target = model.strategy("own").decide(decision.observation)[0, 0]
    weights = np.asarray(project_portfolio(target, decision.previous, decision.turnover_l1))
    return float(np.abs(weights - decision.weights).sum())


def _without_constants(returns: np.ndarray) -> np.ndarray:
    """Returns (1, T, m) with tiny noise on constant assets, which have no derivative."""
    deviation = returns.std(axis=1, keepdims=True)
    noise = 1e-8 * deviation.max() * np.random.default_rng(0).standard_normal(returns.shape)
    return np.where(deviation > 0, returns, returns + noise)


def _covariance_rows(seen: WindowFeatures, amount: Callable[[WindowFeatures], Tensor]) -> np.ndarray:
    """Sensitivity to each row of the covariance at fixed forecasts, (m,)."""
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


@dataclass(frozen=True)
class Uncertainty:
    """Standard deviations over an ensemble of perturbed histories.

    weights, forecast : (m,) of each asset's weight and forecast return
    portfolio : of the forecast return of the portfolio decided on
    members : size of the ensemble
    """

    weights: np.ndarray
    forecast: np.ndarray
    portfolio: float
    members: int


def uncertainty(model: Time2Decide, decision: Decision, *, members: int = 48, seed: int = 0) -> Uncertainty:
    """The uncertainty of a decision; deterministic by seed.

    A perturbed history keeps what a regression on its own past explains and draws the residuals again, see
    `resample_histories`. Where returns are nearly unpredictable the forecasts vary as widely as they are large.
    """
    validate_count("members", members, least=2)
    histories = resample_histories(decision.returns, members, np.random.default_rng(seed))
    return _deviations(*_decide(model, decision, histories), decision)


def market_uncertainty(
    model: Time2Decide, decision: MarketDecision, returns: np.ndarray, constraints: Constraints | None, *, seed: int = 0
) -> Uncertainty:
    """The uncertainty of a decision of the market policy, over histories of blocks drawn from its last years."""
    recent = returns[-_MARKET_ROWS:]
    block = min(_MARKET_BLOCK, float(len(recent)))
    places = stationary_bootstrap(len(recent), _MARKET_MEMBERS, block, np.random.default_rng(seed))
    terms: dict[str, Any] = {"cost": decision.cost_bps / 1e4, "benchmark": decision.benchmark}
    if decision.origin is not None:
        terms |= {"delay": decision.origin.delay, "periods_per_year": decision.origin.frequency.assumed}
    return _deviations(*_decide(model, decision, recent[places], constraints=constraints, **terms), decision)


def _deviations(weights: np.ndarray, forecast: np.ndarray, decision: Decision | MarketDecision) -> Uncertainty:
    portfolio = float((forecast @ decision.weights).std(ddof=1))
    return Uncertainty(weights.std(axis=0, ddof=1), forecast.std(axis=0, ddof=1), portfolio, len(weights))


def noise_curve(
    model: Time2Decide,
    decision: Decision,
    *,
    levels: tuple[float, ...] = NOISE_LEVELS,
    members: int = 24,
    seed: int = 0,
) -> list[dict[str, float]]:
    """How the decision shrinks when noise is added to the history, one row per level.

    `noise` in standard deviations of each asset; `moved` ‖s̄ − previous‖₁ of the mean decision s̄ of an ensemble;
    `from_uniform` ‖s̄ − 1/m‖₁; `forecast_spread` the cross-sectional standard deviation of the mean forecast. A
    decision that rests on something in the data moves less and less as that drowns.
    """
    rng = np.random.default_rng([seed, 1])
    recent = decision.returns[-(MEMORY + WINDOW) :]
    noise = rng.normal(size=(members, *recent.shape)) * recent.std(axis=0)  # the same draws at every level
    noisy = [np.maximum(recent + level * noise, -1.0) if level else recent[None] for level in levels]
    weights, forecast = _decide(model, decision, np.concatenate(noisy))  # all levels at once
    ends = np.cumsum([len(histories) for histories in noisy])[:-1]
    rows = []
    for level, chosen, expected in zip(levels, np.split(weights, ends), np.split(forecast, ends), strict=True):
        mean = chosen.mean(axis=0)
        rows.append(
            {
                "noise": level,
                "moved": float(np.abs(mean - decision.previous).sum()),
                "from_uniform": float(np.abs(mean - 1 / len(mean)).sum()),
                "forecast_spread": float(expected.mean(axis=0).std()),
            }
        )
    return rows


def _decide(
    model: Time2Decide, decision: Decision | MarketDecision, histories: np.ndarray, **terms: Any
) -> tuple[np.ndarray, np.ndarray]:
    return model.decide_batch(histories, decision.previous, decision.turnover_l1, decision.risk_aversion, **terms)


def resample_histories(returns: np.ndarray, members: int, rng: np.random.Generator) -> np.ndarray:
    """Perturbed histories (members, time, m): what a regression on the past explains stays, residuals are redrawn.

    Residuals are drawn for all assets together, so that their correlations stay, in blocks of geometric length
    (the stationary bootstrap), so that calm and volatile times stay together.
    """
    recent = returns[-(MEMORY + WINDOW) :]
    time, m = recent.shape
    lags = min(LAGS, time - 4)
    level, scale = recent.mean(axis=0), recent.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    standard = torch.from_numpy(((recent - level) / scale).T.copy())  # (m, time)
    residuals = lag_forecast(standard, lags).residuals.numpy().T * scale  # (time − lags, m)
    fitted = recent[lags:] - residuals
    places = stationary_bootstrap(time - lags, members, _BLOCK, rng)  # (members, time − lags)
    drawn = fitted + (residuals - residuals.mean(axis=0))[places]
    kept = np.broadcast_to(recent[:lags], (members, lags, m))
    return np.maximum(np.concatenate([kept, drawn], axis=1), -1.0)
