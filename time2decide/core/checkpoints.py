"""Tensors and facts about them in one file: safetensors with a JSON header, written atomically, never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from time2decide.core.files import atomic_path
from time2decide.core.validation import InputError

_INFO = "time2decide"  # the key of our JSON in the header


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> Path:
    """Write `tensors` and the JSON-able `info` to one file; readers see the old file or the new one, never a part."""
    path = Path(path)
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(plain, temporary, metadata={_INFO: json.dumps(dict(info))})
    return path


def load_tensors(path: str | Path, device: str | torch.device = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of a file made by `save_tensors`."""
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            info = (file.metadata() or {}).get(_INFO)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError:
        raise InputError(f"path: expected a checkpoint, found no file at {path}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"path: expected a safetensors file, found {path} ({error})") from None
    if info is None:
        raise InputError(f"path: expected a file written by time2decide, found {path} without its header")
    try:
        facts = json.loads(info)
    except ValueError as error:
        raise InputError(f"path: expected JSON in the header of {path}, found {error}") from None
    if not isinstance(facts, dict):
        raise InputError(f"path: expected a JSON object in the header of {path}, found {type(facts).__name__}")
    return tensors, facts
