"""`bench --store` keeps its rows with their provenance, where `report` finds them."""

import json

import pytest
from typer.testing import CliRunner

from time2decide.bench import solvers
from time2decide.cli.app import app
from time2decide.experiments import Store


@pytest.mark.parametrize(("option", "preset"), [([], "cpu"), (["--quick"], "smoke")])
def test_stored_rows_are_those_that_were_printed(option, preset, tmp_path, monkeypatch):
    monkeypatch.setenv("TIME2DECIDE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(solvers, "label_rows", lambda quick: [{"what": "x", "ratio": 2.0, "quick": quick}])
    done = CliRunner().invoke(app, ["bench", "labels", "--store", "--json", *option])
    assert done.exit_code == 0, done.output
    (line,) = Store("bench-labels", preset).lines().values()
    assert line["rows"] == json.loads(done.output)
    assert {"commit", "versions", "machine", "seconds", "time"} <= set(line)


def test_nothing_is_stored_unless_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TIME2DECIDE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(solvers, "label_rows", lambda quick: [{"what": "x"}])
    assert CliRunner().invoke(app, ["bench", "labels"]).exit_code == 0
    assert not list(tmp_path.iterdir())


def test_rows_of_other_keys_are_printed_under_their_own_columns(monkeypatch):
    rows = [{"kind": "cell", "ours_ms": 1.5}, {"kind": "growth", "exponent": 2.5}, {"kind": "cell", "ours_ms": 3.5}]
    monkeypatch.setattr(solvers, "label_rows", lambda quick: rows)
    printed = CliRunner().invoke(app, ["bench", "labels"]).output
    first, second = printed.split("exponent")
    assert all(figure in first for figure in ("ours_ms", "1.5", "3.5"))
    assert "2.5" in second
