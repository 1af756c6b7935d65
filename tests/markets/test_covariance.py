import numpy as np
import pytest
from sklearn.covariance import LedoitWolf

from time2decide.core.validation import InputError
from time2decide.markets.covariance import covariance_by, empirical_covariance, rolling_covariances


def test_windows_of_any_batch_are_those_of_numpy():
    windows = np.random.default_rng(0).normal(size=(2, 3, 20, 4))
    found = empirical_covariance(windows)
    assert found.shape == (2, 3, 4, 4)
    for place in np.ndindex(2, 3):
        np.testing.assert_allclose(found[place], np.cov(windows[place].T), atol=1e-14)
        expected = LedoitWolf().fit(windows[place]).covariance_
        np.testing.assert_allclose(covariance_by(LedoitWolf())(windows)[place], expected, atol=1e-14)
        np.testing.assert_allclose(covariance_by(LedoitWolf())(windows[place]), expected, atol=1e-14)
        np.testing.assert_allclose(empirical_covariance(windows[place]), found[place], atol=1e-16)


def test_rolling_windows_end_with_every_row():
    returns = np.random.default_rng(1).normal(size=(2, 9, 3))
    found = rolling_covariances(returns, 4)
    assert found.shape == (2, 6, 3, 3)
    for series, first in np.ndindex(2, 6):
        np.testing.assert_allclose(found[series, first], np.cov(returns[series, first : first + 4].T), atol=1e-14)


class OnlyFit:
    def fit(self, rows): ...


class OnlyParameters:
    def get_params(self): ...


@pytest.mark.parametrize("estimator", [OnlyFit(), OnlyParameters(), None])
def test_what_is_no_estimator_is_refused(estimator):
    with pytest.raises(InputError, match="estimator: expected one of scikit-learn or skfolio"):
        covariance_by(estimator)
