"""The end of the path: its certificate is a bound for every feasible portfolio, and wrong classes are put right."""

import numpy as np
import pytest

from tests.markets.test_turnover_path import KINDS, decision
from time2decide.markets import turnover_decision, turnover_kernels
from time2decide.markets.turnover_decision import (
    polish_turnover_decision,
    reclassify_assets,
    release_asset,
    turnover_duality_gap,
    turnover_duality_gaps,
)
from time2decide.markets.turnover_path import (
    AT_LOWER,
    AT_UPPER,
    BOUGHT,
    SOLD,
    UNTOUCHED,
    Curvature,
    TradeLimits,
    curvature_product,
    follow_turnover_path,
)

FORMS = {"numpy": turnover_decision, "compiled": turnover_kernels}


@pytest.fixture(autouse=True)
def _as_the_solver_runs_it():
    with np.errstate(divide="ignore", invalid="ignore"):
        yield


def _feasible(rng, box, cash):
    """Trades within the bounds and the budget that leave cash within its bounds."""
    d = rng.uniform(box.low, box.high) * (rng.random(len(box.low)) < 0.5)
    left = cash.now - d.sum() - rng.uniform(cash.low, cash.high)  # still to be traded away
    room = np.where(left > 0, box.high - d, d - box.low)
    d += np.clip(left * room / room.sum(), box.low - d, box.high - d)
    start = cash.now - np.clip(cash.now, cash.low, cash.high)
    assert start == 0
    return d * min(1.0, box.budget / np.abs(d).sum())  # no trade is feasible, and so is all between


@pytest.mark.parametrize("kind", ["definite", "cash", "bounds"])
def test_the_gap_bounds_every_gain(kind):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        Q, g0, box, cash = decision(kind, seed)

        def value(d, Q=Q, g0=g0, box=box, cash=cash):
            return g0 @ d - d @ curvature_product(Q, d) / 2 - box.cost @ np.abs(d) - cash.rate * d.sum()

        s, money = _feasible(rng, box, cash), (cash.low, cash.high, cash.rate)
        theta, nu = rng.exponential(0.2), rng.normal() / 3
        if cash.low < cash.high:
            nu += cash.rate
        data = g0 - curvature_product(Q, s), 0 * g0, box.low, box.high, box.cost, box.budget, money, cash.now
        gap = turnover_duality_gap(*data, s, theta, nu)
        others = [_feasible(rng, box, cash) for _ in range(50)]
        best = max(value(other) for other in others)
        if cash.low == cash.high:  # the rate of no cash says nothing
            assert abs(s.sum()) < 1e-12
        assert best - value(s) <= gap + 1e-12
        assert gap >= 0


@pytest.mark.parametrize("kind", ["definite", "cash"])
def test_the_gap_is_its_formula(kind):
    """Against the maximum over a fine grid of each weight, also where the current weights lie outside the bounds."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        m = 4
        lower, upper = rng.uniform(-0.2, 0.1, m), rng.uniform(0.3, 0.6, m)
        previous, s = rng.uniform(-0.3, 0.8, m), rng.uniform(lower, upper)
        cost, gradient, nu, theta = rng.exponential(0.1, m), rng.normal(size=m), rng.normal(), rng.exponential()
        budget, exposure = np.abs(s - previous).sum() + rng.normal() / 2, 1.0
        cash = (0.0, 0.0, 0.3) if kind == "definite" else (-0.5, 1.5, 0.3)
        v = np.unique(np.concatenate([np.linspace(lower, upper, 9), [np.clip(previous, lower, upper), s]]), axis=0)
        terms = (gradient - nu) * (v - s) - (cost + theta) * (np.abs(v - previous) - np.abs(s - previous))
        z = exposure - s.sum()
        free = max((cash[2] - nu) * (end - z) for end in cash[:2]) if cash[0] < cash[1] else 0.0
        expected = terms.max(0).sum() + theta * max(budget - np.abs(s - previous).sum(), 0.0) + free
        data = gradient, previous, lower, upper, cost, budget, cash, exposure, s
        assert turnover_duality_gap(*data, theta, nu) == pytest.approx(expected, rel=1e-12)
        batch = (gradient[None], *data[1:5], np.array([budget]), *data[6:8], s[None])
        assert turnover_duality_gaps(*batch, np.array([theta]), np.array([nu]))[0] == pytest.approx(expected, rel=1e-12)


NEIGHBOUR = {AT_UPPER: BOUGHT, AT_LOWER: SOLD, BOUGHT: UNTOUCHED, SOLD: UNTOUCHED}


@pytest.mark.parametrize("kind", ["definite", "cash", "bounds"])
def test_wrong_classes_are_put_right(kind):
    """One asset in a neighbouring class: mostly the same decision to rounding, and never another one."""
    tried, recovered = 0, 0
    for seed in range(20):
        Q, g0, box, cash = decision(kind, seed)
        d, state, prices, free, _, _, _ = follow_turnover_path(Q, g0, box, cash, 0.0, 500, 0)
        for who in np.flatnonzero((np.abs(state) != 1) | ((np.abs(state) == 1).sum() > 2)):
            wrong = state.copy()
            wrong[who] = NEIGHBOUR.get(state[who], BOUGHT if box.high[who] > 0 else SOLD)
            start = np.where(wrong == UNTOUCHED, 0.0, d)
            found, theta, nu, _ = polish_turnover_decision(Q, g0, box, cash, start, wrong, prices, free, 0.0)
            data = g0 - curvature_product(Q, found), 0 * g0, box.low, box.high, box.cost, box.budget
            gap = turnover_duality_gap(*data, (cash.low, cash.high, cash.rate), cash.now, found, theta, nu)
            tried += 1
            z = cash.now - found.sum()
            inside = cash.low - 1e-13 < z < cash.high + 1e-13 and np.abs(found).sum() < box.budget + 1e-13
            if gap < 1e-13 and inside:
                recovered += 1
                np.testing.assert_allclose(found, d, atol=1e-12)
                np.testing.assert_array_equal(wrong, state)
    assert recovered > 0.7 * tried > 70, (recovered, tried)


def test_cash_on_the_wrong_side_of_its_bound_is_put_right():
    """Free where it should be at a bound, and at either bound where it should be free."""
    recovered = {True: [], False: []}
    for seed in range(40):
        Q, g0, box, cash = decision("cash", seed)
        d, state, (theta, nu, z), free, _, _, _ = follow_turnover_path(Q, g0, box, cash, 0.0, 500, 0)
        for end in (cash.low, cash.high) if free else (z,):
            found, *prices, now = polish_turnover_decision(
                Q, g0, box, cash, d, state.copy(), (theta, nu, end), not free, 0.0
            )
            data = g0 - curvature_product(Q, found), 0 * g0, box.low, box.high, box.cost, box.budget
            gap = turnover_duality_gap(*data, (cash.low, cash.high, cash.rate), cash.now, found, *prices)
            recovered[free].append(gap < 1e-13 and now == free and np.abs(found - d).max() < 1e-12)
    assert sum(recovered[True]) > 0.8 * len(recovered[True]) > 8
    assert sum(recovered[False]) > 0.7 * len(recovered[False]) > 20


RECLASSIFY = [  # class, a, d, the class that fits
    (BOUGHT, 1.0, 0.1, BOUGHT),
    (BOUGHT, 1.0, -1e-9, UNTOUCHED),
    (BOUGHT, 1.0, 0.5 + 1e-9, AT_UPPER),
    (SOLD, -1.0, -0.1, SOLD),
    (SOLD, -1.0, 1e-9, UNTOUCHED),
    (SOLD, -1.0, -0.4 - 1e-9, AT_LOWER),
    (UNTOUCHED, 1.0, 0.0, UNTOUCHED),
    (UNTOUCHED, 1.0 + 1e-9, 0.0, BOUGHT),
    (UNTOUCHED, -1.0 - 1e-9, 0.0, SOLD),
    (AT_LOWER, -1.0 - 1e-9, -0.4, AT_LOWER),
    (AT_LOWER, -1.0 + 1e-9, -0.4, SOLD),
    (AT_UPPER, 1.0 + 1e-9, 0.5, AT_UPPER),
    (AT_UPPER, 1.0 - 1e-9, 0.5, BOUGHT),
]


@pytest.mark.parametrize(("old", "a", "d", "new"), RECLASSIFY)
def test_a_class_that_contradicts_itself_becomes_its_neighbour(old, a, d, new):
    state = np.array([old, UNTOUCHED])
    sides = np.array([-0.4, -1.0]), np.array([0.5, 1.0])
    changed = reclassify_assets(np.array([a, 0.0]), np.ones(2), np.array([d, 0.0]), *sides, state)
    assert (changed, state[0], state[1]) == (int(old != new), new, UNTOUCHED)


@pytest.mark.parametrize(("a", "low", "high"), [(2.0, -1.0, 0.0), (-2.0, 0.0, 1.0)])
def test_what_has_no_room_stays_untouched(a, low, high):
    state = np.array([UNTOUCHED])
    assert reclassify_assets(np.array([a]), np.ones(1), np.zeros(1), np.array([low]), np.array([high]), state) == 0
    assert state[0] == UNTOUCHED


@pytest.mark.parametrize("side", [1, -1])
def test_the_budget_frees_an_asset_of_the_other_side(side):
    """All of T buys: with turnover to spare the one nearest to selling sells, with too much a seller comes back."""
    box = TradeLimits(np.full(5, -0.4), np.full(5, 0.4), np.full(5, 0.1), 0.5)
    a = side * np.array([0.3, 0.3, -0.25, -0.1, -0.29])
    theta = 0.2
    d = side * np.array([0.1, 0.1, 0.0, 0.0, 0.0])
    state = side * np.array([BOUGHT, BOUGHT, UNTOUCHED, UNTOUCHED, UNTOUCHED])
    assert release_asset(a, box, d, state, theta) == 1
    np.testing.assert_array_equal(state, side * np.array([1, 1, 0, 0, -1]))
    assert release_asset(a, box, d, state, theta) == 0  # both sides trade now
    d = side * np.array([0.3, 0.3, -0.4, 0.0, -0.4])
    state = side * np.array([1, 1, -2, 0, -2])
    assert release_asset(a, box, d, state, theta) == 1
    np.testing.assert_array_equal(state, side * np.array([1, 1, -2, 0, -1]))
    state, d = side * np.array([1, 1, 0, 0, 0]), side * np.array([0.25, 0.25, 0.0, 0.0, 0.0])
    assert release_asset(a, box, d, state, theta) == 0  # the turnover is γ
    assert release_asset(a, box, d, np.zeros(5, int), theta) == 0
    full = box._replace(low=np.zeros(5)) if side > 0 else box._replace(high=np.zeros(5))
    assert release_asset(a, full, 0.5 * d, state, theta) == 0  # none has room


def single(**changes):
    """`solve_turnover_single` of a good decision with some arguments changed."""
    rng = np.random.default_rng(0)
    G = rng.normal(size=(4, 6))
    given = {"mean": rng.normal(size=4), "S": G @ G.T, "previous": np.full(4, 0.25)}
    form = changes.pop("form")
    given |= {name: change(given[name]) for name, change in changes.items()}
    return FORMS[form].solve_turnover_single(*given.values(), 0.5, 0.3, 0.01)


def _asymmetric(S):
    S = S.copy()
    S[3, 0] *= 1 + 1e-12
    return S


@pytest.mark.parametrize("form", FORMS)
def test_one_decision_from_its_data(form):
    s, _, theta, nu, gap, count = single(form=form)
    assert count >= 0
    assert gap < 1e-13
    assert s.sum() == pytest.approx(1, abs=1e-14)
    assert theta > 0
    moved = single(form=form, mean=lambda mean: mean + 7.0)
    np.testing.assert_allclose(moved[0], s, atol=1e-12)
    assert moved[3] == pytest.approx(nu + 7.0, abs=1e-10)  # ν is the price of exposure in the units given
    for change in (
        {"mean": lambda mean: np.where(np.arange(4) == 2, np.nan, mean)},
        {"S": _asymmetric},
        {"S": lambda S: 0 * S},
        {"S": lambda S: S[:3]},
        {"S": lambda S: S[:, :3].copy()},
        {"previous": lambda p: p[:3]},
        {"previous": lambda p: p + np.array([1e-3, 0, 0, 0])},
        {"previous": lambda p: p + np.array([-0.5, 0.25, 0, 0])},  # what is positive sums to 1
    ):
        assert single(form=form, **change)[-1] == -1
    rounding = single(form=form, previous=lambda p: p + np.array([1e-9, 0, 0, 0]))
    assert rounding[-1] >= 0
    assert rounding[0].sum() == pytest.approx(1, abs=1e-14)
    with pytest.raises(np.linalg.LinAlgError):
        single(form=form, S=lambda S: S - 2 * np.diag(S.diagonal()))


@pytest.mark.parametrize("off", [-5e-13, 0.0, 5e-13])
@pytest.mark.parametrize("end", [0.0, 0.3])
def test_cash_that_misses_a_bound_by_rounding_is_at_it(end, off):
    Q, g0, box, _ = decision("definite", 1)
    p = np.full(9, (1 - end - off) / 9)
    for rate in (-9.0, 0.0, 9.0):  # it leaves the bound, or stays there
        money = np.array([0.0, 0.3, rate])
        given = g0, p, np.zeros(9), np.ones(9), box.cost, 0.5, money, 1.0, np.zeros(9, int), False
        s, _, _, gap, count = turnover_decision._solve_one(Q, *given)
        assert count >= 0
        assert gap <= 1e-12
        assert -1e-12 <= 1 - s.sum() <= 0.3 + 1e-12


@pytest.mark.parametrize("form", FORMS)
def test_matrices_are_finite_symmetric_and_semidefinite(form):
    check = FORMS[form].validate_turnover_matrices
    good = np.stack([np.eye(3), np.ones((3, 3)), np.zeros((3, 3)), 1e-30 * np.eye(3)])
    assert check(good)
    bad = good.copy()
    bad[1, 2, 0] += 1e-15
    assert not check(bad)
    bad = good.copy()
    bad[3, 1, 1] = np.inf
    assert not check(bad)
    for least, unit in ((-1e-9, 1.0), (-1e-3, 1.0), (-1e-9, 1e-20), (-1e-3, 1e-20), (-1e-9, 1e20), (-1e-3, 1e20)):
        matrix = unit * np.diag([1.0, 1.0, least])[None]  # relative to the largest entry
        if least < -1e-6:
            with pytest.raises(np.linalg.LinAlgError):
                check(matrix)
        else:
            assert check(matrix)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no risk"])
def test_a_decision_has_the_certificate_that_it_names(form, kind):
    """θ, ν and the gap of the report, in the units of the data and relative to their size."""
    for seed in range(6):
        Q, g0, box, cash = decision(kind, seed)
        rng = np.random.default_rng(seed)
        m, unit = 9, 10.0 ** rng.uniform(-4, 4)
        p = rng.dirichlet(np.ones(m)) * (1 - cash.now)
        Q = Curvature(Q.S, Q.B, Q.D, Q.factor * unit)
        q = unit * g0 + curvature_product(Q, p) + 3 * unit
        data = p, box.low + p, box.high + p, unit * box.cost, box.budget
        money = np.array([cash.low, cash.high, unit * (cash.rate + 3)])
        weights, report, classes = np.empty((1, m)), np.empty((1, 4)), np.zeros((1, m), np.int64)
        given = [np.ascontiguousarray(v)[None] for v in (Q.S, Q.B, Q.D)]
        rows = [np.ascontiguousarray(v)[None] for v in (q, *data[:4])]
        FORMS[form].solve_turnover_rows(
            *given, np.zeros(1, np.int64), np.array([Q.factor]), *rows, np.array([box.budget]), money[None],
            np.ones(1), classes, False, weights, report,
        )  # fmt: skip
        s, (theta, nu, gap, count) = weights[0], report[0]
        if count < 0:  # left to the second family of solvers
            assert kind not in ("definite", "bounds", "factors")
            continue
        gradient = q - curvature_product(Q, s)
        again = turnover_duality_gap(gradient, *data, money, 1.0, s, theta, nu)
        assert again <= 1e-12 * unit
        assert gap <= 1e-13 or kind not in ("definite", "bounds", "factors")
        assert theta >= 0
        assert np.abs(s - p).sum() <= box.budget + 1e-12
        assert cash.low - 1e-12 <= 1 - s.sum() <= cash.high + 1e-12
        warm = weights.copy()
        FORMS[form].solve_turnover_rows(
            *given, np.zeros(1, np.int64), np.array([Q.factor]), *rows, np.array([box.budget]), money[None],
            np.ones(1), classes, True, warm, report,
        )  # fmt: skip
        np.testing.assert_allclose(warm, weights, atol=1e-10 if kind in ("definite", "bounds", "factors") else 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["definite", "factors", "cash", "bounds"])
def test_the_adjoint_is_the_slope_of_a_decision(form, kind):
    """Means, current weights and the budget move at once: a weighted sum of the weights follows."""
    compared, binds = 0, set()
    for seed in range(12):
        Q, g0, box, cash = decision(kind, seed)
        rng = np.random.default_rng(seed)
        p = rng.dirichlet(np.ones(9)) * (1 - cash.now)
        q, money = g0 + curvature_product(Q, p), np.array([cash.low, cash.high, cash.rate])
        bounds = p + box.low, p + box.high

        def decide(step, way, Q=Q, q=q, p=p, bounds=bounds, box=box, money=money):
            state = np.zeros(9, np.int64)
            moved = q + step * way[0], p + step * way[1], *bounds, box.cost, box.budget + step * way[2]
            s, theta, _, _, count = turnover_decision._solve_one(Q, *moved, money, 1.0, state, False)
            assert count >= 0
            return s, theta, state

        v, inside = rng.normal(size=9), (box.low < -1e-3) & (box.high > 1e-3)
        shift = np.where(inside, rng.normal(size=9), 0.0)
        shift[inside] -= shift[inside].mean()  # what is held stays, and within the bounds
        way = rng.normal(size=9), shift, rng.normal()
        s, theta, state = decide(0.0, way)
        (ahead, _, after), (behind, _, before) = decide(1e-7, way), decide(-1e-7, way)
        if (after != state).any() or (before != state).any():
            continue
        z, y, prices, previous = 1 - s.sum(), np.full((1, 9), 9.0), np.full((1, 2), 9.0), np.full((1, 9), 9.0)
        free = np.array([cash.low + 1e-12 < z < cash.high - 1e-12])
        FORMS[form].adjoint_turnover_rows(
            Q.S[None], Q.B[None], Q.D[None], np.zeros(1, np.int64), np.array([Q.factor]), state[None],
            np.array([theta > 0]), free, v[None], y, prices, previous,
        )  # fmt: skip
        slope = y[0] @ way[0] + previous[0] @ way[1] + prices[0, 1] * way[2]
        assert slope == pytest.approx(v @ (ahead - behind) / 2e-7, rel=1e-4, abs=1e-5)
        compared, binds = compared + 1, binds | {theta > 0}
    assert compared >= 6
    assert True in binds


def test_a_decision_without_trades_follows_the_current_weights():
    y, prices, previous = np.full((1, 3), 9.0), np.full((1, 2), 9.0), np.full((1, 3), 9.0)
    state, v = np.array([[UNTOUCHED, AT_UPPER, AT_LOWER]]), np.array([[1.0, 2.0, 3.0]])
    none = np.zeros((1, 0, 0)), np.zeros((1, 0)), np.zeros(1, np.int64), np.ones(1)
    turnover_decision.adjoint_turnover_rows(
        np.eye(3)[None], *none, state, np.array([True]), np.array([False]), v, y, prices, previous
    )
    np.testing.assert_array_equal(previous, [[1.0, 0, 0]])
    assert not y.any()
    assert not prices.any()
