"""Sparse problems: the answers of the dense route where there is one, certified where there is none."""

import numpy as np
import pytest
from scipy import sparse

from time2decide import SparseQP, solve, solve_qp
from time2decide.core.validation import InputError
from time2decide.qp import QP
from time2decide.qp import sparse as sparse_file
from time2decide.qpsolvers_api import Problem, ProblemError, solve_problem


def random_sparse(seed, n=30, m=20, equal=4):
    """A feasible problem with a singular A, rows of which some bind, equations and bounds."""
    rng = np.random.default_rng(seed)
    B = sparse.random(n, n // 2, 0.2, random_state=rng, format="csc")
    C = sparse.random(m, n, 0.2, random_state=rng, format="csc")
    E = sparse.random(equal, n, 0.4, random_state=rng, format="csc")
    x = rng.standard_normal(n)
    d = C @ x + rng.exponential(size=m) * (rng.random(m) < 0.7)
    lb, ub = x - rng.exponential(size=n), x + rng.exponential(size=n)
    return B @ B.T, rng.standard_normal(n), C, d, E, E @ x, lb, ub


def banded(n):
    """Trend filtering: the identity and second differences, which are limited, and bounds."""
    D = sparse.diags([1.0, -2.0, 1.0], [0, 1, 2], shape=(n - 2, n)).tocsc()
    y = np.cumsum(np.random.default_rng(0).standard_normal(n))
    return (sparse.identity(n) + 10 * D.T @ D).tocsc(), -y, sparse.vstack([D, -D]), np.full(2 * (n - 2), 0.3)


@pytest.mark.parametrize("seed", range(25))
def test_answers_are_those_of_the_dense_route(seed):
    A, b, C, d, E, f, lb, ub = random_sparse(seed)
    found = solve(SparseQP(A, b, C, d, E, f, lb, ub), tol=1e-10)
    dense = solve(QP(A.toarray(), b, C.toarray(), d, E=E.toarray(), f=f, lb=lb, ub=ub))
    assert found.status == dense.status == "optimal"
    assert found.objective == pytest.approx(dense.objective, rel=1e-11, abs=1e-11)
    assert found.kkt_residual < 1e-11
    assert found.kkt_residual == pytest.approx(float(found.kkt.worst[0]))


def test_the_rule_is_that_of_the_dense_certificate():
    """At answers and at points near them, without a floor under rounding, the same number."""
    from time2decide.qp.certificate import Arrays, OptimalityRule, Point

    rng = np.random.default_rng(0)
    for seed in range(10):
        A, b, C, d, E, f, lb, ub = random_sparse(seed)
        p = SparseQP(A, b, C, d, E, f, lb, ub)
        rule = OptimalityRule(Arrays.of(QP(A.toarray(), b, C.toarray(), d, E=E.toarray(), f=f, lb=lb, ub=ub)))
        found = solve(p)
        for noise in (0.0, 1e-6, 1e-2):
            parts = found.x, found.dual, found.dual_eq, found.dual_box
            point = tuple(part + noise * rng.standard_normal(len(part)) * (part != 0) for part in parts)
            point = (np.clip(point[0], lb, ub), np.abs(point[1]), *point[2:])
            level = sparse_file._Terms(p).level(point, 0.0)
            assert level == pytest.approx(
                float(rule.residual(Point(*(v[None] for v in point)))[0]), rel=1e-6, abs=1e-15
            )
            assert (level < 1e-9) == (noise == 0)


def test_large_problems_stay_sparse(monkeypatch):
    """Nothing is made dense, in `solve_qp`, `solve_problem` and CVXPY alike."""
    monkeypatch.setattr(sparse_file.SparseQP, "dense", None)
    monkeypatch.setattr(sparse.csc_matrix, "toarray", None)
    n = 2_000
    P, q, G, h = banded(n)
    found = solve_problem(Problem(P, q, G, h, lb=np.full(n, -20.0), ub=np.full(n, 20.0)))
    assert found.found
    assert max(found.primal_residual(), found.dual_residual()) < 1e-9
    assert found.duality_gap() < 1e-8 * abs(found.obj)
    np.testing.assert_array_equal(solve_qp(P, q, G, h, lb=np.full(n, -20.0), ub=np.full(n, 20.0)), found.x)


def test_cvxpy_keeps_large_problems_sparse(monkeypatch):
    cp = pytest.importorskip("cvxpy")
    from time2decide.cvxpy_solver import CvxpySolver

    P, q, G, h = banded(600)
    x = cp.Variable(600)
    problem = cp.Problem(cp.Minimize(cp.quad_form(x, cp.psd_wrap(P)) / 2 + q @ x), [G @ x <= h])
    monkeypatch.setattr(sparse_file.SparseQP, "dense", None)
    problem.solve(solver=CvxpySolver())
    value = problem.value
    problem.solve(solver=cp.CLARABEL)
    assert value == pytest.approx(problem.value, rel=1e-7)


def test_infeasible_problems_are_proved_so():
    A, b, C, d, *_ = random_sparse(0)
    rows = sparse.vstack([C, C[:1], -C[:1]])
    found = solve(SparseQP(A, b, rows, np.append(d, [-1.0, 0.5])))
    assert found.status == "infeasible"
    assert np.isnan(found.x).all()
    crossed = solve(SparseQP(A, b, lb=np.ones(30), ub=np.zeros(30)))
    assert crossed.status == "infeasible"


def test_unbounded_problems_are_not_called_optimal():
    A = sparse.diags(np.append(np.ones(5), 0.0))
    assert solve(SparseQP(A, -np.ones(6))).status == "unbounded"


def test_what_is_not_certified_is_not_called_optimal(monkeypatch):
    """An engine that is off by a little, and no dense route to ask."""
    monkeypatch.setattr(sparse_file, "_DENSE", 0)
    monkeypatch.setattr(sparse_file, "_polished", lambda terms, point: point)
    real = sparse_file._interior_point

    def off(p, settings):
        (x, *duals), infeasible = real(p, settings)
        return (x + 1e-4, *duals), infeasible

    monkeypatch.setattr(sparse_file, "_interior_point", off)
    found = solve(SparseQP(*random_sparse(1)))
    assert found.status == "not_converged"
    assert np.isfinite(found.x).all()


def test_rows_and_bounds_without_an_end_are_none():
    A, b, C, d, E, f, lb, ub = random_sparse(2)
    free = sparse.vstack([C, np.ones((1, 30))])
    one = solve(SparseQP(A, b, free, np.append(d, np.inf), E, f, lb, ub))
    other = solve(SparseQP(A, b, free, np.append(d, 1e25), E, f, np.where(lb < -1e9, -1e30, lb), ub))
    assert one.dual.shape == (21,)
    assert one.dual[-1] == 0
    np.testing.assert_allclose(one.x, other.x, atol=1e-12)
    bare = solve(SparseQP(sparse.identity(3), np.array([1.0, -2.0, 0.0]), lb=0.0))
    np.testing.assert_array_equal(bare.x, [0.0, 2.0, 0.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A": sparse.identity(3)}, r"A: expected 2 columns to match b, found shape \(3, 3\)"),
        ({"A": sparse.csc_matrix((3, 2))}, r"A: expected shape \(2, 2\) to match b"),
        ({"A": sparse.diags([1.0, -1.0])}, "A: expected positive semidefinite"),
        ({"A": sparse.csc_matrix([[1.0, 3.0], [3.0, 1.0]])}, "A: expected positive semidefinite"),
        ({"A": sparse.csc_matrix([[1.0, 0.5], [0.0, 1.0]])}, "A: expected a symmetric matrix"),
        ({"A": sparse.diags([1.0, np.nan])}, "A: expected finite numbers"),
        ({"b": np.array([1.0, np.inf])}, "b, f: expected finite numbers"),
        ({"C": sparse.identity(2)}, "d: expected together with C"),
        ({"C": sparse.identity(2), "d": np.ones(3)}, r"d: expected shape \(2,\)"),
        ({"lb": np.array([0.0, np.nan])}, "lb: expected numbers, found NaN"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(InputError, match=message):
        SparseQP(**({"A": sparse.identity(2), "b": np.zeros(2)} | change))


def test_options_that_sparse_problems_do_not_have_are_refused():
    p = SparseQP(sparse.identity(2), np.ones(2))
    for options, message in (
        ({"method": "gradient"}, "method: expected 'exact' for a sparse problem"),
        ({"initial": (np.zeros(2), np.zeros(0))}, "initial: expected no such option for a sparse problem"),
        ({"rho": 1.0}, "rho: expected no such option"),
    ):
        with pytest.raises(InputError, match=message):
            solve(p, **options)
    n = 1_000
    with pytest.raises(ProblemError, match=r"h: expected shape \(2,\)"):
        solve_qp(sparse.identity(n), np.ones(n), sparse.csc_matrix(np.ones((2, n))), np.ones(3))
