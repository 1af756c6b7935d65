"""skfolio's portfolios as strategies: the fits they claim to be, refitted when they should be."""

import numpy as np
import pytest
from skfolio.optimization import InverseVolatility

from time2decide.backtesting.registry import REGISTRY, network
from time2decide.backtesting.skfolio_baselines import inverse_volatility, minimum_variance
from time2decide.forecasting.features import CachedFeatures, window_features
from time2decide.simulation.engine import rollout


@pytest.fixture(scope="module")
def returns():
    scale = np.array([0.005, 0.01, 0.02])
    return np.random.default_rng(0).normal(0, 1, (2, 130, 3)) * scale


def test_weights_are_skfolios_and_are_held_between_fits(returns):
    result = rollout(returns, inverse_volatility(every=10), 2.0)
    for series in range(2):
        for t in (96, 106, 129):
            fitted_at = 96 + 10 * ((t - 96) // 10)
            expected = InverseVolatility().fit(returns[series, fitted_at - 96 : fitted_at]).weights_
            np.testing.assert_allclose(result.raw[series, 0, t], expected)


def test_a_new_series_starts_with_a_new_fit(returns):
    strategy = minimum_variance(every=10)
    first = rollout(returns[:1], strategy, 2.0)
    rollout(returns[1:], strategy, 2.0)
    np.testing.assert_array_equal(rollout(returns[:1], strategy, 2.0).raw, first.raw)
    assert first.raw[0, 0, -1].argmax() == 0  # the calmest asset


def test_the_budget_is_imposed_step_by_step(returns):
    held = rollout(returns, minimum_variance(), 0.05).allocations[:, 0, 95:]
    assert np.abs(np.diff(held, axis=1)).sum(-1).max() <= 0.05 + 1e-9


def test_every_entry_says_what_it_is_and_carries_its_name():
    for name, entry in REGISTRY.items():
        assert len(entry.description) > 10
        assert entry.make().name == name


def test_networks_share_their_outlooks(returns):
    memory = CachedFeatures(most=2)
    window = returns[:, :96]
    assert memory(window) is memory(window.copy())
    np.testing.assert_array_equal(memory(window).forecasts, window_features(window).forecasts)
    first = memory(window)
    memory(window + 1e-3), memory(window + 2e-3)
    assert memory(window) is not first
    assert network("decide", "own", "a").features_of is network("decide", "hindsight", "b").features_of
