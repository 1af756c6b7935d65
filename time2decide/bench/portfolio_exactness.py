"""Is the portfolio solver ever wrong? Random and degenerate problems against a second family of solvers.

Every answer is checked for its constraints and for its certificate, and compared with Clarabel on the lifted problem,
polished; the frontier is compared with separate solves.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.frontier import turnover_frontier
from time2decide.markets.portfolio import PortfolioSolution, solve_portfolio
from time2decide.markets.portfolio_general import scaled_row, solve_row

KINDS = ("definite", "singular", "duplicates", "ties", "zero", "factors")
_CHUNK = 500
_SLOPES = 10  # assets whose slopes are tried as the price of the net exposure


def random_covariance(rng: np.random.Generator, m: int, kind: str) -> np.ndarray:
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


def random_problem(rng: np.random.Generator, most: int = 300, *, bounds: bool = True) -> dict[str, Any]:
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
        "covariance": random_covariance(rng, m, kind) * 10.0 ** rng.integers(-8, 1),
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
        checks = [check(random_problem(rng, most)) for _ in range(min(_CHUNK, count - start))]
        worst = {name: max(one[name] for one in checks) for name in checks[0]}
        rows.append({"kind": "problems", "problems": len(checks), "wrong": sum(map(is_wrong, checks)), **worst})
        print(f"\r{start + len(checks)} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    frontiers = [frontier_error(random_problem(rng, most // 3)) for _ in range(20 if quick else 200)]
    rows.append({"kind": "frontiers", "problems": len(frontiers), "budgets": 50, "utility_error": max(frontiers)})
    return rows


def is_wrong(checked: dict[str, float]) -> bool:
    """Objective within 1e-10 of the second family's, constraints to 1e-12 and a gap of at most 1e-12, or wrong."""
    return checked["utility_error"] > 1e-10 or checked["violation"] > 1e-12 or checked["gap"] > 1e-12


def check(problem: dict[str, Any]) -> dict[str, float]:
    """Violation, independent gap, and difference in utility from the second family, relative to the data."""
    ours = solve_portfolio(**problem)
    constraints = problem.get("constraints", LONG_ONLY)
    violation = constraints.excess(ours.weights, ours.problem.previous[0], problem["turnover_l1"])
    theirs = solve_row(scaled_row(ours.problem, 0)[0]).s
    cash = constraints.exposure - theirs.sum()
    excess = np.clip(cash, *constraints.cash) - cash  # what it gains by breaking constraints is charged at their prices
    beyond = max(np.abs(theirs - ours.problem.previous[0]).sum() - problem["turnover_l1"], 0.0)
    charged = float(ours.budget_price) * excess + float(ours.turnover_price) * beyond
    difference = float(ours.problem.utility(theirs[None])[0] - charged - ours.utility)
    return {
        "violation": max(violation, 0.0),
        "gap": independent_gap(problem, ours),
        "utility_error": max(difference, 0.0) / data_size(problem),
        "behind_us": max(-difference, 0.0) / data_size(problem),
    }


def data_size(problem: dict[str, Any]) -> float:
    """What gaps and utilities are relative to: the range of means, the curvature, the costs."""
    curvature = 2 * problem["risk_aversion"] * float(problem["covariance"].diagonal().max())
    size = max(float(np.ptp(problem["mean"])), curvature, float(np.max(problem["cost"])), 1e-300)
    constraints = problem.get("constraints", LONG_ONLY)
    flexible = constraints.cash[1] > constraints.cash[0]
    return max(size, float(np.abs(problem["mean"] - constraints.cash_return).max())) if flexible else size


def independent_gap(problem: dict[str, Any], solution: PortfolioSolution) -> float:
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
    return min(bound(nu) for nu in (float(solution.budget_price) - level, *others)) / data_size(problem)


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
    return float(np.abs(ours - apart.utility).max() / data_size(problem))
