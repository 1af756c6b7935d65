"""Problems and solutions as files: ``.npz`` or ``.json`` in, plain dicts or ``.npz`` out."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from time2decide.core.files import atomic_path, validate_input_file
from time2decide.core.validation import InputError, distinct_keys, expect, refuse
from time2decide.qp.problem import QP
from time2decide.qp.solution import Solution

_UNREADABLE = (OSError, ValueError, EOFError, AttributeError, KeyError, TypeError)
_MOST_BYTES = 2**30  # of a file, packed or unpacked
_FIELDS = ("A", "b", "C", "d", "E", "f", "lb", "ub", "l1_penalty", "l1_radius")


def read_problem(path: Path) -> QP:
    """The `QP` in a file; every error names the file and what is wrong with it."""
    validate_input_file(path, megabytes=_MOST_BYTES >> 20)
    readers = {".npz": _read_npz, ".json": _read_json}
    expect(path.suffix in readers, path, "a name ending in .npz or .json", f"{path.suffix or 'no ending'!r}")
    try:
        fields = readers[path.suffix](path)
        names = f"expected only the names {', '.join(_FIELDS)}"
        refuse(f"{names}, found {name!r}" for name in sorted(set(fields) - set(_FIELDS)))
        fields = {name: value for name, value in fields.items() if value is not None}  # null in JSON
        found = ", ".join(fields) or "nothing"
        refuse(f"expected {name}, found only {found}" for name in ("A", "b") if name not in fields)
        return QP(**fields)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            size = sum(part.file_size for part in archive.zip.infolist())
            expect(size <= _MOST_BYTES, "archive", f"at most {_MOST_BYTES >> 20} MB", f"{size >> 20} MB unpacked")
            return {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except (*_UNREADABLE, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, MemoryError) as error:
        found = " ".join(str(error).split())
        raise InputError(f"expected an .npz archive of arrays, found something else ({found})") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=distinct_keys)
    except InputError:
        raise
    except (*_UNREADABLE, RecursionError) as error:
        raise InputError(f"expected JSON, found something else ({error})") from None
    if isinstance(content, dict):
        return content
    raise InputError(f"expected a JSON object with A and b, found {type(content).__name__}")


def solution_as_dict(solution: Solution) -> dict[str, Any]:
    """JSON-able, always batched; numbers that are not finite become None."""
    batch = len(solution.qp)
    x, dual = (np.asarray(v).reshape(batch, -1) for v in (solution.x, solution.dual))
    answer = {
        "method": solution.method,
        "kind": solution.qp.kind,
        "status": np.asarray(solution.status).reshape(batch).tolist(),
        "kkt_residual": _finite(np.asarray(solution.kkt_residual).reshape(batch)),
        "objective": _finite(np.asarray(solution.objective).reshape(batch)),
        "x": [_finite(row) for row in x],
        "dual": [_finite(row) for row in dual],
    }
    for name in ("steps", "how"):
        value = getattr(solution, name)
        if value is not None:
            answer[name] = np.asarray(value).reshape(batch).tolist()
    return answer


def validate_solution_path(path: Path) -> None:
    """Raise unless an .npz file can be written at `path`: before the work, not after it."""
    expect(path.suffix == ".npz", "--out", "a name ending in .npz", f"{str(path)!r}")
    expect(not path.is_dir(), "--out", "a file", f"the folder {str(path)!r}")
    there = path.parent.is_dir() and os.access(path.parent, os.W_OK)
    expect(there, "--out", "a file in an existing folder that can be written", f"{str(path)!r}")


def write_solution(solution: Solution, path: Path) -> None:
    """Write x, dual, status, kkt_residual and, where there are, steps and how as .npz, atomically."""
    validate_solution_path(path)
    names = ("x", "dual", "status", "kkt_residual", "steps", "how")
    arrays = {name: np.asarray(getattr(solution, name)) for name in names if getattr(solution, name) is not None}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _finite(values: np.ndarray) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
