"""Files and frames as people have them, as one frame: dates as its index, a column per asset, numbers as numbers.

What can be read in one way only is read so, and said (`SourceTable.read_as`). What can be read in two ways is refused
with the option that settles it (`Reading`).
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from time2decide.core.files import validate_input_file
from time2decide.core.validation import InputError, expect, refuse, validate_choice
from time2decide.markets.validation import MOST_ASSETS

DATES = ("day-first", "month-first", "year-first")
_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", " ": "space"}
#: pandas 2 reads a decimal text to 16 digits only, so that a file had another fingerprint than under pandas 3.
_ROUNDS_TEXT = int(pd.__version__.split(".")[0]) < 3
_MOST_BYTES = 256 * 2**20  # of a file when it is unpacked
_MOST_CELLS = 2**25  # of a file: what Python needs for each is many times its share of the file
_HEAD = 50  # rows that tell the separator
_COMMENTS = ("#", "//", '"#')
_LABEL = re.compile(r"[+-]?[0-9]+([-:T ./][0-9:.+-]+)*Z?")  # a date, a time or the number of a step
_PLAIN = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_GROUPED = {  # by the sign of decimals: digits in groups of three, as the other signs part them
    mark: re.compile(rf"[0-9]{{1,3}}([{re.escape(other)}'’ \u00a0\u202f][0-9]{{3}})*({re.escape(mark)}[0-9]*)?")
    for mark, other in ((".", ","), (",", "."))
}
_GROUPS = {".": re.compile(r"[,'’ \u00a0\u202f]"), ",": re.compile(r"[.'’ \u00a0\u202f]")}
_COMMA = re.compile(r"[0-9]*,[0-9]+([eE][+-]?[0-9]+)?|[0-9]+([eE][+-]?[0-9]+)?")
_TWICE = {sign: re.compile(rf"[0-9]{{1,3}}({re.escape(sign)}[0-9]{{3}})+") for sign in ".,"}  # thousands, or decimals
_CURRENCIES = "$€£¥ \u00a0"
#: Spellings of an empty cell.
EMPTY = frozenset(
    ("", "-", "--", "n/a", "na", "#n/a", "#na", "n.a.", "nan", "null", "none", "nat", "<na>", ".", "#div/0!")
)
_WRITTEN = ("%d-%b-%Y", "%d %b %Y", "%d-%B-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%d-%b-%y", "%d%b%Y")
_MONTHS = ("%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%Ym%m", "%Y/%m")
_NUMBERED = re.compile(r"([0-9]{1,4})([/.-])([0-9]{1,2})\2([0-9]{1,4})((?:[ T]).*)?")
_FIELDS = frozenset(
    ("open", "high", "low", "close", "adj close", "volume", "dividends", "stock splits", "capital gains")
)
_DATE_NAMES = frozenset(("date", "dates", "datetime", "time", "timestamp", "day", "month", "period", "caldt"))


@dataclass(frozen=True)
class Reading:
    """How a text file is to be read where it does not say; each is found out if not given.

    separator : between cells; "tab" for a tab
    decimal : "." or ","
    dates : "day-first", "month-first" or "year-first", of dates in numbers
    """

    separator: str | None = None
    decimal: str | None = None
    dates: str | None = None

    def __post_init__(self) -> None:
        if self.separator is not None:
            words = {name: sign for sign, name in _SEPARATORS.items()}
            object.__setattr__(self, "separator", words.get(self.separator, self.separator.replace("\\t", "\t")))
            expect(self.separator in _SEPARATORS, "separator", f"one of {', '.join(words)}", repr(self.separator))
        if self.decimal is not None:
            validate_choice("decimal", self.decimal, (".", ","))
        if self.dates is not None:
            validate_choice("dates", self.dates, DATES)


@dataclass(frozen=True)
class SourceTable:
    """A table that has been read: its cells, its name for messages, and what was taken for granted."""

    frame: pd.DataFrame
    name: str
    read_as: tuple[str, ...] = ()


def read_source(source: Any, reading: Reading | None = None) -> SourceTable:
    """A .csv, .parquet or .xlsx file, sp500, or a table of pandas, polars or pyarrow, as one frame."""
    reading = reading or Reading()
    notes: list[str] = []
    if isinstance(source, SourceTable):
        return source
    if isinstance(source, str) and source == "sp500":
        return SourceTable(sp500_prices(), "sp500")
    if isinstance(source, (str, Path)):
        frame, name = _read_file(Path(source), reading, notes)
    else:
        frame, name = as_frame(source), "returns"
    frame = _adjusted_closes(frame, name, notes)
    frame = _with_index(frame, notes)
    index = _read_labels(frame.index, name, reading, notes)
    if index is not frame.index:
        frame = frame.set_axis(index, axis=0)
    if isinstance(source, (str, Path)) and _runs_down(index):
        frame = frame.iloc[::-1]
        notes.append("newest first")
    return SourceTable(frame, name, tuple(notes))


def as_frame(table: Any) -> pd.DataFrame:
    """A DataFrame of pandas for one of pandas, polars, pyarrow or another that narwhals knows."""
    if isinstance(table, pd.DataFrame):
        return table
    try:
        import narwhals

        native = narwhals.from_native(table, eager_only=True)
    except (ImportError, TypeError):
        raise InputError(f"source: expected a file, a DataFrame or sp500, found {type(table).__name__}") from None
    return pd.DataFrame({name: native[name].to_numpy() for name in native.columns})


def is_frame(table: Any) -> bool:
    """Whether an object is a table with named columns: of pandas, polars, pyarrow and the like."""
    return (
        isinstance(table, pd.DataFrame) or hasattr(table, "__dataframe__") or hasattr(table, "__narwhals_dataframe__")
    )


def sp500_prices() -> pd.DataFrame:
    """skfolio's bundled daily prices of 20 stocks of the S&P 500, 1990-01-02 to 2022-12-28."""
    try:
        from skfolio.datasets import load_sp500_dataset
    except ImportError:
        raise InputError("sp500: expected the package skfolio (pip install 'time2decide[skfolio]')") from None
    return pd.DataFrame(load_sp500_dataset())


def _read_file(path: Path, reading: Reading, notes: list[str]) -> tuple[pd.DataFrame, str]:
    validate_input_file(path)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv", ".txt") or path.name.lower().endswith(".csv.gz"):
        return _read_csv(path, reading, notes), path.name
    kinds = {".parquet": _read_parquet, ".pq": _read_parquet, ".xlsx": _read_excel, ".xlsm": _read_excel}
    found = f"{path.suffix or 'no suffix'!r}"
    expect(suffix in kinds, path.name, "a .csv or .parquet file (.csv.gz, .tsv, .txt, .xlsx too)", found)
    return kinds[suffix](path), path.name


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        from pyarrow.parquet import read_metadata

        facts = read_metadata(path)
        expect_few(facts.num_columns - 1, path.name)  # one may hold the dates
        _expect_cells(facts.num_rows * facts.num_columns, path.name)  # a few bytes may hold a number many times
        return pd.read_parquet(path)
    except InputError:
        raise
    except Exception as error:  # pyarrow has errors of its own, and raises others for damaged files
        found = "the package pyarrow is missing" if isinstance(error, ImportError) else str(error).split("\n")[0]
        raise InputError(f"{path.name}: expected a Parquet file that can be read ({found})") from None


def _read_excel(path: Path) -> pd.DataFrame:
    """The first sheet."""
    try:
        cells = pd.read_excel(path, header=None, dtype=object)
    except ImportError:
        raise InputError(f"{path.name}: expected the package openpyxl (pip install 'time2decide[excel]')") from None
    except Exception as error:  # of zip files, XML and openpyxl
        raise InputError(f"{path.name}: expected an Excel file that can be read ({error})") from None
    _expect_cells(cells.size, path.name)
    cells = cells.dropna(how="all").reset_index(drop=True)
    expect(len(cells) > 1, path.name, "a header and rows", "an empty sheet")
    while len(cells) > 2 and cells.iloc[0, 1:].isna().all():  # a title
        cells = cells.iloc[1:].reset_index(drop=True)
    head = ["" if pd.isna(cell) else str(cell) for cell in cells.iloc[0]]
    expect_few(len(head) - 1, path.name)
    frame = cells.iloc[1:].set_axis(head, axis=1).reset_index(drop=True)
    frame = frame.set_index(head[0])
    return frame.apply(lambda column: pd.to_numeric(column, errors="coerce").where(column.map(_is_number), column))


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (int, float)) and not isinstance(cell, bool)


def expect_few(assets: int, name: str) -> None:
    """Raise if a table is wider than a decision can be."""
    expect(assets <= MOST_ASSETS, name, f"at most {MOST_ASSETS} assets", assets)


def _expect_cells(cells: int, name: str) -> None:
    expect(cells <= _MOST_CELLS, name, f"at most {_MOST_CELLS} cells", cells)


def _read_csv(path: Path, reading: Reading, notes: list[str]) -> pd.DataFrame:
    """Cells as text, so that an error can show what stands in the file; numbers as other programs read them."""
    header, *body = _cells_of(path, reading, notes, assets=True)
    separated = "cells separated by commas, semicolons, tabs, bars or spaces (or --separator)"
    expect(len(header) > 1, path.name, separated, f"{header[0][:40]!r}")
    expect(not _is_data(header), path.name, "a first line with names of columns", f"{','.join(header)[:60]!r}")
    names: Any = header[1:]
    if body and _has_two_headers(header, body[0]):
        names = pd.MultiIndex.from_arrays([header[1:], body[0][1:]])
        body = body[1 + (len(body) > 1 and not any(cell.strip() for cell in body[1][1:])) :]  # a row with Date alone
    refuse(
        f"{path.name}: row {number} ({row[0]}): expected {len(header)} cells, found {len(row)}"
        for number, row in enumerate(body, start=1)
        if len(row) != len(header)
    )
    cells = np.array(body, dtype=object).reshape(len(body), len(header))
    columns = _spelled_numbers(cells[:, 1:], path.name, reading, notes)
    index = pd.Index([label.strip() for label in cells[:, 0]], name=header[0].strip() or None)
    return pd.DataFrame(dict(enumerate(columns)), index=index).set_axis(names, axis=1)


def _is_data(cells: list[str]) -> bool:
    """Whether the first line is a row of the table: a date or a step, then numbers for the most part.

    Under a name such as "date", or none, numbers may be names: stock codes, or years to maturity.
    """
    label, *rest = (cell.strip() for cell in cells)
    return bool(_LABEL.fullmatch(label)) and 2 * sum(bool(_PLAIN.fullmatch(cell)) for cell in rest) > len(rest)


def _has_two_headers(header: list[str], second: list[str]) -> bool:
    """Whether the first line names fields such as Close, and the second tickers."""
    fields = {cell.strip().lower() for cell in header[1:]}
    words = not any(_PLAIN.fullmatch(cell.strip()) for cell in second[1:])
    return bool(fields) and fields <= _FIELDS and words and len(second) == len(header)


def read_table_cells(path: Path, reading: Reading | None = None) -> list[list[str]]:
    """The rows of a CSV file with something in them, at least one, as text."""
    return _cells_of(path, reading or Reading(), [])


def _cells_of(path: Path, reading: Reading, notes: list[str], *, assets: bool = False) -> list[list[str]]:
    """Rows of text.

    With a column for each of the `assets` after the first, more than a decision can be about are refused by the first
    row, before the others are read.
    """
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        expect(len(raw) <= _MOST_BYTES, path.name, f"at most {_MOST_BYTES >> 20} MB", "more when unpacked")
        text = raw.decode("utf-8-sig")
        lines = text.splitlines(keepends=True)
        first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith(_COMMENTS)), len(lines))
        if any(line.strip() for line in lines[:first]):
            notes.append("without its comment lines")
        separator = reading.separator or _separator(lines[first:], path.name)
        if separator != ",":
            notes.append(_SEPARATORS[separator])
        if separator == " ":
            text, first = re.sub(r"[ \t]+", " ", "".join(line.strip() + "\n" for line in lines[first:])), 0
        else:
            text = "".join(lines[first:])
        _expect_cells(text.count(separator) + text.count("\n"), path.name)
        rows = (row for row in csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator) if row)
        found = list(islice(rows, 1))
        if assets and found:
            expect_few(len(found[0]) - 1, path.name)
        found += rows
    except (UnicodeDecodeError, csv.Error, EOFError, OSError, zlib.error) as error:
        raise InputError(f"{path.name}: expected comma-separated text in UTF-8 ({error})") from None
    refuse([] if found else [f"{path.name}: expected a header and rows, found an empty file"])
    return found


def _separator(lines: Sequence[str], name: str) -> str:
    """The sign that parts the first line into cells, and the others into as many."""
    head = [line.rstrip("\r\n") for line in lines[: _HEAD + 1] if line.strip()]
    if not head or ("," in head[0] and not any(sign in head[0] for sign in ";\t|")):
        return ","
    counts = {sign: [len(_split(line, sign)) for line in head] for sign in _SEPARATORS}
    fits = [sign for sign, found in counts.items() if found[0] > 1 and len(set(found)) == 1]
    if " " in fits and len(fits) > 1:
        fits.remove(" ")
    if len(fits) > 1:
        words = " or ".join(_SEPARATORS[sign] for sign in fits)
        raise InputError(f"{name}: expected cells with one separator, found {words}: say which (--separator)")
    return fits[0] if fits else ","


def _split(line: str, separator: str) -> list[str]:
    if separator == " ":
        return line.split()
    if '"' not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _spelled_numbers(cells: np.ndarray, name: str, reading: Reading, notes: list[str]) -> list[np.ndarray]:
    """The columns (rows, m) of a file as numbers where all are, else as plain spellings of 1.234,5 and 3.1 % and (2).

    The decimal sign is one for the whole file.
    """
    columns = [pd.to_numeric(pd.Series(column), errors="coerce").to_numpy(dtype=float) for column in cells.T]
    odd = {j: np.flatnonzero(~np.isfinite(column)) for j, column in enumerate(columns)}
    odd = {j: rows for j, rows in odd.items() if rows.size}
    strange = [_bare(text) for j, rows in odd.items() for text in cells[rows, j]]
    decimal = reading.decimal or _decimal_of(strange, cells, name)
    said: set[str] = set()
    if decimal == ",":
        notes.append("decimal comma")
        odd = dict.fromkeys(range(len(columns)), np.arange(len(cells)))
    for j, rows in odd.items():
        texts = cells[:, j].copy()
        texts[rows] = [_number_text(text, decimal, said) for text in texts[rows]]
        columns[j] = texts
    if _ROUNDS_TEXT:
        columns = [cells[:, j] if j not in odd else columns[j] for j in range(len(columns))]
    notes += sorted(said)
    return columns


def _bare(text: str) -> str:
    """A number without its currency, per cent sign and blanks."""
    return text.strip().strip(_CURRENCIES).removesuffix("%").strip()


def _decimal_of(strange: list[str], cells: np.ndarray, name: str) -> str:
    """The decimal sign of a file by its numbers that are not plain; an `InputError` where they do not tell."""
    signs, unclear = set(), ""
    for digits in (text.strip("+-−()") for text in strange if "," in text):
        if _TWICE[","].fullmatch(digits) and digits.count(",") == 1 and not digits.startswith("0"):
            unclear = unclear or digits
        elif _GROUPED["."].fullmatch(digits):
            signs.add(".")
        elif _GROUPED[","].fullmatch(digits) or _COMMA.fullmatch(digits):
            signs.add(",")
    if unclear or signs:
        plain = (text for text in cells.ravel() if "." in text and "," not in text)
        if any(not _TWICE["."].fullmatch(text.strip().lstrip("+-")) for text in plain):
            signs.add(".")
    if len(signs) > 1 or (unclear and not signs):
        shown = unclear or next(text for text in strange if "," in text)
        raise InputError(f"{name}: expected numbers with one decimal sign, found {shown!r}: say which (--decimal)")
    return signs.pop() if signs else "."


def _number_text(cell: str, decimal: str, said: set[str]) -> str:
    """The plain spelling of a number, nothing for an empty cell, and the cell itself for what is neither."""
    bare = _bare(cell)
    if bare.lower() in EMPTY:
        said |= {"N/A and the like as empty"} if bare else set()
        return ""
    minus = bare[0] in "-−" or (bare[0] == "(" and bare[-1] == ")")
    digits = bare.strip("()") if bare[0] == "(" else bare.removeprefix(bare[0]) if bare[0] in "+-−" else bare
    if decimal == "," and _COMMA.fullmatch(digits):
        digits = digits.replace(",", ".")
    elif _GROUPED[decimal].fullmatch(digits):
        digits = re.sub(_GROUPS[decimal], "", digits).replace(decimal, ".")
    elif not _PLAIN.fullmatch(digits) or decimal == ",":
        return cell
    if cell.strip().endswith("%"):
        said.add("per cent as fractions")
        digits = repr(float(digits) / 100)
    elif cell.strip()[0] in _CURRENCIES or cell.strip()[-1] in _CURRENCIES:
        said.add("without currency signs")
    return f"-{digits}" if minus else digits


def _adjusted_closes(frame: pd.DataFrame, name: str, notes: list[str]) -> pd.DataFrame:
    """Of a frame with a row of fields and one of assets, as of yfinance, the adjusted closes, else the closes."""
    if not isinstance(frame.columns, pd.MultiIndex):
        return frame
    for level in range(frame.columns.nlevels):
        fields = {str(one).lower(): one for one in frame.columns.get_level_values(level)}
        wanted = next((key for key in ("adj close", "close") if key in fields), None)
        if wanted is not None and frame.columns.nlevels == 2:
            notes.append("adjusted closes" if wanted == "adj close" else "closes")
            found = frame.xs(fields[wanted], axis=1, level=level)
            return found.set_axis([str(one) for one in found.columns], axis=1)
    shown = ", ".join(str(one) for one in frame.columns[:2])
    raise InputError(f"{name}: expected one row of names, or fields with Close among them, found {shown}")


def _with_index(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """A table whose dates stand in a column, as after `reset_index`, has them as its index."""
    index = frame.index
    counts = isinstance(index, pd.RangeIndex) or _counts_rows(index)
    if frame.shape[1] < 2 or not counts:
        return frame
    first = frame.iloc[:, 0]
    name = str(frame.columns[0]).strip().lower()
    if pd.api.types.is_datetime64_any_dtype(first.dtype):
        dated = True
    elif pd.api.types.is_numeric_dtype(first.dtype):
        dated = name in _DATE_NAMES
    else:
        texts = [str(cell).strip() for cell in first]
        dated = name in _DATE_NAMES or (len(texts) > 0 and not any(_PLAIN.fullmatch(text) for text in texts[:_HEAD]))
    if not dated:
        return frame
    if not isinstance(index, pd.RangeIndex):
        notes.append("without its column of row numbers")
    return frame.set_index(frame.columns[0])


def _counts_rows(index: pd.Index) -> bool:
    """Whether labels are 0, 1, 2, …"""
    if len(index) < 2 or isinstance(index, pd.DatetimeIndex):
        return False
    return [str(one) for one in index[:3]] in (["0", "1", "2"], ["1", "2", "3"], ["0", "1"], ["1", "2"])


def _read_labels(index: pd.Index, name: str, reading: Reading, notes: list[str]) -> pd.Index:
    """Dates that are not ISO dates; others as they are."""
    if isinstance(index, pd.PeriodIndex):
        return index.to_timestamp(how="end").normalize()
    if isinstance(index, (pd.DatetimeIndex, pd.MultiIndex)) or not len(index):
        return index
    texts = [str(label).strip() for label in index]
    if all(re.fullmatch("(1[89]|2[01])[0-9]{2}(0[1-9]|1[0-2])", text) for text in texts):
        notes.append("dates as months")
        return pd.DatetimeIndex(pd.to_datetime(texts, format="%Y%m")) + pd.offsets.MonthEnd(0)
    parts = [_NUMBERED.fullmatch(text) for text in texts]
    if all(part is not None and len(part[1]) <= 2 for part in parts):
        return _numbered_dates(texts, [part for part in parts if part is not None], name, reading, notes)
    years_first = [part for part in parts if part is not None]
    if len(years_first) == len(texts) and any(
        part[2] != "-" or len(part[3]) + len(part[4]) < 4 for part in years_first
    ):
        iso = [f"{p[1]}-{int(p[3]):02d}-{int(p[4]):02d}{p[5] or ''}" for p in years_first]
        dates = pd.to_datetime(pd.Index(iso), format="ISO8601", errors="coerce")
        return index if dates.isna().any() else pd.DatetimeIndex(dates)
    if not re.search("[A-Za-z]", texts[0]) and not re.fullmatch("[0-9]{4}/[0-9]{1,2}", texts[0]):
        return index
    for form in (*_WRITTEN, *_MONTHS):
        dates = pd.to_datetime(pd.Index(texts), format=form, errors="coerce")
        if not dates.isna().any():
            months = form in _MONTHS
            notes.append("dates as months" if months else "dates in words")
            return pd.DatetimeIndex(dates) + pd.offsets.MonthEnd(0) if months else pd.DatetimeIndex(dates)
    return index


def _runs_down(index: pd.Index) -> bool:
    """Whether dates, or texts that begin with a year, run from the newest to the oldest."""
    if isinstance(index, pd.DatetimeIndex):
        return len(index) > 1 and bool((np.diff(index.asi8) < 0).all())
    texts = [str(label) for label in index]
    dated = all(re.match("(1[5-9]|2[01])[0-9]{2}-?[01][0-9]", text) for text in texts)
    return dated and len(texts) > 1 and all(later < one for one, later in pairwise(texts))


def _numbered_dates(
    texts: list[str], parts: list[re.Match[str]], name: str, reading: Reading, notes: list[str]
) -> pd.Index:
    """Dates such as 31/12/2024: the one order of day and month that gives dates in order."""
    years = [part[4] for part in parts]
    if not all(len(year) in (2, 4) for year in years):
        return pd.Index(texts)
    full = [int(year) + (0 if len(year) == 4 else 2000 if int(year) < 70 else 1900) for year in years]
    ways: dict[str, pd.DatetimeIndex] = {}
    for way, (day, month) in {"day-first": (1, 3), "month-first": (3, 1)}.items():
        iso = [f"{y:04d}-{int(p[month]):02d}-{int(p[day]):02d}{p[5] or ''}" for y, p in zip(full, parts, strict=True)]
        dates = pd.to_datetime(pd.Index(iso), format="ISO8601", errors="coerce")
        if not dates.isna().any():
            ways[way] = pd.DatetimeIndex(dates)
    if reading.dates in ways:
        ways = {reading.dates: ways[reading.dates]} if reading.dates else ways
    ordered = {
        way: dates for way, dates in ways.items() if dates.is_monotonic_increasing or dates.is_monotonic_decreasing
    }
    chosen = ordered if len(ways) > 1 and len(ordered) == 1 else ways
    if len(chosen) == 1:
        way, dates = next(iter(chosen.items()))
        notes.append(way.replace("-", " "))
        return dates
    expect(chosen, name, "dates with one order of day and month", f"{texts[0]!r} and others")
    raise InputError(
        f"{name}: expected dates that can be read in one way, found {texts[0]!r}: "
        "say which (--dates day-first or month-first)"
    )
