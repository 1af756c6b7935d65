"""Orders in whole shares for a rebalancing in weights; holdings in shares as weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from time2decide.core.validation import ArrayLike, as_floats, describe_value, expect, validate_positive

if TYPE_CHECKING:
    import pandas as pd

    from time2decide.markets.constraints import Constraints
    from time2decide.markets.tables import Source

_LEFT_OVER = 0.01  # of a portfolio's value, that whole shares may leave uninvested
_WHOLE = 1e-6  # of a share, that counts as rounding
_BEYOND = 1e-9  # of a bound or limit, that counts as rounding
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
    constraints : that the weights should meet, if any
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
    constraints: Constraints | None = None

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
            "broken": self.broken(names),
        }

    def broken(self, names: Sequence[str]) -> list[str]:
        """Bounds and limits that the weights after the orders do not meet, in words.

        A weight that is fixed is met to a share. What whole shares leave in cash breaks nothing.
        """
        if self.constraints is None:
            return []
        lower, upper = _bounds(self.constraints, len(self.weights))
        rows = [(f"weight of {name}", *row, 1.0) for name, *row in zip(names, self.weights, lower, upper, strict=True)]
        for one in self.constraints.limits:
            rows.append((one.name, float(one.coefficients @ self.weights), one.low, one.high, one.size))
        return [text for row in rows if (text := unmet(*row))]


def unmet(name: str, value: float, low: float, high: float, size: float = 1.0) -> str:
    """What is wrong with the value of a weight, group or exposure, in words; empty if it is inside its limits."""
    scale, unit = (1, "") if name.startswith("exposure ") else (100, "%")
    beyond = _BEYOND * size
    end, word = (low, "least") if value < low - beyond else (high, "most")
    inside = low - beyond <= value <= high + beyond
    return "" if inside else f"{name} {scale * value:.6g}{unit} (at {word} {scale * end:.6g}{unit})"


def whole_shares(
    previous: np.ndarray,
    weights: np.ndarray,
    prices: np.ndarray,
    value: float,
    cost_bps: float = 0.0,
    at: str = TABLE_PRICES,
    constraints: Constraints | None = None,
) -> Orders:
    """Orders that bring a portfolio of this value from `previous` towards `weights`, both (m,).

    Trades are rounded towards zero; the other way, by one share, where a bound or a limit of `constraints` would be
    broken else. Buys are then reduced, the largest first and those that no lower bound holds before others, until the
    cash that is left pays the cost of trading and is at least what the weights ask for: nothing is bought on credit.
    An asset without a price (NaN) is not traded, and what its sale would bring is not spent.
    """
    value = validate_positive("value", value, most=_LARGEST_VALUE)
    rate = validate_positive("cost_bps", cost_bps, allow_zero=True) / 1e4
    expect(isinstance(at, str), "at", "text", describe_value(at))
    previous, weights, prices = _matched(previous, weights, prices)
    priced = ~np.isnan(prices)
    stated, prices = prices, np.where(priced, prices, 1.0)
    change = np.where(priced, weights - previous, 0.0) * value / prices
    shares = np.trunc(change + np.copysign(_WHOLE, change))
    least = np.full(len(shares), -np.inf)  # shares that lower bounds ask for
    if constraints is not None:
        _round_inside(shares, change, previous, prices / value, constraints)
        least = np.ceil((_bounds(constraints, len(shares))[0] - _BEYOND - previous) * value / prices)
    wanted, before = value * (1.0 - weights.sum()), value * (1.0 - previous.sum())

    def cash() -> float:
        return float(before - (shares * prices).sum() - rate * (np.abs(shares) * prices).sum())

    largest = np.argsort(-shares * prices)
    for i, fewest in [(i, max(least[i], 0.0)) for i in largest] + [(i, 0.0) for i in largest]:
        missing = min(wanted, value) - cash()
        if missing <= _WHOLE * prices.min():
            break
        shares[i] -= max(min(shares[i] - fewest, np.ceil(missing / (prices[i] * (1 + rate)))), 0.0)
    cost = float(rate * (np.abs(shares) * prices).sum())
    held = previous + shares * prices / value
    return Orders(shares + 0.0, stated, value, cost, cash(), held, previous, weights, at, constraints)


def _bounds(constraints: Constraints, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds that whole shares can meet: none of a weight that is fixed."""
    lower, upper = constraints.bounds(m)
    fixed = lower == upper
    return np.where(fixed, -np.inf, lower), np.where(fixed, np.inf, upper)


def _round_inside(
    shares: np.ndarray, change: np.ndarray, previous: np.ndarray, step: np.ndarray, constraints: Constraints
) -> None:
    """Round trades the other way where a bound or limit is broken else, in place.

    `change` is what is wanted in shares, `step` the weight of a share. No trade goes beyond the wanted one by as much
    as a share, none for a limit breaks a bound of its own, and none sells what is not held.
    """
    lower, upper = _bounds(constraints, len(shares))
    floor = np.maximum(lower, np.minimum(0.0, previous + np.minimum(change, 0.0) * step))
    rest = np.where(np.abs(change - shares) > _WHOLE, np.sign(change - shares), 0.0)  # the share that was cut off

    def fits(i: int) -> bool:
        other = previous[i] + (shares[i] + rest[i]) * step[i]
        return bool(rest[i] != 0 and floor[i] - _BEYOND <= other <= upper[i] + _BEYOND)

    def turn(i: int) -> None:
        shares[i] += rest[i]
        rest[i] = 0.0

    held = previous + shares * step
    outside = ((held > upper + _BEYOND) & (rest < 0)) | ((held < lower - _BEYOND) & (rest > 0))
    for i in map(int, np.flatnonzero(outside)):
        if fits(i):
            turn(i)
    for one in constraints.limits:
        for i in map(int, np.argsort(np.abs(one.coefficients) * step)):  # the smallest first
            value = float(one.coefficients @ (previous + shares * step))
            over, under = value > one.high + _BEYOND * one.size, value < one.low - _BEYOND * one.size
            effect = one.coefficients[i] * rest[i]
            if ((over and effect < 0) or (under and effect > 0)) and fits(i):
                turn(i)


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


def read_quotes(source: Source, values: str, price_file: Path | None, table: pd.DataFrame) -> pd.DataFrame:
    """The assets of a table in their order with `price`, the last known one, and `current`, whether it can be traded.

    Prices are those of a CSV asset,price if there is one, else the last of `source`, a table of prices.
    """
    from time2decide.markets.tables import last_prices, read_by_asset

    names = [str(column) for column in table.columns]
    if price_file is None:
        wanted = "prices: a table of prices, or --price-file (price_file in portfolio.toml)"
        expect(values == "prices", "value", wanted, "a table of returns")
        return last_prices(source).reindex(names)
    return quotes_of_prices(price_file.name, read_by_asset(price_file, "price"), table)


def quotes_of_prices(name: str, found: pd.Series, table: pd.DataFrame) -> pd.DataFrame:
    """The quotes, as of `read_quotes`, of prices by asset; an `InputError` begins with `name`."""
    expect((found > 0).all(), name, "positive prices", f"{found.min():g}")
    missing = [str(one) for one in table.columns if one not in found.index and not math.isnan(table[one].iloc[-1])]
    expect(not missing, name, "a price of every asset that can be traded", f"none of {', '.join(missing[:5])}")
    price = found.reindex([str(column) for column in table.columns])
    return price.to_frame("price").assign(current=price.notna())


def weights_of_shares(
    shares: pd.Series, quotes: pd.DataFrame | None, value: float | None, limits: Constraints | None
) -> tuple[pd.Series, float]:
    """Current weights and the value of the portfolio.

    What shares do not make up of a given value is cash where the limits allow that. Else the value must be that of the
    shares, up to what whole shares leave over, and that of the shares is used.
    """
    from time2decide.markets.validation import allows_borrowing, allows_cash

    assert quotes is not None
    unknown = [str(name) for name in shares.index if name not in quotes.index]
    expect(not unknown, "previous", "assets of the table of returns", f"{', '.join(unknown[:5])}")
    money = shares * quotes["price"].reindex(shares.index)
    unpriced = [str(name) for name in money.index[money.isna()] if shares[name] != 0]
    expect(not unpriced, "previous", "shares of assets with a price", f"none of {', '.join(unpriced[:5])}")
    money = money.reindex(quotes.index).fillna(0.0)
    found, cash = float(money.sum()), shares.attrs.get("cash", 0.0)
    if value is None and cash:
        value = found + cash
    if value is not None:
        if allows_cash(limits) if found <= value else allows_borrowing(limits):
            return money / value, value
        wanted = f"{_money(found)}, the shares at their prices (cash and borrowing only as the constraints allow)"
        expect(abs(found - value) <= _LEFT_OVER * value, "value", wanted, _money(value))
    expect(found > 0, "previous", "shares of a positive value", f"{found:g}")
    return money / found, found


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if abs(amount) < _LARGEST_VALUE else f"{amount:.3g}"


class _Rebalancing(Protocol):
    """A decision: weights before and after, the cost of a trade, and what the weights meet."""

    @property
    def previous(self) -> np.ndarray: ...

    @property
    def weights(self) -> np.ndarray: ...

    @property
    def cost_bps(self) -> float: ...

    @property
    def constraints(self) -> Constraints: ...


def quoted_orders(decision: _Rebalancing, quotes: pd.DataFrame, value: float, source: Path | str | None) -> Orders:
    """The orders of a decision at the current prices of `read_quotes`: those of a file, of the table, or as said."""
    prices = quotes["price"].where(quotes["current"]).to_numpy(dtype=float)
    at = source.name if isinstance(source, Path) else source or TABLE_PRICES
    return whole_shares(decision.previous, decision.weights, prices, value, decision.cost_bps, at, decision.constraints)
