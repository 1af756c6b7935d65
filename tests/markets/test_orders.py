"""Whole shares: never on credit, close to the target, and what is left is stated."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from time2decide.core.validation import InputError
from time2decide.markets.constraints import Constraints, Limit
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


def test_whole_shares_stay_inside_bounds_and_limits_or_say_what_they_break():
    before, after = np.array([0.0545, 0.3, 0.6455]), np.array([0.05, 0.35, 0.6])
    prices = np.array([3.0, 70.0, 11.0])
    rules = Constraints(lower=np.array([0.0, 0.35, 0.0]), upper=np.array([0.05, 1.0, 1.0]))
    loose = whole_shares(before, after, prices, 1000.0)
    assert loose.weights[0] > 0.05
    assert loose.weights[1] < 0.35
    found = whole_shares(before, after, prices, 1000.0, constraints=rules)
    np.testing.assert_array_equal(found.shares, [-2, 0, -4])  # one share of B at 70 would be beyond the cash
    assert found.broken("ABC") == ["weight of B 30% (at least 35%)"]
    sector = Limit("group x", np.array([1.0, 0.0, 1.0]), -np.inf, 0.648)
    beta = Limit("exposure beta", np.array([0.0, 2.0, 0.0]), 0.7, np.inf)
    found = whole_shares(before, after, prices, 1000.0, constraints=Constraints(limits=(sector, beta)))
    np.testing.assert_array_equal(found.shares, [-2, 0, -5])
    assert found.broken("ABC") == ["exposure beta 0.6 (at least 0.7)"]
    assert whole_shares(before, after, prices, 1000.0).broken("ABC") == []


@given(st.integers(0, 10_000))
def test_no_cap_is_broken_by_rounding_and_nothing_is_bought_on_credit(seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(3, 30))
    before, after = rng.dirichlet(np.ones(m)), rng.dirichlet(np.ones(m))
    cap = float(np.quantile(after, 0.7))
    after = np.minimum(after, cap)
    after += (1 - after.sum()) * (cap * 1.2 - after) / (cap * 1.2 - after).sum()
    rules = Constraints(lower=after.min() / 2, upper=after.max())
    prices, value = np.exp(rng.normal(3, 1, m)), 10 ** rng.uniform(4, 9)
    found = whole_shares(before, after, prices, value, 10.0, constraints=rules)
    change = (after - before) * value / prices
    assert (np.abs(found.shares - change)[change < 0] < 1 + 1e-5).all()
    assert found.cash >= -1e-7 * value
    assert (found.weights <= rules.upper + 1e-9).all() or prices.max() / value > after.max() - after.min() / 2
    for text in found.broken(list(map(str, range(m)))):
        assert "at least" in text  # as cash did not do


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


def test_no_limit_makes_an_order_sell_what_is_not_held():
    """The asset may not be held at all, and a group asks for less of it: a share is worth more than what is held."""
    group = Limit("group g", np.array([1.0, 0.0]), -np.inf, 0.2)
    rules = Constraints(np.zeros(2), np.array([0.0, np.inf]), limits=(group,))
    orders = whole_shares(np.array([0.3, 0.7]), np.array([0.0, 1.0]), np.array([1000.0, 10]), 1000.0, constraints=rules)
    np.testing.assert_array_equal(orders.shares[0], 0.0)
    assert (orders.weights >= 0).all()
    assert orders.broken(["A", "B"]) == ["group g 0.3 (at most 0.2)"] or orders.broken(["A", "B"])


@pytest.mark.parametrize("seed", range(60))
def test_long_only_orders_never_hold_a_short_position(seed):
    rng = np.random.default_rng(seed)
    m = 6
    upper = np.where(rng.random(m) < 0.3, 0.0, rng.uniform(0.2, 1.0, m))
    limits = (Limit("group g", 1.0 * (rng.random(m) < 0.5), -np.inf, rng.uniform(0.1, 0.5)),)
    previous, target = rng.dirichlet(np.ones(m)), rng.dirichlet(np.ones(m)) * (upper > 0)
    rules = Constraints(np.zeros(m), upper, limits=limits, cash=(0.0, 1.0))
    orders = whole_shares(previous, target, rng.uniform(1, 400, m), 1000.0, 10.0, constraints=rules)
    assert orders.weights.min() >= -1e-8
