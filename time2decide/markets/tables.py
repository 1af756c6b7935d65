"""Tables of returns from CSV, Parquet or a DataFrame, validated cell by cell, never silently filled; weights files."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from numbers import Number
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from time2decide.core.files import validate_input_file, validate_path, write_text
from time2decide.core.validation import InputError, expect, is_text, refuse, validate_choice, validate_positive
from time2decide.markets.periods import frequency_of
from time2decide.markets.table_files import SourceTable, expect_few, read_source, read_table_cells
from time2decide.markets.validation import looks_like_prices

_MOST_GAP = 10  # times the usual distance between rows; exchanges have been closed for seven days in a row
_KINDS = ("returns", "prices")
Source: TypeAlias = Any  # a path, sp500, a DataFrame, a SourceTable, a table of polars or pyarrow
#: Other names of the columns of holdings and prices.
_COLUMNS = {
    **dict.fromkeys(("asset", "assets", "ticker", "symbol", "security", "instrument", "name"), "asset"),
    **dict.fromkeys(("weight", "weights", "target"), "weight"),
    **dict.fromkeys(("shares", "quantity", "qty", "units", "position"), "shares"),
    **dict.fromkeys(("price", "close", "last", "quote"), "price"),
}
#: What becomes of empty cells.
GAPS = ("refuse", "keep")
_NOT_NUMBERS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "true or false"),
    ((complex, np.complexfloating), "complex numbers"),
    ((date, timedelta, np.datetime64, np.timedelta64), "dates or durations"),
)
_CELLS = (str, Number, Decimal, type(None), type(pd.NA), type(pd.NaT))  # that may hold a number, or none
#: pandas 2 reads a decimal text to 16 digits only, so that a file had another fingerprint than under pandas 3.
_ROUNDS_TEXT = int(pd.__version__.split(".")[0]) < 3
_FEW = 21  # numbers; with fewer, where gaps are kept, an asset has hardly been listed and its column is not judged
_OFFSET = re.compile(r"(?<=[T ])([0-9:.]+) ?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$")  # from UTC, after a time of day
_TELLING = 20  # rows that are all positive are hardly returns


def load_returns(
    source: Source,
    values: str | None = None,
    *,
    most_gap: float = _MOST_GAP,
    gaps: str = "refuse",
) -> pd.DataFrame:
    """A wide table of simple returns: one column per asset, one row per period, ready for `backtest` and `decide`.

    Parameters
    ----------
    source : path of a .csv, .csv.gz, .tsv, .txt, .parquet or .xlsx file, a table of pandas or polars, or "sp500"
        In a file the first line names the columns and the first column holds dates or whole step numbers; a DataFrame
        has them as its index, or in its first column. Separators, decimal commas, orders of day and month and other
        spellings are found out where only one reading is possible (`table_files.Reading` settles the rest).
        "sp500" is skfolio's set of 20 stocks of the S&P 500, daily, 1990 to 2022.
    values : {"returns", "prices"}, optional
        What the cells are; prices become p_t / p_{t−1} − 1, which drops the first row. Guessed if not given: numbers
        that are all positive and typically above 0.5 are prices.
    most_gap : float
        The longest allowed distance between two rows, in multiples of the median distance, or of a day within days.
    gaps : {"refuse", "keep"}
        Whether empty cells are refused or kept as NaN, for assets that list late, are delisted, halt or miss days.
        Nothing is filled in. In prices, the first return after a gap is that from the last price before it.

    Raises
    ------
    InputError
        In one line, with the column and the row (counted from 1 below the header), for text, missing (unless kept)
        and infinite cells, duplicate columns, duplicate, unordered or unreadable dates, missing rows, constant
        columns, returns below −1 and prices that are not positive.
    """
    return load_market(source, values, most_gap=most_gap, gaps=gaps)[0]


def load_market(
    source: Source,
    values: str | None = None,
    *,
    most_gap: float = _MOST_GAP,
    gaps: str = "refuse",
    inspect: Callable[[pd.DataFrame, SourceTable], None] | None = None,
) -> tuple[pd.DataFrame, str]:
    """`load_returns`, and what the cells were taken for: "returns" or "prices".

    With `values` None it is guessed: numbers that are all positive and typically above 0.5 are prices. `inspect` is
    called with the numbers as they stand in the source, and that, and may raise.
    """
    if values is not None:
        validate_choice("values", values, _KINDS)
    validate_choice("gaps", gaps, GAPS)
    if most_gap != math.inf:  # which allows any gap
        validate_positive("most_gap", most_gap)
    read = read_source(source)
    name = read.name
    table = _validate_table(read.frame, name, most_gap, gaps)
    if inspect is not None:
        inspect(table, read)
    values = "prices" if name == "sp500" else values or _guess(table.to_numpy(), name)
    if values == "prices":
        return _prices_to_returns(table, name), values
    refuse(_return_problems(table, name))
    return table, values


def complete_returns(source: str | Path) -> tuple[np.ndarray, float]:
    """Returns (time, m) of the assets of a table that have no gaps, and its rows a year (as days without dates)."""
    table = load_market(source, gaps="keep")[0].dropna(axis=1)
    expect(table.shape[1] >= 2, str(source), "at least 2 assets without gaps", table.shape[1])
    return table.to_numpy(copy=True), frequency_of(table.index).assumed


def _guess(array: np.ndarray, name: str) -> str:
    known = array[np.isfinite(array)]
    if looks_like_prices(known):
        return "prices"
    telling = len(array) < _TELLING or (array <= 0).any()
    expect(telling, name, "to be told prices or returns", "small numbers that are all positive")
    return "returns"


def _validate_table(frame: pd.DataFrame, name: str, most_gap: float, gaps: str) -> pd.DataFrame:
    expect_few(frame.shape[1], name)
    columns = [str(column).strip() for column in frame.columns]
    refuse(_frame_problems(frame, columns, name))
    index = frame.index if isinstance(frame.index, pd.DatetimeIndex) else _parse_labels(frame.index, name)
    refuse(_index_problems(index, list(frame.index), name, most_gap))
    cells = [_numbers(frame.iloc[:, i], name, column, gaps) for i, column in enumerate(columns)]
    refuse(_column_problems(columns, cells, name, 0 if gaps == "refuse" else _FEW))
    return pd.DataFrame(np.column_stack(cells), index=index, columns=columns)


def _column_problems(columns: list[str], cells: list[np.ndarray], name: str, few: int) -> Iterator[str]:
    """Columns without enough numbers, or all constant; those with fewer than `few`, or none, are not judged."""
    if not any(np.isfinite(numbers).any() for numbers in cells):
        yield f"{name}: expected numbers, found empty cells only"
    moves = any(np.ptp(numbers[np.isfinite(numbers)], axis=0) > 0 for numbers in cells if np.isfinite(numbers).any())
    for column, numbers in zip(columns, cells, strict=True):
        known = numbers[np.isfinite(numbers)]
        if few and len(known) < min(few, len(numbers)):
            continue
        if len(known) < 2:
            yield f"{name}: column {column!r}: expected at least 2 numbers, found {len(known)}"
        elif not moves:
            yield f"{name}: column {column!r}: expected numbers that vary, found {known[0]:g} in every row"


def _frame_problems(frame: pd.DataFrame, columns: list[str], name: str) -> Iterator[str]:
    if frame.shape[0] < 2 or frame.shape[1] < 1:
        yield f"{name}: expected at least 2 rows and 1 asset, found {frame.shape[0]} and {frame.shape[1]}"
    for i, column in enumerate(columns):
        if pd.isna(frame.columns[i]) or not column:
            yield f"{name}: column {i + 1}: expected the name of an asset, found none"
        if not is_text(column):
            yield f"{name}: column {i + 1}: expected a name that is text, found {column!r}"
        if column in columns[:i]:
            yield f"{name}: column {column!r}: expected distinct names, found it twice"


def _index_problems(index: pd.Index, labels: list[Any], name: str, most_gap: float) -> Iterator[str]:
    """Dates or whole numbers must increase strictly and have no gaps."""
    steps = np.diff(index.asi8 if isinstance(index, pd.DatetimeIndex) else index.to_numpy())
    for row in np.flatnonzero(index.duplicated()):
        yield f"{name}: row {row + 1}: expected distinct dates, found {labels[row]} again"
    for row in np.flatnonzero(steps < 0):
        yield f"{name}: row {row + 2}: expected increasing dates, found {labels[row + 1]} after {labels[row]}"
    usual = np.median(steps)
    if isinstance(index, pd.DatetimeIndex):  # within a day, closed nights are no gap: days are looked at
        day = pd.Timedelta(days=1) // pd.Timedelta(1, index.unit)
        usual = usual if usual > day / 2 else day
    for row in np.flatnonzero(steps > most_gap * usual):
        yield f"{name}: row {row + 2}: expected no gap, found {labels[row]} followed by {labels[row + 1]}"


def _parse_labels(index: pd.Index, name: str) -> pd.Index:
    """Whole numbers, dates, or times.

    Of times with an offset those of a table that begins with days, each at midnight at its own offset, are taken as
    they stand. The others get the offset of a row among the first two that is not at midnight, whatever offsets follow,
    as those of summer and winter do: a row has the same label whatever rows come later.
    """
    texts = [str(label).strip() for label in index]
    if all(re.fullmatch("[+-]?[0-9]{1,18}", text) for text in texts) and not all(len(text) == 8 for text in texts):
        return pd.Index([int(text) for text in texts])
    times = [_OFFSET.search(text) for text in texts]
    zoned = np.array([time is not None for time in times])
    later = next((i for i, time in enumerate(times[:2]) if time is not None and time[1].strip("0:.")), None)
    if later is None:
        texts = [_OFFSET.sub(r"\1", text) for text in texts]
    dates = pd.to_datetime(pd.Index(texts), format="ISO8601", errors="coerce", utc=later is not None)
    words = np.array([not text[:1].isdigit() for text in texts])  # pandas reads "now" and "today" as the time of day
    refuse(
        f"{name}: row {row + 1}: expected a date like 2024-01-31 in the first column, found {texts[row]!r}"
        for row in np.flatnonzero(words | dates.isna())
    )
    refuse(
        f"{name}: row {row + 1}: expected an offset such as +00:00 in every row or in none, found {texts[row]!r}"
        for row in np.flatnonzero(zoned != zoned[0])
    )
    dates = pd.DatetimeIndex(dates)
    return dates if later is None else dates.tz_convert(pd.to_datetime(texts[later], format="ISO8601").tz)


def begins_with_days(index: pd.DatetimeIndex) -> bool:
    """Whether a table is one of days: its first two rows are at midnight, in its time zone if it has one.

    Bars that begin at midnight are not: their second row has a time of day.
    """
    return bool((index[:2] == index[:2].normalize()).all())


def _numbers(cells: pd.Series, name: str, column: str, gaps: str) -> np.ndarray:
    where = f"{name}: column {column!r}"
    loose = cells.dtype == object
    kinds = {type(cell) for cell in cells} if loose else {cells.dtype.type}
    refuse(
        f"{where}: expected real numbers, found {text}"
        for kind, text in _NOT_NUMBERS
        if any(issubclass(one, kind) for one in kinds)
    )
    refuse(f"{where}: expected numbers, found {one.__name__}" for one in kinds if loose and not issubclass(one, _CELLS))
    try:
        found = np.array(pd.to_numeric(cells, errors="coerce").to_numpy(dtype=float, na_value=np.nan))
    except OverflowError:
        raise InputError(f"{where}: expected numbers, found one of more digits than fit") from None
    known = np.isfinite(found)
    if _ROUNDS_TEXT and (loose or isinstance(cells.dtype, pd.StringDtype)):
        found[known] = cells.to_numpy(dtype=object)[known].astype(float)
    absent = np.flatnonzero(~known)
    refuse(
        f"{name}: {_place(cells.index, column, row)}: expected a number, found {_shown(cell)}"
        + (" (gaps='keep', or --gaps keep, allows them)" if _is_empty(cell) else "")
        for row, cell in zip(absent.tolist(), cells.take(absent).tolist(), strict=True)
        if gaps == "refuse" or not _is_empty(cell)
    )
    return found


def _is_empty(cell: object) -> bool:
    """Whether a cell holds nothing: no text, or what pandas has for that."""
    return str(cell).strip() == "" or (not isinstance(cell, str) and bool(pd.isna(cell)))


def _shown(cell: object) -> str:
    return "an empty cell" if str(cell).strip() == "" else repr(cell) if isinstance(cell, str) else str(cell)


def _return_problems(table: pd.DataFrame, name: str) -> Iterator[str]:
    array = table.to_numpy()
    known = array[np.isfinite(array)]
    if looks_like_prices(known):
        found = f"only positive numbers with median {np.median(known):g}"
        yield f"{name}: expected returns, found {found}: say that these are prices (values='prices', or --prices)"
    row, column = divmod(int(np.nanargmin(array)), array.shape[1])
    if array[row, column] < -1:
        place = _place(table.index, table.columns[column], row)
        yield f"{name}: {place}: expected a return of at least -1, found {array[row, column]:g}"
    for i, asset in enumerate(table.columns):
        seen = array[np.isfinite(array[:, i]), i]
        if seen.size and seen.min() > 0 and np.median(seen) > 1:
            yield f"{name}: column {asset!r}: expected returns, found what look like prices (values='prices')"


def _prices_to_returns(table: pd.DataFrame, name: str) -> pd.DataFrame:
    array = table.to_numpy()
    row, column = divmod(int(np.nanargmin(array)), array.shape[1])
    if array[row, column] <= 0:
        place = _place(table.index, table.columns[column], row)
        raise InputError(f"{name}: {place}: expected a positive price, found {array[row, column]:g}")
    before = table.ffill().to_numpy()[:-1]  # the last price that was known; only rows with a price have a return
    with np.errstate(over="ignore"):
        returns = array[1:] / before - 1
    for row, column in np.argwhere(np.isinf(returns)):
        place = _place(table.index, table.columns[column], row + 1)
        found = f"{array[row + 1, column]:g} after {before[row, column]:g}"
        raise InputError(f"{name}: {place}: expected a price near the one before, found {found}")
    return pd.DataFrame(returns, index=table.index[1:], columns=table.columns)


def _place(index: pd.Index, column: str, row: int) -> str:
    label = index[row]
    shown = label.date().isoformat() if isinstance(label, pd.Timestamp) else label
    return f"column {column!r}, row {row + 1} ({shown})"


def read_weights(path: str | Path) -> pd.Series:
    """The weights of a CSV file with the columns `asset,weight`, by asset; refused with the row in question."""
    return read_by_asset(path, "weight")


def read_by_asset(path: str | Path, *columns: str) -> pd.Series:
    """The numbers of a CSV file with the columns asset and one of `columns`, which is the name of the Series."""
    path = validate_path("weights" if "weight" in columns else columns[0], path)
    validate_input_file(path)
    head, *rows = [[cell.strip() for cell in row] for row in read_table_cells(path)]
    head = [_COLUMNS.get(cell.lower(), cell) for cell in head]
    refuse(_weight_problems([head, *rows], path.name, columns))
    return pd.Series({asset: float(number) for asset, number in rows}, name=head[1], dtype=float)


def with_absent_assets(numbers: pd.Series, names: Sequence[str]) -> tuple[pd.Series, list[str]]:
    """Holdings of a file with 0 for the assets of `names` that it leaves out, and which these are.

    What is not in a file of holdings is not held, be it in weights or in shares. A row CASH, unless an asset is called
    so, is no asset: `attrs["cash"]` has it, as a weight or in money.
    """
    cash = [name for name in numbers.index if name not in names and name.upper() == "CASH"]
    money, numbers = float(numbers[cash].sum()), numbers.drop(cash)
    absent = [name for name in names if name not in numbers.index]
    numbers = numbers.reindex([*numbers.index, *absent], fill_value=0.0)
    numbers.attrs = {"cash": money} if cash else {}
    return numbers, absent


def last_prices(source: Source, rows: int | None = None) -> pd.DataFrame:
    """The last known price of every asset of a table of prices, and whether it is of the last row (`current`).

    Of its first `rows` rows, if given.
    """
    read = read_source(source)
    table = _validate_table(read.frame, read.name, math.inf, "keep").iloc[:rows]
    return pd.DataFrame({"price": table.ffill().iloc[-1], "current": table.iloc[-1].notna()})


def _weight_problems(rows: list[list[str]], name: str, columns: tuple[str, ...]) -> Iterator[str]:
    if rows[0] not in [["asset", column] for column in columns]:
        yield f"{name}: expected the columns asset,{' or asset,'.join(columns)}, found {','.join(rows[0])[:60]}"
    if len(rows) == 1:
        yield f"{name}: expected a row for each asset, found none"
    seen: set[str] = set()
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != 2:
            yield f"{name}: row {number}: expected 2 cells, found {len(row)}"
        if row[0] in seen:
            yield f"{name}: row {number}: expected distinct assets, found {row[0]!r} again"
        seen.add(row[0])
        if not (_is_number(row[1]) and math.isfinite(float(row[1]))):
            yield f"{name}: row {number} ({row[0]}): expected a finite number, found {row[1]!r}"


def _is_number(text: str) -> bool:
    """Whether a cell is a number as other programs write it: Python itself also reads 1_000."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def write_weights(weights: pd.Series, path: str | Path) -> Path:
    """Write weights for `read_weights`, whole or not at all."""
    path = Path(path)
    fits = path.suffix.lower() == ".csv" and path.parent.is_dir()
    expect(fits, "out", "a name ending in .csv in an existing folder", path)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["asset", "weight"])
    lines.writerows((str(asset), repr(float(weight))) for asset, weight in weights.items())
    write_text(path, text.getvalue())
    return path
