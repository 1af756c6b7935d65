"""TimesFM 2.5 as a backbone (`pip install time2decide[timesfm]`).

It cuts every channel into patches of 32, standardises them by running statistics and forecasts 128 steps with deciles,
channel by channel. Its own decoder runs without gradients, so it can be read but not fine-tuned through this adapter.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import one_line
from time2decide.core.validation import InputError, expect
from time2decide.forecasting.backbones import Encoded, outputs_of
from time2decide.markets.oracle import WINDOW

_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class TimesFMBackbone(nn.Module):
    """The torch module of TimesFM 2.5; `scale` multiplies returns, whose variance it may take for none."""

    def __init__(self, model: Any, window: int = WINDOW, scale: float = 100.0, name: str = "timesfm") -> None:
        super().__init__()
        self.model, self.window, self.scale, self.name = model, window, scale, name
        self.tokens, self.width, self.horizon = -(-window // model.p), int(model.md), int(model.o)
        self.levels: tuple[float, ...] = _LEVELS

    def encode(self, window: Tensor) -> Encoded:
        """Output embeddings of the patches; the mean forecast of the last patch, and its deciles."""
        batch, time, count = window.shape
        rows = self.scale * window.mT.reshape(batch * count, time)
        missing = -time % self.model.p  # steps that are masked in front
        rows = nn.functional.pad(rows, (missing, 0))
        mask = torch.zeros_like(rows, dtype=torch.bool)
        mask[:, :missing] = True
        with outputs_of(self.model) as seen:
            predicted = (
                self.model.decode(self.horizon, rows, mask)[0][:, -1] / self.scale
            )  # (batch · N, horizon, 1 + levels)
        tokens = seen[0][0][1]  # (batch · N, patches, width)
        paths = predicted.reshape(batch, count, self.horizon, 1 + len(self.levels)).permute(0, 3, 2, 1)
        return Encoded(tokens.reshape(batch, count, *tokens.shape[1:]), paths[:, 0], paths[:, 1:])


def load_timesfm(place: str) -> TimesFMBackbone:
    """The backbone of a folder with ``model.safetensors`` or of a name on the hub, in evaluation mode."""
    try:
        package = import_module("timesfm.timesfm_2p5.timesfm_2p5_torch")
    except ImportError:
        raise InputError("backbone: expected the package timesfm (time2decide[timesfm]), found none") from None
    found = Path(place).is_dir() or place.count("/") == 1
    expect(found, "backbone", "a folder or google/timesfm-2.5-200m-pytorch", place)
    try:
        model = package.TimesFM_2p5_200M_torch.from_pretrained(place, torch_compile=False).model
    except Exception as error:  # whatever the library, the network or the server has to say
        raise InputError(f"backbone: expected TimesFM 2.5 at {place}, found {one_line(error)}") from None
    return TimesFMBackbone(model, name=f"timesfm:{place}").eval()
