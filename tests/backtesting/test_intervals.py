"""Intervals of the stationary bootstrap: as wide as they claim, paired, and a matter of the seed alone."""

import numpy as np
import pytest

from time2decide.backtesting.walk_forward import backtest, with_intervals


@pytest.fixture(scope="module")
def result():
    returns = np.random.default_rng(0).normal(0.0005, 0.01, (500, 3))
    return backtest(returns, ["uniform", "soft-persistence"], 1.0, cost_bps=0.0)


def test_an_interval_of_independent_returns_is_that_of_the_normal_law(result):
    row = with_intervals(result, block=1.0).iloc[0]
    error = np.sqrt(252 / 404)  # standard error of an annual Sharpe ratio over 404 days
    assert (row["sharpe_high"] - row["sharpe_low"]) / (2 * 1.96 * error) == pytest.approx(1, abs=0.15)
    assert (row["sharpe_high"] + row["sharpe_low"]) / 2 == pytest.approx(row["sharpe"], abs=0.3 * error)


def test_draws_are_paired_and_depend_on_the_seed(result):
    first, again, other = (with_intervals(result, draws=200, seed=seed) for seed in (0, 0, 1))
    assert first.equals(again)
    assert (first["sharpe_low"] != other["sharpe_low"]).all()
    uniform = first.set_index("strategy").loc["uniform"]
    assert uniform["sharpe_excess_low"] == uniform["sharpe_excess"] == uniform["sharpe_excess_high"] == 0


def test_growth_is_compounded():
    flat = backtest(np.full((120, 2), 0.001), ["uniform"], 1.0, cost_bps=0.0)
    row = with_intervals(flat, draws=20).iloc[0]
    assert row["annual_return_low"] == pytest.approx(1.001**252 - 1)
    assert row["annual_return_high"] == pytest.approx(row["annual_return"])
