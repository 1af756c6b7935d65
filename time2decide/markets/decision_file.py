"""The decision file: one rebalancing with everything that it takes to check it later, and the checks.

A file holds the weights, the problem that they solve, the prices that prove it, and fingerprints of the data and of the
model. `verify_decision` needs the file and the table of returns; it does not load the model, and it solves nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from time2decide import __version__
from time2decide.core.files import validate_input_file, validate_path, write_text
from time2decide.core.provenance import array_digest, json_digest, text_digest
from time2decide.core.validation import InputError, describe_value, distinct_keys, expect, printable
from time2decide.markets.orders import TABLE_PRICES, whole_shares
from time2decide.markets.policy_config import NAMED, policy_fingerprint
from time2decide.markets.stated_problem import (
    FEASIBLE,
    MOST_GAP,
    OPTIMAL,
    Prices,
    StatedProblem,
    centred_reasons,
    number_from_json,
)
from time2decide.markets.table_files import SourceTable
from time2decide.markets.tables import Source, begins_with_days, last_prices, load_market
from time2decide.markets.universe import Availability
from time2decide.markets.verdict import Verdict

SCHEMA = "time2decide/decision/1"
_ROUNDING = 1e-12  # of sums
_REASON = 1e-9  # of reasons, relative to their size
_ROUNDED = 2e-6  # of current weights, which come from files and other programs
_MOST_MEGABYTES = 1024
_UNJUDGED = "cannot be judged: it needs the returns of the decision, and these are others"
_CHECKSUM = "checksum"
_ARCHITECTURE = "MarketPolicy"
_FIELDS = {
    "schema": str, "version": str, "date": str, "data": dict, "model": dict, "assets": list, "weights": dict,
    "previous": dict, "trades": dict, "turnover": float, "cost": float, "constraints": list, "verdict": str,
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One check: passed, failed, or None where the file does not state what it is about."""

    name: str
    passed: bool | None
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))  # it may quote the file, which may be anybody's

    def __str__(self) -> str:
        word = {True: "ok", False: "FAILED", None: "–"}[self.passed]
        return f"{word:<7} {self.name:<9} {self.text}"


@dataclass(frozen=True)
class Verification:
    """All checks of a decision file."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed is not False for check in self.checks)

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))


def label_texts(index: pd.Index) -> list[str]:
    """Dates as ISO text, without the time in tables of days; times of a time zone in UTC; other labels as text.

    The text of a row must not depend on later rows. So the first two say what a table is (`begins_with_days`), and not
    all, as later ones may have a time of day; and an offset, which may be that of summer or of winter, is not shown.
    """
    if not isinstance(index, pd.DatetimeIndex):
        return [str(label) for label in index]
    midnight = np.asarray(index == index.normalize()) & begins_with_days(index)
    times = index if index.tz is None else index.tz_convert("UTC")
    texts = [str(text) for text in index.strftime("%Y-%m-%d")]
    for row in np.flatnonzero(~midnight):
        texts[row] = times[row].isoformat()
    return texts


def data_fingerprint(table: pd.DataFrame) -> dict[str, Any]:
    """Shape, first and last date, and SHA-256 of returns, dates and names of a table of returns."""
    labels = label_texts(table.index)
    return {
        "rows": len(table),
        "assets": table.shape[1],
        "first": labels[0],
        "last": labels[-1],
        "sha256": array_digest(table.to_numpy()),
        "dates_sha256": text_digest(labels),
        "names_sha256": text_digest(map(str, table.columns)),
    }


def seal_decision(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the checksum of everything else in it."""
    content = {key: value for key, value in document.items() if key != _CHECKSUM}
    return {**content, _CHECKSUM: json_digest(content, 64)}


def write_decision(document: Mapping[str, Any], path: str | Path) -> Path:
    """Write a decision file, whole or not at all."""
    path = Path(path)
    fits = path.suffix.lower() == ".json" and path.parent.is_dir()
    expect(fits, "out", "a name ending in .json in an existing folder", path)
    write_text(path, encode_decision(document))
    return path


def encode_decision(document: Mapping[str, Any]) -> str:
    """The text of a decision file; a number that is not finite is an `InputError`."""
    try:
        lines = [
            f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}"
            for key, value in seal_decision(document).items()
        ]
    except ValueError:
        raise InputError("decision: expected finite numbers, found others: the data are too large") from None
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_decision(path: str | Path) -> dict[str, Any]:
    """The content of a decision file whose checksum is right; anything else is an `InputError`."""
    path = Path(path)
    validate_input_file(path, megabytes=_MOST_MEGABYTES)
    try:
        text = path.read_text(encoding="utf-8")
        hooks: dict[str, Any] = {"parse_constant": _no_constant, "parse_float": _finite_float}
        found = json.loads(text, object_pairs_hook=distinct_keys, **hooks)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name}: expected a decision file in JSON, found {_short(error)}") from None
    expect(isinstance(found, dict), path.name, "a JSON object", type(found).__name__)
    expect(found.get("schema") == SCHEMA, path.name, f"the schema {SCHEMA}", describe_value(found.get("schema")))
    whole = found.get(_CHECKSUM) == seal_decision(found)[_CHECKSUM]
    expect(whole, path.name, "the checksum of its content", "another: the file was changed after it was written")
    for name, kind in _FIELDS.items():
        right = isinstance(found.get(name), (int, float) if kind is float else kind)
        expect(right, path.name, f"{name} as {kind.__name__}", describe_value(found.get(name)))
    return found


def verify_decision(path: str | Path, returns: Source | np.ndarray, values: str | None = None) -> Verification:
    """Check a decision file against the table that it was made from.

    Parameters
    ----------
    path : of the file that `decide --out decision.json` or `Decision.save` wrote
    returns : path of the table, a DataFrame of returns or prices, an array of returns (time, assets), or "sp500"
        Rows after the decision are allowed, and not looked at.
    values : "prices" or "returns", what the table holds; as in the table of the decision, or guessed, unless given

    Returns
    -------
    Verification
        One check each: the file is intact, made from these returns, its trades are weights − previous, its date,
        budget and cost are those of the problem, assets that could not be traded were not, every constraint is the
        problem's and holds within 1e-9, and the weights are optimal for the problem: the duality gap from the stated
        prices is at most 1e-9 of the size of the data and 1e-9 of wealth a period. No solver is asked. Orders, if
        any, follow from weights, value and prices. The verdict is that of the stated records of forecasts, the reasons
        are those of the problem. Of a bundled model the fingerprint is compared; that a model posed
        the problem is not proved. Where the table is not that of the decision, what needs it cannot be judged.
    """
    path = validate_path("path", path)
    try:
        document = read_decision(path)
    except InputError as error:
        if not path.is_file():
            raise
        return Verification((Check("file", False, str(error)),))
    made = f"{SCHEMA}, time2decide {document['version']}, checksum {str(document[_CHECKSUM])[:12]}"
    checks = [Check("file", True, f"intact: {made}")]
    table, values = _table(document, returns, values)
    try:
        with np.errstate(all="ignore"):  # numbers of any size may be stated; what is not finite passes no check
            checks += _checks(document, table)
            if "orders" in document:
                comparable = values == "prices" and checks[1].passed
                checks.append(_check_orders(document, returns if comparable else None))
            checks.append(_check_model(document))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        # sealed, but not by us
        checks.append(Check("content", False, f"expected what time2decide writes, found {_short(error)}"))
    return Verification(tuple(checks))


def _checks(document: dict[str, Any], table: pd.DataFrame) -> Iterator[Check]:
    assets = [str(name) for name in document["assets"]]
    weights, previous, trades = (_vector(document, name, assets) for name in ("weights", "previous", "trades"))
    data, rows = _check_data(document["data"], assets, table)
    yield data
    yield _check_trades(document, weights, previous, trades)
    whole = rows is not None and bool(np.isfinite(rows).all())
    if whole and any((document.get("gaps") or {}).values()):
        yield Check("gaps", False, "assets are called halted, young or delisted, and the table has no gaps")
    if document.get("problem") is None:
        yield Check("optimal", False, "expected the problem that was solved, found none")
        return
    problem = StatedProblem.from_json(document["problem"], assets)
    yield _check_terms(document, problem)
    if rows is None:
        yield Check("start", None, _UNJUDGED)
    elif not whole:
        yield _check_gaps(document, rows, weights, previous, problem)
    else:
        far = float(np.abs(problem.start - previous).max())
        yield Check("start", far <= _ROUNDED, f"the problem starts from the current weights (to {far:.0e})")
    said = document["optimality"]["prices"]
    limits = [number_from_json(said["limits"][one.name]) for one in problem.constraints.limits]
    prices = Prices(number_from_json(said["turnover"]), number_from_json(said["exposure"]), np.array(limits))
    proof = problem.proof(weights, prices, assets, previous)
    yield _check_feasible(document, problem, weights, assets, proof)
    yield _check_optimal(document, problem, proof, problem.rounding(weights, prices))
    yield _check_verdict(document)
    if rows is None and document.get("gaps"):
        yield Check("reasons", None, _UNJUDGED)
        return
    known = None if rows is None or whole else Availability.of(rows, previous).known
    yield _check_reasons(document, problem, weights, assets, known)


def _table(document: dict[str, Any], returns: Source | np.ndarray, values: str | None) -> tuple[pd.DataFrame, str]:
    """The table as the decision read it, and what its cells are: prices or returns."""
    if isinstance(returns, np.ndarray):
        return load_market(pd.DataFrame(returns), "returns", gaps="keep")
    told = document["data"].get("values") if isinstance(returns, (str, Path, SourceTable)) else None
    told = values or (told if told in ("prices", "returns") else None)
    return load_market(returns, told, most_gap=math.inf, gaps="keep")


def _check_data(data: dict[str, Any], assets: list[str], table: pd.DataFrame) -> tuple[Check, np.ndarray | None]:
    """Whether the first rows of the table are those that the decision was made from, and these rows."""
    count, name = data.get("rows"), "data"
    if list(map(str, table.columns)) != assets:
        other = sorted(set(assets) ^ set(map(str, table.columns)))
        found = f"others ({', '.join(other[:5])})" if other else "another order"
        return Check(name, False, f"expected the {len(assets)} assets of the decision, found {found}"), None
    if type(count) is not int or not 0 < count <= len(table):
        return Check(name, False, f"expected at least {describe_value(count)} rows, found {len(table)}"), None
    found_data, stated = data_fingerprint(table.iloc[:count]), dict(data)
    for key, meaning in (
        ("last", "last date"),
        ("first", "first date"),
        ("dates_sha256", "dates"),
        ("sha256", "returns"),
        ("assets", "number of assets"),
        ("names_sha256", "names"),
    ):
        if found_data[key] != stated.get(key):
            text = f"{describe_value(stated.get(key))} and {found_data[key]!r}"
            return Check(name, False, f"the {meaning} of the table differ from those of the decision: {text}"), None
    later = f", {len(table) - count} later rows not looked at" if len(table) > count else ""
    span = f"{count} rows of {len(assets)} assets, {found_data['first']} to {found_data['last']}"
    text = f"made from these returns: {span}, sha256 {found_data['sha256'][:12]}{later}"
    return Check(name, True, text), table.to_numpy()[:count]


def _check_trades(document: dict[str, Any], weights: np.ndarray, previous: np.ndarray, trades: np.ndarray) -> Check:
    off = float(np.abs(weights - previous - trades).max())
    turnover, cost = float(np.abs(trades).sum()), number_from_json(document["cost"])
    wrong = max(off, abs(turnover - number_from_json(document["turnover"])))
    charged = abs(turnover * number_from_json(document["cost_bps"]) / 1e4 - cost)
    text = f"weights − previous to {wrong:.0e}; turnover {turnover:.4f}, cost {1e4 * cost:.2f} bp"
    return Check("trades", max(wrong, charged) <= _ROUNDING, text)


def _check_terms(document: dict[str, Any], problem: StatedProblem) -> Check:
    """Whether date, turnover budget and cost are those of the data and of the problem."""
    date, last = document["date"], document["data"].get("last")
    budget, cost_bps = number_from_json(document["turnover_l1"]), number_from_json(document["cost_bps"])
    if not 0 <= budget <= 2 or cost_bps < 0:
        return Check(
            "terms", False, f"a turnover budget of {budget:g}, in [0, 2], and a cost of {cost_bps:g} are stated"
        )
    daily = cost_bps / 1e4 / number_from_json(document["days"])
    pairs = {"date": (date, last), "turnover budget": (budget, problem.turnover_l1)}
    pairs["cost a period"] = problem.cost if abs(daily - problem.cost) <= _ROUNDING else daily, problem.cost
    for name, (stated, found) in pairs.items():
        if stated != found:
            return Check("terms", False, f"the {name} that is stated is {stated}, that of the problem {found}")
    return Check("terms", True, f"{', '.join(pairs)} are those of the problem")


def _check_gaps(
    document: dict[str, Any], rows: np.ndarray, weights: np.ndarray, previous: np.ndarray, problem: StatedProblem
) -> Check:
    """Whether assets were kept, and not bought, as the gaps of the table ask for, and are named so."""
    can = Availability.of(rows, previous)
    if document["data"].get("gaps") != "keep":
        return Check("gaps", False, "the table has gaps, and the file says that they were refused")
    if document.get("gaps") != can.describe(list(map(str, document["assets"]))):
        return Check("gaps", False, "the assets that are called halted, young or delisted are not those of the table")
    kept = float(np.abs(weights - problem.start)[can.fixed].max(initial=0.0))
    bought = np.maximum(np.abs(weights) - np.abs(problem.start), -weights * problem.start)[can.young]
    kept, far = max(kept, float(bought.max(initial=0.0))), float(np.abs(problem.start - previous).max())
    kinds = {"halted, kept": can.halted, "young, not bought": can.young, "delisted, kept": can.delisted}
    counts = "; ".join(f"{int(mask.sum())} {kind}" for kind, mask in kinds.items() if mask.any())
    text = f"{counts or 'every asset can be traded'} (to {max(kept, far):.0e})"
    return Check("gaps", kept <= FEASIBLE and far <= _ROUNDED, text)


def _check_feasible(
    document: dict[str, Any], problem: StatedProblem, weights: np.ndarray, assets: list[str], proof: dict[str, Any]
) -> Check:
    rows, name = problem.rows(weights, assets), "feasible"
    broken = [row for row in rows if not row.slack >= -FEASIBLE * row.size]  # also where it is no number
    if broken:
        worst = min(broken, key=lambda row: row.slack / row.size)
        return Check(name, False, f"{worst.name} is {worst.value:.9g}, allowed {worst.low:g} to {worst.high:g}")
    if len(document["constraints"]) != len(rows):
        return Check(name, False, f"{len(document['constraints'])} constraints are stated, the problem has {len(rows)}")
    for row, stated, found in zip(rows, document["constraints"], proof["constraints"], strict=True):
        wrong = next((key for key in found if not _same(stated[key], found[key], FEASIBLE * max(row.size, 1.0))), None)
        if wrong is not None:
            text = f"{row.name}: the {wrong} that is stated is {stated[wrong]}, that of the problem {found[wrong]}"
            return Check(name, False, text)
    active = sum(row.slack <= FEASIBLE * row.size for row in rows)
    return Check(name, True, f"{len(rows)} constraints hold within {FEASIBLE:g}, {active} are active")


def _same(stated: Any, found: Any, tolerance: float) -> bool:
    """Whether a stated value is the one found: numbers up to rounding, everything else exactly."""
    if isinstance(found, float) and isinstance(stated, (int, float)) and not isinstance(stated, bool):
        return abs(stated - found) <= tolerance
    return bool(stated == found)


def _check_optimal(document: dict[str, Any], problem: StatedProblem, proof: dict[str, Any], rounding: float) -> Check:
    gap, allowed = proof["optimality"]["gap"], problem.allowed_gap
    if problem.convexity > allowed:
        return Check("optimal", False, "the covariance has a negative eigenvalue: nothing can be proved")
    if not rounding <= allowed:
        return Check("optimal", False, f"numbers so large that rounding ({rounding:.0e}) hides what is to be proved")
    said, found = document["optimality"], proof["optimality"]
    pairs = [(key, said[key], found[key]) for key in ("gap", "utility", "relative_gap")]
    pairs += [(f"gain ({key})", said["gain"][key], found["gain"][key]) for key in found["gain"] if "gain" in said]
    for key, stated, right in pairs:
        if not _same(stated, right, OPTIMAL if key == "relative_gap" else allowed):
            return Check("optimal", False, f"the {key} that is stated is {stated}, found {right}")
    text = f"no feasible portfolio is better by more than {1e4 * gap:.1e} bp a period"
    limit = f"{OPTIMAL:g} of the data's size" if allowed < MOST_GAP else f"{MOST_GAP:g} a period"
    return Check("optimal", bool(gap <= allowed), f"{text} (at most {1e4 * allowed:.1e}: {limit})")


def _check_verdict(document: dict[str, Any]) -> Check:
    """Whether the sentence, and the intervals, are those of the stated records of the forecasts."""
    cost, period = number_from_json(document["cost_bps"]), str(document.get("period", "day"))
    found = Verdict.from_json(document["records"], document["prior"], cost, period).to_json()
    if found["records"] != document["records"] or found["prior"] != document["prior"]:
        return Check("verdict", False, "the records of the forecasts do not agree with themselves")
    if found["verdict"] != document["verdict"]:
        return Check("verdict", False, f"the records of the forecasts say: {found['verdict']}")
    return Check("verdict", True, f"that of the {len(found['records'])} records of forecasts, which are not proved")


def _check_reasons(
    document: dict[str, Any], problem: StatedProblem, weights: np.ndarray, assets: list[str], known: np.ndarray | None
) -> Check:
    """Whether the reasons are those of the problem, and the weights without forecasts are allowed by it.

    Prior and forecast are checked as their sum, the mean of the problem: what is whose only the model says.
    """
    stated = {part: _vector(document["reasons_bps"], part, assets) for part in document["reasons_bps"]}
    if set(stated) != {"prior", "forecast", "risk"}:
        return Check("reasons", False, f"expected prior, forecast and risk, found {', '.join(stated)[:60]}")
    active = weights if problem.benchmark is None else weights - problem.benchmark
    parts = {"mean": problem.mean, "risk": -2 * problem.risk_aversion * problem.covariance @ active}
    found = centred_reasons(parts, weights, problem.constraints, known)
    size = 1e4 * max(float(np.abs(part).max()) for part in parts.values())
    for name, said in (("risk", stated["risk"]), ("mean", stated["prior"] + stated["forecast"])):
        off = float(np.abs(said - found[name]).max())
        if not off <= _REASON * size:
            return Check("reasons", False, f"the part of the {name} differs from that of the problem by {off:.1e} bp")
    spreads = [float(stated[part][slice(None) if known is None else known].std()) for part in ("prior", "forecast")]
    if (spreads[0] > spreads[1]) != document["prior"]["leads"] and abs(spreads[0] - spreads[1]) > _REASON * size:
        return Check("reasons", False, "whether the prior weighs more than the forecasts is not what the parts say")
    without = problem.rows(_vector(document, "without_forecasts", assets), assets)
    broken = next((row for row in without if not row.slack >= -FEASIBLE * row.size), None)
    if broken is not None:
        return Check("reasons", False, f"{broken.name} is {broken.value:.9g} without forecasts, which is not allowed")
    return Check("reasons", True, "risk and mean are those of the problem; what of the mean is forecast is not proved")


def _check_orders(document: dict[str, Any], prices: str | Path | pd.DataFrame | np.ndarray | None) -> Check:
    """Whether orders in whole shares follow from weights, value and prices, and these are the table's, if they say so.

    `prices` is the table of prices; None where returns are given.
    """
    stated, assets = document["orders"], [str(name) for name in document["assets"]]
    weights, previous = (_vector(document, name, assets) for name in ("weights", "previous"))
    expect(list(stated["price"]) == assets, "orders", "a price or null for each asset", "others")
    quoted = np.array([np.nan if one is None else number_from_json(one) for one in stated["price"].values()])
    value, cost_bps, at = number_from_json(stated["value"]), number_from_json(document["cost_bps"]), str(stated["at"])
    rules = StatedProblem.from_json(document["problem"], assets).constraints
    found = whole_shares(previous, weights, quoted, value, cost_bps, at, rules).to_json(assets)
    expect(set(stated) == set(found), "orders", ", ".join(found), f"{len(stated)} others")
    for key, right in found.items():
        named = not isinstance(right, dict) or (isinstance(stated[key], dict) and list(stated[key]) == assets)
        expect(named, "orders", f"the {key} of each asset", "others")
        pairs = [(stated[key], right)] if not isinstance(right, dict) else [(stated[key][a], right[a]) for a in assets]
        tolerance = 0.0 if key in ("shares", "price", "value") else FEASIBLE * (1 if key[:7] == "largest" else value)
        wrong = next((pair for pair in pairs if not _same(*pair, tolerance)), None)
        if wrong is not None:
            return Check("orders", False, f"the {key} that is stated is {wrong[0]}, that of the weights {wrong[1]}")
    count = sum(shares != 0 for shares in stated["shares"].values())
    text = f"{count} orders in whole shares follow from weights, a value of {value:,.2f} and prices"
    if at != TABLE_PRICES or prices is None or isinstance(prices, np.ndarray):
        return Check("orders", True, f"{text}; the prices ({at}) are not checked")
    last = last_prices(prices, int(document["data"]["rows"]) + 1)
    same = np.array_equal(last["price"].where(last["current"]).to_numpy(dtype=float), quoted, equal_nan=True)
    return Check("orders", same, f"{text}, {'those' if same else 'which are not those'} of the table's last row")


def _check_model(document: dict[str, Any]) -> Check:
    """Whether a named policy is the one of this version; the name of any other is free text."""
    model = {key: document["model"].get(key) for key in ("name", "architecture", "fingerprint")}
    missing = next((key for key, text in model.items() if not isinstance(text, str) or not text), None)
    if missing is not None or model["architecture"] != _ARCHITECTURE:
        key = missing or "architecture"
        return Check("model", False, f"expected the {key} of a model, found {describe_value(model[key])}")
    name, _, stated = model.values()
    said = f"{name}, fingerprint {stated[:12]}"
    if name not in NAMED:
        return Check("model", None, f"{said}: not a policy of this package, and its name is not proved")
    fingerprint = policy_fingerprint(NAMED[name])
    other = f"the {name} of version {__version__} has the fingerprint {fingerprint[:12]}"
    if stated != fingerprint and document["version"] == __version__:
        return Check("model", False, f"stated is {said}; {other}")
    if stated != fingerprint:
        return Check("model", None, f"{said}, of version {document['version']}: not compared, as {other}")
    return Check("model", True, f"{said}: that of the bundled one; that it posed this problem is not proved")


def _vector(document: dict[str, Any], name: str, assets: list[str]) -> np.ndarray:
    found = document[name]
    expect(list(found) == assets, name, "a number for each asset in their order", f"{len(found)} others")
    return np.array([number_from_json(found[asset]) for asset in assets])


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite_float(text: str) -> float:
    number = float(text)
    expect(math.isfinite(number), "a number", "one that fits in float64", text[:40])
    return number


def _short(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]
