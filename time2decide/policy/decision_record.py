"""A decision as the document of a decision file (`markets/decision_file.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from time2decide import __version__
from time2decide.core.validation import InputError, expect
from time2decide.data.findings import Finding, refuse_faults
from time2decide.data.terms import find_result_faults
from time2decide.markets.decision_file import SCHEMA, data_fingerprint, write_decision
from time2decide.markets.orders import Orders
from time2decide.markets.periods import Frequency
from time2decide.markets.portfolio import PortfolioSolution
from time2decide.markets.stated_problem import Prices, StatedProblem
from time2decide.policy.market_decision import MarketDecision
from time2decide.policy.market_policy import MarketPolicy


@dataclass(frozen=True, eq=False)
class DecisionOrigin:
    """Source of a decision: the returns (dates × assets), the model with its name, and when it is traded.

    delay : rows between the decision and its trade
    frequency : how often the table has rows
    findings : what was found in the data, and accepted
    """

    table: pd.DataFrame = field(repr=False)
    policy: MarketPolicy = field(repr=False)
    model: str
    gaps: str
    delay: int
    frequency: Frequency
    findings: tuple[Finding, ...] = ()

    @property
    def assets(self) -> list[str]:
        return [str(column) for column in self.table.columns]


def with_origin(decision: MarketDecision, origin: DecisionOrigin) -> MarketDecision:
    """The decision with its origin, and a verdict that speaks of the table's own period."""
    return replace(decision, origin=origin, verdict=replace(decision.verdict, period=origin.frequency.period))


def save_decision(decision: MarketDecision, path: str | Path, orders: Orders | None = None, **about: str) -> Path:
    """Write a decision file; `about` is what else is known of the data: source, values."""
    return write_decision(decision_document(decision, orders, **about), path)


def decision_document(decision: MarketDecision, orders: Orders | None = None, /, **about: str) -> dict[str, Any]:
    """Everything about a decision that it takes to check it, for JSON; the checksum apart."""
    origin = decision.origin
    if origin is None:
        raise InputError("decision: expected one made by Time2Decide.decision, found one without its origin")
    names, data = origin.assets, data_fingerprint(origin.table)
    weights, previous, trades = decision.weights, decision.previous, decision.weights - decision.previous
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "date": data["last"],
        "data": {**about, "gaps": origin.gaps, **data},
        "findings": [one.to_json() for one in origin.findings],
        "model": {
            "name": origin.model,
            "architecture": type(origin.policy).__name__,
            "fingerprint": origin.policy.fingerprint,
        },
        "delay": origin.delay,
        "periods_per_year": origin.frequency.per_year,
        "assets": names,
        "weights": numbers_by_asset(names, weights),
        "previous": numbers_by_asset(names, previous),
        "trades": numbers_by_asset(names, trades),
        "turnover": float(np.abs(trades).sum()),
        "turnover_l1": decision.turnover_l1,
        "cost": float(np.abs(trades).sum()) * decision.cost_bps / 1e4,
        "cost_bps": decision.cost_bps,
        **_market(decision, names),
    }
    if orders is not None:
        own = np.array_equal(orders.previous, previous) and np.array_equal(orders.target, weights)
        expect(own, "orders", "those of this decision", "others")
        document["orders"] = orders.to_json(names)
    problem = problem_of_decision(decision)
    proof = problem.proof(weights, prices_of_solution(decision.solution), names, previous)
    return document | proof | {"problem": problem.to_json()}


def checked_result(decision: MarketDecision, accept: Sequence[str] | str = ()) -> MarketDecision:
    """The decision, unless its risk or its gain is one that no market gives: then an `InputError`."""
    origin = decision.origin
    assert origin is not None
    weights = decision.weights
    risk = float(np.sqrt(max(weights @ decision.covariance @ weights, 0.0)))
    found = find_result_faults(origin.table.index, risk, float(decision.mean @ weights))
    found = refuse_faults(found, accept, "decision")
    return replace(decision, origin=replace(origin, findings=(*origin.findings, *found))) if found else decision


def prices_of_solution(solution: PortfolioSolution) -> Prices:
    """The shadow prices that prove a solution."""
    return Prices(float(solution.turnover_price), float(solution.budget_price), np.atleast_1d(solution.limit_prices))


def problem_of_decision(decision: MarketDecision) -> StatedProblem:
    """The problem that a decision is the exact answer of, over all assets."""
    return StatedProblem(
        mean=decision.forecast,
        covariance=decision.covariance,
        start=decision.start,
        risk_aversion=decision.risk_aversion,
        turnover_l1=decision.turnover_l1,
        cost=decision.cost_bps / 1e4 / decision.days,
        benchmark=decision.benchmark,
        constraints=decision.constraints,
    )


def _market(decision: MarketDecision, names: list[str]) -> dict[str, Any]:
    """Verdict, reasons and gaps of the market policy."""
    found: dict[str, Any] = {
        **decision.verdict.to_json(),
        "days": decision.days,
        "reasons_bps": {part: numbers_by_asset(names, numbers) for part, numbers in decision.reasons_bps.items()},
        "without_forecasts": numbers_by_asset(names, decision.without_forecasts),
    }
    found |= least_trade_facts(decision, names)
    if decision.availability is not None:
        found["gaps"] = decision.availability.describe(names)
    return found


def least_trade_facts(decision: MarketDecision, names: list[str]) -> dict[str, Any]:
    """The smallest trade, if one was asked for, and the assets that keep their weight because of it."""
    if not decision.min_trade:
        return {}
    fixed = [names[int(i)] for i in np.flatnonzero(decision.untraded)]
    return {"min_trade": {"weight": decision.min_trade, "fixed": fixed}}


def numbers_by_asset(names: list[str], numbers: Any) -> dict[str, float]:
    """Numbers by name."""
    return dict(zip(names, map(float, numbers), strict=True))
