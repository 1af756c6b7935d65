"""The house plan: imports go up only, one home per mechanism, files stay readable, the README runs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Folders and top-level files from the top of the house to its bottom; each imports only from itself and those above.
ROOMS = [
    "core",
    "qp",
    "attention",
    "neural",
    "solving",
    "qpsolvers_api",
    "cvxpy_solver",
    "markets",
    "data",
    "forecasting",
    "simulation",
    "policy",
    "backtesting",
    "service",
    "theory",
    "bench",
    "experiments",
    "reports",
    "cli",
]
SOURCES = sorted((ROOT / "time2decide").rglob("*.py"))


def room_of(path):
    return path.relative_to(ROOT / "time2decide").parts[0].removesuffix(".py")


def imported_rooms(path):
    """Rooms that a file imports from, anywhere in it: functions and TYPE_CHECKING blocks included."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        if names == ["time2decide"]:
            names = [f"time2decide.{alias.name}" for alias in node.names]
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            parts = name.split(".")
            if parts[0] == "time2decide" and len(parts) > 1:
                yield parts[1]


def test_every_folder_and_file_has_its_place():
    found = {room_of(path) for path in SOURCES} - {"__init__"}
    assert found == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_those_above(room):
    for path in (path for path in SOURCES if room_of(path) == room):
        for other in imported_rooms(path):
            if other != "__version__":
                assert other in ROOMS, f"{path.name} imports time2decide.{other}: import from the room that has it"
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path.name} imports {other}"


def test_functions_stay_readable():
    functions = [
        (path.name, node.name, node.end_lineno - node.lineno)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    assert sum(lines > 60 for *_, lines in functions) / len(functions) < 0.03


def test_help_loads_neither_torch_nor_pandas_nor_scipy():
    code = "import sys, time2decide.cli; print(sorted({'torch', 'pandas', 'scipy', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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


def test_readme_ends_with_the_true_tree():
    tree = (ROOT / "README.md").read_text().split("## The tree")[1]
    for path in SOURCES:
        if not path.stem.startswith("__"):
            assert re.search(rf"\b{path.stem}\b", tree), f"{path.relative_to(ROOT)} is not in the tree of README.md"
    folders = re.findall(r"^  (\w+)/", tree, flags=re.MULTILINE)
    assert folders == [room for room in ROOMS if (ROOT / "time2decide" / room).is_dir()]
