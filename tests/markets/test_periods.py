"""How often a table has rows."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from time2decide.core.validation import InputError
from time2decide.markets.periods import Frequency, frequency_of, periods_per_year

TRADED = pd.DatetimeIndex(
    [day + pd.Timedelta(hours=h) for day in pd.bdate_range("2024-01-02", periods=60) for h in range(10, 17)]
)
TABLES = {
    "business days": (pd.bdate_range("2000-01-03", periods=300), 252, "day"),
    "seven days": (pd.date_range("2000-01-03", periods=300), 365, "day"),
    "Fridays": (pd.date_range("2000-01-03", periods=300, freq="W-FRI"), 52, "week"),
    "fortnights": (pd.date_range("2000-01-03", periods=300, freq="2W"), 26, "period"),
    "ends of months": (pd.date_range("2000-01-03", periods=120, freq="BME"), 12, "month"),
    "quarters": (pd.date_range("2000-01-03", periods=60, freq="QE"), 4, "quarter"),
    "years": (pd.date_range("1900-01-03", periods=60, freq="YE"), 1, "year"),
    "hours of a trading day": (TRADED, 7 * 252, "hour"),
    "hours in New York": (TRADED.tz_localize("America/New_York"), 7 * 252, "hour"),
    "hours of every day": (pd.date_range("2024-01-01", periods=2000, freq="h"), 24 * 365, "hour"),
    "minutes": (pd.date_range("2024-01-01", periods=20000, freq="min"), 1440 * 365, "minute"),
    "quarters of an hour": (pd.date_range("2024-01-01", periods=2000, freq="15min"), 96 * 365, "bar"),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_dates_tell_the_periods_of_a_year(name):
    index, year, period = TABLES[name]
    assert frequency_of(index) == Frequency(year, period)
    assert frequency_of([str(label) for label in index]) == Frequency(year, period)  # labels as a journal has them


@given(st.sampled_from(sorted(TABLES)), st.integers(0, 2**32 - 1), st.floats(0, 0.12))
def test_missing_rows_and_a_long_gap_change_nothing(name, seed, share):
    index, year, period = TABLES[name]
    kept = np.random.default_rng(seed).random(len(index)) >= share
    kept[len(index) // 2 : len(index) // 2 + len(index) // 20] = False
    assert frequency_of(index[kept]) == Frequency(year, period)


def test_a_few_rows_are_enough_but_two_are_not():
    week = pd.DatetimeIndex(["2024-01-04", "2024-01-05", "2024-01-09"])  # over a weekend and a holiday
    assert periods_per_year(week) == 252
    assert periods_per_year(week[:2]) is None
    assert periods_per_year(TRADED[:7]) is None  # one day does not say how long it is


@pytest.mark.parametrize("labels", [None, pd.RangeIndex(30), [1, 2, 3], ["-1", "0", "1"], ["20240101", "20240102"]])
def test_rows_without_dates_have_no_year(labels):
    found = frequency_of(labels)
    assert found == Frequency(None, "row")
    assert (found.scale, found.span, found.assumed) == (1.0, "row", 252.0)


def test_what_is_stated_wins():
    monthly = pd.date_range("2000-01-31", periods=30, freq="ME")
    assert frequency_of(monthly, 252) == Frequency(252, "day")
    assert frequency_of(None, 52) == Frequency(52, "week")
    assert frequency_of(None, 17) == Frequency(17, "row")
    assert frequency_of(TRADED, 7 * 252) == Frequency(7 * 252, "hour")
    with pytest.raises(InputError, match="periods_per_year: expected"):
        frequency_of(monthly, -1)
