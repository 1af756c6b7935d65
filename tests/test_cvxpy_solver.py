"""Our solver inside CVXPY gives the values, variables and multipliers of one of CVXPY's own."""

import numpy as np
import pytest

cp = pytest.importorskip("cvxpy")
from time2decide.cvxpy_solver import CvxpySolver  # noqa: E402

OURS = CvxpySolver()


def portfolio(seed, bounded):
    rng = np.random.default_rng(seed)
    n = 8
    root, mean = rng.normal(size=(n, n)), rng.normal(size=n)
    weights = cp.Variable(n, bounds=[0, 0.4]) if bounded else cp.Variable(n)
    rules = [cp.sum(weights) == 1, cp.norm1(weights - 1 / n) <= 0.5]
    rules += [] if bounded else [weights >= 0]
    return cp.Problem(cp.Minimize(cp.sum_squares(root @ weights) - mean @ weights + 3.0), rules), weights


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equals_another_solver_of_cvxpy(seed, bounded):
    problem, weights = portfolio(seed, bounded)
    value = problem.solve(solver=OURS)
    x, duals = weights.value, [rule.dual_value for rule in problem.constraints]
    assert problem.status == "optimal"
    assert value == pytest.approx(problem.solve(solver=cp.CLARABEL, tol_gap_rel=1e-11, tol_feas=1e-11), abs=1e-8)
    np.testing.assert_allclose(x, weights.value, atol=1e-6)
    for ours, theirs in zip(duals, [rule.dual_value for rule in problem.constraints], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_infeasible_unbounded_and_without_constraints():
    x = cp.Variable(2)
    for rules, objective, status in (
        ([x >= 1, x <= 0], cp.sum_squares(x), "infeasible"),
        ([x[0] >= 0], cp.square(x[0]) + x[1], "unbounded"),
        ([], cp.sum_squares(x - 1), "optimal"),
    ):
        problem = cp.Problem(cp.Minimize(objective), rules)
        problem.solve(solver=OURS)
        assert problem.status == status
    np.testing.assert_allclose(x.value, [1, 1])


def test_warm_starts_and_methods():
    target = cp.Parameter(3)
    x = cp.Variable(3)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - target)), [cp.sum(x) == 1, x >= 0])
    for shift in (0.0, 0.1, 0.2):
        target.value = np.array([0.5 + shift, 0.4, -0.3])
        problem.solve(solver=OURS, warm_start=True)
        warm = x.value
        problem.solve(solver=OURS, warm_start=False)
        np.testing.assert_allclose(warm, x.value, atol=1e-12)
    problem.solve(solver=CvxpySolver("neural+polish"), tol=1e-9)
    np.testing.assert_allclose(x.value, warm, atol=1e-8)
    with pytest.raises(ValueError, match="method: expected one of"):
        CvxpySolver("simplex")


def test_integers_and_cones_are_refused_by_cvxpy():
    x = cp.Variable(2, integer=True)
    with pytest.raises(cp.error.SolverError):
        cp.Problem(cp.Minimize(cp.sum_squares(x))).solve(solver=OURS)
