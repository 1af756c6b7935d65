"""Problems and solutions as files: ``.npz`` or ``.json`` in, plain dicts or ``.npz`` out."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from time2decide.core.files import atomic_path
from time2decide.core.validation import InputError
from time2decide.qp.problem import QP
from time2decide.qp.solution import Solution

_UNREADABLE = (OSError, ValueError, EOFError, AttributeError, KeyError, TypeError)
_FIELDS = ("A", "b", "C", "d", "l1_penalty", "l1_radius")


def read_problem(path: Path) -> QP:
    """The `QP` in a file; every error names the file and what is wrong with it."""
    if not path.exists():
        raise InputError(f"{path}: expected a file, found none")
    if not path.is_file():
        raise InputError(f"{path}: expected a file, found a {'folder' if path.is_dir() else 'device'}")
    readers = {".npz": _read_npz, ".json": _read_json}
    if path.suffix not in readers:
        raise InputError(f"{path}: expected a name ending in .npz or .json, found {path.suffix or 'no ending'!r}")
    fields = readers[path.suffix](path)
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
        raise InputError(f"{path}: expected only the names {', '.join(_FIELDS)}, found {unknown[0]!r}")
    fields = {name: value for name, value in fields.items() if value is not None}  # null in JSON
    for name in ("A", "b"):
        if name not in fields:
            raise InputError(f"{path}: expected {name}, found only {', '.join(fields) or 'nothing'}")
    try:
        return QP(**fields)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (*_UNREADABLE, zipfile.BadZipFile, NotImplementedError, RuntimeError, MemoryError) as error:
        raise InputError(f"{path}: expected an .npz archive of arrays, found something else ({error})") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_without_repetition)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (*_UNREADABLE, RecursionError) as error:
        raise InputError(f"{path}: expected JSON, found something else ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object with A and b, found {type(content).__name__}")
    return content


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise InputError(f"expected every name once, found {next(n for n in names if names.count(n) > 1)!r} again")
    return content


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


def validate_output(path: Path) -> None:
    """Raise unless an .npz file can be written at `path`: before the work, not after it."""
    if path.suffix != ".npz":
        raise InputError(f"--out: expected a name ending in .npz, found {str(path)!r}")
    if path.is_dir():
        raise InputError(f"--out: expected a file, found the folder {str(path)!r}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"--out: expected a file in an existing folder that can be written, found {str(path)!r}")


def write_solution(solution: Solution, path: Path) -> None:
    """Write x, dual, status, kkt_residual and, where there are, steps and how as .npz, atomically."""
    validate_output(path)
    names = ("x", "dual", "status", "kkt_residual", "steps", "how")
    arrays = {name: np.asarray(getattr(solution, name)) for name in names if getattr(solution, name) is not None}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _finite(values: np.ndarray) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
