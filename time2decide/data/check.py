"""Faults in a table of prices or returns, found before anything is decided from it.

What cannot be told from the numbers: a split of 2 : 1 from a day of −50 % where daily noise is above 4 %; the order of
rows without dates where falls do not come before large moves; a bad price of × 2 in a monthly table; two columns of
returns exchanged from a date on; a column in another currency; missing dividends; logarithmic returns, unless one is
below −1; per cent for fractions where a usual day moves by less than .1 %.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from time2decide.core.validation import expect, validate_choice
from time2decide.data.dates import find_date_faults, find_name_faults, with_dates
from time2decide.data.findings import Finding, Findings, refuse_faults, validate_accept
from time2decide.data.jumps import find_jumps
from time2decide.data.panel import Panel, median, numbers_of
from time2decide.data.relations import find_direction, find_relations
from time2decide.data.runs import find_copies, find_runs
from time2decide.data.units import find_column_faults, find_table_faults
from time2decide.markets.table_files import SourceTable, is_frame, read_source
from time2decide.markets.tables import Source, load_market, load_returns
from time2decide.markets.validation import looks_like_prices

KINDS = ("returns", "prices")


def check_returns(table: Any, kind: str | None = None, *, today: str | pd.Timestamp | None = None) -> list[Finding]:
    """Faults of a table of simple returns or prices, one a name, those that stop first.

    Every scale is a median; every move is held against the asset's own noise around that row, the other assets in the
    same row, and the same assets some rows off.

    Parameters
    ----------
    table : DataFrame (dates × assets), or array (time, assets)
    kind : {"returns", "prices"}, optional
        Guessed if not given: numbers that are all positive and typically above 0.5 are prices.
    today : date, optional
        The last row is to be near it.

    Returns
    -------
    list of Finding : with name, severity ("stop" or "warn"), where, evidence and remedy

    Examples
    --------
    >>> for finding in check_returns(table):
    ...     print(finding.severity, finding)
    """
    if kind is not None:
        validate_choice("kind", kind, KINDS)
    frame = read_source(table).frame if is_frame(table) else _frame(table)
    found, names = Findings(), [str(column) for column in frame.columns]
    find_name_faults(names, found)
    latest = None if today is None else pd.Timestamp(today).tz_localize(None)
    frame = with_dates(frame)
    frame, days = find_date_faults(frame, pd.Timestamp.now() if latest is None else latest, latest, found)
    if not frame.size:
        return found.sorted()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns without a number
        cells = numbers_of(frame, names, found)
        known = cells[np.isfinite(cells)]
        prices = kind == "prices" or (kind is None and known.size > 0 and _guess(cells))
        _check_cells(Panel(frame, names, cells, prices, days, found))
    return found.sorted()


@dataclass(frozen=True)
class CheckedTable:
    """Returns (dates × assets), what the cells were, and what was found in them."""

    returns: pd.DataFrame
    values: str
    findings: tuple[Finding, ...]
    read_as: tuple[str, ...]


def check_source(
    source: SourceTable, kind: str | None = None, *, today: str | pd.Timestamp | None = None
) -> list[Finding]:
    """`check_returns` of a table that has been read."""
    kind = "prices" if source.name == "sp500" else kind
    return check_returns(source.frame, kind, today=today)


def load_checked(
    source: Source,
    values: str | None = None,
    *,
    gaps: str = "refuse",
    accept: Sequence[str] | str = (),
    live: bool = False,
) -> CheckedTable:
    """`load_market` with a check: an `InputError` for a finding that stops and is not among the accepted names.

    What is `live` is decided today: the last row is to be near it.
    """
    found: list[Finding] = []
    today = pd.Timestamp.now() if live else None

    def inspect(table: pd.DataFrame, read: SourceTable) -> None:
        kind = "prices" if read.name == "sp500" else values
        found.extend(refuse_faults(check_returns(table, kind, today=today), accept, read.name))

    read = read_source(source)
    returns, values = load_market(read, values, gaps=gaps, inspect=inspect)
    return CheckedTable(returns, values, tuple(found), read.read_as)


def load_history(
    returns: Any, gaps: str, accept: Sequence[str] | str = (), findings: Sequence[Finding] | None = None
) -> tuple[pd.DataFrame | None, tuple[Finding, ...]]:
    """The returns of a DataFrame of returns or prices, None for an array; and what was found in it.

    Nothing is looked for where `findings` are given.
    """
    validate_accept(accept)
    if is_frame(returns):
        if findings is not None:
            return load_returns(returns, "returns", gaps=gaps), tuple(findings)
        checked = load_checked(returns, gaps=gaps, accept=accept)
        return checked.returns, checked.findings
    return None, tuple(findings or ())


def column_labels(given: Any, table: pd.DataFrame) -> list[Any]:
    """The labels of the assets as they were given; those of the table that was read where its columns are others."""
    labels = list(given.columns) if isinstance(given, pd.DataFrame) else []
    same = [str(label).strip() for label in labels] == list(table.columns)
    return labels if same else list(table.columns)


def _frame(table: Any) -> pd.DataFrame:
    array = np.asarray(table)
    expect(array.ndim == 2, "table", "a DataFrame or an array (time, assets)", f"shape {array.shape}")
    return pd.DataFrame(array)


def _guess(cells: np.ndarray) -> bool:
    """Whether the cells are prices: as `load_returns` guesses, and where a few of them are at fault."""
    known = cells[np.isfinite(cells)]
    if looks_like_prices(known):
        return True
    bad = (known <= 0).mean()
    return bool(bad < 0.05 and np.median(known) > 0.5 and np.median(median(cells)) > 1.3)


def _check_cells(panel: Panel) -> None:
    if panel.prices is not None and not (panel.cells < 0).mean() > 0.2:
        bad = panel.cells <= 0
        if bad.any():
            columns = [panel.names[j] for j in np.flatnonzero(bad.any(0))]
            panel.found.add("price_not_positive", columns, f"{bad.sum()} cells are 0 or negative")
    if not panel.enough or not find_table_faults(panel):
        return
    find_column_faults(panel)
    if panel.live.any():
        for part in (find_jumps, find_direction, find_runs, find_copies, find_relations):
            part(panel)
    _find_digits(panel)
    _find_holes(panel)


def _find_digits(panel: Panel) -> None:
    """Columns with too few decimals for their moves."""
    if panel.prices is None:
        x = panel.returns
        for digits in (3, 2):
            near = (np.abs(x * 10**digits - np.round(x * 10**digits)) < 1e-8) | ~panel.finite
            coarse = near.all(0) & (panel.scale < 4 * 10.0**-digits) & (panel.count > 40)
            text = [f"{digits} decimals where a usual move is {one:.4f}" for one in panel.scale]
            panel.mark(coarse, "rounded", text.__getitem__, stops=False, drop=False)
        return
    moves = np.where(panel.moving, np.abs(np.diff(panel.cells, axis=0)), np.inf)
    tick = np.nanmin(moves, axis=0)
    coarse = (tick > 0.6 * panel.scale * median(panel.cells)) & np.isfinite(tick)
    few = "the smallest change is as large as a usual one"
    panel.mark(coarse, "rounded", lambda j: few, stops=False, drop=False)


def _find_holes(panel: Panel) -> None:
    """Empty cells: whole rows, inside a column, and at its end."""
    finite, rows = panel.finite, len(panel.returns)
    first, last = np.argmax(finite, axis=0), rows - 1 - np.argmax(finite[::-1], axis=0)
    empty = (~finite).mean(1) > 0.9
    inside = last + 1 - first - finite.sum(0)
    many = inside - empty.sum() > np.maximum(0.02 * panel.count, 3)
    text = [f"{count} cells missing between its first and last" for count in inside]
    panel.mark(many, "holes", text.__getitem__, stops=False, drop=False)
    if empty.mean() > 0.02 or empty[-1]:
        place = panel.date(int(np.flatnonzero(empty)[-1]))
        panel.found.add("empty_rows", place, f"{empty.sum()} rows hold no numbers", stops=bool(empty[-1]))
        return
    gone = [f"no number in the last {count} rows" for count in rows - 1 - last]
    panel.mark(last < rows - 1, "ends_early", gone.__getitem__, stops=False, drop=False)
