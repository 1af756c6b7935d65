"""Thirty and more ways to get it wrong: one line, exit code 2, nothing written."""

import os

import numpy as np
import pandas as pd
import pytest

ROWS = 120


def table(assets=3, rows=ROWS):
    days = pd.date_range("2024-01-01", periods=rows, freq="B").strftime("%Y-%m-%d")
    values = np.random.default_rng(0).normal(0, 0.01, (rows, assets)).round(6).astype(object)
    return pd.DataFrame(values, index=pd.Index(days, name="date"), columns=[f"A{i}" for i in range(assets)])


def changed(row, column, value, **shape):
    frame = table(**shape)
    frame.iloc[row, column] = value
    return frame


def with_labels(change):
    frame = table()
    labels = list(frame.index)
    change(labels)
    frame.index = pd.Index(labels, name="date")
    return frame


def swap(labels):
    labels[5], labels[6] = labels[6], labels[5]


def gap(labels):
    labels[-1] = "2030-01-01"


def twice():
    frame = table()
    frame.columns = ["A0", "A1", "A0"]
    return frame


def sparse(path):
    with path.open("wb") as file:
        os.truncate(file.fileno(), 300 * 2**20)


def prices(frame):
    return ((1 + frame.astype(float)).cumprod() * 20).astype(object)


#: name -> (content of data.csv: a frame, text, bytes or a function of the path; words of the message)
FILES = {
    "empty file": ("", "empty file"),
    "header only": ("date,A,B\n", "at least 2 rows"),
    "one asset": (table(1), "2 assets"),
    "text in a cell": (changed(7, 1, "n/a"), "column 'A1', row 8"),
    "an empty cell": (changed(7, 1, ""), "an empty cell"),
    "NaN": (changed(3, 2, "nan"), "expected a number"),
    "inf": (changed(3, 2, "inf"), "expected a number"),
    "a return below -1": (changed(3, 2, -1.5), "below_minus_one"),
    "duplicate dates": (with_labels(lambda labels: labels.__setitem__(5, labels[4])), "distinct dates"),
    "unsorted dates": (with_labels(swap), "increasing dates"),
    "unreadable date": (with_labels(lambda labels: labels.__setitem__(5, "soon")), "expected a date"),
    "a gap in the dates": (with_labels(gap), "no gap"),
    "all-zero returns": (table() * 0, "numbers that vary"),
    "duplicate asset": (twice(), "distinct names"),
    "binary file": (bytes(range(256)) * 40, "UTF-8"),
    "wrong delimiter": (table().to_csv(sep="~"), "separated by commas"),
    "uneven rows": (table().to_csv() + "2030-01-01,1\n", "expected 4 cells"),
    "no names of columns": ("\n".join(table().to_csv().splitlines()[1:]), "names of columns"),
    "huge file": (sparse, "at most 256 MB"),
    "too few rows": (table(rows=15), "expected at least"),
}


@pytest.mark.parametrize("command", ["decide", "backtest"])
@pytest.mark.parametrize("kind", FILES)
def test_bad_files(run, tmp_path, kind, command):
    content, message = FILES[kind]
    path = tmp_path / "data.csv"
    if callable(content):
        content(path)
    elif isinstance(content, pd.DataFrame):
        content.to_csv(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    outputs = ["--out", "new.csv"] if command == "decide" else ["--out", "out", "--report", "page.html"]
    expected = "more than 96 steps" if (kind, command) == ("too few rows", "backtest") else message
    refused(run(command, "data.csv", *outputs, cwd=tmp_path), expected, tmp_path, {"data.csv"})


WEIGHTS = {
    "do not sum to 1": ("asset,weight\nA0,0.5\nA1,0.2\nA2,0.2\n", "sum 1"),
    "negative": ("asset,weight\nA0,1.2\nA1,-0.4\nA2,0.2\n", "non-negative"),
    "unknown asset": ("asset,weight\nA0,0.5\nA1,0.3\nZ,0.2\n", "unknown"),
    "an asset twice": ("asset,weight\nA0,0.5\nA0,0.5\nA1,0\nA2,0\n", "again"),
    "text": ("asset,weight\nA0,half\nA1,0.5\nA2,0\n", "expected a finite number"),
    "NaN": ("asset,weight\nA0,nan\nA1,0.5\nA2,0.5\n", "finite"),
    "other columns": ("name,share\nA0,1\n", "columns asset,weight"),
    "empty": ("", "an empty file"),
    "binary": (b"\xff\xfe\x00\x01", "UTF-8"),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_bad_weights(run, tmp_path, kind):
    content, message = WEIGHTS[kind]
    table().to_csv(tmp_path / "data.csv")
    (tmp_path / "held.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    done = run("decide", "data.csv", "--previous", "held.csv", "--out", "new.csv", cwd=tmp_path)
    refused(done, message, tmp_path, {"data.csv", "held.csv"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decide", "data.csv", "--turnover", "0"], "turnover_l1"),
        (["decide", "data.csv", "--turnover", "-0.5"], "turnover_l1"),
        (["decide", "data.csv", "--turnover", "2.5"], "turnover_l1"),
        (["decide", "data.csv", "--turnover", "nan"], "turnover_l1"),
        (["decide", "data.csv", "--turnover", "much"], "Invalid value"),
        (["decide", "data.csv", "--risk-aversion", "-1"], "risk_aversion"),
        (["decide", "data.csv", "--model", "nowhere"], "model: expected one of market"),
        (["decide", "data.csv", "--prices"], "returns_given_as_prices"),
        (["decide", "prices.csv", "--returns"], "prices"),
        (["decide", "data.csv", "--prices", "--returns"], "found both"),
        (["decide", "missing.csv"], "found none"),
        (["decide", "."], "found a folder"),
        (["decide", "data.txt"], "found none"),
        (["decide", "data.csv", "--previous", "missing.csv"], "found none"),
        (["decide", "data.csv", "--previous", "."], "found a folder"),
        (["decide", "data.csv", "--out", "nowhere/new.csv"], "existing folder"),
        (["decide", "data.csv", "--out", "new.txt"], "ending in .csv"),
        (["decide", "data.csv", "--out", "data.csv"], "another file than those that are read"),
        (["decide", "data.csv", "--previous", "h.csv", "--out", "h.csv"], "out: expected another file than those"),
        (["decide", "data.csv", "--seed", "-1"], "seed"),
        (["decide", "data.csv", "--risk-aversion", "1e39"], "risk_aversion"),
        (["decide", "small.csv"], "prices_given_as_returns"),
        (["decide"], "Missing argument"),
        (["train", "paper", "--preset", "smoke", "--return-weight", "nan"], "return_weight"),
        (["train", "paper", "--preset", "smoke", "--return-weight", "-1"], "return_weight"),
        (["train", "paper", "--preset", "smoke", "--turnover-l1", "0.6"], "turnover_l1"),
        (["train", "paper", "--preset", "smoke", "--market", "bonds"], "market"),
        (["train", "paper", "--preset", "smoke", "--backbone", "nowhere"], "checkpoint"),
        (["train", "timepfn", "--preset", "smoke", "--seed", "-1"], "seed"),
        (["train", "timepfn", "--preset", "smoke", "--steps", "0"], "steps"),
        (["train", "timepfn", "--preset", "smoke", "--backbone", "small"], "backbone: expected none for the recipe"),
        (["train", "qp", "--preset", "smoke", "--threads", "1000000"], "threads"),
        (["train", "qp", "--preset", "huge"], "preset"),
        (["train", "market"], "recipe: expected one of timepfn, qp, paper"),
        (["backtest", "data.csv", "--strategies", "pto:chronos:nowhere"], "backbone"),
        (["backtest", "data.csv", "--strategies", "pto:guess"], "backbone"),
        (["backtest", "data.csv", "--turnover", "0"], "turnover_l1"),
        (["backtest", "data.csv", "--turnover", "0.5,2.5"], "turnover_l1"),
        (["backtest", "data.csv", "--turnover", "0.5,0.5"], "distinct"),
        (["backtest", "data.csv", "--turnover", "much"], "numbers separated by commas"),
        (["backtest", "data.csv", "--strategies", "guess"], "found 'guess'"),
        (["backtest", "data.csv", "--strategies", ","], "strategies"),
        (["backtest", "data.csv", "--strategies", "uniform,uniform"], "twice"),
        (["backtest", "data.csv", "--cost-bps", "-1"], "cost_bps"),
        (["backtest", "data.csv", "--window", "500"], "500"),
        (["backtest", "data.csv", "--last", "0"], "last"),
        (["backtest", "data.csv", "--report", "page.pdf"], "ending in .html"),
        (["backtest", "data.csv", "--data", "sp500"], "two"),
        (["backtest", "prices.csv", "--returns"], "prices"),
        (["backtest", "missing.csv"], "found none"),
        (["backtest"], "found nothing"),
        (["decide", "data.csv", "--constraints", "c.toml", "--out", "b.csv"], "c.toml: expected a file, found none"),
    ],
)
def test_bad_arguments(run, tmp_path, arguments, message):
    table().to_csv(tmp_path / "data.csv")
    prices(table()).to_csv(tmp_path / "prices.csv")
    (prices(table()) / 100).to_csv(tmp_path / "small.csv")
    refused(run(*arguments, cwd=tmp_path), message, tmp_path, {"data.csv", "prices.csv", "small.csv"})


def refused(done, message, folder, files):
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("time2decide: ")
    assert done.stdout == ""
    assert {path.name for path in folder.iterdir()} == files


LIMITS = 'table = "summary.csv"\n'
PORTFOLIO = 'table = "data.csv"\nvalues = "returns"\n'
BOUNDS, HELD = "asset,lower,upper\nA,0,0.5\n", "asset,weight\nA,0.5\nB,0.5\nC,0\n"


@pytest.mark.parametrize(
    ("arguments", "name", "files"),
    [
        (["decide", "data.csv", "--constraints", "c.toml", "--out", "summary.csv"], "out",
         {"c.toml": LIMITS, "summary.csv": BOUNDS}),
        (["backtest", "data.csv", "--constraints", "c.toml", "--out", "."], "out",
         {"c.toml": LIMITS, "summary.csv": BOUNDS}),
        (["backtest", "data.csv", "--constraints", "steps.csv", "--out", "."], "out", {"steps.csv": BOUNDS}),
        (["backtest", "data.csv", "--benchmark", "summary.csv", "--out", "."], "out", {"summary.csv": HELD}),
        (["backtest", "data.csv", "--report", "page.html"], "report", {"page.html": "data.csv"}),
        (["run", "p.toml"], "state", {"p.toml": PORTFOLIO + 'constraints = "c.toml"\nstate = "summary.csv"\n',
                                      "c.toml": LIMITS, "summary.csv": BOUNDS}),
        (["run", "p.toml", "--holdings", "h.csv"], "state",
         {"p.toml": PORTFOLIO + 'state = "h.csv"\n', "h.csv": HELD}),
        (["run", "p.toml", "--holdings", "h.csv"], "journal",
         {"p.toml": PORTFOLIO + 'journal = "h.csv"\n', "h.csv": HELD}),
        (["run", "p.toml"], "state", {"p.toml": PORTFOLIO + 'model = "m"\nstate = "m/policy.json"\n',
                                      "m/policy.json": "x"}),
        (["train", "paper", "--backbone", "official:m/model.safetensors", "--out", "m"], "--out",
         {"m/model.safetensors": "x"}),
        (["solve", "p.npz", "--out", "p.npz"], "out", {"p.npz": "x"}),
        (["decide", "data.csv", "--model", "m", "--out", "m/policy.json"], "out", {"m/policy.json": "x"}),
    ],
)  # fmt: skip
def test_no_command_replaces_what_it_reads(run, tmp_path, arguments, name, files):
    table().to_csv(tmp_path / "data.csv")
    for file, content in files.items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        if content == "data.csv":
            path.symlink_to(tmp_path / "data.csv")
        else:
            path.write_text(content)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"time2decide: {name}: expected another file than those that are read, found ")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
