"""What is printed: nothing in a file can steer the terminal of its reader."""

import ast
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import time2decide
from time2decide.cli.console import console, echo
from time2decide.core.table import Table

NAMES = ["A\x1b[2J", "B\nok      everything", "C\x07\u202e", "D"]
SHOWN = ["A\\x1b[2J", "B\\nok      everything", "C\\x07\\u202e", "D"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables, limits and a portfolio whose names hold control characters."""
    place, days = tmp_path_factory.mktemp("escapes"), pd.bdate_range("2024-01-01", periods=130, name="date")
    table = pd.DataFrame(0.01 * np.random.default_rng(1).standard_normal((130, 4)), days, NAMES)
    table.to_csv(place / "table.csv")
    table.iloc[:-30, :].to_csv(place / "short.csv")
    table.mask(np.arange(130)[:, None] >= np.array([100, 129, 130, 130])).to_csv(place / "gaps.csv")
    limits = {"[weights]\nupper": 0.3, '[groups."g\\u001b[31m"]\nassets = ["D"]\nupper': 0.2}
    (place / "limits.toml").write_text("\n".join(f"{key} = {value}" for key, value in limits.items()))
    (place / "portfolio.toml").write_text('table = "table.csv"\nvalues = "returns"\n')
    (place / "held.csv").write_text('asset,weight\n"E\x1b[2J",1\n')
    return place


@pytest.mark.parametrize(
    ("command", "code", "shown"),
    [
        ("decide table.csv --all --explain", 0, SHOWN),
        ("decide table.csv --turnover 2 --constraints limits.toml", 0, ["g\\x1b[31m"]),
        ("decide gaps.csv --gaps keep", 0, ["A\\x1b[2J"]),
        ("decide table.csv --previous held.csv", 2, ["E\\x1b[2J"]),
        ("decide gaps.csv", 2, ["A\\x1b[2J"]),
        ("run portfolio.toml --all", 0, SHOWN),
        ("backtest table.csv --strategies uniform,minimum-variance", 0, []),
    ],
)
def test_names_of_files_are_shown_escaped(run, folder, command, code, shown):
    done = run(*command.split(), cwd=folder)
    assert done.returncode == code, done.stderr
    printed = done.stdout + done.stderr
    assert [letter for letter in printed if letter != "\n" and not letter.isprintable()] == []
    assert [name for name in shown if name not in printed] == []
    assert not any(line.startswith("ok ") for line in printed.splitlines())


def test_what_an_entry_of_the_journal_says_is_shown_escaped(run, folder):
    from tests.fuzz.targets import chained

    run("run", "portfolio.toml", cwd=folder)
    path = folder / "journal.jsonl"
    entry = json.loads(path.read_text())
    path.write_text(chained([entry | {"made": "\x1b]0;never\x07"}]))
    done = run("run", "portfolio.toml", cwd=folder)
    assert "was decided on \\x1b]0;never\\x07" in done.stdout


def test_a_table_an_echo_and_the_console_escape(capsys):
    text = Table("c\x1b[1m", ["n\x1b[1m"], [["x\r\ny"], ["é – γ"]], "o\x1b[1m").text()
    echo("a\x1b[1m\nb")
    console().print("a\x1b[1m\nb", markup=False)
    assert text.count("\\x1b[1m") == 3
    assert "x\\r\\ny" in text
    assert "é – γ" in text
    assert capsys.readouterr().out == 2 * "a\\x1b[1m\nb\n"


def test_commands_print_through_the_console_only():
    for path in (Path(time2decide.__file__).parent / "cli").glob("*.py"):
        calls = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert path.name == "console.py" or not {"typer.echo", "typer.secho", "click.echo"} & calls, path.name
