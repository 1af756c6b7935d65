"""The market policy's decision for a table whose assets come and go, under constraints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from time2decide.core.validation import InputError
from time2decide.forecasting.market_state import MarketState
from time2decide.markets.constraints import Constraints
from time2decide.markets.universe import Availability, enough_assets
from time2decide.policy.market_decision import COST_BPS, RISK_AVERSION, MarketDecision, market_decision
from time2decide.policy.market_policy import MarketPolicy


def decide_market(
    policy: MarketPolicy,
    state: MarketState,
    returns: np.ndarray,
    previous: np.ndarray | None,
    turnover_l1: float,
    risk_aversion: float = RISK_AVERSION,
    cost_bps: float = COST_BPS,
    constraints: Constraints | None = None,
    benchmark: np.ndarray | None = None,
) -> MarketDecision:
    """The decision for a table (time, m) that `state` has read; with gaps by the rules of `Availability`.

    Without current weights those that can be held are equal. Delisted assets are sold outside the turnover budget.
    """
    holes, m = bool(np.isnan(returns).any()), returns.shape[1]
    can = Availability.of(returns)
    known = can.known if holes else np.ones(m, dtype=bool)
    given = known / known.sum() if previous is None else previous
    terms: dict[str, Any] = {"turnover_l1": turnover_l1, "risk_aversion": risk_aversion, "cost_bps": cost_bps}
    if not holes:
        return market_decision(policy, state, given, **terms, constraints=constraints, benchmark=benchmark)
    enough_assets(can)
    start = can.after_sales(given)
    rules, reference = can.constraints(constraints, start), can.benchmark(benchmark, start)
    terms |= {"known": known, "constraints": rules.among(start, known)}
    terms["benchmark"] = None if reference is None else reference[known]
    try:
        made = market_decision(policy, state, start[known], **terms)
    except InputError as error:
        raise InputError(f"{error}{_kept(can, rules, start)}") from None
    return _over_all(made, given, start, can, rules, reference)


def _over_all(
    made: MarketDecision,
    given: np.ndarray,
    start: np.ndarray,
    can: Availability,
    rules: Constraints,
    reference: np.ndarray | None,
) -> MarketDecision:
    """A decision about the known assets as one about all: the others keep the weights of `start`."""
    m, known = len(start), can.known

    def whole(part: np.ndarray, rest: np.ndarray | float = 0.0) -> np.ndarray:
        full = np.broadcast_to(rest, (m,)).copy()
        full[known] = part
        return full

    covariance = np.zeros((m, m))
    covariance[np.ix_(known, known)] = made.covariance
    return replace(
        made,
        weights=whole(made.weights, start),
        previous=given,
        start=whole(made.start, start),
        without_forecasts=whole(made.without_forecasts, start),
        covariance=covariance,
        constraints=rules,
        benchmark=reference,
        availability=can,
        mean=whole(made.mean),
        prior=whole(made.prior),
        signal=whole(made.signal),
    )


def _kept(can: Availability, rules: Constraints, start: np.ndarray) -> str:
    """Which weights could not be changed, for an error about constraints."""
    held = np.flatnonzero(can.fixed & (start != 0))
    names = rules.assets or tuple(f"asset {i}" for i in range(len(start)))
    kept = ", ".join(f"{names[i]} {start[i]:g}" for i in held[:8]) + (" and others" if len(held) > 8 else "")
    return f" (weights that cannot be traded: {kept})" if held.size else ""
