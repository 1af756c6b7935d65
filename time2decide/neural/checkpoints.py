"""Tensors and facts about them in one file: safetensors with a JSON header, written atomically, never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from time2decide.neural.architectures import name_of, rebuild
from time2decide.qp import InputError
from time2decide.qp.output_files import replacing

_INFO = "time2decide"  # the key of our JSON in the header


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> Path:
    """Write `tensors` and the JSON-able `info` to one file; readers see the old file or the new one, never a part."""
    path = Path(path)
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
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


def write_text(path: Path, text: str) -> None:
    """Write a text file; readers see the old one or the new one, never a part."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_model(model: nn.Module, path: str | Path, notes: Mapping[str, Any] | None = None) -> Path:
    """Write a model with its architecture, its configuration and JSON-able `notes` on how it was made."""
    info = {"architecture": name_of(model), "config": asdict(model.config), "notes": dict(notes or {})}  # type: ignore[call-overload]
    return save_tensors(path, model.state_dict(), info)


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[nn.Module, dict[str, Any]]:
    """The model of `save_model` in evaluation mode, and its notes."""
    tensors, info = load_tensors(path, device)
    for key in ("architecture", "config"):
        if key not in info:
            raise InputError(f"path: expected a model with its {key}, found {path} without it")
    model = rebuild(info["architecture"], info["config"]).to(device)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(f"path: expected the weights of a {info['architecture']}, found {path} ({error})") from None
    return model.eval(), info.get("notes", {})
