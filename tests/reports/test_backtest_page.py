"""The page of a backtest: what it holds, and what a real browser makes of it."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from time2decide.backtesting.walk_forward import backtest, with_intervals
from time2decide.cli.backtest import column_meanings, latest_decision
from time2decide.markets.periods import Frequency
from time2decide.policy.decision_facts import decision_facts
from time2decide.reports.backtest_page import backtest_page_data, write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FACTS = {
    "source": "</script>.csv",
    "values": "returns",
    "cost_bps": 10.0,
    "window": 96,
    "columns": column_meanings(Frequency(252.0, "day")),
}
CHARTS = ("wealth", "drawdown", "areas", "traded", "compare", "regret")


def outcome_of(policy, assets):
    days = pd.date_range("2023-01-02", periods=140, freq="B")
    values = np.random.default_rng(0).normal(0.0004, 0.01, (140, assets)) * np.linspace(0.3, 2.5, assets)
    table = pd.DataFrame(values, index=days, columns=[f"A{i:02d}<b>" for i in range(assets)])
    result = backtest(table, [policy, "uniform", "pto-ar1", "oracle"], [0.2, 1.0], risk_aversion=5.0)
    return result, with_intervals(result, draws=50), table


@pytest.fixture(scope="module")
def outcome():
    """Of the network of synthetic markets, with its latest decision."""
    result, summary, table = outcome_of("time2decide", 5)
    return result, summary, latest_decision(result, table)


@pytest.fixture(scope="module")
def market():
    """Of the market policy, with a decision from equal weights that trades many assets."""
    result, summary, table = outcome_of("market", 24)
    terms = {"risk_aversion": 5.0, "cost_bps": 0.5, "with_uncertainty": False, "with_frontier": True}
    return result, summary, decision_facts(table, None, 0.5, **terms), latest_decision(result, table)


@pytest.fixture(scope="module")
def path(outcome, tmp_path_factory):
    result, summary, decision = outcome
    return write_page(result, summary, tmp_path_factory.mktemp("page") / "page.html", FACTS, decision)


@pytest.fixture(scope="module")
def market_path(market, tmp_path_factory):
    result, summary, decision, _ = market
    return write_page(result, summary, tmp_path_factory.mktemp("page") / "market.html", FACTS, decision)


def test_the_page_holds_the_paths_and_asks_for_nothing(outcome, path):
    result, summary, decision = outcome
    text = path.read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.DOTALL)[1])
    assert data == json.loads(json.dumps(backtest_page_data(result, summary, FACTS, decision)))
    wealth = result.frame.query("strategy == 'uniform' and turnover_l1 == 0.2")["wealth"]
    np.testing.assert_allclose(data["paths"][0]["uniform"]["wealth"], wealth, atol=1e-4)
    np.testing.assert_allclose(
        np.sum([part["weights"] for part in data["areas"][1]["time2decide"]], axis=0), 1, atol=1e-3
    )
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?:', text)


def test_the_page_says_whose_portfolio_is_traded_and_under_which_constraints(market, tmp_path):
    result, summary, own, simulated = market
    facts = FACTS | {"source": "my.csv", "constraints": "Constraints of limits.toml: 2 limits."}
    texts = [write_page(result, summary, tmp_path / "p.html", facts, made).read_text() for made in (own, simulated)]
    assert ["rebalancing of the simulated portfolio after" in text for text in texts] == [False, True]
    if CHROMIUM is None:
        return
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto((tmp_path / "p.html").as_uri())
        assert page.inner_text("#trading") == "What to trade from the simulated portfolio of the backtest"
        assert page.inner_text("#decided").startswith("From the simulated portfolio of the backtest, not yours")
        assert page.inner_text("#decided code") == "time2decide decide --previous"
        assert "`" not in page.inner_text("body")
        assert "Constraints of limits.toml: 2 limits." in page.inner_text("#lead")
        browser.close()


def test_intervals_hold_the_figure_and_repeat(outcome):
    result, summary, _ = outcome
    assert (summary["sharpe_low"] <= summary["sharpe"]).all()
    assert (summary["sharpe"] <= summary["sharpe_high"]).all()
    assert (summary.query("strategy == 'uniform'")[["sharpe_excess", "sharpe_excess_high"]] == 0).all().all()
    pd.testing.assert_frame_equal(summary, with_intervals(result, draws=50))
    assert not summary.isna().any().any()


def test_the_latest_decision_starts_from_the_weights_of_the_next_row(market):
    result, _, _, decision = market
    assert {"reasons_bps", "frontier", "verdict"} <= set(decision)
    assert "uncertainty" not in decision
    days = np.random.default_rng(0).normal(0.0004, 0.01, (140, 24)) * np.linspace(0.3, 2.5, 24)
    longer = pd.DataFrame(np.vstack([days, days[:1]]), pd.bdate_range("2023-01-02", periods=141), result.assets)
    held = backtest(longer, ["market"], 0.2, risk_aversion=5.0, accept="rows_repeated").weights("market", 0.2).iloc[-1]
    np.testing.assert_allclose(list(decision["previous"].values()), held, atol=1e-12)
    for part in decision["reasons_bps"].values():  # beside the target portfolio, whose own are 0
        assert np.dot(list(part.values()), list(decision["weights"].values())) == pytest.approx(0, abs=1e-9)


def test_the_page_of_a_table_with_gaps_has_the_decision_under_constraints(tmp_path, run):
    days = pd.date_range("2023-01-02", periods=160, freq="B", name="date")
    values = np.random.default_rng(1).normal(0.0004, 0.01, (160, 6)) * np.linspace(0.5, 2, 6)
    table = pd.DataFrame(values, index=days, columns=list("ABCDEF"))
    table.iloc[:130, 5], table.iloc[-1, 4], table.iloc[-25:, 3] = np.nan, np.nan, np.nan
    table.to_csv(tmp_path / "gaps.csv")
    (tmp_path / "limits.toml").write_text('[weights]\nlower = 0.01\n[groups.x]\nassets = ["A", "B"]\nupper = 0.45\n')
    asked = ("backtest", "gaps.csv", "--returns", "--gaps", "keep", "--constraints", "limits.toml", "--turnover", "0.2")
    done = run(*asked, "--strategies", "market,uniform", "--report", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.html").read_text()
    decision = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.DOTALL)[1])["decision"]
    told = "Delisted before the end: D. Holdings are paid out 21 rows after the last return, at -30% on the last price"
    assert done.stdout.index("└") < done.stdout.index(told)
    assert told in text
    held = decision["weights"]["A"] + decision["weights"]["B"]
    assert decision["limit_words"][0].startswith(f"group x: {held:.2%} (at most 45.00%")
    assert decision["gaps"] == {"delisted": ["D"], "halted": ["E"], "young": ["F"], "outside": ["D", "F"]}
    assert [note.split(", so")[0] for note in decision["gap_notes"][:3]] == [
        "Delisted, or halted for long (no return in the last 21 rows)",
        "Halted (no return on the last row)",
        "Listed too late (fewer than 63 returns)",
    ]
    assert decision["weights"]["A"] + decision["weights"]["B"] <= 0.45 + 1e-9
    assert decision["constraints"]["satisfied"]
    assert len(decision["frontier"]["points"]) == 13
    assert decision["turnover_from_budget"] <= 0.2 + 1e-9


def test_many_assets_are_drawn_as_a_few_and_the_others(market):
    result, summary, decision, _ = market
    parts = backtest_page_data(result, summary, FACTS, decision)["areas"][0]["market"]
    assert [part["name"] for part in parts][-1] == "12 others"
    assert len(parts) == 13
    np.testing.assert_allclose(np.sum([part["weights"] for part in parts], axis=0), 1, atol=1e-3)


def test_every_page_is_smaller_than_three_megabytes(path, market_path):
    assert max(path.stat().st_size, market_path.stat().st_size) < 3_000_000


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("policy", ["network", "market"])
def test_in_a_browser(path, market_path, market, policy, width, scheme):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        complaints, requests = [], []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(Path(path if policy == "network" else market_path).as_uri())
        for chart in (*CHARTS, "frontier"):
            page.wait_for_selector(f"#{chart} .main-svg", timeout=60_000, state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate("document.querySelector('#summary tbody td').prepend('minimum-variance-iewma')")
        for table in ("trades", "records", "summary"):  # also with the longest name
            box = f"document.getElementById('{table}').parentElement"
            assert page.evaluate(f"{box}.scrollWidth <= {box}.clientWidth"), table
        page.reload()
        page.wait_for_selector("#compare .main-svg", timeout=60_000, state="attached")
        if policy == "market":
            starts_with_the_decision(page, market[2])
        sorts_by_a_click(page)
        charts_respond(page)
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") != scheme
        browser.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def starts_with_the_decision(page, decision):
    tops = [page.evaluate(f"document.getElementById('{name}').getBoundingClientRect().top") for name in
            ("trades", "verdict", "summary", "frontier", "wealth")]  # fmt: skip
    assert tops == sorted(tops)
    largest = sorted(decision["change"], key=lambda name: -abs(decision["change"][name]))
    traded = [name for name in largest if abs(decision["change"][name]) > 5e-5]
    shown = page.eval_on_selector_all("#trades tbody tr", "rows => rows.map(r => r.cells[0].textContent)")
    assert shown == traded[:15]
    assert page.is_hidden("#smaller") == (len(traded) <= 15)
    assert f"{len(traded)} of 24 assets" in page.inner_text("#decided")
    assert page.inner_text("#verdict")[:40] == decision["verdict"]["text"][:40]
    made = decision["verdict"]["records"]
    assert page.eval_on_selector_all("#records tbody tr", "rows => rows.length") == len(made)
    assert len(page.query_selector_all("#findings li")) >= 3
    own = page.inner_text("#summary tr.own")
    assert "market" in own
    assert "Trading pays up to a turnover of" in page.inner_text("#stops")


def sorts_by_a_click(page):
    for table, key in (("summary", "traded"), ("trades", "change")):
        column = page.evaluate(
            f"[...document.querySelectorAll('#{table} th button')].findIndex(b => b.dataset.key === '{key}')"
        )
        for sign in (-1, 1):
            page.click(f'#{table} button[data-key="{key}"]')
            cells = page.eval_on_selector_all(
                f"#{table} tbody tr",
                f"rows => rows.map(r => parseFloat(r.cells[{column}].textContent.replace('−', '-')))",
            )
            assert cells == sorted(cells, reverse=sign < 0)


def charts_respond(page):
    lines = "document.getElementById('wealth').data.length"
    before = page.evaluate(lines)
    page.click("#legend button:first-child")
    assert page.evaluate(lines) == before - 1
    path = "JSON.stringify(document.getElementById('traded').data.at(-1).y)"
    first = page.evaluate(path)
    rows = "document.getElementById('summary').tBodies[0].textContent"
    before = page.evaluate(rows)
    page.click("#budgets button:last-child")
    assert page.evaluate(rows) != before
    assert "γ = 1" in page.inner_text("#results")
    assert page.evaluate(path) != first
    held = "JSON.stringify(document.getElementById('areas').data[0].y)"
    first = page.evaluate(held)
    page.select_option("#held", "oracle")
    assert page.evaluate(held) != first


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The page of one turnover budget, with lines that lie on each other and a frontier of one point."""
    days = pd.date_range("2023-01-02", periods=120, freq="B")
    values = np.random.default_rng(0).normal(0.0004, 0.01, (120, 5)) * np.linspace(0.3, 2.5, 5)
    table = pd.DataFrame(values, index=days, columns=list("ABCDE"))
    result = backtest(table, ["market", "market-risk", "uniform", "inverse-volatility"], 0.2)
    decision = latest_decision(result, table)
    point = decision["frontier"]["points"][-1] | {"turnover_l1": 0.07}
    decision["frontier"] |= {"points": [point] * 13, "stops_paying_at": 0.07}
    path = tmp_path_factory.mktemp("page") / "single.html"
    return write_page(result, with_intervals(result, draws=20), path, FACTS, decision)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_one_budget_in_a_browser(single, width, scheme):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto(single.as_uri())
        page.wait_for_selector("#compare .main-svg", timeout=60_000, state="attached")
        assert page.is_hidden("#budgets")
        assert page.inner_text("#compared") == "After costs, with 95 % intervals."
        rows = page.evaluate("document.getElementById('compare').data.map(d => [...d.y])")
        assert [set(names) for names in rows] == [{"market", "market-risk", "uniform", "inverse-volatility"}]
        assert page.is_hidden("#frontier")
        asked = "The constraints ask for a turnover of 7.0 %. More than that does not pay."
        assert page.inner_text("#stops").replace("\u00a0", " ") == asked
        lines_are_told_apart(page, width)
        titles = page.eval_on_selector_all(
            "#summary th button, #trades th button, #records th button",
            "all => all.map(b => b.getBoundingClientRect()).map(b => [b.left, b.right, b.height, b.width])",
        )
        assert all(left >= 0 and right <= width for left, right, *_ in titles)
        assert min(min(sides) for sides in (one[2:] for one in titles)) >= (40 if width == 390 else 24)
        browser.close()


def lines_are_told_apart(page, width):
    """Its own line is a wide one below the others, no two look the same, and wide screens name them at their end."""
    drawn = page.evaluate(
        "document.getElementById('wealth').data.map(d => [d.name, d.line.color, d.line.dash, d.line.width])"
    )
    assert drawn[0][0] == "market"
    assert drawn[0][3] >= 2 * max(line[3] for line in drawn[1:])
    assert len({line[2] for line in drawn[1:]}) == len(drawn) - 1
    samples = page.eval_on_selector_all("#legend svg line", "all => all.map(l => l.getAttribute('stroke-dasharray'))")
    assert len(set(samples[1:])) == 3
    labels = page.eval_on_selector_all(
        "#wealth .annotation", "all => all.map(a => [a.textContent, a.getBoundingClientRect().top])"
    )
    assert {name for name, _ in labels} == ({line[0] for line in drawn} if width > 600 else set())
    tops = sorted(top for _, top in labels)
    assert all(high - low >= 13 for low, high in pairwise(tops))
