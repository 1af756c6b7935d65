"""Faults of what comes with a table: benchmark, constraints, prices of orders; and results that no market gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from time2decide.data.findings import Finding, Findings, refuse_faults
from time2decide.markets.constraints import Constraints
from time2decide.markets.periods import frequency_of
from time2decide.markets.tables import Source, last_prices
from time2decide.markets.validation import allows_borrowing, allows_cash

_SUM = 0.01  # by which a benchmark may miss its sum
_BUSINESS_DAYS = 252.0
_HIGHEST_RATE = 0.0015  # of cash, a day: 45 % a year
_HIGHEST_UNDATED = 0.03
_PER_CENT = 5.0  # a bound of a weight that means per cent; from 1.5 on it may
_QUOTE = 20.0  # times the last price of the table
_QUOTE_WARNS = 1.6
_MOST_RISK = 0.2  # a day
_MOST_GAIN = 0.1  # a day, expected


def find_term_faults(index: pd.Index, constraints: Constraints | None, benchmark: np.ndarray | None) -> list[Finding]:
    """Faults of constraints and benchmark for a table with this index."""
    found = Findings()
    if benchmark is not None:
        _find_benchmark(benchmark, constraints, found)
    if constraints is not None:
        _find_cash_rate(index, constraints.cash_return, found)
        _find_percent_limits(constraints, found)
    return found.sorted()


def _find_benchmark(benchmark: np.ndarray, constraints: Constraints | None, found: Findings) -> None:
    """Weights that sum to 1; to less with cash, to more with borrowing, to 0 for none at all."""
    total = float(benchmark.sum())
    low = 0.0 if allows_cash(constraints) else 1.0
    high = max(2.0, 1.0 if constraints is None else constraints.exposure) if allows_borrowing(constraints) else 1.0
    if low - _SUM <= total <= high + _SUM or not benchmark.any():
        return
    percent = "; per cent?" if abs(total - 100) < 100 * _SUM else ""
    found.add("benchmark_sum", "benchmark", f"its weights sum to {total:.6g}{percent}")


def _find_cash_rate(index: pd.Index, rate: float, found: Findings) -> None:
    year = frequency_of(index).per_year
    most = _HIGHEST_UNDATED if year is None else _HIGHEST_RATE * _BUSINESS_DAYS / year
    if abs(rate) > most:
        a_year = "" if year is None else f", {(1 + rate) ** min(year, 400.0) - 1:.3g} a year"
        found.add("cash_return_annual", "cash", f"{rate:g} in every row{a_year}")


def _find_percent_limits(constraints: Constraints, found: Findings) -> None:
    bounds = [("upper", np.ravel(constraints.upper)), ("lower", np.ravel(constraints.lower))]
    groups = (one for one in constraints.limits if np.isin(one.coefficients, (0, 1)).all())
    bounds += [(one.name, np.array([one.low, one.high])) for one in groups]
    bounds += [("cash", np.array(constraints.cash))]
    most = 1.5 if not allows_borrowing(constraints) else _PER_CENT
    for name, values in bounds:
        numbers = np.asarray(values, dtype=float)
        numbers = numbers[np.isfinite(numbers)]
        largest = float(np.abs(numbers).max(initial=0.0))
        if largest > most:
            text = f"{largest:g}, which is {largest:.0%} of the portfolio"
            found.add("limit_in_percent", name, text, stops=largest >= _PER_CENT)


def find_quote_faults(quotes: pd.Series, prices: pd.Series) -> list[Finding]:
    """Prices of orders that contradict the last prices of the table, by asset."""
    found = Findings()
    for asset, ratio in (quotes / prices.reindex(quotes.index)).dropna().items():
        times = max(ratio, 1 / ratio)
        if times > _QUOTE_WARNS:
            text = f"{quotes[asset]:g} where the table ends with {prices[asset]:g}"
            found.add("quote_contradicts", asset, text, stops=times > _QUOTE)
    return found.sorted()


def check_quotes(quotes: pd.DataFrame, source: Source, accept: Sequence[str] = ()) -> tuple[Finding, ...]:
    """`find_quote_faults` of prices of orders (`read_quotes`) and a table of prices; those that stop raise."""
    return tuple(refuse_faults(find_quote_faults(quotes["price"], last_prices(source)["price"]), accept, "prices"))


def find_result_faults(index: pd.Index, risk: float, gain: float) -> list[Finding]:
    """A standard deviation and an expected return a row that no portfolio has."""
    found, year = Findings(), frequency_of(index).per_year
    days = 1.0 if year is None else max(_BUSINESS_DAYS / year, 1.0)
    if not risk <= _MOST_RISK * days**0.5:
        found.add("implausible_risk", "decision", f"the portfolio moves by {risk:.0%} in a usual row")
    if not abs(gain) <= _MOST_GAIN * days:
        found.add("implausible_gain", "decision", f"an expected return of {1e4 * gain:,.0f} bp in every row")
    return found.sorted()


def check_terms(
    index: pd.Index, constraints: Constraints | None, benchmark: np.ndarray | None, accept: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """`find_term_faults`; an `InputError` for one that stops and is not among the accepted names."""
    return tuple(refuse_faults(find_term_faults(index, constraints, benchmark), accept, "terms"))
