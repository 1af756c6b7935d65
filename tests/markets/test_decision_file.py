"""Decision files: what is written passes every check, and nothing that was changed passes all of them."""

import json

import numpy as np
import pandas as pd
import pytest

from time2decide import InputError, Time2Decide, load_returns, verify_decision
from time2decide.markets import Constraints, Limit
from time2decide.markets.decision_file import read_decision, seal_decision, write_decision
from time2decide.markets.orders import whole_shares
from time2decide.markets.stated_problem import Prices, StatedProblem

NAMES = ["A", "B", "C", "D", "E", "F"]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    array = 0.006 * rng.normal(size=(400, 1)) + 0.01 * rng.normal(size=(400, 6)) * np.linspace(0.5, 2, 6)
    return pd.DataFrame(array, pd.bdate_range("2022-01-03", periods=400, name="date"), NAMES)


@pytest.fixture(scope="module")
def holes(table):
    table = table.copy()
    table.iloc[:-30, 3] = np.nan  # young
    table.iloc[-25:, 4] = np.nan  # delisted
    table.iloc[-1, 5] = np.nan  # halted
    return table


RULES = Constraints(
    upper=0.5, cash=(0.0, 0.2), limits=(Limit("x", np.array([1.0, 1, 0, 0, 0, 1]), 0.0, 0.6),), assets=tuple(NAMES)
)
PREVIOUS = pd.Series([0.3, 0.2, 0.1, 0.1, 0.2, 0.1], NAMES)


@pytest.fixture(scope="module")
def document(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("d") / "decision.json"
    made = Time2Decide.from_pretrained().decision(table, PREVIOUS, 0.4, constraints=RULES, benchmark=PREVIOUS)
    return json.loads(made.save(path).read_text())


@pytest.mark.parametrize("rules", [None, RULES], ids=["plain", "constraints"])
@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
def test_what_is_written_passes_also_when_rows_have_come_since(table, holes, gaps, rules, tmp_path):
    data = holes if gaps else table
    given = {"constraints": rules, "benchmark": PREVIOUS, "gaps": "keep"}
    made = Time2Decide.from_pretrained().decision(data, PREVIOUS, 0.4, **given)
    path = made.save(tmp_path / "decision.json")
    found = verify_decision(path, data)
    assert found.passed, str(found)
    names = [check.name for check in found.checks]
    assert names[3:6] == ["terms", "gaps" if gaps else "start", "feasible"]
    assert names[6:] == ["optimal", "verdict", "reasons", "model"]
    later = pd.concat([data, table.iloc[-3:].set_axis(pd.bdate_range(data.index[-1], periods=4)[1:])])
    assert verify_decision(path, later).passed
    assert "3 later rows" in str(verify_decision(path, later))
    saved = read_decision(path)
    assert saved["weights"] == dict(zip(NAMES, made.weights.tolist(), strict=True))
    assert saved["optimality"]["relative_gap"] <= 1e-12
    active = [row["name"] for row in saved["constraints"] if row["active"]]
    assert active


def test_arrays_and_the_policy_of_the_papers_setting(table, tmp_path):
    array = table.to_numpy()
    path = Time2Decide.from_pretrained("time2decide").decision(array, None, 0.3).save(tmp_path / "d.json")
    assert verify_decision(path, array).passed, str(verify_decision(path, array))


def changed(document, change):
    again = json.loads(json.dumps(document))
    change(again)
    return again


def move(document):
    """Weights that are feasible and not optimal, with everything else made to fit."""
    weights = document["weights"]
    step = 1e-4
    up, down = sorted(weights, key=lambda name: weights[name])[1:3]
    weights[up] += step
    weights[down] -= step
    document["trades"] = {name: weights[name] - document["previous"][name] for name in weights}
    document["turnover"] = sum(map(abs, document["trades"].values()))
    document["cost"] = document["turnover"] * document["cost_bps"] / 1e4
    document["problem"]["turnover_l1"] = 1.9
    for row in document["constraints"]:
        row.pop("name")
        row["name"] = "–"


def same_level(document):
    """Means whose rounding hides risk and everything else: any weights look optimal."""
    problem = document["problem"]
    problem.update(mean=[1e14] * 6, cash=[0.0, 0.0], cost=0.0, limits=[], benchmark=None, turnover_l1=2.0)
    weights, stated = dict.fromkeys(NAMES, 0.0) | {"A": 0.5, "F": 0.5}, StatedProblem.from_json(problem, NAMES)
    trades = {name: weights[name] - document["previous"][name] for name in NAMES}
    document.update(weights=weights, trades=trades, turnover=sum(map(abs, trades.values())))
    document.update(cost=0.0, cost_bps=0.0, turnover_l1=2.0)
    array = np.array(list(weights.values()))
    document.update(stated.proof(array, Prices(0.0, 1e14, np.zeros(0)), NAMES))


TAMPERED = {
    "a trade": (lambda d: d["trades"].update(A=d["trades"]["A"] + 1e-6), "trades"),
    "a current weight": (lambda d: d["previous"].update(A=d["previous"]["A"] + 1e-5), "trades"),
    "the cost": (lambda d: d.update(cost=0.0), "trades"),
    "a weight beyond its bound": (lambda d: d["problem"].update(upper=[0.1] * 6), "feasible"),
    "the budget": (lambda d: d["problem"].update(turnover_l1=0.1), "feasible"),
    "a stated slack": (lambda d: d["constraints"][0].update(slack=0.5), "feasible"),
    "the mean": (lambda d: d["problem"]["mean"].__setitem__(0, 0.01), "optimal"),
    "λ": (lambda d: d["problem"].update(risk_aversion=9.0), "optimal"),
    "a price": (lambda d: d["optimality"]["prices"].update(exposure=1e-3), "optimal"),
    "the start": (lambda d: d["problem"]["start"].__setitem__(0, 0.25), "start"),
    "the data": (lambda d: d["data"].update(sha256="0" * 64), "data"),
    "the dates": (lambda d: d["data"].update(first="2021-01-01"), "data"),
    "the rows": (lambda d: d["data"].update(rows=10_000), "data"),
    "weights that are worse": (move, "optimal"),
    "the stated date": (lambda d: d.update(date="2030-01-01"), "terms"),
    "the stated budget": (lambda d: d.update(turnover_l1=0.1), "terms"),
    "the stated cost": (lambda d: d.update(days=2 * d["days"]), "terms"),
    "a stated upper end": (lambda d: d["constraints"][0].update(high=0.1), "feasible"),
    "a stated name": (lambda d: d["constraints"][2].update(name="y"), "feasible"),
    "a stated price": (lambda d: d["constraints"][1].update(price=0.1), "feasible"),
    "a constraint that is not stated": (lambda d: d["constraints"].pop(2), "feasible"),
    "a constraint of the problem": (lambda d: d["problem"]["limits"][0].update(high=0.7), "feasible"),
    "the stated gap": (lambda d: d["optimality"].update(gap=1.0), "optimal"),
    "the stated utility": (lambda d: d["optimality"].update(utility=1.0), "optimal"),
    "no problem": (lambda d: d.update(problem=None), "optimal"),
    "a budget as text": (lambda d: d.update(turnover_l1=str(d["turnover_l1"])), "content"),
    "a weight as text": (lambda d: d["weights"].update(A=str(d["weights"]["A"])), "content"),
    "a price as text": (lambda d: d["optimality"]["prices"].update(turnover="nan"), "content"),
    "gaps of a whole table": (lambda d: d.update(gaps={"halted": ["A"]}), "gaps"),
    "the relative gap": (lambda d: d["optimality"].update(relative_gap=5.0), "optimal"),
    "the names": (lambda d: d["data"].update(names_sha256="x"), "data"),
    "the number of assets": (lambda d: d["data"].update(assets=99), "data"),
    "an equal level of all means": (same_level, "optimal"),
    "the gain": (lambda d: d["optimality"]["gain"].update(utility=0.01), "optimal"),
    "a part of the gain": (lambda d: d["optimality"]["gain"].update(risk=0.01), "optimal"),
    "the weights of a bundled model": (lambda d: d["model"].update(fingerprint="0" * 32), "model"),
    "another bundled model": (lambda d: d["model"].update(name="time2decide"), "model"),
    "an architecture": (lambda d: d["model"].update(architecture="Policy"), "model"),
    "an architecture of its own": (lambda d: d["model"].update(name="mine", architecture="Better"), "model"),
    "no name": (lambda d: d["model"].pop("name"), "model"),
    "the verdict": (lambda d: d.update(verdict="Forecasts pay: buy."), "verdict"),
    "no verdict": (lambda d: d.update(verdict=""), "verdict"),
    "how far a forecast came true": (lambda d: [one.update(slope=5.0) for one in d["records"]], "verdict"),
    "what the prior is": (lambda d: d["prior"].update(sharpe=5.0), "verdict"),
    "which part weighs more": (lambda d: d["prior"].update(leads=not d["prior"]["leads"]), "reasons"),
    "the verdict of a model of its own": (
        lambda d: (d.update(verdict="Buy."), d["model"].update(name="mine", architecture="Policy")),
        "verdict",
    ),
    "a reason": (lambda d: d["reasons_bps"]["risk"].update(A=9.0), "reasons"),
    "a part of the mean": (lambda d: d["reasons_bps"]["forecast"].update(A=9.0), "reasons"),
    "no records": (lambda d: d.pop("records"), "content"),
    "weights without forecasts that are not allowed": (lambda d: d["without_forecasts"].update(A=0.9), "reasons"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_change_that_is_sealed_again_fails_its_check(what, document, table, tmp_path):
    change, name = TAMPERED[what]
    path = write_decision(changed(document, change), tmp_path / "d.json")
    failed = [check.name for check in verify_decision(path, table).checks if check.passed is False]
    assert name in failed, failed


@pytest.mark.parametrize("version", ["\ud800", "\x1b[2J\nok      everything"], ids=ascii)
def test_checks_are_printed_in_a_line_each_whatever_the_file_says(version, document, table, tmp_path):
    found = verify_decision(write_decision(document | {"version": version}, tmp_path / "d.json"), table)
    str(found).encode()
    assert len(str(found).splitlines()) == len(found.checks)
    assert "\x1b" not in str(found)


def test_assets_that_are_called_halted_are_those_of_the_table(holes, tmp_path):
    made = Time2Decide.from_pretrained().decision(holes, PREVIOUS.round(6) + 2e-7, 0.4, gaps="keep")
    path = made.save(tmp_path / "d.json")
    assert verify_decision(path, holes).passed, str(verify_decision(path, holes))
    again = json.loads(path.read_text())
    again["gaps"]["halted"], again["gaps"]["young"] = again["gaps"]["young"], again["gaps"]["halted"]
    found = verify_decision(write_decision(again, path), holes)
    assert [check.name for check in found.checks if check.passed is False] == ["gaps"]


@pytest.mark.parametrize("risk_aversion", [0.0, 1e6])
def test_extreme_risk_aversions_verify(table, risk_aversion, tmp_path):
    made = Time2Decide.from_pretrained().decision(table, PREVIOUS, 0.4, risk_aversion=risk_aversion)
    assert verify_decision(made.save(tmp_path / "d.json"), table).passed


def test_a_change_that_is_not_sealed_is_seen(document, table, tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps(document | {"verdict": "Buy."}))
    found = verify_decision(path, table)
    assert not found.passed
    assert "changed after it was written" in str(found)


@pytest.mark.parametrize(
    ("old", "new"),
    [('{\n "schema"', '{\n "weights": {},\n "schema"'), ('"weights": {"A"', '"weights": {"A": 0.9, "A"')],
    ids=["outer", "inner"],
)
def test_a_name_that_is_there_twice_is_refused(old, new, document, table, tmp_path):
    path = write_decision(document, tmp_path / "d.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    found = verify_decision(path, table)
    assert not found.passed
    assert "every name once" in str(found)


def test_another_table_is_seen(document, table, tmp_path):
    path = write_decision(document, tmp_path / "d.json")
    other = table.copy()
    other.iloc[200, 2] = np.nextafter(other.iloc[200, 2], 1)
    for wrong, text in (
        (other, "the returns of the table differ"),
        (table.iloc[:-1], "expected at least 400 rows"),
        (table[NAMES[::-1]], "another order"),
        (table.rename(columns={"A": "Z"}), "others (A, Z)"),
    ):
        found = verify_decision(path, wrong)
        assert not found.passed
        assert text in str(found)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b'{"schema": 1}', b'{"schema": NaN}', b"[" * 100_000],
)
def test_what_is_no_decision_file_fails_in_one_line(content, table, tmp_path):
    path = tmp_path / "d.json"
    path.write_bytes(content)
    found = verify_decision(path, table)
    assert not found.passed
    assert "\n" not in str(found)


def test_damaged_content_never_ends_in_a_raw_error(document, table, tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(200):
        again = json.loads(json.dumps(document))
        place, keys = again, []
        while isinstance(place, (dict, list)) and len(place):
            keys.append(rng.choice(list(place)) if isinstance(place, dict) else int(rng.integers(len(place))))
            if rng.random() < 0.3 or not isinstance(place[keys[-1]], (dict, list)) or not place[keys[-1]]:
                break
            place = place[keys[-1]]
        place[keys[-1]] = [None, "x", -1, 1e308, [], {}, [1], {"a": None}][rng.integers(8)]
        path = tmp_path / "d.json"
        path.write_text(json.dumps(seal_decision(again)))
        try:
            found = verify_decision(path, table)
        except InputError:
            continue
        assert found.checks
    with pytest.raises(InputError, match="expected a file, found none"):
        verify_decision(tmp_path / "none.json", table)


def test_names_and_dates_are_written_as_they_are_read_again(table, tmp_path):
    odd = table.set_axis([f" {name}" for name in NAMES], axis=1).set_axis(table.index.strftime("%Y%m%d"))
    made = Time2Decide.from_pretrained().decision(odd, PREVIOUS.set_axis(odd.columns), 0.4)
    found = verify_decision(made.save(tmp_path / "d.json"), odd)
    assert found.passed, str(found)


def test_what_is_said_of_the_model_is_compared_where_it_can_be_and_else_called_unproved(document, table, tmp_path):
    def model(change):
        path = write_decision(changed(document, change), tmp_path / "d.json")
        return next(check for check in verify_decision(path, table).checks if check.name == "model")

    bundled = model(lambda d: None)
    assert bundled.passed
    assert "not proved" in bundled.text
    own = model(lambda d: d["model"].update(name="runs/mine"))
    assert own.passed is None
    assert "its name is not proved" in own.text
    older = model(lambda d: (d.update(version="0.0.1"), d["model"].update(fingerprint="0" * 32)))
    assert older.passed is None
    assert "not compared" in older.text
    assert model(lambda d: (d.update(version="0.0.1"), d["model"].update(architecture="Policy"))).passed is False


def test_a_file_without_a_gain_is_an_older_one(document, table, tmp_path):
    path = write_decision(changed(document, lambda d: d["optimality"].pop("gain")), tmp_path / "d.json")
    assert verify_decision(path, table).passed


@pytest.fixture(scope="module")
def ordered(table, tmp_path_factory):
    """A decision file with orders, and the prices behind it, with a halted asset."""
    prices = 50 * (1 + table).cumprod()
    prices.iloc[-1, 2] = np.nan
    returns = load_returns(prices, "prices", gaps="keep")
    made = Time2Decide.from_pretrained().decision(returns, PREVIOUS, 0.4, gaps="keep")
    orders = whole_shares(made.previous, made.weights, prices.iloc[-1].to_numpy(), 1e5, made.cost_bps)
    path = made.save(tmp_path_factory.mktemp("o") / "d.json", orders=orders)
    return json.loads(path.read_text()), prices


def test_orders_are_checked_against_weights_value_and_prices(ordered, tmp_path):
    document, prices = ordered
    path = write_decision(document, tmp_path / "d.json")
    found = verify_decision(path, prices)
    assert found.passed, str(found)
    orders = next(check for check in found.checks if check.name == "orders")
    assert "those of the table's last row" in orders.text
    assert document["orders"]["price"]["C"] is None
    later = pd.concat([prices, 2 * prices.ffill().iloc[-1:].set_axis(prices.index[-1:] + pd.Timedelta(days=1))])
    assert verify_decision(path, later).passed
    given = verify_decision(path, load_returns(prices, "prices", gaps="keep"))
    assert given.passed
    assert "the prices (the table's last prices) are not checked" in str(given)


ORDERED = {
    "a share more": lambda o: o["shares"].update(A=o["shares"]["A"] + 1),
    "no orders": lambda o: o.update(shares=dict.fromkeys(NAMES, 0.0)),
    "money": lambda o: o["money"].update(A=o["money"]["A"] + 1),
    "a price": lambda o: o["price"].update(A=o["price"]["A"] * 1.5),
    "a price of a halted asset": lambda o: o["price"].update(C=50.0),
    "the value": lambda o: o.update(value=2e5),
    "the cost": lambda o: o.update(cost=0.0),
    "the cash": lambda o: o.update(cash=o["cash"] + 1),
    "the difference": lambda o: o.update(largest_difference=0.5),
    "what is unpriced": lambda o: o.update(unpriced=["B"]),
}


@pytest.mark.parametrize("what", ORDERED)
def test_a_changed_order_fails_its_check(what, ordered, tmp_path):
    document, prices = ordered
    path = write_decision(changed(document, lambda d: ORDERED[what](d["orders"])), tmp_path / "d.json")
    assert [check.name for check in verify_decision(path, prices).checks if check.passed is False] == ["orders"]


def test_prices_of_another_day_are_seen_and_damaged_orders_are_one_failed_check(ordered, tmp_path):
    document, prices = ordered
    again = json.loads(json.dumps(document))
    halved = {name: price and price / 2 for name, price in document["orders"]["price"].items()}
    weights, previous = (np.array(list(document[key].values())) for key in ("weights", "previous"))
    quoted = np.array([np.nan if price is None else price for price in halved.values()])
    again["orders"] = whole_shares(previous, weights, quoted, 1e5, document["cost_bps"]).to_json(NAMES)
    found = verify_decision(write_decision(again, tmp_path / "d.json"), prices)
    failed = [check for check in found.checks if check.passed is False]
    assert [check.name for check in failed] == ["orders"]
    assert "not those of the table's last row" in failed[0].text
    for damage in (
        document["orders"] | {"note": "paid"},
        document["orders"] | {"shares": document["orders"]["shares"] | {"EVIL": 1e6}},
        {},
        None,
        [],
        {"price": {}},
        document["orders"] | {"value": "1e5"},
        document["orders"] | {"value": 0},
    ):
        found = verify_decision(write_decision(document | {"orders": damage}, tmp_path / "d.json"), prices)
        assert [check.name for check in found.checks if check.passed is False] == ["content"]


def test_orders_of_another_decision_are_not_saved(table, tmp_path):
    made = Time2Decide.from_pretrained().decision(table, PREVIOUS, 0.4)
    orders = whole_shares(made.previous, made.weights[::-1].copy(), np.full(6, 10.0), 1e5)
    with pytest.raises(InputError, match="orders: expected those of this decision"):
        made.save(tmp_path / "d.json", orders=orders)
