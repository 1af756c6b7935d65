"""The prior of markets: what is said to be conditional is, a seed gives the same market, predictability as asked."""

import numpy as np
import pytest

from time2decide.markets.prior import KINDS, random_market


def market(seed=0, kind=None, assets=5, steps=4000):
    return random_market(assets, steps, np.random.default_rng(seed), kind)


def test_a_seed_gives_the_same_market():
    one, two = market(3), market(3)
    np.testing.assert_array_equal(one.returns, two.returns)
    assert not np.array_equal(one.returns, market(4).returns)


@pytest.mark.parametrize("seed", range(4))
def test_conditional_moments_are_those_of_the_returns(seed):
    drawn = market(seed, "none")
    errors = drawn.returns - drawn.mean
    expected = drawn.covariance(np.arange(4000)).mean(0)
    found = errors.T @ errors / 4000
    scale = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(found / np.outer(scale, scale), expected / np.outer(scale, scale), atol=0.35)
    assert np.linalg.eigvalsh(drawn.covariance(7)).min() > 0


def test_volatility_that_is_known_explains_the_size_of_returns():
    drawn = market(11, "none")
    sizes = np.log(np.abs(drawn.returns - drawn.mean).mean(1) + 1e-9)
    known = np.log(np.sqrt(drawn.covariance(np.arange(4000)).diagonal(axis1=1, axis2=2)).mean(1))
    assert known.std() < 1e-6 or np.corrcoef(sizes, known)[0, 1] > 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_predictability_is_what_was_asked_for(kind):
    drawn = market(5, kind)
    moves = drawn.mean.std(axis=0).max()
    assert (moves < 1e-12) == (kind == "none")
    if kind == "reversal":  # the mean of a day leans against what came before
        errors = drawn.returns - drawn.mean
        assert np.mean([np.corrcoef(drawn.mean[1:, i], errors[:-1, i])[0, 1] for i in range(5)]) < -0.1
