"""Whole shares: never on credit, close to the target, and what is left is stated."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from time2decide.core.validation import InputError
from time2decide.markets.orders import weights_of_shares, whole_shares


def test_an_example_by_hand():
    found = whole_shares(np.array([0.5, 0.5]), np.array([0.75, 0.25]), np.array([300.0, 7.0]), 10_000.0, 10.0)
    # 2500 to buy are 8.33 shares at 300; 2500 to sell are 357.14 at 7
    np.testing.assert_array_equal(found.shares, [8, -357])
    assert found.cost == pytest.approx(0.001 * (2400 + 2499))
    assert found.cash == pytest.approx(2499 - 2400 - found.cost)
    np.testing.assert_allclose(found.weights, [0.74, 0.2501])


@given(st.integers(0, 10_000))
def test_nothing_is_bought_on_credit_and_trades_are_rounded_towards_zero(seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 30))
    before, after = rng.dirichlet(np.ones(m)), rng.dirichlet(np.ones(m)) * rng.choice([1.0, 0.9])
    prices, value = np.exp(rng.normal(3, 2, m)), 10 ** rng.uniform(3, 9)
    bps = float(rng.choice([0.0, 10.0, 100.0]))
    found = whole_shares(before, after, prices, value, bps)
    change = (after - before) * value / prices
    assert (found.shares == np.round(found.shares)).all()
    assert (np.abs(found.shares) <= np.abs(change) + 1e-5).all()
    sells = change < 0
    assert (np.abs(found.shares - change)[sells] < 1 + 1e-5).all()
    wanted = value * (1 - after.sum())
    buys_left = (found.shares > 0).any()
    assert found.cash >= wanted - 1e-5 * value or not buys_left
    spent = (found.shares * prices).sum() + found.cost
    assert found.cash == pytest.approx(value * (1 - before.sum()) - spent, abs=1e-7 * value)


def test_no_trade_is_no_order_and_bad_prices_are_refused():
    p = np.array([0.5, 0.5])
    assert (whole_shares(p, p, np.array([3.0, 5.0]), 100.0).shares == 0).all()
    for prices in (np.array([3.0, 0.0]), np.array([3.0, np.inf]), np.array([3.0]), np.array([np.nan, np.nan])):
        with pytest.raises(InputError, match=r"prices: expected (a price|prices from)"):
            whole_shares(p, p, prices, 100.0)
    with pytest.raises(InputError, match="value"):
        whole_shares(p, p, np.array([3.0, 5.0]), 0.0)
    with pytest.raises(InputError, match="value"):
        whole_shares(p, p, np.array([3.0, 5.0]), 1e308)
    with pytest.raises(InputError, match=r"prices from 1e-06 to 1e.12, found 1e-308"):
        whole_shares(p, p, np.array([3.0, 1e-308]), 100.0)


def test_an_asset_without_a_price_is_not_traded_and_its_proceeds_are_not_spent():
    prices = np.array([np.nan, 10.0, 20.0])
    found = whole_shares(np.array([0.4, 0.3, 0.3]), np.array([0.0, 0.6, 0.4]), prices, 1000.0, 10.0)
    np.testing.assert_array_equal(found.shares, [0, 0, 0])
    np.testing.assert_allclose(found.weights, [0.4, 0.3, 0.3])
    np.testing.assert_array_equal(found.money, [0, 0, 0])
    found = whole_shares(np.array([0.4, 0.5, 0.1]), np.array([0.0, 0.3, 0.7]), prices, 1000.0)
    np.testing.assert_array_equal(found.shares, [0, -20, 10])
    assert found.cash == 0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *((name, wrong) for name in ("previous", "weights", "prices") for wrong in (None, "x", ["a", "b"], 3, {}, [1])),
        *((name, [np.nan, 1.0]) for name in ("previous", "weights")),
        *(("value", wrong) for wrong in (None, "x", [1], -1, True)),
        *(("cost_bps", wrong) for wrong in (None, "x", [1, 2], -1, np.inf)),
        *(("at", wrong) for wrong in (None, 3, ["x"])),
    ],
    ids=repr,
)
def test_arguments_of_another_kind_are_refused_in_one_line(name, wrong):
    right = {
        "previous": [0.5, 0.5],
        "weights": [0.7, 0.3],
        "prices": [10.0, 20.0],
        "value": 1e4,
        "cost_bps": 0,
        "at": "",
    }
    np.testing.assert_array_equal(whole_shares(**right).shares, [200, -100])  # lists will do
    with pytest.raises(InputError, match=r"^\w+: expected .*, found .*$") as told:
        whole_shares(**{**right, name: wrong})
    assert str(told.value).startswith(name) or wrong == [1]  # one weight: the others do not fit either


def test_shares_of_a_monstrous_value_are_named_in_few_digits():
    quotes = pd.DataFrame({"price": [10.0], "current": [True]}, index=["A"])
    with pytest.raises(InputError, match=r"^value: expected 1e\+301, the shares") as caught:
        weights_of_shares(pd.Series([1e300], index=["A"]), quotes, 1e6, None)
    assert len(str(caught.value)) < 150
    with pytest.raises(InputError, match=r"^value: expected 1,000\.00, the shares .*, found 1,500\.50"):
        weights_of_shares(pd.Series([100.0], index=["A"]), quotes, 1500.5, None)
