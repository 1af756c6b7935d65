"""Any time-series foundation model as a backbone: a forecast of several steps for every channel.

A backbone has the attributes of `Backbone` and one method, `forecast`. Predict-then-optimise reads its first step
(`BackboneForecaster`), the policy the whole path. Adapters:

    timepfn:small, timepfn:FOLDER     TimePFN, of this package
    official:FILE                     TimePFN with the weights that its authors publish
    kernel-bank:                      the kernel bank, of this package, without weights to load
    chronos:FOLDER or chronos:NAME    Chronos-Bolt and Chronos-2 of `chronos-forecasting` (extra `chronos`)
    timesfm:FOLDER or timesfm:NAME    TimesFM 2.5 of `timesfm` (extra `timesfm`)

FOLDER holds weights in the format of the other package; NAME is a model on the hub, such as
``amazon/chronos-bolt-small``, ``amazon/chronos-2`` or ``google/timesfm-2.5-200m-pytorch``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import error_line
from time2decide.core.validation import InputError, expect
from time2decide.forecasting.kernel_bank import kernel_bank
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.oracle import WINDOW


class Backbone(Protocol):
    """Interface of a foundation model."""

    name: str
    window: int  # steps that it is shown
    horizon: int  # steps that it forecasts

    def forecast(self, window: Tensor) -> Tensor:
        """Mean or median of the next steps (batch, horizon, N), for windows (batch, window, N) in any unit."""


class TimePFNBackbone(nn.Module):
    """TimePFN; returns are multiplied by `scale` first, because it adds eps to variances."""

    def __init__(self, model: TimePFN, scale: float = 100.0, name: str = "timepfn") -> None:
        super().__init__()
        self.model, self.scale, self.name = model, scale, name
        self.window, self.horizon = model.config.window, model.config.horizon

    def forecast(self, window: Tensor) -> Tensor:
        """All channels together."""
        found: Tensor = self.model(self.scale * window) / self.scale
        return found


class KernelBankBackbone:
    """The kernel bank: the next step of each channel by itself."""

    name, horizon = "kernel-bank", 1

    def __init__(self, window: int = WINDOW) -> None:
        self.window = window

    def forecast(self, window: Tensor) -> Tensor:
        """The bank's forecast of the next step."""
        x = window.double().mT  # (batch, N, time)
        level, scale = x.mean(-1, keepdim=True), x.std(-1, correction=0, keepdim=True)
        moves = scale > 1e-6 * scale.amax(1, keepdim=True)  # an asset that does not move stays at its level
        z = torch.where(moves, (x - level) / torch.where(moves, scale, 1.0), 0.0)
        found = kernel_bank(self.window).means(z.flatten(0, 1), [(0, 1)]).view(*z.shape[:2], 1)
        return (level + scale * found).mT


class TimesFMBackbone(nn.Module):
    """The torch module of TimesFM 2.5 (`pip install time2decide[timesfm]`).

    It cuts every channel into patches of 32, standardises them by running statistics and forecasts 128 steps with
    deciles, channel by channel. `scale` multiplies returns, whose variance it may take for none.
    """

    def __init__(self, model: Any, window: int = WINDOW, scale: float = 100.0, name: str = "timesfm") -> None:
        super().__init__()
        self.model, self.window, self.scale, self.name = model, window, scale, name
        self.horizon = int(model.o)

    def forecast(self, window: Tensor) -> Tensor:
        """The mean forecast of the last patch."""
        batch, time, count = window.shape
        rows = self.scale * window.mT.reshape(batch * count, time)
        missing = -time % self.model.p  # steps that are masked in front
        rows = nn.functional.pad(rows, (missing, 0))
        mask = torch.zeros_like(rows, dtype=torch.bool)
        mask[:, :missing] = True
        decoded = self.model.decode(self.horizon, rows, mask)[0]
        predicted: Tensor = decoded[:, -1, :, 0] / self.scale  # (batch · N, horizon)
        return predicted.reshape(batch, count, self.horizon).mT


@dataclass(frozen=True)
class BackboneForecaster:
    """(series, window, m) -> (series, m): the first step of a backbone's forecast, for predict-then-optimise."""

    backbone: Backbone
    batch: int = 16  # windows at a time

    def __call__(self, returns: np.ndarray) -> np.ndarray:
        return self.path(returns)[:, 0]

    def path(self, returns: np.ndarray) -> np.ndarray:
        """The whole forecast, (series, horizon, m)."""
        window = torch.from_numpy(np.ascontiguousarray(returns)).float()
        with torch.inference_mode():
            parts = [self.backbone.forecast(part) for part in torch.split(window, self.batch)]
        return np.asarray(torch.cat(parts).double().numpy())


def load_backbone_weights(place: str, model: str, example: str, load: Callable[[str], Any]) -> Any:
    """Load with another package from a folder or a name on the hub; any failure is an `InputError`."""
    expect(Path(place).is_dir() or place.count("/") == 1, "backbone", f"a folder or {example}", place)
    try:
        return load(place)
    except Exception as error:  # whatever the library, the network or the server has to say
        raise InputError(f"backbone: expected {model} at {place}, found {error_line(error)}") from None


def load_backbone(name: str) -> Backbone:
    """The backbone of a name such as ``chronos:FOLDER``; see the head of this file."""
    kind, _, place = name.partition(":")
    if kind == "kernel-bank" and not place:
        return KernelBankBackbone()
    expected = "timepfn:FOLDER, chronos:FOLDER, timesfm:FOLDER, a name in place of FOLDER, or official:FILE"
    expect(kind in ("timepfn", "official", "chronos", "timesfm") and place, "backbone", expected, repr(name))
    if kind in ("timepfn", "official"):
        return TimePFNBackbone(TimePFN.from_pretrained(place if kind == "timepfn" else name), name=name).eval()
    if kind == "chronos":
        from time2decide.forecasting.chronos import load_chronos

        return load_chronos(place)
    return _load_timesfm(place)


def _load_timesfm(place: str) -> TimesFMBackbone:
    """The backbone of a folder with ``model.safetensors`` or of a name on the hub, in evaluation mode."""
    try:
        package = import_module("timesfm.timesfm_2p5.timesfm_2p5_torch")
    except ImportError:
        raise InputError("backbone: expected the package timesfm (time2decide[timesfm]), found none") from None
    load = partial(package.TimesFM_2p5_200M_torch.from_pretrained, torch_compile=False)
    loaded = load_backbone_weights(place, "TimesFM 2.5", "google/timesfm-2.5-200m-pytorch", load)
    return TimesFMBackbone(loaded.model, name=f"timesfm:{place}").eval()
