"""What can be said about one decision: how sure it is, why it was made, and all of it as plain numbers by asset.

Uncertainty: the same question is asked about perturbed histories. Reasons: what the network wants to trade in the
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
import pandas as pd
import torch
from torch import Tensor

from time2decide.core.validation import expect, validate_count
from time2decide.forecasting.features import LAGS, WindowFeatures, lag_forecast, window_features
from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.frontier import turnover_frontier
from time2decide.markets.oracle import RISK_AVERSION, WINDOW
from time2decide.policy.episodes import SEEN_RISKS
from time2decide.policy.model import MEMORY, Decision, Time2Decide
from time2decide.policy.network import Policy, PolicyInput
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.metrics import stationary_bootstrap

NOISE_LEVELS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # standard deviations of the added noise, in those of each asset
_BLOCK = 8.0  # mean length of the blocks of resampled residuals
_TOLERANCE = 1e-9  # of the constraints
_FRONTIER_ROWS = 13


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
    `resample`. Where returns are nearly unpredictable the forecasts vary as widely as they are large.
    """
    validate_count("members", members, least=2)
    histories = resample(decision.returns, members, np.random.default_rng(seed))
    weights, forecast = _decide(model, decision, histories)
    return Uncertainty(
        weights.std(axis=0, ddof=1),
        forecast.std(axis=0, ddof=1),
        float((forecast @ decision.weights).std(ddof=1)),
        members,
    )


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


def _decide(model: Time2Decide, decision: Decision, histories: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return model.decide_batch(histories, decision.previous, decision.turnover_l1, decision.risk_aversion)


def resample(returns: np.ndarray, members: int, rng: np.random.Generator, block: float = _BLOCK) -> np.ndarray:
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
    places = stationary_bootstrap(time - lags, members, block, rng)  # (members, time − lags)
    drawn = fitted + (residuals - residuals.mean(axis=0))[places]
    kept = np.broadcast_to(recent[:lags], (members, lags, m))
    return np.maximum(np.concatenate([kept, drawn], axis=1), -1.0)


def decision_facts(
    table: pd.DataFrame,
    previous: pd.Series | None = None,
    turnover_l1: float = 1.0,
    *,
    risk_aversion: float = RISK_AVERSION,
    model: str = "decide",
    with_uncertainty: bool = True,
    with_explanation: bool = True,
    seed: int = 0,
    constraints: Constraints | None = None,
    cost_bps: float = 0.0,
    benchmark: pd.Series | None = None,
    with_frontier: bool = False,
) -> dict[str, Any]:
    """The decision about a table of returns (dates × assets), with its uncertainty, reasons and checks, for JSON.

    Parameters
    ----------
    table : DataFrame
        As `load_returns` gives it.
    previous : Series by asset, optional
        Current weights; equal weights if not given.
    model : str
        A bundled checkpoint or a folder.
    with_uncertainty, with_explanation : bool
        Whether to ask the same question about perturbed histories, and for the reasons: each takes as long as many
        decisions.
    seed : int
        Of the ensembles.
    constraints, cost_bps, benchmark : optional
        As in `Time2Decide.decide`; uncertainty and reasons are those of the network alone, so not with these.
    with_frontier : bool
        Whether to add the turnover frontier of the network's forecasts.
    """
    exact = constraints is not None or cost_bps != 0 or benchmark is not None
    alone = not (exact and (with_uncertainty or with_explanation))
    expect(alone, "explain", "neither reasons nor uncertainty with constraints, costs or a benchmark", "both")
    network = Time2Decide.from_pretrained(model)
    terms: dict[str, Any] = {"constraints": constraints, "cost_bps": cost_bps, "benchmark": benchmark}
    decision = network.decision(table, previous, turnover_l1, risk_aversion=risk_aversion, **terms)
    names = [str(column) for column in table.columns]
    facts = _decision(decision, names)
    if decision.solution is not None:
        facts |= _exact(decision, constraints or LONG_ONLY, cost_bps)
    if with_frontier:
        facts["frontier"] = _frontier(decision, constraints, cost_bps)
    if with_uncertainty:
        facts["uncertainty"] = _uncertainty(network, decision, names, seed)
    if with_explanation:
        facts["explanation"] = _explanation(network, decision, names, seed)
    facts["input"] = {
        "rows": len(table),
        "window": decision.window,
        "last": str(table.index[-1])[:10],
        "previous_given": previous is not None,
        "model": model,
        "history": network.strategy().history,
        "risk_aversion_trained": list(SEEN_RISKS),
    }
    return facts


def _decision(decision: Decision, names: list[str]) -> dict[str, Any]:
    weights, before, excess = decision.weights, decision.previous, decision.turnover - decision.turnover_l1
    return {
        "weights": _by_asset(names, weights),
        "previous": _by_asset(names, before),
        "change": _by_asset(names, weights - before),
        "target": _by_asset(names, decision.target),
        "turnover": decision.turnover,
        "turnover_l1": decision.turnover_l1,
        "risk_aversion": decision.risk_aversion,
        "forecast_return": float(weights @ decision.forecast),
        "forecast_return_previous": float(before @ decision.forecast),
        "risk": float((weights @ decision.covariance @ weights) ** 0.5),
        "risk_previous": float((before @ decision.covariance @ before) ** 0.5),
        "forecast": _by_asset(names, decision.forecast),
        "forecast_error": _by_asset(names, decision.forecast_error),
        "constraints": {
            "sum": float(weights.sum()),
            "smallest_weight": float(weights.min()),
            "turnover_within_budget": bool(excess <= _TOLERANCE),
            "satisfied": bool(abs(weights.sum() - 1) < _TOLERANCE and weights.min() >= 0 and excess <= _TOLERANCE),
        },
    }


def _exact(decision: Decision, constraints: Constraints, cost_bps: float) -> dict[str, Any]:
    """What certifies an exact portfolio, and whether it meets its constraints."""
    solution, weights = decision.solution, decision.weights
    assert solution is not None
    excess = constraints.excess(weights, decision.previous, decision.turnover_l1)
    return {
        "cash": constraints.exposure - float(weights.sum()),
        "limits": {limit.name: float(limit.coefficients @ weights) for limit in constraints.limits},
        "constraints": {
            "sum": float(weights.sum()),
            "smallest_weight": float(weights.min()),
            "turnover_within_budget": bool(decision.turnover <= decision.turnover_l1 + _TOLERANCE),
            "satisfied": bool(excess <= _TOLERANCE),
        },
        "exact": {
            "utility": float(solution.utility),
            "gap": float(solution.gap),
            "cost": decision.turnover * cost_bps / 1e4,
            "turnover_price": float(solution.turnover_price),
            "exposure_price": float(solution.budget_price),
        },
    }


def _frontier(decision: Decision, constraints: Constraints | None, cost_bps: float) -> dict[str, Any]:
    """The turnover frontier of the forecasts at even budgets, and where more trading stops paying."""
    benchmark = None if decision.solution is None else decision.solution.problem.benchmark
    frontier = turnover_frontier(
        decision.forecast, decision.covariance, decision.previous, risk_aversion=decision.risk_aversion,
        cost=cost_bps / 1e4, benchmark=None if benchmark is None else benchmark[0], constraints=constraints,
    )  # fmt: skip
    budgets = np.linspace(frontier.turnover[0], frontier.stops_paying_at, _FRONTIER_ROWS)
    points = zip(budgets, frontier.utility_at(budgets) - frontier.utility[0], frontier.price_at(budgets), strict=True)
    return {
        "stops_paying_at": frontier.stops_paying_at,
        "breakpoints": len(frontier.turnover),
        "largest_gap": float(frontier.gap.max()),
        "points": [{"turnover_l1": float(t), "gain": float(u), "price": float(q)} for t, u, q in points],
    }


def _uncertainty(network: Time2Decide, decision: Decision, names: list[str], seed: int) -> dict[str, Any]:
    found = uncertainty(network, decision, seed=seed)
    return {
        "weights": _by_asset(names, found.weights),
        "forecast": _by_asset(names, found.forecast),
        "forecast_return": found.portfolio,
        "members": found.members,
        "seed": seed,
    }


def _explanation(network: Time2Decide, decision: Decision, names: list[str], seed: int) -> dict[str, Any]:
    why = explain(network, decision)
    return {
        "pull": _by_asset(names, why.pull),
        "sensitivity": _by_asset(names, why.sensitivity),
        "covariance": _by_asset(names, why.covariance),
        "hindsight": why.hindsight,
        "noise": noise_curve(network, decision, seed=seed),
    }


def _by_asset(names: list[str], numbers: Any) -> dict[str, float]:
    return dict(zip(names, map(float, numbers), strict=True))
