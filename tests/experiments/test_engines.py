"""The same sweep in one process, in two, and on Ray; with workers and drivers killed while running."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from time2decide.core.validation import InputError
from time2decide.experiments import engines
from time2decide.experiments.engines import Engine
from time2decide.experiments.store import Store

HERE = Path(__file__).parent
WAYS = [("local", 2), ("ray", 2)]


@pytest.fixture
def sweep(tmp_path):
    """Start the driver of the sweep; it gets the folders of the test."""
    trace, root, started = tmp_path / "trace", tmp_path / "results", []
    trace.mkdir()

    def start(engine, workers, stop=False):
        paths = [str(HERE), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"SWEEP_TRACE": str(trace), "PYTHONPATH": os.pathsep.join(paths)}
        env |= {"SWEEP_STOP": "1"} if stop else {}
        command = [sys.executable, "-W", "ignore", str(HERE / "sweep_tasks.py"), engine, str(workers), str(root)]
        heard = partial(
            signal.signal, signal.SIGINT, signal.SIG_DFL
        )  # jobs in the background of a script are deaf to it
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=env, preexec_fn=heard, **pipes))
        return started[-1]

    start.trace, start.root = trace, root
    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=60)


def finish(process):
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors.decode()


def stopped_worker(trace):
    """The process that runs the task which stops."""
    for _ in range(3000):
        if (trace / "stopped").exists():
            return int((trace / "stopped").read_text())
        time.sleep(0.1)
    raise AssertionError("the task was not started")


def ran(trace):
    return sorted(map(int, (trace / "ran").read_text().split()))


def check(root):
    """Every task has exactly one line, and the values are right."""
    lines = [json.loads(text) for text in (root / "sweep/smoke.jsonl").read_text().splitlines()]
    assert sorted(line["config"]["value"] for line in lines) == list(range(6))
    squares = {line["config"]["value"]: [row["square"] for row in line["rows"]] for line in lines}
    assert squares == {value: [value**2] for value in range(6)}
    assert [line["error"] for line in lines] == [None] * 6
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "workers"), WAYS)
def test_a_killed_worker_costs_no_row(sweep, engine, workers):
    process = sweep(engine, workers, stop=True)
    victim = stopped_worker(sweep.trace)
    assert victim != process.pid
    os.kill(victim, signal.SIGKILL)
    finish(process)
    lines = check(sweep.root)
    assert ran(sweep.trace).count(2) == 2
    assert process.pid not in {row["pid"] for line in lines for row in line["rows"]}

    before = ran(sweep.trace)
    finish(sweep(engine, workers))
    assert ran(sweep.trace) == before  # nothing was left to do


@pytest.mark.slow
def test_an_interrupt_of_all_processes_ends_them_without_waiting_for_their_tasks(sweep):
    process = sweep("local", 2, stop=True)
    worker = stopped_worker(sweep.trace)  # in a task of ten minutes
    os.kill(worker, signal.SIGINT)  # a terminal sends Ctrl-C to all of them
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.decode().count("Traceback") == 1  # the driver's
    for _ in range(600):
        if worker not in descendants(sweep.trace):
            return
        time.sleep(0.1)
    raise AssertionError("the worker is still there")


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "workers"), [("local", 1), *WAYS])
def test_a_killed_driver_is_started_again(sweep, engine, workers):
    process = sweep(engine, workers, stop=True)
    worker = stopped_worker(sweep.trace)
    store = Store("sweep", "smoke", sweep.root)
    for _ in range(1200 if workers > 1 else 0):  # the other worker goes on
        if len(store.done()) == 5:
            break
        time.sleep(0.1)
    assert len(store.done()) == (5 if workers > 1 else 2)
    assert worker in descendants(sweep.trace)
    process.kill()
    process.communicate(timeout=60)
    finish(sweep(engine, workers))
    check(sweep.root)
    assert [value for value in range(6) if ran(sweep.trace).count(value) > 1] == [2]  # what was done is not run again
    for _ in range(1800):  # processes of Ray notice one after another that they are alone, on a busy machine late
        if not descendants(sweep.trace):
            break
        time.sleep(0.1)
    assert descendants(sweep.trace) == {}


def descendants(trace):
    """Command by id of the running processes that the sweep has started, directly or not: they inherit its variables.

    One that has ended may still wait for its parent to notice.
    """
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"SWEEP_TRACE={trace}\0" not in (folder / "environ").read_text(errors="replace"):
                continue
            if (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")[:100]
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    return found


@pytest.mark.slow
def test_a_task_that_always_kills_its_worker_is_a_failed_row(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))  # workers inherit the path
    monkeypatch.setattr(engines, "_RETRIES", 0)
    die = importlib.import_module("sweep_tasks").die
    ((task, outcome),) = engines.run_tasks(die, [{"value": 1}], Engine(workers=2))
    assert (task, outcome.rows, outcome.error) == ({"value": 1}, [], "worker lost 1 times")


def test_bad_engines_are_refused():
    with pytest.raises(InputError, match="engine: expected one of local, ray"):
        Engine("slurm")
    with pytest.raises(InputError, match="workers"):
        Engine(workers=0)
    with pytest.raises(InputError, match="expected engine 'ray'"):
        Engine(address="auto")


def test_without_ray_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"time2decide\[ray\]"):
        Engine("ray")
