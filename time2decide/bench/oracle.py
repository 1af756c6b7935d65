"""The oracle's steps against the paper's route (CVXPY + OSQP, rebuilt per problem), judged by a second exact solver."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from time2decide.bench.timing import interleaved, one_thread, ratio
from time2decide.markets.allocation import mean_variance_step
from time2decide.markets.covariance import empirical_covariance
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW, oracle_path
from time2decide.markets.synthetic import synthetic_oracle, synthetic_returns

_SCALE = 100.0  # returns are small numbers: solvers with absolute tolerances need them larger


class Steps(NamedTuple):
    """Decisions taken at random from oracle paths: r (n, m), Σ (n, m, m), previous (n, m), γ (n,)."""

    returns: np.ndarray
    covariance: np.ndarray
    previous: np.ndarray
    turnover_l1: np.ndarray


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per market for the cost of a step, and one for the labels of a whole training set."""
    markets = ("clean",) if quick else ("clean", "noisy")
    with one_thread():
        return [*(_step_row(market, quick) for market in markets), _training_row(quick)]


def _step_row(market: str, quick: bool) -> dict[str, Any]:
    """The cost per step of a batch, as used for labels, beside one problem at a time by the paper's route."""
    series = 2 if quick else 30
    returns = synthetic_returns(market, count=series)[:, : 160 if quick else None]
    decisions = series * (returns.shape[1] - WINDOW) * len(BUDGETS)
    few = sample_steps(market, 4 if quick else 40, series=series)
    peers: dict[str, Callable[[], object]] = {
        "ours": lambda: oracle_path(returns, BUDGETS),
        "reference": lambda: [cvxpy_osqp_step(few, i) for i in range(len(few.returns))],
    }
    times = interleaved(peers, rounds=1 if quick else 3)
    seconds = median(times["ours"])
    many = sample_steps(market, 50 if quick else 2500, series=series)
    exact = np.stack([clarabel_step(many, i) for i in range(len(many.returns))])
    steps = mean_variance_step(many.returns, many.covariance, many.previous, many.turnover_l1)
    theirs = np.stack([cvxpy_osqp_step(few, i) for i in range(len(few.returns))])
    return {
        "compared": f"oracle step, m=16, {market}",
        "decisions": decisions,
        "ours_us": seconds / decisions * 1e6,
        "cvxpy_osqp_us": median(times["reference"]) / len(few.returns) * 1e6,
        "ratio": ratio(times, "reference", "ours") * decisions / len(few.returns),
        "seconds": seconds,
        "ours_objective_error": float(np.abs(objective(many, steps) - objective(many, exact)).max()),
        "ours_constraint_error": violation(many, steps),
        "cvxpy_osqp_weight_error": float(np.abs(theirs - mean_variance_step(*few)).max()),
    }


def _training_row(quick: bool) -> dict[str, Any]:
    series = 4 if quick else 300
    returns = synthetic_returns("clean", "train", count=series)
    start = time.perf_counter()
    oracle_path(returns, BUDGETS)
    seconds = time.perf_counter() - start
    decisions = series * (returns.shape[1] - WINDOW) * len(BUDGETS)
    return {
        "compared": f"labels of {series} series × {returns.shape[1] - WINDOW} steps × {len(BUDGETS)} budgets",
        "decisions": decisions,
        "ours_us": seconds / decisions * 1e6,
        **dict.fromkeys(("cvxpy_osqp_us", "ratio")),
        "seconds": seconds,
        **dict.fromkeys(("ours_objective_error", "ours_constraint_error", "cvxpy_osqp_weight_error")),
    }


def sample_steps(market: str, count: int, *, series: int = 30, seed: int = 0) -> Steps:
    """`count` random decisions (series, step, budget) of the evaluation set of a market."""
    rng = np.random.default_rng(seed)
    returns = synthetic_returns(market, count=series)
    oracle = synthetic_oracle(market, count=series)
    i, k = rng.integers(0, series, count), rng.integers(0, len(BUDGETS), count)
    t = rng.integers(WINDOW, returns.shape[1], count)
    windows = np.stack([returns[a, b - WINDOW : b] for a, b in zip(i, t, strict=True)])  # (count, window, m)
    return Steps(returns[i, t], empirical_covariance(windows), oracle[i, k, t - 1], np.asarray(BUDGETS)[k])


def objective(steps: Steps, s: np.ndarray) -> np.ndarray:
    """sᵀr − λ sᵀΣs, (n,)."""
    risk = np.einsum("ni,nij,nj->n", s, steps.covariance, s)
    return np.asarray(np.einsum("ni,ni->n", s, steps.returns) - RISK_AVERSION * risk)


def violation(steps: Steps, s: np.ndarray) -> float:
    """The largest violation of s ≥ 0, 1ᵀs = 1 and the turnover budget."""
    moved = np.abs(s - steps.previous).sum(-1) - steps.turnover_l1
    return float(max(0.0, -s.min(), np.abs(s.sum(-1) - 1).max(), moved.max()))


def clarabel_step(steps: Steps, i: int) -> np.ndarray:
    """Decision i by Clarabel, an interior-point method: variables (s, u) with |s − p| ≤ u, 1ᵀu ≤ γ."""
    import clarabel
    from scipy import sparse

    r, sigma, p, gamma = (field[i] for field in steps)
    m = len(r)
    eye, zero, one = np.eye(m), np.zeros((m, m)), np.ones((1, m))
    blank = np.zeros((1, m))
    A = np.block([[one, blank], [-eye, zero], [eye, -eye], [-eye, -eye], [blank, one]])
    b = np.concatenate([[1.0], np.zeros(m), p, -p, [gamma]])
    P = np.block([[2 * RISK_AVERSION * sigma, zero], [zero, zero]]) * _SCALE
    q = np.concatenate([-r, np.zeros(m)]) * _SCALE
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(3 * m + 1)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    solver = clarabel.DefaultSolver(sparse.csc_matrix(np.triu(P)), q, sparse.csc_matrix(A), b, cones, settings)
    return np.array(solver.solve().x)[:m]


def cvxpy_osqp_step(steps: Steps, i: int) -> np.ndarray:
    """Decision i by the paper's route: a CVXPY problem built anew and solved by OSQP at its default tolerances."""
    cp: Any = importlib.import_module("cvxpy")
    r, sigma, p, gamma = (field[i] for field in steps)
    s = cp.Variable(len(r))
    goal = cp.Maximize(s @ r - RISK_AVERSION * cp.quad_form(s, cp.psd_wrap(sigma)))
    problem = cp.Problem(goal, [s >= 0, cp.sum(s) == 1, cp.norm1(s - p) <= gamma])
    problem.solve(solver=cp.OSQP)
    return np.asarray(s.value)
