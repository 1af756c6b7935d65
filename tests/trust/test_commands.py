"""Every command in every kind of trouble: its exit code, one line on standard error, nothing half-written.

Refusals are collected over all commands, then judged, so that a failure shows all of them.
"""

import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest

from tests.trust.commands import COMMANDS, command_line, prepare
from time2decide.core.journal import Journal

WRITERS = [name for name in COMMANDS if name not in ("verify", "serve")]
ENDING = [name for name in COMMANDS if name != "serve"]
INTERRUPTED = "time2decide: interrupted"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def fresh(prepared, tmp_path):
    """Make a new folder with the inputs of every command."""
    return lambda name: shutil.copytree(prepared, tmp_path / name)


def files(folder):
    """What a command has written, but for the empty files of journals and stores."""
    return sorted(str(path) for path in (folder / "out").rglob("*") if path.is_file() and path.stat().st_size)


def complaints(messages, code):
    """What is wrong with how a refused command ended."""
    last = messages.strip().splitlines()[-1:] or [""]
    found = ["traceback"] if "Traceback" in messages else []
    found += [] if last[0].startswith("time2decide: ") and messages.count("time2decide: ") == 1 else [f"says {last}"]
    return found + ([] if code == 2 else [f"exit code {code}"])


@pytest.mark.parametrize("way", ["limit", "tmpfs"])
def test_a_full_disk(fresh, record, way):
    wrong = {}
    for name in WRITERS:
        folder = fresh(name)
        options = command_line(COMMANDS[name], folder)
        if way == "limit":  # a file may have 20 bytes: whatever is written is torn in the middle
            options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
        elif subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", folder / "out"], check=False).returncode:
            pytest.skip("only root can mount a small disk")
        try:
            if way == "tmpfs":
                (folder / "out/fill").write_bytes(4096 * b"x")
            done = subprocess.run(**options, check=False, timeout=900)
            left = [path for path in files(folder) if not path.endswith("fill")]
        finally:
            if way == "tmpfs":
                subprocess.run(["umount", folder / "out"], check=True)
        named = "time2decide: out" in done.stderr
        faults = complaints(done.stderr, done.returncode) + left + ([] if named else ["does not name the file"])
        wrong |= {name: faults} if faults else {}
    assert wrong == {}
    record(f"disk-full-{way}", "{commands} commands: exit code 2, the file named, nothing left", commands=len(WRITERS))


def test_a_folder_that_is_read_only(fresh, record):
    wrong = {}
    for name in WRITERS:
        folder = fresh(name)
        (folder / "out").chmod(0o555)
        options = command_line(COMMANDS[name], folder)
        if os.geteuid() == 0:  # root may write everywhere until it gives up its capabilities
            options["args"] = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *options["args"]]
        done = subprocess.run(**options, check=False, timeout=900)
        faults = complaints(done.stderr, done.returncode) + files(folder)
        wrong |= {name: faults} if faults else {}
    assert wrong == {}
    record("read-only", "{commands} commands: exit code 2, one line", commands=len(WRITERS))


def test_no_home(fresh, record):
    """No folder for caches and settings can be made, not even by root."""
    wrong, none = {}, "/proc/none"
    for name in ENDING:
        folder = fresh(name)
        gone = dict.fromkeys(("TIME2DECIDE_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"))
        options = command_line(COMMANDS[name], folder, HOME=none, **gone)
        done = subprocess.run(**options, check=False, timeout=900)
        if done.returncode or "Traceback" in done.stderr or (name in WRITERS and not files(folder)):
            wrong[name] = done.stderr
    assert wrong == {}
    record("no-home", "{commands} commands work without one", commands=len(ENDING))


@pytest.mark.parametrize(("way", "code"), [("broken pipe", 141), ("full", 2), ("closed", 0)])
def test_an_output_that_cannot_be_written(fresh, record, way, code):
    """The files of the command are there all the same."""
    wrong = {}
    for name in ENDING:
        folder = fresh(name)
        options = command_line(COMMANDS[name], folder)
        read, write = os.pipe()
        os.close(read)
        with open("/dev/full", "w") as full:
            options["stdout"] = write if way == "broken pipe" else full
            if way == "closed":
                options["args"] = ["bash", "-c", '"$@" >&-', "closed", *options["args"]]
            done = subprocess.run(**options, check=False, timeout=900)
        os.close(write)
        said = [line for line in done.stderr.splitlines() if line.startswith("time2decide: ")]
        right = done.returncode == code and "Traceback" not in done.stderr and len(said) == (way == "full")
        if not right or (name in WRITERS and not files(folder)):
            wrong[name] = (done.returncode, done.stderr[-300:])
    assert wrong == {}
    text = "{commands} commands: exit code {code}, files whole"
    record(f"output-{way.replace(' ', '-')}", text, commands=len(ENDING), code=code)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
def test_a_signal(fresh, record, number, code):
    """At random moments of a cold start, from where Python has come to our code."""
    wrong, draw, early, late = {}, random.Random(code), 0, 0
    for name in COMMANDS:
        for attempt in range(2):
            folder = fresh(f"{name} {attempt}")
            with subprocess.Popen(**command_line(COMMANDS[name], folder), start_new_session=True) as process:
                wait_for_python(process)
                time.sleep(draw.uniform(0, 4.0))
                if process.poll() is None:
                    os.killpg(process.pid, number)  # as a terminal does: to the workers too
                messages = process.communicate(timeout=900)[1]
            ended = process.returncode
            early, late = early + (ended == code), late + (ended != code)
            parts = [str(path) for path in folder.rglob(".*.part")]
            told = messages.count(INTERRUPTED) == 1 if ended == code else ended in (0, -number)  # while Python ended
            if "Traceback" in messages or parts or not told:
                wrong[name] = (ended, messages[-500:], parts)
    assert wrong == {}
    text = "{runs} runs of {commands} commands: {early} ended with {code} in one line, {late} had done their work"
    record(f"signal-{code}", text, runs=2 * len(COMMANDS), commands=len(COMMANDS), early=early, late=late, code=code)


def wait_for_python(process):
    """Until our handlers are set: the process catches SIGTERM."""
    for _ in range(6000):
        with open(f"/proc/{process.pid}/status") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt")), "0")
        if int(caught, 16) >> (signal.SIGTERM - 1) & 1 or process.poll() is not None:
            return
        time.sleep(0.005)
    raise AssertionError("the command did not start")


def test_two_at_once(fresh, record):
    """One store, one journal, one cache, one output and one port, each used by two processes at the same time."""
    shared = {name: COMMANDS[name] for name in ("reproduce", "run", "decide", "backtest", "train qp", "serve")}
    codes = {}
    for name, command in shared.items():
        folder = fresh(name)
        both = [subprocess.Popen(**command_line(command, folder)) for _ in range(2)]
        if name == "serve":
            codes[name] = server_codes(both)
            continue
        told = [process.communicate(timeout=900)[1] for process in both]
        codes[name] = sorted(process.returncode for process in both)
        assert not any("Traceback" in text for text in told), told
    assert {name: codes[name] for name in shared if name != "run"} == {
        **{name: [0, 0] for name in shared if name not in ("run", "serve")},
        "serve": [2, 143],
    }
    assert codes["run"] in ([0, 0], [0, 2])  # the second is refused, or comes late and finds nothing new
    base = fresh("base").parent
    lines = (base / "reproduce/out/toy-pto/smoke.jsonl").read_text().splitlines()
    assert {json.loads(line)["error"] for line in lines} == {None}
    assert len(Journal(base / "run/out/journal.jsonl").entries()) == 1
    record("two-at-once", "{commands} commands: files whole, one decision, one server", commands=len(shared))


def server_codes(both):
    """Exit codes of two servers on one port, the one that runs ended by SIGTERM."""
    while all(process.poll() is None for process in both):
        time.sleep(0.05)
    for process in both:
        if process.poll() is None:
            process.terminate()
    told = [process.communicate(timeout=60)[1] for process in both]
    assert not any("Traceback" in text for text in told), told
    return sorted(process.returncode for process in both)


def test_a_journal_that_is_in_use_is_refused(fresh, record):
    folder = fresh("run")
    with (folder / "out/journal.jsonl").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = subprocess.run(**command_line(COMMANDS["run"], folder), check=False, timeout=900)
    assert complaints(done.stderr, done.returncode) == []
    assert files(folder) == []
    record("journal-in-use", "exit code 2, nothing written")
