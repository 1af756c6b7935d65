"""One decision with its checks, uncertainty and reasons as plain numbers by asset, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from time2decide.core.validation import expect
from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.frontier import fewest_trades, turnover_frontier
from time2decide.markets.portfolio import solve_portfolio
from time2decide.markets.stated_problem import StatedProblem
from time2decide.markets.universe import gap_summary
from time2decide.policy.decision_record import (
    least_trade_facts,
    numbers_by_asset,
    prices_of_solution,
    problem_of_decision,
)
from time2decide.policy.explanation import Uncertainty, decision_uncertainty
from time2decide.policy.market_decision import MarketDecision
from time2decide.policy.model import Time2Decide

_TOLERANCE = 1e-9  # of the constraints
_FRONTIER_ROWS, _CURVE = 13, 12 * 16 + 1  # budgets of the frontier that are shown, and drawn
_MOST_TURNOVER = 2.0  # everything sold and bought anew
_SHOWN = 5  # names in a list before it is cut short
_GAPS = {
    "delisted": "Delisted, or halted for long (no return in the last 21 rows), so not traded; what was paid out for "
    "them belongs in --previous",
    "halted": "Halted (no return on the last row), so not traded",
    "young": "Listed too late (fewer than 63 returns), so not bought; what is held can be sold, and its risk is that "
    "of a mean asset of the others (mean volatility and beta)",
    "outside": "Bounds that wait, because what they are for cannot be traded",
}


def listed_names(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def decision_facts(
    table: pd.DataFrame,
    previous: pd.Series | None = None,
    turnover_l1: float = 1.0,
    *,
    risk_aversion: float | None = None,
    model: str = "market",
    with_uncertainty: bool = True,
    with_explanation: bool = True,
    seed: int = 0,
    constraints: Constraints | None = None,
    cost_bps: float | None = None,
    benchmark: pd.Series | None = None,
    min_trade: float = 0.0,
    with_frontier: bool = False,
    gaps: str = "refuse",
    delay: int = 1,
    periods_per_year: float | None = None,
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
        Whether to decide for perturbed histories too, and to explain: each takes as long as many
        decisions.
    seed : int
        Of the ensembles.
    constraints, cost_bps, benchmark, min_trade : optional
        As in `Time2Decide.decide`.
    with_frontier : bool
        Whether to add the turnover frontier.
    gaps : {"refuse", "keep"}
        As in `Time2Decide.decide`; with missing returns there is no uncertainty.
    delay, periods_per_year : optional
        As in `Time2Decide.decide`.
    """
    network = Time2Decide.from_pretrained(model)
    terms: dict[str, Any] = {"constraints": constraints, "cost_bps": cost_bps, "benchmark": benchmark, "gaps": gaps}
    terms |= {"min_trade": min_trade, "delay": delay, "periods_per_year": periods_per_year}
    decision = network.decision(table, previous, turnover_l1, risk_aversion=risk_aversion, **terms)
    return describe_decision(
        network,
        decision,
        constraints,
        previous_given=previous is not None,
        with_uncertainty=with_uncertainty,
        with_explanation=with_explanation,
        with_frontier=with_frontier,
        seed=seed,
    )


def describe_decision(
    network: Time2Decide,
    decision: MarketDecision,
    constraints: Constraints | None = None,
    *,
    previous_given: bool = True,
    with_uncertainty: bool = False,
    with_explanation: bool = False,
    with_frontier: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """`decision_facts` of a decision that `network.decision` has made under these constraints."""
    assert decision.origin is not None
    table = decision.origin.table
    names = [str(column) for column in table.columns]
    if with_uncertainty:
        _validate_complete(table, names)
    facts = _trade(decision, names) | _exact(decision)
    facts["findings"] = [one.to_json() for one in decision.findings]
    if with_frontier:
        facts["frontier"] = _frontier(decision)
    facts["input"] = {"rows": len(table), "last": str(table.index[-1])[:10], "previous_given": previous_given}
    facts["input"] |= {"model": network.name, "delay": decision.origin.delay}
    facts["period"] = decision.origin.frequency.period
    facts |= _market(decision, names, with_explanation)
    if decision.origin.gaps == "keep":
        facts["gap_summary"] = gap_summary(table.to_numpy())
    if decision.availability is not None:
        waiting = decision.availability.outside(constraints, decision.start, names)
        facts["gaps"]["outside"] = list(waiting)
        facts["constraints"]["waiting"] = list(waiting.values())
        facts["gap_notes"] = [
            f"{_GAPS[kind]}: {listed_names(found)}." for kind, found in facts["gaps"].items() if found
        ]
    if with_uncertainty:
        found = decision_uncertainty(decision, table.to_numpy(), constraints, seed=seed)
        facts["uncertainty"] = _deviations(found, names, seed)
    return facts


def _validate_complete(table: pd.DataFrame, names: list[str]) -> None:
    """Raise if returns are missing: histories are resampled by rows, which gaps would break."""
    gaps = [name for name, missing in zip(names, table.isna().any(), strict=True) if missing]
    expected = "returns without gaps (leave out the uncertainty, or the assets with gaps)"
    expect(not gaps, "uncertainty", expected, f"missing returns of {listed_names(gaps)}")


def _market(decision: MarketDecision, names: list[str], with_reasons: bool) -> dict[str, Any]:
    """The verdict on forecasts, what is done without them, and the reasons."""
    verdict = decision.verdict
    records = [{**asdict(one), "interval": list(one.interval)} for one in verdict.records]
    facts: dict[str, Any] = {
        "cost_bps": decision.cost_bps,
        "days": decision.days,
        "without_forecasts": numbers_by_asset(names, decision.without_forecasts),
        "verdict": {"text": verdict.text, "probability": verdict.probability, "records": records},
    }
    if decision.availability is not None:
        facts["gaps"] = decision.availability.describe(names)
    facts |= least_trade_facts(decision, names)
    if with_reasons:
        facts["reasons_bps"] = {name: numbers_by_asset(names, part) for name, part in decision.reasons_bps.items()}
    return facts


def _trade(decision: MarketDecision, names: list[str]) -> dict[str, Any]:
    """Weights, turnover, forecast and risk, and whether the constraints are met."""
    weights, before = decision.weights, decision.previous
    within = np.abs(weights - decision.start).sum() <= decision.turnover_l1 + _TOLERANCE
    excess = decision.constraints.excess(weights, decision.start, decision.turnover_l1)
    return {
        "weights": numbers_by_asset(names, weights),
        "previous": numbers_by_asset(names, before),
        "change": numbers_by_asset(names, weights - before),
        "turnover": decision.turnover,
        "turnover_from_budget": float(np.abs(weights - decision.start).sum()),
        "turnover_l1": decision.turnover_l1,
        "risk_aversion": decision.risk_aversion,
        "forecast_return": float(weights @ decision.forecast),
        "forecast_return_previous": float(before @ decision.forecast),
        "risk": float((weights @ decision.covariance @ weights) ** 0.5),
        "risk_previous": float((before @ decision.covariance @ before) ** 0.5),
        "forecast": numbers_by_asset(names, decision.forecast),
        "constraints": {
            "sum": float(weights.sum()),
            "smallest_weight": float(weights.min()),
            "turnover_within_budget": bool(within),
            "satisfied": bool(excess <= _TOLERANCE),
        },
    }


def _exact(decision: MarketDecision) -> dict[str, Any]:
    """Prices, gap, cost and gain of an exact portfolio, its limits and the constraints that are active."""
    solution, weights, constraints = decision.solution, decision.weights, decision.constraints
    problem = problem_of_decision(decision)
    assert decision.origin is not None
    year = decision.origin.frequency.per_year
    gain = problem.gain(weights, decision.previous)
    active = {}
    if decision.benchmark is not None:
        for name, portfolio in (("active_risk", weights), ("active_risk_previous", decision.previous)):
            distance = portfolio - decision.benchmark
            active[name] = float(max(distance @ decision.covariance @ distance, 0.0) ** 0.5)
    return {
        "cash": constraints.exposure - float(weights.sum()),
        "limits": {limit.name: float(limit.coefficients @ weights) for limit in constraints.limits},
        "limit_ends": {limit.name: [_finite(limit.low), _finite(limit.high)] for limit in constraints.limits},
        "active": _active(problem, weights, decision.origin.assets),
        "gain": {
            "over": "no trade",
            **gain,
            "a_year": None if year is None else year * gain["utility"],
            "periods_a_year": year,
        },
        "exact": {
            "utility": float(solution.utility),
            "gap": float(solution.gap),
            "utility_gap": max(problem.gap(weights, prices_of_solution(solution)), 0.0),
            "cost": decision.turnover * decision.cost_bps / 1e4,
            "turnover_price": float(solution.turnover_price),
            "exposure_price": float(solution.budget_price),
        },
        **active,
    }


def _finite(end: float) -> float | None:
    """An end of a limit; None for none."""
    return float(end) if np.isfinite(end) else None


def _active(problem: StatedProblem, weights: np.ndarray, assets: list[str]) -> list[str]:
    """Names of the constraints that bind; weights that the gaps fix apart."""
    rows = problem.rows(weights, assets)
    return [row.name for row in rows if row.low < row.high and row.slack <= _TOLERANCE * row.size]


def _frontier(decision: MarketDecision) -> dict[str, Any]:
    """The turnover frontier at even budgets (a few to print, many to draw), and where more trading stops paying.

    The market policy spreads costs over the days that a trade lasts; gains and prices are those of all these days.
    It is about the assets that can be held. Gains are those
    beside no trade, as that of the decision, also where the constraints do not allow to stay.
    """
    days, known = decision.days, np.ones(len(decision.weights), dtype=bool)
    constraints = None if decision.constraints is LONG_ONLY else decision.constraints
    if decision.availability is not None:
        known = decision.availability.known
        constraints = decision.constraints.among(decision.start, known)
    previous = decision.start[known]
    data = decision.forecast[known], decision.covariance[np.ix_(known, known)], previous
    options: dict[str, Any] = {"risk_aversion": decision.risk_aversion, "cost": decision.cost_bps / 1e4 / days}
    options["benchmark"] = None if decision.benchmark is None else decision.benchmark[known]
    options["constraints"] = constraints
    fewest = 0.0 if constraints is None else fewest_trades(previous, constraints, _MOST_TURNOVER)
    if constraints is None or not (constraints.limits or fewest > _TOLERANCE):
        path = turnover_frontier(*data, most=_MOST_TURNOVER, **options)
        stop, gap = path.stops_paying_at, float(path.gap.max())
        budgets = np.linspace(path.turnover[0], stop, _CURVE)
        utility, price = path.utility_at(budgets), path.price_at(budgets)
        price[-1] = path.price[-1]
    else:  # no path: each budget is solved by itself
        solve = partial(solve_portfolio, *data, **options)
        stop = float(solve(turnover_l1=_MOST_TURNOVER).turnover)
        budgets = np.maximum(np.linspace(fewest, max(stop, fewest), _FRONTIER_ROWS), fewest * (1 + 1e-12) + 1e-13)
        solved = solve(turnover_l1=budgets)
        utility, price, gap = solved.utility, solved.turnover_price, float(solved.gap.max())
    problem, base = problem_of_decision(decision), utility[0]
    base = float(decision.solution.utility) - problem.gain(decision.weights)["utility"]  # of the weights before
    if not fewest > _TOLERANCE:
        base = utility[0]  # which is that of no trade, rounding apart
    gains = days * np.maximum.accumulate(utility - base)  # rounding apart, they grow
    curve = {"turnover_l1": budgets.tolist(), "gain": gains.tolist(), "price": (days * price).tolist()}
    shown = np.linspace(0, len(budgets) - 1, _FRONTIER_ROWS).astype(int)
    points = [{name: values[i] for name, values in curve.items()} for i in shown]
    return {"stops_paying_at": stop, "largest_gap": gap, "points": points, "curve": curve}


def _deviations(found: Uncertainty, names: list[str], seed: int) -> dict[str, Any]:
    return {
        "weights": numbers_by_asset(names, found.weights),
        "forecast": numbers_by_asset(names, found.forecast),
        "forecast_return": found.portfolio,
        "members": found.members,
        "seed": seed,
    }
