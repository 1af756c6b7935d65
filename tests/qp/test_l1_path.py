"""The compiled path in the price of ‖x‖₁: the answers of the careful way, zeros that are zeros, ties left alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from time2decide import QP, random_qp, solve
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
