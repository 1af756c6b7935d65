"""The tutorial runs from top to bottom, the how-to runs, the API page is up to date, links lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", ["tutorial.md", "howto.md"])
def test_pages_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, block in enumerate(blocks(page)):
        exec(compile(block, f"{page} block {number}", "exec"), names)
    assert capsys.readouterr().out
    if page == "tutorial.md":
        assert (tmp_path / "report.html").stat().st_size > 1_000_000


def test_the_api_page_is_up_to_date():
    made = runpy.run_path(str(DOCS / "make_api.py"))["api"]()
    assert (DOCS / "api.md").read_text() == made, "run python docs/make_api.py"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_and_commands_exist(page):
    from time2decide.cli.app import app

    text = page.read_text()
    for link in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (DOCS / link).exists(), link
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    assert set(re.findall(r"^time2decide (\w+)", text, flags=re.MULTILINE)) <= commands
