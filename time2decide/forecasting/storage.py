"""A model in a folder: ``model.safetensors`` and ``config.json`` with its sizes and how it was made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.files import write_text
from time2decide.core.validation import InputError

Model = TypeVar("Model", bound=nn.Module)


def save_folder(model: nn.Module, config: dict[str, Any], folder: str | Path, notes: dict[str, Any] | None) -> Path:
    """Write both files, each replaced as a whole."""
    folder = Path(folder)
    plain = json.loads(json.dumps(config))  # as it will be read: lists, not tuples
    facts = {"architecture": type(model).__name__, "config": plain, "notes": notes or {}}
    save_tensors(folder / "model.safetensors", model.state_dict(), facts)
    write_text(folder / "config.json", json.dumps(facts, indent=2) + "\n")
    return folder


def load_folder(
    folder: str | Path, architecture: str, build: Callable[[dict[str, Any]], Model]
) -> tuple[Model, dict[str, Any]]:
    """The model in evaluation mode, made by `build` from its configuration, and its notes."""
    folder = Path(folder)
    try:
        facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = facts["architecture"], facts["config"], facts["notes"]
    except OSError:
        raise InputError(f"checkpoint: expected a folder with config.json, found {folder}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"checkpoint: expected a model's config.json in {folder}, found {error!r}") from None
    if found[0] != architecture:
        raise InputError(f"checkpoint: expected a {architecture}, found {found[0]!r}")
    model = build(found[1])
    tensors, header = load_tensors(folder / "model.safetensors")
    if header.get("config") != found[1]:  # a kill between the two files, or a file from elsewhere
        raise InputError(f"checkpoint: expected model.safetensors and config.json of one model, found two in {folder}")
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(f"checkpoint: expected weights that fit config.json, found {error}") from None
    return model.eval(), found[2]
