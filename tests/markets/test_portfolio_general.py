"""Decisions with linear limits: active sets, interior points and the certificate, by themselves and together."""

import numpy as np
import pytest

from time2decide.core.validation import InputError
from time2decide.markets import Constraints, FactorCovariance, Limit, solve_portfolio
from time2decide.markets import portfolio_general as general
from time2decide.markets.portfolio import build_portfolio_problem
from time2decide.markets.portfolio_interior import SETTINGS, ScaledDecision, interior_point
from time2decide.markets.turnover_path import Curvature

NONE = np.zeros((0, 0))


def decision(seed, m=7, factors=0):
    """One decision of size 1 with two limits, of which some bind; every third has cash, some may be sold short."""
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(m, factors or m)) / 3
    Q = Curvature(NONE, G, rng.uniform(0.1, 0.5, m), 1.0) if factors else Curvature(G @ G.T, NONE, np.zeros(0), 1.0)
    p, q = rng.dirichlet(np.ones(m)), rng.normal(size=m) / 2
    group, beta = (rng.random(m) < 0.5).astype(float), rng.uniform(0.5, 1.5, m)
    A = np.stack([group, beta, np.ones(m)])
    cash, rate = (0.0, 0.0) if seed % 3 else (0.3, rng.normal() / 4)
    low = np.array([group @ p - 0.05, -np.inf, 1 - cash])
    high = np.array([group @ p + 0.05, beta @ p + 0.02, 1.0])
    lower = np.full(m, -0.1 if seed % 2 else 0.0)
    cost, budget = rng.uniform(0, 0.02, m), rng.uniform(0.1, 1.0)
    return ScaledDecision(Q, q - rate, p, lower, np.full(m, 0.8), cost, A, low, high, budget, rate=rate)


def curvature(one):
    Q = one.Q
    return Q.factor * (Q.S if Q.S.size else Q.B @ Q.B.T + np.diag(Q.D))


def value(one, s):
    """The utility of weights, but for a constant."""
    return one.q @ s - s @ curvature(one) @ s / 2 - one.cost @ np.abs(s - one.p)


@pytest.mark.parametrize("factors", [0, 2])
@pytest.mark.parametrize("seed", range(12))
def test_the_certificate_bounds_every_feasible_portfolio(seed, factors):
    one, rng = decision(seed, factors=factors), np.random.default_rng(seed)
    best = general.solve_decision(one)
    assert best.gap <= 1e-12
    assert general._feasible(one, best.s)
    for other in (general.solve_decision(one._replace(q=rng.normal(size=7))).s for _ in range(5)):  # feasible too
        assert value(one, other) <= value(one, best.s) + 1e-12
        prices = 2 * best.y + np.array([0, 0, 0.1, rng.exponential() / 9, 0])
        for y in (prices, best.y):
            assert value(one, best.s) - value(one, other) <= general._certified(one, other, y).gap + 1e-12


@pytest.mark.parametrize("gross", [1.05, 1.15])
@pytest.mark.parametrize("seed", range(1, 13, 2))
def test_a_limit_on_the_sum_of_absolute_weights_is_one_more_row(seed, gross):
    """It has a kink at 0 and a price; without shorts nothing changes."""
    one = decision(seed, m=12, factors=3)._replace(gross=gross)
    found, free = general.solve_decision(one), general.solve_decision(one._replace(gross=np.inf))
    assert found.gap <= 1e-12
    assert np.abs(found.s).sum() <= gross + 1e-12
    assert (found.y[-1] > 0) == (np.abs(free.s).sum() > gross + 1e-9)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        other = general.solve_decision(one._replace(q=rng.normal(size=12))).s
        assert value(one, other) <= value(one, found.s) + 1e-12
        assert value(one, found.s) - value(one, other) <= general._certified(one, other, found.y).gap + 1e-12


@pytest.mark.parametrize("seed", range(12))
def test_standing_still_has_a_proof(seed):
    """Costs forbid every trade, so the equations of the active set say nothing of the prices that prove it."""
    one, rng = decision(3 * seed + 1), np.random.default_rng(seed)
    p = np.where(rng.random(7) < 0.3, 1e-14 * rng.random(7), one.p)
    low, high = np.array([-np.inf, -np.inf, 1.0]), np.array([2.0, 3.0, 1.0])
    one = one._replace(p=p / p.sum(), cost=np.full(7, 3.0), low=low, high=high, upper=np.ones(7), q=one.q + 10)
    slope = one.q - curvature(one) @ one.p
    nearly = one.p + 1e-11 * (rng.random(7) - 0.5)  # as an interior-point method leaves it: not feasible to 1e-12
    given = general.Answer(nearly, np.array([0, 0, (slope.min() + slope.max()) / 2, 0, 0]))
    best = general._follow(one, general._nearby_set(one, given, 1e-9), given)
    np.testing.assert_array_equal(best.s, one.p)
    assert best.gap <= 1e-11


@pytest.mark.parametrize("noise", [1e-7, 1e-3])
def test_an_active_set_is_found_from_nearby(noise):
    """From the answer moved a little, with prices that are a little off: the answer again, to rounding."""
    recovered = 0
    for seed in range(30):
        one, rng = decision(seed), np.random.default_rng(seed)
        best = general.solve_decision(one)
        given = general.Answer(best.s + noise * rng.normal(size=7), best.y * (1 + noise))
        found = general._follow(one, general._nearby_set(one, given, 10 * noise), given)
        if found is not None and found.gap < 1e-12:
            recovered += 1
            np.testing.assert_allclose(found.s, best.s, atol=1e-9)
    assert recovered >= (30 if noise < 1e-6 else 20), recovered


@pytest.mark.parametrize("factors", [0, 2])
def test_a_point_near_the_answer_shows_its_active_set(factors, monkeypatch):
    """Nothing contradicts itself, so that one round of equations is enough, at whichever end limits are."""
    monkeypatch.setattr(general, "_ROUNDS", 1)
    ends = set()
    for seed in range(30):
        one, rng = decision(seed, factors=factors), np.random.default_rng(seed)
        if seed % 2:
            one = one._replace(A=-one.A, low=-one.high, high=-one.low)
        best = general.solve_decision(one)
        given = general.Answer(best.s + 1e-9 * rng.normal(size=7), best.y)
        found = general._follow(one, general._nearby_set(one, given, 1e-7), given)
        assert found.gap < 1e-12
        np.testing.assert_allclose(found.s, best.s, atol=1e-12)
        ends |= set(np.sign(best.y[:2])) | ({"cash"} if one.rate and not best.y[2] else set())
    assert ends == {1.0, -1.0, 0.0, "cash"}


def test_feasible_means_every_constraint():
    one = decision(1)._replace(gross=1.3)
    s = general.solve_decision(one).s
    assert general._feasible(one, s)
    for change in (
        {"lower": s + 1e-9},
        {"upper": s - 1e-9},
        {"budget": np.abs(s - one.p).sum() - 1e-9},
        {"gross": np.abs(s).sum() - 1e-9},
        {"high": one.A @ s - 1e-9},
        {"low": one.A @ s + 1e-9},
    ):
        assert not general._feasible(one._replace(**change), s)
        assert general._feasible(one._replace(**change), s, 1e-8)


def test_equations_by_factors_are_those_of_the_whole_matrix():
    rng = np.random.default_rng(0)
    for k in (8, 60):
        B, D, C = rng.normal(size=(k, 3)), rng.uniform(0.5, 1, k), rng.normal(size=(2, k))
        slope, right = rng.normal(size=k), rng.normal(size=2)
        x, y = general._by_factors(B, D, C, slope, right)
        np.testing.assert_allclose(B @ (B.T @ x) + D * x + C.T @ y, slope, atol=1e-13)
        np.testing.assert_allclose(C @ x, right, atol=1e-13)
    assert general._by_factors(B, D, np.vstack([C, C]), slope, np.append(right, right + 1)) is None


def test_singular_equations_are_solved_near_the_guess():
    Q = Curvature(np.ones((2, 2)), NONE, np.zeros(0), 1.0)
    both, none = np.arange(2), np.zeros((0, 2))
    x, _ = general._solve_kkt(Q, both, none, np.array([2.0, 2.0]), np.zeros(0), np.array([3.0, 0.0]))
    np.testing.assert_allclose(x, [2.5, -0.5], atol=1e-14)


@pytest.mark.parametrize("cash", [(0.0, 0.0), (0.0, 0.2)])
def test_a_decision_in_units_of_size_one_is_the_same(cash):
    """For every portfolio the utility in these units is that of the problem but for a constant, in both forms of Σ."""
    rng = np.random.default_rng(0)
    m = 5
    mean, loadings, specific = rng.normal(size=m), rng.normal(size=(m, 2)), rng.uniform(0.1, 0.5, m)
    p, cost, limit = np.full(m, 0.2), rng.uniform(0, 0.1, m), Limit("two", 3.0 * (np.arange(m) < 2), 0.9, 1.4)
    constraints = Constraints(-0.1, 0.9, cash=cash, cash_return=0.3 if cash[1] else 0.0, limits=(limit,))
    for covariance in (loadings @ loadings.T + np.diag(specific), FactorCovariance(loadings, specific)):
        problem, _ = build_portfolio_problem(mean, covariance, p, 1.7, 0.8, cost, None, constraints)
        one, scale, _ = general.scaled_decision(problem, 0)
        slope = one.q + one.rate - curvature(one) @ one.p
        assert slope.max() == pytest.approx(0, abs=1e-12)
        assert max(-slope.min(), curvature(one).diagonal().max(), one.cost.max(), abs(one.rate)) >= 1 - 1e-12
        differences, met = [], set()
        for s in rng.dirichlet(np.ones(m), 20):
            s = s * (1 - cash[1] * rng.random())
            differences.append(problem.utility(s[None])[0] - scale * value(one, s))
            met.add(0.9 <= 3 * s[:2].sum() <= 1.4)
            within = (one.low <= one.A @ s + 1e-12) & (one.A @ s <= one.high + 1e-12)
            assert bool(within[0]) == (0.9 <= 3 * s[:2].sum() <= 1.4)
            assert within[1]
        assert np.ptp(differences) < 1e-12
        assert met == {True, False}


def test_limits_that_no_portfolio_meets_are_a_contradiction():
    one = decision(1)
    with pytest.raises(InputError, match="found a contradiction"):
        general.solve_decision(one._replace(low=np.array([2.0, -np.inf, 1]), high=np.array([3.0, np.inf, 1])))


def test_a_contradiction_that_the_solver_does_not_see_is_one_all_the_same(monkeypatch):
    one = decision(1)
    s, y = interior_point(one, SETTINGS[0])
    nothing = one._replace(low=np.array([2.0, -np.inf, 1]), high=np.array([3.0, np.inf, 1]))
    monkeypatch.setattr(general, "interior_point", lambda *_: (one.p, y))
    with pytest.raises(InputError, match="found a contradiction"):
        general.solve_decision(nothing)
    monkeypatch.setattr(general, "interior_point", lambda *_: (s + 1e-5, y))  # but polished
    assert general.solve_decision(one).gap < 1e-12


@pytest.mark.parametrize("turnover_l1", [1e3, 1e6, 1e9])
def test_a_budget_that_never_binds_changes_nothing(turnover_l1):
    """Interior points need numbers of one size: a budget of 1e6 once left one problem in ten without an answer."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        G, mean, p = rng.normal(size=(6, 8)), rng.normal(size=6) * 10 ** rng.uniform(-5, 0), rng.dirichlet(np.ones(6))
        limits = (Limit("first", np.eye(6)[0], 0.5, 1.0),)
        cash = (0.0, 0.2) if seed % 3 == 0 else (0.0, 0.0)
        constraints = Constraints(-0.1 if seed % 2 else 0.0, cash=cash, limits=limits)
        options = {"risk_aversion": 2.0, "cost": 1e-4, "constraints": constraints}
        near, far = (
            solve_portfolio(mean, 1e-3 * G @ G.T, p, turnover_l1=budget, **options) for budget in (5.0, turnover_l1)
        )
        assert far.gap < 1e-12
        np.testing.assert_allclose(far.weights, near.weights, atol=1e-9)


def market(m, seed=0, factors=4):
    """Means, a factor covariance, current weights and terms with sector caps and a range for the beta."""
    rng = np.random.default_rng([seed, m])
    covariance = FactorCovariance(0.01 * rng.normal(size=(m, factors)), rng.uniform(0.005, 0.02, m) ** 2)
    p, sector, beta = rng.dirichlet(np.ones(m)), rng.integers(0, 5, m), rng.uniform(0.5, 1.5, m)
    limits = [Limit(f"sector {k}", 1.0 * (sector == k), -np.inf, float(p[sector == k].sum()) + 0.02) for k in range(5)]
    limits.append(Limit("beta", beta, float(beta @ p) - 0.05, float(beta @ p) + 0.05))
    rules = Constraints(0.0, np.maximum(4 / m, 1.001 * p), limits=tuple(limits))
    terms = {"risk_aversion": 5.0, "turnover_l1": 0.5, "cost": 1e-4, "constraints": rules}
    return 1e-3 * rng.normal(size=m), covariance, p, terms


@pytest.mark.parametrize("m", [30, 150, 400])
def test_factors_and_their_matrix_have_one_answer(m):
    """The one is solved by all variables, of the other only what comes into play."""
    mean, factors, p, terms = market(m)
    one, other = (solve_portfolio(mean, covariance, p, **terms) for covariance in (factors, factors.dense()))
    assert max(one.gap, other.gap) <= 1e-12
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-12)
    np.testing.assert_allclose(one.limit_prices, other.limit_prices, atol=1e-12)


def test_a_similar_decision_is_where_the_next_one_starts(monkeypatch):
    """No interior point is asked for where the active set is that of yesterday, or one that leads to today's."""
    mean, factors, p, terms = market(200)
    first = solve_portfolio(mean, factors, p, **terms)
    rng = np.random.default_rng(1)
    other = mean * (1 + 1e-3 * rng.normal(size=200))
    cold = solve_portfolio(other, factors, p, **terms)

    def refuse(*_):
        raise AssertionError("an interior point was asked for")

    monkeypatch.setattr(general, "interior_point", refuse)
    warm = solve_portfolio(other, factors, p, start=first, **terms)
    assert warm.gap <= 1e-12
    np.testing.assert_allclose(warm.weights, cold.weights, atol=1e-12)


@pytest.mark.parametrize("size", [1e-15, 1e-12, 1e-6, 1.0, 1e6])
def test_the_gap_is_relative_to_the_size_of_the_data(size):
    """The same decision in other units: the same weights, and a gap that says the same of them."""
    mean, factors, p, terms = market(40)
    before = solve_portfolio(mean, factors, p, **terms)
    terms |= {"risk_aversion": 5.0 * size, "cost": 1e-4 * size}
    found = solve_portfolio(mean * size, factors, p, **terms)
    assert found.gap <= 1e-12
    np.testing.assert_allclose(found.weights, before.weights, atol=1e-10)
    one, scale, _ = general.scaled_decision(found.problem, 0)
    worse = found.weights + 1e-3 * (p - found.weights)
    loss = (found.utility - found.problem.utility(worse[None])[0]) / scale
    sizes = np.array([limit.size for limit in found.problem.limits])
    prices = np.append(
        found.limit_prices * sizes, [float(found.budget_price - found.problem.level[0]), found.turnover_price, 0]
    )
    assert general._certified(one, worse, prices / scale).gap >= 0.999 * loss > 1e-9


def hard_problem(rng):
    """Weights, caps, limits and budgets that differ by as little as an interior-point method can tell apart."""
    m, hair = int(rng.integers(4, 25)), 10.0 ** rng.uniform(-12, -8, 25)
    p = rng.dirichlet(np.full(m, rng.choice([0.1, 1.0])))
    tiny = rng.random(m) < 0.3
    p[tiny] = 10.0 ** rng.uniform(-13, -7, tiny.sum())
    p /= p.sum()
    upper = np.where((rng.random(m) < 0.2) & (p > 1e-3), p + hair[:m] * rng.choice([-1, 0, 1], m), 1.0)
    fixed = rng.random(m) < rng.choice([0.0, 0.5])
    lower, upper = np.where(fixed, p, 0.0), np.where(fixed, p, upper)
    limits = []
    for name in "ab":
        group, room = 1.0 * (rng.random(m) < 0.5), float(rng.choice([0.0, 1e-13, 1e-10, 1e-8, 1e-4]))
        low = -np.inf if rng.random() < 0.5 else group @ p - room
        limits.append(Limit(name, group, low, group @ p + room if low == -np.inf else np.inf))
    B = rng.normal(size=(m, 3)) * 0.01
    mean, sigma = rng.normal(size=m) * 10.0 ** rng.uniform(-5, -1), B @ B.T + 1e-4 * np.eye(m) * rng.choice([0, 1])
    terms = {"risk_aversion": float(rng.choice([0, 1e-8, 0.1, 25, 1e4])), "cost": float(rng.choice([0, 1e-9, 1e-3]))}
    terms |= {"turnover_l1": float(rng.choice([1e-9, 1e-4, 0.01, 0.1, 2.0]))}
    return (mean, sigma, p), {**terms, "constraints": Constraints(lower, upper, limits=tuple(limits))}


def test_problems_that_differ_by_rounding_have_answers_too():
    """Every problem is feasible to 1e-9 at worst: it has a certified answer, or is refused as a contradiction."""
    solved = 0
    for seed in range(250):
        data, terms = hard_problem(np.random.default_rng(seed))
        try:
            found = solve_portfolio(*data, **terms)
        except InputError:
            continue
        assert found.gap <= 1e-10, seed
        now = found.problem.previous[0]  # without rounding against the bounds
        assert terms["constraints"].excess(found.weights, now, terms["turnover_l1"]) <= 1e-11, seed
        solved += 1
    assert solved > 150, solved


def test_a_point_that_is_a_little_infeasible_is_brought_to_the_nearest_feasible_one(monkeypatch):
    """Without a polish: what the interior-point method leaves is within the constraints, and all but optimal."""
    for seed in range(12):
        one, rng = decision(seed), np.random.default_rng(seed)
        s, y = interior_point(one, SETTINGS[0])
        off = s + 1e-9 * rng.random(7)
        near = general._nearest_feasible(one, off)
        assert general._feasible(one, near)
        assert np.abs(near - off).sum() < 1e-7
        with monkeypatch.context() as alone:
            alone.setattr(general, "_follow", lambda *_: None)
            alone.setattr(general, "interior_point", lambda *_, off=off, y=y: (off, y))
            assert general.solve_decision(one).gap < 1e-7
    assert general._nearest_feasible(one._replace(low=np.array([2.0, -np.inf, 1])), off) is None
