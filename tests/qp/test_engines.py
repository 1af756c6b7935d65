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


L1 = [(2.0, None), (0.0, 0.5), (0.5, 0.5), (2.0, 50.0)]  # penalty and radius
INSIDE = np.array([0.2, 0, 0, -0.1, 0, 0.05])


def l1_problem(seed, penalty, radius):
    """Rows, equations and bounds around a small point, with ℓ1 terms; a batch of one."""
    rng = np.random.default_rng(seed)
    M, G = rng.normal(size=(6, 7)), rng.normal(size=(4, 6))
    reach = G @ INSIDE
    return QP(
        M @ M.T, 2 * rng.normal(size=6), G[:3], reach[:3] + 0.1, E=G[3:], f=reach[3:],
        lb=INSIDE - np.array([0.05, 9, 0, 1, 9, 1]), ub=INSIDE + np.array([0.4, 0.4, 0.4, 0.4, 0, 0.4]),
        l1_penalty=penalty, l1_radius=radius,
    )  # fmt: skip


@pytest.mark.parametrize(("penalty", "radius"), [*L1, (0.0, None)])
def test_a_lifted_problem_is_the_same_problem(penalty, radius):
    """At (x, |x|) it has the objective of x, and its constraints hold where those of x do; |x| is the best t."""
    p = Arrays.of(l1_problem(0, penalty, radius))
    lifted, rng, seen = engines.lift_l1(p, 0), np.random.default_rng(1), set()
    for scale in np.linspace(0.001, 0.5, 60):
        x = INSIDE + scale * rng.normal(size=6)
        x += np.linalg.pinv(p.E[0]) @ (p.f[0] - p.E[0] @ x)
        v = x if len(lifted.g) == 6 else np.append(x, np.abs(x))
        size = np.abs(x).sum()
        value, expected = v @ lifted.H @ v / 2 + lifted.g @ v, x @ p.A[0] @ x / 2 + p.b[0] @ x + penalty * size
        assert value == pytest.approx(expected, rel=1e-12)
        ways = np.append(v, lifted.G @ v)
        holds = (ways <= lifted.high + 1e-12).all() and (ways >= lifted.low - 1e-12).all()
        within = (x >= p.lb[0]).all() and (x <= p.ub[0]).all() and (p.C[0] @ x <= p.d[0]).all()
        assert holds == (within and size <= p.radius[0])
        seen.add(holds)
        if len(v) > 6:
            less = np.append(np.zeros(6), np.where(np.arange(6) == rng.integers(6), -1e-3, 0.0))
            assert (lifted.G @ (v + less) > lifted.high[12:] + 1e-12).any()
    assert seen == {True, False}
    answer = engines.by_piqp(lifted)
    point = engines.unlift_l1(p, answer.x, answer.y)
    assert [part.shape for part in point] == [(1, 6), (1, 3), (1, 1), (1, 6)]
    np.testing.assert_allclose(answer.x[6:], np.abs(point.x[0]) if len(answer.x) > 6 else [], atol=1e-7)


@pytest.mark.parametrize(("penalty", "radius"), L1)
@pytest.mark.parametrize("seed", range(4))
def test_zeros_and_the_ball_are_polished_to_rounding(seed, penalty, radius):
    """Zeros of ℓ1 terms become exact, and the ball is met; what bounds and ℓ1 terms pull at is told apart."""
    p = Arrays.of(l1_problem(seed, penalty, radius))
    lifted = engines.lift_l1(p, 0)
    entries = engines.entries_of(lifted.H, lifted.G)
    units = engines.units_of(lifted, entries, engines.equilibration(entries, len(lifted.low)))
    interior = units.back(engines.by_piqp(engines.scaled_form(lifted, units)))
    rough = engines.unlift_l1(p, interior.x, interior.y)
    found = engines.polish_active(p, engines.polish_active(p, rough, units), units)
    rule = OptimalityRule(p)
    assert rule.residual(rough)[0] > 1e-13
    assert rule.residual(found)[0] < 1e-13
    np.testing.assert_allclose(found.x, rough.x, atol=1e-5)
    np.testing.assert_allclose(found.rows, rough.rows, atol=1e-3)
    np.testing.assert_array_equal(found.x[0] == 0, np.abs(rough.x[0]) < 1e-6)
    assert (found.x == 0).any()
    if radius is None:  # a bound at zero pulls with no more than the ℓ1 term leaves
        force = p.A[0] @ found.x[0] + p.b[0] + p.C[0].T @ found.rows[0] + p.E[0].T @ found.equal[0]
        zero = found.x[0] == 0
        np.testing.assert_array_less(np.abs(found.box[0][zero]), np.maximum(np.abs(force[zero]) - penalty, 0) + 1e-12)


def test_sparse_means_many_entries_of_which_few_are_used():
    def shape(n, rows, H, G):
        return Form(H * np.ones((n, n)) + np.eye(n), np.zeros(n), G * np.ones((rows, n)), np.zeros(0), np.zeros(0))

    assert engines.is_sparse(shape(150, 50, 0, 0))
    assert not engines.is_sparse(shape(150, 50, 1, 0))
    assert not engines.is_sparse(shape(150, 50, 0, 1))
    assert not engines.is_sparse(shape(20, 10, 0, 0))
    assert engines.is_sparse(shape(80, 80, 0, 0))  # rows count as well


@pytest.mark.parametrize("seed", range(3))
def test_a_long_chain_is_one_part(seed):
    """In whatever order its links are written."""
    rng = np.random.default_rng(seed)
    order, links = rng.permutation(40), np.zeros((39, 40))
    for i, row in enumerate(rng.permutation(39)):
        links[row, order[i : i + 2]] = 1.0
    assert (engines.connected_parts(40, engines.entries_of(links)) == 0).all()
    cut = np.delete(links, np.flatnonzero(links[:, order[20]])[0], axis=0)
    assert len(np.unique(engines.connected_parts(40, engines.entries_of(cut)))) == 2


def test_rounding_of_a_point_is_below_its_floor():
    """Variables that are off by as much as they are inexact move no residual by more, and some by as much."""
    one = form(5)
    p = arrays(one)
    rng, rule = np.random.default_rng(0), OptimalityRule(p)
    x, unit = rng.normal(size=6), rng.uniform(0.5, 2, 6)
    floor = engines.rounding_floor(rule, Point(x[None], *(np.zeros((1, k)) for k in (2, 2, 6))), unit, np.zeros(6, int))
    inexact, forces = engines.inexactness(np.abs(p.A[0]), np.abs(p.b[0]), x, unit, np.zeros(6, int))
    for part, matrix, extra in ((floor.rows, p.C, 0.0), (floor.equal, p.E, 0.0), (floor.gradient, p.A, forces)):
        corners = np.array(np.meshgrid(*[[-1, 1]] * 6)).reshape(6, -1) * inexact[:, None]
        np.testing.assert_allclose((matrix[0] @ corners).max(axis=1) + extra, part[0], rtol=1e-12)


def kkt_matrix(n, rows, seed, dependent=False):
    """A band with rows of two entries below it."""
    rng = np.random.default_rng(seed)
    K = np.zeros((n + rows, n + rows))
    K[:n, :n] = np.diag(rng.uniform(1, 2, n)) + np.diag(np.full(n - 1, 0.3), 1) + np.diag(np.full(n - 1, 0.3), -1)
    for i in range(rows):
        K[n + i, [2 * i, 2 * i + 1]] = K[[2 * i, 2 * i + 1], n + i] = 1.0, rng.uniform(-1, 1)
    if dependent:
        K[-1], K[:, -1] = K[-2], K[:, -2]
    return K


@pytest.mark.parametrize(
    ("n", "rows", "dependent", "shifted"), [(12, 5, False, False), (12, 5, True, True), (240, 100, False, True)]
)
def test_a_factorisation_says_if_it_is_one_of_a_shifted_matrix(n, rows, dependent, shifted):
    K, right = kkt_matrix(n, rows, 0, dependent), np.random.default_rng(1).normal(size=n + rows)
    right = K @ right
    apply, told = engines._factorised(K, n)
    assert told == shifted
    left = np.abs(K @ apply(right) - right).max()
    assert left < (1e-5 if shifted else 1e-13)
    assert left > 1e-12 or not shifted
    if shifted:  # up in the variables, down in the rows: what was singular is not, and keeps its signs
        shift = np.append(np.full(n, 1e-8), np.full(rows, -1e-8))
        solved = apply(right)
        assert np.abs(K @ solved + shift * solved - right).max() < 1e-3 * left


@pytest.mark.parametrize(("n", "rows"), [(12, 5), (240, 100)])
def test_systems_of_an_active_set_are_solved_to_rounding(n, rows):
    """Dense and sparse, some variables known: what is known stays, and so do multipliers of rows that say nothing."""
    K, rng = kkt_matrix(n, rows, 0), np.random.default_rng(2)
    A, G = K[:n, :n], np.vstack([K[n:, :n], np.zeros(n)])
    fixed, value = np.zeros(n, bool), rng.normal(size=n)
    fixed[[2, 3, 8]] = True
    G[-1, [2, 3]] = 1.0, 2.0  # of known variables only
    b, values = rng.normal(size=n), np.append(rng.normal(size=rows), 7.0)
    active = engines._Active(fixed, value, np.zeros(0, bool), np.zeros(n), False)
    guess = rng.normal(size=n), np.append(np.zeros(rows), 0.5)
    values[1] = G[1] @ np.where(fixed, value, 0.0)  # the row of both known variables
    x, y = engines._equality_solve(A, b, G, values, active, guess)
    np.testing.assert_array_equal(x[fixed], value[fixed])
    assert y[-1] == 0.5
    np.testing.assert_allclose(G[:-1] @ x, values[:-1], atol=1e-12)
    np.testing.assert_allclose((A @ x + b + G[:-1].T @ y[:-1])[~fixed], 0, atol=1e-12)
    everything = active._replace(fixed=np.ones(n, bool))
    x, y = engines._equality_solve(A, b, G, values, everything, guess)
    np.testing.assert_array_equal(x, value)
    np.testing.assert_array_equal(y, guess[1])


def test_what_an_engine_returned_stays_as_it_was():
    x = np.array([0.3, 0.6])
    found = engines._put_on_rows(x, np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([0.5, 1.0]))
    np.testing.assert_array_equal(found, [0.25, 0.6])
    np.testing.assert_array_equal(x, [0.3, 0.6])
    same = engines._put_on_rows(x, np.array([[1.0, 1.0]]), np.array([1.0]))
    np.testing.assert_array_equal(same, x)


@pytest.mark.parametrize("seed", range(3))
def test_a_variable_off_its_bounds_has_no_multiplier(seed):
    """Exactly none, also where a bound is zero and the forces cancel but for rounding."""
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(9, 12))
    lower = np.where(np.arange(9) % 3, 0.0, -0.2)
    p = Arrays.of(QP((M @ M.T)[None], 3 * rng.normal(size=9), lb=lower, ub=lower + 0.2))
    one = engines.lift_l1(p, 0)
    entries = engines.entries_of(one.H, one.G)
    units = engines.units_of(one, entries, engines.equilibration(entries, 9))
    answer = engines.by_daqp(one)
    found = engines.polish_active(p, engines.unlift_l1(p, answer.x, answer.y), units)
    inside = (found.x > p.lb) & (found.x < p.ub)
    assert 0 < inside.sum() < 9
    assert not found.box[inside].any()
    assert (found.box[found.x == p.lb] <= 0).all()
    assert (found.box[found.x == p.ub] >= 0).all()


def test_without_daqp_answers_come_from_the_kernel_and_piqp(monkeypatch):
    from time2decide import random_qp, solve, solve_qp

    made = random_qp(5, 6, 5, seed=3)
    singular = np.diag([1.0, 1.0, 0.0])
    expected = [solve(made[i]).x[0].numpy() for i in range(5)]
    monkeypatch.setattr(engines, "HAS_DAQP", False)
    for i in range(5):
        A, b, C, d = (tensor[i].numpy() for tensor in (made.A, made.b, made.C, made.d))
        np.testing.assert_allclose(solve_qp(A, b, C, d), expected[i], atol=1e-9)
        np.testing.assert_allclose(solve(made[i]).x[0], expected[i], atol=1e-9)
    assert solve(QP(singular, -np.ones(3), lb=0.0, ub=2.0)).status == "optimal"
    assert solve(QP(np.eye(1), [0.0], [[1.0], [-1.0]], [-1.0, -1.0])).status == "infeasible"
