"""Faults of names and dates."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pandas as pd

from time2decide.data.findings import Findings

#: Cyrillic and Greek letters that look like Latin ones.
_LIKE = str.maketrans("АВЕКМНОРСТХІЅЈаеорсхіѕјΑΒΕΖΗΙΚΜΝΟΡΤΧ", "ABEKMHOPCTXISJaeopcxisjABEZHIKMNOPTX")
_DATE = re.compile("(1[5-9]|2[01])[0-9]{2}-?[01][0-9]-?[0-3][0-9]")
_OTHERS = frozenset(("volume", "date", "index", "unnamed: 0", "timestamp", "time", "datetime", "row", "level_0", ""))
_LONG_GAP = 14  # calendar days without a row
_EARLIEST = 1800
_DECADE = 3650  # calendar days without a row, which is an error of a date
_FIELDS = frozenset(("open", "high", "low", "close", "adj close", "volume"))
_RUN = 12  # rows of another frequency that are not a holiday


def find_name_faults(names: list[str], found: Findings) -> None:
    """Names that read alike, and those of no asset."""
    fields = [name for name in names if name.strip().casefold() in _FIELDS]
    if len(fields) > 2:  # of which two may be tickers
        found.add("not_an_asset", fields, "are prices of one asset")
    seen: dict[str, str] = {}
    for name in names:
        key = "".join(unicodedata.normalize("NFKC", name).split()).translate(_LIKE).casefold()
        key = "".join(c for c in key if unicodedata.category(c) != "Cf")  # such as spaces without a width
        if key in seen:
            found.add("same_name", name, f"{seen[key]!r} and {name!r} read alike", stops=seen[key] == name)
        seen.setdefault(key, name)
        if name.strip().casefold() in _OTHERS:
            found.add("not_an_asset", name or "(no name)", "is not the name of an asset")


def with_dates(table: pd.DataFrame) -> pd.DataFrame:
    """The table with dates as its index where its labels are texts of dates, or numbers such as 20240131."""
    if isinstance(table.index, pd.DatetimeIndex) or not len(table):
        return table
    texts = [str(label).strip() for label in table.index]
    dated = [bool(_DATE.match(text)) for text in texts]
    if sum(dated) < 0.5 * len(texts):
        return table if not _counts_time(table.index) else table.set_axis(_from_counts(table.index), axis=0)
    index = pd.to_datetime(pd.Index(texts), format="ISO8601", errors="coerce", utc=True)
    return table.set_axis(pd.DatetimeIndex(index).tz_localize(None), axis=0)


def _counts_time(index: pd.Index) -> bool:
    """Whether labels are days since 1900, as of Excel, or seconds or parts of them since 1970, a day or more apart."""
    return pd.api.types.is_integer_dtype(index.dtype) and _from_counts(index) is not None


def _from_counts(index: pd.Index) -> pd.DatetimeIndex | None:
    values = index.to_numpy()
    steps = np.diff(values)
    if len(values) < 3 or not (steps != 0).all():
        return None
    for unit, day in (("s", 86_400), ("ms", 86_400_000), ("ns", 86_400_000_000_000)):
        if values.min() > 1000 * day and values.max() < 40_000 * day and (steps % day == 0).all():
            return pd.DatetimeIndex(pd.to_datetime(values, unit=unit))
    usual = np.median(np.abs(steps))
    if values.min() > 15_000 and values.max() < 60_000 and len(set(steps.tolist())) > 1 and usual < 40:
        return pd.DatetimeIndex(pd.to_datetime(values, unit="D", origin="1899-12-30"))
    return None


def find_date_faults(
    table: pd.DataFrame, now: pd.Timestamp, latest: pd.Timestamp | None, found: Findings
) -> tuple[pd.DataFrame, float | None]:
    """The table in the order of its dates, and the trading days that a row stands for; None without dates.

    No date may lie after `now`; the last one is to be near `latest`, if that is given.
    """
    if not isinstance(table.index, pd.DatetimeIndex) or len(table) < 3:
        return table, None
    lost = np.asarray(table.index.isna())
    if lost.any():
        found.add("dates_implausible", "table", f"{lost.sum()} rows have no date")
        table = table[~lost]
        if len(table) < 3:
            return table, None
    index = table.index.tz_localize(None)
    if not index.is_monotonic_increasing:
        down = index.is_monotonic_decreasing
        text = f"dates run from {index[0].date()} to {index[-1].date()}"
        found.add("newest_first" if down else "unsorted", "table", text)
        table = table.iloc[::-1] if down else table.sort_index(kind="stable")
        index = table.index.tz_localize(None)
    day = index.normalize()
    step = np.diff(day.to_numpy()).astype("timedelta64[D]").astype(int)
    usual = float(max(np.median(step), 1))
    _find_repeated_dates(index, day, step, found)
    _find_implausible_dates(day, step, now, found)
    _find_missing_rows(day, step, usual, found)
    if latest is not None and (latest - day[-1]).days > max(10.0, 3 * usual):
        ago = (latest - day[-1]).days
        found.add("stale_date", day[-1].date(), f"the last row is {ago} days old", stops=False)
    return table, 1.0 if usual < 4 else usual * 5 / 7


def _find_repeated_dates(index: pd.DatetimeIndex, day: pd.DatetimeIndex, step: np.ndarray, found: Findings) -> None:
    again = index.duplicated()
    if again.any():
        found.add("same_date", [one.date() for one in index[again][:20]], f"{again.sum()} dates stand twice")
    elif (step == 0).any() and (np.median(step) >= 1 or len(set(index.hour)) == 2):
        first = day[1:][step == 0][0].date()
        found.add("two_rows_a_day", first, f"{(step == 0).sum()} days have two rows", stops=bool(np.median(step) >= 1))


def _find_implausible_dates(day: pd.DatetimeIndex, step: np.ndarray, now: pd.Timestamp, found: Findings) -> None:
    if day[-1] > now + pd.Timedelta(days=1):
        later = day[day > now + pd.Timedelta(days=1)]
        found.add("future_date", [one.date() for one in later[:20]], f"later than today, {now.date()}")
    in_1970 = bool((day.year == 1970).all()) and len(day) > 300 and (step == 0).mean() > 0.5
    if day[0].year < _EARLIEST or in_1970:
        found.add("dates_implausible", day[0].date(), "before 1800 or all in 1970: numbers were read as dates")


def _find_missing_rows(day: pd.DatetimeIndex, step: np.ndarray, usual: float, found: Findings) -> None:
    wide = step > max(_LONG_GAP, 2.5 * usual)
    if wide.any():
        places = [one.date() for one in day[1:][wide]]
        found.add(
            "gap", places, f"{step.max()} days without a row (usual: {usual:.0f})", stops=bool(step.max() > _DECADE)
        )
    gaps = pd.Series(step[step > 0]).rolling(_RUN).median().to_numpy()
    often = {
        name: np.flatnonzero(mask)
        for name, mask in (("rarer", gaps >= 2.5 * max(usual, 2)), ("more often", gaps * 2.5 <= usual))
    }
    for name, rows in often.items():
        if rows.size:
            where = day[max(int(rows[0]) - _RUN + 1, 0)].date()
            text = f"rows come {name} from there on, every {gaps[rows[0]]:.0f} days (usual: {usual:.0f})"
            found.add("frequency_changes", where, text, stops=False)
    if usual >= 5 and len(step) > 2 and 0 < step[-1] < 0.5 * usual:
        text = f"the last row comes {step[-1]} days after the one before (usual: {usual:.0f}): its period is not over"
        found.add("frequency_changes", day[-1].date(), text, stops=False)
    weekend = np.asarray(day.day_of_week) > 4
    if usual == 1 and 0 < weekend.mean() < 0.1 and weekend[-1500:].any():
        places = [one.date() for one in day[weekend]]
        found.add("weekend", places, f"{weekend.sum()} of {len(day)} rows are on a weekend", stops=False)
