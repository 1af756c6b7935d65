"""The decision head beside the exact decision: regret by layers, with and without covariance tokens; time and memory.

*Markets*: predict-then-optimise on TimePFN's forecasts along the paper's synthetic markets, once by the exact solver,
once by the layers, and once by the exact solver without covariance tokens (Σ replaced by its mean variance times I).
*Stocks*: single problems of a factor market with costs; what is lost is relative to the gain over not trading.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from time2decide.attention.decision_head import attention_decision
from time2decide.bench.portfolio_solver import sample_portfolio_cell
from time2decide.bench.timing import one_thread, timed_call
from time2decide.forecasting.timepfn import TimePFN, TimePFNForecaster
from time2decide.markets.covariance import rolling_covariances
from time2decide.markets.oracle import WINDOW, best_allocations
from time2decide.markets.portfolio import solve_portfolio
from time2decide.markets.synthetic import synthetic_returns

_BUDGETS, _RISKS = np.array([0.5, 1.0, 2.0]), (0.1, 10.0, 100.0)
_LAYERS, _STOCK_LAYERS = (192,), (64, 128, 192, 256)
_FIRST, _STEPS, _SERIES, _SEED = 100, 100, 8, 7  # rows skipped, decisions, series and seed of the synthetic markets
Decide = Callable[..., np.ndarray]  # means (n, m), Σ (n, m, m), current weights (n, k, m), λ -> weights (n, k, m)


def head_rows(quick: bool = False) -> list[dict[str, Any]]:
    """Three synthetic markets × three risk aversions × three budgets, then 16, 100 and 1,000 stocks."""
    with one_thread():
        rows = [
            row
            for market in (("clean",) if quick else ("clean", "noisy", "noisy-matched"))
            for row in _market_rows(market, 1 if quick else _SERIES, 5 if quick else _STEPS)
        ]
        sizes = (16,) if quick else (16, 100, 1000)
        return rows + [
            _stock_row(m, risk, layers)
            for m in sizes
            for risk in (2.0, 25.0)
            for layers in _STOCK_LAYERS[: 2 if quick else 4]
        ]


def _market_rows(market: str, series: int, steps: int) -> list[dict[str, Any]]:
    """Regret in bp a step of every cell: exact, by layers and without covariance tokens."""
    returns = np.asarray(synthetic_returns(market, count=series, seed=_SEED))
    returns = returns[:, _FIRST : _FIRST + WINDOW + steps]
    forecaster = TimePFNForecaster(TimePFN.from_pretrained(), 100.0)
    windows = [returns[:, t : t + WINDOW] for t in range(steps)]
    forecasts = np.stack([forecaster.path(window)[:, 0] for window in windows], 1)  # (series, steps, m)
    covariance, future = rolling_covariances(returns, WINDOW)[:, :-1], returns[:, WINDOW:]
    rows = []
    for risk in _RISKS:
        utility = partial(_utility, returns=future, covariance=covariance, risk=risk)
        best = utility(_path(_exact, future, covariance, risk))
        exact = best - utility(_path(_exact, forecasts, covariance, risk))  # (series, budgets)
        blind = best - utility(_path(_without_tokens, forecasts, covariance, risk))
        for layers in _LAYERS:
            seconds, path = timed_call(_path, partial(_by_layers, layers=layers), forecasts, covariance, risk)
            found = best - utility(path)
            for k, gamma in enumerate(_BUDGETS):
                saved = blind[:, k] - exact[:, k]
                rows.append({
                    "kind": "market", "market": market, "risk_aversion": risk, "turnover_l1": float(gamma),
                    "layers": layers, "regret_bp": found[:, k].mean(), "exact_bp": exact[:, k].mean(),
                    "apart_percent": 100 * (found[:, k].mean() / exact[:, k].mean() - 1),
                    "without_tokens_bp": blind[:, k].mean(), "tokens_save_bp": saved.mean(),
                    "interval_bp": 1.96 * saved.std(ddof=min(1, series - 1)) / series**0.5,
                    "ms_per_decision": 1e3 * seconds / future[..., 0].size / len(_BUDGETS),
                })  # fmt: skip
    return [{name: value if isinstance(value, str) else float(value) for name, value in row.items()} for row in rows]


def _path(decide: Decide, means: np.ndarray, covariance: np.ndarray, risk: float) -> np.ndarray:
    """Weights (n, budgets, steps, m), from uniform and each near the one before."""
    n, steps, m = means.shape
    weights, path = np.full((n, len(_BUDGETS), m), 1 / m), []
    for t in range(steps):
        weights = decide(means[:, t], covariance[:, t], weights, risk)
        path.append(weights)
    return np.stack(path, 2)


def _exact(mean: np.ndarray, covariance: np.ndarray, previous: np.ndarray, risk: float) -> np.ndarray:
    half = np.broadcast_to(_BUDGETS / 2, previous.shape[:2])
    return best_allocations(mean[:, None], 2 * risk * covariance, previous, half)


def _by_layers(mean: np.ndarray, covariance: np.ndarray, previous: np.ndarray, risk: float, layers: int) -> np.ndarray:
    options: dict[str, Any] = {"risk_aversion": risk, "turnover_l1": _BUDGETS, "layers": layers}
    return np.asarray(attention_decision(mean[:, None], covariance[:, None], previous, **options))


def _without_tokens(mean: np.ndarray, covariance: np.ndarray, previous: np.ndarray, risk: float) -> np.ndarray:
    m = mean.shape[-1]
    return _exact(mean, np.einsum("nii->n", covariance)[:, None, None] / m * np.eye(m), previous, risk)


def _utility(path: np.ndarray, returns: np.ndarray, covariance: np.ndarray, risk: float) -> np.ndarray:
    """Mean utility a step in bp, (n, budgets)."""
    earned = np.einsum("nktm,ntm->nk", path, returns)
    return np.asarray(1e4 * (earned - risk * np.einsum("nktm,ntmj,nktj->nk", path, covariance, path)) / path.shape[2])


def _stock_row(m: int, risk: float, layers: int) -> dict[str, Any]:
    """One decision of a factor market at γ = .1, .5 and 2 and 10 bp of cost: the worst loss, time, memory."""
    losses, times, exact_times, before = [], [], [], _peak_memory()
    for gamma in (0.1, 0.5, 2.0):
        cell = sample_portfolio_cell(m, risk, gamma)
        terms: dict[str, Any] = {"risk_aversion": risk, "turnover_l1": gamma, "cost": 1e-3}
        exact_seconds, exact = timed_call(partial(solve_portfolio, *cell[:3], **terms))
        seconds, weights = timed_call(partial(attention_decision, *cell[:3], **terms, layers=layers))
        problem, best = exact.problem, float(exact.utility)
        idle, ours = (float(problem.utility(np.asarray(w)[None])[0]) for w in (cell.previous, weights))
        losses.append((best - ours) / (best - idle))
        times.append(seconds)
        exact_times.append(exact_seconds)
    return {
        "kind": "stocks", "assets": m, "risk_aversion": risk, "layers": layers, "lost_percent": 100 * max(losses),
        "ms": 1e3 * float(np.median(times)), "exact_ms": 1e3 * float(np.median(exact_times)),
        "peak_mb": _peak_memory() - before,
    }  # fmt: skip


def _peak_memory() -> float:
    """Most memory that the process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
