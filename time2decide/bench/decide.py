"""Time per decision: Time2Decide against predict-then-optimise on the same forecasts, and the paper's projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from time2decide.backtesting.baselines import PredictThenOptimise
from time2decide.bench.projection import by_slsqp
from time2decide.bench.timing import interleaved, one_thread, ratio
from time2decide.markets import BUDGETS, WINDOW, synthetic_oracle, synthetic_returns
from time2decide.policy.model import NetworkForecast, PolicyStrategy, load_policy
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.engine import Observation


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row for a single decision and one for 30 series × 7 budgets at once: µs per decision."""
    batches = ((1, 1),) if quick else ((1, 1), (30, 7))
    with one_thread():
        return [_row(series, budgets, quick) for series, budgets in batches]


def _row(series: int, budgets: int, quick: bool) -> dict[str, Any]:
    returns = synthetic_returns(count=series)
    oracle = synthetic_oracle(count=series)[:, :budgets]
    gamma = np.asarray(BUDGETS[:budgets])
    policy = load_policy("decide")[0]
    ours, pto = PolicyStrategy(policy), PredictThenOptimise(NetworkForecast(policy))
    t = WINDOW + 100
    window = slice(t - WINDOW, t)
    past = Observation(returns[:, window], oracle[:, :, window], oracle[:, :, window], gamma, 0.1)

    def feasible(raw: np.ndarray) -> np.ndarray:
        return np.asarray(project_portfolio(raw, past.previous, np.broadcast_to(gamma, raw.shape[:-1])))

    def paper() -> np.ndarray:
        raw = ours.decide(past)
        pairs = zip(raw.reshape(-1, raw.shape[-1]), past.previous.reshape(-1, raw.shape[-1]), strict=True)
        return np.stack([by_slsqp(y, p, gamma[i % budgets]) for i, (y, p) in enumerate(pairs)])

    peers: dict[str, Callable[[], object]] = {
        "time2decide": lambda: feasible(ours.decide(past)),
        "network": lambda: ours.decide(past),
        "pto": lambda: pto.decide(past),
        "slsqp": paper,
    }
    times = interleaved(peers, rounds=2 if quick else 15)
    decisions = series * budgets
    held = feasible(ours.decide(past))
    return {
        "compared": f"one step of {series} series × {budgets} budgets, m=16",
        "decisions": decisions,
        **{f"{name}_us": 1e6 * float(np.median(values)) / decisions for name, values in times.items()},
        "ratio": ratio(times, "pto", "time2decide"),
        "ratio_paper": ratio(times, "slsqp", "time2decide"),
        "violation": float(max(0.0, -held.min(), np.abs(held.sum(-1) - 1).max())),
    }
