"""Each engine by itself, and the steps between: the same answers to the same form, with the right multipliers."""

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from time2decide.qp import engines
from time2decide.qp.certificate import Arrays, Form, OptimalityRule, Point, is_surely_optimal
from time2decide.qp.engines import EngineAnswer
from time2decide.qp.problem import QP, cholesky_factor


def form(seed, n=6, linear=False, bounded=True):
    """min ½xᵀHx + gᵀx with rows above, below, between and equal, and bounds of every kind."""
    rng = np.random.default_rng(seed)
    G, M, inside = rng.normal(size=(8, n)), rng.normal(size=(n, n + 1)), rng.normal(size=n)
    value = np.append(inside, G @ inside)
    low, high = value - rng.exponential(0.4, n + 8), value + rng.exponential(0.4, n + 8)
    low[n : n + 2], high[n + 2 : n + 4] = -np.inf, np.inf
    low[n + 4 : n + 6] = high[n + 4 : n + 6] = value[n + 4 : n + 6]
    low[0], high[1] = -np.inf, np.inf
    if not bounded:
        low[:n], high[:n] = -np.inf, np.inf
    return Form(np.zeros((n, n)) if linear else M @ M.T, 3 * rng.normal(size=n), G, low, high)


def conditions(one, x, y):
    """The largest violation of the optimality conditions of a form, written down again."""
    n = len(x)
    value, pull = np.append(x, one.G @ x), np.where(y > 0, one.high, np.where(y < 0, one.low, 0.0))
    return max(
        np.abs(one.H @ x + one.g + y[:n] + one.G.T @ y[n:]).max(),
        (value - one.high).max(),
        (one.low - value).max(),
        np.abs(np.where(y != 0, value - pull, 0.0)).max(),
    )


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_two_engines_agree_on_every_kind_of_constraint(seed, bounded):
    one = form(seed, bounded=bounded)
    active, interior = engines.by_daqp(one), engines.by_piqp(one)
    assert conditions(one, active.x, active.y) < 1e-10
    assert is_surely_optimal(one, active.x, active.y, 1e-10)
    assert interior.sure
    np.testing.assert_allclose(interior.x, active.x, atol=1e-6)
    np.testing.assert_allclose(interior.y, active.y, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_a_vertex_has_its_multipliers(seed):
    one = form(seed, linear=True)
    found = engines.by_highs(one)
    assert conditions(one, found.x, found.y) < 1e-9
    assert (found.y[10:12] != 0).all()  # equations pull


def test_what_has_no_answer_has_none():
    apart = Form(np.eye(1), np.zeros(1), np.array([[1.0], [1.0]]), np.array([-9, -9, 2.0]), np.array([9, 1.0, 9]))
    assert engines.by_daqp(apart) is None
    assert engines.by_highs(apart) is None
    interior = engines.by_piqp(apart)
    assert interior is None or not interior.sure
    empty = Form(np.zeros((1, 1)), np.ones(1), np.zeros((0, 1)), np.array([2.0]), np.array([1.0]))
    assert engines.by_highs(empty) is None
    far = Form(np.eye(1), np.ones(1), np.array([[1.0]]), np.array([-np.inf, -np.inf]), np.array([np.inf, 1e30]))
    assert engines.by_piqp(far) is None  # a number that PIQP takes for infinity


@pytest.mark.parametrize("bounded", [True, False])
def test_other_coordinates_a_start_and_a_known_factor_change_nothing(bounded):
    """From 48 variables on, DAQP works in the coordinates in which A is the identity."""
    one = form(1, n=60, bounded=bounded)
    plain = engines.by_daqp(one)
    assert conditions(one, plain.x, plain.y) < 1e-9
    for given in ({"start": plain}, {"factor": cholesky_factor(one.H)}):
        again = engines.by_daqp(one, **given)
        np.testing.assert_allclose(again.x, plain.x, atol=1e-9)
        np.testing.assert_allclose(again.y, plain.y, atol=1e-8)
    rows = one._replace(low=np.full(68, -np.inf), high=np.append(np.full(60, np.inf), one.high[60:]))
    rows = rows._replace(high=np.where(np.isinf(rows.high[60:]), 9.0, rows.high[60:]))
    found = engines.rows_by_daqp(one.H, one.g, one.G, rows.high, cholesky_factor(one.H))
    whole = rows._replace(high=np.append(np.full(60, np.inf), rows.high))
    assert conditions(whole, found.x, np.append(np.zeros(60), found.y)) < 1e-9


def test_units_lead_there_and_back():
    """Rows and columns of size one; an answer in these units, brought back, is the answer."""
    one = form(2)
    stretch = 10.0 ** np.random.default_rng(0).uniform(-4, 4, 14)
    odd = Form(
        one.H * stretch[:6] * stretch[:6, None],
        one.g * stretch[:6],
        one.G * stretch[6:, None] * stretch[:6],
        one.low * np.append(1 / stretch[:6], stretch[6:]),
        one.high * np.append(1 / stretch[:6], stretch[6:]),
    )
    entries = engines.entries_of(odd.H, odd.G)
    by = engines.equilibration(entries, 14, rounds=20)
    K = np.block([[odd.H, odd.G.T], [odd.G, np.zeros((8, 8))]])
    np.testing.assert_allclose(np.abs(K * by * by[:, None]).max(1), 1, rtol=1e-3)
    units = engines.units_of(odd, entries, engines.equilibration(entries, 14))
    same = engines.scaled_form(odd, units)
    assert max(np.abs(same.H).max(), np.abs(same.g).max()) == pytest.approx(1, rel=1e-9)
    finite = np.abs(np.append(same.low, same.high))
    finite = finite[(finite > 0) & (finite < np.inf)]
    assert np.median(np.log(finite)) == pytest.approx(0, abs=1e-9)
    answer = units.back(engines.by_daqp(same)._replace(sure=False))
    assert not answer.sure
    expected = engines.by_daqp(one)
    np.testing.assert_allclose(answer.x * stretch[:6], expected.x, atol=1e-8)
    np.testing.assert_allclose(answer.y / np.append(stretch[:6], 1 / stretch[6:]), expected.y, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_connected_parts_are_those_of_the_graph(seed):
    rng = np.random.default_rng(seed)
    M = np.where(rng.random((9, 12)) < 0.12, 1.0, 0.0)
    parts = engines.connected_parts(12, engines.entries_of(M))
    _, expected = connected_components(M.T @ M)
    np.testing.assert_array_equal(parts[:, None] == parts, expected[:, None] == expected)
    assert (parts <= np.arange(12)).all()
    chain = np.eye(12) + np.eye(12, k=1)
    assert (engines.connected_parts(12, engines.entries_of(chain)) == 0).all()


def test_rounding_stays_within_its_part():
    """Two parts, one a billion times larger: the small one is excused for its own rounding only."""
    A, b, x = np.diag([1.0, 1.0, 1e9]), np.array([1.0, 2.0, 1e18]), np.array([1.0, -2.0, 1e9])
    inexact, forces = engines.inexactness(A, b, x, np.ones(3), np.array([0, 0, 2]))
    np.testing.assert_allclose(inexact, [2e-12, 2e-12, 1e-3])
    np.testing.assert_allclose(forces, [4e-12, 4e-12, 2e6])
    halves = engines.inexactness(A, b, x, np.array([1.0, 0.5, 1.0]), np.array([0, 0, 2]))  # units count
    np.testing.assert_allclose(halves[0], [4e-12, 2e-12, 1e-3])
    np.testing.assert_allclose(halves[1], [2e-12, 4e-12, 2e6])


def arrays(one):
    """A form with one-sided rows and equations as a batch of one."""
    return Arrays.of(QP(one.H[None], one.g, one.G[:2], one.high[6:8], E=one.G[4:6], f=one.high[10:12],
                        lb=one.low[:6], ub=one.high[:6]))  # fmt: skip


@pytest.mark.parametrize(("far", "steep"), [(1.0, 1.0), (1e6, 1.0), (1e-6, 1.0), (1.0, 1e6), (1e-3, 1e-6)])
@pytest.mark.parametrize("seed", range(4))
def test_an_active_set_is_polished_to_rounding(seed, far, steep):
    """In any units of x and of the objective."""
    one = form(seed)
    one = Form(steep / far**2 * one.H, steep / far * one.g, one.G, far * one.low, far * one.high)
    p = arrays(one)
    lifted = engines.lift_l1(p, 0)
    entries = engines.entries_of(lifted.H, lifted.G)
    units = engines.units_of(lifted, entries, engines.equilibration(entries, 10))
    exact = units.back(engines.by_daqp(engines.scaled_form(lifted, units)))
    rng = np.random.default_rng(seed)
    noise = 1e-7 * far * rng.normal(size=6), 1e-7 * steep / far * rng.normal(size=10)
    rough = engines.unlift_l1(p, exact.x + noise[0], exact.y + noise[1])
    before, after = (OptimalityRule(p).residual(point)[0] for point in (rough, engines.polish_active(p, rough, units)))
    assert before > 1e-9
    assert after < 1e-13
    apart = engines.separated_answer(p, rough, units)
    np.testing.assert_array_equal(apart.rows[0] != 0, exact.y[6:8] != 0)
    np.testing.assert_array_equal(apart.box[0] != 0, exact.y[:6] != 0)
    np.testing.assert_array_equal(apart.x[0][exact.y[:6] > 0], p.ub[0][exact.y[:6] > 0])


def test_small_entries_are_snapped_in_units_of_size_one():
    p = arrays(form(0))
    units = engines.Units(np.array([1.0, 1, 1, 1, 1, 1e-9]), np.ones(10), 1.0, 1.0)
    x = np.array([[1.0, 1e-11, 0.5, -1e-13, 2.0, 1e-9]])
    point = Point(x, np.array([[1e-11, 3.0]]), np.array([[1e-13, -1.0]]), np.array([[0, 0, 1e-9, -1e-12, 0, 1e-11]]))
    found = engines.snapped_answer(p, point, units, 1e-10)
    np.testing.assert_array_equal(found.x, [[1.0, 0, 0.5, 0, 2.0, 1e-9]])  # 1e-9 is one unit of the last
    np.testing.assert_array_equal(found.rows, [[0, 3.0]])
    np.testing.assert_array_equal(found.equal, [[0, -1.0]])
    np.testing.assert_array_equal(found.box, [[0, 0, 1e-9, 0, 0, 0]])
    small = Point(*(1e-3 * part for part in point))  # only shares count
    for part, expected in zip(engines.snapped_answer(p, small, units, 1e-10), found, strict=True):
        np.testing.assert_array_equal(part, 1e-3 * expected)


def test_singular_systems_are_solved_near_the_guess():
    """A flat direction and a row that is there twice: to rounding, and no further from the guess than needed."""
    A = np.diag([1.0, 2.0, 0.0])
    b, C = np.array([-1.0, -1.0, 0.0]), np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
    p = Arrays.of(QP(A[None], b, C, [1.0, 2.0]))
    lifted = engines.lift_l1(p, 0)
    units = engines.units_of(lifted, engines.entries_of(A, C), np.ones(5))
    guess = Point(np.array([[0.67, 0.34, 7.0]]), np.array([[0.1, 0.1]]), np.zeros((1, 0)), np.zeros((1, 3)))
    found = engines.polish_active(p, guess, units)
    np.testing.assert_allclose(found.x, [[2 / 3, 1 / 3, 7.0]], atol=1e-13)
    assert OptimalityRule(p).residual(found)[0] < 1e-13


def test_crossover_ends_at_an_active_set():
    one = form(3)
    exact = engines.by_daqp(one)
    near = exact.x + 1e-5 * np.random.default_rng(0).normal(size=6)
    *_, last = engines.crossover(one, near)
    np.testing.assert_allclose(last.x, exact.x, atol=1e-9)
    np.testing.assert_array_equal(last.y != 0, exact.y != 0)


def test_rows_of_one_entry_are_met_exactly():
    one = Form(
        np.eye(2), -np.ones(2), np.array([[3.0, 0.0], [1.0, 1.0]]), np.full(4, -np.inf), np.array([9, 9, 0.7, 0.9])
    )
    found = engines._at_bounds(one, np.array([0.23333, 0.66667]), np.array([0.0, 0, 0.1, 0.2]), True)
    assert isinstance(found, EngineAnswer)
    assert found.x[0] == 0.23333  # without a zero bound nothing needs it
    zero = one._replace(high=np.array([9, 9, 0.0, 0.9]))
    found = engines._at_bounds(zero, np.array([1e-17, 0.9]), np.array([0.0, 0, 0.1, 0.2]), True)
    np.testing.assert_array_equal(found.x, [0.0, 0.9])
