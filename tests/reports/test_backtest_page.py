"""The page of a backtest: what it holds, and what a real browser makes of it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from time2decide.backtesting.walk_forward import backtest, with_intervals
from time2decide.cli.backtest import COLUMNS, latest_decision
from time2decide.reports.backtest_page import page_data, write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FACTS = {"source": "</script>.csv", "values": "returns", "cost_bps": 10.0, "window": 96, "columns": COLUMNS}
CHARTS = ("wealth", "drawdown", "areas", "traded", "regret", "compare", "change", "pull", "noise")


@pytest.fixture(scope="module")
def outcome():
    days = pd.date_range("2023-01-02", periods=140, freq="B")
    values = np.random.default_rng(0).normal(0.0004, 0.01, (140, 5))
    table = pd.DataFrame(values, index=days, columns=list("ABCDE"))
    result = backtest(table, ["time2decide", "uniform", "pto-ar1", "oracle"], [0.2, 1.0])
    return result, with_intervals(result, draws=50), latest_decision(result, table, 0.1)


@pytest.fixture(scope="module")
def path(outcome, tmp_path_factory):
    result, summary, decision = outcome
    return write_page(result, summary, tmp_path_factory.mktemp("page") / "page.html", FACTS, decision)


def test_the_page_holds_the_paths_and_asks_for_nothing(outcome, path):
    result, summary, decision = outcome
    text = path.read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.DOTALL)[1])
    assert data == json.loads(json.dumps(page_data(result, summary, FACTS, decision)))
    wealth = result.frame.query("strategy == 'uniform' and turnover_l1 == 0.2")["wealth"]
    np.testing.assert_allclose(data["paths"][0]["uniform"]["wealth"], wealth, atol=1e-5)
    np.testing.assert_allclose(np.sum(data["areas"][1]["time2decide"], axis=0), 1, atol=1e-3)
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?:', text)


def test_intervals_hold_the_figure_and_repeat(outcome):
    result, summary, _ = outcome
    assert (summary["sharpe_low"] <= summary["sharpe"]).all()
    assert (summary["sharpe"] <= summary["sharpe_high"]).all()
    assert (summary.query("strategy == 'uniform'")[["sharpe_excess", "sharpe_excess_high"]] == 0).all().all()
    pd.testing.assert_frame_equal(summary, with_intervals(result, draws=50))
    assert not summary.isna().any().any()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_in_a_browser(path, width, scheme):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        complaints, requests = [], []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(Path(path).as_uri())
        for chart in CHARTS:
            page.wait_for_selector(f"#{chart} .main-svg", timeout=60_000, state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width >= 1280:  # also with the longest name
            page.evaluate("document.querySelector('#summary tbody td').prepend('mean-variance-shrunk')")
            box = "document.getElementById('summary').parentElement"
            assert page.evaluate(f"{box}.scrollWidth <= {box}.clientWidth")
        sorts_by_a_click(page)
        charts_respond(page)
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") != scheme
        browser.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def sorts_by_a_click(page):
    for table in ("summary", "allocation"):
        key = {"summary": "traded", "allocation": "forecast"}[table]
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
