"""The adjoint system by itself: each step solves it, many at once do not mix, and what cannot be solved is told."""

import numpy as np
import pytest

from time2decide.qp import adjoint


def factors(A, N):
    """L of A = LLᵀ, the rows V = L⁻¹Nᵀ, and the factor of VᵀV."""
    L = np.linalg.cholesky(A)
    W = np.linalg.solve(L, N.T).T
    return L, W, np.linalg.cholesky(W @ W.T)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_one_step_solves_the_system(rows):
    rng = np.random.default_rng(rows)
    G, N = rng.normal(size=(5, 7)), rng.normal(size=(rows, 5))
    A, v, w = G @ G.T, rng.normal(size=5), rng.normal(size=rows)
    u, s = v.copy(), w.copy()
    adjoint._step(*factors(A, N), 5, rows, u, s)
    np.testing.assert_allclose(A @ u + N.T @ s, v, atol=1e-12)
    np.testing.assert_allclose(N @ u, w, atol=1e-12)


def test_triangles_are_factorised_and_solved():
    rng = np.random.default_rng(0)
    G, x = rng.normal(size=(4, 6)), rng.normal(size=4)
    M = G @ G.T
    L = np.linalg.cholesky(M)
    made = np.full((6, 6), 9.0)  # what is beyond 4 stays
    made[:4, :4] = M
    least = adjoint._cholesky(made, 4)
    np.testing.assert_allclose(np.tril(made[:4, :4]), L, rtol=1e-12)
    assert least == pytest.approx((L.diagonal() ** 2 / M.diagonal()).min(), rel=1e-10)
    for solve, matrix in ((adjoint._down, L), (adjoint._up, L.T)):
        y = x.copy()
        solve(L, 4, y)
        np.testing.assert_allclose(matrix @ y, x, atol=1e-13)
    assert adjoint._cholesky(np.array([[1.0, 2.0], [2.0, 1.0]]), 2) <= 0
    assert adjoint._cholesky(np.array([[-1.0]]), 1) <= 0


def solved(A, N, counts, fixed, v, w):
    """u, s and `good` of a batch, from arrays that hold something else before."""
    batch, n = v.shape
    u, s, good = np.zeros((batch, n)), np.zeros(w.shape), np.arange(batch) % 2 == 0
    used = np.arange(N.shape[1]) < np.array(counts)[:, None]
    adjoint.adjoint(A, N, used, fixed, v, w, u, s, good)
    return u, s, good


def test_a_batch_with_fixed_variables_and_rows_that_are_not_used():
    rng = np.random.default_rng(1)
    G, N = rng.normal(size=(6, 5, 7)), rng.normal(size=(6, 3, 5))
    A, v, w = G @ G.transpose(0, 2, 1), rng.normal(size=(6, 5)), rng.normal(size=(6, 3))
    fixed, counts = rng.random((6, 5)) < 0.3, [0, 1, 2, 2, 1, 2]
    fixed[0], fixed[1] = True, False
    u, s, good = solved(A, N, counts, fixed, v, w)
    assert good.all()
    for i in range(6):
        F, r = ~fixed[i], counts[i]
        assert F.sum() >= r
        np.testing.assert_allclose(A[i][np.ix_(F, F)] @ u[i, F] + N[i, :r, F] @ s[i, :r], -v[i, F], atol=1e-12)
        np.testing.assert_allclose(N[i, :r] @ u[i], -w[i, :r], atol=1e-12)
        assert not u[i, fixed[i]].any()
        assert not s[i, r:].any()


def test_singular_systems_are_told_and_the_others_solved():
    rng = np.random.default_rng(2)
    A, N = np.tile(np.eye(3), (5, 1, 1)), np.tile(rng.normal(size=(2, 3)), (5, 1, 1))
    A[1, 2, 2], A[2, 0, 0] = 0.0, -1.0
    N[3, 1] = -2 * N[3, 0]
    v, w = rng.normal(size=(5, 3)), np.zeros((5, 2))
    u, s, good = solved(A, N, [2] * 5, np.zeros((5, 3), bool), v, w)
    np.testing.assert_array_equal(good, [True, False, False, False, True])
    for i in (0, 4):
        np.testing.assert_allclose(u[i] + N[i].T @ s[i], -v[i], atol=1e-13)


def test_the_second_step_removes_what_rounding_left_of_the_first():
    """A condition number of 1e10: the rows hold to rounding, which one step alone does not reach."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    A = basis @ np.diag(np.logspace(0, 10, 6)) @ basis.T
    A, N = (A + A.T) / 2, rng.normal(size=(2, 6))
    v, w = rng.normal(size=6), rng.normal(size=2)
    u, s = -v, -w
    adjoint._step(*factors(A, N), 6, 2, u, s)
    once = np.abs(N @ u + w).max()
    u, s, good = solved(A[None], N[None], [2], np.zeros((1, 6), bool), v[None], w[None])
    assert good.all()
    assert np.abs(N @ u[0] + w).max() < once / 10
    scale = np.abs(A) @ np.abs(u[0]) + np.abs(N).T @ np.abs(s[0])
    assert (np.abs(A @ u[0] + N.T @ s[0] + v) < 1e-14 * scale).all()


def test_pivots_are_compared_with_their_diagonal():
    for size in (1e-9, 1.0, 1e9):
        assert adjoint._cholesky(size * np.eye(3), 3) == pytest.approx(1.0, rel=1e-15)
    assert adjoint._cholesky(np.zeros((3, 3)), 0) == 1.0  # nothing has failed


def test_a_system_in_a_batch_has_the_answer_that_it_has_alone():
    """To the last bit, whatever was solved before it: huge numbers, other sizes, something singular."""
    rng = np.random.default_rng(3)
    G, N = rng.normal(size=(6, 5, 7)), rng.normal(size=(6, 3, 5))
    A, v, w = G @ G.transpose(0, 2, 1), rng.normal(size=(6, 5)), rng.normal(size=(6, 3))
    v[::2], w[::2] = 1e12 * v[::2], 1e12 * w[::2]
    A[2] = 0.0
    fixed, counts = np.zeros((6, 5), bool), np.array([3, 1, 2, 2, 3, 0])
    fixed[3, 1:3] = True
    u, s, good = solved(A, N, counts, fixed, v, w)
    np.testing.assert_array_equal(good, [True, True, False, True, True, True])
    for i in range(6):
        one = slice(i, i + 1)
        alone = solved(A[one], N[one], counts[one], fixed[one], v[one], w[one])
        np.testing.assert_array_equal(u[i], alone[0][0])
        np.testing.assert_array_equal(s[i], alone[1][0])
