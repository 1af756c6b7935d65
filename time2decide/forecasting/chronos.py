"""Chronos-Bolt and Chronos-2 as backbones (`pip install time2decide[chronos]`).

Both cut every channel into patches, standardise it themselves and forecast quantiles. Chronos-Bolt encodes channels
one by one; Chronos-2 lets the channels of a window attend to each other, as one group. Weights are those of
`chronos-forecasting`: a folder made by ``save_pretrained`` or a name on the hub.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from time2decide.core.validation import InputError, expect
from time2decide.forecasting.backbones import load_backbone_weights
from time2decide.markets.oracle import WINDOW


class ChronosBackbone(nn.Module):
    """A Chronos model; `window` is what it will be shown, at most its context length."""

    def __init__(self, model: Any, window: int = WINDOW, name: str = "chronos") -> None:
        super().__init__()
        self.model, self.window, self.name = model, window, name
        settings = model.chronos_config
        self.grouped = hasattr(settings, "output_patch_size")  # Chronos-2
        self.horizon = int(settings.output_patch_size if self.grouped else settings.prediction_length)
        levels = settings.quantiles
        self._median = min(range(len(levels)), key=lambda k: abs(levels[k] - 0.5))
        expect(window <= settings.context_length, "window", f"at most {settings.context_length} steps", window)

    def forecast(self, window: Tensor) -> Tensor:
        """The median of every channel; with Chronos-2 the channels of one window form a group."""
        batch, _, count = window.shape
        options: dict[str, Tensor] = {}
        if self.grouped:
            options["group_ids"] = torch.arange(batch, device=window.device).repeat_interleave(count)
        predicted = self.model(window.mT.flatten(0, 1), **options).quantile_preds  # (batch · N, levels, horizon)
        found: Tensor = predicted[:, self._median].reshape(batch, count, self.horizon).mT
        return found


def load_chronos(place: str) -> ChronosBackbone:
    """The backbone of a folder or of a name on the hub, in evaluation mode."""
    load = _package().BaseChronosPipeline.from_pretrained
    pipeline = load_backbone_weights(place, "a Chronos model", "a name such as amazon/chronos-2", load)
    known = hasattr(pipeline.model, "chronos_config")
    expect(known, "backbone", "Chronos-Bolt or Chronos-2", f"{type(pipeline).__name__} at {place}")
    return ChronosBackbone(pipeline.model.float(), name=f"chronos:{place}").eval()


def _package() -> Any:
    try:
        logging.getLogger("transformers").setLevel(logging.ERROR)
        return import_module("chronos")
    except ImportError:
        raise InputError(
            "backbone: expected the package chronos-forecasting (pip install time2decide[chronos]), found none"
        ) from None
