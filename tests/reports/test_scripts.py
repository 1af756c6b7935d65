"""No name that comes from outside runs as a script, in the page of a backtest or in the report: in a real browser."""

import shutil

import numpy as np
import pandas as pd
import pytest

from time2decide.backtesting.walk_forward import backtest, with_intervals
from time2decide.cli.backtest import column_meanings
from time2decide.experiments import get_experiment
from time2decide.experiments.store import Store
from time2decide.markets.periods import Frequency
from time2decide.policy.decision_facts import decision_facts
from time2decide.reports import write_report
from time2decide.reports.backtest_page import write_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
RUN = "document.documentElement.dataset.hacked=1"
NAMES = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f'"><svg onload="{RUN}">',
    f"'><details open ontoggle='{RUN}'>",
    f'<a href="javascript:{RUN}">A</a>',
    f"<!--<script>{RUN}//-->",
    "%%TITLE%%",
    "__proto__",
    "constructor",
]


class Named:
    """Equal weights under any name."""

    wants_hindsight = False

    def __init__(self, name):
        self.name = name

    def decide(self, observation):
        return np.full_like(observation.previous, 1 / observation.previous.shape[-1])


def is_safe(path):
    """Open a page, press everything that can be pressed, and see whether a script of a name has run."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    asked = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: dialog.dismiss())
        page.goto(path.as_uri())
        page.wait_for_load_state("networkidle")
        page.evaluate(
            "for (const one of document.querySelectorAll('button, summary, th, g.traces, a')) "
            "for (const kind of ['mouseover', 'click']) one.dispatchEvent(new MouseEvent(kind, {bubbles: true}))"
        )
        page.wait_for_timeout(500)
        hacked = page.evaluate("document.documentElement.dataset.hacked")
        text = page.inner_text("body")
        browser.close()
    assert hacked is None
    assert [url for url in asked if not url.startswith((path.as_uri(), "data:", "blob:"))] == []
    return text


def test_the_page_of_a_backtest(tmp_path):
    days = pd.bdate_range("2023-01-02", periods=130)
    array = 0.01 * np.random.default_rng(0).standard_normal((130, len(NAMES))) * np.linspace(0.5, 2, len(NAMES))
    table = pd.DataFrame(array, days, NAMES)
    result = backtest(table, ["market", "uniform", Named(NAMES[2]), Named(NAMES[5])], [0.3, 1.0])
    terms = {"risk_aversion": 2.0, "cost_bps": 1.0, "with_uncertainty": False, "with_frontier": True}
    facts = {"source": f"{NAMES[2]}{NAMES[1]}.csv", "values": "returns", "cost_bps": 10.0, "window": 96}
    decision = decision_facts(table, None, 0.5, **terms)
    path = tmp_path / "page.html"
    write_page(
        result,
        with_intervals(result, draws=20),
        path,
        facts | {"columns": column_meanings(Frequency(252.0, "day"))},
        decision,
    )
    text = is_safe(path)
    assert NAMES[2] in text  # as text


def test_the_report(tmp_path):
    experiment = get_experiment("toy-pto")
    for config, name in zip(experiment.tasks("smoke"), NAMES, strict=False):
        Store("toy-pto", "smoke", tmp_path).append(config, [], 0.1, f"Traceback\n{name}{NAMES[2]}")
    for name in NAMES:
        row = {"compared": name, name: 1.0, "other": [name, {name: name}]}
        Store("bench-labels", "cpu", tmp_path).append({"bench": name}, [row], 1.0)
    Store('bench-" onclick="x', "cpu", tmp_path).append({"bench": "x"}, [{"a": 1}], 1.0)
    path, _ = write_report(tmp_path / "report.html", tmp_path)
    text = is_safe(path)
    assert NAMES[2] in text
    assert "onclick" not in path.read_text().replace("&quot;", '"')
