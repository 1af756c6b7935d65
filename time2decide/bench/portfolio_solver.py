"""The portfolio solver: how fast beside other solvers, and is it ever wrong.

*portfolio*: Moreau, Clarabel, PIQP, OSQP and DAQP, then batches, gradients and rollouts. The others get the
lifted problem in the form that suits them, ready made: (s, t) with t ≥ |s − p| for the sparse solvers, bought and sold
amounts for the dense ones. Their time is setup and solve; ours is the whole public call.

*exactness*: random and degenerate problems. Every answer is checked for its constraints and for its certificate, and
compared with PIQP on the lifted problem, polished; the frontier is compared with separate solves.

*limits*: decisions with group caps and a range of beta, beside PIQP on the factors and Clarabel on the matrix, ready
made. Times are of the processor.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse

from time2decide.backtesting.baselines import PredictThenOptimise
from time2decide.bench import installed
from time2decide.bench.timing import interleaved_times, one_thread, time_ratio, timed_call
from time2decide.forecasting.simple import ridge
from time2decide.markets.constraints import LONG_ONLY, Constraints, Limit
from time2decide.markets.frontier import turnover_frontier
from time2decide.markets.portfolio import FactorCovariance, PortfolioSolution, solve_portfolio
from time2decide.markets.portfolio_general import scaled_decision, solve_decision
from time2decide.markets.portfolio_gradient import portfolio_layer
from time2decide.markets.portfolio_interior import SETTINGS, lift_decision
from time2decide.simulation.engine import rollout

SIZES, RISKS, BUDGETS = (20, 100, 250, 500, 1000), (0.1, 5.0, 50.0), (0.1, 0.5, 2.0)
ACCURACY = 1e-8  # relative utility that every answer must reach to count
_OTHERS = ("moreau", "clarabel", "piqp", "osqp", "daqp")
KINDS = ("definite", "singular", "duplicates", "ties", "zero", "factors")
_CHUNK = 500
_SLOPES = 10  # assets whose slopes are tried as the price of the net exposure
_SLOW = {"osqp": 500, "daqp": 250}  # largest number of assets for these: beyond it a cell takes minutes


class PortfolioCell(NamedTuple):
    """One decision of a factor market."""

    mean: np.ndarray
    covariance: np.ndarray
    previous: np.ndarray
    risk_aversion: float
    turnover_l1: float


def sample_portfolio_cell(m: int, risk_aversion: float, turnover_l1: float, seed: int = 0) -> PortfolioCell:
    """Means, a covariance of three factors and current weights, of the size of daily stock returns."""
    rng = np.random.default_rng([seed, m])
    loadings = rng.standard_normal((m, 3)) * 0.01
    covariance = loadings @ loadings.T + np.diag(rng.uniform(0.005, 0.02, m) ** 2)
    return PortfolioCell(
        rng.standard_normal(m) * 1e-3, covariance, rng.dirichlet(np.ones(m)), risk_aversion, turnover_l1
    )


def portfolio_rows(quick: bool = False) -> list[dict[str, Any]]:
    """Every cell against every other solver, the growth with the number of assets, batches, gradients and a rollout."""
    import time2decide.markets.turnover_kernels  # noqa: F401  (compiled before the clock starts)

    sizes = (20, 100) if quick else SIZES
    others = [name for name in _OTHERS if installed(name)]
    with one_thread():
        rows = [
            _cell_row(sample_portfolio_cell(m, risk, g), others, quick)
            for m in sizes
            for risk in RISKS
            for g in BUDGETS
        ]
        summary = _summary(rows, sizes)
        return [*rows, *summary, *_batch_rows(quick), _gradient_row(quick), _rollout_row(quick)]


def _cell_row(cell: PortfolioCell, others: list[str], quick: bool) -> dict[str, Any]:
    m = len(cell.mean)

    def solve() -> PortfolioSolution:
        return solve_portfolio(*cell[:3], risk_aversion=cell.risk_aversion, turnover_l1=cell.turnover_l1, threads=1)

    ours = solve()
    asked = [name for name in others if m <= _SLOW.get(name, m)]
    calls: dict[str, Callable[[], Any]] = {"ours": solve} | {name: _MAKE[name](cell) for name in asked}
    if m >= 500:  # the others take seconds: once is enough, ours before each of them
        times, answers = _once(calls)
    else:
        repeat = {name: (20 if m <= 20 else 3 if m <= 100 else 1) for name in calls} | {"ours": 50 if m <= 100 else 5}
        times = interleaved_times(calls, rounds=3 if quick else 15 if m <= 20 else 5, repeat=repeat)
        answers = {name: calls[name]() for name in asked}
    print(f"\r{m} assets, λ = {cell.risk_aversion:g}, γ = {cell.turnover_l1:g} ", end="", file=sys.stderr, flush=True)
    row: dict[str, Any] = {
        "kind": "cell",
        "assets": m,
        "risk_aversion": cell.risk_aversion,
        "turnover_l1": cell.turnover_l1,
        "ours_ms": 1e3 * median(times["ours"]),
        "ours_gap": float(ours.gap),
    }
    for name in _OTHERS:
        row[f"{name}_ms"] = 1e3 * median(times[name]) if name in asked else None
        row[f"{name}_error"] = _error(cell, ours, answers[name]) if name in asked else None
    apart = m >= 500  # ours was timed beside each of the others
    beside = [median(times[n]) / median(times["ours"]) if apart else time_ratio(times, n, "ours") for n in asked]
    row["ratio"] = min(beside, default=None)  # of the fastest, whether it reached the accuracy or not
    return row


def _once(calls: dict[str, Callable[[], Any]]) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds and answers of every call, ours (the median of three) right before each of the others."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    answers = {}
    for name in calls:
        if name != "ours":
            times["ours"].append(median(timed_call(calls["ours"])[0] for _ in range(3)))
            seconds, answers[name] = timed_call(calls[name])
            times[name].append(seconds)
    return times, answers


def _error(cell: PortfolioCell, ours: PortfolioSolution, s: np.ndarray) -> float:
    """Utility lost by an answer, or its largest violation of a constraint, relative to the data."""
    size = max(float(np.ptp(cell.mean)), 2 * cell.risk_aversion * float(cell.covariance.max()))
    loss = float(ours.utility - ours.problem.utility(s[None])[0]) / size
    broken = max(-s.min(), abs(s.sum() - 1), np.abs(s - cell.previous).sum() - cell.turnover_l1)
    return float(max(loss, broken))


def _summary(rows: list[dict[str, Any]], sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Least and median ratio over the cells, and the exponent of the growth of our time with the number of assets."""
    found = []
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    if ratios:
        found.append({"kind": "ratios", "least": min(ratios), "median": median(ratios), "cells": len(ratios)})
    for risk in RISKS:
        for gamma in BUDGETS:
            times = [r["ours_ms"] for r in rows if r["risk_aversion"] == risk and r["turnover_l1"] == gamma]
            slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
            found.append({"kind": "growth", "risk_aversion": risk, "turnover_l1": gamma, "exponent": float(slope)})
    return found


def _lifted(cell: PortfolioCell) -> tuple[sparse.csc_matrix, np.ndarray, sparse.csc_matrix, np.ndarray]:
    """P, q, A, b of min ½xᵀPx + qᵀx over A x ≤ b (the first row an equality), x = (s, t)."""
    m, p = len(cell.mean), cell.previous
    eye, none, one = sparse.identity(m), sparse.csc_matrix((m, m)), sparse.csc_matrix(np.ones((1, m)))
    zero = sparse.csc_matrix((1, m))
    A = sparse.bmat([[one, zero], [eye, -eye], [-eye, -eye], [-eye, none], [zero, one]], format="csc")
    b = np.concatenate([[1.0], p, -p, np.zeros(m), [cell.turnover_l1]])
    P = sparse.block_diag([sparse.csc_matrix(2 * cell.risk_aversion * cell.covariance), none], format="csc")
    scale = float(np.ptp(cell.mean))
    return P / scale, np.concatenate([-cell.mean, np.zeros(m)]) / scale, A, b


def portfolio_by_clarabel(cell: PortfolioCell, tolerance: float = 1e-9) -> Callable[[], np.ndarray]:
    """A call that sets Clarabel up and solves the cell, for weights (m,)."""
    import clarabel

    P, q, A, b = _lifted(cell)
    P = sparse.triu(P, format="csc")
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(len(b) - 1)]
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
    return lambda: np.array(clarabel.DefaultSolver(P, q, A, b, cones, settings).solve().x[: len(cell.mean)])


def _moreau(cell: PortfolioCell) -> Callable[[], np.ndarray]:
    import moreau

    P, q, A, b = _lifted(cell)
    P, A = sparse.csr_array(P), sparse.csr_array(A)
    cones = moreau.Cones(num_zero_cones=1, num_nonneg_cones=len(b) - 1)
    inner = moreau.IPMSettings(tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    settings = moreau.Settings(device="cpu", solver="ipm", ipm_settings=inner)
    return lambda: np.array(moreau.Solver(P, q, A, b, cones=cones, settings=settings).solve().x[: len(cell.mean)])


def _osqp(cell: PortfolioCell) -> Callable[[], np.ndarray]:
    import osqp

    P, q, A, b = _lifted(cell)
    P, low = sparse.triu(P, format="csc"), np.concatenate([[1.0], np.full(len(b) - 1, -np.inf)])

    def call() -> np.ndarray:
        solver = osqp.OSQP()
        options = {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iter": 200_000, "polishing": True, "verbose": False}
        solver.setup(P, q, A, low, b, **options)
        return np.array(solver.solve(raise_error=False).x[: len(cell.mean)])

    return call


def _trades(cell: PortfolioCell) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hessian, slope and upper bounds in bought and sold amounts."""
    scale = float(np.ptp(cell.mean))
    Q = 2 * cell.risk_aversion * cell.covariance / scale
    slope = Q @ cell.previous - cell.mean / scale
    upper = np.concatenate([np.ones(len(Q)), cell.previous])
    return np.block([[Q, -Q], [-Q, Q]]), np.concatenate([slope, -slope]), upper


def _piqp(cell: PortfolioCell) -> Callable[[], np.ndarray]:
    import piqp

    m = len(cell.mean)
    H, f, upper = _trades(cell)
    H, lower = np.asfortranarray(H), np.zeros(2 * m)
    A, G = np.asfortranarray(np.r_[np.ones(m), -np.ones(m)][None]), np.asfortranarray(np.ones((1, 2 * m)))

    def call() -> np.ndarray:
        solver = piqp.DenseSolver()
        settings = solver.settings
        settings.eps_abs = settings.eps_rel = settings.eps_duality_gap_abs = settings.eps_duality_gap_rel = 1e-9
        solver.setup(H, f, A, np.zeros(1), G, np.full(1, -np.inf), np.full(1, cell.turnover_l1), lower, upper)
        solver.solve()
        x = solver.result.x
        return np.asarray(cell.previous + x[:m] - x[m:])

    return call


def _daqp(cell: PortfolioCell) -> Callable[[], np.ndarray]:
    import daqp

    m = len(cell.mean)
    H, f, upper = _trades(cell)
    H = H + 1e-8 * np.eye(2 * m)  # it needs a definite Hessian
    rows = np.stack([np.r_[np.ones(m), -np.ones(m)], np.ones(2 * m)])
    high, low = np.r_[upper, 0.0, cell.turnover_l1], np.r_[np.zeros(2 * m), 0.0, -1e30]
    sense = np.zeros(2 * m + 2, dtype=np.int32)
    sense[2 * m] = 5  # an equality

    def call() -> np.ndarray:
        x = daqp.solve(H, f, rows, high, low, sense, primal_tol=1e-10)[0]
        return np.asarray(cell.previous + x[:m] - x[m:])

    return call


_MAKE: dict[str, Callable[[PortfolioCell], Callable[[], np.ndarray]]] = {
    "moreau": _moreau, "clarabel": portfolio_by_clarabel, "piqp": _piqp, "osqp": _osqp, "daqp": _daqp,
}  # fmt: skip


def sample_limited_cell(m: int, factors: int = 5, groups: int = 10) -> tuple[Any, ...]:
    """Means, a factor covariance, current weights, and terms with a cap a weight, one a group, and a range of beta."""
    rng = np.random.default_rng([factors, m])
    covariance = FactorCovariance(0.01 * rng.standard_normal((m, factors)), rng.uniform(0.005, 0.02, m) ** 2)
    p, group, beta = rng.dirichlet(np.ones(m)), rng.integers(0, groups, m), rng.uniform(0.5, 1.5, m)
    limits = [
        Limit(f"group {k}", 1.0 * (group == k), -np.inf, float(p[group == k].sum()) + 0.02) for k in range(groups)
    ]
    limits.append(Limit("beta", beta, float(beta @ p) - 0.05, float(beta @ p) + 0.05))
    rules = Constraints(0.0, np.maximum(4 / m, 1.001 * p), limits=tuple(limits))
    terms = {"risk_aversion": 5.0, "turnover_l1": 0.5, "cost": 1e-4, "constraints": rules}
    return rng.standard_normal(m) * 1e-3, covariance, p, terms


def limit_rows(quick: bool = False) -> list[dict[str, Any]]:
    """Decisions with limits: factors, their matrix, and tomorrow's from today's, beside PIQP and Clarabel."""
    import time2decide.markets.turnover_kernels  # noqa: F401  (compiled before the clock starts)

    with one_thread():
        return [_limit_row(m, 3 if quick else 5 if m >= 1000 else 25) for m in ((100,) if quick else (100, 300, 1000))]


def _limit_row(m: int, rounds: int) -> dict[str, Any]:
    mean, factors, p, terms = sample_limited_cell(m)
    today = solve_portfolio(mean, factors, p, **terms)
    tomorrow = mean * (1 + 0.01 * np.random.default_rng(0).standard_normal(m))
    calls: dict[str, Callable[[], Any]] = {
        "ours": partial(solve_portfolio, mean, factors, p, **terms),
        "dense": partial(solve_portfolio, mean, factors.dense(), p, **terms),
        "cold": partial(solve_portfolio, tomorrow, factors, p, **terms),
        "warm": partial(solve_portfolio, tomorrow, factors, p, start=today, **terms),
        "piqp": _piqp_factors(today),
        "clarabel": _clarabel_limits(today),
    }
    times = interleaved_times(calls, rounds=rounds, clock=time.process_time)
    row: dict[str, Any] = {"kind": "limits", "assets": m, "factors": 5, "limits": 11, "gap": float(today.gap)}
    row |= {f"{name}_ms": 1e3 * median(seconds) for name, seconds in times.items()}
    pairs = (("ours", "piqp"), ("ours", "clarabel"), ("dense", "clarabel"), ("warm", "cold"))
    return row | {f"{name}_of_{other}": time_ratio(times, name, other) for name, other in pairs}


def _piqp_factors(solved: PortfolioSolution) -> Callable[[], Any]:
    """A call that sets PIQP up with the factors of Σ and solves."""
    import piqp

    arguments = lift_decision(scaled_decision(solved.problem, 0)[0]).arguments

    def call() -> Any:
        solver = piqp.SparseSolver()
        for name, value in SETTINGS[0].items():
            setattr(solver.settings, name, value)
        solver.setup(*arguments)
        return solver.solve()

    return call


def _clarabel_limits(solved: PortfolioSolution) -> Callable[[], Any]:
    """A call that sets Clarabel up with the matrix Σ and solves, in (s, t) with t ≥ |s − p|."""
    import clarabel

    one, problem = scaled_decision(solved.problem, 0)[0], solved.problem
    m, eye, none = len(one.p), sparse.identity(len(one.p)), sparse.csc_matrix((len(one.p), len(one.p)))
    B, D = problem.loadings[0], problem.specific[0]
    P = sparse.block_diag([sparse.csc_matrix(one.Q.factor * (B @ B.T + np.diag(D))), none])
    ones, over, under = np.ones((1, m)), one.high[:-1] < np.inf, one.low[:-1] > -np.inf
    rows = [[one.A[-1:], None], [eye, -eye], [-eye, -eye], [eye, None], [-eye, None], [None, ones]]
    A = sparse.bmat([*rows, [one.A[:-1][over], None], [-one.A[:-1][under], None]], format="csc")
    ends = [
        one.high[-1:],
        one.p,
        -one.p,
        one.upper,
        -one.lower,
        [one.budget],
        one.high[:-1][over],
        -one.low[:-1][under],
    ]
    b: np.ndarray = np.concatenate([np.asarray(end, float) for end in ends])
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(len(b) - 1)]
    q, P = np.append(-one.q, one.cost), sparse.triu(P, format="csc")
    return lambda: clarabel.DefaultSolver(P, q, A, b, cones, settings).solve()


def _batch(count: int, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cells = [sample_portfolio_cell(m, 5.0, 0.5, seed) for seed in range(count)]
    return tuple(np.stack([cell[i] for cell in cells]) for i in range(3))  # type: ignore[return-value]


def _batch_rows(quick: bool) -> list[dict[str, Any]]:
    """256 decisions in one call, on one thread and on all cores."""
    rows = []
    for m in (20, 100) if quick else (20, 100, 250):
        batch = _batch(256, m)
        options: dict[str, Any] = {"risk_aversion": 5.0, "turnover_l1": 0.5}
        calls = {str(n): partial(solve_portfolio, *batch, threads=n, **options) for n in (1, None)}
        times = interleaved_times(calls, rounds=3 if quick else 7)
        one, every = 1e6 * median(times["1"]) / 256, 1e6 * median(times["None"]) / 256
        rows.append({"kind": "batch", "assets": m, "batch": 256, "one_thread_us": one, "all_cores_us": every})
    return rows


def _gradient_row(quick: bool) -> dict[str, Any]:
    """A training step through 256 decisions of 100 assets: forward alone, and forward with backward."""
    mean, S, p = (torch.from_numpy(array) for array in _batch(64 if quick else 256, 100))

    def step(backward: bool) -> None:
        leaves = [tensor.clone().requires_grad_(backward) for tensor in (mean, S, p)]
        weights = portfolio_layer(leaves[0], leaves[1], leaves[2], 5.0, 0.5, 1e-4)
        if backward:
            weights.square().sum().backward()

    times = interleaved_times({"forward": lambda: step(False), "step": lambda: step(True)}, rounds=3 if quick else 9)
    forward, whole = 1e3 * median(times["forward"]), 1e3 * median(times["step"])
    row: dict[str, Any] = {"kind": "gradient", "assets": 100, "batch": len(mean)}
    return row | {"forward_ms": forward, "step_ms": whole, "ratio": whole / forward}


def _rollout_row(quick: bool) -> dict[str, Any]:
    """Predict-then-optimise at λ = 5 for 100 assets, 1,000 days and three budgets, on one core."""
    rng, days = np.random.default_rng(0), 100 if quick else 1000
    loadings = rng.standard_normal((100, 3)) * 0.5
    returns = 0.01 * (rng.standard_normal((days + 96, 3)) @ loadings.T + rng.standard_normal((days + 96, 100)))
    strategy = PredictThenOptimise(ridge, name="pto-ridge")
    seconds, _ = timed_call(partial(rollout, returns, strategy, [0.1, 0.5, 2.0], risk_aversion=5.0))
    return {"kind": "rollout", "assets": 100, "days": days, "budgets": 3, "seconds": seconds}


def random_portfolio_covariance(rng: np.random.Generator, m: int, kind: str) -> np.ndarray:
    """A covariance (m, m): definite, singular, with duplicated assets, with ties, zero, or a factor model."""
    if kind == "factors":
        factor = np.c_[rng.standard_normal((m, 3)), np.diag(rng.uniform(0.5, 2, m))]
    elif kind == "duplicates":
        factor = rng.standard_normal((m, m + 2))[np.maximum(np.arange(m) - m // 2, 0)]
    elif kind == "ties":
        factor = np.round(rng.standard_normal((m, 3)))
    else:
        width = {"definite": m + 3, "singular": max(1, m // 3), "zero": 1}[kind]
        factor = rng.standard_normal((m, width)) * (kind != "zero")
    return np.asarray(factor @ factor.T / factor.shape[1])


def random_portfolio_problem(rng: np.random.Generator, most: int = 300, *, bounds: bool = True) -> dict[str, Any]:
    """Arguments of `solve_portfolio` with 2 to `most` assets, of many scales and degeneracies.

    λ is between 0 and 1e3, γ between 0 and 2, costs are none, shared or per asset; a third has bounds, some with cash.
    """
    m = int(np.exp(rng.uniform(np.log(2), np.log(most + 1))))  # as many of 2 to 20 as of 30 to 300
    kind = str(rng.choice(KINDS))
    mean = rng.standard_normal(m) * 10.0 ** rng.integers(-4, 0)
    if rng.random() < 0.3:  # ties
        mean = np.round(3 * mean / np.abs(mean).max()) * np.abs(mean).max()
    if kind == "duplicates":
        mean[: m // 2] = mean[0]
    p = rng.dirichlet(np.full(m, rng.choice([0.1, 1.0, 100.0])))
    p[rng.random(m) < rng.choice([0.0, 0.4])] = 0
    p = p / p.sum() if p.sum() > 0 else np.full(m, 1 / m)
    problem = {
        "mean": mean,
        "covariance": random_portfolio_covariance(rng, m, kind) * 10.0 ** rng.integers(-8, 1),
        "previous": p,
        "risk_aversion": float(rng.choice([0, 1e-3, 0.1, 1, 5, 50, 1e3])),
        "turnover_l1": float(rng.choice([0, 1e-12, 1e-6, 1e-3, 0.05, 0.1, 0.5, 1, 1.9, 2])),
        "cost": rng.choice([0, 1e-4, 1e-3, 0.05]) * (rng.random(m) if rng.random() < 0.5 else 1.0),
    }
    if bounds and rng.random() < 0.3:
        cash = (0.0, 1.0) if rng.random() < 0.5 else (0.0, 0.0)
        upper = np.maximum(np.maximum(rng.uniform(0.5, 3, m) / m, 0.05), p)
        problem["constraints"] = Constraints(-0.3 * rng.random(m) * (rng.random() < 0.5), upper, cash=cash)
    return problem


def exactness_rows(quick: bool = False) -> list[dict[str, Any]]:
    """10,000 random problems (300 if quick), in rows of 500, and the frontiers of some at 50 budgets each."""
    import time2decide.markets.turnover_kernels  # noqa: F401  (the compiled form is what is checked)

    rng, rows = np.random.default_rng(0), []
    count, most = (300, 60) if quick else (10_000, 300)
    for start in range(0, count, _CHUNK):
        checks = [check_portfolio(random_portfolio_problem(rng, most)) for _ in range(min(_CHUNK, count - start))]
        worst = {name: max(one[name] for one in checks) for name in checks[0]}
        rows.append(
            {"kind": "problems", "problems": len(checks), "wrong": sum(map(is_wrong_portfolio, checks)), **worst}
        )
        print(f"\r{start + len(checks)} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    frontiers = [frontier_error(random_portfolio_problem(rng, most // 3)) for _ in range(20 if quick else 200)]
    rows.append({"kind": "frontiers", "problems": len(frontiers), "budgets": 50, "utility_error": max(frontiers)})
    return rows


def is_wrong_portfolio(checked: dict[str, float]) -> bool:
    """Objective within 1e-10 of the second family's, constraints to 1e-12 and a gap of at most 1e-12, or wrong."""
    return checked["utility_error"] > 1e-10 or checked["violation"] > 1e-12 or checked["gap"] > 1e-12


def check_portfolio(problem: dict[str, Any]) -> dict[str, float]:
    """Violation, independent gap, and difference in utility from the second family, relative to the data."""
    ours = solve_portfolio(**problem)
    constraints = problem.get("constraints", LONG_ONLY)
    violation = constraints.excess(ours.weights, ours.problem.previous[0], problem["turnover_l1"])
    theirs = solve_decision(scaled_decision(ours.problem, 0)[0]).s
    cash = constraints.exposure - theirs.sum()
    excess = np.clip(cash, *constraints.cash) - cash  # what it gains by breaking constraints is charged at their prices
    beyond = max(np.abs(theirs - ours.problem.previous[0]).sum() - problem["turnover_l1"], 0.0)
    charged = float(ours.budget_price) * excess + float(ours.turnover_price) * beyond
    difference = float(ours.problem.utility(theirs[None])[0] - charged - ours.utility)
    return {
        "violation": max(violation, 0.0),
        "gap": _independent_gap(problem, ours),
        "utility_error": max(difference, 0.0) / _data_size(problem),
        "behind_us": max(-difference, 0.0) / _data_size(problem),
    }


def _data_size(problem: dict[str, Any]) -> float:
    """The scale of gaps and utilities: range of means, curvature, costs."""
    curvature = 2 * problem["risk_aversion"] * float(problem["covariance"].diagonal().max())
    size = max(float(np.ptp(problem["mean"])), curvature, float(np.max(problem["cost"])), 1e-300)
    constraints = problem.get("constraints", LONG_ONLY)
    flexible = constraints.cash[1] > constraints.cash[0]
    return max(size, float(np.abs(problem["mean"] - constraints.cash_return).max())) if flexible else size


def _independent_gap(problem: dict[str, Any], solution: PortfolioSolution) -> float:
    """The bound of weak duality from the data, the weights and the two prices alone.

    Every ν gives a bound. Where means are large beside their differences the price itself has lost digits, so the
    bound is also taken at the slopes of the traded assets.
    """
    mean, p, s = problem["mean"], solution.problem.previous[0], solution.weights
    level, theta = mean.max(), float(solution.turnover_price)
    slope = (mean - level) - 2 * problem["risk_aversion"] * problem["covariance"] @ s
    price = problem["cost"] + theta
    low, high = solution.problem.lower[0], solution.problem.upper[0]
    constraints = problem.get("constraints", LONG_ONLY)
    cash, (least, most) = constraints.exposure - s.sum(), constraints.cash

    def bound(nu: float) -> float:
        gains = [
            (slope - nu) * (v - s) - price * (np.abs(v - p) - np.abs(s - p)) for v in (low, np.clip(p, low, high), high)
        ]
        slack = theta * max(problem["turnover_l1"] - np.abs(s - p).sum(), 0.0)
        rate = constraints.cash_return - level - nu
        free = max(rate * (least - cash), rate * (most - cash)) if most > least else 0.0
        return float(np.maximum.reduce([*gains, np.zeros_like(s)]).sum() + slack + free)

    traded = np.flatnonzero(s != p)[:_SLOPES]
    others = (slope - np.sign(s - p) * price)[traded]
    return min(bound(nu) for nu in (float(solution.budget_price) - level, *others)) / _data_size(problem)


def frontier_error(problem: dict[str, Any]) -> float:
    """The largest difference in utility between the frontier and separate solves at 50 budgets."""
    options = {
        key: value for key, value in problem.items() if key not in ("mean", "covariance", "previous", "turnover_l1")
    }
    data = problem["mean"], problem["covariance"], problem["previous"]
    frontier = turnover_frontier(*data, **options)
    budgets = np.linspace(frontier.turnover[0] + 1e-12, 2.0, 50)
    apart = solve_portfolio(*data, turnover_l1=budgets, **options)
    ours = apart.problem.utility(frontier.at(budgets))
    return float(np.abs(ours - apart.utility).max() / _data_size(problem))
