"""Rows that come with a wheel: the checkout's rows, shown outside it without any work, and never written."""

import json
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZIP_LZMA, ZipFile

import pytest

from time2decide.experiments import Store, get_experiment, registry
from time2decide.reports import write_report

ROOT = Path(__file__).parents[2]


BENCH = "bench-layers"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder with the rows of one experiment (preset smoke) and of one benchmark."""
    folder = tmp_path_factory.mktemp("made") / "results"
    registry.reproduce(get_experiment("toy-pto"), "smoke", root=folder)
    shutil.copytree(ROOT / "results" / BENCH, folder / BENCH)
    return folder


@pytest.fixture
def package(made, tmp_path, monkeypatch):
    """The same rows in an archive in the place of the wheel's, without any in the current folder."""
    archive = tmp_path / "package.zip"
    with ZipFile(archive, "w", ZIP_LZMA) as rows:
        for path in made.rglob("*.jsonl"):
            rows.write(path, path.relative_to(made))
    monkeypatch.setattr(registry, "PACKAGED", archive)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return archive


def test_the_build_ships_the_rows_of_the_preset_cpu(made, monkeypatch):
    stub = SimpleNamespace(BuildHookInterface=object)  # hatchling is there while a wheel is built, and not here
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", stub)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["StoredRows"]()
    hook.root, shipped = str(made.parent), {"force_include": {}}
    hook.initialize("editable", shipped)
    hook.finalize("editable", shipped, "")
    assert shipped == {"force_include": {}}
    hook.initialize("standard", shipped)
    [(archive, place)] = shipped["force_include"].items()
    assert place == f"time2decide/{registry.PACKAGED.name}"
    with ZipFile(archive) as rows:  # the experiment has rows of the preset smoke alone
        assert rows.namelist() == [f"{BENCH}/cpu.jsonl"]
        assert rows.read(f"{BENCH}/cpu.jsonl") == (ROOT / "results" / BENCH / "cpu.jsonl").read_bytes()
    hook.finalize("standard", shipped, "")
    assert not Path(archive).exists()


def test_rows_of_the_package_are_shown_without_work(run, package, made):
    here = Path.cwd()
    done = run("reproduce", "toy-pto", "--preset", "smoke", "--json", cwd=here)
    assert json.loads(done.stdout) == Store("toy-pto", "smoke", made).rows()
    done = run("reproduce", "toy-pto", "--preset", "smoke", cwd=here)
    assert done.stderr == "2 of 2 tasks, rows of the package; --results names a folder for others\n"
    assert not list(here.rglob("*.jsonl"))
    listing = run("reproduce", "list", "--json", cwd=here)
    stored = {entry["id"]: entry["presets"]["smoke"]["stored"] for entry in json.loads(listing.stdout)}
    assert {name: count for name, count in stored.items() if count} == {"toy-pto": 2}
    assert str(package) in listing.stderr
    text = write_report("report.html")[1].read_text()
    assert "preset smoke: 2 of 2 tasks" in text
    assert "Benchmark: layers" in text


def test_what_the_package_lacks_runs_only_in_a_folder_of_ones_own(run, package, made):
    first = (made / "toy-pto/smoke.jsonl").read_text().splitlines(keepends=True)[0]
    with ZipFile(package, "w") as rows:
        rows.writestr("toy-pto/smoke.jsonl", first)
    here, asked = Path.cwd(), ("reproduce", "toy-pto", "--preset", "smoke")
    assert "1 of 2 tasks, rows of the package" in run(*asked, cwd=here).stderr
    assert not list(here.rglob("*.jsonl"))
    assert "2 tasks are not in mine" in run(*asked, "--results", "mine", cwd=here).stderr
    (here / "mine/toy-pto").rename("results/toy-pto")
    assert run(*asked, cwd=here).stderr == ""  # one's own rows come first


def test_without_any_rows_a_line_says_where_they_are(run, tmp_path):
    done = run("reproduce", "list", cwd=tmp_path)
    assert "no stored rows in results: name their folder with --results" in done.stderr
    assert done.stderr.count("\n") == 1
