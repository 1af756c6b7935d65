"""Covariance estimators in skfolio: equal to the recursions, scored online, gaps and listings."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from time2decide.backtesting.skfolio_covariance import (
    CMIEWMACovariance,
    IEWMACovariance,
    QISCovariance,
    ReactiveCovariance,
    TwoScaleCovariance,
)
from time2decide.core.validation import InputError
from time2decide.markets.estimators import IteratedEWMA
from time2decide.policy.model import Time2Decide

ESTIMATORS = [
    *(IEWMACovariance(), TwoScaleCovariance(), CMIEWMACovariance(((10, 21), (63, 125))), QISCovariance(120)),
    ReactiveCovariance(),
]


@pytest.fixture
def returns():
    rng = np.random.default_rng(0)
    values = 0.01 * (rng.normal(size=(300, 1)) + rng.normal(size=(300, 4)))
    return pd.DataFrame(values, columns=list("abcd"))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_fit_equals_partial_fits_and_is_scored_by_skfolio(estimator, returns):
    from skfolio.model_selection import online_covariance_forecast_evaluation

    whole = clone(estimator).fit(returns).covariance_
    parts = clone(estimator).partial_fit(returns[:150]).partial_fit(returns[150:]).covariance_
    np.testing.assert_allclose(parts, whole, rtol=1e-8)
    evaluation = online_covariance_forecast_evaluation(estimator, returns, warmup_size=200, test_size=5)
    summary = evaluation.summary()
    assert 0.7 < summary.loc["Mahalanobis ratio", "mean"] < 1.4
    assert np.isfinite(summary.loc["Portfolio QLIKE", "mean"])


def test_it_is_the_recursion(returns):
    ours = IteratedEWMA(21, 63).update(returns.to_numpy()).covariance()
    np.testing.assert_allclose(IEWMACovariance(21, 63).fit(returns).covariance_, ours, rtol=1e-12)


def test_it_goes_into_an_optimiser(returns):
    from skfolio.optimization import MeanRisk
    from skfolio.prior import EmpiricalPrior

    fitted = MeanRisk(prior_estimator=EmpiricalPrior(covariance_estimator=QISCovariance())).fit(returns)
    assert fitted.weights_.sum() == pytest.approx(1)


def test_the_reactive_one_is_the_covariance_of_the_decision(returns):
    made = Time2Decide.from_pretrained().decision(returns)
    np.testing.assert_allclose(ReactiveCovariance().fit(returns).covariance_, made.covariance, rtol=1e-10)


def test_fit_starts_anew(returns):
    estimator = IEWMACovariance().fit(returns * 5)
    np.testing.assert_allclose(estimator.fit(returns).covariance_, IEWMACovariance().fit(returns).covariance_)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_unlisted_assets_are_forgotten_and_missed_days_are_not(estimator, returns):
    active = np.ones(returns.shape, dtype=bool)
    active[100:150, 0] = False  # delisted, listed again
    active[250:, 1] = False  # delisted
    gaps = returns.to_numpy().copy()
    gaps[120, 2] = np.nan  # a missed day
    covariance = clone(estimator).fit(gaps, active_mask=active).covariance_
    assert np.isnan(covariance[1]).all()
    assert np.isfinite(covariance[np.ix_([0, 2, 3], [0, 2, 3])]).all()
    later = gaps.copy()
    later[:100, 0] *= 50  # before it was delisted: forgotten
    np.testing.assert_allclose(clone(estimator).fit(later, active_mask=active).covariance_, covariance, rtol=1e-6)


def test_bad_mask(returns):
    with pytest.raises(InputError, match="active_mask"):
        IEWMACovariance().fit(returns, active_mask=np.ones((2, 2)))
