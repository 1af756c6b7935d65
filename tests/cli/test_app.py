"""The command line as a user meets it: its output and its exit code."""

import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from time2decide import random_qp, solve
from time2decide.experiments import constructions


def test_a_real_process(tmp_path):
    command = [os.path.join(os.path.dirname(sys.executable), "time2decide"), "solve", "missing.npz"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "time2decide: missing.npz: expected a file, found none\n"


@pytest.fixture
def problem(tmp_path):
    qp = random_qp(3, 4, 2, seed=1)
    np.savez(tmp_path / "problem.npz", A=qp.A, b=qp.b, C=qp.C, d=qp.d)
    return qp


def test_solve_npz_and_json(run, tmp_path, problem):
    done = run("solve", "problem.npz", "--json", "--out", "answer.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    np.testing.assert_allclose(answer["x"], solve(problem).x, atol=1e-12)
    assert answer["status"] == ["optimal"] * 3
    assert max(answer["kkt_residual"]) < 1e-12
    with np.load(tmp_path / "answer.npz") as stored:
        np.testing.assert_allclose(stored["x"], answer["x"])
    (tmp_path / "one.json").write_text(json.dumps({"A": [[2, 0], [0, 2]], "b": [-2, 1], "l1_penalty": 1}))
    done = run("solve", "one.json", "--method", "ista", "--json", cwd=tmp_path)
    np.testing.assert_allclose(json.loads(done.stdout)["x"], [[0.5, 0.0]], atol=1e-7)
    table = run("solve", "problem.npz", "--method", "admm", cwd=tmp_path)
    assert "optimal" in table.stdout
    (tmp_path / "no.json").write_text(json.dumps({"A": [[1]], "b": [0], "C": [[1], [-1]], "d": [-1, -1]}))
    unsolved = run("solve", "no.json", "--out", "no.npz", cwd=tmp_path)
    assert unsolved.returncode == 1
    assert "infeasible" in unsolved.stdout
    assert unsolved.stderr == ""
    with np.load(tmp_path / "no.npz") as stored:
        assert stored["status"] == "infeasible"
    assert run("solve", "problem.npz", "--method", "admm", "--steps", "1", "--json", cwd=tmp_path).returncode == 1


def test_the_table_says_how_an_answer_was_obtained(run, tmp_path, problem):
    done = run("solve", "problem.npz", "--method", "neural+polish", "--out", "answer.npz", cwd=tmp_path)
    assert done.returncode == 0
    assert "how" in done.stdout
    assert done.stdout.count("predicted") == 3
    with np.load(tmp_path / "answer.npz") as stored:
        assert stored["how"].tolist() == ["predicted"] * 3
    assert " how " not in run("solve", "problem.npz", cwd=tmp_path).stdout
    text = " ".join(run("solve", "--help", cwd=tmp_path).stdout.split())
    assert "predicted" in text
    assert "Exit code" in text


def test_version_and_bare_command(run, tmp_path):
    from time2decide import __version__

    assert run("--version", cwd=tmp_path).stdout.strip() == __version__
    bare = run(cwd=tmp_path)
    assert "Usage" in bare.stdout + bare.stderr
    assert "time2decide: " not in bare.stderr


def claims_too_much(path):
    shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("A.npy", "b.npy"):
            archive.writestr(name, b"\x93NUMPY\x01\x00v\x00" + shape)


def write(folder, name, content):
    path = folder / name
    if callable(content):
        content(path)
        return name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


BAD_FILES = {
    "missing.npz": (None, "expected a file, found none"),
    "text.npz": ("not an archive", "expected an .npz archive"),
    "empty.npz": ("", "expected an .npz archive"),
    "array.npz": (
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }"
        + b" " * 59
        + b"\n"
        + bytes(8),
        "expected an .npz archive",
    ),
    "broken.json": ('{"A": [[1', "expected JSON"),
    "list.json": ("[1, 2]", "expected a JSON object"),
    "binary.json": (b"\xff\xfe\x00", "expected JSON"),
    "nothing.json": ("{}", "expected A, found only nothing"),
    "extra.json": ('{"A": [[1]], "b": [1], "Q": 3}', "found 'Q'"),
    "indefinite.json": ('{"A": [[-1]], "b": [1]}', "A: expected positive semidefinite"),
    "text.json": ('{"A": "x", "b": [1]}', "A: expected an array of numbers"),
    "nan.json": ('{"A": [[NaN]], "b": [1]}', "A: expected finite numbers"),
    "shape.json": ('{"A": [[1, 0], [0, 1]], "b": [1]}', "b: expected shape (2,)"),
    "twice.json": ('{"A": [[1]], "b": [1], "A": [[2]]}', "found 'A' again"),
    "null.json": ('{"A": null, "b": [1]}', "expected A, found only b"),
    "digits.json": ('{"A": [[' + "9" * 5000 + ']], "b": [1]}', "expected JSON"),
    "terabytes.npz": (lambda path: claims_too_much(path), "expected an .npz archive"),
    "problem.txt": ("A b", "expected a name ending in .npz or .json"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_give_one_line_and_exit_code_2(run, tmp_path, name):
    content, message = BAD_FILES[name]
    if content is not None:
        write(tmp_path, name, content)
    before = sorted(tmp_path.iterdir())
    done = run("solve", name, "--json", "--out", "answer.npz", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "."], "found a folder"),
        (["solve", "problem.npz", "--method", "magic"], "method: expected one of"),
        (["solve", "problem.npz", "--method", "gradient"], "for a problem of class LC"),
        (["solve", "problem.npz", "--tol", "-1"], "tol: expected a positive number"),
        (["solve", "problem.npz", "--method", "admm", "--steps", "-3"], "steps: expected a whole number"),
        (["solve", "problem.npz", "--out", "nowhere/answer.npz"], "existing folder"),
        (["solve", "problem.npz", "--out", "answer.csv"], "ending in .npz"),
        (["solve", "problem.npz", "--fast"], "No such option"),
        (["reproduce", "table-99"], "experiment: expected one of"),
        (["reproduce", "convergence", "--preset", "smoke", "--engine", "slurm"], "engine: expected one of local, ray"),
        (["reproduce", "convergence", "--preset", "smoke", "--workers", "0"], "workers"),
        (["report", "--out", "page.txt"], "--out: expected a file that ends with .html"),
        (["report", "--results", "nowhere"], "--results: expected a folder"),
        (["reproduce", "convergence", "--preset", "huge"], "preset: expected one of"),
        (["reproduce", "convergence", "--preset", "smoke", "--results", "problem.npz"], "results: expected a folder"),
        (["reproduce", "toy-pto", "--preset", "smoke", "--results", "problem.npz/sub"], "results: expected a folder"),
        (["reproduce", "list", "--results", "problem.npz/sub"], "results: expected a folder"),
        (
            ["reproduce", "toy-pto", "--preset", "smoke", "--results", "/proc/sub"],
            "results: expected a folder that can",
        ),
        (["bench", "everything"], "name: expected one of"),
        (["fly"], "No such command"),
    ],
)
def test_bad_arguments(run, tmp_path, problem, arguments, message):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["problem.npz"]


@pytest.mark.parametrize("command", ["solve", "reproduce", "report", "bench"])
def test_help_has_an_example(run, tmp_path, command):
    done = run(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"Example: time2decide {command}" in " ".join(done.stdout.split())


def test_reproduce_list_and_second_start_does_no_work(run, tmp_path):
    listing = json.loads(run("reproduce", "list", "--json", cwd=tmp_path).stdout)
    assert "convergence" in {entry["id"] for entry in listing}
    first = run("reproduce", "convergence", "--preset", "smoke", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "newton_schulz" in first.stdout
    assert (tmp_path / "results/figures/convergence-smoke.png").stat().st_size > 10_000
    stored = (tmp_path / "results/convergence/smoke.jsonl").read_text()
    second = run("reproduce", "convergence", "--preset", "smoke", cwd=tmp_path)
    assert second.stderr == ""
    assert (tmp_path / "results/convergence/smoke.jsonl").read_text() == stored


def test_failed_tasks_are_named_and_tell_the_exit_code(run, tmp_path, monkeypatch):
    def fail(config):
        raise RuntimeError("diverged")

    monkeypatch.setattr(constructions, "EXPERIMENTS", [replace(constructions.EXPERIMENTS[0], run=fail)])
    for option in ([], ["--json"]):
        done = run("reproduce", "convergence", "--preset", "smoke", *option, cwd=tmp_path)
        assert done.returncode == 1
        assert "RuntimeError: diverged" in done.stdout
        assert re.search(r"time2decide: \d+ failed: RuntimeError: diverged\n", done.stderr)
    assert not list(tmp_path.rglob("*.png"))


def test_report_needs_the_folder_that_the_environment_names(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TIME2DECIDE_RESULTS", str(tmp_path / "nowhere"))
    done = run("report", cwd=tmp_path)
    assert done.returncode == 2
    assert "TIME2DECIDE_RESULTS: expected a folder with stored rows, found" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["constructions", "labels", "projection"])
def test_bench_prints_rows(run, tmp_path, name):
    done = run("bench", name, "--quick", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows
    if name == "constructions":
        assert {"problem", "n", "m", "batch", "classical_us", "attention_us", "overhead"} <= set(rows[0])
    else:
        assert all("ratio" in row for row in rows)
