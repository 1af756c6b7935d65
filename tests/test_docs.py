"""The tutorial runs from top to bottom, the how-to runs, the API page is up to date, links lead somewhere."""

import json
import re
import runpy
import tomllib
from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot

import time2decide

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", ["tutorial.md", "howto.md", "solving.md"])
def test_pages_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, block in enumerate(blocks(page)):
        exec(compile(block, f"{page} block {number}", "exec"), names)
    assert capsys.readouterr().out
    if page == "tutorial.md":
        assert (tmp_path / "report.html").stat().st_size > 1_000_000


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda example: example.stem)
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    runpy.run_path(str(example))
    pyplot.close("all")
    assert capsys.readouterr().out


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda notebook: notebook.stem)
def test_notebooks_run_from_top_to_bottom(notebook, capsys):
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names = {}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{notebook.name} cell {number}", "exec"), names)
    assert capsys.readouterr().out


def test_every_page_is_in_the_navigation_and_for_language_models():
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert pages <= set(re.findall(r"[\w]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert pages <= set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "llms.txt").read_text()))


def test_every_checkpoint_has_a_card():
    bundled = {path.parent.name for path in (ROOT / "time2decide").rglob("model.safetensors")}
    assert bundled == set(re.findall(r"^\| \[`([\w-]+)`\]", (DOCS / "models.md").read_text(), flags=re.MULTILINE))


def test_the_support_matrix_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = [
        dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / name).read_text().replace("_", "-"), flags=re.MULTILINE))
        for name in ("constraints-lowest.txt", "constraints.txt")
    ]
    extras = project["optional-dependencies"]
    meant = dict(one.split(">=", 1) for one in project["dependencies"])
    stated = re.findall(r"^\| ([\w-]+) \| ≥ (\S+) \| (\S+) \| (\S+) \| (.*) \|$", _support(), flags=re.MULTILINE)
    for name, least, *run, why in stated:
        extra = re.fullmatch("extra `(\\w+)`", why)
        assert f"{name}>={least}" in (extras[extra[1]] if extra else project["dependencies"])
        assert run == [pins.get(name, "–") for pins in pinned], name
    assert set(meant) <= {name for name, *_ in stated}
    assert f"Python below {project['requires-python'].removeprefix('>=')} is refused" in _support()


def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version == time2decide.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1] == version


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_of_the_root_pages_exist(page):
    for link in re.findall(r"\]\(([\w./-]+)\)", page.read_text()):
        assert (ROOT / link).exists(), link


def _support():
    return (DOCS / "support.md").read_text()


def test_the_api_page_is_up_to_date():
    made = runpy.run_path(str(DOCS / "make_api.py"))["api"]()
    assert (DOCS / "api.md").read_text() == made, "run python docs/make_api.py"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_and_commands_exist(page):
    from time2decide.cli.app import app

    text = page.read_text()
    for link in re.findall(r"\]\(([\w./-]+)\)", text):
        assert link.startswith("gallery/") or (DOCS / link).exists(), link
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    assert set(re.findall(r"^time2decide (\w+)", text, flags=re.MULTILINE)) <= commands
