"""Where a result comes from: commit, versions, machine and time; digests of JSON values, files, arrays and texts."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

#: Of these the versions are stored with every row: what computes, and every peer that something is measured against.
_PACKAGES = (
    *("time2decide", "torch", "numpy", "scipy", "pandas", "numba", "daqp", "piqp", "clarabel", "highspy", "skfolio"),
    *("qpsolvers", "cvxpy", "osqp", "moreau", "proxsuite", "quadprog", "cvxpylayers", "qpth", "scikit-learn"),
    *("chronos-forecasting", "timesfm", "fastapi", "ray"),
)
INFO = "time2decide"  # key of the facts in the header of a checkpoint
_TYPES = {"F32": "torch.float32", "F64": "torch.float64"}  # of weights, in a file and in torch


def json_digest(value: object, length: int = 16) -> str:
    """Hexadecimal SHA-256 of a JSON-able value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]


def file_digest(path: str | Path, length: int = 16) -> str:
    """Hexadecimal SHA-256 of the content of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:length]


def weights_digest(weights: Iterable[tuple[str, str, list[int], Any]]) -> str:
    """Digest (32 hexadecimal digits) of weights: name, type as torch calls it, shape and bytes of each, by name."""
    content = hashlib.blake2b(digest_size=16)
    for name, kind, shape, data in sorted(weights, key=lambda one: one[0]):
        content.update(f"{name} {kind} {shape} ".encode())
        content.update(data)
    return content.hexdigest()


def checkpoint_facts(path: str | Path) -> tuple[str, str]:
    """Architecture and `weights_digest` of a checkpoint of the package (safetensors)."""
    content = Path(path).read_bytes()
    first = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:first])
    facts, places = json.loads(header.pop("__metadata__")[INFO]), header
    weights = (
        (
            name,
            _TYPES[one["dtype"]],
            one["shape"],
            content[first + one["data_offsets"][0] : first + one["data_offsets"][1]],
        )
        for name, one in places.items()
    )
    return str(facts["architecture"]), weights_digest(weights)


def array_digest(array: np.ndarray) -> str:
    """SHA-256 of the numbers as float64, little endian, row by row; every NaN is the same one, and −0 is 0."""
    plain = np.where(np.isnan(array), np.nan, array + 0.0)
    return hashlib.sha256(np.ascontiguousarray(plain, dtype="<f8").data).hexdigest()


def data_digest(*arrays: np.ndarray) -> str:
    """Digest (16 hexadecimal digits) of the data that a row was computed on, the same on every processor.

    Eight sums of all numbers with fixed random signs, to 1e-6 of the size of such a sum: data that agree to rounding
    have one digest, and data that differ in any number that matters have another. Gaps (NaN) count by their place.
    """
    found: list[Any] = []
    for array in arrays:
        values = np.asarray(array, dtype=float)
        gaps = np.isnan(values)
        flat, signs = np.where(gaps, 0.0, values).ravel(), np.random.default_rng(values.size)
        size = float(np.linalg.norm(flat)) or 1.0
        sums = [float(flat @ (2.0 * signs.integers(0, 2, flat.size) - 1)) / size for _ in range(8)]
        found += [list(values.shape), f"{size:.6e}", [round(1e6 * value) for value in sums]]
        found.append(np.flatnonzero(gaps).tolist())
    return json_digest(found)


def text_digest(lines: Iterable[str]) -> str:
    """SHA-256 of lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def provenance() -> dict[str, Any]:
    """Commit, versions, machine and time."""
    return {"time": datetime.now(UTC).isoformat(timespec="seconds"), **_machine()}


@cache
def _machine() -> dict[str, Any]:
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version()} | _versions(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
    }


def _versions() -> dict[str, str]:
    """Of what is installed of the packages that figures depend on or are measured against."""
    found = {}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _commit() -> str | None:
    """The commit of the source tree, with '+' when the package has uncommitted changes; None outside a checkout."""
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        # a lock of git's that is left behind when this process group is killed would stop the user's next commit
        command = ["git", "--no-optional-locks", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", str(package))
        return git("rev-parse", "--short=12", "HEAD") + ("+" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None
