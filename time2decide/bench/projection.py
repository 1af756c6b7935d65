"""The portfolio projection in batches against SLSQP (the paper's choice) and DAQP, both one instance at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from time2decide.bench.timing import one_thread
from time2decide.qp import QP, project_portfolio, solve_exact
from time2decide.qp.exact import as_rows, solve_rows


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per number of assets and batch: µs per projection, ratios, and errors against the exact answer."""
    with one_thread():
        return [
            row
            for m, checked in ((16, 3), *(() if quick else ((64, 3), (500, 1))))
            for row in _rows(m, checked if quick else 5 * checked if m == 16 else checked, quick)
        ]


def _rows(m: int, checked: int, quick: bool) -> list[dict[str, Any]]:
    """All batches of one m; the peers solve `checked` instances one at a time, which takes 30 s for 500 assets."""
    batches = (1, 256) if quick else (1, 256, 4096)
    rng = np.random.default_rng(m)
    y = rng.normal(1 / m, 1 / np.sqrt(m), (max(batches), m))
    previous = rng.dirichlet(np.full(m, 0.5), max(batches))
    gamma = rng.uniform(0.1, 1.5, max(batches))
    lifted = _lifted(y[:checked], previous[:checked], gamma[:checked])
    peers: dict[str, list[float]] = {"daqp": [], "slsqp": []}
    ours: dict[int, list[float]] = {batch: [] for batch in batches}
    for i in range(checked):
        one = as_rows(lifted[i])
        peers["daqp"].append(_seconds(solve_rows, one))
        peers["slsqp"].append(_seconds(by_slsqp, y[i], previous[i], gamma[i]))
        for batch, times in ours.items():
            given = [torch.from_numpy(a[:batch]) for a in (y, previous, gamma)]
            times += [_seconds(project_portfolio, *given) / batch for _ in range(5)]
    x = project_portfolio(y, previous, gamma)
    exact = np.asarray(solve_exact(lifted).x) + previous[:checked]
    excess = np.abs(x - previous).sum(1) - gamma
    daqp, slsqp = median(peers["daqp"]), median(peers["slsqp"])
    return [
        {
            "assets": m,
            "batch": batch,
            "ours_us": 1e6 * median(times),
            "slsqp_us": 1e6 * slsqp,
            "daqp_us": 1e6 * daqp,
            "ratio": slsqp / median(times),
            "ratio_daqp": daqp / median(times),
            "error": float(np.abs(x[:checked] - exact).max()),
            "violation": float(max(np.abs(x.sum(1) - 1).max(), -x.min(), excess.max(), 0.0)),
        }
        for batch, times in ours.items()
    ]


def _seconds(job: Callable[..., object], *arguments: Any) -> float:
    start = time.perf_counter()
    job(*arguments)
    return time.perf_counter() - start


def _lifted(y: np.ndarray, previous: np.ndarray, gamma: np.ndarray) -> QP:
    """The projection as a problem in w = x − p: min ½‖w − (y − p)‖², −w ≤ p, 1ᵀw = 0, ‖w‖₁ ≤ γ."""
    batch, m = y.shape
    C = np.vstack([-np.eye(m), np.ones(m), -np.ones(m)])
    d = np.concatenate([previous, np.zeros((batch, 2))], axis=1)
    return QP(np.eye(m), previous - y, C, d, l1_radius=gamma)


def by_slsqp(y: np.ndarray, previous: np.ndarray, gamma: float) -> np.ndarray:
    """The nearest feasible weights by SLSQP, the route of the paper."""
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
