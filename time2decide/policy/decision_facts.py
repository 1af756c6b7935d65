"""Everything that can be said about one decision, as plain numbers by asset."""

from __future__ import annotations

from typing import Any

import pandas as pd

from time2decide.markets.oracle import RISK_AVERSION
from time2decide.policy.episodes import SEEN_RISKS
from time2decide.policy.explanation import explain
from time2decide.policy.inputs import validate_returns
from time2decide.policy.model import Time2Decide
from time2decide.policy.uncertainty import noise_curve, spread

_TOLERANCE = 1e-9  # of the constraints


def decision_facts(
    table: pd.DataFrame,
    held: pd.Series | None = None,
    turnover_l1: float = 1.0,
    *,
    risk_aversion: float = RISK_AVERSION,
    model: str = "decide",
    seed: int = 0,
) -> dict[str, Any]:
    """The decision about a table of returns (dates × assets) with its spread, its reasons and its checks, for JSON.

    Parameters
    ----------
    table : DataFrame
        As `load_returns` gives it.
    held : Series by asset, optional
        What is held now; equal weights if not given.
    model : str
        A bundled checkpoint or a folder.
    seed : int
        Of the ensembles.
    """
    array = validate_returns(table)
    network = Time2Decide.from_pretrained(model)
    decision = network.decision(table, held, turnover_l1, risk_aversion=risk_aversion)
    sure = spread(network, array, decision, risk_aversion=risk_aversion, seed=seed)
    why = explain(network, array, decision, risk_aversion=risk_aversion)
    names = [str(column) for column in table.columns]

    def by_asset(numbers: Any) -> dict[str, float]:
        return dict(zip(names, map(float, numbers), strict=True))

    weights, excess = decision.weights, decision.turnover - decision.turnover_l1
    return {
        "weights": by_asset(weights),
        "previous": by_asset(decision.previous),
        "change": by_asset(weights - decision.previous),
        "wanted": by_asset(decision.wanted),
        "turnover": decision.turnover,
        "turnover_l1": decision.turnover_l1,
        "risk_aversion": risk_aversion,
        "expected_return": float(weights @ decision.expected),
        "expected_return_previous": float(decision.previous @ decision.expected),
        "risk": float((weights @ decision.covariance @ weights) ** 0.5),
        "risk_previous": float((decision.previous @ decision.covariance @ decision.previous) ** 0.5),
        "forecast": by_asset(decision.expected),
        "forecast_error": by_asset(decision.deviation),
        "constraints": {
            "sum": float(weights.sum()),
            "smallest_weight": float(weights.min()),
            "turnover_within_budget": bool(excess <= _TOLERANCE),
            "satisfied": bool(abs(weights.sum() - 1) < _TOLERANCE and weights.min() >= 0 and excess <= _TOLERANCE),
        },
        "spread": {
            "weights": by_asset(sure.weights),
            "forecast": by_asset(sure.expected),
            "expected_return": sure.portfolio,
            "members": sure.members,
            "seed": seed,
        },
        "explanation": {
            "pull": by_asset(why.pull),
            "sensitivity": by_asset(why.sensitivity),
            "covariance": by_asset(why.covariance),
            "hindsight": why.hindsight,
            "noise": noise_curve(network, array, decision, risk_aversion=risk_aversion, seed=seed),
        },
        "input": {
            "rows": len(array),
            "window": decision.window,
            "last": str(table.index[-1])[:10],
            "previous_given": held is not None,
            "model": model,
            "history": network.strategy().history,
            "risk_aversion_trained": list(SEEN_RISKS),
        },
    }
