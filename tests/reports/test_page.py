"""The report: a pure function of the store, self-contained, readable on a phone."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest

from time2decide.core.validation import InputError
from time2decide.experiments import experiment_ids, get_experiment, reproduce
from time2decide.experiments.claims import NOT_TESTED, OUR_NETWORK, SUPPORTED
from time2decide.experiments.store import Store
from time2decide.reports import write_report
from time2decide.reports.figures import FIGURES
from time2decide.reports.page import report_sections, results_of

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
STORED = Path(__file__).parent.parent.parent / "results"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report on the results that the project publishes."""
    return write_report(tmp_path_factory.mktemp("report") / "report.html", STORED)


def test_every_experiment_and_every_claim_is_on_the_page(report):
    page, text = (path.read_text() for path in report)
    for name in experiment_ids():
        assert f'<section id="{name}">' in page
        assert f'<a id="{name}"></a>' in text
    assert "Of " in text
    assert " not tested." in text
    assert "%%" not in page
    assert "0.9935" in page
    assert "0.9935" in text  # the paper's figure stands beside ours


def test_the_page_is_self_contained(report):
    page = report[0].read_text()
    assert "<script" not in page
    targets = re.findall(r"""(?:src|href|action|data)\s*=\s*["']([^"']*)""", page)
    assert targets
    assert all(target.startswith(("#", "data:")) for target in targets)
    assert not re.search(r"@import|url\((?!#)", page)


def test_claims_about_decisions_stand_under_the_network_that_they_are_judged_on(report):
    page, text = (path.read_text() for path in report)
    heading = (
        "Decisions, judged on the paper's architecture (TimePFN with covariance tokens, as literally described, 50"
    )
    for found in (html.unescape(page), text):
        general, literal, ours = (
            found.index(start)
            for start in (
                "Constructions, learned QP solvers and theory",
                heading,
                f"Decisions, judged on {OUR_NETWORK}",
            )
        )
        assert general < literal < ours
    group = text[text.index(heading) : text.index(f"judged on {OUR_NETWORK}")]
    assert "| not supported | Time2Decide is below SFT at every γ | [lambda-sweep]" in group
    assert "portfolio-clean" not in group


def test_shell_page_and_markdown_show_the_same_cells(report):
    page, text = (path.read_text() for path in report)
    cells = re.sub(r"<[^>]+>", " ", html.unescape(page)).replace("\u00a0", " ")
    plain = re.sub(r"\s+", " ", cells)
    for section in report_sections(STORED):
        for table in section.tables:
            shell = table.text()
            for row in table.rows:
                for cell in row:
                    assert cell in shell
                    assert cell.replace("|", "\\|") in text
                    assert " ".join(cell.split()) in plain


def test_the_same_store_gives_the_same_report(report, tmp_path):
    again = write_report(tmp_path / "report.html", STORED)
    assert again[0].read_bytes() == report[0].read_bytes()
    assert sorted(tmp_path.iterdir()) == sorted(again)


def test_another_text_beside_the_page_stays(tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("# Notes\n")
    with pytest.raises(InputError, match=r"out: expected no file or an older report .* found another text"):
        write_report(tmp_path / "notes.html", tmp_path / "nothing")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["# Notes\n"]
    write_report(tmp_path / "report.html", tmp_path / "nothing")
    write_report(tmp_path / "report.html", tmp_path / "nothing")  # its own text is replaced


@pytest.mark.parametrize("name", ["folder.html", "text.html"])
def test_a_folder_in_the_place_of_the_report_is_named_before_the_work(tmp_path, monkeypatch, name):
    monkeypatch.setattr("time2decide.reports.page.report_sections", None)  # no work can be done
    for folder in ("folder.html", "text.md"):
        (tmp_path / folder).mkdir()
    with pytest.raises(InputError, match="out: expected a file, found the folder"):
        write_report(tmp_path / name)
    with pytest.raises(InputError, match="out: expected a folder that can be written to, found /proc/sub"):
        write_report("/proc/sub/report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "text.md"]


def test_an_empty_store_has_a_report_without_verdicts(tmp_path):
    page, text = write_report(tmp_path / "report.html", tmp_path / "nothing")
    assert "no rows yet" in text.read_text()
    assert f'<span class="mark {SUPPORTED}' not in page.read_text()
    verdicts = {claim.verdict for section in report_sections(tmp_path / "nothing") for claim in section.claims}
    assert verdicts == {NOT_TESTED}


def test_failed_tasks_and_smoke_rows_are_named(tmp_path):
    experiment = get_experiment("toy-pto")
    reproduce(experiment, "smoke", root=tmp_path)
    config = experiment.tasks("smoke")[1]
    error = "Traceback (most recent call last):\n  File x\nRuntimeError: diverged"
    Store("toy-pto", "smoke", tmp_path).append(config, [], 0.1, error)
    section = next(s for s in report_sections(tmp_path) if s.id == "toy-pto")
    assert section.preset == "smoke"
    assert "2 of 2 tasks" in section.provenance
    assert "1 failed" in section.provenance
    failed = section.tables[0]
    assert failed.caption == "Failed tasks"
    assert "part=signal" in failed.rows[0][0]
    assert failed.rows[0][1] == "RuntimeError: diverged"
    found = {claim.text: claim.verdict for claim in section.claims}
    assert found["E2E regret < PtO regret at every n (exact)"] == SUPPORTED
    assert found["PtO's decision error grows with the signal"] == NOT_TESTED  # its rows are those that failed


def test_rows_without_a_field_are_bad_input_with_their_place(tmp_path):
    experiment = get_experiment("toy-pto")
    reproduce(experiment, "smoke", root=tmp_path)
    store = Store("toy-pto", "smoke", tmp_path)
    lines = [json.loads(text) for text in store.path.read_text().splitlines()]
    del lines[0]["rows"][0]["rho"]
    store.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=r"toy-pto/smoke.jsonl, line 1, task \w+: expected the field 'rho'"):
        write_report(tmp_path / "report.html", tmp_path)
    lines[0]["rows"][0]["rho"] = None
    store.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    place = r"toy-pto/smoke.jsonl, line 1, task \w+, field 'rho' \(None where other rows have a number\)"
    with pytest.raises(InputError, match=f"{place}: expected rows as the experiment writes them, found TypeError"):
        results_of(experiment, store.rows())
    with pytest.raises(InputError, match=place):
        write_report(tmp_path / "report.html", tmp_path)


def test_stored_benchmarks_have_a_section(tmp_path):
    Store("bench-labels", "cpu", tmp_path).append({"bench": "labels"}, [{"what": "x", "ratio": 340.25}], 1.0)
    section = report_sections(tmp_path)[-1]
    assert section.id == "bench-labels"
    assert section.tables[0].rows == [["x", "340.2"]]


def test_lines_without_provenance_are_reported(tmp_path):
    reproduce(get_experiment("toy-pto"), "smoke", root=tmp_path)
    path = Store("toy-pto", "smoke", tmp_path).path
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    kept = ("key", "config", "rows", "error")
    for number, line in enumerate(lines):
        lines[number] = {name: line[name] for name in kept} | ({"seconds": "long", "time": None} if number else {})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = next(s for s in report_sections(tmp_path) if s.id == "toy-pto")
    assert section.provenance == "preset smoke: 2 of 2 tasks, 0 s, None, commit None"


def test_tables_say_what_the_rows_say():
    found = {section.id: section for section in report_sections(STORED)}
    (uniform,) = [line for line in found["lambda-sweep"].tables[0].rows if line[0] == "uniform"]
    assert uniform[-1].endswith("(586)")  # the paper's figure at γ = 2
    assert uniform[-1].startswith("585.")  # the oracle is nearly one-hot there: 15/256
    for section in found.values():
        for table in section.tables:
            assert {len(line) for line in table.rows} == {len(table.columns)}, (section.id, table.caption)


def test_smoke_rows_have_tables_too(tmp_path):
    for name in ("lambda-sweep", "covariance-worth"):
        reproduce(get_experiment(name), "smoke", root=tmp_path)
    found = {section.id: section for section in report_sections(tmp_path)}
    table = found["lambda-sweep"].tables[0]
    kinds = ("s* history", "s* history, other returns")
    names = [f"{name} on {kind}" for name in ("paper-time2decide", "paper-sft") for kind in kinds]
    references = ["oracle", "uniform", "pretrained", "pto-timepfn", "pretrained × 100", "pto-timepfn × 100"]
    policies = ["time2decide", "time2decide-nocov", "market"]
    assert {line[0] for line in table.rows} == {*references, *policies, "paper-time2decide", "paper-sft", *names}
    assert found["covariance-worth"].tables[0].rows
    assert {claim.verdict for claim in found["lambda-sweep"].claims} > {NOT_TESTED}


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_opens_without_error_or_request(report, width, scheme):
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    problems, requests = [], []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(report[0].as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # only tables scroll, in their boxes
        if width >= 1280:  # a desktop needs no sideways scroll at all
            wide = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
            assert page.evaluate(wide) == 0
        drawn = page.evaluate("document.querySelectorAll('.figure svg').length")
        ink = page.evaluate("getComputedStyle(document.querySelector('.figure svg text')).fill")
        browser.close()
    assert drawn == sum((STORED / name).is_dir() for name in FIGURES)  # where there are rows
    assert ink == ("rgb(28, 33, 41)" if scheme == "light" else "rgb(228, 231, 235)")
    assert problems == []
    assert requests == [report[0].as_uri()]
