"""Decisions with linear limits: the second family of solvers, its active sets and its certificate, by themselves."""

import sys

import numpy as np
import pytest

from time2decide.core.validation import InputError
from time2decide.markets import Constraints, FactorCovariance, Limit, solve_portfolio
from time2decide.markets import portfolio_general as general
from time2decide.markets.portfolio import build_portfolio_problem
from time2decide.markets.portfolio_general import _Row
from time2decide.markets.turnover_path import AT_LOWER, AT_UPPER, BOUGHT, SOLD, UNTOUCHED


def row(seed, m=7):
    """One decision of size 1 with two limits, of which some bind; every third has cash."""
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(m, m)) / 3
    p, q = rng.dirichlet(np.ones(m)), rng.normal(size=m) / 2
    group, beta = (rng.random(m) < 0.5).astype(float), rng.uniform(0.5, 1.5, m)
    A = np.stack([group, beta])
    low, high = np.array([group @ p - 0.05, -np.inf]), np.array([group @ p + 0.05, beta @ p + 0.02])
    cash = np.array([0.0, 0.0, 0.0] if seed % 3 else [0.0, 0.3, rng.normal() / 4])
    cost = rng.uniform(0, 0.02, m)
    return _Row(G @ G.T, q, p, np.zeros(m), np.full(m, 0.8), cost, rng.uniform(0.1, 1.0), 1.0, cash, A, low, high)


def value(one, s):
    """The utility of weights."""
    cash = one.cash[2] * (one.exposure - s.sum()) if one.cash[0] < one.cash[1] else 0.0
    return one.q @ s - s @ one.Q @ s / 2 - one.cost @ np.abs(s - one.p) + cash


@pytest.mark.parametrize("seed", range(12))
def test_standing_still_has_a_proof(seed):
    """Costs forbid every trade, so the equations of the active set say nothing of the prices that prove it."""
    one, rng = row(seed), np.random.default_rng(seed)
    p = np.where(rng.random(7) < 0.3, 1e-14 * rng.random(7), one.p)
    one = one._replace(p=p / p.sum(), cost=np.full(7, 3.0), low=np.full(2, -np.inf), high=np.array([2.0, 3.0]))
    one = one._replace(cash=np.zeros(3), upper=np.ones(7), q=one.q + 10)  # no price is 0
    slope = one.q - one.Q @ one.p
    nearly = one.p + 1e-11 * (rng.random(7) - 0.5)  # as an interior-point method leaves it: not feasible to 1e-12
    best = general._polish(one, nearly, 0.0, (slope.min() + slope.max()) / 2, np.zeros(2), 1e-9)
    np.testing.assert_array_equal(best.s, one.p)
    assert best.gap <= 1e-11


@pytest.mark.parametrize("seed", range(12))
def test_the_certificate_bounds_every_feasible_portfolio(seed):
    one, rng = row(seed), np.random.default_rng(seed)
    best = general.solve_general_row(one)
    assert best.gap <= 1e-12
    assert general._feasible(one, best.s)
    for other in (general.solve_general_row(one._replace(q=rng.normal(size=7))).s for _ in range(5)):  # feasible too
        assert value(one, other) <= value(one, best.s) + 1e-12
        rough = general._certified(one, other, best.theta + rng.exponential() / 9, best.nu + 0.1, 2 * best.eta)
        assert value(one, best.s) - value(one, other) <= rough.gap + 1e-12
        same = general._certified(one, other, best.theta, best.nu, best.eta)
        assert value(one, best.s) - value(one, other) <= same.gap + 1e-12


@pytest.mark.parametrize("noise", [1e-7, 1e-3])
def test_an_active_set_is_found_from_nearby(noise):
    """From the answer moved a little, with prices that are a little off: the answer again, to rounding."""
    recovered = 0
    for seed in range(30):
        one, rng = row(seed), np.random.default_rng(seed)
        best = general.solve_general_row(one)
        s = best.s + noise * rng.normal(size=7)
        found = general._polish(one, s, best.theta * (1 + noise), best.nu + noise, best.eta + noise, 10 * noise)
        if found is not None and found.gap < 1e-12:
            recovered += 1
            np.testing.assert_allclose(found.s, best.s, atol=1e-9)
    assert recovered >= (30 if noise < 1e-6 else 20), recovered


def test_a_point_near_the_answer_shows_its_active_set(monkeypatch):
    """Nothing contradicts itself, so that one round of equations is enough, at whichever end limits and cash are."""
    monkeypatch.setattr(general, "_ROUNDS", 1)
    ends = set()
    for seed in range(30):
        one, rng = row(seed), np.random.default_rng(seed)
        if seed % 2:
            one = one._replace(A=-one.A, low=-one.high, high=-one.low)
        best = general.solve_general_row(one)
        found = general._polish(one, best.s + 1e-9 * rng.normal(size=7), best.theta, best.nu, best.eta, 1e-7)
        assert found.gap < 1e-12
        np.testing.assert_allclose(found.s, best.s, atol=1e-12)
        z = one.exposure - best.s.sum()
        ends |= {("limit", sign) for sign in np.sign(best.eta)}
        ends.add(("cash", z > 1e-9, z < one.cash[1] - 1e-9) if one.cash[1] else "none")
    assert ends >= {("limit", 1.0), ("limit", -1.0), ("limit", 0.0), "none"}
    assert len(ends) > 5


def test_what_contradicts_itself_changes():
    """Each class, limit, budget and cash bound that the prices or the weights contradict, one at a time."""
    one = row(3)._replace(
        Q=np.eye(7) / 2 + 0.1, A=np.array([[1.0, 0, 0, 0, 0, 0, 0]]), low=np.array([-1.0]), high=np.array([1.0])
    )
    one = one._replace(p=np.full(7, 0.1), cost=np.zeros(7), budget=0.5, lower=np.zeros(7), upper=np.full(7, 0.8))

    def revised(state, s=0.1, a=0.0, theta=0.2, active=0, eta=0.0, binding=True, cash_at=0.0, nu=0.0, **given):
        change, classes, limits = one._replace(**given), np.zeros(7, int), np.array([active])
        classes[0], weights, q = state, np.full(7, 0.1), np.full(7, nu)
        weights[0], q[0] = s, nu + a + eta
        change = change._replace(q=q + one.Q @ weights)
        answer = general._Answer(weights, theta, nu, np.array([eta]), 0.0)
        changed, binding, cash_at = general._revise(change, answer, classes, limits, binding, cash_at)
        assert (classes[1:] == UNTOUCHED).all()
        return changed, classes[0], limits[0], binding, cash_at

    for state, s, a, now in (
        (BOUGHT, 0.2, 0.2, BOUGHT),
        (BOUGHT, 0.09, 0.2, UNTOUCHED),
        (BOUGHT, 0.81, 0.2, AT_UPPER),
        (SOLD, 0.05, -0.2, SOLD),
        (SOLD, 0.11, -0.2, UNTOUCHED),
        (SOLD, -0.01, -0.2, AT_LOWER),
        (UNTOUCHED, 0.1, 0.19, UNTOUCHED),
        (UNTOUCHED, 0.1, 0.21, BOUGHT),
        (UNTOUCHED, 0.1, -0.21, SOLD),
        (AT_UPPER, 0.8, 0.21, AT_UPPER),
        (AT_UPPER, 0.8, 0.19, BOUGHT),
        (AT_LOWER, 0.0, -0.21, AT_LOWER),
        (AT_LOWER, 0.0, -0.19, SOLD),
    ):
        found = revised(state, s, a)
        assert found[:2] == (state != now, now), (state, s, a)
    assert revised(UNTOUCHED, 0.1, 0.21, upper=np.full(7, 0.1))[1] == UNTOUCHED  # no room to buy
    assert revised(UNTOUCHED, 0.1, -0.21, lower=np.full(7, 0.1))[1] == UNTOUCHED
    for active, eta, now in ((1, 0.1, 1), (1, -0.1, 0), (-1, -0.1, -1), (-1, 0.1, 0)):
        assert revised(UNTOUCHED, active=active, eta=eta)[::2][1] == now
    assert revised(UNTOUCHED, high=np.array([0.05]))[2] == 1
    assert revised(UNTOUCHED, low=np.array([0.15]))[2] == -1
    assert revised(UNTOUCHED, theta=-0.1)[3] is False
    assert revised(UNTOUCHED, binding=False)[3] is False
    assert revised(BOUGHT, s=0.7, a=0.2, binding=False)[3] is True
    loose = {"cash": np.array([0.0, 0.3, 0.0]), "exposure": 0.8}  # cash is 0.1
    assert revised(UNTOUCHED, cash_at=None, **loose)[4] is None
    assert revised(UNTOUCHED, cash_at=None, **loose | {"exposure": 0.65})[4] == 0.0
    assert revised(UNTOUCHED, cash_at=None, **loose | {"exposure": 1.1})[4] == 0.3
    for cash_at, nu, now in ((0.0, 0.1, 0.0), (0.0, -0.1, None), (0.3, -0.1, 0.3), (0.3, 0.1, None)):
        assert revised(UNTOUCHED, cash_at=cash_at, nu=nu, **loose)[4] == now
    assert revised(UNTOUCHED, cash_at=0.0, nu=-0.1)[4] == 0.0  # fully invested: nothing to release


def test_feasible_means_every_constraint():
    one = row(1)
    s = general.solve_general_row(one).s
    assert general._feasible(one, s)
    for change in (
        {"lower": s + 1e-9},
        {"upper": s - 1e-9},
        {"cash": one.cash + np.array([1e-9, 1e-9, 0])},
        {"cash": one.cash - np.array([1e-9, 1e-9, 0])},
        {"budget": np.abs(s - one.p).sum() - 1e-9},
        {"high": one.A @ s - 1e-9},
        {"low": one.A @ s + 1e-9},
    ):
        assert not general._feasible(one._replace(**change), s)
        assert general._feasible(one._replace(**change), s, 1e-8)


@pytest.mark.parametrize("cash_at", [0.0, None])
@pytest.mark.parametrize("binding", [True, False])
@pytest.mark.parametrize("active", [(1, 0), (-1, 0), (0, 1), (0, 0)])
def test_the_equations_of_an_active_set_hold(active, binding, cash_at):
    """Limits, net exposure and budget where they are active, a price for each, and none for the others."""
    one, active = row(3), np.array(active)
    one = one._replace(lower=one.p / 2)
    state = np.array([BOUGHT, SOLD, AT_UPPER, AT_LOWER, BOUGHT, SOLD, UNTOUCHED])
    s, theta, nu, eta = general._equations(
        one, state, binding, active, cash_at, general._Answer(one.p, 0.0, 0.0, np.zeros(2), np.inf)
    )
    np.testing.assert_array_equal(s[[2, 3, 6]], [one.upper[2], one.lower[3], one.p[6]])
    ends = np.where(active > 0, one.high, one.low)
    np.testing.assert_allclose((one.A @ s)[active != 0], ends[active != 0], atol=1e-12)
    sides, T = np.sign(state), np.abs(state) == 1
    forces = one.q - one.Q @ s - nu - one.A.T @ eta - sides * (one.cost + theta)
    np.testing.assert_allclose(forces[T], 0, atol=1e-12)
    assert not eta[active == 0].any()
    if binding:  # of sold and bought amounts as the classes have them
        assert sides @ (s - one.p) == pytest.approx(one.budget, abs=1e-12)
    else:
        assert theta == 0
    if cash_at is None:
        assert nu == one.cash[2]
    else:
        assert s.sum() == pytest.approx(one.exposure, abs=1e-12)


def test_the_reach_of_a_limit_is_that_of_the_corners():
    rng = np.random.default_rng(0)
    A, lower, upper = rng.normal(size=(3, 4)), rng.uniform(-2, 0, 4), rng.uniform(0.5, 2, 4)
    A[1, 2] = 0.0
    corners = np.array(np.meshgrid(*zip(lower, upper, strict=True))).reshape(4, -1)
    least, most = general._reach(A, lower, upper)
    np.testing.assert_allclose(least, (A @ corners).min(axis=1), atol=1e-14)
    np.testing.assert_allclose(most, (A @ corners).max(axis=1), atol=1e-14)
    upper[2] = np.inf  # of which the second limit sees nothing
    least, most = general._reach(np.abs(A), lower, upper)
    np.testing.assert_array_equal(np.isfinite(most), [False, True, False])
    assert np.isfinite(least).all()


def test_singular_equations_are_solved_near_the_guess():
    matrix, right = np.array([[1.0, 1.0], [1.0, 1.0]]), np.array([2.0, 2.0])
    np.testing.assert_allclose(general._solve_kkt(matrix, right, np.array([3.0, 0.0])), [2.5, -0.5], atol=1e-14)
    np.testing.assert_allclose(general._solve_kkt(np.eye(2), right, np.zeros(2)), [2.0, 2.0])


def test_regular_equations_need_no_least_squares(monkeypatch):
    """And are solved to rounding whatever the guess, with one step of refinement."""
    monkeypatch.delattr(np.linalg, "lstsq")
    for seed in range(20):
        rng = np.random.default_rng(seed)
        matrix, x = rng.normal(size=(6, 6)), rng.normal(size=6)
        right = matrix @ x / 10
        found = general._solve_kkt(matrix, right, 9 * x)
        np.testing.assert_allclose(found, x / 10, atol=1e-12)


@pytest.mark.parametrize("cash", [(0.0, 0.0), (0.0, 0.2)])
def test_a_row_in_units_of_size_one_is_the_same_decision(cash):
    """For every portfolio the utility in these units is that of the problem but for a constant, in both forms of Σ."""
    rng = np.random.default_rng(0)
    m = 5
    mean, loadings, specific = rng.normal(size=m), rng.normal(size=(m, 2)), rng.uniform(0.1, 0.5, m)
    p, cost, limit = np.full(m, 0.2), rng.uniform(0, 0.1, m), Limit("two", 3.0 * (np.arange(m) < 2), 0.9, 1.4)
    constraints = Constraints(-0.1, 0.9, cash=cash, cash_return=0.3 if cash[1] else 0.0, limits=(limit,))
    for covariance in (loadings @ loadings.T + np.diag(specific), FactorCovariance(loadings, specific)):
        problem, _ = build_portfolio_problem(mean, covariance, p, 1.7, 0.8, cost, None, constraints)
        one, scale, _ = general.scaled_general_row(problem, 0)
        slope = one.q - one.Q @ one.p
        assert slope.max() == pytest.approx(0, abs=1e-12)
        assert max(-slope.min(), one.Q.diagonal().max(), one.cost.max(), abs(one.cash[2])) >= 1 - 1e-12
        differences, met = [], set()
        for s in rng.dirichlet(np.ones(m), 20):
            s = s * (1 - cash[1] * rng.random())
            differences.append(problem.utility(s[None])[0] - scale * value(one, s))
            met.add(0.9 <= 3 * s[:2].sum() <= 1.4)
            assert bool((one.low <= one.A @ s) & (one.A @ s <= one.high)) == (0.9 <= 3 * s[:2].sum() <= 1.4)
        assert np.ptp(differences) < 1e-12
        assert met == {True, False}


def test_limits_that_no_portfolio_meets_are_a_contradiction():
    one = row(1)
    with pytest.raises(InputError, match="found a contradiction"):
        general.solve_general_row(one._replace(low=np.array([2.0, -np.inf]), high=np.array([3.0, np.inf])))


def test_a_contradiction_that_the_solver_does_not_see_is_one_all_the_same(monkeypatch):
    one = row(1)
    good = general._clarabel(one, 1e-8)
    nothing = one._replace(low=np.array([2.0, -np.inf]), high=np.array([3.0, np.inf]))
    monkeypatch.setattr(general, "_clarabel", lambda row, _: good._replace(s=one.p))
    with pytest.raises(InputError, match="found a contradiction"):
        general.solve_general_row(nothing)
    off = good._replace(s=good.s + np.full(7, 1e-5))  # but polished
    monkeypatch.setattr(general, "_clarabel", lambda row, _: off)
    assert general.solve_general_row(one).gap < 1e-12


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


def test_without_a_package_for_linear_limits_its_name_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(InputError, match=r"expected the package clarabel for linear limits \(pip install clarabel\)"):
        general.solve_general_row(row(1))


def test_equations_without_an_answer_leave_the_best_one_before(monkeypatch):
    one, real, calls = row(1), general._equations, []
    best = general.solve_general_row(one)

    def once(*given):
        calls.append(given)
        s, *prices = real(*given)
        return (s if len(calls) == 1 else np.full(7, np.nan), *prices)

    monkeypatch.setattr(general, "_equations", once)
    monkeypatch.setattr(general, "_revise", lambda row, answer, state, active, binding, cash: (True, binding, cash))
    found = general._polish(one, best.s, best.theta, best.nu, best.eta, 1e-8)
    assert len(calls) == 2
    np.testing.assert_allclose(found.s, best.s, atol=1e-12)


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
    monkeypatch.setattr(general, "_polish", lambda *_: None)
    for seed in range(12):
        one, rng = row(seed), np.random.default_rng(seed)
        found = general._clarabel(one, 1e-8)
        off = found._replace(s=found.s + 1e-9 * rng.random(7))
        near = general._nearest_feasible(one, off.s)
        assert general._feasible(one, near)
        assert np.abs(near - off.s).sum() < 1e-7
        monkeypatch.setattr(general, "_clarabel", lambda row, _, off=off: off)
        assert general.solve_general_row(one).gap < 1e-7
        monkeypatch.undo()
        monkeypatch.setattr(general, "_polish", lambda *_: None)
    assert general._nearest_feasible(one._replace(low=np.array([2.0, -np.inf])), off.s) is None
