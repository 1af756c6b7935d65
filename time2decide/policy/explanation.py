"""Uncertainty of one decision: the same decision for perturbed histories."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from time2decide.markets.constraints import Constraints
from time2decide.policy.market_decision import MarketDecision, decide_market
from time2decide.simulation.metrics import stationary_bootstrap

_MEMBERS, _ROWS, _BLOCK = 24, 1000, 63.0  # ensemble, rows of a history, mean length of its blocks


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


def decision_uncertainty(
    decision: MarketDecision, returns: np.ndarray, constraints: Constraints | None, *, seed: int = 0
) -> Uncertainty:
    """The uncertainty of a decision, over histories of blocks drawn from its last years."""
    assert decision.origin is not None
    origin, recent = decision.origin, returns[-_ROWS:]
    places = stationary_bootstrap(len(recent), _MEMBERS, min(_BLOCK, float(len(recent))), np.random.default_rng(seed))
    made = [
        decide_market(
            origin.policy,
            history,
            decision.previous,
            decision.turnover_l1,
            decision.risk_aversion,
            decision.cost_bps,
            constraints=constraints,
            benchmark=decision.benchmark,
            delay=origin.delay,
            periods_per_year=origin.frequency.assumed,
        )
        for history in recent[places]
    ]
    weights, forecast = (np.stack(part) for part in zip(*((one.weights, one.mean) for one in made), strict=True))
    portfolio = float((forecast @ decision.weights).std(ddof=1))
    return Uncertainty(weights.std(axis=0, ddof=1), forecast.std(axis=0, ddof=1), portfolio, len(weights))
