"""Every field of a decision file, changed or taken away and sealed again: verify notices it, or says it is unproved."""

import json

import numpy as np
import pandas as pd
import pytest

from time2decide import Time2Decide, load_returns
from time2decide.markets import Constraints, Limit, whole_shares
from time2decide.markets.decision_file import seal_decision, verify_decision

NAMES = list("ABCDEF")
RULES = Constraints(
    upper=0.5, cash=(0.0, 0.2), limits=(Limit("x", np.array([1.0, 1, 0, 0, 0, 1]), 0.0, 0.6),), assets=tuple(NAMES)
)
#: What nobody can prove from the file and the table, and why it may stand.
UNPROVED = {
    "version",  # decides whether a bundled model is compared; the line of the model says so
    "made",  # a time of day
    "data.source",  # the name of a file
    "data.values",  # of a DataFrame: what its cells are is seen
    "delay",  # when the weights are traded, and how often the table has rows: what is said of the future
    "periods_per_year",
    "period",
    *("findings", "findings.name", "findings.severity", "findings.where", "findings.evidence", "findings.remedy"),
    "model.name",  # another name than a bundled one: the line of the model says that it is not proved
    "orders",  # a file may have none
    "orders.value",  # a little more or less gives the same orders
    "orders.at",  # where prices come from: the line of the orders says that they are not checked
    "optimality.gain",  # a file may have none
    "problem.cash_return",  # a lower one, where no cash is held: that the model posed the problem is not proved
    "checksum",  # is made anew
}
#: What only the model can say, and what is said of it instead: the verdict follows from the records, the split of the
#: mean from prior and forecast adds up, the weights without forecasts are allowed.
OF_THE_MODEL = ("records", "without_forecasts")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A decision file with everything in it, and its prices: constraints, a benchmark, gaps, orders."""
    rng = np.random.default_rng(3)
    array = 0.006 * rng.normal(size=(300, 1)) + 0.01 * rng.normal(size=(300, 6)) * np.linspace(0.5, 2, 6)
    prices = 50 * (1 + pd.DataFrame(array, pd.bdate_range("2022-01-03", periods=300, name="date"), NAMES)).cumprod()
    prices.iloc[-25:, 4] = np.nan  # delisted
    prices.iloc[-1, 5] = np.nan  # halted
    returns, before = load_returns(prices, "prices", gaps="keep"), pd.Series([0.3, 0.2, 0.1, 0.1, 0.2, 0.1], NAMES)
    terms = {"constraints": RULES, "benchmark": before, "gaps": "keep", "cost_bps": 0.1}
    decision = Time2Decide.from_pretrained().decision(returns, before, 0.4, **terms)
    orders = whole_shares(decision.previous, decision.weights, prices.iloc[-1], 1e6, decision.cost_bps)
    path = decision.save(tmp_path_factory.mktemp("f") / "d.json", orders=orders, source="p.csv", values="prices")
    return json.loads(path.read_text()), prices, path


def leaves(value, path=()):
    """Places in a document: every field, and of each list or object by asset the first two."""
    several = list(value.items() if isinstance(value, dict) else enumerate(value))
    if path and (isinstance(value, list) or set(value) == set(NAMES)):
        several = several[:2]
    for key, one in several:
        if isinstance(one, (dict, list)) and one:
            yield from leaves(one, (*path, key))
        yield (*path, key)


def changes(value):
    """Other values of the same kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value - 1e-3 * (1 + abs(value)), *([-value] if abs(value) > 1e-9 else [])]
    if isinstance(value, str):
        return [value + "x", ""] if value else ["x"]
    return [1.0, "x"] if value is None else [[], {}, None]


def forged(document, place, value=...):
    """The document with another value at a place, or none."""
    again = json.loads(json.dumps(document))
    inner = again
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return again


def passes(document, prices, path):
    path.write_text(json.dumps(seal_decision(document)))
    return verify_decision(path, prices).passed


def test_a_forged_field_is_noticed(made):
    document, prices, path = made
    assert passes(document, prices, path)
    unnoticed = []
    for place in leaves(document):
        name, value = ".".join(str(key) for key in place if not isinstance(key, int)), document
        for key in place:
            value = value[key]
        wrong = [one for one in changes(value) if one != value and passes(forged(document, place, one), prices, path)]
        gone = passes(forged(document, place), prices, path)
        if (wrong or gone) and name not in UNPROVED and not name.startswith(OF_THE_MODEL):
            unnoticed.append((name, wrong, gone))
    assert unnoticed == [], str(unnoticed)
