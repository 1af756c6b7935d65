"""TimesFM 2.5 as a backbone (`pip install time2decide[timesfm]`).

It cuts every channel into patches of 32, standardises them by running statistics and forecasts 128 steps with deciles,
channel by channel. Its own decoder runs without gradients, so it can be read but not fine-tuned through this adapter.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from time2decide.core.validation import InputError
from time2decide.forecasting.backbones import DECILES, Encoded, load_weights, outputs_of
from time2decide.markets.oracle import WINDOW


class TimesFMBackbone(nn.Module):
    """The torch module of TimesFM 2.5; `scale` multiplies returns, whose variance it may take for none."""

    def __init__(self, model: Any, window: int = WINDOW, scale: float = 100.0, name: str = "timesfm") -> None:
        super().__init__()
        self.model, self.window, self.scale, self.name = model, window, scale, name
        self.tokens, self.width, self.horizon = -(-window // model.p), int(model.md), int(model.o)
        self.levels: tuple[float, ...] = DECILES

    def encode(self, window: Tensor) -> Encoded:
        """Output embeddings of the patches; the mean forecast of the last patch, and its deciles."""
        batch, time, count = window.shape
        rows = self.scale * window.mT.reshape(batch * count, time)
        missing = -time % self.model.p  # steps that are masked in front
        rows = nn.functional.pad(rows, (missing, 0))
        mask = torch.zeros_like(rows, dtype=torch.bool)
        mask[:, :missing] = True
        with outputs_of(self.model) as seen:
            decoded = self.model.decode(self.horizon, rows, mask)[0]
        predicted = decoded[:, -1] / self.scale  # (batch · N, horizon, 1 + levels)
        tokens = seen[0][0][1]  # (batch · N, patches, width)
        paths = predicted.reshape(batch, count, self.horizon, 1 + len(self.levels)).permute(0, 3, 2, 1)
        return Encoded(tokens.reshape(batch, count, *tokens.shape[1:]), paths[:, 0], paths[:, 1:])


def load_timesfm(place: str) -> TimesFMBackbone:
    """The backbone of a folder with ``model.safetensors`` or of a name on the hub, in evaluation mode."""
    try:
        package = import_module("timesfm.timesfm_2p5.timesfm_2p5_torch")
    except ImportError:
        raise InputError("backbone: expected the package timesfm (time2decide[timesfm]), found none") from None
    load = partial(package.TimesFM_2p5_200M_torch.from_pretrained, torch_compile=False)
    loaded = load_weights(place, "TimesFM 2.5", "google/timesfm-2.5-200m-pytorch", load)
    return TimesFMBackbone(loaded.model, name=f"timesfm:{place}").eval()
