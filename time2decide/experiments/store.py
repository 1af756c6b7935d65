"""Results on disk: lines keyed by configuration, each with its provenance.

One file per experiment and preset, ``results/<experiment>/<preset>.jsonl``. A line is one task: its configuration,
the rows that were measured or the traceback that stopped it, and where they come from. While experiments run lines are
only appended: a task that is run again appends a line, and the last line of a key counts. The file of an experiment
that is measured anew may be replaced by a commit; git keeps the old one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from time2decide.core.files import append_line
from time2decide.core.provenance import json_digest, provenance
from time2decide.core.validation import InputError, describe_value, expect

Config = dict[str, Any]
Row = dict[str, Any]
_Made = TypeVar("_Made")

#: Experiment -> label of a strategy in stored lines -> its name. Configurations keep the label, because they are keys.
LABELS: dict[str, dict[str, str]] = {
    "finetuned-pto": {
        "pto-finetuned": "pto-timepfn-finetuned",
        "pto-finetuned-shrunk": "pto-timepfn-finetuned-shrunk",
    },
}


def task_key(config: Config) -> str:
    """The same configuration always has the same key."""
    return json_digest(config)


def results_root(path: str | Path | None = None) -> Path:
    """Where results are: the argument, TIME2DECIDE_RESULTS, or ``results`` in the current folder."""
    root = Path(path or os.environ.get("TIME2DECIDE_RESULTS") or "results")
    there = next(place for place in (root, *root.parents) if place.exists())
    expect(there.is_dir(), "results", "a folder", f"the file {there}")
    return root


def check_store_writable(path: str | Path | None = None) -> None:
    """Make the folder of the results, or raise: before the first task runs, not after it."""
    root = results_root(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"results: expected a folder that can be written, found {root} ({error.strerror})") from None
    expect(os.access(root, os.W_OK), "results", "a folder that can be written", f"{root} (no permission)")


def measured_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows of the tasks that did not fail."""
    return [row for row in rows if not row["error"]]


def last_error_line(error: str) -> str:
    """What a traceback comes down to."""
    return error.strip().splitlines()[-1] if error.strip() else "unknown error"


def grouped_rows(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """Rows by the value of a key, or by the values of several, in order of appearance."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        values = tuple(row[key] for key in keys)
        found.setdefault(values if len(keys) > 1 else values[0], []).append(row)
    return found


class StoredRow(dict[str, Any]):
    """A row, or an object in it, that says where it is stored: the file, and the line and task in it."""

    def __init__(self, values: dict[str, Any], path: Path, line: str) -> None:
        super().__init__({k: StoredRow(v, path, line) if isinstance(v, dict) else v for k, v in values.items()})
        self.path, self.line = path, line

    def __missing__(self, field: str) -> NoReturn:
        raise InputError(f"{self.path}, {self.line}: expected the field {field!r} in the stored rows, found none")


def make_from_stored_rows(make: Callable[[list[Row]], _Made], rows: list[Row]) -> _Made:
    """What is made of stored rows, in the one place where they are judged: other rows than an experiment writes are
    bad input, by line and field where one stands out from the others."""
    try:
        with np.errstate(all="ignore"):  # rows may hold numbers of any size
            return make(rows)
    except InputError:  # it names the line and the field
        raise
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise InputError(f"{_suspect(rows)}expected rows as the experiment writes them, found {found}") from error


def _suspect(rows: list[Row]) -> str:
    """The line and the field that is of another kind than in most rows with the same fields; else only the file."""
    stored = [row for row in rows if isinstance(row, StoredRow)]
    if not stored:
        return ""
    alike: dict[tuple[frozenset[str], str], list[tuple[str, StoredRow, Any]]] = {}
    for row in stored:
        for path, value in _leaves(row):
            alike.setdefault((frozenset(row), path), []).append((_kind(value), row, value))
    odd = []
    for (_, path), found in alike.items():
        (usual, most), *rare = Counter(kind for kind, *_ in found).most_common()
        odd += [(most / count, path, usual, one) for kind, count in rare for one in found if one[0] == kind]
    if not odd:
        return f"{stored[0].path}: "
    _, path, usual, (_, row, value) = max(odd, key=lambda one: one[0])
    return f"{row.path}, {row.line}, field {path!r} ({describe_value(value)} where other rows have {usual}): "


def _leaves(row: Row, before: str = "") -> Iterable[tuple[str, Any]]:
    """Fields of a row by their path through its objects."""
    for name, value in row.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _kind(value: Any) -> str:
    """What JSON has for a value; a list is one of the kind of its entries."""
    if isinstance(value, list):
        kinds = sorted({_kind(entry) if not isinstance(entry, list) else "lists" for entry in value})
        return f"a list of {' and '.join(kinds)}" if kinds else "an empty list"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", type(None): "null"}
    return names.get(type(value), "an object")


class Store:
    """The lines of one experiment under one preset. Safe under several writing processes."""

    def __init__(self, experiment: str, preset: str, root: str | Path | None = None) -> None:
        self.experiment, self.preset = experiment, preset
        self.path = results_root(root) / experiment / f"{preset}.jsonl"

    def lines(self) -> dict[str, dict[str, Any]]:
        """The last line of every key, with its number in the file."""
        if not self.path.exists():
            return {}
        found: dict[str, dict[str, Any]] = {}
        with self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = json.loads(text.decode())
                except (ValueError, RecursionError):  # no JSON, or no UTF-8
                    continue  # a writer was killed inside this line or it was damaged: its task has no result yet
                if _is_whole(line):
                    found[line["key"]] = line | {"number": number}
        return found

    def done(self) -> set[str]:
        """Keys of the tasks that have a result; a failed task is not done."""
        return {key for key, line in self.lines().items() if line["error"] is None}

    def rows(self, keys: set[str] | None = None) -> list[Row]:
        """Measured rows, each joined with its configuration; a failed task is a row with its error.

        `keys` keeps only the lines of these tasks. Labels of strategies are translated to names here.
        """
        names = LABELS.get(self.experiment, {})
        found: list[Row] = []
        for key, line in self.lines().items():
            if keys is not None and key not in keys:
                continue
            for values in line["rows"] or [{}]:
                row = self._row(line, {**line["config"], **values, "preset": self.preset, "error": line["error"]})
                if isinstance(row.get("strategy"), str):
                    row["strategy"] = names.get(row["strategy"], row["strategy"])
                found.append(row)
        return found

    def measured(self) -> list[Row]:
        """Rows as they were measured, without their configuration."""
        return [self._row(line, values) for line in self.lines().values() for values in line["rows"]]

    def _row(self, line: dict[str, Any], values: Row) -> Row:
        place = f"line {line['number']}, task {line['key']}"
        try:
            return StoredRow(values, self.path, place)
        except RecursionError:
            raise InputError(f"{self.path}, {place}: expected rows, found objects nested too deeply") from None

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
            append_line(file, text.encode())


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
