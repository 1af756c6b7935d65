"""One cache on disk for what is expensive to make, keyed by every parameter it depends on.

A file is used only if it was written under the same key and its checksum is right. Anything else is made again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.provenance import json_digest
from time2decide.core.validation import InputError


def cache_directory() -> Path:
    """$TIME2DECIDE_CACHE if set, else `time2decide` in the user's cache directory, or without one a folder for now."""
    chosen = os.environ.get("TIME2DECIDE_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "time2decide"
    except RuntimeError:  # neither HOME nor an entry of this user, as in a container that runs as any number
        return _folder_of_this_process()


@cache
def _folder_of_this_process() -> Path:
    folder = tempfile.mkdtemp(prefix="time2decide-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def cached_tensors(
    key: Mapping[str, Any], make: Callable[[], Mapping[str, Tensor]], *, enabled: bool = True
) -> dict[str, Tensor]:
    """The named tensors stored under the JSON-able `key`, or `make()`, which is then stored.

    ``key["kind"]`` begins the name of the file. A directory that cannot be written to costs only the speed.
    """
    if not enabled:
        return dict(make())
    path = cache_directory() / f"{key['kind']}-{json_digest(key, 32)}.safetensors"
    with contextlib.suppress(InputError):
        tensors, found = load_tensors(path, need_checksum=True)
        if found == json.loads(json.dumps({"key": key})):
            return tensors
    made = dict(make())
    with contextlib.suppress(OSError):
        save_tensors(path, made, {"key": key})
    return made


def cached_array(key: Mapping[str, Any], make: Callable[[], np.ndarray], *, enabled: bool = True) -> np.ndarray:
    """`cached_tensors` for one array."""

    def tensors() -> dict[str, Tensor]:
        return {"array": torch.from_numpy(np.ascontiguousarray(make()))}

    return np.asarray(cached_tensors(key, tensors, enabled=enabled)["array"].numpy())
