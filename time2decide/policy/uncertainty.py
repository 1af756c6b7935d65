"""How sure is a decision: the same question asked about perturbed histories."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from time2decide.core.validation import validate_count
from time2decide.forecasting.lag_regression import LAGS, lag_forecast
from time2decide.markets.oracle import WINDOW
from time2decide.policy.model import Decision, Time2Decide
from time2decide.policy.observe import MEMORY
from time2decide.simulation.metrics import stationary_bootstrap

NOISE_LEVELS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # standard deviations of the added noise, in those of each asset
_BLOCK = 8.0  # mean length of the blocks of resampled residuals


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
