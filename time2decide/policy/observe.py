"""From a history of returns to the observation after its last row, for one history or for many at once."""

from __future__ import annotations

import numpy as np

from time2decide.forecasting.features import LEAST_WINDOW
from time2decide.markets.oracle import WINDOW, oracle_path
from time2decide.policy.network import HISTORY
from time2decide.simulation.engine import Observation

MEMORY = 512  # steps back that the oracle's path is followed from; it has forgotten its start long before


def observe(returns: np.ndarray, previous: np.ndarray, turnover_l1: float, risk_aversion: float) -> Observation:
    """The observation after the last row of histories (n, time, m): windows, current weights, the oracle's paths.

    With fewer than 96 rows the window is all of them, and the oracle follows what a shorter one allows.
    """
    n, time, m = returns.shape
    window = min(WINDOW, time)
    recent = returns[:, -(MEMORY + window) :]
    estimate = min(window, max(LEAST_WINDOW // 2, recent.shape[1] - HISTORY - 1))
    path = np.full((n, 1, window, m), 1.0 / m)
    if recent.shape[1] > estimate:
        oracle = np.asarray(oracle_path(recent, [turnover_l1], risk_aversion, estimate))  # (n, 1, time, m)
        path[:, :, -min(window, oracle.shape[2]) :] = oracle[:, :, -window:]
    own = np.broadcast_to(previous, (n, 1, window, m))
    return Observation(returns[:, -window:], own, path, np.array([turnover_l1]), risk_aversion)
