"""Reasons and uncertainty of a decision: derivatives that are right, ensembles that repeat, noise that shrinks."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from time2decide.forecasting.features import window_features
from time2decide.policy.explanation import explain, noise_curve, resample_histories, uncertainty
from time2decide.policy.model import Time2Decide, observe_histories
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.metrics import stationary_bootstrap


@pytest.fixture(scope="module")
def model():
    return Time2Decide.from_pretrained("decide")


@pytest.fixture(scope="module")
def returns():
    rng = np.random.default_rng(3)
    time = np.arange(130)[:, None]
    return 0.01 * np.sin(time / 5 + np.arange(4)) + rng.normal(0, 0.003, (130, 4))


@pytest.fixture(scope="module")
def decision(model, returns):
    return model.decision(returns, [0.4, 0.3, 0.2, 0.1], 0.6)


def test_features_of_a_tensor_is_that_of_the_array_and_has_a_gradient(returns):
    window = torch.from_numpy(returns[None, -96:]).requires_grad_()
    seen, plain = window_features(window), window_features(returns[None, -96:])
    torch.testing.assert_close(seen.forecasts.detach(), plain.forecasts)
    (slope,) = torch.autograd.grad(seen.forecasts.sum() + seen.innovation.square().sum(), window)
    assert torch.isfinite(slope).all()
    assert slope.abs().max() > 0


def test_pull_is_the_derivative_along_the_window(model, returns, decision):
    """Σ_j pull_j is the derivative of the wanted amount when the window is stretched about its mean."""
    why = explain(model, decision)
    past = observe_histories(returns[None], decision.previous, 0.6, 0.1)
    direction = np.sign(decision.weights - decision.previous) / 2
    strategy, window = model.strategy(), past.returns[0]
    centred = window - window.mean(axis=0)

    def amount(size, asset):
        changed = window.copy()
        changed[:, asset] += size * centred[:, asset]
        answer = strategy.output(strategy.inputs(replace(past, returns=changed[None])))
        return direction @ answer.weights[0].double().numpy()

    for asset in range(4):
        slope = (amount(0.02, asset) - amount(-0.02, asset)) / 0.04
        assert why.pull[asset] == pytest.approx(slope, abs=0.02 + 0.15 * abs(slope))
    assert (why.sensitivity >= 0).all()
    assert (why.covariance >= 0).all()
    assert why.covariance.sum() > 0


def test_spread_repeats_by_seed_and_grows_with_noise(model, returns, decision):
    first, again = (uncertainty(model, decision, members=8, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.weights, again.weights)
    assert first.portfolio == again.portfolio
    assert not np.array_equal(first.weights, uncertainty(model, decision, members=8, seed=6).weights)
    rng = np.random.default_rng(0)
    noisy = returns + rng.normal(0, 0.01, returns.shape)
    other = uncertainty(model, model.decision(noisy, decision.previous, 0.6), members=16)
    calm = uncertainty(model, decision, members=16)
    assert other.forecast.mean() > calm.forecast.mean()


def test_resampled_histories_keep_what_is_explained(returns):
    smooth = 0.01 * np.sin(np.arange(130)[:, None] / 5 + np.arange(4))
    drawn = resample_histories(smooth, 3, np.random.default_rng(0))
    assert np.abs(drawn - smooth).max() < 2e-3
    drawn = resample_histories(returns, 200, np.random.default_rng(0))
    assert drawn.shape == (200, 130, 4)
    assert 0.5 < drawn[:, 20:].std() / returns.std() < 2


def test_the_mean_decision_fades_with_noise(model, returns, decision):
    rows = noise_curve(model, decision, members=12, levels=(0.0, 1.0, 8.0))
    assert rows[0]["moved"] == pytest.approx(decision.turnover, abs=1e-6)
    assert rows[2]["from_uniform"] < rows[0]["from_uniform"]
    assert rows == noise_curve(model, decision, members=12, levels=(0.0, 1.0, 8.0))


def test_many_histories_at_once_are_one_after_the_other(model, returns):
    histories = np.stack([returns, returns[::-1].copy()])
    weights, expected = model.decide_batch(histories, np.full(4, 0.25), 0.5, 0.1)
    for i, history in enumerate(histories):
        alone = model.decision(history, None, 0.5)
        np.testing.assert_allclose(weights[i], alone.weights, atol=1e-5)
        np.testing.assert_allclose(expected[i], alone.forecast, atol=1e-6)


def test_blocks_are_runs_of_consecutive_places():
    places = stationary_bootstrap(100, 50, 10.0, np.random.default_rng(1))
    steps = np.diff(places, axis=1) % 100
    assert 0.85 < (steps == 1).mean() < 0.95  # 1 − 1/10, and a new block may begin where the old one went on
    assert np.bincount(places.ravel(), minlength=100).min() > 0


def test_what_rests_on_hindsight_is_the_change_without_it(model, returns, decision):
    why = explain(model, decision)
    past = observe_histories(returns[None], decision.previous, 0.6, 0.1)
    own = model.strategy("own")
    wanted = own.decide(past)[0, 0]
    weights = np.asarray(project_portfolio(wanted, decision.previous, 0.6))
    assert why.hindsight == pytest.approx(np.abs(weights - decision.weights).sum())
    assert why.hindsight > 0
    patient = Time2Decide.from_pretrained("decide-utility")
    assert patient.strategy().history == "own"  # what it was trained on
    assert explain(patient, patient.decision(returns, decision.previous, 0.6)).hindsight == 0.0


@pytest.mark.parametrize("name", ["decide", "decide-utility"])
def test_equal_assets_have_finite_reasons(name, returns):
    same = np.repeat(returns[:, :1], 3, axis=1)
    network = Time2Decide.from_pretrained(name)
    why = explain(network, network.decision(same, [0.5, 0.3, 0.2], 0.5))
    assert np.isfinite([why.pull, why.sensitivity, why.covariance]).all()
