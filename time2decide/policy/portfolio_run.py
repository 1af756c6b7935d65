"""A portfolio that is decided day by day: the table is read, a decision goes to the journal.

The journal is the truth. The state is a copy of the rows that were seen: a table whose past differs from it is refused
with the number that differs, within a tolerance; without it the fingerprint in the journal tells.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from time2decide import __version__
from time2decide.core.files import expect_regular, validate_not_read
from time2decide.core.journal import Journal
from time2decide.core.validation import InputError, describe_value, expect, validate_positive
from time2decide.data.check import load_checked
from time2decide.data.findings import REMEDIES, Finding
from time2decide.data.terms import check_quotes, check_terms
from time2decide.markets.constraint_files import files_of_constraints, read_constraints
from time2decide.markets.constraints import Constraints
from time2decide.markets.decision_file import (
    data_fingerprint,
    encode_decision,
    label_texts,
    read_decision,
    write_decision,
)
from time2decide.markets.oracle import WINDOW
from time2decide.markets.orders import Orders, whole_shares
from time2decide.markets.periods import YEAR, Frequency, frequency_of
from time2decide.markets.stated_problem import constraints_from_json, constraints_to_json
from time2decide.markets.tables import read_weights
from time2decide.markets.validation import (
    validate_any_weights,
    validate_returns,
    validate_risk_aversion,
    validate_turnover,
)
from time2decide.policy.decision_record import (
    DecisionOrigin,
    checked_result,
    decision_document,
    numbers_by_asset,
    with_origin,
)
from time2decide.policy.market_decision import MarketDecision, decide_market
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.model import CONFIG_FILE, LEAST_ROWS, Time2Decide
from time2decide.policy.portfolio_config import PortfolioConfig, match_folder
from time2decide.policy.run_holdings import (
    Holdings,
    current_holdings,
    entry_delay,
    entry_rows,
    read_holdings,
    stale_holdings,
)
from time2decide.policy.seen_rows import load_seen_rows, save_seen_rows
from time2decide.simulation.engine import validate_cost

SCHEMA = "time2decide/journal/1"
_ABSENT = ...  # in place of a field that an entry has not
_WEIGHTS = dict[str, float]
_ENTRY: dict[str, Any] = {
    **dict.fromkeys(("date", "made", "holdings", "model.name", "model.fingerprint", "verdict"), str),
    **dict.fromkeys(("data.last", "data.sha256", "data.dates_sha256"), str),
    **dict.fromkeys(("terms.turnover_l1", "terms.risk_aversion", "terms.cost_bps"), float | int),
    **dict.fromkeys(("weights", "previous"), _WEIGHTS),
    "data.rows": int,
    "terms.constraints": dict | None,
    "terms.benchmark": list | None,
}  # fields of an entry that are read again
_KINDS: dict[Any, str] = {
    str: "text", int: "a whole number", float | int: "a number", _WEIGHTS: "finite weights by asset",
    dict | None: "an object or null", list | None: "a list or null",
}  # fmt: skip
_LARGEST_WEIGHT = 1e6  # as of an exposure
_EQUAL = 1e-9  # largest difference of a weight that is called none
_MOST_MADE_AGAIN = 10  # decision files of the last dates that are looked for


def _validate_outputs(config: PortfolioConfig, holdings: str | Path | None) -> None:
    """Raise if journal, state or a decision file would replace a file that is read, by whatever name."""
    model, rules = Path(_model(config)), config.path("constraints")
    read = {
        "holdings": config.path("holdings") if holdings is None else Path(holdings),
        **{f"constraints {i}": one for i, one in enumerate([] if rules is None else files_of_constraints(rules))},
        "model": model / CONFIG_FILE,
        **{name: config.path(name) for name in ("table", "benchmark", "price_file")},
    }
    found = {name: place for name, place in read.items() if place is not None}
    for name in ("journal", "state"):
        place = config.path(name)
        assert place is not None
        validate_not_read(name, place, found.values())
    match_folder(config, "decisions", found)


@dataclass(frozen=True)
class Outcome:
    """What a run did: the entry of the journal, its number, and the decision where it was made now.

    differs : what the configuration says otherwise than the entry of a date that was decided before, which stands
    unwritten : names of the state or older decision files that could not be written; the next run makes them
    stale : a warning if the file of current weights is as it was for the decision before; else empty
    orders : in whole shares, if a decision was made now and prices and the value of the portfolio are known
    """

    entry: dict[str, Any]
    number: int
    decision: MarketDecision | None
    network: Time2Decide
    constraints: Constraints | None
    messages: tuple[str, ...]
    differs: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    stale: str = ""
    orders: Orders | None = None


def run_portfolio(config: PortfolioConfig, holdings: str | Path | None = None) -> Outcome:
    """Read the table, decide for its last date unless the journal has that, and store the decision and what was seen.

    `holdings` is a file of current weights in place of the configuration's.
    """
    journal_path, state_path = config.path("journal"), config.path("state")
    assert journal_path is not None
    assert state_path is not None
    _validate_outputs(config, holdings)
    network = Time2Decide.from_pretrained(_model(config))
    source = config.source()
    checked = load_checked(source, config.values or None, gaps=config.gaps, accept=config.accept, live=True)
    table, values = checked.returns, checked.values
    validate_returns(table, LEAST_ROWS, WINDOW, config.gaps)
    given = _terms_of(config, table)
    findings = checked.findings + check_terms(table.index, given["constraints"], given["benchmark"], config.accept)
    journal = Journal(journal_path)
    messages: list[str] = []
    with journal.locked():
        entries, seen = _carried(journal, state_path, table, config, messages.append)
        decision, orders, differs, stale = None, None, [], ""
        if entries and entries[-1]["date"] == label_texts(table.index)[-1]:
            told = None if holdings is None else Path(holdings)
            held = None if told is None else read_holdings(config, told, table, values, given["constraints"])
            differs = _differences(entries[-1], given, network, held, table)
        else:
            held = current_holdings(config, holdings, entries, table, values, given["constraints"])
            stale = stale_holdings(held, entries, table)
            messages += held.notes
            if held.quotes is not None and config.path("price_file") is not None and values == "prices":
                findings += check_quotes(held.quotes, source, config.accept)
            when = given["delay"], given["frequency"]
            origin = DecisionOrigin(table, network.policy, network.name, config.gaps, *when, findings)
            decision = _decide(origin, held.weights, given, config.accept)
            orders = held.orders(decision, config)
            _write_new(decision_document(decision, orders, **_about(config)), config)
            rows = len(table) - entry_rows(entries)
            entries.append(journal.append(_entry(decision, network, held.source, rows, given, orders)))
        unwritten = _save_seen(state_path, table, seen, messages.append)
        unwritten += _write_missing(entries, network, table, config, messages.append)
    if differs:
        messages.append(f"{entries[-1]['date']} was decided on other terms, and stands: {'; '.join(differs)}")
    messages += [stale] if stale else []
    done = entries[-1], len(entries), decision, network, given["constraints"], tuple(messages)
    return Outcome(*done, tuple(differs), tuple(unwritten), stale, orders)


def _carried(
    journal: Journal, state_path: Path, table: pd.DataFrame, config: PortfolioConfig, tell: Callable[[str], None]
) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """The entries of the journal and the rows seen before, if table, journal, state and files agree."""
    entries = read_run_entries(journal)
    seen = _seen_before(state_path, table, config.tolerance, tell)
    if entries:  # rows that are not in the state can be held against their fingerprint only
        _match_journal(entries[-1], table, config.tolerance == 0 or len(seen) < entry_rows(entries))
    _match_decisions(entries, table, config)
    _match_state(entries, seen, state_path.name, config)
    repaired = journal.repair()  # after the checks: what is refused stays as it is
    if repaired:
        tell(repaired)
    return entries, seen


def _differences(
    entry: dict[str, Any], terms: dict[str, Any], network: Time2Decide, held: Holdings | None, table: pd.DataFrame
) -> list[str]:
    """What is asked for now otherwise than the entry was made with."""
    names = [str(column) for column in table.columns]
    then, now = {"min_trade": 0.0, "delay": 0, **entry["terms"]}, _stated(terms, len(names))
    numbers = {"turnover_l1": "turnover", "cost_bps": "cost"}
    numbers |= {key: key for key in ("risk_aversion", "min_trade", "delay")}
    found = [f"{name} {then[key]:g} then, {now[key]:g} now" for key, name in numbers.items() if then[key] != now[key]]
    found += [f"other {name}" for name in ("constraints", "benchmark") if then[name] != now[name]]
    model = entry["model"]
    if model["name"] != network.name:
        found.append(f"model {model['name']} then, {network.name} now")
    elif model["fingerprint"] != network.policy.fingerprint:
        found.append(f"model {network.name} has other weights now")
    if held is not None:
        assert held.weights is not None
        same = np.abs(held.weights - [entry["previous"][name] for name in names]).max() <= _EQUAL
        found += [] if same else ["other current weights"]
    return found


def read_run_entries(journal: Journal) -> list[dict[str, Any]]:
    """The decisions of a journal, oldest first, each with the fields that `_entry` writes; others are refused."""
    entries = journal.entries()
    for number, entry in enumerate(entries, start=1):
        place = f"{journal.path}, line {number}"
        found = describe_value(entry.get("schema"))
        expect(entry.get("schema") == SCHEMA, place, f"an entry of {SCHEMA}", found)
        for path, kind in _ENTRY.items():
            value: Any = entry
            for key in path.split("."):
                value = value.get(key, _ABSENT) if isinstance(value, dict) else _ABSENT
            fits = _is_weights(value) if kind is _WEIGHTS else isinstance(value, kind) and not isinstance(value, bool)
            fits = fits and (not isinstance(value, int) or abs(value) <= sys.float_info.max)  # others overflow later
            expect(fits, f"{place}, {path}", _KINDS[kind], describe_value(value))
        date, data = entry["date"], entry["data"]
        dated = date == data["last"] and re.fullmatch(r"[\w:.+-]+", date)  # which names a decision file, too
        expect(dated, place, "the date of its last row", describe_value(date))
        same = list(entry["weights"]) == list(entry["previous"])
        expect(same and data["rows"] > 0, place, "weights before and after a number of rows", "others")
    return entries


def _is_weights(value: Any) -> bool:
    """Whether a value of JSON is weights by asset, of a size that can be reckoned with."""
    return isinstance(value, dict) and all(
        type(one) in (int, float) and abs(one) <= _LARGEST_WEIGHT for one in value.values()
    )


def _model(config: PortfolioConfig) -> str:
    """A bundled name, or a folder relative to the configuration."""
    return str(config.folder / config.model) if (config.folder / config.model).is_dir() else config.model


def _terms_of(config: PortfolioConfig, table: pd.DataFrame) -> dict[str, Any]:
    """γ, λ, cost, constraints and benchmark of a configuration, for the assets of a table."""
    names = [str(column) for column in table.columns]
    limits, reference = config.path("constraints"), config.path("benchmark")
    return {
        "turnover_l1": float(config.turnover),
        "risk_aversion": float(config.risk_aversion),
        "cost_bps": float(config.cost),
        "min_trade": float(config.min_trade),
        "delay": config.delay,
        "frequency": frequency_of(table.index, config.periods_per_year or None),
        "constraints": None if limits is None else read_constraints(limits, names),
        "benchmark": None
        if reference is None
        else validate_any_weights("benchmark", read_weights(reference), len(names), names),
    }


def run_terms_from_entry(entry: dict[str, Any], assets: list[str]) -> dict[str, Any]:
    """The same from an entry of the journal."""
    found = {key: entry["terms"][key] for key in ("turnover_l1", "risk_aversion", "cost_bps")}
    validate_turnover(found["turnover_l1"])
    validate_risk_aversion(found["risk_aversion"])
    validate_cost(found["cost_bps"])
    least = entry["terms"].get("min_trade", 0.0)  # journals of before have none
    found["min_trade"] = validate_positive("min_trade", least, allow_zero=True, most=1)
    found["delay"] = entry_delay(entry)
    rules, reference = entry["terms"]["constraints"], entry["terms"]["benchmark"]
    year, period = entry["terms"].get("periods_per_year", YEAR), entry["terms"].get("period", "day")
    try:
        known = year is None or validate_positive("periods_per_year", year)
        found["frequency"] = Frequency(known if year is not None else None, str(period))
        found["constraints"] = None if rules is None else constraints_from_json(rules, assets)
        benchmark = None if reference is None else np.array(reference, dtype=float)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"journal: expected the terms of a decision on {entry['date']}, found {error!r}") from None
    found["benchmark"] = None if benchmark is None else validate_any_weights("benchmark", benchmark, len(assets))
    return found


def decide_run(
    policy: MarketPolicy, returns: np.ndarray, previous: np.ndarray | None, terms: dict[str, Any]
) -> MarketDecision:
    """The decision after rows (time, m)."""
    numbers = terms["turnover_l1"], terms["risk_aversion"], terms["cost_bps"]
    others = {key: terms[key] for key in ("constraints", "benchmark", "min_trade", "delay")}
    others["periods_per_year"] = terms["frequency"].assumed
    return decide_market(policy, returns, previous, *numbers, **others)


def _decide(
    origin: DecisionOrigin, previous: np.ndarray | None, terms: dict[str, Any], accept: tuple[str, ...]
) -> MarketDecision:
    made = decide_run(origin.policy, origin.table.to_numpy(), previous, terms)
    return checked_result(with_origin(made, origin), accept)


def _seen_before(path: Path, table: pd.DataFrame, tolerance: float, tell: Callable[[str], None]) -> pd.DataFrame:
    """The rows of the state, which the table must begin with; none where there is no state."""
    if os.path.exists(path):
        try:
            seen = load_seen_rows(path)
        except InputError as error:
            tell(f"{path.name} is not used ({error})")
        else:
            _match_past(seen, table, tolerance)
            return seen
    return table.iloc[:0]


def _match_past(seen: pd.DataFrame, table: pd.DataFrame, tolerance: float) -> None:
    """Raise unless the table begins with the rows that were seen."""
    names = [str(column) for column in table.columns]
    same = list(seen.columns) == names
    other = sorted(set(seen.columns) ^ set(names))
    expect(same, "table", "the assets of the days before", f"others: {', '.join(other[:5]) or 'another order'}")
    expect(len(table) >= len(seen), "table", f"at least the {len(seen)} rows seen before", len(table))
    dates = label_texts(table.index)[: len(seen)]
    wrong = next((i for i, (a, b) in enumerate(zip(dates, seen.index, strict=True)) if a != b), None)
    if wrong is not None:
        raise InputError(f"table: expected row {wrong + 1} of {seen.index[wrong]} as seen before, found {dates[wrong]}")
    now, before = table.to_numpy()[: len(seen)], seen.to_numpy()
    missing = np.isnan(now) != np.isnan(before)
    off = missing | (np.abs(np.nan_to_num(now) - np.nan_to_num(before)) > tolerance)
    if off.any():
        row, column = map(int, np.argwhere(off)[0])
        place = f"the return of {names[column]} on {dates[row]}"
        found = f"{now[row, column]:.10g} ({int(off.sum())} differ)"
        raise InputError(f"table: expected {place} as seen before, {before[row, column]:.10g}, found {found}")


def _match_journal(entry: dict[str, Any], table: pd.DataFrame, exactly: bool) -> None:
    """Raise unless the table begins with the rows of the last decision."""
    data, names = entry["data"], [str(column) for column in table.columns]
    expect(list(entry["weights"]) == names, "table", "the assets of the journal in their order", "others")
    expect(len(table) >= data["rows"], "table", f"at least the {data['rows']} rows of the last decision", len(table))
    found = data_fingerprint(table.iloc[: data["rows"]])
    keys = ("last", "dates_sha256", "sha256") if exactly else ("last", "dates_sha256")
    same = all(found[key] == data[key] for key in keys)
    expect(same, "table", f"the rows up to {data['last']} that the journal has seen", "others")


def _match_state(entries: list[dict[str, Any]], seen: pd.DataFrame, name: str, config: PortfolioConfig) -> None:
    """Raise if the state has read rows after the last entry: entries are written before it, so one is lost."""
    lost = f"the entry of {seen.index[-1]}, which {name} has read" if len(seen) else ""
    last = f"{entries[-1]['date']} as the last" if entries else "none"
    found = f"{last} (lines were lost: restore the journal, or move {name} away to decide again without them)"
    expect(len(seen) <= entry_rows(entries), config.journal, lost, found)


def _match_decisions(entries: list[dict[str, Any]], table: pd.DataFrame, config: PortfolioConfig) -> None:
    """Raise if a date between the last entry and the last row has a decision file; `_write_new` looks at the last.

    Names to be written to must be free or those of files: later, a decision would have been made.
    """
    folder = config.path("decisions")
    if folder is None or not os.path.isdir(folder):
        return
    for date in (*(entry["date"] for entry in entries[-_MOST_MADE_AGAIN:]), label_texts(table.index)[-1]):
        expect_regular("decisions", folder / _file_name(date))
    there = {path.name for path in folder.iterdir()}
    names = [_file_name(date) for date in label_texts(table.index)[entry_rows(entries) : -1]]
    _expect_no_lost_line(next((name for name in names if name in there), None), config)


def _expect_no_lost_line(name: str | None, config: PortfolioConfig) -> None:
    """Raise if there is a decision file that the journal has no line of."""
    found = "none (its line was lost: restore it, or move the file away to decide again)"
    expect(name is None, config.journal, f"the entry of the decision file {name}", found)


def _write_new(document: dict[str, Any], config: PortfolioConfig) -> None:
    """Write the decision file of today, before the journal has its line: a file that cannot be written is no decision.

    One that is there already must say the same, as that of a run that was killed in between does.
    """
    text, folder = encode_decision(document), config.path("decisions")  # what cannot be encoded is refused
    if folder is None:
        return
    path = folder / _file_name(document["date"])
    if os.path.isfile(path) and os.path.getsize(path) > 0 and _says(path) != _says(text):
        _expect_no_lost_line(path.name, config)
    folder.mkdir(parents=True, exist_ok=True)
    write_decision(document, path)


def _says(decision: str | Path) -> dict[str, Any] | None:
    """What a decision file says, or its text, but for the time at which it was made; None if it is none."""
    try:
        content = read_decision(decision) if isinstance(decision, Path) else json.loads(decision)
    except InputError:
        return None
    return {key: value for key, value in content.items() if key not in ("made", "checksum")}


def _file_name(date: str) -> str:
    """Of the decision file of a date."""
    return f"{date.replace(':', '')}.json"


def _save_seen(path: Path, table: pd.DataFrame, seen: pd.DataFrame, tell: Callable[[str], None]) -> list[str]:
    """Write the rows if there are new ones; the name of the file if it could not be written."""
    if len(table) == len(seen):
        return []
    labels = label_texts(table.index)
    new = table.iloc[len(seen) :].set_axis(labels[len(seen) :])
    try:
        save_seen_rows(path, pd.concat([seen, new]) if len(seen) else new)
    except OSError as error:
        tell(f"{path.name} could not be written ({error.strerror or error}); the next run goes by the journal alone")
        return [path.name]
    return []


def _entry(
    decision: MarketDecision,
    network: Time2Decide,
    source: str,
    rows: int,
    terms: dict[str, Any],
    orders: Orders | None,
) -> dict[str, Any]:
    """What the journal says of a decision."""
    assert decision.origin is not None
    names, data = decision.origin.assets, data_fingerprint(decision.origin.table)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "date": data["last"],
        "rows_read": rows,
        "data": data,
        "model": {"name": network.name, "fingerprint": network.policy.fingerprint},
        "holdings": source,
        "previous": numbers_by_asset(names, decision.previous),
        "weights": numbers_by_asset(names, decision.weights),
        "turnover": decision.turnover,
        "cost": decision.turnover * decision.cost_bps / 1e4,
        "gap": float(decision.solution.gap),
        "verdict": decision.verdict.text,
        "terms": _stated(terms, len(names)),
        "findings": [one.to_json() for one in decision.findings],
        **({} if orders is None else {"orders": orders.to_json(names)}),
    }


def _stated(terms: dict[str, Any], assets: int) -> dict[str, Any]:
    """Terms as the journal states them."""
    rules, reference = terms["constraints"], terms["benchmark"]
    return {
        **{key: terms[key] for key in ("turnover_l1", "risk_aversion", "cost_bps", "min_trade", "delay")},
        "periods_per_year": terms["frequency"].per_year,
        "period": terms["frequency"].period,
        "constraints": None if rules is None else constraints_to_json(rules, assets),
        "benchmark": None if reference is None else reference.tolist(),
    }


def _write_missing(
    entries: list[dict[str, Any]],
    network: Time2Decide,
    table: pd.DataFrame,
    config: PortfolioConfig,
    tell: Callable[[str], None],
) -> list[str]:
    """Make the decision files of the last entries that have none again; the names of those that could not be written.

    `run` writes a file before its line: one that is missing was removed since.
    """
    folder = config.path("decisions")
    if folder is None:
        return []
    unwritten: list[str] = []
    for entry in entries[-_MOST_MADE_AGAIN:]:
        path = folder / _file_name(entry["date"])
        if os.path.isfile(path) and os.path.getsize(path) > 0:  # of os.path: a name no file can have is none
            continue
        made = _document_again(entry, network, table, config)
        if made is None:
            tell(f"{path.name} is missing and cannot be made again: the model or the past has changed since")
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_decision(made, path)
        except OSError as error:
            unwritten.append(path.name)
            tell(f"{path.name} could not be written ({error.strerror or error}); the next run makes it")
        else:
            tell(f"{path.name} was missing and is made again")
    return unwritten


def _about(config: PortfolioConfig) -> dict[str, str]:
    """What a decision file says of the table beyond its fingerprint."""
    return {"source": Path(config.table).name, **({"values": config.values} if config.values else {})}


def _document_again(
    entry: dict[str, Any], network: Time2Decide, table: pd.DataFrame, config: PortfolioConfig
) -> dict[str, Any] | None:
    """The decision file of an entry; None if it would be another one now."""
    past, names = table.iloc[: int(entry["data"]["rows"])], [str(column) for column in table.columns]
    if entry["model"]["fingerprint"] != network.policy.fingerprint or list(entry["weights"]) != names:
        return None
    before = np.array([entry["previous"][name] for name in names], dtype=float)
    terms = run_terms_from_entry(entry, names)
    findings = tuple(map(Finding.from_json, entry.get("findings", [])))  # journals of before have none
    when = terms["delay"], terms["frequency"]
    origin = DecisionOrigin(past, network.policy, network.name, config.gaps, *when, findings)
    made = _decide(origin, before, terms, tuple(REMEDIES))
    off = np.abs(made.weights - [entry["weights"][name] for name in names]).max()
    return decision_document(made, _orders_again(entry, made, names), **_about(config)) if off <= _EQUAL else None


def _orders_again(entry: dict[str, Any], made: MarketDecision, names: list[str]) -> Orders | None:
    """The orders of an entry, if it has any."""
    said = entry.get("orders")
    if said is None:
        return None
    try:
        prices = np.array([said["price"][name] for name in names], dtype=float)  # null becomes NaN
        terms = said["value"], made.cost_bps, str(said["at"]), made.constraints
        return whole_shares(made.previous, made.weights, prices, *terms)
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"journal: expected the orders of {entry['date']}, found {error!r}") from None
