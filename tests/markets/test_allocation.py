import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from time2decide.bench.markets import (
    OracleSteps,
    oracle_step_by_clarabel,
    oracle_step_by_cvxpy,
    oracle_step_objective,
    oracle_step_violation,
)
from time2decide.core.validation import InputError
from time2decide.markets import RISK_AVERSION, mean_variance_step
from time2decide.markets.oracle import greedy_allocations


def random_steps(rng, count, m, scale, risk=1.0):
    """Decisions of any scale; risk multiplies the covariance, so that the quadratic term can matter."""
    factor = rng.standard_normal((count, m, m + 3)) * scale * np.sqrt(risk / m)
    previous = rng.dirichlet(np.full(m, 0.3), count)
    previous[rng.random((count, m)) < 0.3] = 0
    previous[previous.sum(-1) == 0, 0] = 1
    previous /= previous.sum(-1, keepdims=True)
    return OracleSteps(
        rng.standard_normal((count, m)) * scale,
        factor @ factor.transpose(0, 2, 1),
        previous,
        rng.choice([0.0, 0.1, 0.5, 1.0, 1.7, 2.0], count),
    )


@pytest.mark.parametrize("m", [2, 5, 16])
@pytest.mark.parametrize(("scale", "risk"), [(0.01, 1.0), (0.01, 1e3), (0.01, 1e5), (1.0, 1.0), (1.0, 100.0)])
def test_equal_to_a_second_exact_solver(m, scale, risk):
    steps = random_steps(np.random.default_rng(m), 40, m, scale, risk)
    ours = mean_variance_step(*steps)
    assert oracle_step_violation(steps, ours) < 1e-12
    exact = np.stack([oracle_step_by_clarabel(steps, i) for i in range(len(ours))])
    gap = oracle_step_objective(steps, exact) - oracle_step_objective(steps, ours)
    assert gap.max() < 1e-9 * max(1.0, scale * risk)  # the other solver may be infeasible by its tolerance
    assert gap.min() > -1e-8 * max(1.0, scale * risk)


def test_close_to_the_papers_route():
    steps = random_steps(np.random.default_rng(0), 10, 16, 1.0, 3.0)
    theirs = np.stack([oracle_step_by_cvxpy(steps, i) for i in range(10)])
    np.testing.assert_allclose(mean_variance_step(*steps), theirs, atol=2e-2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([1e-4, 1e-2, 1.0, 1e2]), st.floats(0, 2.5))
def test_feasible_and_better_than_random_points(seed, m, scale, gamma):
    rng = np.random.default_rng(seed)
    steps = random_steps(rng, 3, m, scale, 10.0)._replace(turnover_l1=np.full(3, gamma))
    ours = mean_variance_step(*steps)
    assert oracle_step_violation(steps, ours) < 1e-12
    other = rng.dirichlet(np.ones(m), (200, 3))
    distance = np.abs(other - steps.previous).sum(-1, keepdims=True)
    inside = steps.previous + (other - steps.previous) * np.minimum(1, gamma / np.maximum(distance, 1e-300))
    for point in inside:
        assert (
            oracle_step_objective(steps, ours) >= oracle_step_objective(steps, point) - 1e-12 * scale * max(1, scale)
        ).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(0, 16))
def test_greedy_rule_solves_the_linear_problem(seed, m, eighths):
    rng = np.random.default_rng(seed)
    gamma = eighths / 8
    gradient = rng.integers(-3, 4, m).astype(float)  # with ties
    p = random_steps(rng, 1, m, 1.0).previous[0]
    ours = greedy_allocations(gradient, p, np.asarray(gamma / 2))
    rows = np.vstack([np.r_[np.zeros(m), np.ones(m)], np.c_[np.eye(m), -np.eye(m)], np.c_[-np.eye(m), -np.eye(m)]])
    lp = linprog(np.r_[-gradient, np.zeros(m)], rows, np.r_[gamma, p, -p], np.r_[np.ones(m), np.zeros(m)][None], [1.0])
    assert ours @ gradient == pytest.approx(-lp.fun, abs=1e-6)  # HiGHS is feasible to 1e-7
    assert ours.min() >= 0
    assert ours.sum() == pytest.approx(1, abs=1e-12)


def test_equivariant_under_permutation_and_indifferent_to_a_constant():
    rng = np.random.default_rng(1)
    r, S, p, gamma = random_steps(rng, 20, 7, 0.01, 1e3)
    ours = mean_variance_step(r, S, p, gamma)
    order = rng.permutation(7)
    moved = mean_variance_step(r[:, order], S[:, order][:, :, order], p[:, order], gamma)
    np.testing.assert_allclose(moved, ours[:, order], atol=1e-7)
    np.testing.assert_allclose(mean_variance_step(r + 0.3, S, p, gamma), ours, atol=1e-6)


def test_known_answers():
    even = np.full(4, 0.25)
    # best asset 2; sells the worst first: 0 whole and 0.05 of asset 1
    moved = mean_variance_step([-0.02, -0.01, 0.03, 0.01], np.zeros((4, 4)), even, 0.6)
    np.testing.assert_allclose(moved, [0.0, 0.20, 0.55, 0.25], atol=1e-15)
    np.testing.assert_allclose(mean_variance_step([1, 2, 3, 4], np.eye(4), even, 0.0), even, atol=1e-15)
    # no returns: least variance, inversely proportional to the variances
    least = mean_variance_step(np.zeros(2), np.diag([1.0, 3.0]), [0.5, 0.5], 2.0)
    np.testing.assert_allclose(least, [0.75, 0.25], atol=1e-9)
    # nothing to gain, nothing traded
    np.testing.assert_array_equal(mean_variance_step(np.ones(4), np.zeros((4, 4)), even, 2.0), even)


def test_broadcasts_and_keeps_the_array_type():
    rng = np.random.default_rng(2)
    r, S, p, _ = random_steps(rng, 6, 4, 0.01)
    gammas = np.array([0.5, 1.0, 2.0])
    together = mean_variance_step(r[:, None], S[:, None], p[:, None], gammas)
    assert together.shape == (6, 3, 4)
    np.testing.assert_allclose(together[:, 1], mean_variance_step(r, S, p, 1.0), atol=1e-12)
    as_tensor = mean_variance_step(torch.from_numpy(r), torch.from_numpy(S), torch.from_numpy(p), 1.0)
    assert isinstance(as_tensor, torch.Tensor)
    np.testing.assert_allclose(as_tensor.numpy(), together[:, 1], atol=1e-12)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"returns": [0.1, np.nan]}, "returns"),
        ({"previous": [0.5, 0.6]}, "previous"),
        ({"previous": [1.5, -0.5]}, "previous"),
        ({"turnover_l1": -1.0}, "turnover_l1"),
        ({"covariance": np.eye(3)}, "covariance"),
        ({"risk_aversion": -0.1}, "risk_aversion"),
    ],
)
def test_bad_input_is_named(change, name):
    arguments = {"returns": [0.1, 0.2], "covariance": np.eye(2), "previous": [0.5, 0.5], "turnover_l1": 1.0}
    with pytest.raises(InputError, match=name):
        mean_variance_step(**(arguments | {"risk_aversion": RISK_AVERSION} | change))


@pytest.mark.parametrize("seed", range(6))
def test_degenerate_decisions_are_certified(seed):
    """Equal assets, equal returns, riskless assets and covariances of low rank."""
    rng = np.random.default_rng(seed)
    m, scale = int(rng.integers(2, 20)), 10.0 ** rng.integers(-5, 2)
    factor = rng.standard_normal((60, m, max(1, m // 3))) * scale * 10.0 ** rng.integers(-1, 3)
    factor[:, : m // 2] = factor[:, :1]
    factor[:20, -1] = 0
    r = np.round(rng.standard_normal((60, m))) * scale + (100 * scale if seed % 2 else 0)
    r[:10] = r[:10, :1]
    steps = random_steps(rng, 60, m, scale)._replace(returns=r, covariance=factor @ factor.transpose(0, 2, 1))
    s = mean_variance_step(*steps)
    assert oracle_step_violation(steps, s) < 1e-12
    relative = r - r.max(-1, keepdims=True)
    gradient = relative - 2 * RISK_AVERSION * np.einsum("nij,nj->ni", steps.covariance, s)
    best = greedy_allocations(gradient, steps.previous, steps.turnover_l1 / 2)
    size = np.maximum(np.abs(relative).max(-1), 2 * RISK_AVERSION * np.abs(steps.covariance).max((1, 2)))
    assert (np.einsum("ni,ni->n", gradient, best - s) <= 1e-9 * size).all()
