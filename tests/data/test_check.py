"""Faults are found in tables that have them and not in clean ones; what stops is refused until it is accepted."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from time2decide import Finding, InputError, Time2Decide, backtest, check_returns, load_returns
from time2decide.bench.faults import FAULTS, PLACES, Clean
from time2decide.data.findings import REMEDIES, refuse_faults
from time2decide.data.terms import check_quotes, check_terms, find_result_faults
from time2decide.markets import Constraints, Limit

BUSINESS_DAYS = {"daily": 1, "weekly": 5, "monthly": 21}


def simulated(rows=1200, assets=12, seed=0, days=1, volatility=0.012):
    """Prices with a common factor, heavy tails and clustered volatility."""
    rng = np.random.default_rng(seed)
    level = np.exp(0.4 * np.sin(np.arange(rows) / 90) + 0.2 * rng.standard_normal())
    common = rng.standard_t(5, (rows, 1))
    moves = 0.6 * common + 0.8 * rng.standard_t(5, (rows, assets)) * rng.uniform(0.6, 1.6, assets)
    moves = np.clip(volatility * days**0.5 * level[:, None] * moves + 0.0003 * days, -0.5, 0.6)
    dates = {1: "B", 5: "W-FRI", 21: "ME"}[days]
    index = pd.date_range("1996-01-05", periods=rows, freq=dates)
    start = rng.uniform(15, 300, assets)
    return pd.DataFrame(start * np.exp(np.cumsum(moves, 0)), index, [f"S{i}" for i in range(assets)])


@pytest.fixture(scope="module")
def stocks():
    """20 stocks through 2008 and 2020."""
    return 50 * (1 + load_returns("sp500").loc["2006":"2021"]).cumprod()


def names(findings, severity=None):
    return {one.name for one in findings if severity in (None, one.severity)}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_named_and_graded(stocks, name):
    fault = FAULTS[name]
    prices = stocks.iloc[-1100:, :14]
    for place, share in PLACES.items() if fault.placed else [("middle", 0.5)]:
        t = min(int(share * len(prices)), len(prices) - 1)
        table = fault.plant(Clean(prices, t, 3, 9, np.random.default_rng(1)))
        found = check_returns(table, fault.kind)
        graded = [one for one in found if one.name in fault.names and fault.severity in (one.severity, "any")]
        assert graded, (place, [str(one) for one in found])
        assert graded[0].remedy == REMEDIES[graded[0].name]
        assert graded[0].where
        assert graded[0].evidence


def with_crash(prices):
    """19 October 1987: every asset falls by about 20 % in a row."""
    moves = prices.pct_change().fillna(0)
    moves.iloc[len(moves) // 3] = -0.2 + 0.05 * np.random.default_rng(3).standard_normal(moves.shape[1])
    return 50 * (1 + moves).cumprod()


def with_bills(prices):
    rate = np.repeat(np.random.default_rng(4).uniform(0, 0.0002, len(prices) // 40 + 1), 40)[: len(prices)]
    return prices.assign(BILLS=100 * np.cumprod(1 + rate))


def with_leverage(prices):
    moves = prices.pct_change().fillna(0)
    return prices.assign(
        UP3=50 * (1 + (3 * moves.iloc[:, 0]).clip(-0.9)).cumprod(), DOWN=50 * (1 - moves.iloc[:, 1]).cumprod()
    )


def listed_late(prices):
    prices = prices.copy()
    prices.iloc[: len(prices) // 3, 1] = np.nan
    prices.iloc[-len(prices) // 4 :, 2] = np.nan
    prices.iloc[len(prices) // 2 : len(prices) // 2 + 3, 3] = np.nan
    return prices


CLEAN = {
    "daily": lambda: simulated(),
    "weekly": lambda: simulated(900, days=5, seed=1),
    "monthly": lambda: simulated(60, days=21, seed=2),
    "three assets": lambda: simulated(700, 3, seed=3),
    "forty rows": lambda: simulated(40, 8, seed=4),
    "bond funds": lambda: simulated(1200, 6, seed=5, volatility=0.0015),
    "bond funds of unequal risk": lambda: pd.concat(
        [simulated(seed=6), simulated(1200, 2, 7, volatility=0.0005).add_prefix("B")], axis=1
    ),
    "coins": lambda: simulated(900, 8, seed=8, volatility=0.05).set_axis(
        pd.date_range("2018-01-01", periods=900), axis=0
    ),
    "a crash": lambda: with_crash(simulated(seed=9)),
    "bills": lambda: with_bills(simulated(seed=10)),
    "leveraged and inverse funds": lambda: with_leverage(simulated(seed=11)),
    "gaps": lambda: listed_late(simulated(seed=12)),
    "five hundred": lambda: simulated(600, 500, seed=13),
}


@pytest.mark.parametrize("kind", ["prices", "returns", None])
@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_table_is_not_stopped(name, kind):
    prices = CLEAN[name]()
    found = check_returns(prices.pct_change(fill_method=None).iloc[1:] if kind == "returns" else prices, kind)
    assert names(found, "stop") == set()
    assert len(found) <= 2, [str(one) for one in found]


@pytest.mark.parametrize("rule", [None, "W-FRI", "ME"])
def test_stocks_through_2008_and_2020_are_not_stopped(stocks, rule):
    prices = stocks if rule is None else stocks.resample(rule).last()
    found = check_returns(prices)
    assert names(found, "stop") == set()
    assert len(found) <= 2


def test_today_tells_whether_the_last_row_is_old():
    prices = simulated(300)
    assert names(check_returns(prices)) == set()
    assert names(check_returns(prices, today=prices.index[-1] + pd.Timedelta(days=3))) == set()
    assert names(check_returns(prices, today="2026-01-05"), "warn") == {"stale_date"}
    with pytest.raises(InputError, match="kind: expected one of"):
        check_returns(prices, "yields")


def test_arrays_labels_of_text_and_columns_of_dates_are_read():
    prices = simulated(300)
    texts = prices.set_axis([str(day.date()) for day in prices.index])
    assert names(check_returns(texts.iloc[::-1])) == {"newest_first"}
    assert names(check_returns(prices.rename_axis("date").reset_index())) == set()
    bad = prices.pct_change().iloc[1:].to_numpy().copy()
    bad[40, 2] = 999.0
    assert names(check_returns(bad), "stop") == {"sentinel"}
    bad[40, 2] = np.inf
    assert names(check_returns(bad), "stop") == {"infinite"}
    with pytest.raises(InputError, match="table: expected a DataFrame or an array"):
        check_returns(bad[0])


@pytest.fixture(scope="module")
def faulty():
    returns = simulated(300, 4).pct_change().iloc[1:]
    returns.iloc[:120, 1] = 0.0
    return returns


def test_decide_refuses_until_the_finding_is_accepted(faulty):
    model = Time2Decide.from_pretrained()
    with pytest.raises(InputError, match=r"zeros_before_listing \(S1 @ .*accept=\['zeros_before_listing'\]"):
        model.decide(faulty)
    with pytest.raises(InputError, match="zeros_before_listing"):
        model.decide(faulty.to_numpy())
    decision = model.decision(faulty, accept=["zeros_before_listing"])
    assert names(decision.findings) == {"zeros_before_listing"}
    with pytest.raises(InputError, match="accept: expected names of findings"):
        model.decide(faulty, accept=["zeros"])
    with pytest.raises(InputError, match="percent"):
        model.decide(simulated(300, 4).pct_change().iloc[1:] * 100)


def test_backtest_refuses_until_the_finding_is_accepted(faulty):
    with pytest.raises(InputError, match="zeros_before_listing"):
        backtest(faulty, ["uniform"], window=60)
    result = backtest(faulty, ["uniform"], window=60, accept="zeros_before_listing")
    assert names(result.findings) == {"zeros_before_listing"}
    assert backtest(faulty, ["uniform"], window=60, findings=[]).findings == ()


def test_decide_takes_prices_and_says_the_same_of_their_returns():
    prices, model = simulated(300, 4), Time2Decide.from_pretrained()
    of_prices, of_returns = (model.decide(one) for one in (prices, prices.pct_change().iloc[1:]))
    pd.testing.assert_series_equal(of_prices, of_returns, atol=1e-9)


def test_terms_that_cannot_be_meant_stop():
    days = simulated(300, 4).index
    m = 4
    for rules, benchmark, name in (
        (None, np.full(m, 25.0), "benchmark_sum"),
        (None, np.full(m, 0.2), "benchmark_sum"),
        (Constraints(cash=(0, 1), cash_return=0.04), None, "cash_return_annual"),
        (Constraints(upper=20.0), None, "limit_in_percent"),
        (Constraints(limits=(Limit("tech", np.array([1, 1, 0, 0]), 0, 30),)), None, "limit_in_percent"),
    ):
        with pytest.raises(InputError, match=name):
            check_terms(days, rules, benchmark)
        assert names(check_terms(days, rules, benchmark, [name])) == {name}
    fine = Constraints(lower=-0.5, upper=0.4, cash=(0, 1), cash_return=0.0002)
    assert check_terms(days, fine, np.full(m, 0.2)) == ()
    assert check_terms(days, None, np.full(m, 0.25)) == ()
    months = simulated(60, days=21).index
    assert check_terms(months, Constraints(cash=(0, 1), cash_return=0.004), None) == ()


def test_quotes_in_another_unit_stop():
    prices = simulated(300, 4)
    quotes = pd.DataFrame({"price": prices.iloc[-1] * 1.02})
    assert check_quotes(quotes, prices) == ()
    quotes.loc["S2", "price"] *= 100
    with pytest.raises(InputError, match=r"quote_contradicts \(S2\)"):
        check_quotes(quotes, prices)


def test_results_that_no_market_gives_stop():
    days = simulated(300, 4).index
    assert find_result_faults(days, 0.02, 0.001) == []
    assert names(find_result_faults(days, 0.6, 3.0), "stop") == {"implausible_risk", "implausible_gain"}


def test_the_command_lists_findings_and_ends_with_2_if_one_stops(tmp_path, faulty):
    faulty.to_csv(tmp_path / "f.csv", index_label="date")

    def check(*options):
        command = [sys.executable, "-m", "time2decide.cli", "check", "f.csv", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = check("--json")
    found = json.loads(done.stdout)
    assert done.returncode == 2
    assert found["stops"]
    assert {one["name"]: one["severity"] for one in found["findings"]} == {
        "zeros_before_listing": "stop",
        "stale_date": "warn",
    }
    accepted = check("--accept", "zeros_before_listing")
    assert accepted.returncode == 0, accepted.stderr
    assert "accepted" in accepted.stdout
    assert check("--accept", "nothing").returncode == 2
    faulty.drop(columns="S1").to_csv(tmp_path / "f.csv", index_label="date", sep=";")
    assert "read as: semicolon" in check().stdout


def test_a_finding_goes_through_json():
    one = Finding("jump", "warn", ("A @ 2020-01-01",), "times 2", "confirm it")
    assert Finding.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert refuse_faults([one]) == [one]
