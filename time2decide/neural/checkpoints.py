"""A learned QP solver in one file: weights, architecture, configuration and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.validation import InputError
from time2decide.neural.architectures import name_of, rebuild


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
