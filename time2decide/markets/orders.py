"""Orders in whole shares for a rebalancing in weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from time2decide.core.validation import ArrayLike, as_floats, describe_value, expect, validate_positive

_WHOLE = 1e-6  # of a share, that counts as rounding
_LEAST_PRICE, _LARGEST_PRICE = 1e-6, 1e12
_LARGEST_VALUE = 1e18
TRADED = 5e-5  # weight from which a change is called a trade
TABLE_PRICES = "the table's last prices"  # what orders are `at` unless told


@dataclass(frozen=True)
class Orders:
    """Shares to trade, (m,), bought positive.

    money : what they cost or bring, at the prices
    prices : (m,), NaN where there is none
    value : of the portfolio before
    cost : of trading
    cash : after trading and its cost
    weights : that are held then, relative to the value before
    previous, target : weights before, and those that were asked for
    at : where the prices come from, in words
    """

    shares: np.ndarray
    prices: np.ndarray
    value: float
    cost: float
    cash: float
    weights: np.ndarray
    previous: np.ndarray
    target: np.ndarray
    at: str = TABLE_PRICES

    @property
    def money(self) -> np.ndarray:
        return np.asarray(self.shares * np.nan_to_num(self.prices))

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Everything by asset for JSON; null for no price. `unpriced` are trades that get no order for want of one."""
        none, large = np.isnan(self.prices), np.abs(self.target - self.previous) > TRADED
        return {
            "shares": dict(zip(names, map(float, self.shares), strict=True)),
            "money": dict(zip(names, map(float, self.money), strict=True)),
            "price": {name: None if none[i] else float(self.prices[i]) for i, name in enumerate(names)},
            "unpriced": [name for i, name in enumerate(names) if none[i] and large[i]],
            "value": self.value,
            "cost": self.cost,
            "cash": self.cash,
            "largest_difference": float(np.abs(self.weights - self.target).max()),
            "at": self.at,
        }


def whole_shares(
    previous: np.ndarray,
    weights: np.ndarray,
    prices: np.ndarray,
    value: float,
    cost_bps: float = 0.0,
    at: str = TABLE_PRICES,
) -> Orders:
    """Orders that bring a portfolio of this value from `previous` towards `weights`, both (m,).

    Trades are rounded towards zero. Buys are then reduced, the largest first, until the cash that is left pays the cost
    of trading and is at least what the weights ask for: nothing is bought on credit. An asset without a price (NaN) is
    not traded, and what its sale would bring is not spent.
    """
    value = validate_positive("value", value, most=_LARGEST_VALUE)
    rate = validate_positive("cost_bps", cost_bps, allow_zero=True) / 1e4
    expect(isinstance(at, str), "at", "text", describe_value(at))
    previous, weights, prices = _matched(previous, weights, prices)
    priced = ~np.isnan(prices)
    stated, prices = prices, np.where(priced, prices, 1.0)
    change = np.where(priced, weights - previous, 0.0) * value / prices
    shares = np.trunc(change + np.copysign(_WHOLE, change))
    wanted, before = value * (1.0 - weights.sum()), value * (1.0 - previous.sum())

    def cash() -> float:
        return float(before - (shares * prices).sum() - rate * (np.abs(shares) * prices).sum())

    for i in np.argsort(-shares * prices):
        missing = min(wanted, value) - cash()
        if missing <= _WHOLE * prices.min() or shares[i] <= 0:
            break
        shares[i] -= min(shares[i], np.ceil(missing / (prices[i] * (1 + rate))))
    cost = float(rate * (np.abs(shares) * prices).sum())
    held = previous + shares * prices / value
    return Orders(shares + 0.0, stated, value, cost, cash(), held, previous, weights, at)


def _matched(previous: ArrayLike, weights: ArrayLike, prices: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights before and after and prices of the same assets, (m,) each; NaN for no price."""
    weights, prices = as_floats("weights", weights), as_floats("prices", prices)
    before = as_floats("previous", previous)
    for name, array in (("weights", weights), ("previous", before)):
        fits = array.ndim == 1 and array.shape == weights.shape and bool(np.isfinite(array).all())
        found = f"shape {array.shape}" if np.isfinite(array).all() else "one that is not finite"
        expect(fits, name, f"{weights.size} finite numbers, one for each asset", found)
    priced = ~np.isnan(prices)
    fits = prices.shape == weights.shape and bool(priced.any())
    found = f"shape {prices.shape}" if priced.any() else "none"
    expect(fits, "prices", "a price of every asset, or NaN for none", found)
    wrong = prices[priced & ~((prices >= _LEAST_PRICE) & (prices <= _LARGEST_PRICE))]
    expect(not wrong.size, "prices", f"prices from {_LEAST_PRICE:g} to {_LARGEST_PRICE:g}", f"{wrong[:1].sum():g}")
    return before, weights, prices
