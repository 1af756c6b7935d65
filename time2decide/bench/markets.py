"""Markets and decisions beside other routes: the oracle, the projection, a decision, LMC series.

*Oracle*: its steps against the paper's route (CVXPY + OSQP, rebuilt per problem), judged by a second exact solver.
*Projection*: in batches against SLSQP (the paper's choice) and DAQP, both one instance at a time. *Decide*: time per
decision of the policy and of predict-then-optimise, on the same backbone. *LMC*: series against the route through
scikit-learn's Gaussian processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize

from time2decide.backtesting.baselines import backbone_pto
from time2decide.bench.portfolio_solver import PortfolioCell, portfolio_by_clarabel
from time2decide.bench.timing import interleaved_times, one_thread, time_ratio, timed_call
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.covariance import empirical_covariance
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW, mean_variance_step, oracle_path
from time2decide.markets.policy_config import NAMED
from time2decide.markets.synthetic import (
    LINEAR_OFFSETS,
    MIXTURES,
    NOISE_LEVELS,
    PERIODS,
    SMOOTH_SCALES,
    LMCConfig,
    lmc_kernels,
    lmc_series,
    lmc_set,
    synthetic_oracle,
    synthetic_returns,
)
from time2decide.policy.market_decision import MarketStrategy
from time2decide.policy.market_policy import MarketPolicy
from time2decide.qp import QP, project_portfolio, solve_exact
from time2decide.qp.certificate import Arrays
from time2decide.qp.engines import by_daqp, lift_l1
from time2decide.simulation.engine import Observation, Strategy


class OracleSteps(NamedTuple):
    """Decisions taken at random from oracle paths: r (n, m), Σ (n, m, m), previous (n, m), γ (n,)."""

    returns: np.ndarray
    covariance: np.ndarray
    previous: np.ndarray
    turnover_l1: np.ndarray


def oracle_rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per market for the cost of a step, and one for the labels of a whole training set."""
    markets = ("clean",) if quick else ("clean", "noisy")
    with one_thread():
        return [*(_step_row(market, quick) for market in markets), _training_row(quick)]


def _step_row(market: str, quick: bool) -> dict[str, Any]:
    """The cost per step of a batch, as used for labels, beside one problem at a time by the paper's route."""
    series = 2 if quick else 30
    returns = synthetic_returns(market, count=series)[:, : 160 if quick else None]
    decisions = series * (returns.shape[1] - WINDOW) * len(BUDGETS)
    few = sample_oracle_steps(market, 4 if quick else 40, series=series)
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: oracle_path(returns, BUDGETS),
        "reference": lambda: [oracle_step_by_cvxpy(few, i) for i in range(len(few.returns))],
    }
    times = interleaved_times(calls, rounds=1 if quick else 3)
    seconds = median(times["ours"])
    many = sample_oracle_steps(market, 50 if quick else 2500, series=series)
    exact = np.stack([oracle_step_by_clarabel(many, i) for i in range(len(many.returns))])
    steps = mean_variance_step(many.returns, many.covariance, many.previous, many.turnover_l1)
    theirs = np.stack([oracle_step_by_cvxpy(few, i) for i in range(len(few.returns))])
    return {
        "compared": f"oracle step, m=16, {market}",
        "decisions": decisions,
        "ours_us": seconds / decisions * 1e6,
        "cvxpy_osqp_us": median(times["reference"]) / len(few.returns) * 1e6,
        "ratio": time_ratio(times, "reference", "ours") * decisions / len(few.returns),
        "seconds": seconds,
        "ours_objective_error": float(
            np.abs(oracle_step_objective(many, steps) - oracle_step_objective(many, exact)).max()
        ),
        "ours_constraint_error": oracle_step_violation(many, steps),
        "cvxpy_osqp_weight_error": float(np.abs(theirs - mean_variance_step(*few)).max()),
    }


def _training_row(quick: bool) -> dict[str, Any]:
    series = 4 if quick else 300
    returns = synthetic_returns("clean", "train", count=series)
    seconds, _ = timed_call(oracle_path, returns, BUDGETS)
    decisions = series * (returns.shape[1] - WINDOW) * len(BUDGETS)
    return {
        "compared": f"labels of {series} series × {returns.shape[1] - WINDOW} steps × {len(BUDGETS)} budgets",
        "decisions": decisions,
        "ours_us": seconds / decisions * 1e6,
        **dict.fromkeys(("cvxpy_osqp_us", "ratio")),
        "seconds": seconds,
        **dict.fromkeys(("ours_objective_error", "ours_constraint_error", "cvxpy_osqp_weight_error")),
    }


def sample_oracle_steps(market: str, count: int, *, series: int = 30, seed: int = 0) -> OracleSteps:
    """`count` random decisions (series, step, budget) of the evaluation set of a market."""
    rng = np.random.default_rng(seed)
    returns = synthetic_returns(market, count=series)
    oracle = synthetic_oracle(market, count=series)
    i, k = rng.integers(0, series, count), rng.integers(0, len(BUDGETS), count)
    t = rng.integers(WINDOW, returns.shape[1], count)
    windows = np.stack([returns[a, b - WINDOW : b] for a, b in zip(i, t, strict=True)])  # (count, window, m)
    return OracleSteps(returns[i, t], empirical_covariance(windows), oracle[i, k, t - 1], np.asarray(BUDGETS)[k])


def oracle_step_objective(steps: OracleSteps, s: np.ndarray) -> np.ndarray:
    """sᵀr − λ sᵀΣs, (n,)."""
    risk = np.einsum("ni,nij,nj->n", s, steps.covariance, s)
    return np.asarray(np.einsum("ni,ni->n", s, steps.returns) - RISK_AVERSION * risk)


def oracle_step_violation(steps: OracleSteps, s: np.ndarray) -> float:
    """The largest violation of s ≥ 0, 1ᵀs = 1 and the turnover budget."""
    moved = np.abs(s - steps.previous).sum(-1) - steps.turnover_l1
    return float(max(0.0, -s.min(), np.abs(s.sum(-1) - 1).max(), moved.max()))


def oracle_step_by_clarabel(steps: OracleSteps, i: int) -> np.ndarray:
    """Decision i by Clarabel, an interior-point method."""
    r, sigma, p, gamma = (field[i] for field in steps)
    return portfolio_by_clarabel(PortfolioCell(r, sigma, p, RISK_AVERSION, float(gamma)), 1e-12)()


def oracle_step_by_cvxpy(steps: OracleSteps, i: int) -> np.ndarray:
    """Decision i by the paper's route: a CVXPY problem built anew and solved by OSQP at its default tolerances."""
    import cvxpy as cp

    r, sigma, p, gamma = (field[i] for field in steps)
    s = cp.Variable(len(r))
    goal = cp.Maximize(s @ r - RISK_AVERSION * cp.quad_form(s, cp.psd_wrap(sigma)))
    problem = cp.Problem(goal, [s >= 0, cp.sum(s) == 1, cp.norm1(s - p) <= gamma])
    problem.solve(solver=cp.OSQP)
    return np.asarray(s.value)


def projection_rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per number of assets and batch: µs per projection, ratios, and errors against the exact answer."""
    with one_thread():
        return [
            row
            for m, checked in ((16, 3), *(() if quick else ((64, 3), (500, 1))))
            for row in _projection_rows(m, checked if quick else 5 * checked if m == 16 else checked, quick)
        ]


def _projection_rows(m: int, checked: int, quick: bool) -> list[dict[str, Any]]:
    """All batches of one m; the others solve `checked` instances one at a time, which takes 30 s for 500 assets."""
    batches = (1, 256) if quick else (1, 256, 4096)
    rng = np.random.default_rng(m)
    y = rng.normal(1 / m, 1 / np.sqrt(m), (max(batches), m))
    previous = rng.dirichlet(np.full(m, 0.5), max(batches))
    gamma = rng.uniform(0.1, 1.5, max(batches))
    lifted = _lifted(y[:checked], previous[:checked], gamma[:checked])
    others: dict[str, list[float]] = {"daqp": [], "slsqp": []}
    ours: dict[int, list[float]] = {batch: [] for batch in batches}
    for i in range(checked):
        others["daqp"].append(timed_call(by_daqp, lift_l1(Arrays.of(lifted[i]), 0))[0])
        others["slsqp"].append(timed_call(_by_slsqp, y[i], previous[i], gamma[i])[0])
        for batch, times in ours.items():
            data = [torch.from_numpy(a[:batch]) for a in (y, previous, gamma)]
            times += [timed_call(project_portfolio, *data)[0] / batch for _ in range(5)]
    x = project_portfolio(y, previous, gamma)
    exact = np.asarray(solve_exact(lifted).x) + previous[:checked]
    excess = np.abs(x - previous).sum(1) - gamma
    daqp, slsqp = median(others["daqp"]), median(others["slsqp"])
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


def _lifted(y: np.ndarray, previous: np.ndarray, gamma: np.ndarray) -> QP:
    """The projection as a problem in w = x − p: min ½‖w − (y − p)‖², −w ≤ p, 1ᵀw = 0, ‖w‖₁ ≤ γ."""
    batch, m = y.shape
    C = np.vstack([-np.eye(m), np.ones(m), -np.ones(m)])
    d = np.concatenate([previous, np.zeros((batch, 2))], axis=1)
    return QP(np.eye(m), previous - y, C, d, l1_radius=gamma)


def _by_slsqp(y: np.ndarray, previous: np.ndarray, gamma: float) -> np.ndarray:
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


def decide_rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row for a single decision and one for 30 series × 7 budgets at once: µs per decision."""
    batches = ((1, 1),) if quick else ((1, 1), (30, 7))
    with one_thread():
        return [_decide_row(series, budgets, quick) for series, budgets in batches]


def _decide_row(series: int, budgets: int, quick: bool) -> dict[str, Any]:
    """Time of a step of a rollout, after the first."""
    returns, gamma = synthetic_returns(count=series), np.asarray(BUDGETS[:budgets])
    held = np.full((series, budgets, WINDOW, returns.shape[-1]), 1 / returns.shape[-1])
    policy = MarketStrategy(MarketPolicy(NAMED["time2decide"]), "time2decide")
    strategies: dict[str, Strategy] = {
        "time2decide": policy,
        "pto": backbone_pto(TimePFN.from_pretrained(), returns_scale=100.0),
    }
    step = dict.fromkeys(strategies, WINDOW)
    weights: dict[str, np.ndarray] = {}

    def decide(name: str) -> None:
        t = step[name] = step[name] + 1
        past = Observation(returns[:, t - WINDOW : t], held, None, gamma, RISK_AVERSION)
        weights[name] = strategies[name].decide(past)

    for name in strategies:
        decide(name)
    times = interleaved_times({name: partial(decide, name) for name in strategies}, rounds=2 if quick else 15)
    decisions, ours = series * budgets, weights["time2decide"]
    return {
        "compared": f"one step of {series} series × {budgets} budgets, m=16, forecasts of TimePFN",
        "decisions": decisions,
        **{f"{name}_us": 1e6 * float(np.median(values)) / decisions for name, values in times.items()},
        "ratio": time_ratio(times, "pto", "time2decide"),
        "violation": float(max(0.0, -ours.min(), np.abs(ours.sum(-1) - 1).max())),
    }


def lmc_rows(quick: bool = False) -> list[dict[str, Any]]:
    """Seconds per series of 16 × 1024 by both routes, and the time of a whole data set."""
    config = LMCConfig(length=128) if quick else LMCConfig()
    each = 1 if quick else 2
    lmc_kernels(config.length)  # made once per process
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: [lmc_series(config, 0, i) for i in range(each)],
        "sklearn": lambda: [_sklearn_series(config, 0, i) for i in range(each)],
    }
    with one_thread():
        times = interleaved_times(calls, rounds=1 if quick else 3)
    count = 4 if quick else 330
    whole, _ = timed_call(partial(lmc_set, count, config, cache=False))
    return [
        {
            "compared": f"LMC series of {config.channels} × {config.length}",
            "ours_s": median(times["ours"]) / each,
            "sklearn_s": median(times["sklearn"]) / each,
            "ratio": time_ratio(times, "sklearn", "ours"),
            "series": count,
            "seconds": whole,
        }
    ]


def _sklearn_series(config: LMCConfig, seed: int, index: int) -> np.ndarray:
    """The same distribution by composed scikit-learn kernels and `GaussianProcessRegressor.sample_y`."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process import kernels as k

    rng = np.random.default_rng([seed, index])
    bank = [
        *(k.ExpSineSquared(periodicity=p / config.length) for p in PERIODS),
        *(k.DotProduct(sigma_0=s) for s in LINEAR_OFFSETS),
        *(k.RBF(length_scale=s) for s in SMOOTH_SCALES),
        *(k.RationalQuadratic(alpha=a) for a in MIXTURES),
        *(k.WhiteKernel(noise_level=v) for v in NOISE_LEVELS),
        k.ConstantKernel(),
    ]
    grid = np.linspace(0, 1, config.length)[:, None]
    latent = np.empty((config.length, config.channels))
    for j in range(config.channels):
        size = int(rng.integers(1, config.most_kernels + 1))
        chosen = [bank[int(i)] for i in rng.integers(0, len(bank), size)]
        kernel = reduce(lambda a, b: a + b if rng.random() < 0.5 else a * b, chosen)
        process = GaussianProcessRegressor(kernel=kernel, optimizer=None)
        latent[:, j] = process.sample_y(grid, random_state=int(rng.integers(2**31)))[:, 0]
    concentration = rng.uniform(config.dirichlet_min, config.dirichlet_max)
    weights = rng.dirichlet(np.full(config.channels, concentration), size=config.channels)
    return np.asarray(latent @ weights.T)
