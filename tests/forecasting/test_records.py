"""Records of forecasts: what is right is followed, what is noise is not, and a row counts once."""

from dataclasses import replace

import numpy as np
import pytest

from time2decide.forecasting.records import RecordConfig, posterior_slopes, record_terms

CONFIG = RecordConfig()


def record(forecasts, outcomes, keep=CONFIG.keep):
    """Sums (5, E, H) after rows of forecasts (rows, E, H, m) and outcomes (rows, H, m)."""
    sums = np.zeros((5, *forecasts.shape[1:3]))
    for forecast, outcome in zip(forecasts, outcomes, strict=True):
        sums = keep * sums + record_terms(forecast, np.broadcast_to(outcome, forecast.shape))
    return sums


def drawn(rows, slope, experts=1, horizons=1, m=8, noise=1.0, seed=0):
    """Forecasts, and outcomes that follow the first expert's with a slope."""
    rng = np.random.default_rng(seed)
    forecasts = rng.normal(size=(rows, experts, horizons, m))
    return forecasts, slope * forecasts[:, 0] + noise * rng.normal(size=(rows, horizons, m))


@pytest.mark.parametrize("slope", [1.0, 0.6])
def test_a_forecast_is_followed_as_far_as_what_happened_has_followed_it(slope):
    found = posterior_slopes(record(*drawn(600, slope)), np.ones(1), CONFIG)
    assert found.slope[0, 0] == pytest.approx(slope, abs=0.05)
    assert found.probability[0, 0] > 0.999
    assert found.estimate[0, 0] == pytest.approx(slope, abs=4 * found.error[0, 0])
    perfect = posterior_slopes(record(*drawn(100, 1.0, noise=1e-3)), np.ones(1), CONFIG)
    assert perfect.slope[0, 0] == pytest.approx(1.0, abs=1e-3)


def test_noise_and_what_is_wrong_are_not_followed():
    slopes = [posterior_slopes(record(*drawn(600, 0.0, seed=k)), np.ones(1), CONFIG).slope.max() for k in range(20)]
    assert max(slopes) < 0.01
    assert posterior_slopes(record(*drawn(600, -0.5)), np.ones(1), CONFIG).slope.max() < 1e-6


def test_before_any_row_the_prior_counts_and_nothing_is_made_of_what_is_not_forecast():
    empty = np.zeros((5, 2, 3))
    found = posterior_slopes(empty, np.ones(3), CONFIG)
    np.testing.assert_allclose(found.probability.sum(0), CONFIG.worth)
    assert np.isnan(found.estimate).all()
    made = np.array([[True, True, False], [False, False, False]])
    some = posterior_slopes(empty, np.ones(3), CONFIG, made)
    assert (some.slope[~made] == 0).all()
    assert (some.slope[made] > 0).all()


def test_assets_of_a_row_that_move_together_count_as_one():
    """The same forecast and outcome for every asset: a hundred assets say no more than one."""
    rng = np.random.default_rng(1)
    forecast = rng.normal(size=(40, 1, 1, 1))
    outcome = 0.3 * forecast[:, 0] + rng.normal(size=(40, 1, 1))
    alone = posterior_slopes(record(forecast, outcome), np.ones(1), CONFIG)
    many = posterior_slopes(record(np.repeat(forecast, 100, -1), np.repeat(outcome, 100, -1)), np.ones(1), CONFIG)
    for one, other in zip(alone, many, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9)


def test_forecasts_that_overlap_count_once():
    sums = record(*drawn(300, 0.5))
    one, ten = (posterior_slopes(sums, np.array([length]), CONFIG) for length in (1, 10))
    assert ten.estimate == one.estimate
    assert ten.error[0, 0] > 3 * one.error[0, 0]


def test_the_standard_error_is_that_of_repeated_draws():
    config = replace(CONFIG, half_life=1e9)
    found = [posterior_slopes(record(*drawn(200, 1.0, seed=k), config.keep), np.ones(1), config) for k in range(60)]
    spread = np.std([one.estimate[0, 0] for one in found])
    assert np.mean([one.error[0, 0] for one in found]) == pytest.approx(spread, rel=0.3)


def test_of_several_experts_the_one_that_is_right_is_followed():
    found = posterior_slopes(record(*drawn(400, 1.0, experts=3)), np.ones(1), CONFIG)
    assert found.probability[0, 0] > 0.99
    assert found.slope[1:].max() < 0.01


def test_horizons_lean_on_their_neighbours_unless_they_have_nothing_to_do_with_them():
    """Two horizons, of which the first is surely noise; the second has hardly any rows."""
    forecasts, outcomes = drawn(500, 0.0, horizons=2)
    sums = record(forecasts, outcomes)
    sums[:, :, 1] = 0.0
    together, apart = (
        posterior_slopes(sums, np.ones(2), replace(CONFIG, same=same)).probability[0, 1] for same in (0.9, 0.0)
    )
    assert apart == pytest.approx(CONFIG.worth, abs=1e-6)
    assert together < 0.3 * apart
    sure = record(*drawn(500, 1.0, horizons=2))
    sure[:, :, 1] = 0.0
    assert posterior_slopes(sure, np.ones(2), CONFIG).probability[0, 1] > 0.8


def test_the_unit_of_forecasts_and_outcomes_does_not_matter():
    forecasts, outcomes = drawn(200, 0.8, experts=2, horizons=2)
    plain = posterior_slopes(record(forecasts, outcomes), np.ones(2), CONFIG)
    small = posterior_slopes(record(1e-3 * forecasts, 1e-3 * outcomes), np.ones(2), CONFIG)
    for one, other in zip(plain, small, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-9)


def test_what_stops_working_is_dropped():
    config = replace(CONFIG, half_life=60.0)
    good, bad = drawn(300, 1.0), drawn(600, 0.0, seed=1)
    found = record(np.concatenate([good[0], bad[0]]), np.concatenate([good[1], bad[1]]), config.keep)
    assert posterior_slopes(record(*good, config.keep), np.ones(1), config).slope[0, 0] > 0.9
    assert posterior_slopes(found, np.ones(1), config).slope[0, 0] < 0.02
