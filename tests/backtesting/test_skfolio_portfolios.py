"""A backtest in skfolio's and quantstats' terms: the same figures."""

import numpy as np
import pandas as pd
import pytest

from time2decide import backtest, load_returns
from time2decide.core.validation import InputError
from time2decide.markets import Constraints


@pytest.fixture(scope="module")
def result():
    table = load_returns("sp500").iloc[-160:, :4]
    return backtest(table, ["uniform", "pto-ar1"], turnover_l1=[0.2, 1.0], cost_bps=10)


def test_portfolios_have_the_net_returns_weights_and_figures_of_the_backtest(result):
    population = result.to_skfolio()
    assert [one.name for one in population][:2] == ["uniform, γ = 0.2", "uniform, γ = 1"]
    for one in population:
        strategy, budget = one.tag, float(one.name.split("= ")[1])
        net = result.returns_series(strategy, budget)
        np.testing.assert_allclose(one.returns, net.to_numpy(), atol=1e-15)
        assert list(one.observations) == list(net.index)
        weights = np.stack([step.weights for step in one])
        np.testing.assert_array_equal(weights, result.weights(strategy, budget).to_numpy())
        row = result.summary.set_index(["strategy", "turnover_l1"]).loc[(strategy, budget)]
        assert one.annualized_sharpe_ratio == pytest.approx(row["sharpe"], rel=1e-9)
        turnover = np.mean([np.abs(step.weights - step.previous_weights).sum() for step in one])
        assert turnover == pytest.approx(row["traded"], rel=1e-9)
    assert len(population.summary().columns) == 4
    assert population.plot_cumulative_returns().data


def test_series_are_read_by_quantstats(result):
    net = result.returns_series("pto-ar1")
    assert isinstance(net.index, pd.DatetimeIndex)
    assert net.index.is_monotonic_increasing
    assert net.dtype == float
    assert net.name == "pto-ar1"
    with pytest.raises(InputError, match="strategy: expected one of"):
        result.returns_series("nothing")
    with pytest.raises(InputError, match="strategy: expected one of"):
        result.returns_series("uniform", 0.7)
    with pytest.raises(InputError, match="series"):
        result.to_skfolio(series=3)


@pytest.mark.filterwarnings("ignore")
def test_quantstats_finds_the_same_figures(result):
    stats = pytest.importorskip("quantstats").stats
    row = result.summary.set_index(["strategy", "turnover_l1"]).loc[("pto-ar1", 0.2)]
    net = result.returns_series("pto-ar1", 0.2)
    assert stats.sharpe(net) == pytest.approx(row["sharpe"], rel=1e-9)
    assert stats.volatility(net) == pytest.approx(row["annual_volatility"], rel=1e-9)
    assert -stats.max_drawdown(net) == pytest.approx(row["max_drawdown"], rel=1e-9)


def test_cash_that_earns_is_an_asset_that_costs_nothing_to_trade():
    rules = Constraints(cash=(0.2, 0.6), cash_return=5e-4)
    result = backtest(load_returns("sp500").iloc[-160:, :4], ["pto-ar1"], 0.3, cost_bps=20, constraints=rules)
    (one,) = result.to_skfolio()
    np.testing.assert_allclose(one.returns, result.returns_series("pto-ar1").to_numpy(), atol=1e-15)
    held = result.weights("pto-ar1", 0.3).sum(axis=1).to_numpy()
    cash = np.stack([step.weights for step in one])[:, -1]
    np.testing.assert_allclose(cash, 1 - held, atol=1e-12)
    assert cash.max() > 0.19
