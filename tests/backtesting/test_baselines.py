import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge

from time2decide.backtesting.baselines import (
    AveragedOracle,
    LagOneOracle,
    PredictThenOptimise,
    SoftForecast,
    Uniform,
)
from time2decide.core.validation import InputError
from time2decide.forecasting.simple import ar1, persistence, ridge
from time2decide.markets import BUDGETS, LMCConfig, covariance_by, mean_variance_step, oracle_path, synthetic_returns
from time2decide.simulation.engine import Observation, rollout
from time2decide.simulation.metrics import score


@pytest.fixture(scope="module")
def market():
    returns = synthetic_returns("clean", count=6, config=LMCConfig(length=300))
    return returns, oracle_path(returns, BUDGETS)


def past_of(returns, hindsight=None, gammas=(1.0,)):
    held = np.full((len(returns), len(gammas), returns.shape[1], returns.shape[2]), 1 / returns.shape[2])
    return Observation(returns, held, hindsight, np.asarray(gammas), 0.1)


def test_forecasts_equal_those_of_scikit_learn():
    window = np.random.default_rng(0).normal(size=(2, 96, 3)).cumsum(axis=1) * 0.01
    np.testing.assert_array_equal(persistence(window), window[:, -1])
    x = window[1, :, 2]
    centred = x - x.mean()
    slope = LinearRegression(fit_intercept=False).fit(centred[:-1, None], centred[1:]).coef_[0]
    assert ar1(window)[1, 2] == pytest.approx(x.mean() + slope * centred[-1])
    features = np.stack([centred[i : i + 16] for i in range(80)])
    model = Ridge(alpha=0.1 * 80 * centred.var(), fit_intercept=False).fit(features, centred[16:])
    assert ridge(window)[1, 2] == pytest.approx(x.mean() + model.predict(centred[None, -16:])[0])


def test_forecasts_of_a_constant_are_that_constant():
    window = np.full((1, 96, 2), 0.02)
    for forecaster in (persistence, ar1, ridge):
        np.testing.assert_allclose(forecaster(window), 0.02)


def test_ridge_forecasts_a_sine_that_persistence_cannot():
    wave = np.sin(np.arange(97) * 2 * np.pi / 12)[None, :, None]
    assert abs(ridge(wave[:, :96], penalty=1e-6)[0, 0] - wave[0, 96, 0]) < 1e-3
    assert abs(persistence(wave[:, :96])[0, 0] - wave[0, 96, 0]) > 0.1


def test_lag_one_oracle_is_pto_with_persistence(market):
    returns, oracle = market
    lagged = rollout(returns, LagOneOracle(), BUDGETS, oracle=oracle)
    np.testing.assert_allclose(lagged.raw[:, :, 97:], oracle[:, :, 96:-1], atol=1e-15)
    planned = rollout(returns, PredictThenOptimise(), BUDGETS)
    # they start one step apart and use covariances one step apart; both are forgotten quickly
    difference = np.abs(lagged.raw - planned.raw)[:, :, 120:].max(-1)
    assert np.median(difference) < 1e-9
    assert difference.mean() < 0.02


def test_pto_solves_the_oracles_problem_with_its_forecast(market):
    returns, _ = market
    past = past_of(returns[:, :96], gammas=(0.5, 2.0))
    ours = PredictThenOptimise(ar1, shrinkage=(1.0, 0.01)).decide(past)
    forecast = ar1(past.returns)
    for k, (gamma, rho) in enumerate(((0.5, 1.0), (2.0, 0.01))):
        mean = forecast.mean(-1, keepdims=True)
        expected = mean_variance_step(mean + rho * (forecast - mean), past.covariance, past.previous[:, k], gamma)
        np.testing.assert_allclose(ours[:, k], expected, atol=1e-9)


def test_pto_with_no_trust_in_its_forecast_minimises_variance(market):
    returns, _ = market
    past = past_of(returns[:, :96], gammas=(2.0,))
    weights = PredictThenOptimise(shrinkage=0.0).decide(past)[:, 0]
    least = mean_variance_step(np.zeros_like(weights), past.covariance, past.previous[:, 0], 2.0)
    variance = [np.einsum("ni,nij,nj->n", w, past.covariance, w) for w in (weights, least)]
    np.testing.assert_allclose(*variance, rtol=1e-6)


def test_pto_takes_other_covariances(market):
    from sklearn.covariance import LedoitWolf

    past = past_of(market[0][:2, :96])
    shrunk = covariance_by(LedoitWolf())
    ours = PredictThenOptimise(shrinkage=0.0, covariance=shrunk).decide(past)[:, 0]
    expected = mean_variance_step(np.zeros_like(ours), shrunk(past.returns), past.previous[:, 0], 1.0)
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_soft_forecasts_are_calibrated_between_uniform_and_one_hot(market):
    past = past_of(market[0][:, :96], gammas=(0.5, 1.0))
    weights = SoftForecast(temperature=(1e-6, 1e6)).decide(past)
    np.testing.assert_allclose(weights[:, 0].max(-1), 1.0)
    np.testing.assert_array_equal(weights[:, 0].argmax(-1), past.returns[:, -1].argmax(-1))
    np.testing.assert_allclose(weights[:, 1], 1 / 16, atol=1e-4)
    np.testing.assert_allclose(weights.sum(-1), 1)


def test_averaged_oracle_without_spread_is_one_greedy_step(market):
    returns, oracle = market
    past = past_of(returns[:, :96], oracle[:, 2:3, 4:100], (1.0,))
    ours = AveragedOracle(persistence, spread=0.0).decide(past)[:, 0]
    anchor = oracle[:, 2, 99]
    expected = mean_variance_step(returns[:, 95], past.covariance, anchor, 1.0)
    assert np.median(np.abs(ours - expected).max(-1)) < 1e-12


def test_averaged_oracle_moves_from_risky_to_calm_assets_where_forecasts_are_equal():
    rng = np.random.default_rng(0)
    returns = rng.standard_normal((1, 96, 3)) * [0.01, 0.05, 0.2]
    returns[:, -1] = 0.0  # persistence forecasts the same for all
    past = Observation(returns, np.full((1, 1, 96, 3), 1 / 3), np.full((1, 1, 96, 3), 1 / 3), np.array([0.2]), 10.0)
    weights = AveragedOracle(persistence, spread=0.0).decide(past)[0, 0]
    np.testing.assert_allclose(weights, [1 / 3 + 0.1, 1 / 3, 1 / 3 - 0.1])


def test_scenarios_have_no_trend_of_their_own():
    """A window that rises by the same amount at every step has no spread: its scenarios are its forecast."""
    rising = np.arange(96)[:, None] * np.array([1e-4, 2e-4, 3e-4]) + np.array([0.02, 0.01, 0.0])
    past = past_of(rising[None], np.full((1, 1, 96, 3), 1 / 3))
    with_spread, without = (AveragedOracle(persistence, spread=s).decide(past) for s in (200.0, 0.0))
    np.testing.assert_allclose(with_spread, without, atol=1e-12)


def test_soft_forecasts_have_no_unit(market):
    returns = market[0][:, :96]
    small, large = (SoftForecast(temperature=0.7).decide(past_of(size * returns)) for size in (1.0, 30.0))
    np.testing.assert_allclose(small, large, atol=1e-9)


def test_calibrated_strategies_beat_the_plug_in(market):
    returns, oracle = market
    mse = {
        s.name: score(rollout(returns, s, BUDGETS, oracle=oracle), returns, oracle).mse.mean(0)
        for s in (Uniform(), LagOneOracle(), AveragedOracle())
    }
    assert (mse["averaged-oracle"] < mse["lag1-oracle"]).all()
    assert (mse["lag1-oracle"] < mse["uniform"])[:-2].all()  # at γ near 2 certainty costs it this too


def test_misuse_is_named(market):
    past = past_of(market[0][:, :96], gammas=(0.5, 1.0))
    with pytest.raises(InputError, match="expected 1 or 2 values"):
        SoftForecast(temperature=(1.0, 1.0, 1.0)).decide(past)
    with pytest.raises(InputError, match="wants_hindsight"):
        LagOneOracle().decide(past)
