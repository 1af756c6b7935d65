"""The compiled kernel by itself: it solves what it is for, and accepts nothing that the rule would refuse."""

import numpy as np
import pytest

from time2decide.qp import bulk
from time2decide.qp.certificate import Arrays, OptimalityRule, Point


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
    np.testing.assert_equal(bulk._accept(*arrays, *parts.values(), 1e-10), True)
    np.testing.assert_equal(bulk._accept(*arrays, *parts.values(), 0.0), False)  # some rounding is left in the gap
    if part == "negative":
        parts["rows"] -= 1e-12 * (parts["rows"] == 0)
    else:
        parts[part] *= 1 + 1e-7
    np.testing.assert_equal(bulk._accept(*arrays, *parts.values(), 1e-10), False)


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
        accepted = bulk._accept(np.eye(2), b, row, d, *none, x, np.ones(1), np.zeros(0), np.zeros(2), 1e-8)
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
        assert bulk._accept(*given, x, np.zeros(0), np.zeros(1), np.zeros(2), 1e-8) == (off == 0)


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
