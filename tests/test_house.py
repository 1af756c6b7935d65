"""The house plan: imports go up only, files stay readable, the README runs."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = ["qp", "attention", "neural", "markets", "forecasting", "decisions", "theory", "experiments", "reports"]
SOURCES = sorted((ROOT / "time2decide").rglob("*.py"))


def imported_floors(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            parts = name.split(".")
            if parts[0] == "time2decide" and len(parts) > 1 and parts[1] in FLOORS:
                yield parts[1]


@pytest.mark.parametrize("floor", FLOORS)
def test_a_folder_imports_only_from_those_above(floor):
    for path in (ROOT / "time2decide" / floor).glob("*.py"):
        for other in imported_floors(path):
            assert FLOORS.index(other) <= FLOORS.index(floor), f"{path.name} imports {other}"


def test_files_hold_one_idea_each():
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def mentions(path, name):
    """Whether a file imports or uses a dotted name, by its last part or as a whole."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import) and any(f"{alias.name}.".startswith(f"{name}.") for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if f"{module}.".startswith(f"{name}.") or any(f"{module}.{a.name}" == name for a in node.names):
                return True
            if any(alias.name == name for alias in node.names):
                return True
        if isinstance(node, ast.Attribute) and ast.unparse(node) == name:
            return True
    return False


@pytest.mark.parametrize("name", ["torch.optim", "safe_open", "hashlib"])
def test_training_checkpoints_and_digests_have_one_home(name):
    found = {path.relative_to(ROOT / "time2decide").parts[0] for path in SOURCES if mentions(path, name)}
    assert found == {"core"}


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(blocks("README.md"))))
def test_readme_code_runs(number, capsys):
    exec(compile(blocks("README.md")[number], f"README block {number}", "exec"), {})


def test_readme_names_what_exists():
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = {
        name for pair in re.findall(r"^make (\w+)|`make (\w+)`", text, flags=re.MULTILINE) for name in pair if name
    }
    assert named <= set(targets)
    for link in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (ROOT / link).exists(), link
    from time2decide.cli.app import app

    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    assert set(re.findall(r"^time2decide (\w+)", text, flags=re.MULTILINE)) <= commands


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out
