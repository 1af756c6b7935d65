"""SIGKILL at random moments: started again, nothing is lost, and the result has the same bits.

A hundred in all: 36 of trainings, 16 of sweeps, 15 of caches, 15 of `run` and its journal, 10 of pages and 8 of a
journal that is written to without a pause.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.trust.commands import prepare
from tests.trust.warm import Warm
from time2decide.core.checkpoints import load_tensors
from time2decide.core.journal import Journal
from time2decide.core.validation import InputError
from time2decide.experiments.store import Store

SWEEP = Path(__file__).parents[1] / "experiments" / "sweep_tasks.py"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def warm():
    process = Warm()
    yield process
    process.close()


@pytest.fixture
def fresh(prepared, tmp_path):
    """Make a new folder with the inputs of every command."""
    return lambda name: shutil.copytree(prepared, tmp_path / name)


def timed(warm, folder, command):
    began = time.monotonic()
    assert warm.run(folder, command) == 0, (folder / "messages.txt").read_text()
    return time.monotonic() - began


def leftovers(folder):
    """Temporary files of killed writers: hidden, and removed an hour later."""
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


TRAININGS = {"timepfn": 30, "paper": 12}  # steps; of the paper's model: epochs of two
KILLS = 12  # of each


@pytest.mark.parametrize("model", TRAININGS)
def test_training(warm, fresh, record, model):
    draw = random.Random(f"training {model}")
    command = f"train {model} --preset smoke --steps {TRAININGS[model]} --out out"
    whole = fresh("whole")
    timed(warm, whole, command)  # makes the data sets
    shutil.rmtree(whole / "out")
    seconds = timed(warm, whole, command)
    expected = load_tensors(whole / "out/model.safetensors")[0]
    steps = load_tensors(whole / "out/state.safetensors")[1]["progress"]["seconds"]  # the rest is preparation
    kills = resumed = runs = 0
    while kills < KILLS:
        folder, step = fresh(f"run {runs}"), 0
        while True:
            moment, state = draw.uniform(0, seconds), None
            if kills % 4:  # most of them while it learns, the others at any time
                moment, state = draw.uniform(0, steps), folder / "out/state.safetensors"
            code = warm.run(folder, command, moment, state) if kills < KILLS else warm.run(folder, command)
            if code == 0:
                break
            assert code == -signal.SIGKILL, (folder / "messages.txt").read_text()
            kills += 1
            if (folder / "out/state.safetensors").exists():
                reached = load_tensors(folder / "out/state.safetensors")[1]["progress"]["step"]
                assert reached >= step
                step, resumed = reached, resumed + 1
        found = load_tensors(folder / "out/model.safetensors")[0]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        runs += 1
    text = "{kills} kills in {runs} trainings, {resumed} within one that was resumed; same bits"
    record(f"kill-train-{model}", text, kills=kills, runs=runs, resumed=resumed)


def test_daily_run(warm, fresh, record):
    """Killed every day: one entry and one decision file a day, those of undisturbed days."""
    first, days, kills, draw = 300, 0, 0, random.Random("run")
    whole, torn = fresh("whole"), fresh("torn")
    table = pd.read_csv(whole / "long.csv", index_col=0)

    def day(folder, number):
        table.iloc[: first + number].to_csv(folder / "table.csv")

    while kills < 15:
        day(whole, days)
        seconds = timed(warm, whole, "run portfolio.toml")
        day(torn, days)
        days += 1
        code = warm.run(torn, "run portfolio.toml", draw.uniform(0, seconds))
        assert code in (0, -signal.SIGKILL), (torn / "messages.txt").read_text()
        kills += code == -signal.SIGKILL
        assert warm.run(torn, "run portfolio.toml") == 0, (torn / "messages.txt").read_text()
    told = [Journal(folder / "out/journal.jsonl").entries() for folder in (whole, torn)]
    assert len(told[0]) == days
    volatile = ("made", "after", "checksum")
    plain = [[{k: v for k, v in entry.items() if k not in volatile} for entry in entries] for entries in told]
    assert plain[0] == plain[1]
    files = [sorted(path.name for path in (folder / "out").glob("*.json")) for folder in (whole, torn)]
    assert files[0] == files[1]
    for name in files[0]:
        contents = [json.loads((folder / "out" / name).read_text()) for folder in (whole, torn)]
        assert contents[0]["weights"] == contents[1]["weights"]
    record("kill-run", "{kills} kills on {days} days; same journal, a file a day", kills=kills, days=days)


@pytest.mark.parametrize(
    ("name", "command", "pages"),
    [
        ("report", "report --out out/report.html --results results", ("report.html", "report.md")),
        (
            "backtest",
            "backtest table.csv --strategies uniform,minimum-variance --out out --report out/page.html",
            ("page.html", "summary.csv", "steps.csv"),
        ),
    ],
)
def test_pages(warm, fresh, record, name, command, pages):
    whole, torn, kills, draw = fresh("whole"), fresh("torn"), 0, random.Random(name)
    seconds = timed(warm, whole, command)
    new = {page: (whole / "out" / page).read_bytes() for page in pages}
    while kills < 5:
        for page in pages:
            (torn / "out" / page).write_bytes(new[page] + b"\n")  # an older one
        code = warm.run(torn, command, draw.uniform(0.3 * seconds, seconds))
        assert code in (0, -signal.SIGKILL), (torn / "messages.txt").read_text()
        kills += code == -signal.SIGKILL
        assert all((torn / "out" / page).read_bytes() in (new[page], new[page] + b"\n") for page in pages)
    assert warm.run(torn, command) == 0
    assert all((torn / "out" / page).read_bytes() == new[page] for page in pages)
    record(f"kill-{name}", "{kills} kills; every page old or new, then the same bytes", kills=kills)


CACHE_WRITER = """
import sys, numpy as np
from time2decide.core.cache import cached_array
print("ready", flush=True)
for number in range(int(sys.argv[1]), 10**6):
    made = np.random.default_rng(number % 50).standard_normal((200, 200))
    found = cached_array({"kind": "trust", "number": number % 50}, lambda: made)
    assert np.array_equal(found, made), number
"""
JOURNAL_WRITER = """
import sys
from time2decide.core.journal import Journal
journal = Journal(sys.argv[1])
journal.repair()
for number in range(len(journal.entries()), 10**6):
    journal.append({"number": number, "fill": 5000 * "x"})
    print(number, flush=True)
"""


def test_cache(tmp_path, monkeypatch, record):
    cache, kills, draw = tmp_path / "cache", 15, random.Random("cache")
    monkeypatch.setenv("TIME2DECIDE_CACHE", str(cache))
    for number in range(kills):
        for old in list(cache.glob("*.safetensors"))[::2]:
            old.unlink()  # so that every round writes
        command = [sys.executable, "-c", CACHE_WRITER, str(7 * number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(draw.uniform(0, 0.2))
            assert writer.poll() is None, "a value of the cache was wrong"
            writer.kill()
        for path in cache.glob("*.safetensors"):
            load_tensors(path, need_checksum=True)
    record("kill-cache", "{kills} kills; every file whole", kills=kills, left=len(leftovers(cache)))


def test_journal(tmp_path, record):
    path, kills, entries, draw = tmp_path / "journal.jsonl", 8, 0, random.Random(0)
    for _ in range(kills):
        command = [sys.executable, "-c", JOURNAL_WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            writer.stdout.readline()
            time.sleep(draw.uniform(0, 0.3))
            writer.kill()
            acknowledged = [int(line) for line in writer.stdout if line.endswith("\n")]
        journal = Journal(path)
        numbers = [entry["number"] for entry in journal.entries()]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > max([entries, *acknowledged])
        entries = len(numbers) - 1
    record("kill-journal", "{kills} kills, {entries} entries, none lost", kills=kills, entries=entries + 1)


@pytest.mark.parametrize(("engine", "kills"), [("local", 10), ("ray", 6)])
def test_sweep(tmp_path, record, engine, kills):
    """The driver is killed at random, then the sweep goes on: every task has its row, and what was stored stays."""
    if engine == "ray":
        pytest.importorskip("ray")
    draw, results = random.Random(engine), tmp_path / "results"
    paths = os.pathsep.join([str(SWEEP.parent), str(SWEEP.parents[2])])
    env = os.environ | {"SWEEP_TRACE": str(tmp_path), "PYTHONPATH": paths}
    command = [sys.executable, "-W", "ignore", str(SWEEP), engine, "2", str(results)]

    def driver():
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    began = time.monotonic()
    with driver() as process:
        assert process.wait(300) == 0, process.stderr.read().decode()
    seconds, stored = time.monotonic() - began, {}
    path = Store("sweep", "smoke", results).path
    path.unlink()
    done = 0
    while done < kills:
        with driver() as process:
            try:
                ended = process.wait(draw.uniform(0.2 * seconds, 1.1 * seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                done, ended = done + 1, None
            assert ended in (None, 0), process.stderr.read().decode()
        lines = Store("sweep", "smoke", results).lines()
        assert all(lines[key] == line for key, line in stored.items())
        stored = lines
        if len(stored) == 6:
            path.unlink()
            stored = {}
    with driver() as process:
        assert process.wait(300) == 0, process.stderr.read().decode()
    rows = Store("sweep", "smoke", results).rows()
    assert {row["value"]: row["square"] for row in rows} == {value: value**2 for value in range(6)}
    assert [row["error"] for row in rows] == [None] * 6
    record(f"kill-sweep-{engine}", "{kills} kills of the driver; every row there, none changed", kills=kills)


def test_a_damaged_state_would_be_noticed(tmp_path):
    """The check of the states above can fail."""
    (tmp_path / "state.safetensors").write_bytes(b"half")
    with pytest.raises(InputError):
        load_tensors(tmp_path / "state.safetensors")
