"""The real-markets experiment: figures by hand, decisions made once where they may be, files by path, gaps."""

import numpy as np
import pandas as pd
import pytest

from time2decide.backtesting.registry import make_strategy
from time2decide.experiments import real_markets
from time2decide.experiments.real_markets import (
    FIRST,
    STRATEGIES,
    _paths,
    _rank_table,
    real_market_tables,
    run_real_market,
)
from time2decide.simulation.engine import rollout
from time2decide.simulation.metrics import net_returns, sharpe_ratio

CELLS = ((0.1, 0.5), (1.0, 25.0), (0.0, 10.0))


@pytest.fixture
def market(tmp_path, monkeypatch):
    """Six assets, one of which lists late, in a file named by the environment variable."""
    rng = np.random.default_rng(0)
    returns = 0.008 * rng.normal(size=(FIRST + 30, 1)) + 0.01 * rng.normal(size=(FIRST + 30, 6))
    returns[:15, 5] = np.nan
    file = tmp_path / "tiny.csv"
    index = pd.bdate_range("2010-01-01", periods=len(returns))
    pd.DataFrame(returns, index=index, columns=list("ABCDEF")).to_csv(file)
    monkeypatch.setenv(real_markets.MARKETS_VARIABLE, str(file))
    real_markets._load.cache_clear()
    _paths.cache_clear()
    return file


def test_figures_and_differences(market, monkeypatch):
    monkeypatch.setattr(real_markets, "REFERENCES", ("uniform",))
    fingerprint = real_markets._load(str(market), None)[2]
    config = {"universe": "tiny", "data": fingerprint, "strategy": "minimum-variance-ewma", "seed": 0, "delay": 1}
    config |= {"budgets": [0.1, 0.5], "risk_aversions": [1.0, 25.0], "costs_bps": [0.0, 10.0]}
    rows = run_real_market(config)
    assert len(rows) == 8
    universe = real_markets._load(str(market), None)[0]
    result = rollout(universe, make_strategy("minimum-variance-ewma"), [0.1, 0.5], budget_from="drifted", delay=1)
    net, amount = net_returns(result, universe.returns[None], 10.0)
    row = next(r for r in rows if (r["turnover_l1"], r["risk_aversion"], r["cost_bps"]) == (0.5, 25.0, 10.0))
    assert row["utility"] == pytest.approx(net[0, 1].mean() - 25 * net[0, 1].var())
    assert row["traded"] == pytest.approx(amount[0, 1].mean())
    assert row["over_uniform_low"] <= row["over_uniform"] <= row["over_uniform_high"]
    figures = net[0, 1].mean() / net[0, 1].std(ddof=1)
    assert row["sharpe"] == pytest.approx(figures * 252**0.5)
    base = net_returns(
        rollout(universe, make_strategy("uniform"), [0.5], budget_from="drifted", delay=1), universe.returns[None], 10.0
    )[0]
    assert row["sharpe_over_uniform"] == pytest.approx(row["sharpe"] - sharpe_ratio(base[0, 0], 252))
    assert row["sharpe_over_uniform_low"] <= row["sharpe_over_uniform"] <= row["sharpe_over_uniform_high"]
    shown = real_market_tables([{**config, **one} for one in rows])
    assert shown[0].rows[0][0] == "minimum-variance-ewma"
    assert "traded at the next close" in shown[0].caption
    with pytest.raises(ValueError, match="fingerprint"):
        run_real_market(config | {"data": "other"})
    with pytest.raises(ValueError, match="found none"):
        run_real_market(config | {"universe": "elsewhere"})


def test_decisions_that_do_not_depend_on_a_cell_are_made_once(market, monkeypatch):
    calls = []
    monkeypatch.setattr(real_markets, "rollout", lambda *args, **kwargs: calls.append(1) or rollout(*args, **kwargs))
    for name, expected in (("uniform", 1), ("mean-variance-qis", 2), ("two-scale-minvar", 2), ("pooled-rule", 4)):
        calls.clear()
        found = _paths(name, str(market), None, 1, *CELLS)
        assert (len(found), len(calls)) == (8, expected)


def test_tasks_name_what_is_there(market):
    found = real_markets.real_market_tasks("smoke")
    assert {config["universe"] for config in found} == {"sp500", "tiny"}
    assert {config["delay"] for config in found} == {0, 1}
    assert all(str(market) not in str(config) for config in found)
    assert {"pooled-rule", "uniform", "market"} <= set(STRATEGIES)


def test_ranks():
    cell = {"turnover_l1": 0.1, "risk_aversion": 5.0, "cost_bps": 10.0}
    values = {"u": {"a": 3.0, "b": 2.0, "c": 2.0}, "v": {"a": 1.0, "b": 2.0, "c": 0.0}}
    rows = [
        {**cell, "universe": one, "strategy": name, "utility": value}
        for one, here in values.items()
        for name, value in here.items()
    ]
    assert _rank_table(rows, 1).rows == [["a", "1.5"], ["b", "1.8"], ["c", "2.8"]]


@pytest.mark.parametrize("name", ["market", "market-risk"])
def test_the_market_policy_decides_the_same_from_what_was_read_before(market, name):
    real_markets._shared.cache_clear()
    universe = real_markets._load(str(market), None)[0]
    found, when = _paths(name, str(market), None, 1, *CELLS), {"budget_from": "drifted", "delay": 1}
    for risk in CELLS[1]:
        result = rollout(universe, make_strategy(name), [0.1], risk_aversion=risk, cost_bps=10.0, **when)
        net, _ = net_returns(result, universe.returns[None], 10.0)
        np.testing.assert_allclose(found[0.1, risk, 10.0][0], net[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("every", "rows", "year"), [("week", 110, 52), ("month", 26, 12)])
def test_a_universe_can_be_read_in_weeks_or_months(market, monkeypatch, every, rows, year):
    monkeypatch.setenv(real_markets.MARKETS_VARIABLE, f"{market}@{every}")
    assert real_markets.real_market_sources()[f"tiny@{every}"] == f"{market}@{every}"
    universe, frequency, _ = real_markets._load(f"{market}@{every}", None)
    days = real_markets._load(str(market), None)[0].returns
    assert len(universe.returns) == pytest.approx(rows, abs=1)
    assert universe.window == len(universe.returns) // 2
    assert frequency.per_year == year
    np.testing.assert_allclose((1 + universe.returns).prod(0), (1 + days).prod(0))
