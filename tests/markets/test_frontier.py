import time
from dataclasses import replace

import numpy as np
import pytest

from time2decide.core.validation import InputError
from time2decide.markets import (
    Constraints,
    FactorCovariance,
    Limit,
    solve_portfolio,
    turnover_frontier,
    turnover_kernels,  # noqa: F401  (hundreds of assets: the compiled form)
)
from time2decide.markets import frontier as frontier_file
from time2decide.markets.turnover_decision import turnover_duality_gap, turnover_duality_gaps


def example(seed=0, m=25):
    rng = np.random.default_rng(seed)
    model = FactorCovariance(rng.standard_normal((m, 3)) * 0.01, rng.uniform(0.5, 2, m) * 1e-4)
    return rng.standard_normal(m) * 1e-3, model, rng.dirichlet(np.ones(m))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cost", [0.0, 3e-4])
@pytest.mark.parametrize("constraints", [None, Constraints(lower=-0.05, upper=0.3, cash=(0.0, 0.4), cash_return=1e-4)])
def test_agrees_with_separate_solves_at_fifty_budgets(seed, cost, constraints):
    mean, model, p = example(seed)
    options = {"risk_aversion": 5.0, "cost": cost, "constraints": constraints}
    frontier = turnover_frontier(mean, model, p, **options)
    assert frontier.exact
    assert frontier.gap.max() < 1e-12
    assert (np.diff(frontier.turnover) >= -1e-15).all()
    assert (np.diff(frontier.price) <= 1e-15).all()
    budgets = frontier.turnover[0] + np.linspace(0, 2.0, 50) * (1 - 1e-9)
    budgets = budgets[budgets <= 2.0]
    apart = solve_portfolio(mean, model.dense(), p, turnover_l1=budgets, **options)
    np.testing.assert_allclose(frontier.at(budgets), apart.weights, atol=1e-11)
    np.testing.assert_allclose(frontier.utility_at(budgets), apart.utility, atol=1e-14)
    inner = apart.turnover_price > 0
    np.testing.assert_allclose(frontier.price_at(budgets)[inner], apart.turnover_price[inner], atol=1e-10)


def test_slope_of_the_utility_is_the_price():
    frontier = turnover_frontier(*example(1), risk_aversion=5.0, cost=1e-4)
    gained = np.diff(frontier.utility)
    expected = np.diff(frontier.turnover) * (frontier.price[1:] + frontier.price[:-1]) / 2
    np.testing.assert_allclose(gained, expected, atol=1e-16)


def test_a_shared_cost_is_a_point_of_the_frontier_without_cost():
    mean, model, p = example(2)
    free = turnover_frontier(mean, model, p, risk_aversion=5.0)
    with_cost = turnover_frontier(mean, model, p, risk_aversion=5.0, cost=4e-4)
    assert free.price_at(with_cost.stops_paying_at) == pytest.approx(4e-4, rel=1e-9)
    assert with_cost.price_at(2.0) == 0


def test_singular_covariances_and_no_reason_to_trade():
    rng = np.random.default_rng(3)
    factor = rng.standard_normal((20, 4)) * 0.01
    factor[:8] = factor[0]
    mean = np.round(rng.standard_normal(20)) * 1e-3
    frontier = turnover_frontier(mean, factor @ factor.T, np.full(20, 0.05), risk_aversion=5.0)
    assert frontier.gap.max() < 1e-12
    flat = turnover_frontier(np.ones(4), np.zeros((4, 4)), np.full(4, 0.25), risk_aversion=1.0)
    assert flat.stops_paying_at == 0
    np.testing.assert_array_equal(flat.at([0.0, 1.0]), np.full((2, 4), 0.25))


def degenerate(kind, m, rng):
    """A decision from equal weights whose solution is not unique, or whose Σ is rounded; λ and constraints with it."""
    mean, model, _ = example(int(rng.integers(100)), m)
    S, p = model.dense(), np.full(m, 1 / m)
    twins = np.arange(m) % (m // 5)
    few = rng.standard_normal((m // 4, m)) * 0.01
    return {
        "equal weights": (mean, S, p, 5.0, None),
        "duplicates": (mean[twins], S[np.ix_(twins, twins)], p, 5.0, None),
        "duplicates, capped": (mean[twins], S[np.ix_(twins, twins)], p, 50.0, Constraints(upper=3 / m)),
        "duplicates, cash": (mean[twins], S[np.ix_(twins, twins)], p, 5.0, Constraints(cash=(0.0, 0.3))),
        "fewer rows than assets": (mean, np.cov(few.T), p, 1e3, None),
        "no means": (np.zeros(m), np.cov(few.T), p, 5.0, None),
        "no risk": (np.round(1e3 * mean) / 1e3, S, p, 0.0, None),
        "single precision": (mean, _rounded(S, rng), p, 5.0, None),
        "vertex": (mean, S, np.eye(m)[3], 5.0, None),
    }[kind]


def _rounded(S, rng):
    """float32 of a product in another order: not symmetric in its last digits."""
    return S.astype(np.float32).astype(float) * (1 + 1e-7 * rng.standard_normal(S.shape))


KINDS = (
    "equal weights", "duplicates", "duplicates, capped", "duplicates, cash", "fewer rows than assets", "no means",
    "no risk", "single precision", "vertex",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [50, 200, 500])
def test_degenerate_decisions_have_an_exact_path_within_a_second(kind, m):
    rng = np.random.default_rng(m)
    mean, S, p, risk, constraints = degenerate(kind, m, rng)
    options = {"risk_aversion": risk, "constraints": constraints}
    turnover_frontier(mean[:20], S[:20, :20], np.full(20, 0.05), risk_aversion=risk)  # compiles, once on a machine
    start = time.process_time()
    frontier = turnover_frontier(mean, S, p, **options)
    assert time.process_time() - start < 1.0
    assert frontier.exact
    assert frontier.gap.max() < 1e-12
    assert (np.diff(frontier.turnover) >= 0).all()
    assert (np.diff(frontier.price) <= 1e-14).all()
    budgets = np.linspace(0, 2, 12 if m < 500 else 3)
    apart = solve_portfolio(mean, S, p, turnover_l1=budgets, **options)
    size = max(np.ptp(mean), 2 * risk * np.diagonal(S).max())
    np.testing.assert_allclose(apart.problem.utility(frontier.at(budgets)), apart.utility, rtol=0, atol=1e-12 * size)
    np.testing.assert_allclose(frontier.utility_at(budgets), apart.utility, rtol=0, atol=1e-12 * size)


def test_gaps_of_a_frontier_are_those_of_its_points():
    rng = np.random.default_rng(0)
    s, gradient = rng.dirichlet(np.ones(6), 5), rng.standard_normal((5, 6))
    p, cost, cash = rng.dirichlet(np.ones(6)), rng.random(6), np.array([0.0, 0.2, 0.1])
    theta, nu, budget = rng.random(5), rng.standard_normal(5), np.abs(s - p).sum(-1) + 0.1
    data = p, np.zeros(6), np.full(6, 0.9), cost
    together = turnover_duality_gaps(gradient, *data, budget, cash, 1.1, s, theta, nu)
    for i in range(5):
        alone = turnover_duality_gap(gradient[i], *data, budget[i], cash, 1.1, s[i], theta[i], nu[i])
        assert together[i] == pytest.approx(alone, rel=1e-12)
        assert alone > 0


def test_bad_budgets_and_batches_are_refused():
    mean, model, p = example()
    with pytest.raises(InputError, match="turnover_l1"):
        turnover_frontier(mean, model, p, risk_aversion=5.0).at(-0.1)
    with pytest.raises(InputError, match="one decision"):
        turnover_frontier(np.stack([mean, mean]), model, p, risk_aversion=5.0)


@pytest.mark.parametrize("ask", ["at", "price_at", "utility_at"])
@pytest.mark.parametrize("budget", [0.0, -1.0, np.nan, "a"])
def test_budgets_without_a_portfolio_are_refused(ask, budget):
    constraints = Constraints(upper=0.3, cash=(0.0, 0.5))
    frontier = turnover_frontier(
        [0.1, 0.0, 0.0], np.eye(3), [0.5, 0.3, 0.2], risk_aversion=1.0, constraints=constraints
    )
    assert frontier.turnover[0] == pytest.approx(0.2)
    with pytest.raises(InputError, match="turnover_l1"):
        getattr(frontier, ask)(budget)


def test_one_possible_portfolio_is_a_certified_frontier():
    constraints = Constraints(lower=1 / 6, upper=1 / 6)
    frontier = turnover_frontier(
        np.arange(6.0), np.eye(6), np.full(6, 1 / 6), risk_aversion=1.0, constraints=constraints
    )
    assert frontier.gap.max() <= 1e-12


def test_a_path_with_a_ridge_is_solved_anew_until_nothing_is_lost(monkeypatch):
    """Few of its points, each a little off: the frontier of the path without a ridge at every budget."""
    mean, model, p = example(5, 8)
    options = {"risk_aversion": 5.0, "cost": 2e-4, "benchmark": np.full(8, 1 / 8)}
    exact = turnover_frontier(mean, model, p, **options)
    real = frontier_file._path

    def ridged(problem):
        path = real(problem)
        few = np.r_[0 : len(path.theta) : 3, len(path.theta) - 1]
        return path._replace(theta=path.theta[few], nu=path.nu[few], weights=path.weights[few], exact=False)

    monkeypatch.setattr(frontier_file, "_path", ridged)
    found = turnover_frontier(mean, model, p, **options)
    assert found.exact
    assert len(found.turnover) > len(exact.turnover) / 3 + 1
    assert found.gap.max() < 1e-12
    budgets = np.linspace(0, 2, 80)
    size = np.ptp(mean)
    solved = solve_portfolio(mean, model, p, turnover_l1=budgets, **options)
    np.testing.assert_allclose(solved.problem.utility(found.at(budgets)), solved.utility, rtol=0, atol=1e-8 * size)
    inside = np.isin(np.round(found.turnover, 12), np.round(exact.turnover, 12))
    assert inside.sum() >= 3
    for name in ("utility", "risk", "expected_return", "price"):
        values = np.interp(found.turnover[inside], exact.turnover, getattr(exact, name))
        np.testing.assert_allclose(getattr(found, name)[inside], values, rtol=1e-6, atol=1e-12)


def test_points_whose_rounding_shows_are_solved_afresh(monkeypatch):
    mean, model, p = example(6, 10)
    options = {"risk_aversion": 5.0, "cost": 1e-4, "benchmark": np.full(10, 0.1)}
    exact = turnover_frontier(mean, model, p, **options)
    real = frontier_file._measure

    def rough(problem, path):
        measured = real(problem, path)
        bad = np.arange(len(measured.gap)) % 3 == 1
        off = {
            name: np.where(bad, 1.01, 1.0) * getattr(measured, name)
            for name in ("utility", "risk", "expected_return", "price")
        }
        weights = np.where(bad[:, None], p, measured.weights)
        return replace(measured, gap=np.where(bad, 1e-3, measured.gap), weights=weights, **off)

    monkeypatch.setattr(frontier_file, "_measure", rough)
    found = turnover_frontier(mean, model, p, **options)
    assert found.gap.max() < 1e-12
    for name in ("turnover", "price", "utility", "risk", "expected_return", "weights"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=1e-8, atol=1e-12, err_msg=name)


def test_with_linear_limits_the_frontier_is_a_grid_of_decisions():
    mean, model, p = example(7, 8)
    group = np.array([1.0, 1, 1, 0, 0, 0, 0, 0])
    limit = Limit("group", group, group @ p + 0.1, 1.0)  # not met by the current weights
    options = {"risk_aversion": 5.0, "cost": 1e-4, "constraints": Constraints(limits=(limit,))}
    frontier = turnover_frontier(mean, model, p, **options)
    assert not frontier.exact
    assert frontier.turnover[0] == pytest.approx(0.2, abs=1e-9)  # what must be moved into the group
    assert (frontier.weights @ group >= limit.low - 1e-12).all()
    apart = solve_portfolio(mean, model, p, turnover_l1=frontier.turnover[1:], **options)
    np.testing.assert_allclose(frontier.utility[1:], apart.utility, atol=1e-13)
    np.testing.assert_allclose(frontier.price[1:-1], apart.turnover_price[:-1], atol=1e-9)
    np.testing.assert_allclose(frontier.weights[1:], apart.weights, atol=1e-8)
    np.testing.assert_allclose(frontier.expected_return, frontier.weights @ mean, atol=1e-15)
    risk = np.einsum("em,mn,en->e", frontier.weights, model.dense(), frontier.weights)
    np.testing.assert_allclose(frontier.risk, risk, atol=1e-15)
    assert frontier.price[-1] <= 1e-15  # it ends where trading stops to pay
    assert (frontier.price[:-1] > 1e-15).all()


def test_a_grid_starts_where_the_constraints_let_it(monkeypatch):
    """Much must be sold: the first portfolio is the one that they force, and it is certified."""
    monkeypatch.setattr(frontier_file, "_GRID", 5)
    mean, model, _ = example(7, 8)
    p, rest = np.eye(8)[0], 1 - np.eye(8)[0]
    for low in (0.25, 0.95):
        options = {"risk_aversion": 5.0, "constraints": Constraints(limits=(Limit("rest", rest, low, 1.0),))}
        frontier = turnover_frontier(mean, model, p, **options)
        assert frontier.turnover[0] == pytest.approx(2 * low, abs=1e-11)
        assert frontier.gap.max() < 1e-12
        assert (frontier.weights @ rest >= low - 1e-13).all()


@pytest.mark.parametrize("free", [1, 3])
def test_assets_that_cannot_be_paired_make_one_certified_point(free):
    """What is held is fixed, and some assets that are not held are free: there is nothing to buy them with."""
    mean, model, p = example()
    p[:free] = 0.0
    p /= p.sum()
    upper = np.where(np.arange(len(p)) < free, np.inf, p)
    lower = np.where(np.arange(len(p)) < free, 0.0, p)
    frontier = turnover_frontier(
        mean, model, p, risk_aversion=5.0, constraints=Constraints(lower=lower, upper=upper), cost=1e-4
    )
    np.testing.assert_array_equal(frontier.turnover, [0.0])
    np.testing.assert_allclose(frontier.weights, [p])
    assert frontier.gap.max() <= 1e-12
