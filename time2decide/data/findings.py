"""What a check finds: name, severity, place, evidence and remedy; and the refusal of what stops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from time2decide.core.validation import InputError, describe_value, expect

#: Every name, and what to do about it.
REMEDIES = {
    # dates and names
    "same_name": "rename or drop one",
    "not_an_asset": "drop the column",
    "newest_first": "turn the table round: table.sort_index()",
    "unsorted": "sort the rows: table.sort_index()",
    "same_date": "keep one row a date",
    "two_rows_a_day": "keep the close of each day",
    "future_date": "are day and month exchanged?",
    "dates_implausible": "name the column that holds the dates",
    "gap": "fetch the missing rows, or start after them",
    "frequency_changes": "use rows of one frequency",
    "weekend": "drop the rows if nobody trades then",
    "stale_date": "fetch the newest rows: a decision from old data cannot be traded",
    # cells and columns
    "not_numbers": "give numbers, or leave the cells empty",
    "infinite": "a price of 0 was divided by: correct it",
    "no_data": "drop the column",
    "constant": "drop the column, or keep it as cash",
    "price_not_positive": "leave missing prices empty",
    "returns_given_as_prices": "say that these are returns (kind='returns', --returns)",
    "prices_given_as_returns": "say that these are prices (kind='prices', --prices)",
    "log_prices": "give prices: exp of these",
    "log_returns": "give simple returns: exp(r) - 1",
    "gross_returns": "subtract 1",
    "percent": "divide by 100",
    "basis_points": "divide by 10,000",
    "overlapping": "use returns that do not overlap, of one period each",
    "column_unit": "divide or multiply by 100 or 10,000",
    "row_numbers": "drop the column",
    "volume": "a volume is no asset: drop the column",
    "levels": "turn them into returns, or drop the column",
    "never_falls": "are the minus signs lost?",
    "cash_rate": "state it as [cash] return, or keep it knowingly",
    "cash_rate_unit": "a rate a year, or in percent: divide it by 100 and by the periods of a year",
    "smoothed": "interpolated or appraised: use its own dates of valuation",
    "clipped": "use the returns as they were",
    "rounded": "give more decimals",
    "holes": "fill them from the source, not with 0",
    "empty_rows": "drop the rows",
    "ends_early": "fetch the rows, or drop the asset: it cannot be traded",
    # single moves
    "total_loss": "delisted? leave later cells empty",
    "sentinel": "leave missing cells empty",
    "below_minus_one": "correct the cell; are these log returns?",
    "row_jump": "correct the row",
    "columns_swapped": "exchange them back",
    "bad_print": "correct the cell",
    "quote_unit": "pence for pounds, dots for thousands? multiply or divide by 100",
    "split": "adjust the history, or confirm the move",
    "jump": "a split, a merger, an error or the market: confirm it",
    "unit_changes": "use one unit in all rows",
    # runs and copies
    "last_row_again": "drop the last row",
    "last_row_partial": "wait for the row's remaining prices",
    "holidays_filled": "drop the rows",
    "valued_seldom": "use rows of its own frequency, or drop the column",
    "zeros_before_listing": "leave the cells empty",
    "stale": "halted or filled: leave the cells empty",
    "interpolated": "leave missing cells empty",
    "row_of_one_value": "drop the row",
    "rows_repeated": "drop the copies",
    # one asset against the others
    "same_asset": "drop one of them",
    "shifted": "shift it by a row: how were its dates read?",
    "sign": "an inverse fund, or a sign turned: confirm it",
    "index_of_members": "drop the column, or keep it knowingly",
    "runs_backwards": "is the newest row first? turn the table round",
    # other inputs and results
    "benchmark_sum": "give weights that sum to 1",
    "cash_return_annual": "divide it by the periods of a year",
    "limit_in_percent": "limits are fractions: divide by 100",
    "quote_contradicts": "give prices in the unit of the table",
    "implausible_risk": "check the unit of the returns",
    "implausible_gain": "check the unit of the returns",
}
_SHOWN = 4  # places in a line


@dataclass(frozen=True)
class Finding:
    """A fault, or what looks like one.

    severity : "stop" where no real market looks like this, "warn" where one does now and then
    where : columns, rows, or "column @ row"
    """

    name: str
    severity: str
    where: tuple[str, ...]
    evidence: str
    remedy: str

    @property
    def places(self) -> str:
        """The first places in words."""
        more = f" and {len(self.where) - _SHOWN} more" if len(self.where) > _SHOWN else ""
        return ", ".join(self.where[:_SHOWN]) + more

    def __str__(self) -> str:
        return f"{self.name} ({self.places}): {self.evidence}; {self.remedy}"

    def to_json(self) -> dict[str, Any]:
        """For decision files and `--json`."""
        return asdict(self) | {"where": list(self.where)}

    @classmethod
    def from_json(cls, one: dict[str, Any]) -> Finding:
        """As `to_json` wrote it."""
        return cls(**(one | {"where": tuple(one["where"])}))


class Findings:
    """Findings while a check goes on: one a name, whose places are gathered; the graver evidence stays."""

    def __init__(self) -> None:
        self._found: dict[str, Finding] = {}

    def add(self, name: str, where: object, evidence: str, *, stops: bool = True) -> None:
        """A finding at one place or at several."""
        places = tuple(map(str, where)) if isinstance(where, (list, tuple)) else (str(where),)
        old = self._found.get(name)
        if old is not None and (old.severity == "stop" or not stops):
            stops, evidence = old.severity == "stop", old.evidence
        before = () if old is None else old.where
        places = before + tuple(place for place in places if place not in before)
        self._found[name] = Finding(name, "stop" if stops else "warn", places, evidence, REMEDIES[name])

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def where(self, name: str) -> tuple[str, ...]:
        """The places of a name; none if it was not found."""
        return self._found[name].where if name in self._found else ()

    def sorted(self) -> list[Finding]:
        """Those that stop first."""
        return sorted(self._found.values(), key=lambda one: one.severity != "stop")


def validate_accept(accept: object) -> tuple[str, ...]:
    """Names of findings that do not stop."""
    names = (accept,) if isinstance(accept, str) else accept
    listed = isinstance(names, Collection) and all(isinstance(name, str) for name in names)
    expect(listed, "accept", "names of findings", describe_value(accept))
    assert isinstance(names, Collection)
    for name in names:
        expect(name in REMEDIES, "accept", "names of findings (`time2decide check FILE` shows them)", repr(name)[:60])
    return tuple(names)


def refuse_faults(
    findings: Iterable[Finding], accept: Sequence[str] | str = (), source: str = "returns"
) -> list[Finding]:
    """The findings, unless one of them stops and is not among the accepted names: then an `InputError` in one line."""
    accepted, findings = validate_accept(accept), list(findings)
    stopping = [one for one in findings if one.severity == "stop" and one.name not in accepted]
    if stopping:
        others = ", ".join(one.name for one in stopping[1:])
        also = f"; also {others}" if others else ""
        ways = f"--accept {stopping[0].name}, accept=['{stopping[0].name}']"
        raise InputError(f"{source}: {stopping[0]}{also} (to go on all the same: {ways})")
    return findings
