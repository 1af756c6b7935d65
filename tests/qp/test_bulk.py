"""The compiled kernel by itself: it solves what it is for, and accepts nothing that the rule would refuse."""

import numpy as np
import pytest

from time2decide import QP, InputError, solve
from time2decide.qp import bulk
from time2decide.qp.certificate import Arrays, OptimalityRule, Point, is_optimal
from time2decide.qp.plain_arrays import solve_plain_arrays


def problems(seed, batch=24, n=6, m=5, p=2, boxed=True):
    """Definite problems around a feasible point, most of whose constraints matter."""
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(batch, n, n + 2))
    inside = rng.normal(size=(batch, n))
    C, E = rng.normal(size=(batch, m, n)), rng.normal(size=(batch, p, n))
    far = np.full((batch, n), np.inf)
    return Arrays(
        G @ G.transpose(0, 2, 1),
        4 * rng.normal(size=(batch, n)),
        C,
        np.einsum("bij,bj->bi", C, inside) + rng.exponential(0.3, (batch, m)),
        E,
        np.einsum("bij,bj->bi", E, inside),
        inside - rng.exponential(0.5, (batch, n)) if boxed else -far,
        inside + rng.exponential(0.5, (batch, n)) if boxed else far,
        np.zeros(batch),
        np.full(batch, np.inf),
    )


@pytest.mark.parametrize("boxed", [True, False])
@pytest.mark.parametrize("p", [0, 1, 3])
@pytest.mark.parametrize("m", [0, 1, 8])
def test_nothing_is_left_to_the_careful_path(m, p, boxed):
    """Definite problems with independent constraints are all solved here, to rounding."""
    given = problems(10 * m + p, m=m, p=p, boxed=boxed)
    point, solved = bulk.solve_bulk(given, 1e-10, 1)
    assert solved.all()
    assert (OptimalityRule(given).residual(point) <= 1e-11).all()
    assert np.abs(np.einsum("bij,bj->bi", given.E, point.x) - given.f).max(initial=0) < 1e-12
    assert (point.x >= given.lb).all()
    assert (point.x <= given.ub).all()
    assert (point.rows >= 0).all()
    if boxed:
        assert (point.box > 0).any()
        assert (point.box < 0).any()
        np.testing.assert_array_equal(point.x[point.box > 0], given.ub[point.box > 0])
        np.testing.assert_array_equal(point.x[point.box < 0], given.lb[point.box < 0])


def test_dependent_rows_contradictions_and_singular_matrices_are_left():
    given = problems(0, batch=5, p=1, boxed=False)
    A, C, d, E, f = (array.copy() for array in (given.A, given.C, given.d, given.E, given.f))
    A[1] = np.ones((6, 6))  # singular
    C[2, 1], d[2, 0], d[2, 1] = -C[2, 0], -1.0, -1.0  # contradictory rows
    E[3] = 0.0  # an equation of nothing
    _, solved = bulk.solve_bulk(given._replace(A=A, C=C, d=d, E=E, f=f), 1e-10, 1)
    np.testing.assert_array_equal(solved, [True, False, False, False, True])


@pytest.mark.parametrize("part", ["x", "rows", "equal", "box", "negative"])
def test_a_point_that_is_off_is_not_accepted(part):
    given = problems(3, batch=1)
    point, solved = bulk.solve_bulk(given, 1e-10, 1)
    assert solved[0]
    assert point.rows.any()
    parts = {name: value[0].copy() for name, value in zip(Point._fields, point, strict=True)}
    arrays = [array[0] for array in given[:8]]
    space = np.empty(6), np.empty(6)
    np.testing.assert_equal(bulk._accept(*arrays, *parts.values(), 1e-10, *space), True)
    left = bulk._accept(*arrays, *parts.values(), 0.0, *space)  # some rounding is left in the gap
    np.testing.assert_equal(left, False)
    if part == "negative":
        parts["rows"] -= 1e-12 * (parts["rows"] == 0)
    else:
        parts[part] *= 1 + 1e-7
    np.testing.assert_equal(bulk._accept(*arrays, *parts.values(), 1e-10, *space), False)


def test_every_part_of_a_batch_is_run_once():
    for batch, threads in ((1, 4), (7, 2), (100, 3)):
        runs = []
        bulk.bulk_in_parts(lambda begin, end, runs=runs: runs.append((begin, end)), batch, threads)
        assert sorted(i for begin, end in runs for i in range(begin, end)) == list(range(batch))
        assert all(begin < end for begin, end in runs)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_no_more_threads_are_asked_for_than_may_run(threads, monkeypatch):
    """The caller is one of them; what the others have not begun when it is done is called off."""
    asked, called_off = [], []

    class Waiting:
        def cancel(self):
            called_off.append(self)
            return True

    class Pool:
        def submit(self, task):
            asked.append(task)
            return Waiting()

    monkeypatch.setattr(bulk, "_pool", [Pool()])
    runs = []
    bulk.bulk_in_parts(lambda begin, end: runs.append((begin, end)), 100, threads)
    assert len(asked) == len(called_off) == threads - 1
    assert sum(end - begin for begin, end in runs) == 100
    for task in asked:  # nothing is left for one that comes late
        task()
    assert sum(end - begin for begin, end in runs) == 100


def test_a_multiplier_on_a_row_with_slack_is_a_gap():
    """Feasible, and all forces cancel, but the row that is said to push is not reached."""
    x, row = np.array([1.0, -2.0]), np.array([[1.0, 1.0]])
    none = np.zeros((0, 2)), np.zeros(0), np.full(2, -np.inf), np.full(2, np.inf)
    for slack in (0.0, 1e-3):
        b, d = -x - row[0], row @ x + slack
        accepted = bulk._accept(
            np.eye(2), b, row, d, *none, x, np.ones(1), np.zeros(0), np.zeros(2), 1e-8, *np.empty((2, 2))
        )
        assert accepted == (slack == 0)


@pytest.mark.parametrize("unit", [1e-12, 1e9])
@pytest.mark.parametrize("part", ["rows", "equations", "objective"])
def test_units_of_rows_and_objective_do_not_matter(part, unit):
    given = problems(7, m=8, p=2)
    expected, _ = bulk.solve_bulk(given, 1e-10, 1)
    names = {"rows": ("C", "d"), "equations": ("E", "f"), "objective": ("A", "b")}[part]
    same, solved = bulk.solve_bulk(given._replace(**{name: unit * getattr(given, name) for name in names}), 1e-10, 1)
    assert solved.all()
    np.testing.assert_allclose(same.x, expected.x, atol=1e-10)


def test_an_equation_that_does_not_hold_is_not_accepted():
    """All forces cancel, and nothing else is off."""
    x, row = np.array([1.0, -2.0]), np.array([[1.0, 1.0]])
    for off in (0.0, 1e-6, -1e-6):
        given = np.eye(2), -x, np.zeros((0, 2)), np.zeros(0), row, row @ x + off, np.full(2, -9.0), np.full(2, 9.0)
        assert bulk._accept(*given, x, np.zeros(0), np.zeros(1), np.zeros(2), 1e-8, *np.empty((2, 2))) == (off == 0)


@pytest.mark.parametrize("seed", range(3))
def test_one_correction_leads_to_the_answer_of_the_active_set(seed):
    """From a point and multipliers that are far off: the equations of the active set are linear."""
    A, b, C, d, E, f, lb, ub = (array[0] for array in problems(seed, batch=1)[:8])
    n, m, p = 6, 5, 2
    J, L, R = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n + 1))
    x, y, r, z = np.zeros(n), np.zeros(n + 1), np.zeros(n + 1), np.zeros(n)
    size, dv, normal = np.zeros(n), np.zeros(n), np.zeros(n)
    active, used = np.zeros(n + 1, np.int64), np.zeros(p + m + 2 * n, np.bool_)
    q = bulk._solve(A, b, C, d, E, f, lb, ub, True, J, L, R, x, size, y, r, z, dv, normal, active, used)
    assert q > p
    rng, answer, pulls = np.random.default_rng(seed), x.copy(), y[:q].copy()
    x += rng.normal(size=n)
    y[:q] += rng.normal(size=q)
    bulk._correct(A, b, C, d, E, f, lb, ub, J, R, x, y, r, z, dv, normal, active, q)
    np.testing.assert_allclose(x, answer, atol=1e-11)
    np.testing.assert_allclose(y[:q], pulls, atol=1e-10)


def test_a_problem_in_a_batch_has_the_answer_that_it_has_alone():
    """To the last bit, whatever was solved before it in the same memory: huge numbers, something singular."""
    given = problems(11, batch=7, m=8)
    A, b = given.A.copy(), given.b.copy()
    A[3], b[4] = 1.0, 1e9 * b[4]
    given = given._replace(A=A, b=b)
    point, good = bulk.solve_bulk(given, 1e-10, 1)
    np.testing.assert_array_equal(good, np.arange(7) != 3)
    for i in np.flatnonzero(good):
        alone, _ = bulk.solve_bulk(given.at(slice(i, i + 1)), 1e-10, 1)
        for whole, part in zip(point, alone, strict=True):
            np.testing.assert_array_equal(whole[i], part[0])


@pytest.mark.parametrize("seed", range(3))
def test_a_definite_matrix_has_a_factor_and_its_inverse(seed):
    rng = np.random.default_rng(seed)
    G, J, L = rng.normal(size=(5, 7)), np.full((5, 5), 9.0), np.zeros((5, 5))
    np.testing.assert_equal(bulk._factorise(G @ G.T, J, L, 5), True)
    np.testing.assert_allclose(L @ L.T, G @ G.T, atol=1e-12)
    np.testing.assert_allclose(J @ L, np.eye(5), atol=1e-12)
    G[4] = G[1] + G[2]
    np.testing.assert_equal(bulk._factorise(G @ G.T, J, L, 5), False)
    nearly = np.diag([1.0, 1.0, 1.0, 1.0, 1.0])
    nearly[3, 4] = nearly[4, 3] = 1 - 1e-13  # definite, but not safely
    np.testing.assert_equal(bulk._factorise(nearly, J, L, 5), False)


def test_every_constraint_has_its_normal_and_bound():
    """Equations, rows, upper and lower bounds in this order, each as cᵀx ≤ bound."""
    _, _, C, d, E, f, lb, ub = (array[0] for array in problems(1, n=4, m=3, p=2, batch=1)[:8])
    normals = np.vstack([E, C, np.eye(4), -np.eye(4)])
    bounds = np.concatenate([f, d, ub, -lb])
    out = np.empty(4)
    for index in range(len(bounds)):
        bulk._normal(index, C, E, 3, 2, 4, out)
        np.testing.assert_array_equal(out, normals[index])
        assert bulk._bound(index, d, f, lb, ub, 3, 2, 4) == bounds[index]


@pytest.mark.parametrize("boxed", [True, False])
def test_the_most_violated_constraint_is_the_one_that_misses_most_beside_its_terms(boxed):
    found = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        _, _, C, d, _, _, lb, ub = (array[0] for array in problems(seed, n=4, m=3, p=2, batch=1)[:8])
        x, used = rng.normal(size=4), rng.random(2 + 3 + 8) < 0.3
        share = np.concatenate(
            [
                (C @ x - d) / (np.abs(C) @ np.abs(x) + np.abs(d)),
                (x - ub) / (np.abs(x) + np.abs(ub)),
                (lb - x) / (np.abs(x) + np.abs(lb)),
            ]
        )
        share = np.where(used[2:], -np.inf, share)[: 11 if boxed else 3]
        which = bulk._most_violated(C, d, lb, ub, x, np.abs(x), used, 3, 2, 4, boxed)
        assert (which == -1) == (share.max() <= 0)
        assert which == -1 or share[which - 2] >= share.max() - 1e-12  # of two on the wrong side of zero, either
        found.add(which)
    assert found >= ({2, 3, 4, 5, 8, 9, 12} if boxed else {-1, 2, 3, 4})


@pytest.mark.parametrize("seed", range(4))
def test_rotations_keep_what_the_method_knows_of_its_active_set(seed):
    """JAJᵀ = I, and JN is R above zeros, whichever constraints have come and gone."""
    rng = np.random.default_rng(seed)
    n = 6
    G = rng.normal(size=(n, n + 2))
    A, J, L, R = G @ G.T, np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n + 1))
    bulk._factorise(A, J, L, n)
    normals, active, y = [], np.zeros(n + 1, np.int64), np.zeros(n + 1)

    def holds():
        q = len(normals)
        product = J @ np.array(normals).reshape(q, n).T
        np.testing.assert_allclose(J @ A @ J.T, np.eye(n), atol=1e-11)
        np.testing.assert_allclose(np.triu(R[:q, :q]), product[:q], atol=1e-11)
        np.testing.assert_allclose(product[q:], 0, atol=1e-11)

    for count, name in ((4, 0), (2, 10)):
        for i in range(count):
            normals.append(rng.normal(size=n) * (rng.random(n) < 0.7))
            active[len(normals) - 1], y[len(normals) - 1] = name + i, name + i + 0.5
            q, dv = len(normals) - 1, J @ normals[-1]
            bulk._add(J, R, dv, J[q:].T @ dv[q:], dv[q:] @ dv[q:], q, n)
            holds()
        for place in (1, 0, len(normals) - 3):
            left = [int(one) for one in np.delete(active[: len(normals)], place)]
            bulk._drop(J, R, active, y, place, len(normals), n)
            del normals[place]
            holds()
            assert active[: len(normals)].tolist() == left
            np.testing.assert_array_equal(y[: len(normals)], np.array(left) + 0.5)
            if len(normals) < 3:
                break


@pytest.mark.parametrize("place", range(3))
def test_a_row_of_one_entry_puts_its_variable_on_the_bound(place):
    x, row = np.array([0.1, 0.2, 0.3]), np.zeros(3)
    bulk._put_on_row(row, 5.0, x, 3)  # says nothing
    row[place] = -2.0
    expected = x.copy()
    expected[place] = 2.5
    bulk._put_on_row(row, -5.0, x, 3)
    np.testing.assert_array_equal(x, expected)
    row[(place + 1) % 3] = 1.0
    bulk._put_on_row(row, 7.0, x, 3)
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("kind", ["row", "equation", "force"])
@pytest.mark.parametrize(("share", "good"), [(0.5, True), (2.0, False)])
def test_what_is_missed_is_compared_with_the_terms_of_its_sum(kind, share, good):
    """Two terms of 1e6 that leave 1: a miss of 5e-12 of their sum is accepted, and four times as much is not."""
    x, line, bound = np.array([1e6, 1.0 - 1e6]), np.array([[1.0, 1.0]]), np.array([1.0])
    miss, none = share * 1e-11 * 2e6, (np.zeros((0, 2)), np.zeros(0))
    rows, b = np.zeros(0), -x
    C, d, E, f = (*none, *none)
    if kind == "row":
        C, d, rows = line, bound - miss, np.zeros(1)
    elif kind == "equation":
        E, f = line, bound - miss
    else:
        b = b + miss / 2 * np.array([1.0, 0.0])
    far = np.full(2, np.inf)
    given = np.eye(2), b, C, d, E, f, -far, far, x, rows, np.zeros(len(f)), np.zeros(2)
    np.testing.assert_equal(bulk._accept(*given, 1e-8, *np.empty((2, 2))), good)


def test_one_problem_at_a_time_has_the_answer_of_the_careful_path():
    """The kernel for plain arrays, with everything that can be left out and with everything."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, m = int(rng.integers(1, 12)), int(rng.integers(1, 10))
        G, inside = rng.normal(size=(n, n)), rng.normal(size=n)
        C, E = rng.normal(size=(m, n)), rng.normal(size=(max(1, n // 3), n))
        parts = [G @ G.T + np.eye(n), 3 * rng.normal(size=n), C, C @ inside + rng.uniform(0, 1, m), E, E @ inside]
        parts += [inside - rng.uniform(0, 1, n), inside + rng.uniform(0, 1, n)]
        parts = [p if i < 2 or rng.random() < 0.7 else None for i, p in enumerate(parts)]
        for pair in ((2, 3), (4, 5)):
            if any(parts[i] is None for i in pair):
                parts[pair[0]] = parts[pair[1]] = None
        A, b, C, d, E, f, lb, ub = parts
        found = solve_plain_arrays(*parts)
        assert found is not None
        careful = solve(QP(A, b, C, d, E=E, f=f, lb=lb, ub=ub).as_inequalities())
        np.testing.assert_allclose(found[0], careful.x, atol=1e-9)
        point = [found[0], *np.split(found[1], [0 if d is None else len(d), len(found[1]) - n])]
        none = np.zeros((1, 0))
        point = [none if part is None else part[None] for part in point]
        assert is_optimal(Arrays.of(QP(A, b, C, d, E=E, f=f, lb=lb, ub=ub)), Point(*point), 1e-11)[0]


@pytest.mark.parametrize(
    "change",
    [
        {"A": np.array([[1.0, 0.1], [0.0, 1.0]])},
        {"A": np.array([[1.0, 2.0], [2.0, 1.0]])},
        {"A": np.array([[1.0, 1.0], [1.0, 1.0]])},
        {"A": np.eye(2, dtype=np.float32)},
        {"A": np.asfortranarray(np.array([[2.0, 1.0], [1.0, 2.0]]))},
        {"b": np.array([np.nan, 0.0])},
        {"b": np.array([np.inf, 0.0])},
        {"b": np.array([1e200, 0.0])},
        {"b": [1.0, 2.0]},
        {"d": np.array([np.inf])},
        {"d": np.array([1e25])},
        {"d": np.array([-1.0, 1.0])},
        {"C": None},
        {"C": np.array([[0.0, 0.0]]), "d": np.array([-1.0])},
        {"lb": np.array([np.nan, 0.0])},
        {"lb": np.array([np.inf, 0.0])},
        {"lb": np.array([1.0, 0.0]), "ub": np.zeros(2)},
    ],
)
def test_what_takes_care_is_left_to_the_careful_path(change):
    given = {"A": np.eye(2), "b": -np.ones(2), "C": np.ones((1, 2)), "d": np.ones(1)}
    given |= {"E": None, "f": None, "lb": None, "ub": None}
    assert solve_plain_arrays(**given) is not None
    assert solve_plain_arrays(**given | change) is None


@pytest.mark.parametrize("boxed", [False, True])
def test_an_answer_from_the_active_set_of_another_is_that_from_nothing(boxed):
    """A sequence that moves a little, then a start that has nothing to do with the problem."""
    rng = np.random.default_rng(4)
    n, kept = 12, 0
    G, rows = rng.normal(size=(n, n)), np.vstack([-np.eye(n), np.ones((1, n)), rng.normal(size=(3, n))])
    A, d, E = G @ G.T / n + 0.1 * np.eye(n), np.append(np.zeros(n), [1.0, 0.5, 0.5, 0.5]), rng.normal(size=(1, n))
    b = rng.normal(size=n)
    more = {"E": E, "f": np.zeros(1), "lb": np.zeros(n), "ub": np.full(n, 0.3)} if boxed else {}
    before = solve(QP(A, b, rows, d, **more))
    for _ in range(20):
        b = b + 0.1 * rng.normal(size=n)
        warm, cold = (solve(QP(A, b, rows, d, **more), initial=start) for start in ((before.x, before.dual), None))
        np.testing.assert_allclose(warm.x, cold.x, atol=1e-11)
        assert warm.status == "optimal"
        assert warm.kkt_residual < 1e-11
        kept += np.array_equal(before.dual > 0, warm.dual > 0)
        before = warm
    assert 0 < kept < 20
    wrong = solve(QP(A, b, rows, d, **more), initial=(rng.normal(size=n), rng.exponential(size=len(d))))
    np.testing.assert_allclose(wrong.x, before.x, atol=1e-11)
    with pytest.raises(InputError, match="initial dual"):
        solve(QP(A, b, rows, d, **more), initial=(before.x, np.full(len(d), np.nan)))
