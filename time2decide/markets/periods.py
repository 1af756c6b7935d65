"""How often a table has rows: periods a year and what one is called. Nothing else in the package knows a year's length.

Rows without dates have no year: their figures are stated per row. Where a rule needs a year all the same (half-lives,
the prior on means) they are taken for business days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from time2decide.core.validation import validate_positive

YEAR = 252.0  # business days
_EVERY_DAY = 365.0
#: Rarer rows: the longest median distance in days, periods a year, and the name of one.
_RARE = ((10, 52.0, "week"), (21, 26.0, "period"), (45, 12.0, "month"), (120, 4.0, "quarter"), (250, 2.0, "period"))
_NAMES = {YEAR: "day", _EVERY_DAY: "day", 1.0: "year", **{year: name for _, year, name in _RARE}}
_WITHIN_A_DAY = 20 / 24  # days between rows, below which a day has several
_FEWEST = 3  # rows that tell how often they come


class Frequency(NamedTuple):
    """Periods a year, None where that is unknown, and the name of one: "day", "month", "hour", "row"."""

    per_year: float | None
    period: str

    @property
    def assumed(self) -> float:
        """Periods a year, business days where that is unknown."""
        return YEAR if self.per_year is None else self.per_year

    @property
    def scale(self) -> float:
        """Periods that a figure is stated for: those of a year, or 1 where that is unknown."""
        return 1.0 if self.per_year is None else self.per_year

    @property
    def span(self) -> str:
        """What a figure is stated for: "year", or "row" where a year is unknown."""
        return "year" if self.per_year is not None else self.period


def frequency_of(labels: pd.Index | Sequence[Any] | None = None, stated: float | None = None) -> Frequency:
    """The frequency of rows by their dates (an index or a list of labels), or `stated` periods a year.

    The median distance decides, so that holidays, missing rows and gaps do not. Days count as seven a week where there
    are rows on Saturdays and on Sundays. Within a day a year has as many periods as its days have rows, the shortened
    ones apart.
    """
    dates = _dates(labels)
    found = Frequency(None, "row") if dates is None else _of_dates(dates)
    if stated is None:
        return found
    year = validate_positive("periods_per_year", stated)
    known = found.period if year == found.per_year else _NAMES.get(year, "row" if dates is None else "period")
    return Frequency(year, known)


def periods_per_year(labels: pd.Index | Sequence[Any] | None) -> float | None:
    """Rows a year of a table with these labels; None where they are no dates, or too few."""
    return frequency_of(labels).per_year


def _dates(labels: pd.Index | Sequence[Any] | None) -> pd.DatetimeIndex | None:
    """Labels as dates; None for numbers of rows."""
    if labels is None or isinstance(labels, pd.DatetimeIndex):
        return labels
    texts = [str(label) for label in labels]
    if not texts or not all("-" in text[1:] for text in texts):
        return None
    dates = pd.to_datetime(pd.Index(texts), format="ISO8601", errors="coerce", utc=True)
    return None if dates.isna().any() else pd.DatetimeIndex(dates)


def _of_dates(dates: pd.DatetimeIndex) -> Frequency:
    unknown = Frequency(None, "row")
    if len(dates) < _FEWEST:
        return unknown
    wall = dates.tz_localize(None).sort_values()
    step = float(np.median(np.diff(wall.asi8))) * pd.Timedelta(1, wall.unit) / pd.Timedelta(days=1)
    weekend = [np.mean(wall.day_of_week == day) > 1 / 14 for day in (5, 6)]
    daily = _EVERY_DAY if all(weekend) else YEAR
    if step >= _WITHIN_A_DAY:
        year, name = next(((p, n) for most, p, n in ((4, daily, "day"), *_RARE) if step <= most), (1.0, "year"))
        return Frequency(year, name)
    rows, times = (np.unique(part.asi8, return_counts=True)[1] for part in (wall.normalize(), wall - wall.normalize()))
    if len(rows) < 2 or step <= 0:
        return unknown
    usual = int((2 * times >= len(rows)).sum())  # times of day that half of the days have
    per_day = float(max(usual, np.quantile(rows, 0.75, method="higher")))
    return Frequency(per_day * daily, {3600: "hour", 60: "minute"}.get(round(86400 * step), "bar"))
