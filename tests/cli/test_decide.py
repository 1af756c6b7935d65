"""`decide`, `backtest` and fine-tuning as a user meets them."""

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from time2decide import Time2Decide, load_returns
from time2decide.cli.decide import limit_lines
from time2decide.core.validation import InputError
from time2decide.markets import Constraints, read_constraints
from time2decide.markets.portfolio import solve_portfolio
from time2decide.markets.tables import read_weights, write_weights
from time2decide.markets.validation import validate_current_weights


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(1)
    days = pd.date_range("2024-01-01", periods=130, freq="B")
    table = pd.DataFrame(rng.normal(0, 0.01, (130, 4)), index=days, columns=["A", "B", "C", "D, E"])
    table.to_csv(tmp_path / "returns.csv", index_label="date")
    ((1 + table).cumprod() * 50).to_csv(tmp_path / "prices.csv", index_label="date")
    (tmp_path / "held.csv").write_text('asset,weight\nB,0.4\nA,0.3\n"D, E",0.2\nC,0.1\n')
    return tmp_path


def test_decide_says_everything_and_is_the_model(run, folder):
    asked = ("decide", "returns.csv", "--turnover", "0.5", "--previous", "held.csv", "--json", "--explain")
    done = run(*asked, "--uncertainty", "--out", "new.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    table = load_returns(folder / "returns.csv")
    weights = Time2Decide.from_pretrained().decide(table, read_weights(folder / "held.csv"), 0.5)
    assert facts["weights"] == pytest.approx(weights.to_dict())
    assert facts["previous"]["B"] == 0.4
    assert facts["turnover"] <= 0.5 + 1e-9
    assert facts["constraints"]["satisfied"]
    assert facts["input"] | {"last": "2024-06-28"} == facts["input"]
    assert set(facts["reasons_bps"]) == {"prior", "forecast", "risk"}
    assert facts["exact"]["gap"] <= 1e-12
    assert facts["verdict"]["text"]
    assert {one["reads"] for one in facts["verdict"]["records"]} >= {"own past", "all assets"}
    assert read_weights(folder / "new.csv").to_dict() == facts["weights"]
    assert json.loads(run(*asked, "--uncertainty", cwd=folder).stdout) == facts
    assert "uncertainty" not in json.loads(run(*asked, cwd=folder).stdout)


def test_prices_are_recognised_and_the_table_says_so(run, folder):
    done = run("decide", "prices.csv", "--all", "--explain", "--uncertainty", cwd=folder)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    for part in (
        "from prices.",
        "the file holds prices (--prices or --returns settles it)",
        "all constraints hold",
        "Assumed: equal current weights",
        "cost",
        "Verdict: Nothing to predict here",
        "why: risk",
        "± s.d.",
        "the next day, from own past: outcomes followed",
        "wants years of returns; with 129 rows",
    ):
        assert part in text
    done = run("decide", "prices.csv", "--model", "time2decide", "--explain", cwd=folder)
    assert "The policy time2decide decides for a trade at the next close" in " ".join(done.stdout.split())


def test_trades_come_first_and_the_rest_is_counted(run, folder):
    rng = np.random.default_rng(5)
    days = pd.date_range("2020-01-01", periods=400, freq="B")
    calm, wild = rng.normal(0.0004, 0.004, (400, 6)), rng.normal(0.0004, 0.05, (400, 2))
    names = [f"CALM{i}" for i in range(6)] + ["WILD0", "WILD1"]
    pd.DataFrame(np.hstack([calm, wild]), index=days, columns=names).to_csv(folder / "r.csv", index_label="date")
    facts = json.loads(run("decide", "r.csv", "--returns", "--turnover", "0.05", "--json", cwd=folder).stdout)
    traded = {name for name, change in facts["change"].items() if abs(change) > 5e-5}
    assert 0 < len(traded) < len(names)
    shown = run("decide", "r.csv", "--returns", "--turnover", "0.05", cwd=folder).stdout
    assert {name for name in names if name in shown} == traded
    assert f"{len(traded)} of 8 assets; {len(names) - len(traded)} not traded" in shown
    assert shown.index("Trades after") < shown.index("Verdict:") < shown.index("Turnover 0.05")
    lines = shown.strip().splitlines()
    rest = lines[[line.startswith("Verdict:") for line in lines].index(True) :]
    assert [line.split()[0] for line in rest] == [
        "Verdict:",
        "Expected",
        "Turnover",
        "The",
        "Assumed:",
        "Data:",  # the last row is years old
    ]  # one line each
    assert "Why" not in shown
    shown = run("decide", "r.csv", "--returns", "--turnover", "0.05", "--all", cwd=folder).stdout
    assert all(name in shown for name in names)


def test_backtest_takes_a_file_and_writes_a_page(run, folder):
    done = run(
        "backtest", "prices.csv", "--prices", "--strategies", "time2decide,uniform,minimum-variance,oracle",
        "--turnover", "0.2,1", "--report", "page.html", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for text in ("minimum-variance", "Sharpe − 1/N", "the oracle's weights", "written: page.html"):
        assert text in done.stdout
    assert (folder / "page.html").stat().st_size > 1_000_000


def test_a_model_of_the_paper_is_trained_and_backtested(run, folder):
    days = pd.date_range("2024-01-01", periods=100, freq="B")
    names = [f"A{i}" for i in range(16)]
    table = pd.DataFrame(np.random.default_rng(3).normal(0, 0.01, (100, 16)), index=days, columns=names)
    table.to_csv(folder / "wide.csv", index_label="date")
    asked = ("train", "paper", "--preset", "smoke", "--backbone", "small", "--no-covariance", "--out", "mine")
    done = run(*asked, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert run(*asked, cwd=folder).returncode == 0  # finished: nothing is trained again
    result = run("backtest", "wide.csv", "--returns", "--strategies", "mine,pto:timepfn:small,uniform", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "pto:timepfn:small" in result.stdout


def test_names_like_markup_and_an_asset_that_stands_still(run, folder):
    table = load_returns(folder / "returns.csv").set_axis(["[/red]", "[bold]", "C", "D"], axis=1)
    table.iloc[-100:, 1] = 0.0
    table.to_csv(folder / "odd.csv", index_label="date")
    done = run("decide", "odd.csv", "--all", "--accept", "stale", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "[/red]" in done.stdout
    assert "[bold]" in done.stdout
    facts = json.loads(run("decide", "odd.csv", "--json", "--explain", "--accept", "stale", cwd=folder).stdout)
    assert np.isfinite(list(facts["reasons_bps"]["risk"].values())).all()


def test_weights_survive_the_file(tmp_path):
    weights = pd.Series({"A": 0.1, 'the "best", really': 0.9}, name="weight")
    pd.testing.assert_series_equal(read_weights(write_weights(weights, tmp_path / "w.csv")), weights)
    with pytest.raises(InputError, match=r"ending in \.csv"):
        write_weights(weights, tmp_path / "w.txt")


@pytest.mark.parametrize("command", ["decide", "backtest"])
def test_help_has_an_example(run, tmp_path, command):
    done = run(command, "--help", cwd=tmp_path)
    assert f"Example: time2decide {command}" in " ".join(done.stdout.split())


def test_every_strategy_is_listed_with_what_it_does(run, tmp_path):
    from time2decide.backtesting.registry import REGISTRY
    from time2decide.cli.backtest import DEFAULT_STRATEGIES

    done = run("backtest", "--strategies", "list", "--json", cwd=tmp_path)
    assert set(json.loads(done.stdout)) == {*REGISTRY, "oracle"}
    assert set(DEFAULT_STRATEGIES.split(",")) <= set(REGISTRY)


def test_commands_need_nothing_beyond_the_required_packages(folder):
    extras = ("skfolio", "pyarrow", "fastapi", "uvicorn", "cvxpy", "osqp", "qpsolvers", "ray", "transformers")
    (folder / "qp.json").write_text('{"A": [[2.0, 0.5], [0.5, 1.0]], "b": [-1.0, -1.0]}')
    asked = (
        ("decide", "prices.csv", "--out", "decision.json"),
        ("verify", "decision.json", "prices.csv"),
        ("backtest", "prices.csv", "--last", "110", "--report", "report.html"),
        ("solve", "qp.json"),
    )
    code = (
        "import sys; from time2decide.cli import main\n"
        f"sys.modules.update(dict.fromkeys({extras}))\n"
        "sys.argv[0] = 'time2decide'; main()"
    )
    for command in asked:
        done = subprocess.run([sys.executable, "-c", code, *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
    assert (folder / "report.html").stat().st_size > 1_000_000


@pytest.mark.parametrize("command", ["decide", "backtest", "solve"])
def test_a_missing_file_is_reported_before_torch_is_loaded(command, tmp_path):
    code = (
        "import sys; from time2decide.cli import main\n"
        "try:\n    main()\nfinally:\n    print(sorted({'torch', 'pandas', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command, "nowhere.csv"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "time2decide: nowhere.csv: expected a file, found none"
    assert done.stdout.strip() == "[]"


def test_constraints_costs_a_benchmark_and_the_frontier(run, folder):
    text = '[weights]\nupper = 0.5\n[cash]\nmost = 0.3\n[groups.x]\nassets = ["A", "B"]\nupper = 0.4\n'
    (folder / "c.toml").write_text(text)
    asked = ("decide", "returns.csv", "--turnover", "0.6", "--benchmark", "held.csv", "--constraints", "c.toml")
    done = run(*asked, "--cost", "10", "--frontier", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["constraints"]["satisfied"]
    assert facts["exact"]["gap"] < 1e-12
    assert facts["limits"]["group x"] <= 0.4 + 1e-12
    assert max(facts["weights"].values()) <= 0.5 + 1e-12
    gains = [point["gain"] for point in facts["frontier"]["points"]]
    assert gains == sorted(gains)
    shown = run(*asked, "--cost", "10", "--frontier", cwd=folder).stdout
    assert "does not pay" in shown
    assert facts["exact"]["utility_gap"] < 1e-10
    assert "optimal: no allowed portfolio has as much as 0.000001 bp a day more utility" in shown
    value = facts["limits"]["group x"]
    binds = ", binding" if "group x" in facts["active"] else ""
    assert f"  group x: {value:.2%} (at most 40.00%{binds})\n" in shown
    assert f"tracking error {facts['active_risk_previous']:.2%} → {facts['active_risk']:.2%}" in shown
    assert facts["active"]
    assert "binding: " in shown


def test_the_frontier_and_the_gain_count_from_the_same_portfolio_where_constraints_force_a_trade(run, folder):
    asked = ("decide", "returns.csv", "--previous", "held.csv", "--cost", "1", "--frontier", "--constraints", "c.toml")
    for groups in ("", '[groups.x]\nassets = ["A", "B"]\nupper = 0.9\n'):  # with a path, and budget by budget
        (folder / "c.toml").write_text("[weights]\nupper = 0.35\n" + groups)
        facts = json.loads(run(*asked, "--turnover", "0.2", "--json", cwd=folder).stdout)
        curve, gain = facts["frontier"]["curve"], facts["days"] * facts["gain"]["utility"]
        assert curve["turnover_l1"][0] == pytest.approx(0.1)
        found = np.interp(facts["turnover"], curve["turnover_l1"], curve["gain"])
        assert found == pytest.approx(gain, abs=2e-6)
        least = json.loads(run(*asked, "--turnover", "0.1000001", "--json", cwd=folder).stdout)
        assert curve["gain"][0] == pytest.approx(
            least["days"] * least["gain"]["utility"], rel=0.02
        )  # days are of a budget
        assert abs(curve["gain"][0]) > 1e-6
    shown = run(*asked, "--turnover", "0.2", cwd=folder).stdout
    assert "beside no trade, net of cost" in shown
    assert "The constraints ask for a turnover of 0.100." in shown


@pytest.mark.parametrize("name", ["frontier.png", "frontier.svg"])
def test_the_frontier_is_drawn_and_agrees_with_separate_decisions(name, run, folder):
    done = run("decide", "returns.csv", "--cost", "0.1", "--figure", name, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    frontier = facts["frontier"]
    assert frontier["largest_gap"] < 1e-12
    table = load_returns(folder / "returns.csv")
    given = {"risk_aversion": facts["risk_aversion"], "cost_bps": 0.1}
    made = Time2Decide.from_pretrained().decision(table, None, facts["turnover_l1"], **given)
    for i in (48, 96):
        separate = solve_portfolio(
            *(made.mean, made.covariance, made.previous),
            risk_aversion=facts["risk_aversion"],
            turnover_l1=frontier["curve"]["turnover_l1"][i],
            cost=1e-5 / made.days,
        )
        assert frontier["curve"]["price"][i] == pytest.approx(made.days * float(separate.turnover_price), rel=1e-6)
    start = (folder / name).read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if name.endswith("png") else b"<?xml" in start
    assert run("decide", "returns.csv", "--figure", "frontier.gif", cwd=folder).returncode == 2


def test_a_thousand_assets(run, tmp_path):
    """decide with its frontier and backtest have no largest number of assets."""
    m, days = 1000, pd.bdate_range("2024-01-01", periods=101)
    names = [f"A{i}" for i in range(m)]
    table = pd.DataFrame(np.random.default_rng(0).normal(0, 0.01, (101, m)), days, names)
    table.to_csv(tmp_path / "returns.csv", index_label="date")
    (tmp_path / "c.toml").write_text("[weights]\nupper = 0.002\n[cash]\nmost = 0.1\n")
    asked = ("returns.csv", "--returns", "--turnover", "0.5", "--constraints", "c.toml", "--json")
    done = run("decide", *asked, "--cost", "0.5", "--frontier", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert len(facts["weights"]) == m
    assert facts["constraints"]["satisfied"]
    assert max(facts["exact"]["gap"], facts["frontier"]["largest_gap"]) <= 1e-12
    done = run("backtest", *asked, "--strategies", "market,pto-ridge,minimum-variance-ewma,uniform", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["strategy"] for row in json.loads(done.stdout)] == [
        "market", "pto-ridge", "minimum-variance-ewma", "uniform",
    ]  # fmt: skip


#: What the how-to has an example of: a constraints file, a benchmark, the cost in basis points.
TERMS = {
    "bounds": ("[weights]\nlower = 0.1\nupper = 0.28\n", False, 0.0),
    "group": ('[groups.x]\nassets = ["A", "B"]\nlower = 0.1\nupper = 0.5\n', False, 0.0),
    "cash": ("[cash]\nleast = 0.1\nmost = 0.3\nreturn = 0.00001\n", False, 0.0),
    "benchmark": (None, True, 0.0),
    "costs": (None, False, 5.0),
    "all": ('[weights]\nupper = 0.5\n[cash]\nmost = 0.3\n[groups.x]\nassets = ["A", "B"]\nupper = 0.4\n', True, 2.0),
}


@pytest.mark.parametrize("model", ["market", "time2decide"])
@pytest.mark.parametrize("term", TERMS)
def test_decide_solves_under_the_terms_by_cvxpy(term, model, run, folder, cvxpy_portfolio):
    text, with_benchmark, cost = TERMS[term]
    (folder / "index.csv").write_text('asset,weight\nA,0.1\nB,0.1\nC,0.5\n"D, E",0.3\n')
    asked = ["decide", "returns.csv", "--turnover", "0.5", "--previous", "held.csv", "--model", model, "--json"]
    asked += ["--cost", str(cost), "--risk-aversion", "20"] + (["--benchmark", "index.csv"] if with_benchmark else [])
    table, previous = load_returns(folder / "returns.csv"), np.array([0.3, 0.4, 0.1, 0.2])
    constraints = None
    if text is not None:
        (folder / "c.toml").write_text(text)
        asked += ["--constraints", "c.toml"]
        constraints = read_constraints(folder / "c.toml", list(table.columns))
    facts = json.loads(run(*asked, cwd=folder).stdout)
    terms = {"constraints": constraints, "benchmark": None}
    if with_benchmark:
        terms["benchmark"] = np.array([0.1, 0.1, 0.5, 0.3])
    made = Time2Decide.from_pretrained(model).decision(table, previous, 0.5, risk_aversion=20.0, cost_bps=cost, **terms)
    mean, S, days = made.mean, made.covariance, made.days
    b = np.array([0.1, 0.1, 0.5, 0.3]) if with_benchmark else None
    given = {"cost": cost / 1e4 / days, "benchmark": b, "constraints": constraints}
    theirs = cvxpy_portfolio(mean, S, previous, risk_aversion=20.0, turnover_l1=0.5, **given)
    np.testing.assert_allclose(list(facts["weights"].values()), theirs, atol=2e-5)
    assert facts["constraints"]["satisfied"]
    assert facts["exact"]["gap"] <= 1e-12


def test_gaps_are_told_by_name(run, folder):
    table = load_returns(folder / "returns.csv")
    table.iloc[-1, 0] = np.nan
    table.iloc[:-30, 1] = np.nan
    table.to_csv(folder / "gaps.csv", index_label="date")
    refused = run("decide", "gaps.csv", cwd=folder)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    done = run("decide", "gaps.csv", "--gaps", "keep", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Halted (no return on the last row), so not traded: A." in done.stdout
    assert "Listed too late (fewer than 63 returns), so not bought; what is held can be sold" in done.stdout
    summary = "Gaps: 2 of 4 assets miss returns: 1 listed late (1 too young to be bought), 1 halted."
    assert summary in done.stdout.splitlines()
    assert (
        json.loads(run("decide", "gaps.csv", "--gaps", "keep", "--json", cwd=folder).stdout)["gap_summary"] == summary
    )


def test_keeping_gaps_changes_nothing_where_there_are_none(run, folder):
    terms = ("--turnover", "0.4", "--previous", "held.csv", "--value", "1e5")
    answers, files = [], []
    for gaps in ("refuse", "keep"):
        done = run("decide", "prices.csv", *terms, "--gaps", gaps, "--out", f"{gaps}.json", "--json", cwd=folder)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
        files.append(json.loads((folder / f"{gaps}.json").read_text()))
        assert run("verify", f"{gaps}.json", "prices.csv", cwd=folder).returncode == 0
    assert answers[1].pop("gap_summary") == "Gaps: none, every asset has a return on every row."
    assert answers[0] == answers[1]
    assert {key for key in files[0] if files[0][key] != files[1][key]} <= {"data", "made", "checksum"}
    assert files[0]["data"] | {"gaps": "keep"} == files[1]["data"]


@pytest.mark.parametrize("rule", ["none", "bounds"])
def test_the_gain_of_the_trade_is_said(rule, run, folder):
    (folder / "c.toml").write_text("[weights]\nupper = 0.28\n")
    asked = (
        "decide",
        "prices.csv",
        "--turnover",
        "0.6",
        "--previous",
        "held.csv",
        "--cost",
        "2",
        "--risk-aversion",
        "9",
    )
    asked += ("--constraints", "c.toml") if rule == "bounds" else ("--frontier",)
    facts = json.loads(run(*asked, "--json", cwd=folder).stdout)
    gain, text = facts["gain"], run(*asked, cwd=folder).stdout
    assert gain["utility"] == pytest.approx(gain["return"] + gain["risk"] + gain["cost"])
    assert gain["cost"] == pytest.approx(-facts["exact"]["cost"] / facts["days"])
    assert gain["a_year"] == pytest.approx(252 * gain["utility"])
    said = re.search(
        r"no trade: (\S+) bp a day, .* \(return (\S+), risk (\S+), cost (\S+) bp a day\)", " ".join(text.split())
    )
    utility, *parts = map(float, said.groups())
    assert utility == pytest.approx(1e4 * gain["utility"], abs=0.006)
    assert utility == pytest.approx(sum(parts), abs=2 * 10.0 ** -len(said[1].partition(".")[2]))  # as printed
    assert f"{1e4 * gain['a_year']:+.0f} bp a year" in text or f"{1e4 * gain['a_year']:+.1f} bp a year" in text
    assert ("The current weights do not meet the constraints" in text) == (gain["utility"] < 0)
    if rule == "none":
        curve = facts["frontier"]["curve"]
        there = np.interp(facts["turnover"], curve["turnover_l1"], curve["gain"])
        assert facts["days"] * gain["utility"] == pytest.approx(there, rel=1e-3)


def test_what_has_no_price_for_long_is_not_sold_and_the_gain_is_beside_no_trade(run, folder):
    table = pd.read_csv(folder / "returns.csv", index_col=0)
    table.iloc[-30:, 0] = np.nan
    table.to_csv(folder / "delisted.csv")
    asked = ("decide", "delisted.csv", "--returns", "--gaps", "keep", "--previous", "held.csv", "--turnover", "2")
    facts = json.loads(run(*asked, "--json", cwd=folder).stdout)
    assert facts["weights"]["A"] == pytest.approx(0.3)
    assert facts["gain"]["over"] == "no trade"
    assert facts["gain"]["utility"] == pytest.approx(sum(facts["gain"][part] for part in ("return", "risk", "cost")))
    assert (
        "Delisted, or halted for long (no return in the last 21 rows), so not traded" in run(*asked, cwd=folder).stdout
    )


def test_no_gain_is_said_of_no_trade(run, folder):
    done = run("decide", "prices.csv", "--previous", "held.csv", "--cost", "500", cwd=folder)
    assert done.stdout.startswith("No trade after")
    assert "Expected gain" not in done.stdout


def test_a_decision_file_is_written_and_verified_without_torch(run, folder):
    text = '[weights]\nupper = 0.5\n[cash]\nmost = 0.3\n[groups.x]\nassets = ["A", "B"]\nupper = 0.4\n'
    (folder / "c.toml").write_text(text)
    asked = ("decide", "prices.csv", "--turnover", "0.6", "--previous", "held.csv", "--constraints", "c.toml")
    done = run(*asked, "--benchmark", "held.csv", "--out", "decision.json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    code = (
        "import sys; from time2decide.cli import main\n"
        "try:\n    main()\nfinally:\n    print(sorted({'torch', 'safetensors', 'daqp'} & set(sys.modules)))"
    )
    call = [sys.executable, "-c", code, "verify", "decision.json", "prices.csv"]
    found = subprocess.run(call, capture_output=True, text=True, cwd=folder, check=False)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    *lines, loaded = found.stdout.splitlines()
    assert loaded == "[]"
    checks = ("file", "data", "trades", "terms", "start", "feasible", "optimal", "verdict", "reasons", "model")
    assert [line.split()[:2] for line in lines[:-1]] == [["ok", name] for name in checks]
    pd.read_csv(folder / "prices.csv").iloc[:-1].to_csv(folder / "other.csv", index=False)
    other = run("verify", "decision.json", "other.csv", cwd=folder)
    assert other.returncode == 1
    assert "FAILED  data" in other.stdout
    (folder / "decision.json").write_text((folder / "decision.json").read_text().replace("0.4", "0.5", 1))
    changed = json.loads(run("verify", "decision.json", "prices.csv", "--json", cwd=folder).stdout)
    assert not changed["passed"]
    assert "changed after it was written" in changed["checks"][0]["text"]


def test_no_order_without_a_current_price(run, folder):
    prices = pd.read_csv(folder / "prices.csv", index_col=0)
    prices.iloc[-25:, 0] = np.nan  # delisted, and halted
    prices.iloc[-1, 1] = np.nan
    prices.to_csv(folder / "gone.csv", index_label="date")
    asked = ("decide", "gone.csv", "--gaps", "keep", "--previous", "held.csv", "--value", "100000")
    facts = json.loads(run(*asked, "--json", cwd=folder).stdout)
    assert facts["change"]["A"] == facts["change"]["B"] == 0
    for asset in "AB":
        assert (facts["orders"]["shares"][asset], facts["orders"]["price"][asset]) == (0, None)
    assert facts["orders"]["unpriced"] == []  # nothing is to be traded of them
    assert facts["orders"]["cash"] >= 0
    (folder / "quotes.csv").write_text('asset,price\nC,30\n"D, E",40\n')
    given = (*asked, "--price-file", "quotes.csv")
    assert json.loads(run(*given, "--json", cwd=folder).stdout)["orders"]["unpriced"] == []
    (folder / "quotes.csv").write_text('asset,price\nA,1\n"D, E",40\n')
    refused = run(*given, cwd=folder)
    assert refused.returncode == 2
    assert "quotes.csv: expected a price of every asset that can be traded, found none of C" in refused.stderr


def test_orders_in_whole_shares(run, folder):
    asked = ("decide", "prices.csv", "--turnover", "0.5", "--previous", "held.csv", "--value", "100000", "--cost", "1")
    facts = json.loads(run(*asked, "--json", "--out", "d.json", cwd=folder).stdout)
    orders = facts["orders"]
    assert json.loads((folder / "d.json").read_text())["orders"] == orders
    checked = run("verify", "d.json", "prices.csv", cwd=folder)
    assert checked.returncode == 0, checked.stdout
    assert "orders in whole shares follow from weights" in checked.stdout
    assert orders["cash"] >= 0
    assert all(number == int(number) for number in orders["shares"].values())
    assert orders["largest_difference"] < 0.002
    last = pd.read_csv(folder / "prices.csv").iloc[-1]
    for asset, shares in orders["shares"].items():
        assert orders["money"][asset] == pytest.approx(shares * last[asset])
        assert np.sign(shares) * np.sign(facts["change"][asset]) >= 0
    shown = run(*asked, cwd=folder).stdout
    assert "shares" in shown
    assert f"cash left {orders['cash']:,.2f}" in shown
    (folder / "quotes.csv").write_text('asset,price\nA,10\nB,20\nC,30\n"D, E",40\n')
    (folder / "shares.csv").write_text('asset,shares\nA,1000\nB,500\nC,200\n"D, E",100\n')
    given = ("decide", "returns.csv", "--price-file", "quotes.csv")
    facts = json.loads(run(*given, "--previous", "shares.csv", "--json", cwd=folder).stdout)
    assert facts["previous"] == pytest.approx({"A": 10 / 30, "B": 10 / 30, "C": 6 / 30, "D, E": 4 / 30})
    assert facts["orders"]["value"] == 30000
    for wrong, text in (
        (("decide", "returns.csv", "--value", "1e6"), "value: expected prices: a table of prices, or --price-file"),
        (given, "price_file: expected --value or held shares with it"),
    ):
        refused = run(*wrong, cwd=folder)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert text in refused.stderr


def test_orders_keep_the_caps_and_say_what_whole_shares_cannot(run, folder):
    (folder / "cap.toml").write_text("[weights]\nupper = 0.3\n")
    asked = ("decide", "prices.csv", "--turnover", "1", "--previous", "held.csv", "--constraints", "cap.toml")
    kept = json.loads(run(*asked, "--value", "10000", "--json", "--out", "d.json", cwd=folder).stdout)
    held = {a: kept["previous"][a] + kept["orders"]["money"][a] / 10000 for a in kept["previous"]}
    assert max(held.values()) <= 0.3 + 1e-9
    assert kept["orders"]["broken"] == []
    assert run("verify", "d.json", "prices.csv", cwd=folder).returncode == 0
    (folder / "cap.toml").write_text("[weights]\nlower = 0.2\nupper = 0.3\n")
    shown = run(*asked, "--value", "200", cwd=folder).stdout
    assert "all constraints hold for the target" in shown
    assert "In whole shares these are not met: weight of " in shown


def test_a_held_young_asset_above_its_cap_is_not_called_within_the_constraints(run, folder):
    table = pd.read_csv(folder / "returns.csv")
    table.loc[: len(table) - 20, "A"] = np.nan
    table.to_csv(folder / "young.csv", index=False)
    (folder / "cap.toml").write_text("[assets.A]\nupper = 0.05\n")
    asked = ("decide", "young.csv", "--gaps", "keep", "--previous", "held.csv")
    shown = run(*asked, "--constraints", "cap.toml", cwd=folder).stdout
    assert "NOT MET, because it cannot be traded: A 30% (at most 5%); all other constraints hold" in shown
    assert "; all constraints hold" in run(*asked, cwd=folder).stdout


@pytest.mark.parametrize("kind", ["weight", "shares"])
def test_what_is_not_in_a_file_of_holdings_is_not_held_and_is_named(kind, run, folder):
    numbers = (0.5, 0.2, 0.3) if kind == "weight" else (10, 20, 30)
    lines = [f"{name},{number}" for name, number in zip(("A", "B", '"D, E"'), numbers, strict=True)]
    (folder / "some.csv").write_text("\n".join([f"asset,{kind}", *lines]))
    asked = ("decide", "prices.csv", "--previous", "some.csv", "--turnover", "0.1")
    done = run(*asked, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["previous"]["C"] == 0
    assert "Assumed: weight 0 of C, which --previous leaves out" in run(*asked, cwd=folder).stdout
    (folder / "portfolio.toml").write_text('table = "prices.csv"\nvalues = "prices"\nholdings = "some.csv"\n')
    made = run("run", "portfolio.toml", cwd=folder)
    assert made.returncode == 0, made.stderr
    assert "file some.csv leaves out C: weight 0" in made.stderr


def test_weights_that_do_not_sum_to_1_are_scaled_up_to_a_tolerance_and_that_is_said(run, folder):
    asked = ("decide", "returns.csv", "--returns", "--previous", "held.csv")
    (folder / "portfolio.toml").write_text('table = "returns.csv"\nvalues = "returns"\nholdings = "held.csv"\n')
    assert "scaled" not in run(*asked, cwd=folder).stdout
    (folder / "held.csv").write_text('asset,weight\nB,0.4004\nA,0.3\n"D, E",0.2\nC,0.1\n')
    assert "the weights of --previous, of sum 1.0004, are scaled to the sum 1" in run(*asked, cwd=folder).stdout
    told = run("run", "portfolio.toml", cwd=folder).stderr
    assert "the weights of file held.csv, of sum 1.0004, are scaled to the sum 1" in told
    (folder / "held.csv").write_text('asset,weight\nB,0.402\nA,0.3\n"D, E",0.2\nC,0.1\n')
    assert run(*asked, cwd=folder).returncode == 2


def test_verify_reads_prices_where_returns_were_decided_on_and_says_what_it_cannot_judge(run, folder):
    prices = pd.read_csv(folder / "prices.csv", index_col="date")
    prices.iloc[60:, 0] = np.nan  # delisted
    prices.to_csv(folder / "gone.csv")
    load_returns(prices, "prices", gaps="keep").to_csv(folder / "made.csv", index_label="date")
    asked = ("decide", "made.csv", "--returns", "--gaps", "keep", "--previous", "held.csv", "--out", "d.json")
    assert run(*asked, cwd=folder).returncode == 0
    refused = run("verify", "d.json", "gone.csv", cwd=folder)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "or --prices" in refused.stderr
    assert "data      " in run("verify", "d.json", "gone.csv", "--prices", cwd=folder).stdout
    pd.read_csv(folder / "made.csv").iloc[:100].to_csv(folder / "short.csv", index=False)
    done = run("verify", "d.json", "short.csv", cwd=folder)
    assert done.returncode == 1
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")] == ["data"]
    assert "cannot be judged" in done.stdout
    assert "The table is not that of the decision: the other checks are of the file alone." in done.stdout


def test_the_hint_to_all_assets_is_not_shown_with_all_assets(run, folder):
    asked = ("decide", "prices.csv", "--turnover", "0.01", "--previous", "held.csv")
    assert "(--all shows them)" in run(*asked, cwd=folder).stdout
    assert "--all" not in run(*asked, "--all", cwd=folder).stdout


def test_current_weights_under_constraints_must_sum_to_1_unless_cash_or_borrowing_explains_it(run, folder):
    names = ["A", "B", "C", "D, E"]
    (folder / "c.toml").write_text("[weights]\nupper = 0.6\n")
    (folder / "over.csv").write_text('asset,weight\nA,0.3\nB,0.4\nC,0.2\n"D, E",0.2\n')
    asked = ("decide", "returns.csv", "--constraints", "c.toml", "--json")
    refused = run(*asked, "--previous", "over.csv", cwd=folder)
    assert (refused.returncode, refused.stderr.count("\n"), refused.stdout) == (2, 1, "")
    assert "previous_weights: expected weights of sum 1, found a sum of 1.1" in refused.stderr
    limits = {
        "none": Constraints(upper=0.6),
        "cash": Constraints(cash=(0.0, 0.2)),
        "borrowing": Constraints(exposure=1.3),
    }
    allowed = {"none": (1.0, 1.0005), "cash": (0.75, 1.0), "borrowing": (1.0, 1.1)}
    for kind, rules in limits.items():
        for total in (0.75, 1.0, 1.0005, 1.1):
            weights = np.full(4, total / 4)
            if total in allowed[kind] or total == 1.0005:
                found = validate_current_weights("w", weights, 4, names, rules)
                assert found.sum() == pytest.approx(1.0 if kind == "none" else total)
            else:
                with pytest.raises(InputError, match="w: expected weights of sum 1"):
                    validate_current_weights("w", weights, 4, names, rules)


def test_a_value_that_is_not_that_of_the_shares_is_refused_unless_the_rest_may_be_cash(run, folder):
    (folder / "quotes.csv").write_text('asset,price\nA,10\nB,20\nC,30\n"D, E",40\n')
    (folder / "shares.csv").write_text('asset,shares\nA,1000\nB,500\nC,200\n"D, E",100\n')
    (folder / "cash.toml").write_text("[cash]\nmost = 0.2\n")
    given = ("decide", "returns.csv", "--price-file", "quotes.csv", "--previous", "shares.csv", "--json", "--value")
    for value in ("33000", "25000"):
        refused = run(*given, value, cwd=folder)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "value: expected 30,000.00, the shares at their prices" in refused.stderr
    assert json.loads(run(*given, "30200", cwd=folder).stdout)["orders"]["value"] == 30000
    told = run(*(word for word in given if word != "--json"), "30200", cwd=folder).stdout
    assert "200.00 of --value is in no share and stays out" in " ".join(told.split())
    facts = json.loads(run(*given, "33000", "--constraints", "cash.toml", cwd=folder).stdout)
    assert facts["orders"]["value"] == 33000
    assert sum(facts["previous"].values()) == pytest.approx(30 / 33)
    assert run(*given, "25000", "--constraints", "cash.toml", cwd=folder).returncode == 2


def test_a_backtest_says_its_constraints(run, folder):
    (folder / "limits.toml").write_text('[weights]\nupper = 0.5\n[groups.x]\nassets = ["A", "B"]\nupper = 0.4\n')
    asked = ("backtest", "returns.csv", "--returns", "--strategies", "uniform,inverse-volatility", "--out", "b")
    done = run(*asked, "--constraints", "limits.toml", "--report", "r.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    said = "Constraints of limits.toml: bounds of 4 assets, 1 limit on groups and exposures."
    assert said in " ".join(done.stdout.split())
    assert said in (folder / "r.html").read_text()


def test_bounds_that_bind_are_named(run, folder):
    (folder / "c.toml").write_text('[assets."D, E"]\nlower = 0.4\nupper = 0.9\n')  # the optimum holds less of it
    done = run("decide", "returns.csv", "--constraints", "c.toml", "--turnover", "0.4", cwd=folder)
    assert "binding: 1 bound (D, E at 40.00%)" in done.stdout


def test_limits_are_shown_with_their_ends_those_that_bind_first():
    names = [*(f"group {i}" for i in range(7)), "exposure beta"]
    facts = {"limits": dict.fromkeys(names, 0.25) | {"exposure beta": 1.05}, "active": ["exposure beta", "turnover"]}
    facts["limit_ends"] = {name: [None, 0.3] for name in names} | {"exposure beta": [0.8, 1.05], "group 0": [0.1, 0.3]}
    lines = limit_lines(facts)
    assert lines[0] == "  exposure beta: 1.05 (at least 0.8, at most 1.05, binding)"
    assert lines[1:3] == ["  group 0: 25.00% (at least 10.00%, at most 30.00%)", "  group 1: 25.00% (at most 30.00%)"]
    assert lines[-1] == "  and 2 more limits (--json has all)"
    assert len(lines) == 7


def test_a_delisted_asset_may_be_left_out_of_the_current_weights_as_of_shares(run, folder):
    prices = 100 * np.exp(np.random.default_rng(3).normal(0, 0.01, (120, 4)).cumsum(axis=0))
    table = pd.DataFrame(prices, pd.bdate_range("2023-01-02", periods=120, name="date"), list("ABCD"))
    table.iloc[80:, 3] = np.nan
    table.to_csv(folder / "prices.csv")
    last = table.iloc[-1]
    (folder / "shares.csv").write_text("asset,shares\nA,10\nB,20\nC,30\n")
    money = {"A": 10 * last["A"], "B": 20 * last["B"], "C": 30 * last["C"]}
    lines = "".join(f"{name},{float(one / sum(money.values()))!r}\n" for name, one in money.items())
    (folder / "weights.csv").write_text("asset,weight\n" + lines)
    asked = ("decide", "prices.csv", "--gaps", "keep", "--turnover", "0.3", "--previous")
    found = {}
    for name in ("shares.csv", "weights.csv"):
        shown = run(*asked, name, cwd=folder)
        assert shown.returncode == 0, shown.stderr
        assert "Assumed: weight 0 of D, which --previous leaves out" in " ".join(shown.stdout.split())
        found[name] = json.loads(run(*asked, name, "--json", cwd=folder).stdout)["weights"]
    assert found["shares.csv"] == pytest.approx(found["weights.csv"], abs=1e-9)
    (folder / "weights.csv").write_text("asset,weight\nA,0.5\nB,0.5\n")
    assert "weight 0 of C, D, which --previous leaves out" in run(*asked, "weights.csv", cwd=folder).stdout


def test_an_asset_delisted_before_the_rows_that_are_used(run, folder):
    table = pd.read_csv(folder / "returns.csv", index_col=0)
    table.iloc[: len(table) - 110, 3] = table.iloc[: len(table) - 110, 3]
    table.iloc[5:, 3] = np.nan
    table.to_csv(folder / "gone.csv")
    terms = ("--gaps", "keep")
    rest = ("--last", "110", "--strategies", "uniform,inverse-volatility", "--out", "tested")
    shown = run("backtest", "gone.csv", *rest, *terms, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    name = str(table.columns[3])
    assert f"Without any return in these rows, so never held: {name}." in " ".join(shown.stdout.split())
    assert run("backtest", "gone.csv", *rest, cwd=folder).returncode == 2
    table.iloc[5:].to_csv(folder / "cut.csv")
    decided = run("decide", "cut.csv", *terms, cwd=folder)
    assert decided.returncode == 0, decided.stderr
    assert f"what was paid out for them belongs in --previous: {name}." in decided.stdout


def test_small_trades_are_not_made_and_the_file_verifies(run, folder):
    asked = ("decide", "returns.csv", "--turnover", "0.6", "--previous", "held.csv", "--cost-bps", "1")
    free = json.loads(run(*asked, "--json", cwd=folder).stdout)
    trades = sorted(abs(trade) for trade in free["change"].values() if abs(trade) > 1e-9)
    least = repr((trades[0] + trades[1]) / 2)
    shown = run(*asked, "--min-trade", least, "--out", "decision.json", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert f"Trades smaller than {float(least):.2%} are not made" in shown.stdout
    document = json.loads((folder / "decision.json").read_text())
    assert min(abs(trade) for trade in document["trades"].values() if trade) >= float(least) * (1 - 1e-6)
    assert document["min_trade"]["fixed"]
    assert run("verify", "decision.json", "returns.csv", cwd=folder).returncode == 0
    wrong = run(*asked, "--min-trade", "2", cwd=folder)
    assert (wrong.returncode, "min_trade" in wrong.stderr) == (2, True)
