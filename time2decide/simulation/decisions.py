"""The exact portfolio of a strategy that optimises: for its forecasts, under the terms of its observation.

Constraints, benchmark, turnover budget and current weights are those of the observation, so that the engine
need not project the answer of an optimiser.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from time2decide.core.validation import InputError
from time2decide.markets.portfolio import PortfolioSolution, solve_portfolio
from time2decide.simulation.engine import Observation

UNLIMITED = 1e6  # a turnover budget that never binds


def solve_observation(
    observation: Observation,
    mean: np.ndarray,
    covariance: np.ndarray,
    *,
    risk_aversion: float | None = None,
    cost: np.ndarray | float = 0.0,
    start: PortfolioSolution | None = None,
) -> tuple[np.ndarray, PortfolioSolution | None]:
    """Weights (series, budgets, m) for means (series, budgets or 1, m) and covariances (series, budgets or 1, m, m).

    λ is the observation's unless given. Where the budget does not reach the constraints the best portfolio without a
    budget is returned, which the engine approaches as far as the budget allows; there is no solution then to start the
    next decision from. Under constraints, weights that cannot change are fixed; where they leave no portfolio, the
    current weights are returned.
    """
    previous, risk = observation.previous, observation.risk_aversion if risk_aversion is None else risk_aversion
    lead, m = previous.shape[:-1], previous.shape[-1]
    gamma = np.broadcast_to(observation.turnover_l1, lead)
    options: dict[str, Any] = {"risk_aversion": risk, "benchmark": observation.benchmark}
    rules, frozen = observation.constraints, observation.frozen
    halted = rules is not None and frozen is not None and bool(frozen.any())
    if not halted:
        options["constraints"] = rules
        try:
            solved = solve_portfolio(mean, covariance, previous, turnover_l1=gamma, cost=cost, start=start, **options)
            return solved.weights, solved
        except InputError:
            if rules is None:
                raise
    means, costs = np.broadcast_to(mean, previous.shape), np.broadcast_to(cost, previous.shape)
    matrices, weights = np.broadcast_to(covariance, (*lead, m, m)), np.empty(previous.shape)
    for place in np.ndindex(lead):
        data = means[place], matrices[place], previous[place]
        if halted:
            assert rules is not None
            assert frozen is not None
            options["constraints"] = rules.fix(previous[place], frozen)
        weights[place] = _reach(data, float(gamma[place]), costs[place], options, may_stay=halted)
    return weights, None


def _reach(
    data: tuple[np.ndarray, ...], gamma: float, cost: np.ndarray, options: dict[str, Any], may_stay: bool
) -> np.ndarray:
    """The best portfolio within the budget, or else without one; the current weights if there is none and they may."""
    for budget in (gamma, UNLIMITED):
        try:
            return solve_portfolio(*data, turnover_l1=budget, cost=cost, **options).weights
        except InputError:
            if budget == UNLIMITED and not may_stay:
                raise
    return data[2]
