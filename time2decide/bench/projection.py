"""The portfolio projection in batches against SLSQP (the paper's choice) and DAQP, both one instance at a time."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from time2decide.bench.timing import one_thread
from time2decide.qp import QP, project_portfolio, solve_exact
from time2decide.qp.exact import as_rows, solve_rows

_SIZES = ((16, 1), (16, 256), (16, 4096), (64, 1), (64, 256), (64, 4096), (500, 1), (500, 256), (500, 4096))


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per number of assets and batch: µs per projection, ratios, and errors against the exact answer."""
    sizes = _SIZES[:2] if quick else _SIZES
    with one_thread():
        return [_row(m, batch, rounds=3 if quick else 21) for m, batch in sizes]


def _row(m: int, batch: int, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(m + batch)
    y = rng.normal(1 / m, 1 / np.sqrt(m), (batch, m))
    previous = rng.dirichlet(np.full(m, 0.5), batch)
    gamma = rng.uniform(0.1, 1.5, batch)
    tensors = [torch.from_numpy(a) for a in (y, previous, gamma)]
    x = project_portfolio(*tensors).numpy()
    # the peers solve one instance at a time, and take seconds for 500 assets
    rounds, checked = (rounds, 16) if m == 16 else (3, 3) if m == 64 else (1, 1)
    checked = min(batch, checked)
    lifted = _lifted(y[:checked], previous[:checked], gamma[:checked])
    calls = 20 if batch == 1 else 1
    times: dict[str, list[float]] = {"ours": [], "daqp": [], "slsqp": []}
    for turn in range(rounds):
        i = turn % checked
        one = as_rows(lifted[i])
        jobs = {
            "ours": lambda: [project_portfolio(*tensors) for _ in range(calls)],
            "daqp": lambda one=one: solve_rows(one),
            "slsqp": lambda i=i: _by_slsqp(y[i], previous[i], gamma[i]),
        }
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name].append((time.perf_counter() - start) / (calls * batch if name == "ours" else 1))
    exact = solve_exact(lifted).x + previous[:checked]
    excess = np.abs(x - previous).sum(1) - gamma
    violation = max(np.abs(x.sum(1) - 1).max(), -x.min(), excess.max(), 0.0)
    ours, by_daqp, by_slsqp = (median(times[name]) for name in ("ours", "daqp", "slsqp"))
    return {
        "assets": m,
        "batch": batch,
        "ours_us": 1e6 * ours,
        "slsqp_us": 1e6 * by_slsqp,
        "daqp_us": 1e6 * by_daqp,
        "ratio": by_slsqp / ours,
        "ratio_daqp": by_daqp / ours,
        "error": float(np.abs(x[:checked] - exact).max()),
        "violation": float(violation),
    }


def _lifted(y: np.ndarray, previous: np.ndarray, gamma: np.ndarray) -> QP:
    """The projection as a problem in w = x − p: min ½‖w − (y − p)‖², −w ≤ p, 1ᵀw = 0, ‖w‖₁ ≤ γ."""
    batch, m = y.shape
    C = np.vstack([-np.eye(m), np.ones(m), -np.ones(m)])
    d = np.concatenate([previous, np.zeros((batch, 2))], axis=1)
    return QP(np.eye(m), previous - y, C, d, l1_radius=gamma)


def _by_slsqp(y: np.ndarray, previous: np.ndarray, gamma: float) -> np.ndarray:
    ones = np.ones(len(y))
    constraints = [
        {"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: ones},
        {"type": "ineq", "fun": lambda x: gamma - np.abs(x - previous).sum(), "jac": lambda x: -np.sign(x - previous)},
    ]
    answer = minimize(
        lambda x: np.square(x - y).sum(),
        previous,
        jac=lambda x: 2 * (x - y),
        bounds=[(0, 1)] * len(y),
        constraints=constraints,
        method="SLSQP",
    )
    return answer.x
