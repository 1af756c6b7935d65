"""Orders in whole shares for a rebalancing in weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from time2decide.core.validation import expect, validate_positive

_WHOLE = 1e-6  # of a share, that counts as rounding


@dataclass(frozen=True)
class Orders:
    """Shares to trade, (m,), bought positive.

    money : what they cost or bring, at the prices
    prices : (m,)
    value : of the portfolio before
    cost : of trading
    cash : after trading and its cost
    weights : that are held then, relative to the value before
    """

    shares: np.ndarray
    prices: np.ndarray
    value: float
    cost: float
    cash: float
    weights: np.ndarray

    @property
    def money(self) -> np.ndarray:
        return np.asarray(self.shares * self.prices)


def whole_shares(
    previous: np.ndarray, weights: np.ndarray, prices: np.ndarray, value: float, cost_bps: float = 0.0
) -> Orders:
    """Orders that bring a portfolio of this value from `previous` towards `weights`, both (m,).

    Trades are rounded towards zero. Buys are then reduced, the largest first, until the cash that is left pays the cost
    of trading and is at least what the weights ask for: nothing is bought on credit.
    """
    validate_positive("value", value)
    fits = prices.shape == weights.shape and bool(np.isfinite(prices).all() and (prices > 0).all())
    expect(fits, "prices", "a positive price of every asset", "others")
    change = (weights - previous) * value / prices
    shares = np.trunc(change + np.copysign(_WHOLE, change))
    rate = cost_bps / 1e4
    wanted, before = value * (1.0 - weights.sum()), value * (1.0 - previous.sum())

    def cash() -> float:
        return float(before - (shares * prices).sum() - rate * (np.abs(shares) * prices).sum())

    for i in np.argsort(-shares * prices):
        missing = min(wanted, value) - cash()
        if missing <= _WHOLE * prices.min() or shares[i] <= 0:
            break
        shares[i] -= min(shares[i], np.ceil(missing / (prices[i] * (1 + rate))))
    cost = float(rate * (np.abs(shares) * prices).sum())
    return Orders(shares + 0.0, prices, value, cost, cash(), previous + shares * prices / value)
