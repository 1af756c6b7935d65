"""Every breakpoint of the path is an optimal portfolio for its turnover, whatever happens on the way."""

import numpy as np
import pytest

from time2decide.markets import turnover_kernels, turnover_path
from time2decide.markets.turnover_decision import turnover_duality_gap
from time2decide.markets.turnover_path import AT_LOWER, AT_UPPER, BOUGHT, SOLD, UNTOUCHED, Cash, Curvature, TradeLimits

FORMS = {"numpy": turnover_path, "compiled": turnover_kernels}


@pytest.fixture(autouse=True)
def _as_the_solver_runs_it():
    with np.errstate(divide="ignore", invalid="ignore"):
        yield


KINDS = ("definite", "factors", "duplicates", "no risk", "cash", "singular", "cash and singular", "bounds")


def decision(kind, seed, m=9):
    """One decision of size 1 with its start inside the bounds: Q, g0, limits and cash."""
    rng = np.random.default_rng(seed)
    B, D, q = rng.normal(size=(m, 2)) / 2, rng.uniform(0.05, 0.3, m), rng.normal(size=m) / 2
    p = rng.dirichlet(np.ones(m)) * (rng.random(m) < 0.8)
    S = B @ B.T + np.diag(D)
    lower, upper, money = np.zeros(m), np.ones(m), Cash(0.0, 0.0, 0.0, 0.0)
    if "duplicates" in kind:
        twin = np.arange(m) // 2
        S, q = S[np.ix_(twin, twin)], q[twin]
    if "singular" in kind:
        S, q = B @ B.T, np.round(4 * q) / 4  # rank 2, and means that are alike
    if "cash" in kind:
        now = rng.choice([0.0, 0.1, 0.3])
        money = Cash(now, 0.0, 0.3, rng.normal() / 4)
    if kind in ("bounds", "cash and singular"):
        lower, upper = -rng.uniform(0, 0.1, m), p + rng.uniform(0, 0.2, m)
    if kind == "factors":
        Q = Curvature(np.zeros((0, 0)), B, D, 1.0)
    else:
        Q = Curvature(S, np.zeros((0, 0)), np.zeros(0), 0.0 if kind == "no risk" else 1.0)
    cost = rng.uniform(0, 0.05, m) if seed % 2 else np.zeros(m)
    box = TradeLimits(lower - p, upper - p, cost, rng.uniform(0.2, 2.0))
    return Q, q - turnover_path.curvature_product(Q, p), box, money


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_breakpoint_is_optimal_for_its_turnover(form, kind):
    for seed in range(13):
        Q, g0, box, cash = decision(kind, seed, 14 if seed % 3 == 0 else 9)
        d, state, prices, free, count, points, trades = FORMS[form].follow_turnover_path(Q, g0, box, cash, 0.0, 500, 90)
        assert 0 < count <= 90, seed
        turnover, theta, nu, z = points[:count].T
        np.testing.assert_allclose(np.abs(trades[:count]).sum(1), turnover, atol=1e-12)
        np.testing.assert_allclose(cash.now - trades[:count].sum(1), z, atol=1e-12)
        assert (np.diff(theta) <= 1e-14).all()
        assert (np.diff(turnover) >= -1e-14).all()
        assert turnover[-1] <= box.budget + 1e-12
        assert theta[-1] <= 1e-15 or turnover[-1] == pytest.approx(box.budget, abs=1e-12)
        for i in range(count):
            gradient = g0 - turnover_path.curvature_product(Q, trades[i])
            money = cash.low, cash.high, cash.rate
            gap = turnover_duality_gap(
                gradient, 0 * g0, box.low, box.high, box.cost, turnover[i], money, cash.now, trades[i], theta[i], nu[i]
            )
            assert gap < 1e-12, (seed, i)
            assert (trades[i] >= box.low - 1e-13).all()
            assert (trades[i] <= box.high + 1e-13).all()
        np.testing.assert_array_equal(d, trades[count - 1])
        np.testing.assert_array_equal(prices, points[count - 1, 1:])
        assert free == (cash.low + 1e-13 < z[-1] < cash.high - 1e-13) or kind == "no risk"
        _classes_fit(state, d, box)


def _classes_fit(state, d, box):
    """A trade is in the class that the path ends with."""
    assert (d[state == UNTOUCHED] == 0).all()
    assert (d[state == BOUGHT] >= 0).all()
    assert (d[state == SOLD] <= 0).all()
    np.testing.assert_array_equal(d[state == AT_UPPER], box.high[state == AT_UPPER])
    np.testing.assert_array_equal(d[state == AT_LOWER], box.low[state == AT_LOWER])


@pytest.mark.parametrize("kind", ["definite", "factors"])
def test_a_long_path_keeps_its_precision(kind):
    """More events than fit between two fresh inverses, more members than there is room for at first."""
    Q, g0, box, cash = decision(kind, 3, m=90)
    box = box._replace(cost=np.zeros(90), budget=2.0)
    for form in FORMS.values():
        d, _, (theta, nu, _), _, count, _, _ = form.follow_turnover_path(Q, g0, box, cash, 0.0, 5000, 0)
        gradient = g0 - turnover_path.curvature_product(Q, d)
        data = 0 * g0, box.low, box.high, box.cost, box.budget, (0.0, 0.0, 0.0), 0.0
        assert count > 48
        assert turnover_duality_gap(gradient, *data, d, theta, nu) < 1e-12


@pytest.mark.parametrize("form", FORMS)
def test_nothing_to_gain_and_no_budget(form):
    Q, g0, box, cash = decision("definite", 0)
    for gradient, limits in (
        (np.zeros(9), box),
        (g0, box._replace(budget=0.0)),
        (g0, box._replace(cost=np.full(9, 9.0))),
    ):
        d, state, prices, free, count, points, _ = FORMS[form].follow_turnover_path(
            Q, gradient, limits, cash, 0.0, 100, 2
        )
        assert (count, free) == (1, False)
        assert not d.any()
        assert not state.any()
        assert prices[0] >= 0
        np.testing.assert_array_equal(points[0], [0.0, *prices])


@pytest.mark.parametrize("free", [True, False])
def test_drift_is_removed_in_one_step(free):
    """d, g and ν a little off: the prices of T and, unless cash is free, the sum of the trades hold again."""
    rng = np.random.default_rng(0)
    Q, g0, _, _ = decision("definite", 0)
    members, sides, k = np.array([1, 4, 5, 7, 0, 0, 0, 0, 0]), np.array([1.0, -1, 1, -1, 0, 0, 0, 0, 0]), 4
    T, lift, nu, total = members[:k], 0.0 if free else 0.4, 0.1, 0.25
    price, d, g = np.full(9, 0.02), np.zeros(9), np.empty(9)
    d[T], d[8] = rng.normal(size=k), 0.2
    inverse = np.zeros((6, 6))
    inverse[:k, :k] = np.linalg.inv(Q.S[np.ix_(T, T)] + lift)
    nu = turnover_path.correct_path(Q, g0, g, d, inverse, members, sides, k, price, nu, free, lift, total)
    np.testing.assert_allclose(g, g0 - Q.S @ d, atol=1e-13)
    np.testing.assert_allclose(g[T] - nu, sides[:k] * price[T], atol=1e-13)
    assert d[8] == 0.2
    if not free:
        assert d.sum() == pytest.approx(total, abs=1e-13)


def test_too_few_events_are_told():
    Q, g0, box, cash = decision("definite", 1)
    assert turnover_path.follow_turnover_path(Q, g0, box, cash, 0.0, 3, 0)[4] == -1


def test_tied_assets_wait_as_at_the_start():
    """Untouched ones for both sides that have room, those at a bound to come back, traded ones not at all."""
    state = np.array([UNTOUCHED, UNTOUCHED, UNTOUCHED, AT_UPPER, AT_LOWER, BOUGHT, SOLD])
    low, high = np.array([-0.1, 0.0, -0.1, -1, -1, -1, -1]), np.array([0.2, 0.2, 0.0, 1, 1, 1, 1])
    up, down = np.zeros(7), np.zeros(7)
    assert turnover_path.wait_again_on_path(state, up, down, low, high) is False
    np.testing.assert_array_equal(up, [1, 1, 0, -1, 0, 0, 0])
    np.testing.assert_array_equal(down, [1, 0, 1, 0, -1, 0, 0])


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("side", [BOUGHT, SOLD])
def test_who_leaves_is_at_a_bound_or_untouched(rising, side):
    state, d, up, down = np.array([side]), np.array([0.3 * side]), np.zeros(1), np.zeros(1)
    turnover_path.settle_on_path(0, rising, d, state, up, down, np.array([-0.5]), np.array([0.5]))
    if rising == (side == BOUGHT):
        assert (state[0], d[0]) == (2 * side, 0.5 * side)
        assert (up[0], down[0]) == ((-1, 0) if rising else (0, -1))
    else:
        assert (state[0], d[0], up[0], down[0]) == (UNTOUCHED, 0.0, 1, 1)


@pytest.mark.parametrize("form", FORMS)
def test_the_inverse_follows_entries_and_exits(form):
    rng = np.random.default_rng(0)
    G = rng.normal(size=(6, 8))
    M, members, inverse = G @ G.T, [], np.zeros((6, 6))
    functions = turnover_path if form == "numpy" else turnover_kernels
    for asset in range(6):
        pivot = functions.enter_inverse(inverse, asset, M[asset, members], M[asset, asset], 1e-9)
        assert pivot > 0
        members.append(asset)
    assert functions.enter_inverse(inverse, 5, M[5, :5], M[5, :5] @ np.linalg.solve(M[:5, :5], M[5, :5]), 1e-9) < 1e-9
    for place in (2, 4, 0):
        k = len(members)
        functions.leave_inverse(inverse, k, place)
        members[place] = members[-1]
        members.pop()
        expected = np.linalg.inv(M[np.ix_(members, members)])
        np.testing.assert_allclose(inverse[: k - 1, : k - 1], expected, atol=1e-12)
