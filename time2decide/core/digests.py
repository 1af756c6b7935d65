"""Digests of JSON values, files, arrays and texts; without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def json_digest(value: object, length: int = 16) -> str:
    """Hexadecimal SHA-256 of a JSON-able value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]


def file_digest(path: str | Path, length: int = 16) -> str:
    """Hexadecimal SHA-256 of the content of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:length]


def array_digest(array: np.ndarray) -> str:
    """SHA-256 of the numbers as float64, little endian, row by row; every NaN is the same one, and −0 is 0."""
    plain = np.where(np.isnan(array), np.nan, array + 0.0)
    return hashlib.sha256(np.ascontiguousarray(plain, dtype="<f8").data).hexdigest()


def text_digest(lines: Iterable[str]) -> str:
    """SHA-256 of lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
