"""The qpsolvers signature, judged by its semantics and a second solver."""

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from time2decide import InputError, ProblemError, solve_qp
from time2decide.qpsolvers_api import Problem, solve_problem


def drawn(seed, n=6):
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(n, n))
    inside = rng.uniform(-0.5, 0.5, n)
    rows, equal = rng.normal(size=(4, n)), rng.normal(size=(2, n))
    return {
        "P": G @ G.T + 0.1 * np.eye(n),
        "q": 3 * rng.normal(size=n),
        "G": rows,
        "h": rows @ inside + rng.uniform(0.1, 0.5, 4),
        "A": equal,
        "b": equal @ inside,
        "lb": np.full(n, -1.0),
        "ub": np.full(n, 1.0),
    }


@pytest.mark.parametrize("seed", range(8))
def test_equalities_bounds_and_inequalities_together(seed):
    p = drawn(seed)
    x = cp.Variable(6)
    constraints = [p["G"] @ x <= p["h"], p["A"] @ x == p["b"], x >= p["lb"], x <= p["ub"]]
    cp.Problem(cp.Minimize(0.5 * cp.quad_form(x, cp.psd_wrap(p["P"])) + p["q"] @ x), constraints).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
    )
    np.testing.assert_allclose(solve_qp(**p), x.value, atol=1e-7)
    np.testing.assert_allclose(solve_qp(**p, solver="admm", tol=1e-7), x.value, atol=1e-4)


def test_semantics_of_qpsolvers():
    eye, q = np.eye(2), np.array([-1.0, -1.0])
    np.testing.assert_allclose(solve_qp(eye, q), [1, 1])
    np.testing.assert_allclose(solve_qp(eye, q, ub=np.array([0.5, np.inf])), [0.5, 1])
    np.testing.assert_allclose(solve_qp(eye, q, G=np.array([1.0, 1.0]), h=np.array([1.0])), [0.5, 0.5])  # one row
    np.testing.assert_allclose(solve_qp(sparse.csc_matrix(eye), q, G=sparse.csc_matrix(eye), h=[np.inf, 0.0]), [1, 0])
    assert solve_qp(eye, q, G=[[1.0, 0.0], [-1.0, 0.0]], h=[-1.0, -1.0]) is None  # infeasible
    with pytest.raises(ProblemError, match="unbounded"):
        solve_qp(np.diag([1.0, 0.0]), q)
    assert solve_qp(eye, q, A=[[1.0, 0.0], [1.0, 0.0]], b=[0.0, 1.0]) is None  # contradictory equalities
    np.testing.assert_allclose(solve_qp(np.diag([1.0, 0.0]), [-1.0, 1.0], lb=[-9.0, -2.0]), [1, -2], atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"P": np.eye(2), "q": [1.0]}, "P: expected shape (1, 1) to match q"),
        ({"P": [1.0], "q": [1.0]}, "P: expected 2 dimensions"),
        ({"P": np.eye(1), "q": [1.0], "G": [[1.0]]}, "h: expected together"),
        ({"P": np.eye(1), "q": [1.0], "G": [[1.0, 2.0]], "h": [1.0]}, "G: expected shape (1, 1)"),
        ({"P": np.eye(1), "q": [1.0], "G": [[np.nan]], "h": [1.0]}, "G: expected finite numbers"),
        ({"P": np.eye(1), "q": [1.0], "ub": [np.nan]}, "ub: expected numbers, found NaN"),
        ({"P": -np.eye(1), "q": [1.0]}, "P: expected positive semidefinite"),
        ({"P": np.eye(1), "q": [1.0], "solver": "gurobi"}, "solver: expected one of exact"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError) as caught:
        solve_qp(**arguments)
    assert str(caught.value).startswith(message)


def test_registered_in_qpsolvers():
    qpsolvers = pytest.importorskip("qpsolvers")
    from time2decide import register_in_qpsolvers

    register_in_qpsolvers()
    register_in_qpsolvers()
    assert qpsolvers.available_solvers.count("time2decide") == 1
    p = drawn(3)
    problem = qpsolvers.Problem(**p)
    ours, theirs = (qpsolvers.solve_problem(problem, solver=name) for name in ("time2decide", "daqp"))
    assert isinstance(ours, qpsolvers.Solution)
    assert ours.is_optimal(1e-9)
    np.testing.assert_allclose(ours.x, theirs.x, atol=1e-7)
    np.testing.assert_allclose(ours.z_box, theirs.z_box, atol=1e-5)
    sparse_p = p | {name: sparse.csc_matrix(p[name]) for name in ("P", "G", "A")}
    np.testing.assert_allclose(qpsolvers.solve_qp(**sparse_p, solver="time2decide"), ours.x)
    with pytest.raises(qpsolvers.ProblemError, match="unbounded"):
        qpsolvers.solve_qp(np.diag([1.0, 0.0]), np.ones(2), solver="time2decide")


def test_columns_are_vectors():
    p = drawn(4)
    column = {name: p[name][:, None] for name in ("q", "h", "b", "lb", "ub")}
    np.testing.assert_array_equal(solve_qp(**(p | column)), solve_qp(**p))


@pytest.mark.parametrize("method", ["exact", "neural+polish", "admm"])
def test_a_start_changes_the_way_and_not_the_answer(method):
    p = drawn(5)
    x = solve_qp(**p)
    for start in (x, np.zeros(6), -x):
        np.testing.assert_allclose(solve_qp(**p, solver=method, initvals=start), x, atol=1e-5)


def test_sparse_matrices_have_a_limit(monkeypatch):
    monkeypatch.setattr("time2decide.qpsolvers_api.MOST_ENTRIES", 100)
    with pytest.raises(ProblemError, match="P: expected at most 100 entries of a sparse matrix"):
        solve_qp(sparse.eye_array(11).tocsc(), np.ones(11))


def test_residuals_of_an_answer_without_bounds():
    answer = solve_problem(Problem(np.eye(2), np.ones(2), G=-np.eye(2), h=np.zeros(2)))
    assert answer.z_box.size == 0
    assert answer.is_optimal(1e-9)
    answer.z = answer.z + 1.0
    assert answer.dual_residual() == pytest.approx(1.0)


def test_names_of_pandas_must_agree():
    names = list("xyz")
    P, q = pd.DataFrame(np.eye(3), names, names), pd.Series([-1.0, -2, -3], names)
    lb = pd.Series([0.0, 2.5, 0], names)
    np.testing.assert_allclose(solve_qp(P, q, lb=lb), [1, 2.5, 3])
    with pytest.raises(ProblemError, match="lb: expected the variables of P in the same order"):
        solve_qp(P, q, lb=lb[::-1])
    with pytest.raises(ProblemError, match="q: expected the variables of P"):
        solve_qp(P, q.rename({"x": "w"}))
    with pytest.raises(ProblemError, match="h: expected the rows of G in"):
        solve_qp(P, q, pd.DataFrame(np.ones((2, 3)), ["a", "b"], names), pd.Series([1.0, 2], ["b", "a"]))
