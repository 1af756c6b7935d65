"""How sure is a decision: the same question asked about histories that could have been."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from time2decide.core.validation import validate_count
from time2decide.markets.oracle import RISK_AVERSION, WINDOW
from time2decide.policy.histories import MEMORY, decide_many, resampled

if TYPE_CHECKING:
    from time2decide.policy.model import Decision, Time2Decide

NOISE_LEVELS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # standard deviations of the added noise, in those of each asset


@dataclass(frozen=True)
class Uncertainty:
    """Standard deviations over an ensemble of histories that could have been.

    weights, expected : (m,) of each asset's weight and forecast return
    portfolio : of the forecast return of the portfolio decided on
    members : size of the ensemble
    """

    weights: np.ndarray
    expected: np.ndarray
    portfolio: float
    members: int


def spread(
    model: Time2Decide,
    returns: np.ndarray,
    decision: Decision,
    *,
    risk_aversion: float = RISK_AVERSION,
    members: int = 48,
    seed: int = 0,
) -> Uncertainty:
    """The spread of a decision about returns (time, m); deterministic by seed.

    A history that could have been keeps what a regression on its own past explains and draws the residuals again,
    see `resampled`. Where returns are nearly unpredictable the forecasts spread as wide as they are large.
    """
    validate_count("members", members, least=2)
    histories = resampled(returns, members, np.random.default_rng(seed))
    weights, expected = decide_many(model, histories, decision.previous, decision.turnover_l1, risk_aversion)
    return Uncertainty(
        weights.std(axis=0, ddof=1),
        expected.std(axis=0, ddof=1),
        float((expected @ decision.weights).std(ddof=1)),
        members,
    )


def noise_curve(
    model: Time2Decide,
    returns: np.ndarray,
    decision: Decision,
    *,
    risk_aversion: float = RISK_AVERSION,
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
    recent = returns[-(MEMORY + WINDOW) :]
    noise = rng.normal(size=(members, *recent.shape)) * recent.std(axis=0)  # the same draws at every level
    rows = []
    for level in levels:
        histories = np.maximum(recent + level * noise, -1.0) if level else recent[None]
        weights, expected = decide_many(model, histories, decision.previous, decision.turnover_l1, risk_aversion)
        mean = weights.mean(axis=0)
        rows.append(
            {
                "noise": level,
                "moved": float(np.abs(mean - decision.previous).sum()),
                "from_uniform": float(np.abs(mean - 1 / len(mean)).sum()),
                "forecast_spread": float(expected.mean(axis=0).std()),
            }
        )
    return rows
