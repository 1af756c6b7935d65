"""The turnover frontier: the best portfolio of every turnover budget at once, and what one more unit is worth.

The path of `turnover_path.py` from no trade to the last trade that pays passes through the exact answer of every
budget γ. Between two breakpoints weights and shadow price are linear in γ, so the breakpoints are the whole frontier:

    s(γ) = argmax over ‖s − p‖₁ ≤ γ,    u(γ) its utility net of cost,    u'(γ) = θ(γ).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from time2decide.core.validation import ArrayLike, expect
from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.portfolio import (
    CERTIFIED,
    FactorCovariance,
    PortfolioProblem,
    PortfolioSolution,
    build_portfolio_problem,
    finite_numbers,
    solve_portfolio,
    turnover_engine,
)
from time2decide.markets.turnover_decision import turnover_duality_gaps
from time2decide.markets.turnover_path import Cash, Curvature, TradeLimits

_ROUNDS = 10  # of bisection, for singular covariances
_BLOCK = 128  # points that are measured together
_GRID = 201  # budgets that are solved one by one where there is no path: with linear limits


@dataclass(frozen=True)
class TurnoverFrontier:
    """Breakpoints in the order of turnover; arrays are (points,) or (points, m).

    Attributes
    ----------
    turnover : ‖s − p‖₁, from the least that is possible to the last that pays
    price : θ, utility gained by one more unit of turnover, net of cost; it never rises
    utility, expected_return, risk : of the weights; utility is net of cost, risk is (s−b)ᵀΣ(s−b)
    weights : between two points the best weights are their linear interpolation
    gap : certificate of every point, relative to the size of the data
    exact : False where linear limits forced a grid of budgets in place of the path
    """

    turnover: np.ndarray
    price: np.ndarray
    utility: np.ndarray
    expected_return: np.ndarray
    risk: np.ndarray
    weights: np.ndarray = field(repr=False)
    gap: np.ndarray = field(repr=False)
    exact: bool = True

    @property
    def stops_paying_at(self) -> float:
        """The turnover beyond which trading costs more than it brings."""
        return float(self.turnover[-1])

    def at(self, turnover_l1: ArrayLike) -> np.ndarray:
        """The best weights of budgets (...), (..., m); a budget beyond the last point is not used up."""
        budgets = self._budgets(turnover_l1)
        right = np.clip(np.searchsorted(self.turnover, budgets), 1, max(len(self.turnover) - 1, 1))
        if len(self.turnover) == 1:
            return np.broadcast_to(self.weights[0], (*budgets.shape, self.weights.shape[1])).copy()
        t0, t1 = self.turnover[right - 1], self.turnover[right]
        share = np.clip((budgets - t0) / np.where(t1 > t0, t1 - t0, 1.0), 0.0, 1.0)[..., None]
        return np.asarray((1 - share) * self.weights[right - 1] + share * self.weights[right])

    def utility_at(self, turnover_l1: ArrayLike) -> np.ndarray:
        """u of budgets (...): between two points the price is linear, so its integral is the trapezoid."""
        budgets = np.minimum(self._budgets(turnover_l1), self.turnover[-1])
        last, price = self._interpolated_price(budgets)
        further = budgets - self.turnover[last]
        return np.asarray(self.utility[last] + further * (self.price[last] + price) / 2)

    def price_at(self, turnover_l1: ArrayLike) -> np.ndarray:
        """θ of budgets (...): 0 beyond the last point; at a kink the price of the next unit."""
        budgets = self._budgets(turnover_l1)
        return np.where(budgets >= self.turnover[-1], 0.0, self._interpolated_price(budgets)[1])

    def _interpolated_price(self, budgets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The last point at or before each budget, and the price there, linear up to the next point."""
        last = np.searchsorted(self.turnover, budgets, side="right") - 1
        after = np.clip(last + 1, 0, len(self.turnover) - 1)
        t0, t1 = self.turnover[last], self.turnover[after]
        share = np.where(t1 > t0, (budgets - t0) / np.where(t1 > t0, t1 - t0, 1.0), 0.0)
        return last, (1 - share) * self.price[last] + share * self.price[after]

    def _budgets(self, turnover_l1: ArrayLike) -> np.ndarray:
        """Budgets as an array; below the least turnover that is possible there is no portfolio."""
        budgets, least = finite_numbers("turnover_l1", turnover_l1), float(self.turnover[0])
        smallest = budgets.min(initial=least)
        expect(smallest >= least - 1e-12, "turnover_l1", f"at least {least:g}", f"{smallest:g}")
        return np.maximum(budgets, least)


def turnover_frontier(
    mean: ArrayLike,
    covariance: ArrayLike | FactorCovariance,
    previous: ArrayLike,
    *,
    risk_aversion: float,
    cost: ArrayLike = 0.0,
    benchmark: ArrayLike | None = None,
    constraints: Constraints | None = None,
    most: float = 2.0,
) -> TurnoverFrontier:
    """The frontier of one decision up to the budget `most`; the arguments are those of `solve_portfolio`.

    A cost that all assets share is a point of the frontier without cost: where its price has fallen to that cost.
    """
    problem, lead = build_portfolio_problem(
        mean, covariance, previous, risk_aversion, most, cost, benchmark, constraints or LONG_ONLY
    )
    expect(lead == (), "mean", "one decision", f"a batch of shape {lead}")
    options: dict[str, Any] = {"cost": cost, "benchmark": benchmark, "constraints": constraints}
    solve = partial(solve_portfolio, mean, covariance, previous, risk_aversion=risk_aversion, **options)
    path = None if problem.limits else _path(problem)
    if path is not None and path.exact:
        return _repaired(_measure(problem, path), solve)
    if path is not None:  # it has a ridge: its points are solved anew
        solved = _refined(solve, np.unique(_measure(problem, path).turnover))
    else:
        fewest = fewest_trades(previous, constraints, most)
        solved = solve(turnover_l1=np.linspace(fewest * (1 + 1e-13) + 3e-13, most, _GRID))
    free = solved.turnover_price <= 1e-15
    kept = slice(0, int(np.argmax(free)) + 1 if free.any() else len(free))
    risk = _risk(problem, solved.weights[kept])
    income = solved.weights[kept] @ problem.mean[0]
    return TurnoverFrontier(
        solved.turnover[kept], solved.turnover_price[kept], solved.utility[kept], income, risk, solved.weights[kept],
        solved.gap[kept], path is not None,
    )  # fmt: skip


def fewest_trades(previous: ArrayLike, constraints: Constraints | None, most: float) -> float:
    """The turnover that the constraints force."""
    m = np.shape(previous)[-1]
    zero: dict[str, Any] = {"risk_aversion": 0.0, "turnover_l1": most, "cost": 1.0, "constraints": constraints}
    return float(solve_portfolio(np.zeros(m), np.zeros((m, m)), previous, **zero).turnover)


def _repaired(frontier: TurnoverFrontier, solve: Callable[..., PortfolioSolution]) -> TurnoverFrontier:
    """The frontier with points whose rounding shows solved afresh."""
    bad = np.flatnonzero(~(frontier.gap <= CERTIFIED))
    if not bad.size:
        return frontier
    solved = solve(turnover_l1=frontier.turnover[bad])
    problem = replace(solved.problem, mean=solved.problem.mean[:1])
    changed = {"turnover": solved.turnover, "price": solved.turnover_price, "utility": solved.utility}
    changed |= {"gap": solved.gap, "weights": solved.weights, "risk": _risk(problem, solved.weights)}
    changed["expected_return"] = solved.weights @ problem.mean[0]
    whole = {name: getattr(frontier, name).copy() for name in changed}
    for name, values in changed.items():
        whole[name][bad] = values
    return replace(frontier, **whole)


def _refined(solve: Callable[..., PortfolioSolution], budgets: np.ndarray) -> PortfolioSolution:
    """Solutions at budgets, with more of them until interpolation loses nothing half-way between two."""
    solved = solve(turnover_l1=budgets)
    for _ in range(_ROUNDS):
        between = solve(turnover_l1=(budgets[1:] + budgets[:-1]) / 2)
        mixed = between.problem.utility((solved.weights[1:] + solved.weights[:-1]) / 2)
        size = np.abs(between.utility).max(initial=0.0) + np.abs(solved.utility).max()
        missed = between.utility - mixed > 1e-13 * size
        if not missed.any():
            break
        budgets = np.sort(np.concatenate([budgets, ((budgets[1:] + budgets[:-1]) / 2)[missed]]))
        solved = solve(turnover_l1=budgets)
    return solved


class _Path(NamedTuple):
    """Breakpoints of the path of one decision: θ and ν (points,), weights (points, m); exact if it has no ridge."""

    theta: np.ndarray
    nu: np.ndarray
    weights: np.ndarray
    scale: float
    exact: bool


def _path(problem: PortfolioProblem) -> _Path | None:
    """The path of one row, or None where it cannot be followed."""
    m = problem.mean.shape[1]
    p, budget, which = problem.start[0][0], float(problem.start[1][0]), problem.which[0]
    factor, money = 2 * problem.risk_aversion[0], problem.relative_cash[0]
    slope = problem.linear[0] - factor * problem.covariance_times(p[None])[0]
    now = float(problem.exposure[0] - p.sum())
    flexible = money[1] > money[0]
    if not (money[0] - 1e-12 <= now <= money[1] + 1e-12):
        return None
    shift = slope.max()
    variances = problem.dense[which].diagonal() if problem.dense.size else _diagonal(problem)
    top = factor * variances.max()
    scale = max(np.ptp(slope), top, problem.cost[0].max(), abs(money[2] - shift) * flexible, 1e-300)
    Q = Curvature(problem.dense[which], problem.loadings[which], problem.specific[which], factor / scale)
    box = TradeLimits(problem.lower[0] - p, problem.upper[0] - p, problem.cost[0] / scale, budget)
    cash = Cash(now, money[0], money[1], (money[2] - shift) / scale) if flexible else Cash(0.0, 0.0, 0.0, 0.0)
    for ridge in (weight * max(top / scale, 1e-2) for weight in (0.0, 1e-9, 1e-6)):
        with np.errstate(all="ignore"):
            *_, count, points, trades = turnover_engine(1, m).follow_turnover_path(
                Q, (slope - shift) / scale, box, cash, ridge, 30 * m + 200, 8 * m + 50
            )
        if 0 < count <= len(points):
            weights = trades[:count] + p
            np.clip(weights, problem.lower[0], problem.upper[0], out=weights)
            theta, nu = points[:count, 1] * scale, points[:count, 2] * scale + shift
            return _Path(theta, nu, weights, scale, ridge == 0)
    return None


def _diagonal(problem: PortfolioProblem) -> np.ndarray:
    which = problem.which[0]
    return np.asarray((problem.loadings[which] ** 2).sum(-1) + problem.specific[which])


def _measure(problem: PortfolioProblem, path: _Path) -> TurnoverFrontier:
    """Utilities and certificates of the points of a path, some points at a time: whole arrays would leave the cache."""
    blocks = [slice(i, i + _BLOCK) for i in range(0, len(path.weights), _BLOCK)]
    parts = zip(*(_measure_block(problem, path, block) for block in blocks), strict=True)
    gap, risk, income, earned, turnover = (np.concatenate(part) for part in parts)
    turnover = np.maximum.accumulate(turnover)  # rounding may step back
    utility = income - problem.risk_aversion[0] * risk + earned
    return TurnoverFrontier(turnover, path.theta, utility, income, risk, path.weights, gap / path.scale)


def _measure_block(problem: PortfolioProblem, path: _Path, block: slice) -> tuple[np.ndarray, ...]:
    """Gaps in the units of the data, risks, expected returns, cash earned less costs, and turnovers of some points."""
    weights, p = path.weights[block], problem.start[0][0]
    product, active = _covariance_along(problem, weights), weights
    gradient = problem.linear[0] - 2 * problem.risk_aversion[0] * product
    if problem.benchmark is not None:
        active, product = weights - problem.benchmark[0], product - problem.covariance_times(problem.benchmark[:1])
    box = p, problem.lower[0], problem.upper[0], problem.cost[0]
    money = problem.relative_cash[0], float(problem.exposure[0])
    used, spent = np.abs(weights - p).sum(-1), np.abs(problem.previous[0] - p).sum()
    with np.errstate(
        invalid="ignore"
    ):  # where no trade pays ν is infinite: no gap then, and the point is solved afresh
        gap = turnover_duality_gaps(gradient, *box, used, *money, weights, path.theta[block], path.nu[block])  # type: ignore[no-untyped-call]
    cash = problem.cash[0, 2] * (problem.exposure[0] - weights.sum(-1))
    earned = cash - np.abs(weights - problem.previous[0]) @ problem.cost[0]
    return gap, np.einsum("em,em->e", active, product), weights @ problem.mean[0], earned, used + spent


def _covariance_along(problem: PortfolioProblem, s: np.ndarray) -> np.ndarray:
    """Σs for neighbouring points (points, m) of a path, which differ in few assets."""
    if not problem.dense.size:
        return problem.covariance_times(s)
    S, first = problem.dense[problem.which[0]], s[0]
    moved = (s != first).any(axis=0).nonzero()[0]
    return np.asarray(S @ first + (s[:, moved] - first[moved]) @ S[moved])


def _risk(problem: PortfolioProblem, weights: np.ndarray) -> np.ndarray:
    active = weights if problem.benchmark is None else weights - problem.benchmark[0]
    return np.einsum("em,em->e", active, problem.covariance_times(active))
