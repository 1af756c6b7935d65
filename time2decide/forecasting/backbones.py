"""Any time-series foundation model as a backbone: tokens per channel, and a forecast with quantiles.

A backbone is a module with the attributes of `Backbone` and one method, `encode`. Predict-then-optimise needs its
forecast alone (`BackboneForecaster`); a decision model reads its tokens as well. Adapters:

    timepfn:small, timepfn:FOLDER     TimePFN, of this package
    official:FILE                     TimePFN with the weights that its authors publish
    kernel-bank:                      the kernel bank, of this package: one token per channel, no weights
    chronos:FOLDER or chronos:NAME    Chronos-Bolt and Chronos-2 of `chronos-forecasting` (extra `chronos`)
    timesfm:FOLDER or timesfm:NAME    TimesFM 2.5 of `timesfm` (extra `timesfm`)

FOLDER holds weights in the format of the other package; NAME is a model on the hub, such as
``amazon/chronos-bolt-small``, ``amazon/chronos-2`` or ``google/timesfm-2.5-200m-pytorch``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from time2decide.forecasting.features import EXPERTS, window_features
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.oracle import WINDOW

DECILES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # levels of the quantiles of Chronos-Bolt and TimesFM


@dataclass(frozen=True)
class BackboneOutput:
    """Output of a backbone for windows (batch, window, N).

    tokens : (batch, N, tokens, width), after the backbone's own encoder
    forecast : (batch, horizon, N), mean or median, in the unit of the windows
    quantiles : (batch, levels, horizon, N), or None for a backbone that gives a point
    """

    tokens: Tensor
    forecast: Tensor
    quantiles: Tensor | None = None


class Backbone(Protocol):
    """Interface of a foundation model; weights are those of an `nn.Module`."""

    name: str
    window: int  # steps that it is shown
    horizon: int  # steps that it forecasts
    tokens: int  # per channel, of such a window
    width: int  # of a token
    levels: tuple[float, ...]  # of its quantiles; none for a point forecast

    def encode(self, window: Tensor) -> BackboneOutput:
        """Tokens and forecast of windows (batch, window, N) of N channels in any unit."""


class TimePFNBackbone(nn.Module):
    """TimePFN; returns are multiplied by `scale` first, because it adds eps to variances."""

    def __init__(self, model: TimePFN, scale: float = 100.0, name: str = "timepfn") -> None:
        super().__init__()
        self.model, self.scale, self.name = model, scale, name
        config = model.config
        self.window, self.horizon, self.tokens = config.window, config.horizon, config.patches
        self.width = config.embed
        self.levels: tuple[float, ...] = ()

    def encode(self, window: Tensor) -> BackboneOutput:
        """The joint encoder over the patches of all channels."""
        encoded, forecast = self.model.encoded_forecast(self.scale * window)
        return BackboneOutput(encoded, forecast / self.scale)


class KernelBankBackbone(nn.Module):
    """The kernel bank: a token holds the forecasts of bank and lag regression for a channel, in the channel's units."""

    def __init__(self, window: int = WINDOW) -> None:
        super().__init__()
        self.name, self.window, self.horizon, self.tokens = "kernel-bank", window, 1, 1
        self.width = 2 * EXPERTS + 3
        self.levels: tuple[float, ...] = ()

    def encode(self, window: Tensor) -> BackboneOutput:
        """The bank's forecast of the next step."""
        seen = window_features(window)
        token = torch.cat([seen.forecasts, seen.deviations, seen.ahead[..., None], seen.recent], dim=-1)
        forecast = seen.level + seen.scale * seen.forecasts[..., 0]  # (batch, N)
        return BackboneOutput(token[:, :, None], forecast[:, None])


class TimesFMBackbone(nn.Module):
    """The torch module of TimesFM 2.5 (`pip install time2decide[timesfm]`).

    It cuts every channel into patches of 32, standardises them by running statistics and forecasts 128 steps with
    deciles, channel by channel. Its own decoder runs without gradients, so it can be read but not fine-tuned through
    this adapter. `scale` multiplies returns, whose variance it may take for none.
    """

    def __init__(self, model: Any, window: int = WINDOW, scale: float = 100.0, name: str = "timesfm") -> None:
        super().__init__()
        self.model, self.window, self.scale, self.name = model, window, scale, name
        self.tokens, self.width, self.horizon = -(-window // model.p), int(model.md), int(model.o)
        self.levels: tuple[float, ...] = DECILES

    def encode(self, window: Tensor) -> BackboneOutput:
        """Output embeddings of the patches; the mean forecast of the last patch, and its deciles."""
        batch, time, count = window.shape
        rows = self.scale * window.mT.reshape(batch * count, time)
        missing = -time % self.model.p  # steps that are masked in front
        rows = nn.functional.pad(rows, (missing, 0))
        mask = torch.zeros_like(rows, dtype=torch.bool)
        mask[:, :missing] = True
        with backbone_outputs(self.model) as seen:
            decoded = self.model.decode(self.horizon, rows, mask)[0]
        predicted = decoded[:, -1] / self.scale  # (batch · N, horizon, 1 + levels)
        tokens = seen[0][0][1]  # (batch · N, patches, width)
        paths = predicted.reshape(batch, count, self.horizon, 1 + len(self.levels)).permute(0, 3, 2, 1)
        return BackboneOutput(tokens.reshape(batch, count, *tokens.shape[1:]), paths[:, 0], paths[:, 1:])


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
            parts = [self.backbone.encode(part).forecast for part in torch.split(window, self.batch)]
        return np.asarray(torch.cat(parts).double().numpy())


@contextmanager
def backbone_outputs(module: nn.Module) -> Iterator[list[Any]]:
    """Collect what a part of a model returns while the model runs."""
    seen: list[Any] = []
    handle = module.register_forward_hook(lambda _, __, output: seen.append(output))
    try:
        yield seen
    finally:
        handle.remove()


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
