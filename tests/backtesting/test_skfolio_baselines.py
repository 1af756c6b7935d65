"""skfolio's portfolios as strategies: the fits they claim to be, refitted when they should be."""

from dataclasses import replace

import numpy as np
import pytest
from skfolio.optimization import InverseVolatility

from time2decide.backtesting.registry import REGISTRY, make_strategy
from time2decide.backtesting.skfolio_baselines import (
    COVARIANCES,
    bayes_stein_mean,
    skfolio_inverse_volatility,
    skfolio_mean_variance_under,
    skfolio_minimum_variance,
)
from time2decide.simulation.engine import Observation, rollout
from time2decide.simulation.metrics import rollout_traded


@pytest.fixture(scope="module")
def returns():
    scale = np.array([0.005, 0.01, 0.02])
    return np.random.default_rng(0).normal(0, 1, (2, 130, 3)) * scale


def test_weights_are_skfolios_and_are_held_between_fits(returns):
    result = rollout(returns, replace(skfolio_inverse_volatility(), every=10), 2.0)
    for series in range(2):
        for t in (96, 106, 129):
            fitted_at = 96 + 10 * ((t - 96) // 10)
            expected = InverseVolatility().fit(returns[series, fitted_at - 96 : fitted_at]).weights_
            np.testing.assert_allclose(result.raw[series, 0, t], expected)


def test_a_new_series_starts_with_a_new_fit(returns):
    strategy = replace(skfolio_minimum_variance(), every=10)
    first = rollout(returns[:1], strategy, 2.0)
    rollout(returns[1:], strategy, 2.0)
    np.testing.assert_array_equal(rollout(returns[:1], strategy, 2.0).raw, first.raw)
    assert first.raw[0, 0, -1].argmax() == 0  # the calmest asset


def test_the_budget_is_imposed_step_by_step(returns):
    held = rollout(returns, skfolio_minimum_variance(), 0.05).allocations[:, 0, 95:]
    assert np.abs(np.diff(held, axis=1)).sum(-1).max() <= 0.05 + 1e-9


def test_once_there_the_weights_drift_until_the_next_fit(returns):
    strategy = replace(skfolio_inverse_volatility(), every=10)
    held = rollout(returns, strategy, 0.1, budget_from="drifted")
    amount = rollout_traded(held, returns)[:, 0]
    held = held.allocations
    for series in range(2):
        for fitted_at in (0, 10, 20):
            moves = amount[series, fitted_at : fitted_at + 10] > 1e-9
            assert moves[0]
            assert not moves[-1]
            assert (np.diff(moves.astype(int)) <= 0).all()  # it moves, arrives, and lets go


@pytest.mark.parametrize("name", ["minimum-variance-qis", "minimum-variance-iewma", "mean-variance-lw"])
def test_every_fit_is_best_under_its_covariance(name, returns):
    kind, covariance = name.rsplit("-", 1)
    sigma = COVARIANCES[covariance][0](returns[0, :96])
    mean = bayes_stein_mean(returns[0, :96], sigma) if kind == "mean-variance" else np.zeros(3)
    weights = rollout(returns[:1], make_strategy(name), 2.0, risk_aversion=3.0).raw[0, 0, 96]
    grid = np.random.default_rng(0).dirichlet(np.ones(3), 3000)
    value = grid @ mean - 3 * np.einsum("gi,ij,gj->g", grid, sigma, grid)
    best = weights @ mean - 3 * weights @ sigma @ weights
    assert best >= value.max() - 1e-12
    assert best - value.max() < 1e-4 * abs(value).max()


def test_minimum_variance_is_that_of_skfolio(returns):
    held = np.full((1, 1, 96, 3), 1 / 3)
    seen = Observation(returns[:1, :96], held, None, np.array([2.0]), 1.0)
    ours = skfolio_mean_variance_under("lw", with_mean=False).fit(returns[0, :96], seen)
    np.testing.assert_allclose(ours, skfolio_minimum_variance().fit(returns[0, :96], seen), atol=5e-4)


def test_bayes_stein_mean_shrinks_noise_and_keeps_what_is_certain():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, (252, 20))
    deviation = bayes_stein_mean(noise, np.cov(noise.T)).std()
    assert deviation < 0.6 * noise.mean(0).std()
    sure = noise + np.linspace(-0.01, 0.01, 20)
    assert bayes_stein_mean(sure, np.cov(sure.T)).std() > 0.95 * sure.mean(0).std()


def test_every_entry_says_what_it_is_and_carries_its_name():
    for name, entry in REGISTRY.items():
        assert len(entry.description) > 10
        assert entry.make().name == name


@pytest.mark.parametrize(("year", "expected"), [(252.0, [0, 21, 42]), (52.0, [*range(0, 44, 4)]), (12.0, [*range(44)])])
def test_a_fit_lasts_a_month_of_the_table(year, expected):
    fitted = []

    def fit(returns, observation):
        fitted.append(observation.step - 96)
        return np.full(3, 1 / 3)

    strategy = replace(skfolio_inverse_volatility(), fit=fit)
    rollout(np.random.default_rng(0).normal(0, 0.01, (140, 3)), strategy, 1.0, periods_per_year=year)
    assert fitted == expected


@pytest.mark.parametrize("name", [name for name in REGISTRY if "minimum" in name or "mean-v" in name or "risk" in name])
def test_assets_that_do_not_move_are_no_obstacle(name):
    returns = np.random.default_rng(0).normal(0, 0.01, (1, 300, 6))
    returns[..., 0], returns[..., 1:3] = 0.0, np.repeat([1e-4, 5e-5], 150)[:, None]
    weights = rollout(returns, make_strategy(name), 2.0, window=298).raw[0, 0, -1]
    assert np.isfinite(weights).all()
    assert weights.sum() == pytest.approx(1.0)
