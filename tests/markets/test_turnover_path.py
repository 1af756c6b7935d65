"""Every breakpoint of the path is an optimal portfolio for its turnover, whatever happens on the way."""

import numpy as np
import pytest

from time2decide.markets import turnover_decision, turnover_kernels, turnover_path
from time2decide.markets.turnover_decision import turnover_duality_gap
from time2decide.markets.turnover_path import (
    AT_LOWER,
    AT_UPPER,
    BOUGHT,
    BUY,
    CASH_BOUND,
    CASH_FREE,
    END,
    LEAVE,
    SELL,
    SOLD,
    UNTOUCHED,
    Cash,
    Curvature,
    TradeLimits,
)

FORMS = {"numpy": turnover_path, "compiled": turnover_kernels}  # the functions of kernels are plain until compiled


@pytest.fixture(autouse=True)
def _as_the_solver_runs_it():
    with np.errstate(divide="ignore", invalid="ignore"):
        yield


KINDS = (
    *("definite", "factors", "duplicates", "no risk", "little risk", "cash", "singular", "cash and singular", "bounds"),
    "duplicates and bounds",
)


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
    if "bounds" in kind or kind == "cash and singular":
        lower, upper = -rng.uniform(0, 0.1, m), p + rng.uniform(0, 0.2, m)
        upper[::4] = p[::4]  # no room to buy
    if kind == "factors":
        Q = Curvature(np.zeros((0, 0)), B, D, 1.0)
    else:
        Q = Curvature(S, np.zeros((0, 0)), np.zeros(0), {"no risk": 0.0, "little risk": 1e-5}.get(kind, 1.0))
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
    """A trade is in the class that the path ends with, and what has no room to be traded to a side is not."""
    assert (state[box.high == 0] <= 0).all()
    assert (state[box.low == 0] >= 0).all()
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["definite", "factors"])
def test_the_curvature_is_a_matrix(form, kind):
    """Rows, products and the diagonal are those of factor · S, or of factor · (BBᵀ + diag D)."""
    Q, functions = decision(kind, 1)[0]._replace(factor=1.7), FORMS[form]
    matrix = 1.7 * (Q.S if len(Q.S) else Q.B @ Q.B.T + np.diag(Q.D))
    x = np.where(np.arange(9) % 3 == 0, 0.0, np.arange(9.0))
    np.testing.assert_allclose(functions.curvature_product(Q, x), matrix @ x, rtol=1e-13)
    np.testing.assert_allclose(functions.curvature_diagonal(Q, 9), matrix.diagonal(), rtol=1e-13)
    for i in range(9):
        np.testing.assert_allclose(functions.curvature_row(Q, i), matrix[i], rtol=1e-13)
    alone = Curvature(Q.S[:1, :1], Q.B[:1], Q.D[:1], 1.7)  # one asset
    one = np.array([2.0])
    np.testing.assert_allclose(functions.curvature_product(alone, one), 2 * matrix[0, :1], rtol=1e-13)
    np.testing.assert_allclose(functions.curvature_row(alone, 0), matrix[0, :1], rtol=1e-13)
    np.testing.assert_allclose(functions.curvature_diagonal(alone, 1), matrix[0, :1], rtol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("free", [True, False])
def test_a_direction_keeps_the_prices_of_those_who_trade(form, free):
    """θ falls by 1: the prices of T follow it, the trades sum to zero unless cash is free."""
    Q, _, _, _ = decision("definite", 2)
    members, sides, k, lift = np.array([7, 2, 4, 0, 0]), np.array([1.0, -1.0, 1.0, 9.0, 9.0]), 3, 0.0 if free else 0.4
    T = members[:k]
    rows, inverse = np.full((5, 9), 9.0), np.full((5, 5), 9.0)  # what is beyond k says nothing
    rows[:k], inverse[:k, :k] = Q.S[T], np.linalg.inv(Q.S[np.ix_(T, T)] + lift)
    ds, da = np.full(9, 9.0), np.full(9, 9.0)
    dnu, growth = FORMS[form]._direction(inverse, rows, sides, k, free, ds, da)
    step = np.zeros(9)
    step[T] = ds[:k]
    np.testing.assert_allclose(da, -Q.S @ step - dnu, atol=1e-13)
    np.testing.assert_allclose(da[T], -sides[:k], atol=1e-13)
    assert growth == pytest.approx(sides[:k] @ ds[:k], rel=1e-13)
    if free:
        assert dnu == 0
    else:
        assert ds[:k].sum() == pytest.approx(0, abs=1e-13)
    d, g = np.arange(9.0), np.ones(9)
    FORMS[form]._advance(d, g, ds, da, dnu, members, k, 0.25)
    np.testing.assert_allclose(d, np.arange(9) + 0.25 * step, atol=1e-13)
    np.testing.assert_allclose(g, 1 - 0.25 * Q.S @ step, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_the_first_to_enter_has_the_price_of_trading(form):
    """Until then none of those who wait has; a bound is waited at from the other side."""
    kinds = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        m, theta = 6, 0.5
        cost, da, most = rng.uniform(0, 0.2, m), 2 * rng.normal(size=m), rng.choice([0.02, 0.1, 1.0])
        waits = rng.integers(0, 5, m)  # untouched with room above and below, above, below, at the upper and lower bound
        up, down = np.choose(waits, [1.0, 1, 0, -1, 0]), np.choose(waits, [1.0, 0, 1, 0, -1])
        share, price = rng.uniform(-0.9, 0.9, m), cost + theta
        a = price * np.choose(waits, [share, share, share, 1.2 + share / 9, -1.2 + share / 9])
        h, kind, who = FORMS[form]._next_entry(a, da, cost, theta, up, down, most)
        kinds.add((kind, int(up[who] if kind == BUY else down[who]) if kind != END else 0))
        above, below = price - h - a - h * da, price - h + a + h * da
        assert 0 <= h <= most
        assert (up * above >= -1e-12).all()
        assert (down * below >= -1e-12).all()
        if kind == END:
            assert (h, who) == (most, -1)
        else:
            assert (above if kind == BUY else below)[who] == pytest.approx(0, abs=1e-12)
            assert (up if kind == BUY else down)[who] != 0
    assert kinds == {(END, 0), (BUY, 1), (BUY, -1), (SELL, 1), (SELL, -1)}
    for side, kind in ((1.0, BUY), (-1.0, SELL)):  # past its price by rounding: at once, never backwards
        given = side * np.array([0.0, 1 + 1e-12]), np.zeros(2), np.zeros(2), 1.0, np.ones(2), np.ones(2), 0.5
        assert FORMS[form]._next_entry(*given) == (0.0, kind, 1)


@pytest.mark.parametrize("form", FORMS)
def test_the_first_to_leave_is_at_its_limit(form):
    """Bought assets stay between p and the upper bound, sold ones between the lower bound and p."""
    ends = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        members, sides, k = rng.permutation(6), rng.choice([-1.0, 1.0], 6), 4
        low, high, ds = -rng.uniform(0.1, 1, 6), rng.uniform(0.1, 1, 6), rng.normal(size=6) * (rng.random(6) < 0.7)
        T, d, most = members[:k], np.full(6, 99.0), rng.choice([0.05, 3.0])
        floor, ceiling = np.where(sides[:k] > 0, 0, low[T]), np.where(sides[:k] > 0, high[T], 0)
        d[T] = floor + rng.uniform(0.1, 0.9, k) * (ceiling - floor)
        h, kind, who = FORMS[form]._next_exit(d, ds, members, sides, k, low, high, most)
        after = d[T] + h * ds[:k]
        assert 0 <= h <= most
        assert (after >= floor - 1e-12).all()
        assert (after <= ceiling + 1e-12).all()
        if kind == END:
            assert (h, who) == (most, -1)
        else:
            assert kind == LEAVE
            assert after[who] == pytest.approx(ceiling[who] if ds[who] > 0 else floor[who], abs=1e-12)
            ends.add((sides[who], ds[who] > 0))
    assert len(ends) == 4
    beyond = np.array([0.5 + 1e-12]), np.ones(1), np.zeros(1, int), np.ones(1), 1, -np.ones(1), np.array([0.5]), 1.0
    assert FORMS[form]._next_exit(*beyond) == (0.0, LEAVE, 0)


def test_a_fresh_inverse_and_whether_there_is_one():
    Q, _, _, _ = decision("definite", 0)
    members, inverse = np.array([3, 0, 8, 1]), np.empty((6, 6))
    assert turnover_path._refactor(inverse, Q.S[members], members, 4, 0.3)
    np.testing.assert_allclose(inverse[:4, :4], np.linalg.inv(Q.S[np.ix_(members, members)] + 0.3), rtol=1e-10)
    assert turnover_path._refactor(inverse, Q.S, members, 0, 0.3)
    twins = Q.S[np.ix_(members[[0, 1, 0, 2]], members[[0, 1, 0, 2]])]
    assert not turnover_path._refactor(inverse, twins, np.arange(4), 4, 0.3)


def test_who_is_dropped_makes_room_for_the_last():
    Q, _, box, _ = decision("definite", 0)
    members, sides, inverse = np.array([3, 0, 8, 1]), np.array([1.0, -1, -1, 1]), np.empty((4, 4))
    rows, d, state = Q.S[members], np.zeros(9), np.zeros(9, int)
    state[members] = sides
    turnover_path._refactor(inverse, rows, members, 4, 0.3)
    assert turnover_path._drop(1, True, inverse, rows, members, sides, 4, d, state, np.zeros(9), np.zeros(9), box) == 3
    np.testing.assert_array_equal(members[:3], [3, 1, 8])
    np.testing.assert_array_equal(sides[:3], [1, 1, -1])
    np.testing.assert_array_equal(rows[:3], Q.S[[3, 1, 8]])
    np.testing.assert_allclose(inverse[:3, :3], np.linalg.inv(Q.S[np.ix_([3, 1, 8], [3, 1, 8])] + 0.3), rtol=1e-9)
    np.testing.assert_array_equal(state[[3, 0, 8, 1]], [BOUGHT, UNTOUCHED, SOLD, BOUGHT])


@pytest.mark.parametrize("cash", ["none", "inside", "at its least", "at its most"])
def test_trading_starts_at_the_largest_price_that_anyone_pays(cash):
    """At θ and ν none gains by a trade, and the two that are named, or one and cash, gain nothing by theirs."""
    pairs = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        m = 5
        g, cost = rng.normal(size=m), rng.uniform(0, 0.3, m)
        box = TradeLimits(-1.0 * (rng.random(m) < 0.7), 1.0 * (rng.random(m) < 0.7), cost, 1.0)
        box.low[0], box.high[1] = -1.0, 1.0
        now = {"none": 0.0, "inside": 0.2, "at its least": 0.0, "at its most": 0.5}[cash]
        money = Cash(now, 0.0, 0.0 if cash == "none" else 0.5, rng.normal())
        theta, nu, buys, sells = turnover_path._first_trade(g, box, money)
        price = cost + theta
        assert (g - nu <= price + 1e-12)[box.high > 0].all()
        assert (g - nu >= -price - 1e-12)[box.low < 0].all()
        assert max(buys, sells) >= 0
        if buys >= 0:
            assert box.high[buys] > 0
            assert g[buys] - nu == pytest.approx(price[buys], abs=1e-12)
        if sells >= 0:
            assert box.low[sells] < 0
            assert g[sells] - nu == pytest.approx(-price[sells], abs=1e-12)
        if min(buys, sells) < 0 or money.low < now < money.high:  # cash takes the other side, at its own price
            assert nu == money.rate
            assert now > money.low if sells < 0 else now < money.high
        else:  # cash at a bound would move away from its inside only
            assert now > money.low or nu >= money.rate or money.high == 0
            assert now < money.high or nu <= money.rate or money.high == 0
        pairs.add((buys < 0, sells < 0))
    expected = {
        "none": {(False, False)},
        "inside": {(True, False), (False, True)},
        "at its least": {(False, False), (True, False)},  # the money of a sale can only become cash
        "at its most": {(False, False), (False, True)},
    }
    assert pairs == expected[cash]


CASH_EVENTS = [  # cash and its change, ν and its change, free, when and what; between 0 and 0.5 with a return of 0.2
    (0.2, -0.1, 0.2, 0.0, True, 2.0, CASH_BOUND),
    (0.2, 0.1, 0.2, 0.0, True, 3.0, CASH_BOUND),
    (0.2, 0.01, 0.2, 0.0, True, 9.0, END),
    (0.2, 0.0, 0.2, 0.0, True, 9.0, END),
    (0.0 - 1e-17, -0.1, 0.2, 0.0, True, 0.0, CASH_BOUND),
    (0.0, 0.0, 0.5, -0.1, False, 3.0, CASH_FREE),
    (0.0, 0.0, 0.5, 0.1, False, 9.0, END),
    (0.0, 0.0, 0.2 - 1e-16, -0.1, False, 0.0, CASH_FREE),
    (0.5, 0.0, 0.0, 0.1, False, 2.0, CASH_FREE),
    (0.5, 0.0, 0.0, -0.1, False, 9.0, END),
    (0.0, 0.0, 0.5, -0.01, False, 9.0, END),
    (0.0, 0.0, 0.5, 0.0, False, 9.0, END),
]


@pytest.mark.parametrize(("z", "dz", "nu", "dnu", "free", "when", "kind"), CASH_EVENTS)
def test_cash_meets_a_bound_or_its_price(z, dz, nu, dnu, free, when, kind):
    found = turnover_path._next_cash_event(z, dz, nu, dnu, free, Cash(0.1, 0.0, 0.5, 0.2), 9.0)
    assert found == (pytest.approx(when, abs=1e-14), kind)
    assert found[0] >= 0
    fixed = turnover_path._next_cash_event(0.0, 0.0, nu, dnu, False, Cash(0.0, 0.0, 0.0, 0.2), 9.0)
    assert fixed == (9.0, END)  # without room for cash its price says nothing


@pytest.mark.parametrize("free", [True, False])
def test_an_exchange_moves_along_what_the_objective_does_not_see(free):
    """Prices stay, the turnover grows by what is returned, and whoever is named has reached a limit."""
    ends = set()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        B = rng.normal(size=(5, 2))
        S, k, lift = B @ B.T, 2 if free else 3, 0.0 if free else 0.4  # rank 2, with the sum of the trades 3
        *members, entering = rng.permutation(5)[: k + 1]
        members = np.array(members)
        sides, side = rng.choice([-1.0, 1.0], k), rng.choice([-1, 1])
        box = TradeLimits(-rng.uniform(0.1, 1, 5), rng.uniform(0.1, 1, 5), np.zeros(5), 9.0)
        d = np.zeros(5)
        d[members] = rng.uniform(0.1, 0.9, k) * np.where(sides > 0, box.high[members], box.low[members])
        if seed % 3 == 0:  # it comes back from a bound
            d[entering] = box.high[entering] if side > 0 else box.low[entering]
        inverse = np.linalg.inv(S[np.ix_(members, members)] + lift)
        column = S[entering, members] + lift
        left, below, above = rng.choice([0.05, 9.0]), *rng.choice([0.02, 9.0], 2)
        below, above = (below, above) if free else (np.inf, np.inf)
        before, signs = d.copy(), np.zeros(5)
        signs[members], signs[entering] = sides, side
        spent, who, rose = turnover_path._exchange(
            inverse, column, members, sides, k, d, box, entering, side, left, below, above
        )
        move = d - before
        np.testing.assert_allclose(S @ move, 0, atol=1e-12)
        assert move.sum() == pytest.approx(0, abs=1e-12) or free
        assert signs @ move == pytest.approx(spent, abs=1e-12)
        assert 0 <= spent <= left + 1e-12
        assert -above - 1e-12 <= move.sum() <= below + 1e-12
        floor, ceiling = np.where(signs > 0, 0, box.low), np.where(signs > 0, box.high, 0)
        traded = signs != 0
        assert (d >= floor - 1e-12)[traded].all()
        assert (d <= ceiling + 1e-12)[traded].all()
        if who >= 0:
            asset = members[who] if who < k else entering
            assert d[asset] == pytest.approx(ceiling[asset] if rose else floor[asset], abs=1e-12)
            assert rose == (move[asset] > 0) or move[asset] == 0
        elif who == -1:
            assert spent == pytest.approx(left, abs=1e-12)
        elif who == -3:
            assert move.sum() == pytest.approx(-above if rose else below, abs=1e-12)
        else:  # all trade to one side, and the sum stays
            assert (who, spent) == (-2, 0.0)
            assert not move.any()
            assert (sides == side).all()
        ends.add(min(who, 0) if who < k else k)
    assert ends == ({0, k, -1, -3} if free else {0, k, -1, -2})


def test_a_tie_is_no_exchange():
    """A twin of a bought asset, bought in its place, changes neither the objective nor the turnover."""
    d, box = np.array([0.2, 0.0]), TradeLimits(-np.ones(2), np.ones(2), np.zeros(2), 9.0)
    given = np.ones((1, 1)), np.ones(1), np.zeros(1, int), np.ones(1), 1, d, box, 1, 1, 9.0, np.inf, np.inf
    assert turnover_path._exchange(*given) == (0.0, -2, False)
    np.testing.assert_array_equal(d, [0.2, 0.0])


@pytest.mark.parametrize("form", FORMS)
def test_a_twin_trades_when_the_other_is_done(form):
    """Two assets that are one to the objective: the first is bought up to its bound, and then the second."""
    S = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) / 10
    box = TradeLimits(np.array([0.0, 0.0, -1.0]), np.array([0.2, 0.2, 0.0]), np.zeros(3), 2.0)
    Q, g0 = Curvature(S, np.zeros((0, 0)), np.zeros(0), 1.0), np.array([1.0, 1.0, 0.0])
    d, state, _, _, count, _, _ = FORMS[form].follow_turnover_path(Q, g0, box, Cash(0.0, 0.0, 0.0, 0.0), 0.0, 100, 9)
    assert count > 0
    np.testing.assert_allclose(d, [0.2, 0.2, -0.4], atol=1e-14)
    np.testing.assert_array_equal(state[:2], [AT_UPPER, AT_UPPER])


def tied_decision(seed):
    """Small round numbers of low rank, so that assets reach their prices together and depend on each other exactly."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(3, 13))
    B = np.round(2 * rng.normal(size=(m, int(rng.integers(1, 4))))) / rng.choice([1, 2, 4])
    B = B[rng.integers(0, m // 2 + 1, m)] if seed % 2 else B
    S, steps = B @ B.T, np.round(2 * rng.normal(size=m)) / 4
    p = np.full(m, 1 / m) if seed % 5 else np.eye(m)[0]
    cash = Cash(0.1, 0.0, 0.3, np.round(2 * rng.normal()) / 4) if rng.random() < 0.4 else Cash(0.0, 0.0, 0.0, 0.0)
    box = TradeLimits(-p, np.full(m, 0.2) if rng.random() < 0.5 else 1 - p, np.zeros(m), 2.0)
    q = S @ steps if seed % 3 == 0 else steps
    return Curvature(S, np.zeros((0, 0)), np.zeros(0), 1.0), q - S @ p, box, cash


@pytest.mark.parametrize("form", FORMS)
def test_assets_that_were_tied_trade_when_the_others_are_done(form):
    """Round numbers: a tied asset waits, and the path is optimal at every breakpoint all the same."""
    ended = 0
    for seed in range(200):
        Q, g0, box, cash = tied_decision(seed)
        *_, count, points, trades = FORMS[form].follow_turnover_path(Q, g0, box, cash, 0.0, 500, 90)
        ended += count > 0
        for i in range(max(count, 0)):
            data = g0 - turnover_path.curvature_product(Q, trades[i]), 0 * g0, box.low, box.high, box.cost, points[i, 0]
            money = (cash.low, cash.high, cash.rate), cash.now
            assert turnover_duality_gap(*data, *money, trades[i], *points[i, 1:3]) < 1e-12, (seed, i)
    assert ended > 185


def test_every_compiled_function_calls_the_compiled_ones():
    """The code is that of the three files, the names it looks up are those of the compiled functions."""
    compiled, plain = turnover_kernels._compile(), {**vars(turnover_path), **vars(turnover_decision)}
    loops = {function.__name__: function for function in turnover_kernels._LOOPS}
    named = [*loops, *turnover_kernels._PATH.split(), *turnover_kernels._DECISION.split()]
    for name in named:
        function = getattr(compiled[name], "py_func", compiled[name])  # plain where numba is switched off
        source = loops.get(name, plain[name])
        assert function.__code__ is source.__code__
        assert function.__globals__ is compiled
        assert function.__module__ == source.__module__
        assert function.__qualname__.startswith(f"{name}_")  # and a digest of the sources
        for called in function.__code__.co_names:
            if getattr(plain.get(called), "__module__", "").startswith("time2decide"):
                assert called in (*named, "Curvature", "TradeLimits", "Cash"), (name, called)
    for name in ("solve_turnover_rows", "follow_turnover_path", "adjoint_turnover_rows", "solve_turnover_single"):
        assert getattr(turnover_kernels, name) is turnover_kernels._COMPILED[name]
