"""Faults planted in clean tables, and how many of them `check_returns` finds, names and grades rightly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from time2decide.bench.timing import one_thread
from time2decide.data.check import check_returns
from time2decide.markets.tables import load_market

PLACES = {"early": 0.15, "middle": 0.5, "late": 0.85, "last": 1.0}  # of a fault, as a share of the rows
FREQUENCIES = {"daily": None, "weekly": "W-FRI", "monthly": "ME"}
_ROWS = 1500  # of a universe that is used
_ASSETS = 30


@dataclass(frozen=True)
class Clean:
    """A clean table of prices, and where a fault goes: row t of column j, with another column k."""

    prices: pd.DataFrame
    t: int
    j: int
    k: int
    rng: np.random.Generator

    @property
    def returns(self) -> pd.DataFrame:
        return self.prices.pct_change(fill_method=None).iloc[1:]

    @property
    def rows(self) -> int:
        return len(self.prices)

    @property
    def inner(self) -> int:
        """The row, if need be earlier, so that others follow."""
        return min(max(self.t, 2), self.rows - 8)


@dataclass(frozen=True)
class Fault:
    """A kind of fault: how it is planted, as prices or returns, and by which names it may be found."""

    plant: Callable[[Clean], pd.DataFrame]
    kind: str | None
    names: frozenset[str]
    severity: str  # "stop", "warn", or "any"
    placed: bool = False  # whether it has a place
    least: int = 0  # rows below which it cannot be told
    days: bool = False  # whether it is one of daily rows


def _cell(change: Callable[[float], float], rows: int = 1) -> Callable[[Clean], pd.DataFrame]:
    """Cells of one asset changed, from the row of the fault on."""

    def plant(clean: Clean) -> pd.DataFrame:
        table, start = clean.prices.copy(), clean.inner
        table.iloc[start : start + rows, clean.j] = [change(one) for one in table.iloc[start : start + rows, clean.j]]
        return table

    return plant


def _before(factor: float) -> Callable[[Clean], pd.DataFrame]:
    """A step: all prices before the row times a factor."""

    def plant(clean: Clean) -> pd.DataFrame:
        table = clean.prices.copy()
        table.iloc[: max(clean.t, 2), clean.j] *= factor
        return table

    return plant


def _return_cell(change: Callable[[float, float], float]) -> Callable[[Clean], pd.DataFrame]:
    def plant(clean: Clean) -> pd.DataFrame:
        table = clean.returns.copy()
        row = min(clean.t, len(table) - 1)
        scale = float(table.iloc[:, clean.j].abs().median())
        table.iloc[row, clean.j] = change(float(table.iloc[row, clean.j]), scale)
        return table

    return plant


def _column(
    make: Callable[[Clean], Any], *, of: str = "returns", new: str | None = None
) -> Callable[[Clean], pd.DataFrame]:
    """A column replaced, or added under a new name."""

    def plant(clean: Clean) -> pd.DataFrame:
        table = (clean.returns if of == "returns" else clean.prices).copy()
        values = np.asarray(make(clean), dtype=float)
        if new is not None:
            table[new] = values[-len(table) :]
        else:
            table.isetitem(clean.j, values[-len(table) :])
        return table

    return plant


def _rows(change: Callable[[pd.DataFrame, Clean], pd.DataFrame], of: str = "prices") -> Callable[[Clean], pd.DataFrame]:
    def plant(clean: Clean) -> pd.DataFrame:
        return change((clean.returns if of == "returns" else clean.prices).copy(), clean)

    return plant


def _table(change: Callable[[pd.DataFrame], pd.DataFrame], of: str = "returns") -> Callable[[Clean], pd.DataFrame]:
    return lambda clean: change((clean.returns if of == "returns" else clean.prices).copy())


def _one(clean: Clean) -> pd.Series:
    return clean.returns.iloc[:, clean.j]


def _set(table: pd.DataFrame, rows: Any, columns: Any, values: Any) -> pd.DataFrame:
    table.iloc[rows, columns] = values
    return table


def _with_row(table: pd.DataFrame, row: pd.DataFrame, t: int) -> pd.DataFrame:
    return pd.concat([table.iloc[:t], row, table.iloc[t:]])


def _stale(rows: int, *, end: bool = False, start: bool = False) -> Callable[[Clean], pd.DataFrame]:
    """A run of equal prices of one asset; a number of rows, or fewer in a short table."""

    def plant(clean: Clean) -> pd.DataFrame:
        table = clean.prices.copy()
        count = min(rows, clean.rows // 4)
        first = 0 if start else clean.rows - count if end else min(max(clean.t - count // 2, 5), clean.rows - count - 8)
        held = first + count - 1 if start else first
        return _set(table, slice(first, first + count), clean.j, table.iloc[held, clean.j])

    return plant


def _volume(clean: Clean) -> np.ndarray:
    return np.asarray(np.exp(14 + clean.rng.normal(0, 0.5, clean.rows)).round())


def _swapped(clean: Clean, rows: int | None = 1) -> pd.DataFrame:
    """An asset and the one of the most different price, exchanged in some rows, or to the end."""
    table, t = clean.prices.copy(), clean.inner
    apart = np.abs(np.log(table.iloc[t] / table.iloc[t, clean.j]).to_numpy())
    if apart.max() < 0.5:
        table.iloc[:, int(np.argmax(apart))] *= 3
    pair, part = [clean.j, int(np.argmax(apart))], slice(t, None if rows is None else t + rows)
    table.iloc[part, pair] = table.iloc[part, pair[::-1]].to_numpy()
    return table


def _every(step: int) -> Callable[[Clean], pd.DataFrame]:
    def plant(clean: Clean) -> pd.DataFrame:
        table = clean.prices.copy()
        seldom = table.iloc[::step, clean.j].reindex(table.index).ffill()
        return table.assign(**{str(table.columns[clean.j]): seldom})

    return plant


def _line(clean: Clean) -> pd.DataFrame:
    table, rows = clean.prices.copy(), min(20, clean.rows // 5)
    first = min(max(clean.t - rows, 3), clean.rows - rows - 3)
    ends = table.iloc[[first, first + rows], clean.j].to_list()
    return _set(table, slice(first, first + rows + 1), clean.j, np.linspace(ends[0], ends[1], rows + 1))


def _block(clean: Clean) -> pd.DataFrame:
    """A stretch of rows of returns that stands there twice."""
    table, rows = clean.returns.copy(), min(20, clean.rows // 5)
    first = min(max(clean.t, rows), len(table) - rows)
    return _set(table, slice(first, first + rows), slice(None), table.iloc[first - rows : first].to_numpy())


def _mixed_units(clean: Clean) -> pd.DataFrame:
    table = clean.returns.copy()
    first = min(max(clean.t, 10), len(table) - 5)
    table.iloc[first:] *= 100
    return table


def _lost_decimals(clean: Clean) -> pd.DataFrame:
    table = clean.prices.copy()
    rows = clean.rng.choice(np.arange(3, clean.rows - 3), max(clean.rows // 40, 2), replace=False)
    return _set(table, np.sort(rows), clean.j, table.iloc[np.sort(rows), clean.j] * 100)


def _dates(change: Callable[[pd.DatetimeIndex, Clean], Any]) -> Callable[[Clean], pd.DataFrame]:
    return lambda clean: clean.prices.set_axis(pd.DatetimeIndex(change(clean.prices.index, clean)), axis=0)


def _future(days: pd.DatetimeIndex, clean: Clean) -> list[pd.Timestamp]:
    return [*days[:-1], days[-1] + pd.DateOffset(years=40)]


def _named(clean: Clean, name: str) -> pd.DataFrame:
    columns = list(map(str, clean.prices.columns))
    columns[clean.k] = name
    return clean.prices.set_axis(columns, axis=1)


def _cash(clean: Clean, level: float) -> np.ndarray:
    """A rate that is constant for 60 rows."""
    return np.repeat(level * clean.rng.uniform(0.5, 1.5, clean.rows // 60 + 1), 60)[: clean.rows]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _fault(plant: Callable[[Clean], pd.DataFrame], kind: str | None, severity: str, names: str, **more: Any) -> Fault:
    return Fault(plant, kind, _names(names), severity, **more)


_PRINT, _UNIT = "bad_print quote_unit", "quote_unit bad_print"
FAULTS: dict[str, Fault] = {
    # units of the table
    "percent": _fault(_table(lambda r: r * 100), "returns", "stop", "percent"),
    "percent, kind unsaid": _fault(_table(lambda r: r * 100), None, "stop", "percent"),
    "basis points": _fault(_table(lambda r: r * 1e4), "returns", "stop", "basis_points"),
    "gross returns": _fault(_table(lambda r: 1 + r), "returns", "stop", "gross_returns"),
    "gross returns, kind unsaid": _fault(_table(lambda r: 1 + r), None, "stop", "gross_returns"),
    "gross returns as prices": _fault(_table(lambda r: 1 + r), "prices", "stop", "gross_returns"),
    "logarithms of prices": _fault(_table(np.log, "prices"), "returns", "stop", "log_prices"),
    "prices as returns": _fault(_table(lambda p: p, "prices"), "returns", "stop", "prices_given_as_returns log_prices"),
    "returns as prices": _fault(_table(lambda r: r), "prices", "stop", "returns_given_as_prices"),
    "overlapping returns": _fault(
        _table(lambda r: r.rolling(5).sum().dropna()), "returns", "stop", "overlapping", least=200
    ),
    "cumulated returns": _fault(
        _table(lambda r: (1 + r).cumprod() - 1), "returns", "stop", "prices_given_as_returns log_prices levels"
    ),
    "per cent from a row on": _fault(_mixed_units, "returns", "stop", "unit_changes percent row_jump", placed=True),
    "per cent in the last row": _fault(
        _rows(lambda r, c: _set(r, -1, slice(None), r.iloc[-1] * 100), "returns"),
        "returns",
        "stop",
        "unit_changes row_jump",
    ),
    # units of a column
    "column in per cent": _fault(_column(lambda c: _one(c) * 100), "returns", "stop", "column_unit"),
    "column in basis points": _fault(_column(lambda c: _one(c) * 1e4), "returns", "stop", "column_unit levels"),
    "column gross": _fault(_column(lambda c: 1 + _one(c)), "returns", "stop", "gross_returns"),
    "column of prices": _fault(_column(lambda c: c.prices.iloc[:, c.j]), "returns", "stop", "levels"),
    "column of logarithms": _fault(_column(lambda c: np.log(c.prices.iloc[:, c.j] * 10)), "returns", "stop", "levels"),
    "column of absolute returns": _fault(_column(lambda c: _one(c).abs()), "returns", "stop", "never_falls", least=62),
    "row numbers": _fault(_column(lambda c: np.arange(c.rows), new="n"), "returns", "stop", "row_numbers"),
    "row numbers as prices": _fault(
        _column(lambda c: np.arange(1, c.rows + 1), of="prices", new="n"), "prices", "stop", "row_numbers"
    ),
    "volume as a price": _fault(_column(_volume, of="prices", new="V"), "prices", "stop", "volume", least=100),
    "column Volume": _fault(_column(_volume, of="prices", new="Volume"), "prices", "stop", "not_an_asset volume"),
    "annual rate in per cent": _fault(
        _column(lambda c: _cash(c, 4.0), new="RF"), "returns", "stop", "levels cash_rate_unit constant"
    ),
    "annual rate": _fault(
        _column(lambda c: _cash(c, 0.3), new="RF"), "returns", "stop", "levels cash_rate_unit constant", least=100
    ),
    "risk-free rate": _fault(_column(lambda c: _cash(c, 0.0001), new="RF"), "returns", "warn", "cash_rate", least=100),
    "smoothed column": _fault(
        _column(lambda c: _one(c).rolling(6, min_periods=1).mean()), "returns", "warn", "smoothed", least=120
    ),
    "clipped column": _fault(
        _column(lambda c: _one(c).clip(*_one(c).quantile([0.02, 0.98]))), "returns", "warn", "clipped", least=250
    ),
    "rounded column": _fault(_column(lambda c: _one(c).round(2)), "returns", "warn", "rounded", days=True),
    "constant column": _fault(_column(lambda c: np.full(c.rows, 0.0)), "returns", "warn", "constant"),
    "constant large column": _fault(_column(lambda c: np.full(c.rows, 0.07)), "returns", "stop", "constant"),
    "empty column": _fault(_column(lambda c: np.full(c.rows, np.nan)), "returns", "warn", "no_data"),
    "text": _fault(
        _rows(lambda p, c: _set(p.astype(object), c.inner, c.j, "see note")),
        "prices",
        "stop",
        "not_numbers",
        placed=True,
    ),
    "infinite": _fault(_return_cell(lambda r, s: np.inf), "returns", "stop", "infinite", placed=True),
    # single cells
    "print x 5": _fault(_cell(lambda p: p * 5), "prices", "stop", _PRINT, placed=True),
    "print x 10": _fault(_cell(lambda p: p * 10), "prices", "stop", _PRINT, placed=True),
    "print / 10": _fault(_cell(lambda p: p / 10), "prices", "stop", _PRINT, placed=True),
    "print x 3": _fault(_cell(lambda p: p * 3), "prices", "any", f"{_PRINT} jump", placed=True, days=True),
    "quote x 100 inside": _fault(_cell(lambda p: p * 100), "prices", "stop", _UNIT, placed=True),
    "quote / 100 inside": _fault(_cell(lambda p: p / 100), "prices", "stop", _UNIT, placed=True),
    "quote x 1000 inside": _fault(_cell(lambda p: p * 1000), "prices", "stop", _UNIT, placed=True),
    "quote x 100 for four rows": _fault(_cell(lambda p: p * 100, 4), "prices", "stop", _UNIT, placed=True),
    "quote x 100 at the end": _fault(
        _rows(lambda p, c: _set(p, -1, c.j, p.iloc[-1, c.j] * 100)), "prices", "stop", _UNIT
    ),
    "quote / 100 at the end": _fault(
        _rows(lambda p, c: _set(p, -1, c.j, p.iloc[-1, c.j] / 100)), "prices", "stop", _UNIT
    ),
    "quote x 100 from a row on": _fault(_before(0.01), "prices", "stop", _UNIT, placed=True),
    "lost decimal signs": _fault(_lost_decimals, "prices", "stop", f"{_UNIT} column_unit volume"),
    "return in per cent": _fault(
        _return_cell(lambda r, s: -180 * s), "returns", "any", "below_minus_one jump split", placed=True, days=True
    ),
    "return of -100 %": _fault(
        _return_cell(lambda r, s: -1.0), "returns", "any", "below_minus_one total_loss", placed=True
    ),
    "return of 999999": _fault(_return_cell(lambda r, s: 999999.0), "returns", "stop", "sentinel", placed=True),
    "return of -99.99": _fault(
        _return_cell(lambda r, s: -99.99), "returns", "stop", "sentinel below_minus_one", placed=True
    ),
    "price of 999999": _fault(_cell(lambda p: 999999.0), "prices", "stop", "sentinel", placed=True),
    "price of 0.01": _fault(_cell(lambda p: 0.01), "prices", "stop", f"{_PRINT} sentinel", placed=True),
    "price of 0": _fault(_cell(lambda p: 0.0), "prices", "stop", "price_not_positive", placed=True),
    "price of -1": _fault(_cell(lambda p: -1.0), "prices", "stop", "price_not_positive", placed=True),
    "split 2 : 1": _fault(_before(2.0), "prices", "any", "split jump", placed=True, days=True),
    "split 3 : 1": _fault(_before(3.0), "prices", "any", "split jump", placed=True, days=True),
    "split 4 : 1": _fault(_before(4.0), "prices", "any", "split jump", placed=True),
    "split 10 : 1": _fault(_before(10.0), "prices", "any", "split jump", placed=True),
    "consolidation 1 : 20": _fault(_before(1 / 20), "prices", "any", "split jump", placed=True),
    "two columns exchanged in a row": _fault(
        _swapped, "prices", "any", "columns_swapped bad_print quote_unit jump", placed=True
    ),
    "two columns exchanged from a row on": _fault(
        lambda c: _swapped(c, None), "prices", "any", "columns_swapped split jump quote_unit", placed=True
    ),
    # rows
    "row x 100": _fault(
        _rows(lambda p, c: _set(p, c.inner, slice(None), p.iloc[c.inner] * 100)),
        "prices",
        "stop",
        "row_jump",
        placed=True,
    ),
    "all prices x 2 from a row on": _fault(
        _rows(lambda p, c: _set(p, slice(c.inner, None), slice(None), p.iloc[c.inner :] * 2)),
        "prices",
        "any",
        "row_jump",
        placed=True,
    ),
    "row of zeros": _fault(
        _rows(lambda p, c: _set(p, c.inner, slice(None), 0.0)), "prices", "stop", "price_not_positive", placed=True
    ),
    "row of one return": _fault(
        _rows(lambda r, c: _set(r, min(c.t, len(r) - 1), slice(None), 0.0123), "returns"),
        "returns",
        "stop",
        "row_of_one_value",
        placed=True,
    ),
    "last row again": _fault(
        _rows(lambda p, c: _set(p, -1, slice(None), p.iloc[-2].to_numpy())), "prices", "stop", "last_row_again"
    ),
    "last row of returns again": _fault(
        _rows(lambda r, c: _set(r, -1, slice(None), r.iloc[-2].to_numpy()), "returns"),
        "returns",
        "stop",
        "last_row_again",
    ),
    "half of the last row": _fault(
        _rows(lambda p, c: _set(p, -1, slice(0, p.shape[1] * 3 // 4), p.iloc[-2, : p.shape[1] * 3 // 4].to_numpy())),
        "prices",
        "warn",
        "last_row_partial",
    ),
    "block of rows again": _fault(_block, "returns", "stop", "rows_repeated", placed=True),
    "empty last row": _fault(_rows(lambda p, c: _set(p, -1, slice(None), np.nan)), "prices", "stop", "empty_rows"),
    # runs
    "zeros before listing": _fault(
        _rows(lambda r, c: _set(r, slice(0, len(r) // 3), c.j, 0.0), "returns"),
        "returns",
        "stop",
        "zeros_before_listing",
        least=100,
    ),
    "first price before listing": _fault(_stale(300, start=True), "prices", "stop", "zeros_before_listing", least=240),
    "stale inside": _fault(_stale(30), "prices", "any", "stale", placed=True),
    "stale at the end": _fault(_stale(80, end=True), "prices", "any", "stale", least=100),
    "zeros after delisting": _fault(
        _rows(lambda r, c: _set(r, slice(-len(r) // 4, None), c.j, 0.0), "returns"),
        "returns",
        "any",
        "stale",
        least=100,
    ),
    "interpolated": _fault(_line, "prices", "warn", "interpolated", placed=True),
    "valued monthly": _fault(_every(21), "prices", "stop", "valued_seldom", least=240),
    "valued every 5 rows": _fault(_every(5), "prices", "stop", "valued_seldom", least=100),
    "holes": _fault(_rows(lambda p, c: _set(p, np.arange(4, c.rows - 4, 9), c.j, np.nan)), "prices", "warn", "holes"),
    "ends early": _fault(
        _rows(lambda p, c: _set(p, slice(-min(40, c.rows // 4), None), c.j, np.nan)), "prices", "warn", "ends_early"
    ),
    # dates and names
    "newest first": _fault(_rows(lambda p, c: p.iloc[::-1]), "prices", "stop", "newest_first"),
    "two blocks exchanged": _fault(
        _rows(lambda p, c: pd.concat([p.iloc[c.inner :], p.iloc[: c.inner]])), "prices", "stop", "unsorted", placed=True
    ),
    "a date twice": _fault(
        _rows(lambda p, c: _with_row(p, p.iloc[[c.inner]], c.inner)), "prices", "stop", "same_date", placed=True
    ),
    "future date": _fault(_dates(_future), "prices", "stop", "future_date"),
    "dates of 1970": _fault(
        _dates(lambda d, c: pd.to_datetime(np.arange(len(d)))), "prices", "stop", "dates_implausible", least=301
    ),
    "rows missing": _fault(
        _rows(lambda p, c: p.drop(p.index[max(c.inner - 30, 2) : max(c.inner - 30, 2) + 25])),
        "prices",
        "any",
        "gap",
        placed=True,
    ),
    "weekend row": _fault(_rows(lambda p, c: _with_weekend(p, c)), "prices", "warn", "weekend", placed=True, days=True),
    "month ends at first": _fault(
        _rows(lambda p, c: pd.concat([p.iloc[: c.rows // 2].resample("ME").last(), p.iloc[c.rows // 2 :]])),
        "prices",
        "warn",
        "frequency_changes gap",
        days=True,
    ),
    "name in other letters": _fault(
        lambda c: _named(
            c,
            str(c.prices.columns[c.j]).swapcase()
            if str(c.prices.columns[c.j]).swapcase() != str(c.prices.columns[c.j])
            else f" {c.prices.columns[c.j]}",
        ),
        "prices",
        "any",
        "same_name",
    ),
    "name with a space": _fault(lambda c: _named(c, f"{c.prices.columns[c.j]} "), "prices", "any", "same_name"),
    # one asset and the others
    "sign turned from a row on": _fault(
        _rows(lambda r, c: _set(r, slice(len(r) // 2, None), c.j, -r.iloc[len(r) // 2 :, c.j]), "returns"),
        "returns",
        "warn",
        "sign",
        least=400,
    ),
    "column / 100 from a row on": _fault(
        _rows(lambda r, c: _set(r, slice(len(r) // 2, None), c.j, r.iloc[len(r) // 2 :, c.j] / 100), "returns"),
        "returns",
        "warn",
        "unit_changes",
        least=400,
    ),
    "returns over a month in every row": _fault(
        _table(lambda r: r.rolling(21).sum().dropna()), "returns", "stop", "overlapping", least=400
    ),
    "rows of a week in a table of days": _fault(
        _rows(lambda p, c: p.iloc[::5].reindex(p.index).ffill()), "prices", "stop", "valued_seldom", days=True
    ),
    "six rows filled": _fault(
        _rows(lambda p, c: _set(p, slice(c.inner - 6, c.inner), slice(None), p.iloc[c.inner - 7].to_numpy())),
        "prices",
        "warn",
        "holidays_filled",
        placed=True,
    ),
    "zeros for missing returns": _fault(
        _column(lambda c: np.where(c.rng.random(c.rows - 1) < 0.25, 0, _one(c))), "returns", "warn", "stale", least=200
    ),
    "bills in per cent": _fault(
        _column(lambda c: _cash(c, 0.02), new="RF"), "returns", "stop", "cash_rate_unit levels", days=True
    ),
    "same asset": _fault(
        _column(lambda c: c.prices.iloc[:, c.j] * 1.7, of="prices", new="again"),
        "prices",
        "stop",
        "same_asset",
        least=62,
    ),
    "other class of a share": _fault(
        _column(lambda c: _one(c) + c.rng.normal(0, 0.02, c.rows - 1) * float(_one(c).std()), new="again"),
        "returns",
        "warn",
        "same_asset",
        least=62,
    ),
    "same asset at the end": _fault(
        _rows(lambda r, c: _set(r, slice(len(r) // 2, None), c.j, r.iloc[len(r) // 2 :, c.k].to_numpy()), "returns"),
        "returns",
        "stop",
        "same_asset",
        least=150,
    ),
    "late by a row": _fault(_column(lambda c: _one(c).shift(1).fillna(0)), "returns", "stop", "shifted", least=400),
    "early by a row": _fault(_column(lambda c: _one(c).shift(-1).fillna(0)), "returns", "stop", "shifted", least=400),
    "late by three rows": _fault(
        _column(lambda c: _one(c).shift(3).fillna(0)), "returns", "stop", "shifted", least=400
    ),
    "sign turned": _fault(_column(lambda c: -_one(c)), "returns", "warn", "sign", least=100),
    "index of members": _fault(
        _column(lambda c: c.returns.mean(axis=1), new="INDEX"), "returns", "warn", "index_of_members", least=100
    ),
}


def _with_weekend(prices: pd.DataFrame, clean: Clean) -> pd.DataFrame:
    t = next(i for i in range(clean.inner, 0, -1) if prices.index[i].day_of_week == 4)
    row = (prices.iloc[[t]] * 1.001).set_axis([prices.index[t] + pd.Timedelta(days=1)])
    return _with_row(prices, row, t + 1)


def measure_faults(universes: dict[str, pd.DataFrame]) -> Iterator[dict[str, Any]]:
    """A row for each planted fault, and for each clean table, of universes of prices (dates × assets)."""
    for universe, daily in universes.items():
        for frequency, rule in FREQUENCIES.items():
            prices = (daily if rule is None else daily.resample(rule).last()).iloc[-_ROWS:]
            about = {"universe": universe, "frequency": frequency, "rows": len(prices), "assets": prices.shape[1]}
            for kind, table in (("prices", prices), ("returns", prices.pct_change(fill_method=None).iloc[1:])):
                start = time.process_time()
                found = check_returns(table, kind)
                seconds = time.process_time() - start
                stops, warns = ([one.name for one in found if one.severity == s] for s in ("stop", "warn"))
                yield {
                    **about,
                    "fault": f"clean {kind}",
                    "stops": " ".join(stops),
                    "warns": " ".join(warns),
                    "seconds": seconds,
                }
            if not prices.isna().any(axis=None):
                clean = {
                    one.name
                    for one in check_returns(prices, "prices") + check_returns(prices.pct_change().iloc[1:], "returns")
                }
                for row in _planted(prices, frequency, len(universe), clean):
                    yield {**about, **row}


def _planted(prices: pd.DataFrame, frequency: str, seed: int, clean: set[str]) -> Iterator[dict[str, Any]]:
    for number, (name, fault) in enumerate(FAULTS.items()):
        if len(prices) < fault.least or (fault.days and frequency != "daily"):
            continue
        for place, share in PLACES.items() if fault.placed else {"": 0.5}.items():
            rng = np.random.default_rng([number, seed, round(100 * share)])
            j, k = rng.choice(prices.shape[1], 2, replace=False)
            t = min(int(share * len(prices)), len(prices) - 1)
            table = fault.plant(Clean(prices, t, int(j), int(k), rng))
            found = check_returns(table, fault.kind)
            hits = [one for one in found if one.name in fault.names]
            graded = [one for one in hits if fault.severity in (one.severity, "any")]
            others = " ".join(f"{one.name}:{one.severity}" for one in found if one.name not in clean)
            yield {
                "fault": name,
                "place": place,
                "found": bool(others),
                "named": bool(hits),
                "graded": bool(graded),
                "others": others,
            }


def _universes(folder: Path | None, quick: bool) -> dict[str, pd.DataFrame]:
    """Prices (dates × assets) without gaps: skfolio's two sets, and the dated tables of a folder."""
    from skfolio.datasets import load_factors_dataset

    sources: dict[str, Any] = {"sp500": "sp500", "factors": load_factors_dataset()}
    if folder is not None:
        sources |= {path.name.split(".")[0]: path for path in sorted(folder.glob("*.csv*"))}
    universes = {}
    for name, source in sources.items():
        returns = load_market(source, gaps="keep", most_gap=np.inf)[0].dropna(axis=1)
        if isinstance(returns.index, pd.DatetimeIndex):
            universes[name] = 50 * (1 + returns.iloc[-300 if quick else 0 :, :_ASSETS]).cumprod()
    return universes


def fault_rows(quick: bool = False, problems: Path | None = None) -> list[dict[str, Any]]:
    """Shares of planted faults that are found, named and graded rightly, and findings of clean tables.

    `problems` is a folder of tables to plant them in beside skfolio's.
    """
    with one_thread():
        rows = pd.DataFrame(measure_faults(_universes(problems, quick)))
    summary = []
    for (universe, frequency), part in rows.groupby(["universe", "frequency"], sort=False):
        clean = part["fault"].str.startswith("clean")
        planted, whole = part[~clean], part[clean]
        missed = planted.loc[planted["graded"] == False, "fault"].value_counts()  # noqa: E712 - of objects
        summary.append(
            {
                **{"universe": universe, "frequency": frequency},
                **{"rows": int(part["rows"].iloc[0]), "assets": int(part["assets"].iloc[0])},
                **{"kinds": planted["fault"].nunique(), "planted": len(planted)},
                **{key: float(planted[key].astype(bool).mean()) for key in ("found", "named", "graded")},
                "clean_stops": int(whole["stops"].str.split().str.len().max()),
                "clean_warnings": int(whole["warns"].str.split().str.len().max()),
                "missed": ", ".join(f"{name} ({count})" for name, count in missed.items()),
            }
        )
    return summary
