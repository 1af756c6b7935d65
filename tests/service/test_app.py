"""The service: decision files over HTTP, limits, our own errors, and the same answers to many clients at once."""

import itertools
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient
from threadpoolctl import threadpool_info

from time2decide import Time2Decide
from time2decide.core.validation import InputError
from time2decide.markets.decision_file import verify_decision, write_decision
from time2decide.service import app as service
from time2decide.service.app import Limits, make_app

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LONG = pytest.mark.skipif(not os.environ.get("TIME2DECIDE_LONG"), reason="minutes: set TIME2DECIDE_LONG=1")
JSON = {"content-type": "application/json"}
LIMITS = Limits(megabytes=0.5, assets=8, rows=400, cells=2000)


def request_of(seed=0, rows=120, **options):
    rng = np.random.default_rng(seed)
    return {"assets": list("ABCD"), "returns": (0.01 * rng.standard_normal((rows, 4))).tolist(), **options}


@pytest.fixture(scope="module")
def client():
    with TestClient(make_app(limits=LIMITS), raise_server_exceptions=False) as one:
        yield one


def test_the_answer_is_a_decision_file_that_verifies(client, tmp_path):
    days = pd.date_range("2024-01-01", periods=120, freq="B")
    current = {"A": 0.4, "B": 0.3, "C": 0.2, "D": 0.1}
    limits = {"weights": {"upper": 0.5}, "groups": {"ab": {"assets": ["A", "B"], "upper": 0.6}}}
    asked = request_of(dates=[str(day.date()) for day in days], previous=current, turnover_l1=0.3, constraints=limits)
    answer = client.post("/decide", json=asked)
    assert answer.status_code == 200, answer.text
    file = answer.json()
    table = pd.DataFrame(asked["returns"], index=days, columns=asked["assets"])
    assert verify_decision(write_decision(file, tmp_path / "decision.json"), table).passed
    assert file["weights"]["A"] + file["weights"]["B"] <= 0.6 + 1e-9
    assert sum(abs(trade) for trade in file["trades"].values()) <= 0.3 + 1e-9


def test_weights_are_those_of_the_model(client):
    asked = request_of(turnover_l1=0.5, risk_aversion=3.0, cost_bps=5.0)
    table = pd.DataFrame(asked["returns"], columns=asked["assets"])
    ours = Time2Decide.from_pretrained().decide(table, turnover_l1=0.5, risk_aversion=3.0, cost_bps=5.0)
    found = client.post("/decide", json=asked).json()["weights"]
    np.testing.assert_allclose(list(found.values()), ours.to_numpy(), atol=1e-12)


def test_no_trade_is_smaller_than_asked(client):
    moved = [client.post("/decide", json=request_of(turnover_l1=0.3, min_trade=least)).json() for least in (0.0, 0.12)]
    trades = [np.abs(list(one["trades"].values())) for one in moved]
    assert ((trades[0] > 1e-9) & (trades[0] < 0.12)).any()
    assert all(trade < 1e-12 or trade >= 0.12 - 1e-12 for trade in trades[1])
    assert moved[1]["min_trade"]["weight"] == 0.12


def test_gaps_are_kept_by_their_rules(client):
    asked = request_of(gaps="keep")
    for row in asked["returns"][:-10]:
        row[3] = None
    answer = client.post("/decide", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["weights"]["D"] == 0.0  # young


def test_health_models_and_the_description(client):
    assert client.get("/health").json()["status"] == "ok"
    (model,) = client.get("/models").json()
    assert (model["name"], model["architecture"]) == ("market", "MarketPolicy")
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/health", "/models", "/decide"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"assets": ["A", "B"]}, "returns"),
        ({"assets": ["A", "A", "B", "C"]}, "A"),
        ({"returns": [["x"] * 4]}, "returns.0.0"),
        ({"returns": [[0.0] * 4] * 5}, "returns"),
        ({"returns": [[-2.0] * 4] * 120}, "returns"),
        ({"returns": [[0.0] * 4] * 500}, "at most 400 rows"),
        ({"assets": [f"a{i}" for i in range(9)]}, "assets: expected at most 8"),
        ({"dates": ["2024-01-01"]}, "dates"),
        ({"dates": ["soon"] * 120}, "dates"),
        ({"previous": {"A": 1.0}}, "previous_weights"),
        ({"previous": {"A": 0.9, "B": 0.9, "C": 0.0, "D": 0.0}}, "previous_weights"),
        ({"turnover_l1": 3.0}, "turnover_l1"),
        ({"turnover_l1": "all"}, "turnover_l1"),
        ({"risk_aversion": -1.0}, "risk_aversion"),
        ({"cost_bps": -1.0}, "cost_bps"),
        ({"min_trade": 2.0}, "min_trade"),
        ({"benchmark": {"Z": 1.0}}, "benchmark"),
        ({"constraints": {"groups": {"x": {"assets": ["Z"], "upper": 1}}}}, "[groups.x]"),
        ({"constraints": {"table": "/etc/passwd"}}, "constraints"),
        ({"constraints": {"weights": {"upper": 0.1}}}, "upper"),
        ({"gaps": "fill"}, "gaps"),
        ({"model": "../secrets"}, "model"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bad_input_is_refused_in_one_line_that_names_it(client, change, named):
    answer = client.post("/decide", json=request_of() | change)
    assert answer.status_code == 422, answer.text
    assert set(answer.json()) == {"detail"}
    assert named in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


def test_bodies_that_are_not_json_or_too_large_are_refused(client):
    for body in (b"{", b"\xff\xfe", b"[" * 5000, b'{"assets": NaN}'):
        answer = client.post("/decide", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422), body[:20]
        assert set(answer.json()) == {"detail"}
    big = b'{"assets": ["' + b"a" * 600_000 + b'"]}'
    assert client.post("/decide", content=big).status_code == 413
    chunks = itertools.repeat(b"a" * 10_000, 100)  # without a length that could be read first
    answer = client.post("/decide", content=chunks, headers={"content-type": "application/json"})
    assert (answer.status_code, "body" in answer.json()["detail"]) == (413, True)


def test_a_defect_is_told_without_its_inside(client, monkeypatch):
    monkeypatch.setattr(service, "_decide_request", lambda *given: 1 / 0)
    answer = client.post("/decide", json=request_of())
    assert answer.status_code == 500
    assert "division" not in answer.text


def test_who_waits_too_long_is_told(monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(service, "_decide_request", lambda *given: gate.wait(5) and {})
    with TestClient(make_app(limits=Limits(seconds=0.05, workers=1))) as one:
        answer = one.post("/decide", json=request_of())
        gate.set()
    assert (answer.status_code, "busy" in answer.json()["detail"]) == (503, True)


def test_eight_clients_at_once_get_the_serial_answers(client):
    asked = [request_of(seed, rows=100 + seed, turnover_l1=0.2) for seed in range(16)]

    def weights(one):
        answer = client.post("/decide", json=one)
        assert answer.status_code == 200
        return answer.json()["weights"]

    serial = [weights(one) for one in asked]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(weights, asked)) == serial


def test_a_request_has_the_same_bits_whatever_was_asked_before(monkeypatch):
    """The solver is compiled before the first request, not at some request under load; BLAS has one thread."""
    name = "time2decide.markets.turnover_kernels"
    monkeypatch.delitem(sys.modules, name, raising=False)
    make_app()
    assert name in sys.modules
    assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}


def test_limits_and_models_are_validated():
    with pytest.raises(InputError, match="workers"):
        Limits(workers=0)
    with pytest.raises(InputError, match="models"):
        make_app(())


def test_the_same_application_on_ray():
    pytest.importorskip("grpc")  # of ray[serve]
    serve = pytest.importorskip("ray.serve")
    from time2decide.service.ray_app import ray_application

    application = ray_application(replicas=2)
    assert isinstance(application, serve.Application)


def test_arguments_of_the_deployment_are_validated():
    from time2decide.service.ray_app import ray_deployment

    for wrong, named in (
        ({"replicas": "many"}, "replicas"),
        ({"replicas": "0"}, "replicas"),
        ({"colour": "x"}, "colour"),
    ):
        with pytest.raises(InputError, match=named):
            ray_deployment(wrong)


@pytest.mark.parametrize("examples", [12, pytest.param(2000, marks=LONG)])
@pytest.mark.filterwarnings("ignore")
def test_requests_made_from_the_description_get_our_own_errors(client, examples):
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)

    @given(case=schema["/decide"]["POST"].as_strategy())
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(case):
        answer = case.call()
        assert answer.status_code in (200, 400, 413, 422), answer.text
        if answer.status_code != 200:
            assert set(answer.json()) == {"detail"}

    check()


@pytest.mark.parametrize(
    "change",
    [
        {"assets": ["\ud800", "B", "C", "D"]},
        {"benchmark": {"\ud800": 1.0}},
        {"previous": {"\ud800": 1.0}},
        {"constraints": {"groups": {"\ud800": {"assets": ["A"], "upper": 0.5}}}},
        {"constraints": {"cash": {"most": 0.5, "return": 1e308}}},
        {"constraints": {"weights": {"exposure": 1e308}}},
        {"dates": [str(day.date()) for day in pd.date_range("2024-01-01", periods=119)] + ["now"]},
    ],
)
def test_what_no_answer_can_hold_is_refused(client, change):
    answer = client.post("/decide", content=json.dumps(request_of(**change)), headers=JSON)
    assert answer.status_code == 422, answer.text
    assert "expected" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("more", "name"),
    [
        (', "turnover_l1": 2}', "turnover_l1"),
        (', "previous": {"A": 1, "B": 0, "A": 0, "C": 0, "D": 0}}', "A"),
        (', "constraints": {"weights": {"upper": 0.3, "upper": 1}}}', "upper"),
    ],
)
def test_a_name_twice_is_refused(client, more, name):
    text = json.dumps(request_of(turnover_l1=0.1))[:-1] + more
    answer = client.post("/decide", content=text, headers=JSON)
    assert answer.status_code == 422
    assert answer.json()["detail"] == f"body: expected every name once, found {name!r} again"


def test_nothing_is_compiled_for_a_request(monkeypatch):
    """A first request with a benchmark took 20 seconds, and was answered by a 503."""
    name = "time2decide.markets.turnover_kernels"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with TestClient(make_app()) as one:
        compiled = vars(sys.modules[name])["_COMPILED"]

        def count():
            return {key: len(made.signatures) for key, made in compiled.items() if hasattr(made, "signatures")}

        before, equal = count(), dict.fromkeys("ABCD", 0.25)
        groups = {"groups": {"x": {"assets": ["A", "B"], "upper": 0.4}}}
        for options in (
            {"benchmark": equal, "previous": equal},
            {"constraints": {"weights": {"upper": 0.3}}, "min_trade": 0.05},
            {"constraints": groups, "benchmark": equal, "gaps": "keep"},
        ):
            assert one.post("/decide", json=request_of(**options)).status_code == 200
    assert count() == before


def test_the_start_says_that_it_compiles_only_if_it_does(monkeypatch, capsys):
    for before, line in ((True, ""), (False, "compiling, once after an installation: about a minute\n")):
        monkeypatch.setattr(service, "compiled_before", lambda before=before: before)
        make_app()
        assert capsys.readouterr().err == line


def test_orders_are_those_of_decide(client, run, tmp_path):
    asked, price = (
        request_of(previous=dict.fromkeys("ABCD", 0.25)),
        {"A": 10.0, "B": 33.3, "C": 250.0, "D": 7.0, "E": 1},
    )
    answer = client.post("/decide", json=asked | {"value": 1e5, "prices": price})
    assert answer.status_code == 200, answer.text
    orders = answer.json()["orders"]
    table = pd.DataFrame(asked["returns"], columns=asked["assets"])
    table.to_csv(tmp_path / "returns.csv", index_label="step")
    (tmp_path / "prices.csv").write_text("asset,price\n" + "".join(f"{name},{one}\n" for name, one in price.items()))
    given = ("--value", "1e5", "--price-file", "prices.csv", "--json")
    told = json.loads(run("decide", "returns.csv", "--returns", *given, cwd=tmp_path).stdout)["orders"]
    assert orders.pop("at") == "the prices of the request"
    assert told.pop("at") == "prices.csv"
    assert any(orders["shares"].values())
    for key, found in orders.items():
        assert found == pytest.approx(told[key]), key
    file = write_decision(answer.json(), tmp_path / "decision.json")
    found = verify_decision(file, table)
    assert found.passed
    assert "orders in whole shares follow" in str(found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"value": 1e5}, "value: expected prices of the assets with it, found none"),
        ({"prices": {"A": 1.0}}, "prices: expected the value of the portfolio with them, found none"),
        ({"value": 0.0, "prices": {}}, "value: expected a positive number, found 0.0"),
        (
            {"value": 1e5, "prices": {"A": 1.0}},
            "prices: expected a price of every asset that can be traded, found none",
        ),
        ({"value": 1e5, "prices": dict.fromkeys("ABCD", -1.0)}, "prices: expected positive prices, found -1"),
        ({"value": 1e5, "prices": dict.fromkeys("ABCD", 1e300)}, "prices: expected prices from 1e-06 to 1e+12"),
        ({"value": 1e300, "prices": dict.fromkeys("ABCD", 1.0)}, "value: expected a number in (0, 1e+18]"),
    ],
)
def test_orders_without_what_they_need_are_refused(client, change, text):
    answer = client.post("/decide", json=request_of(**change))
    assert answer.status_code == 422
    assert text in answer.json()["detail"]


def test_requests_that_were_given_up_hold_no_more_threads_than_allowed(monkeypatch):
    gate, running = threading.Event(), []

    def slow(*given):
        running.append(threading.get_ident())
        gate.wait(30)
        return {}

    monkeypatch.setattr(service, "_decide_request", slow)
    with TestClient(make_app(limits=Limits(seconds=0.2, workers=1))) as one:
        codes = [one.post("/decide", json=request_of()).status_code for _ in range(3)]
        assert (codes, len(running)) == ([503] * 3, 1)  # what has not begun is dropped
        gate.set()
        assert one.post("/decide", json=request_of()).status_code == 200
