"""The estimator inside skfolio's and scikit-learn's own machinery."""

import copy
import itertools

import numpy as np
import pandas as pd
import pytest
from skfolio.model_selection import WalkForward, cross_val_predict
from skfolio.optimization import EqualWeighted, InverseVolatility, MeanRisk
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

from time2decide import InputError, backtest
from time2decide.backtesting.skfolio_estimator import Time2DecidePortfolio
from time2decide.markets import Constraints, Limit, load_returns
from time2decide.markets.constraint_files import read_constraints
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


def test_small_trades_are_left_out_as_by_the_model(returns):
    terms = {"turnover_l1": 0.3, "min_trade": 0.1}
    fitted = Time2DecidePortfolio(**terms).fit(returns)
    np.testing.assert_allclose(fitted.weights_, Time2Decide.from_pretrained().decide(returns, **terms), atol=1e-12)
    trades = np.abs(fitted.weights_ - 0.2)
    assert all(trade < 1e-12 or trade >= 0.1 - 1e-12 for trade in trades)


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
        ({"model": "nothing"}, "model"),
        ({"risk_aversion": -1}, "risk_aversion"),
        ({"min_trade": -0.1}, "min_trade"),
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


def test_copies_of_a_fitted_estimator_share_nothing():
    returns = load_returns("sp500").iloc[-90:, :4]
    fitted = Time2DecidePortfolio(turnover_l1=0.3).fit(returns.iloc[:-1])
    copied = copy.deepcopy(fitted)
    for one in (fitted, copied):
        one.partial_fit(returns.iloc[-1:])
    np.testing.assert_array_equal(copied.weights_, fitted.weights_)


GROUP = Limit("group x", np.array([1.0, 1, 0, 0, 0, 0]), 0.1, 0.3)
FILE = '[weights]\nupper = 0.4\n[cash]\nmost = 0.3\n[groups.x]\nassets = ["A", "B"]\nlower = 0.1\nupper = 0.3\n'
#: What the how-to has an example of: constraints, benchmark, cost in basis points.
TERMS = {
    "bounds": (Constraints(lower=0.1, upper=0.18), None, 0.0),
    "group": (Constraints(limits=(GROUP,)), None, 0.0),
    "cash": (Constraints(cash=(0.1, 0.3), cash_return=1e-5), None, 0.0),
    "benchmark": (None, np.full(6, 1 / 6), 0.0),
    "costs": (None, None, 5.0),
    "file": (FILE, np.full(6, 1 / 6), 5.0),
}


@pytest.mark.parametrize("model", ["market", "time2decide"])
@pytest.mark.parametrize("term", TERMS)
def test_fit_solves_under_the_terms_by_cvxpy(term, model, tmp_path, cvxpy_portfolio):
    constraints, b, cost = TERMS[term]
    X = pd.DataFrame(np.random.default_rng(0).standard_normal((130, 6)) * 0.01, columns=list("ABCDEF"))
    if term == "file":
        (tmp_path / "c.toml").write_text(FILE)
        constraints = tmp_path / "c.toml"
    p = np.array([0.3, 0.1, 0.2, 0.2, 0.1, 0.1])
    given = {"constraints": constraints, "cost_bps": cost, "benchmark": b, "previous_weights": p, "model": model}
    ours = Time2DecidePortfolio(turnover_l1=0.4, risk_aversion=5.0, **given).fit(X)
    if term == "file":
        constraints = Constraints(upper=0.4, cash=(0.0, 0.3), limits=(GROUP,))
    options = {"constraints": constraints, "cost_bps": cost, "benchmark": b}
    made = Time2Decide.from_pretrained(model).decision(X, p, 0.4, risk_aversion=5.0, **options)
    S, days = made.covariance, made.days
    given = {"cost": cost / 1e4 / days, "benchmark": b, "constraints": constraints}
    theirs = cvxpy_portfolio(ours.expected_returns_, S, p, risk_aversion=5.0, turnover_l1=0.4, **given)
    np.testing.assert_allclose(ours.weights_, theirs, atol=2e-5)


def test_partial_fit_answers_as_fit_does(returns):
    whole = Time2DecidePortfolio(turnover_l1=0.3).fit(returns)
    parts = Time2DecidePortfolio(turnover_l1=0.3)
    for first, last in ((0, 100), (100, 101), (101, len(returns))):
        parts.partial_fit(returns.iloc[first:last])
    np.testing.assert_allclose(parts.weights_, whole.weights_, atol=1e-10)
    again = parts.fit(returns.iloc[:120])  # forgets what was seen
    np.testing.assert_allclose(
        again.weights_, Time2DecidePortfolio(turnover_l1=0.3).fit(returns.iloc[:120]).weights_, atol=1e-12
    )
    with pytest.raises(ValueError, match="fallback"):
        Time2DecidePortfolio(fallback=EqualWeighted()).partial_fit(returns)


def test_online_validation_carries_the_weights(returns):
    from skfolio.model_selection import online_predict

    path = online_predict(Time2DecidePortfolio(turnover_l1=0.2), returns, warmup_size=120, test_size=5)
    batch = cross_val_predict(Time2DecidePortfolio(turnover_l1=0.2), returns, cv=WalkForward(5, 120, expand_train=True))
    for one, other in zip(path.portfolios, batch.portfolios, strict=True):
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-8)


def test_what_is_not_listed_is_routed_and_not_bought(returns):
    import sklearn

    active = np.ones(returns.shape, dtype=bool)
    active[:-10, 4] = False  # listed ten days ago
    fitted = Time2DecidePortfolio().fit(returns, active_mask=active)
    assert fitted.weights_[4] == 0.0
    assert fitted.weights_.sum() == pytest.approx(1)
    with sklearn.config_context(enable_metadata_routing=True):
        request = Time2DecidePortfolio().get_metadata_routing()
        for method in ("fit", "partial_fit"):
            assert getattr(request, method).requests["active_mask"] is True
        path = cross_val_predict(
            Time2DecidePortfolio(), returns, cv=WalkForward(20, 120), params={"active_mask": active}
        )
    assert path.portfolios[0].weights[4] == 0.0
    with pytest.raises(ValueError, match="active_mask"):
        Time2DecidePortfolio().fit(returns, active_mask=active[:5])
    with pytest.raises(ValueError, match="gaps"):
        Time2DecidePortfolio(model="time2decide").fit(returns, active_mask=active)


def test_gaps_under_constraints_of_a_file_are_those_of_decide(returns, tmp_path):
    table = returns.copy()
    table.iloc[:-30, 1], table.iloc[-1, 2], table.iloc[-25:, 3] = np.nan, np.nan, np.nan  # young, halted, delisted
    first, second = table.columns[[0, 1]]
    file = tmp_path / "limits.toml"
    file.write_text(
        f'[weights]\nlower = 0.05\nupper = 0.6\n[groups.x]\nassets = ["{first}", "{second}"]\nupper = 0.4\n'
    )
    benchmark = pd.Series(0.2, table.columns)
    fitted = Time2DecidePortfolio(turnover_l1=0.5, constraints=file, benchmark=benchmark).fit(table)
    terms = {"constraints": read_constraints(file, list(table.columns)), "benchmark": benchmark, "gaps": "keep"}
    expected = Time2Decide.from_pretrained().decide(table, None, 0.5, **terms)
    np.testing.assert_allclose(fitted.weights_, expected, atol=1e-12)
    path = cross_val_predict(Time2DecidePortfolio(constraints=file), table, cv=WalkForward(20, 120))
    assert all(portfolio.weights[1] == 0 for portfolio in path.portfolios)


def test_rows_are_kept_only_by_a_decision_that_succeeds():
    returns = load_returns("sp500").iloc[-130:, :4]
    reference = Time2DecidePortfolio(turnover_l1=0.5).fit(returns)
    one = Time2DecidePortfolio(turnover_l1=0.5).fit(returns.iloc[:100])
    one.constraints = Constraints(lower=0.3, upper=0.3)
    for _ in range(2):
        with pytest.raises(ValueError, match="constraints"):
            one.partial_fit(returns.iloc[100:])
    one.constraints = None
    np.testing.assert_allclose(one.partial_fit(returns.iloc[100:]).weights_, reference.weights_, atol=1e-9)


def test_what_looks_like_prices_is_told_and_constraints_belong_to_columns():
    returns = load_returns("sp500").iloc[-60:, :4]
    with pytest.warns(UserWarning, match="prices"):
        Time2DecidePortfolio().fit(100 * (1 + returns).cumprod())
    limits = Constraints(upper=0.5, assets=tuple(returns.columns))
    with pytest.raises(ValueError, match="in this order"):
        Time2DecidePortfolio(constraints=limits).fit(returns.iloc[:, ::-1])
    with pytest.raises(ValueError, match="in this order"):
        Time2Decide.from_pretrained().decide(returns.iloc[:, ::-1], constraints=limits)
    prices = 100 * np.cumprod(1 + returns.to_numpy(), axis=0)
    prices[0, 0] = np.nan
    with pytest.raises(ValueError, match="prices"):
        Time2Decide.from_pretrained().decide(prices, gaps="keep")


def test_bounds_of_a_series_go_by_asset_wherever_they_are_given():
    returns = load_returns("sp500").iloc[-140:, :4]
    tight = pd.Series([0.05, 1.0, 1.0, 1.0], returns.columns)
    rules, reference = Constraints(upper=tight[::-1]), Constraints(upper=tight.to_numpy())
    model = Time2Decide.from_pretrained()
    expected = model.decide(returns, constraints=reference)
    np.testing.assert_array_equal(model.decide(returns, constraints=rules), expected)
    np.testing.assert_array_equal(Time2DecidePortfolio(constraints=rules).fit(returns).weights_, expected)
    runs = [backtest(returns, ["uniform"], constraints=one).rollouts[0].allocations for one in (rules, reference)]
    np.testing.assert_array_equal(*runs)
    with pytest.raises(InputError, match="constraints: expected a Constraints object"):
        Time2DecidePortfolio(constraints={"upper": 0.5}).fit(returns)
    with pytest.raises(InputError, match="returns: expected an array of numbers, found masked ones"):
        model.decide([np.ma.array(row, mask=[True, False, False, False]) for row in returns.to_numpy()])
