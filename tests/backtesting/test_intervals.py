"""Intervals of the stationary bootstrap: as wide as they claim, paired, and a matter of the seed alone."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from time2decide.backtesting import walk_forward
from time2decide.backtesting.walk_forward import (
    backtest,
    backtest_findings,
    differences_from_own,
    paired_strategy_differences,
    with_intervals,
)
from time2decide.cli.backtest import _interval
from time2decide.markets.periods import Frequency


@pytest.fixture(scope="module")
def result():
    returns = np.random.default_rng(0).normal(0.0005, 0.01, (500, 3))
    return backtest(returns, ["uniform", "soft-persistence"], 1.0, cost_bps=0.0, periods_per_year=252)


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
    flat = backtest(np.full((120, 2), 0.001), ["uniform"], 1.0, cost_bps=0.0, periods_per_year=252)
    row = with_intervals(flat, draws=20).iloc[0]
    assert row["annual_return_low"] == pytest.approx(1.001**252 - 1)
    assert row["annual_return_high"] == pytest.approx(row["annual_return"])


def test_figures_of_a_draw_are_those_of_the_drawn_returns(result):
    from time2decide.simulation.metrics import realised_utility, sharpe_ratio, stationary_bootstrap

    rows = with_intervals(result, draws=50, block=5.0, seed=3).set_index("strategy")
    gains = paired_strategy_differences(result, "uniform", draws=50, block=5.0, seed=3).iloc[0]
    paths = {name: group["net"].to_numpy() for name, group in result.frame.groupby("strategy")}
    places = stationary_bootstrap(404, 50, 5.0, np.random.default_rng(3))
    sharpe = {name: sharpe_ratio(net[places], 252) for name, net in paths.items()}
    utility = {name: realised_utility(net[places], 0.1) for name, net in paths.items()}
    ends = (0.025, 0.975)
    assert rows.loc["uniform", ["sharpe_low", "sharpe_high"]].tolist() == pytest.approx(
        np.quantile(sharpe["uniform"], ends)
    )
    assert gains["strategy"] == "soft-persistence"
    for key, drawn in (("sharpe", sharpe), ("net_utility", utility)):
        expected = np.quantile(drawn["uniform"] - drawn["soft-persistence"], ends)
        assert [gains[f"{key}_low"], gains[f"{key}_high"]] == pytest.approx(expected)
        assert gains[key] == pytest.approx(rows.loc["uniform", key] - rows.loc["soft-persistence", key])


def test_findings_claim_no_more_than_the_intervals(result):
    summary = with_intervals(result, draws=100)
    assert differences_from_own(result) is None
    (said,) = backtest_findings(result, summary, None)[1.0]
    assert "The highest net Sharpe ratio is" in said
    summary["strategy"] = summary["strategy"].replace("soft-persistence", "time2decide")
    one = {"strategy": "uniform", "turnover_l1": 1.0, "sharpe": 0.1, "sharpe_low": -0.2, "sharpe_high": 0.4}
    one |= {"net_utility": 1e-5, "net_utility_low": 1e-6, "net_utility_high": 1e-4}
    mine = replace(
        result, rollouts=[replace(r, name=r.name.replace("soft-persistence", "time2decide")) for r in result.rollouts]
    )
    said = backtest_findings(mine, summary, pd.DataFrame([one]))[1.0]
    assert any("In net Sharpe ratio no difference" in line for line in said)
    assert any("time2decide is above uniform beyond the 95 % interval" in line for line in said)
    assert any("Sharpe +0.10 [-0.20, +0.40]" in line for line in said)


def test_a_figure_that_rounds_to_0_has_no_minus_in_words_or_table():
    ends = {f"{key}{end}": -1e-7 for key in ("sharpe", "net_utility") for end in ("", "_low", "_high")}
    rows = pd.DataFrame([{"strategy": "uniform", **ends}])
    (text,) = walk_forward._differences(rows, Frequency(None, "row"))
    assert text == "Against uniform: Sharpe +0.00 [+0.00, +0.00], utility +0.0% a row [+0.0%, +0.0%]."
    row = {"strategy": "market", "traded": 0.0, "annual_volatility": 0.1, **ends}
    assert "net Sharpe ratio 0.00 (95 %: 0.00 to 0.00)" in walk_forward._rank([row], "market", Frequency(12.0, "month"))
    assert _interval(row, "sharpe", "+.2f") == "+0.00 [dim][+0.00, +0.00][/]"
