"""The compiled path in the price of ‖x‖₁: the answers of the careful way, zeros that are zeros, ties left alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from time2decide import QP, random_qp, solve
from time2decide.qp import l1_path
from time2decide.qp.certificate import Arrays
from time2decide.qp.exact import solve_exact, solve_exact_one
from time2decide.qp.l1_path import solve_l1


@pytest.mark.parametrize(("kind", "n"), [("R", 1), ("R", 7), ("R", 30), ("C", 1), ("C", 7), ("C", 30)])
def test_agrees_with_the_careful_way(kind, n):
    p = Arrays.of(random_qp(40, n, 0, kind=kind, seed=n))
    point, solved = solve_l1(p, 1e-12)
    assert solved.all()
    for i in range(0, 40, 5):
        one, status = solve_exact_one(p.at(slice(i, i + 1)), 1e-8)
        assert status == "optimal"
        np.testing.assert_allclose(point.x[i], one.x[0], rtol=0, atol=1e-10)
        np.testing.assert_array_equal(point.x[i] == 0, one.x[0] == 0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), far=st.floats(-6, 6))
def test_penalty_and_radius_together_in_any_units(seed, n, far):
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(32, n, n + 2))
    A, b = G @ G.transpose(0, 2, 1), rng.normal(size=(32, n))
    penalty, radius = rng.exponential(0.3, 32) * (rng.random(32) < 0.7), rng.exponential(0.5, 32)
    radius[rng.random(32) < 0.3] = 0.0
    answer = solve(QP(A, b, l1_penalty=penalty, l1_radius=radius))
    assert set(answer.status) == {"optimal"}
    assert (np.abs(answer.x).sum(1) <= radius * (1 + 1e-12)).all()
    unit = 10.0**far  # of x
    same = solve(QP(A, b * unit, l1_penalty=penalty * unit, l1_radius=radius * unit))
    np.testing.assert_allclose(same.x / unit, answer.x, rtol=1e-9, atol=1e-12)


def test_ties_and_singular_matrices_are_answered_with_the_rest():
    A = np.stack([np.eye(3), np.ones((3, 3)), np.zeros((3, 3)), np.eye(3)] * 10)
    b = np.stack([[-1.0, -1.0, -1.0], [-1.0, -1.0, -0.2], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]] * 10)
    answer = solve(QP(A, b, l1_radius=np.full(40, 1.5)))
    assert set(answer.status) == {"optimal"}
    np.testing.assert_allclose(answer.x[0], 0.5)
    np.testing.assert_allclose(answer.objective, np.tile([-1.125, -0.78, -1.5, 0.0], 10), atol=1e-9)
    unbounded = solve(QP(A, b, l1_penalty=np.full(40, 0.5)))
    assert list(unbounded.status[:4]) == ["optimal", "optimal", "unbounded", "optimal"]


@pytest.mark.parametrize("kind", ["LC", "C"])
def test_threads_change_nothing(kind):
    qp = random_qp(999, 6, 4 if kind == "LC" else 0, kind=kind, seed=0)
    one, two, many = (solve_exact(qp, workers=count) for count in (1, 2, 5))
    assert (one.x == two.x).all()
    assert (one.x == many.x).all()


def test_a_problem_in_a_batch_has_the_answer_that_it_has_alone():
    """To the last bit, whatever was solved before it in the same memory: huge numbers, something singular."""
    rng = np.random.default_rng(0)
    G = rng.normal(size=(7, 5, 6))
    A, b, penalty = G @ G.transpose(0, 2, 1), rng.normal(size=(7, 5)), np.full(7, 0.1)
    v = np.array([1.0, 2.0, 0.0, 0.0, 0.0])
    A[3], b[3], b[4], penalty[4] = np.outer(v, v), [-1.0, -2.5, 0.0, 0.0, 0.0], 1e9 * b[4], 1e8
    p = Arrays.of(QP(A, b, l1_penalty=penalty, l1_radius=np.where(np.arange(7) % 3 == 1, 0.2, 1e6)))
    point, solved = l1_path.solve_l1(p, 1e-12, 1)
    np.testing.assert_array_equal(solved, np.arange(7) != 3)
    for i in np.flatnonzero(solved):
        alone, _ = l1_path.solve_l1(p.at(slice(i, i + 1)), 1e-12, 1)
        np.testing.assert_array_equal(point.x[i], alone.x[0])


def test_a_path_that_cannot_be_followed_is_told():
    """The second variable to enter is a multiple of the first; the matrix of both has no inverse."""
    A, b = np.array([[1.0, 2.0], [2.0, 4.0]]), np.array([-1.0, -2.5])
    M, L, used = np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(2, np.int64)
    x, sign, gradient, way, pull = (np.zeros(2) for _ in range(5))
    for B, expected in ((A, (-1, False)), (np.eye(2), (2, False))):
        found = l1_path._follow(B, b, 0.1, np.inf, M, x, sign, used, gradient, way, pull)
        assert found == expected
    used[:], sign[:] = [0, 1], 1.0
    for B, expected in ((A, False), (np.eye(2), True)):
        np.testing.assert_equal(l1_path._finish(B, b, 0.1, np.inf, False, L, x, sign, used, way, pull, 2), expected)
    np.testing.assert_allclose(x, [0.9, 2.4])
