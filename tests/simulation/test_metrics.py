import numpy as np
import pytest
import skfolio.measures

from time2decide.backtesting.baselines import Uniform, oracle_rollout
from time2decide.markets import empirical_covariance, oracle_path
from time2decide.simulation.engine import Rollout, rollout
from time2decide.simulation.metrics import (
    PairedBootstrap,
    annual_performance,
    net_returns,
    realised_utility,
    rollout_traded,
    rollout_turnover,
    score,
    stationary_bootstrap,
    utility_path,
)


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
    np.testing.assert_allclose(
        rollout_traded(Rollout("x", held, held, np.ones(1), 2, 0.1), returns)[0, 0], [0, 1 / 3, 0]
    )


def test_performance_equals_skfolio():
    net = np.random.default_rng(0).normal(0.001, 0.01, 500)
    ours = annual_performance(net, 252)
    assert ours["annual_volatility"] == pytest.approx(skfolio.measures.standard_deviation(net) * np.sqrt(252))
    drawdowns = skfolio.measures.get_drawdowns(net, compounded=True)
    assert ours["max_drawdown"] == pytest.approx(skfolio.measures.max_drawdown(drawdowns), rel=1e-6)
    assert ours["sharpe"] == pytest.approx(net.mean() / net.std(ddof=1) * np.sqrt(252))
    assert ours["annual_return"] == pytest.approx(np.prod(1 + net) ** (252 / 500) - 1)


def test_a_loss_from_the_start_is_a_drawdown():
    assert annual_performance(np.array([-0.5, 0.2, 0.2]), 252)["max_drawdown"] == pytest.approx(0.5)


def test_ruin_and_a_single_step():
    assert annual_performance(np.array([0.1, -1.0, 0.1]), 252)["annual_return"] == -1.0
    assert np.isnan(annual_performance(np.array([0.1]), 252)["sharpe"])


def test_net_returns_and_turnover_by_hand():
    returns = np.random.default_rng(1).normal(0, 0.03, (1, 100, 3))
    result = rollout(returns, Uniform(), 1.0, budget_from="drifted", cost_bps=50)
    net, amount = net_returns(result, returns, 50)
    grown = (1 + returns[0, 96:-1]) / 3
    expected = np.abs(1 / 3 - grown / grown.sum(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(amount[0, 0], [0, *expected])
    np.testing.assert_allclose(net[0, 0], (1 - 0.005 * amount[0, 0]) * (1 + returns[0, 96:].mean(1)) - 1)
    np.testing.assert_allclose(rollout_turnover(result, returns), amount)
    np.testing.assert_allclose(realised_utility(net, 5.0), net.mean(-1) - 5 * net.var(-1))


def test_paired_moments_are_those_of_the_drawn_steps():
    rng = np.random.default_rng(2)
    net = rng.normal(0.01, 0.02, (3, 50))
    bootstrap = PairedBootstrap(50, draws=40, block=7.0, seed=5)
    places = stationary_bootstrap(50, 40, 7.0, np.random.default_rng(5))
    mean, variance = bootstrap.moments(net)
    np.testing.assert_allclose(mean, net[:, places].mean(-1))
    np.testing.assert_allclose(variance, net[:, places].var(-1), atol=1e-12)


def test_a_paired_interval_is_narrower_than_its_parts_and_covers_the_difference():
    rng = np.random.default_rng(3)
    market = rng.normal(0, 0.02, 1000)
    net = market + np.array([[0.0], [0.0005]]) + rng.normal(0, 0.001, (2, 1000))
    mean, _ = PairedBootstrap(1000).moments(net)
    low, high = PairedBootstrap.interval(mean[1] - mean[0])
    assert 0 < low < 0.0005 < high
    alone = PairedBootstrap.interval(mean[0])
    assert high - low < 0.2 * (alone[1] - alone[0])


def test_bootstrap_blocks_are_stretches_of_the_path():
    """Consecutive steps, wrapped around the end, of mean length `block`, beginning anywhere alike."""
    places = stationary_bootstrap(60, 4000, 6.0, np.random.default_rng(0))
    assert places.shape == (4000, 60)
    assert places.min() == 0
    assert places.max() == 59
    follows = (places[:, 1:] == (places[:, :-1] + 1) % 60).mean()
    assert follows == pytest.approx(1 - 1 / 6 + 1 / 360, abs=0.01)
    for step in (0, 30):
        np.testing.assert_allclose(np.bincount(places[:, step], minlength=60) / 4000, 1 / 60, atol=0.01)
