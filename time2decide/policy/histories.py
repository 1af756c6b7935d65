"""From a history of returns to the situation after its last row, for one history or many variations of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from time2decide.forecasting.features import LEAST_WINDOW
from time2decide.forecasting.lag_regression import LAGS, lag_forecast
from time2decide.markets.oracle import WINDOW, oracle_path
from time2decide.policy.network import HISTORY
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.engine import Observation

if TYPE_CHECKING:
    from time2decide.policy.model import Time2Decide

MEMORY = 512  # steps back that the oracle's path is followed from; it has forgotten its start long before
BLOCK = 8.0  # mean length of the blocks of resampled residuals


def observe(returns: np.ndarray, previous: np.ndarray, gamma: float, risk: float) -> Observation:
    """What a strategy would be told after the last row of histories (n, time, m): windows, and the oracle's paths.

    With fewer than 96 rows the window is all of them, and the oracle follows what a shorter one allows.
    """
    n, time, m = returns.shape
    window = min(WINDOW, time)
    recent = returns[:, -(MEMORY + window) :]
    estimate = min(window, max(LEAST_WINDOW // 2, recent.shape[1] - HISTORY - 1))
    path = np.full((n, 1, window, m), 1.0 / m)
    if recent.shape[1] > estimate:
        oracle = np.asarray(oracle_path(recent, [gamma], risk, estimate))  # (n, 1, time, m)
        path[:, :, -min(window, oracle.shape[2]) :] = oracle[:, :, -window:]
    held = np.broadcast_to(previous, (n, 1, window, m))
    return Observation(returns[:, -window:], held, path, np.array([gamma]), risk)


def decide_many(
    model: Time2Decide, histories: np.ndarray, previous: np.ndarray, gamma: float, risk: float
) -> tuple[np.ndarray, np.ndarray]:
    """Feasible weights and forecasts of the next returns for histories (n, time, m), each (n, m)."""
    past = observe(histories, previous, gamma, risk)
    strategy = model.strategy()
    answer = strategy.answer(past, strategy.history_of(past))
    wanted = strategy.wanted(answer, past)[:, 0]
    weights = np.asarray(project_portfolio(wanted, np.broadcast_to(previous, wanted.shape), gamma))
    return weights, answer.forecast.double().numpy()


def resampled(returns: np.ndarray, members: int, rng: np.random.Generator, block: float = BLOCK) -> np.ndarray:
    """Histories that could have been, (members, time, m): what a regression on the past explains stays, the rest is
    drawn again from its own residuals.

    Residuals are drawn for all assets together, so that their correlations stay, in blocks of geometric length
    (the stationary bootstrap), so that calm and wild times stay together.
    """
    recent = returns[-(MEMORY + WINDOW) :]
    time, m = recent.shape
    lags = min(LAGS, time - 4)
    level, scale = recent.mean(axis=0), recent.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    standard = torch.from_numpy(((recent - level) / scale).T.copy())  # (m, time)
    residuals = lag_forecast(standard, lags).residuals.numpy().T * scale  # (time − lags, m)
    fitted = recent[lags:] - residuals
    places = stationary_places(time - lags, members, block, rng)  # (members, time − lags)
    drawn = fitted + (residuals - residuals.mean(axis=0))[places]
    kept = np.broadcast_to(recent[:lags], (members, lags, m))
    return np.maximum(np.concatenate([kept, drawn], axis=1), -1.0)


def stationary_places(length: int, draws: int, block: float, rng: np.random.Generator) -> np.ndarray:
    """Indices of the stationary bootstrap, (draws, length): blocks of geometric length, wrapped around the end."""
    fresh = rng.random((draws, length)) < 1.0 / block
    fresh[:, 0] = True
    starts = rng.integers(0, length, (draws, length))
    steps = np.arange(length)
    last = np.maximum.accumulate(np.where(fresh, steps, 0), axis=1)  # where the current block began
    return np.asarray((np.take_along_axis(starts, last, axis=1) + steps - last) % length)
