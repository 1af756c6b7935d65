"""The layers give the exact portfolio decision, in every form, with gradients and under everything they promise."""

import numpy as np
import pytest
import torch

from time2decide import InputError
from time2decide.attention.decision_head import attention_decision
from time2decide.markets.constraints import Constraints
from time2decide.markets.portfolio import (
    FactorCovariance,
    attend_portfolio_rows,
    build_portfolio_problem,
    solve_portfolio,
)
from time2decide.qp.projections import portfolio_prox
from time2decide.reports.decision_figures import write_layers_figure


def posed(m, batch=(), seed=0):
    """Means, covariance of three factors and current weights, of the size of daily stock returns."""
    rng = np.random.default_rng([seed, m])
    loadings = 0.01 * rng.standard_normal((*batch, m, 3))
    S = loadings @ loadings.swapaxes(-1, -2) + np.eye(m) * rng.uniform(0.005, 0.02, (*batch, 1, m)) ** 2
    return 1e-3 * rng.standard_normal((*batch, m)), S, rng.dirichlet(np.ones(m), batch)


def behind(solution, weights):
    """Utility lost, in units of what the exact decision gains over not trading."""
    problem = solution.problem
    ours, best = problem.utility(weights.reshape(-1, weights.shape[-1])), np.ravel(solution.utility)
    return float(((best - ours) / (best - problem.utility(problem.previous))).max())


@pytest.mark.parametrize("m", [2, 16, 100])
@pytest.mark.parametrize("risk", [0.1, 5.0, 50.0])
@pytest.mark.parametrize(("gamma", "cost"), [(0.1, 0.0), (0.5, 1e-4), (2.0, 1e-3)])
def test_layers_reach_the_exact_decision(m, risk, gamma, cost):
    data = posed(m, (3,))
    terms = {"risk_aversion": risk, "turnover_l1": gamma, "cost": cost}
    exact, weights = solve_portfolio(*data, **terms), attention_decision(*data, **terms, layers=300)
    if exact.turnover.min() > 1e-6:
        assert behind(exact, weights) < 1e-6
    np.testing.assert_allclose(exact.problem.utility(weights), exact.utility, atol=1e-7)
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-12)
    assert np.abs(weights - data[2]).sum(-1).max() <= gamma + 1e-12


def test_bounds_benchmark_cost_by_asset_and_weights_outside_the_bounds():
    mean, S, previous = posed(12, (4,))
    rng = np.random.default_rng(1)
    lower, upper = np.full(12, -0.05), np.full(12, 0.2)
    assert (previous > upper).any()
    shared = {"risk_aversion": 5.0, "turnover_l1": 1.2, "cost": 1e-3 * rng.random(12), "benchmark": np.full(12, 1 / 12)}
    exact = solve_portfolio(mean, S, previous, **shared, constraints=Constraints(lower, upper))
    weights = attention_decision(mean, S, previous, **shared, lower=lower, upper=upper, layers=300)
    np.testing.assert_allclose(weights, exact.weights, atol=1e-8)
    assert weights.min() >= -0.05
    assert weights.max() <= 0.2


def test_a_posed_problem_goes_to_the_layers_and_limits_do_not():
    mean, S, previous = posed(10, (3,))
    factors = FactorCovariance(np.linalg.cholesky(S[0]), np.zeros(10))
    terms = (4.0, 0.5, 1e-3, None, Constraints(0.0, 0.3, exposure=1.0))
    for covariance in (S, factors):
        problem, _ = build_portfolio_problem(mean, covariance, previous, *terms)
        dense = S if covariance is S else S[0]
        exact = solve_portfolio(
            mean, dense, previous, risk_aversion=4.0, turnover_l1=0.5, cost=1e-3, constraints=terms[-1]
        )
        np.testing.assert_allclose(attend_portfolio_rows(problem), exact.weights, atol=1e-8)
    problem, _ = build_portfolio_problem(mean, S, previous, *terms[:-1], Constraints(cash=(0.0, 0.1)))
    with pytest.raises(InputError, match="solver: expected 'exact' under linear limits, groups or cash"):
        attend_portfolio_rows(problem)


def test_the_picture_of_the_layers(tmp_path):
    path = tmp_path / "layers.png"
    write_layers_figure(*posed(12), path, layers=24, risk_aversion=5.0, turnover_l1=0.5, cost=1e-4)
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("cost", [0.0, 5e-4])
def test_the_three_forms_agree_layer_by_layer(cost):
    data = posed(7, (5,))
    terms = {"risk_aversion": 20.0, "turnover_l1": [[0.1], [0.5]], "cost": cost, "layers": 40, "trace": True}
    state, literal, classical = (
        attention_decision(*data, **terms, form=form) for form in ("state", "literal", "classical")
    )
    assert state.shape == (41, 2, 5, 7)
    np.testing.assert_allclose(literal, state, atol=1e-12)
    np.testing.assert_allclose(classical, state, atol=1e-12)
    assert np.abs(state[1] - state[0]).max() > 1e-3
    np.testing.assert_array_equal(state[-1], attention_decision(*data, **(terms | {"trace": False})))


def test_assets_may_come_in_any_order():
    mean, S, previous = posed(9)
    order = np.random.default_rng(0).permutation(9)
    terms = {"risk_aversion": 10.0, "turnover_l1": 0.4, "cost": 1e-4}
    weights = attention_decision(mean, S, previous, **terms)
    moved = attention_decision(mean[order], S[np.ix_(order, order)], previous[order], **terms)
    np.testing.assert_allclose(moved, weights[order], atol=1e-9)


def test_gradients_flow_through_the_layers():
    mean, S, previous = (torch.from_numpy(a) for a in posed(5, (2,)))
    step = torch.full((2,), 200.0, dtype=torch.float64, requires_grad=True)

    def weights(mu, sigma, size):
        terms = {"risk_aversion": 8.0, "turnover_l1": 0.5, "cost": 1e-3}
        return attention_decision(mu / 100, sigma, previous, **terms, step_size=size, layers=12)

    leaves = [100 * mean.detach(), S.detach()]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(lambda mu, size: weights(mu, leaves[1], size), (leaves[0], step), atol=1e-6)
    weights(*leaves, step)[..., 0].sum().backward()
    assert leaves[1].grad.abs().max() > 0


def test_no_curvature_and_nothing_to_gain():
    mean, S, previous = posed(6)
    greedy = attention_decision(mean, 0 * S, previous, risk_aversion=1.0, turnover_l1=2.0, layers=3)
    np.testing.assert_allclose(greedy, np.eye(6)[mean.argmax()], atol=1e-12)
    idle = attention_decision(0 * mean, 0 * S, previous, risk_aversion=0.0, cost=1e-3)
    np.testing.assert_allclose(idle, previous, atol=1e-15)


def test_proximal_step_is_the_minimiser():
    """Against the exact solver, for which a proximal step is a portfolio problem with Σ = I."""
    rng = np.random.default_rng(0)
    p, y, cost = rng.dirichlet(np.ones(8), 50), rng.normal(0.1, 0.3, (50, 8)), 0.2 * rng.random((50, 8))
    gamma = rng.uniform(0, 2, 50)
    exact = solve_portfolio(y, np.eye(8), p, risk_aversion=0.5, turnover_l1=gamma, cost=cost).weights
    x, buy, sell = portfolio_prox(*(torch.from_numpy(a) for a in (y, p, gamma[:, None], cost)))
    np.testing.assert_allclose(x, exact, atol=1e-12)
    assert (buy >= sell - 1e-12).all()
    large = portfolio_prox(*(torch.from_numpy(a) for a in (y + 1e8 * (y > 0.1), p, gamma[:, None], cost)))[0]
    np.testing.assert_allclose(large.sum(-1), 1, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": [np.nan, 0.0]}, "mean: expected finite"),
        ({"cost": [0.1, 0.1, 0.1]}, "mean: expected shapes that fit"),
        ({"risk_aversion": -1.0}, "risk_aversion: expected non-negative"),
        ({"upper": 0.3}, "exposure: expected one that the bounds allow"),
        ({"upper": 0.6, "turnover_l1": 0.2, "previous": [1.0, 0.0]}, "turnover_l1: expected at least"),
        ({"lower": 0.7, "upper": 0.6}, "lower: expected at most upper"),
        ({"form": "fast"}, "form: expected one of"),
        ({"layers": 0}, "layers: expected"),
    ],
)
def test_bad_input(change, message):
    good = {"mean": [0.1, 0.0], "covariance": np.eye(2), "previous": [0.5, 0.5], "risk_aversion": 1.0}
    with pytest.raises(InputError) as caught:
        attention_decision(**(good | change))
    assert str(caught.value).startswith(message)
