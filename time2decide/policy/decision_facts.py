"""Everything that can be said about one decision, as plain numbers by asset."""

from __future__ import annotations

from typing import Any

import pandas as pd

from time2decide.markets.oracle import RISK_AVERSION
from time2decide.policy.episodes import SEEN_RISKS
from time2decide.policy.explanation import explain
from time2decide.policy.model import Decision, Time2Decide
from time2decide.policy.uncertainty import noise_curve, uncertainty

_TOLERANCE = 1e-9  # of the constraints


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
    """
    network = Time2Decide.from_pretrained(model)
    decision = network.decision(table, previous, turnover_l1, risk_aversion=risk_aversion)
    names = [str(column) for column in table.columns]
    facts = _decision(decision, names)
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
