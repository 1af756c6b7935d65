"""The estimator inside skfolio's and scikit-learn's own machinery."""

import itertools

import numpy as np
import pandas as pd
import pytest
from skfolio.model_selection import WalkForward, cross_val_predict
from skfolio.optimization import EqualWeighted, InverseVolatility, MeanRisk
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

from time2decide.backtesting.skfolio_estimator import Time2DecidePortfolio
from time2decide.markets import load_returns
from time2decide.policy.model import Time2Decide


@pytest.fixture(scope="module")
def returns():
    return load_returns("sp500").iloc[-160:, :5]


def test_weights_are_those_of_the_model_and_within_the_budget(returns):
    held = [0.5, 0.2, 0.1, 0.1, 0.1]
    fitted = Time2DecidePortfolio(turnover_l1=0.3, previous_weights=held).fit(returns)
    np.testing.assert_allclose(fitted.weights_, Time2Decide.from_pretrained().decide(returns, held, 0.3), atol=1e-12)
    assert fitted.weights_.sum() == pytest.approx(1)
    assert np.abs(fitted.weights_ - held).sum() <= 0.3 + 1e-9
    by_name = Time2DecidePortfolio(turnover_l1=0.3, previous_weights=dict(zip(returns.columns, held, strict=True)))
    np.testing.assert_array_equal(by_name.fit(returns).weights_, fitted.weights_)


def test_walk_forward_passes_on_what_is_held(returns):
    path = cross_val_predict(Time2DecidePortfolio(turnover_l1=0.2), returns, cv=WalkForward(5, 120))
    weights = [portfolio.weights for portfolio in path.portfolios]
    assert len(weights) == 8
    drift = 0.15  # between two fits the weights drift with the market
    for before, after in itertools.pairwise(weights):
        assert np.abs(after - before).sum() <= 0.2 + drift
    assert np.abs(weights[-1] - weights[0]).sum() > 0.2  # it went further than one budget allows


def test_grid_search_finds_a_budget(returns):
    search = GridSearchCV(Time2DecidePortfolio(), {"turnover_l1": [0.2, 2.0]}, cv=WalkForward(20, 100))
    search.fit(returns)
    assert search.best_params_["turnover_l1"] in (0.2, 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turnover_l1": 0}, "turnover_l1"),
        ({"turnover_l1": 2.5}, "turnover_l1"),
        ({"previous_weights": [1.0, 1.0, 0, 0, 0]}, "sum 1"),
        ({"model": "nothing"}, "checkpoint"),
        ({"risk_aversion": -1}, "risk_aversion"),
    ],
)
def test_bad_parameters_are_named_when_fitted(returns, change, message):
    with pytest.raises(ValueError, match=message):
        Time2DecidePortfolio(**change).fit(returns)


def test_a_series_of_previous_weights_is_read_by_name(returns):
    names = list(returns.columns)
    held = pd.Series([0.8, 0.2, *[0.0] * (len(names) - 2)], index=names)
    one, other = (
        Time2DecidePortfolio(turnover_l1=0.1, previous_weights=given).fit(returns).weights_
        for given in (held, held.iloc[::-1])
    )
    assert np.array_equal(one, other)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_that_skfolios_own_estimators_pass():
    def failed(estimator):
        return {r["check_name"] for r in check_estimator(estimator, on_fail=None) if r["status"] == "failed"}

    theirs = failed(EqualWeighted()) | failed(InverseVolatility()) | failed(MeanRisk())
    assert failed(Time2DecidePortfolio()) <= theirs
    assert clone(Time2DecidePortfolio(turnover_l1=0.3)).turnover_l1 == 0.3


def test_constraints_costs_and_a_benchmark_against_cvxpy(tmp_path):
    import cvxpy as cp
    import pandas as pd

    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((130, 6)) * 0.01, columns=list("ABCDEF"))
    (tmp_path / "c.toml").write_text(
        '[weights]\nupper = 0.4\n[cash]\nmost = 0.3\n[groups.x]\nassets = ["A", "B"]\nlower = 0.1\nupper = 0.3\n'
    )
    b, p = np.full(6, 1 / 6), np.array([0.3, 0.1, 0.2, 0.2, 0.1, 0.1])
    ours = Time2DecidePortfolio(
        turnover_l1=0.4,
        risk_aversion=5.0,
        previous_weights=p,
        constraints=tmp_path / "c.toml",
        cost_bps=5.0,
        benchmark=b,
        model="decide",
    ).fit(X)
    S, s = np.cov(X.to_numpy()[-96:].T), cp.Variable(6)
    utility = ours.expected_returns_ @ s - 5.0 * cp.quad_form(s - b, cp.psd_wrap(S)) - 5e-4 * cp.norm1(s - p)
    limits = [s >= 0, s <= 0.4, cp.sum(s) <= 1, cp.sum(s) >= 0.7, cp.norm1(s - p) <= 0.4]
    limits += [s[0] + s[1] >= 0.1, s[0] + s[1] <= 0.3]
    cp.Problem(cp.Maximize(utility), limits).solve(solver="CLARABEL")
    np.testing.assert_allclose(ours.weights_, s.value, atol=1e-4)
    assert ours.weights_[:2].sum() <= 0.3 + 1e-12
