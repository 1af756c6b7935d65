"""Generated arrays on disk, keyed by every parameter they depend on, so that equal questions are answered once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from time2decide.core.files import atomic_path


def cache_directory() -> Path:
    """$TIME2DECIDE_CACHE if set, else `time2decide` in the user's cache directory."""
    chosen = os.environ.get("TIME2DECIDE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "time2decide"


def cached_array(key: Mapping[str, object], make: Callable[[], np.ndarray], *, enabled: bool = True) -> np.ndarray:
    """The array stored under `key`, or `make()`, which is then stored.

    A file that cannot be read is made again. A directory that cannot be written to costs only the speed.
    """
    if not enabled:
        return make()
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    path = cache_directory() / f"{key.get('kind', 'array')}-{name}.npy"
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError):
        array = make()
    with contextlib.suppress(OSError):
        _store(path, array)
    return array


def _store(path: Path, array: np.ndarray) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)
