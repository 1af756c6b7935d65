import numpy as np
import pytest
import skfolio.measures

from time2decide.backtesting.baselines import Uniform, oracle_rollout
from time2decide.markets import empirical_covariance, oracle_path
from time2decide.simulation.engine import Rollout, rollout
from time2decide.simulation.metrics import performance, score, traded, utility_path


@pytest.fixture(scope="module")
def returns():
    return np.random.default_rng(0).normal(0, 0.02, (2, 110, 4))


def test_the_oracle_has_no_regret_and_no_error(returns):
    oracle = oracle_path(returns, [0.5, 1.0])
    scores = score(oracle_rollout(oracle, np.array([0.5, 1.0]), 96, 0.1), returns, oracle)
    for value in (scores.mse, scores.mse_projected, scores.regret):
        np.testing.assert_array_equal(value, 0)
    assert (scores.turnover <= [0.5 + 1e-12, 1.0 + 1e-12]).all()


def test_scores_by_hand(returns):
    oracle = oracle_path(returns, [2.0])
    scores = score(rollout(returns, Uniform(), 2.0), returns, oracle)
    np.testing.assert_allclose(scores.mse, ((oracle[:, :, 96:] - 0.25) ** 2).mean((2, 3)))
    u = np.full(4, 0.25)
    expected = [
        [u @ returns[n, t] - 0.1 * u @ empirical_covariance(returns[n, t - 96 : t]) @ u for t in range(96, 110)]
        for n in range(2)
    ]
    np.testing.assert_allclose(scores.utility[:, 0], np.mean(expected, axis=1))
    assert (scores.regret > 0).all()
    np.testing.assert_array_equal(scores.turnover, 0)
    (row,) = scores.rows()
    assert row["mse"] == pytest.approx(scores.mse.mean())
    assert row["mse_error"] == pytest.approx(scores.mse.std(ddof=1) / np.sqrt(2))


def test_raw_and_projected_are_told_apart(returns):
    oracle = oracle_path(returns, [2.0])
    held = np.full_like(oracle, 0.25)
    scores = score(Rollout("x", held + 1, held, np.array([2.0]), 96, 0.1), returns, oracle)
    np.testing.assert_allclose(scores.mse, scores.mse_projected + 1, rtol=1e-12)


def test_utility_is_that_of_the_objective(returns):
    weights = np.random.default_rng(1).dirichlet(np.ones(4), (2, 1, 110))
    utility = utility_path(returns, weights, 3.0, 96)
    s, r = weights[1, 0, 100], returns[1]
    assert utility[1, 0, 4] == pytest.approx(s @ r[100] - 3.0 * s @ empirical_covariance(r[4:100]) @ s)


def test_scores_have_the_risk_aversion_of_the_rollout_and_count_its_first_trade(returns):
    oracle = oracle_path(returns, [2.0], 50.0)
    held = np.full((2, 1, 110, 4), 0.25)
    held[:, :, 96:] = [1.0, 0.0, 0.0, 0.0]  # one trade of 1.5, at the first of 14 steps
    scores = score(Rollout("x", held, held, np.array([2.0]), 96, 50.0), returns, oracle)
    np.testing.assert_allclose(scores.turnover, 1.5 / 14)
    best, own = (utility_path(returns, weights, 50.0, 96).mean(-1) for weights in (oracle, held))
    np.testing.assert_allclose(scores.utility, own)
    np.testing.assert_allclose(scores.regret, best - own)


def test_traded_counts_drift():
    returns = np.zeros((1, 5, 2))
    returns[0, 2] = [1.0, 0.0]  # the first asset doubles: (1/2, 1/2) drifts to (2/3, 1/3)
    held = np.full((1, 1, 5, 2), 0.5)
    np.testing.assert_allclose(traded(held, returns, 2)[0, 0], [0, 1 / 3, 0])


def test_performance_equals_skfolio():
    net = np.random.default_rng(0).normal(0.001, 0.01, 500)
    ours = performance(net, 252)
    assert ours["annual_volatility"] == pytest.approx(skfolio.measures.standard_deviation(net) * np.sqrt(252))
    drawdowns = skfolio.measures.get_drawdowns(net, compounded=True)
    assert ours["max_drawdown"] == pytest.approx(skfolio.measures.max_drawdown(drawdowns), rel=1e-6)
    assert ours["sharpe"] == pytest.approx(net.mean() / net.std(ddof=1) * np.sqrt(252))
    assert ours["annual_return"] == pytest.approx(np.prod(1 + net) ** (252 / 500) - 1)


def test_a_loss_from_the_start_is_a_drawdown():
    assert performance(np.array([-0.5, 0.2, 0.2]), 252)["max_drawdown"] == pytest.approx(0.5)


def test_ruin_and_a_single_step():
    assert performance(np.array([0.1, -1.0, 0.1]), 252)["annual_return"] == -1.0
    assert np.isnan(performance(np.array([0.1]), 252)["sharpe"])
