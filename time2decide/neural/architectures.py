"""The four architectures of the paper by name, and widths that give two of them the same number of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from time2decide.core.validation import InputError
from time2decide.neural.baselines import LSTM, MLP, LSTMConfig, MLPConfig
from time2decide.neural.transformers import Transformer, TransformerConfig

#: name in the paper -> (model, configuration, settings that the name implies)
ARCHITECTURES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "LinearTransformer": (Transformer, TransformerConfig, {"attention": "linear"}),
    "SoftmaxTransformer": (Transformer, TransformerConfig, {"attention": "softmax"}),
    "MLP": (MLP, MLPConfig, {}),
    "LSTM": (LSTM, LSTMConfig, {}),
}


def build(architecture: str, n: int, m: int, *, seed: int | None = 0, **settings: Any) -> nn.Module:
    """A new model of size (n, m); `settings` are fields of its configuration. `seed` fixes the weights.

    >>> build("LinearTransformer", 5, 3, d_model=32, layers=2, heads=4).config.attention
    'linear'
    """
    model, config, implied = _entry(architecture)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # torch's own first draw of the weights must not move the global generator
        built: nn.Module = model(_configure(config, {"n": n, "m": m, **implied, **settings}), generator)
    return built


def rebuild(architecture: str, config: Mapping[str, Any]) -> nn.Module:
    """A model of a stored configuration, its weights still to be loaded; unknown keys raise."""
    model, kind, _ = _entry(architecture)
    built: nn.Module = model(_configure(kind, dict(config)))
    return built


def name_of(model: nn.Module) -> str:
    """The paper's name of a model made here."""
    for name, (kind, _, implied) in ARCHITECTURES.items():
        if type(model) is kind and all(getattr(model.config, key) == value for key, value in implied.items()):
            return name
    raise InputError(f"model: expected one of {', '.join(ARCHITECTURES)}, found {type(model).__name__}")


def count_parameters(model: nn.Module) -> int:
    """Number of trained numbers."""
    return sum(parameter.numel() for parameter in model.parameters())


def matched_width(architecture: str, n: int, m: int, parameters: int, **settings: Any) -> int:
    """The d_model with which `architecture` comes nearest to a number of parameters (it grows with d_model)."""
    low, high = 1, 2
    with torch.device("meta"):  # shapes only: nothing is allocated

        def size(width: int) -> int:
            return count_parameters(build(architecture, n, m, seed=None, d_model=width, **settings))

        while size(high) < parameters:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if size(middle) < parameters else (low, middle)
        return min((low, high), key=lambda width: abs(size(width) - parameters))


def _entry(architecture: str) -> tuple[Any, Any, dict[str, Any]]:
    if architecture not in ARCHITECTURES:
        raise InputError(f"architecture: expected one of {', '.join(ARCHITECTURES)}, found {architecture!r}")
    return ARCHITECTURES[architecture]


def _configure(kind: Any, settings: dict[str, Any]) -> Any:
    unknown = sorted(set(settings) - set(kind.__dataclass_fields__))
    if unknown:
        known = ", ".join(kind.__dataclass_fields__)
        raise InputError(f"settings: expected fields of {kind.__name__} ({known}), found {', '.join(unknown)}")
    return kind(**settings)
