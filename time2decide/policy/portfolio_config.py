"""A portfolio.toml: what `run` decides day by day, from which files and on which terms."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from time2decide.core.files import expect_regular, read_toml
from time2decide.core.validation import describe_value, expect, validate_choice, validate_positive
from time2decide.data.findings import validate_accept
from time2decide.markets.table_files import Reading, SourceTable, read_source
from time2decide.markets.tables import GAPS
from time2decide.markets.validation import validate_delay, validate_risk_aversion, validate_turnover
from time2decide.policy.market_decision import COST_BPS, RISK_AVERSION
from time2decide.simulation.engine import validate_cost

_LONGEST_NAME = 255  # of a file, in bytes


@dataclass(frozen=True)
class PortfolioConfig:
    """A portfolio.toml; paths are relative to it."""

    table: str  # .csv, .csv.gz or .parquet of returns or prices
    journal: str = "journal.jsonl"
    state: str = "state.safetensors"
    decisions: str = ""  # folder of decision files, one per date; none unless given
    values: str = ""  # "returns" or "prices"; guessed unless given
    gaps: str = "refuse"  # or "keep"
    model: str = "market"
    turnover: float = 1.0  # γ
    risk_aversion: float = RISK_AVERSION  # λ
    cost: float = COST_BPS  # basis points
    constraints: str = ""  # .toml or .csv
    benchmark: str = ""  # CSV asset,weight
    holdings: str = ""  # CSV asset,weight or asset,shares: what is held; the last target after drift unless given
    value: float = 0.0  # of the portfolio, which adds orders in whole shares; shares and their prices say it, too
    price_file: str = ""  # CSV asset,price: prices of the orders; else the last ones of a table of prices
    min_trade: float = 0.0  # smallest trade, in weights
    delay: int = 1  # rows between a decision and its trade; 1 is the next close
    periods_per_year: float = 0.0  # rows in a year; as the dates of the table say unless given
    separator: str = ""  # of a text table, where it has to be said; so have the next two
    decimal: str = ""  # . or ,
    dates: str = ""  # day-first or month-first
    accept: tuple[str, ...] = ()  # findings of `check` that do not stop
    tolerance: float = 0.0  # by which a return of the past may differ from what was seen
    folder: Path = Path()

    def source(self) -> SourceTable:
        """The table, read."""
        return read_source(
            self.folder / self.table, Reading(self.separator or None, self.decimal or None, self.dates or None)
        )

    def path(self, name: str) -> Path | None:
        """The file that a field names."""
        value = getattr(self, name)
        return self.folder / value if value else None


def read_portfolio(path: str | Path) -> PortfolioConfig:
    """The configuration of a portfolio.toml; unknown keys and values of another type are refused by name."""
    path = Path(path)
    content = read_toml(path)
    known = {field.name: field.type for field in fields(PortfolioConfig) if field.name != "folder"}
    for key, value in content.items():
        expect(key in known, path.name, f"keys among {', '.join(known)}", key)
        if key == "accept":
            validate_accept(value)
            continue
        number = known[key] in ("float", "int")
        right = isinstance(value, (int, float)) and not isinstance(value, bool) if number else isinstance(value, str)
        right = right and (number or "\0" not in value)  # which no file name can hold
        expect(right, f"{path.name}: {key}", "a number" if number else "text", describe_value(value))
        short = number or all(len(os.fsencode(part)) <= _LONGEST_NAME for part in Path(value).parts)
        expect(short, f"{path.name}: {key}", f"a name of at most {_LONGEST_NAME} bytes", describe_value(value))
    expect("table" in content, path.name, "the key table", "none")
    content["accept"] = validate_accept(content.get("accept", ()))
    config = PortfolioConfig(**content, folder=path.parent)
    named = {"portfolio file": path} | {
        name: place
        for name in ("table", "journal", "state", "constraints", "benchmark", "holdings", "price_file", "decisions")
        if (place := config.path(name)) is not None
    }
    expect("journal" in named and "state" in named, path.name, "a file for journal and state", "none")
    for name in ("journal", "state"):
        expect_regular(f"{path.name}: {name}", named[name])
    places = [os.path.realpath(place) for place in named.values()]
    same = [name for name, place in zip(named, places, strict=True) if places.count(place) > 1]
    expect(not same, path.name, "a file of its own for each", f"one for {' and '.join(same)}")
    match_folder(config, path.name, named)
    validate_turnover(config.turnover)
    validate_risk_aversion(config.risk_aversion)
    validate_cost(config.cost)
    validate_positive("tolerance", config.tolerance, allow_zero=True)
    validate_positive("value", config.value, allow_zero=True)
    validate_positive("min_trade", config.min_trade, allow_zero=True, most=1)
    validate_delay(config.delay)
    validate_positive("periods_per_year", config.periods_per_year, allow_zero=True)
    validate_choice("gaps", config.gaps, GAPS)
    validate_choice("values", config.values or "returns", ("returns", "prices"))
    return config


def match_folder(config: PortfolioConfig, name: str, named: Mapping[str, Path]) -> None:
    """Raise if the name of a decision file may be that of another file."""
    folder = config.path("decisions")
    inside = [
        which
        for which, place in named.items()
        if folder is not None
        and os.path.dirname(os.path.realpath(place)) == os.path.realpath(folder)
        and place.suffix.lower() == ".json"
    ]
    expect(not inside, name, "only decision files among the .json of decisions", " and ".join(inside))
