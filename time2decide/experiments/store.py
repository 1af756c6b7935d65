"""Results on disk: append-only lines keyed by configuration, each with its provenance.

One file per experiment and preset, ``results/<experiment>/<preset>.jsonl``. A line is one task: its configuration,
the rows that were measured or the error that stopped it, and where they come from. Lines are never changed; a
task that is run again appends a line, and the last line of a key counts.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from time2decide.core.cache import digest
from time2decide.core.validation import InputError

Config = dict[str, Any]
Row = dict[str, Any]


def task_key(config: Config) -> str:
    """The same configuration always has the same key."""
    return digest(config)


def results_root(path: str | Path | None = None) -> Path:
    """Where results are: the argument, TIME2DECIDE_RESULTS, or ``results`` in the current folder."""
    root = Path(path or os.environ.get("TIME2DECIDE_RESULTS") or "results")
    there = next(place for place in (root, *root.parents) if place.exists())
    if not there.is_dir():
        raise InputError(f"results: expected a folder, found the file {there}")
    return root


def check_writable(path: str | Path | None = None) -> None:
    """Make the folder of the results, or raise: before the first task runs, not after it."""
    root = results_root(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"results: expected a folder that can be written, found {root} ({error.strerror})") from None
    if not os.access(root, os.W_OK):
        raise InputError(f"results: expected a folder that can be written, found {root} (no permission)")


class Store:
    """The lines of one experiment under one preset. Safe under several writing processes."""

    def __init__(self, experiment: str, preset: str, root: str | Path | None = None) -> None:
        self.experiment, self.preset = experiment, preset
        self.path = results_root(root) / experiment / f"{preset}.jsonl"

    def lines(self) -> dict[str, dict[str, Any]]:
        """The last line of every key."""
        if not self.path.exists():
            return {}
        found: dict[str, dict[str, Any]] = {}
        with self.path.open("rb") as file:
            for text in file:
                try:
                    line = json.loads(text.decode())
                except ValueError:  # no JSON, or no UTF-8
                    continue  # a writer was killed inside this line or it was damaged: its task has no result yet
                if _is_whole(line):
                    found[line["key"]] = line
        return found

    def done(self) -> set[str]:
        """Keys of the tasks that have a result; a failed task is not done."""
        return {key for key, line in self.lines().items() if line["error"] is None}

    def rows(self, keys: set[str] | None = None) -> list[Row]:
        """Measured rows, each joined with its configuration; a failed task is a row with its error.

        `keys` keeps only the lines of these tasks.
        """
        return [
            {**line["config"], **row, "preset": self.preset, "error": line["error"]}
            for key, line in self.lines().items()
            if keys is None or key in keys
            for row in (line["rows"] or [{}])
        ]

    def append(self, config: Config, rows: list[Row], seconds: float, error: str | None = None) -> None:
        """Add one line in a single locked write."""
        line = {
            "key": task_key(config),
            "experiment": self.experiment,
            "preset": self.preset,
            "config": config,
            "rows": rows,
            "error": error,
            "seconds": round(seconds, 3),
            **provenance(),
        }
        text = json.dumps(line) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.tell() and not _ends_with_newline(file):
                text = "\n" + text  # close the torn line of a killed writer
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def _is_whole(line: Any) -> bool:
    """Whether a line of JSON is one that `append` may have written."""
    if not isinstance(line, dict) or not isinstance(line.get("rows"), list):
        return False
    return (
        isinstance(line.get("key"), str)
        and isinstance(line.get("config"), dict)
        and all(isinstance(row, dict) for row in line["rows"])
        and isinstance(line.get("error", False), str | None)
    )


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def provenance() -> Row:
    """Commit, versions, machine and time."""
    return {"time": datetime.now(UTC).isoformat(timespec="seconds"), **_machine()}


@cache
def _machine() -> Row:
    packages = ("time2decide", "torch", "numpy", "daqp")
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version()} | {p: importlib.metadata.version(p) for p in packages},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
    }


def _commit() -> str | None:
    """The commit of the source tree, with '+' when it has uncommitted changes; None outside a checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", str(here))
        return git("rev-parse", "--short=12", "HEAD") + ("+" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None
