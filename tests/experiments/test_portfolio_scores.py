"""Comparisons in pairs say what the scores say, and their intervals hold the truth as often as they should."""

import numpy as np
import pytest

from time2decide.experiments.portfolio_scores import portfolio_bootstrap_error, portfolio_gain


def test_a_gain_is_that_of_the_means_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.uniform(1.0, 2.0, 60)
    ours = 0.7 * theirs + 0.05 * rng.standard_normal(60)
    middle, low, high = portfolio_gain(ours, theirs, "mse")
    assert np.isclose(middle, 100 * (1 - ours.mean() / theirs.mean()))
    assert 25 < low < middle < high < 35
    assert np.isclose(portfolio_bootstrap_error(theirs), theirs.std(ddof=1) / 60**0.5, rtol=0.1)


@pytest.mark.parametrize("key", ["mse", "regret"])
def test_intervals_called_95_per_cent_hold_the_truth_in_about_95_of_100_samples(key: str) -> None:
    rng = np.random.default_rng(2)
    truth = 50.0 if key == "mse" else 1e4  # the mean of theirs is 2, that of ours 1
    trials = 300
    inside = 0
    for _ in range(trials):
        theirs = 2 + 0.5 * rng.standard_normal(60)
        ours = 1 + 0.5 * rng.standard_normal(60)
        _, low, high = portfolio_gain(ours, theirs, key)
        inside += low <= truth <= high
    assert 0.90 <= inside / trials <= 0.985


def test_a_gain_in_regret_is_a_difference_and_may_pass_zero() -> None:
    rng = np.random.default_rng(1)
    theirs = 1e-4 * rng.uniform(1.0, 2.0, 60)
    ours = theirs - 3e-4 + 1e-5 * rng.standard_normal(60)
    middle, low, high = portfolio_gain(ours, theirs, "regret")
    assert np.isclose(middle, 3.0, atol=0.1)
    assert low < middle < high
    assert portfolio_gain(theirs, theirs, "regret") == (0.0, 0.0, 0.0)
    assert np.isclose(portfolio_gain(0.5 * theirs, theirs, "mse")[0], 50.0)
