"""Pretraining of the backbone on synthetic series that are drawn while it learns.

A step learns from windows of a pool of LMC series; the pool moves on by one series every few steps. What a step sees
is a function of (seed, step), so a run can be killed and resumed. Returns are LMC series times 0.01, with or without
white noise, so some windows are rescaled and some are noisy: at a decision, both are then in distribution.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.training import STATE, LoopConfig, Report, fit_model, training_seed
from time2decide.core.validation import validate_count, validate_fields
from time2decide.forecasting.timepfn import TimePFN, TimePFNConfig
from time2decide.markets.synthetic import LMCConfig, lmc_series

_LMC_SEED = 7_000_001  # a stream of its own: no pretraining series is in a market
_WEIGHTS, _WINDOWS = range(2)  # streams of random numbers


@dataclass(frozen=True)
class PretrainingConfig:
    """The recipe; the defaults are the paper's."""

    steps: int = 97_500  # one epoch of 15,000 series, 104 windows each (stride 8), in batches of 16
    batch: int = 16
    lr: float = 5e-4  # highest rate of OneCycle
    pct_start: float = 0.3
    clip_norm: float | None = None
    channels: int = 160  # of an LMC series, all of which are in a window
    positions: int = 160  # channel indices are drawn from 0 … positions − 1, without repetition
    pool: int = 512  # series kept
    fresh_every: float = 6.5  # steps between two new series
    multiplicative_share: float = 1.0  # windows whose inputs and targets are multiplied by N(1, 0.1²)
    rescaled_share: float = 0.0  # windows times an amplitude, log-uniform on [0.003, 3]
    noisy_share: float = 0.0  # windows with white noise added to the input; the target stays clean
    scaled_loss: bool = False  # errors in units of each channel's own deviation, so that every window counts alike
    first_step: float = 0.0  # extra weight of the error of the first step
    averaging: float | None = None  # decay of the running average of the weights, which is then what is kept
    seed: int = 0
    model: TimePFNConfig = field(default_factory=TimePFNConfig)

    def __post_init__(self) -> None:
        validate_fields(self, count="steps batch channels pool", natural="seed", positive="lr fresh_every")
        validate_count("positions", self.positions, least=self.channels)
        validate_fields(self, inside="pct_start", fraction="multiplicative_share rescaled_share noisy_share")


SMALL = TimePFNConfig(patch_hidden=128, embed=64, layers=2, heads=4, feedforward=128, head_hidden=128, dropout=0.0)
MEDIUM = replace(SMALL, patch_hidden=256, embed=128, layers=4, feedforward=256, head_hidden=256)  # 0.99 M weights
_TINY = TimePFNConfig(patch_hidden=16, embed=16, layers=1, heads=2, feedforward=16, head_hidden=16, dropout=0.1)
_MIXED: dict[str, Any] = {
    "multiplicative_share": 0.2,
    "rescaled_share": 0.5,
    "noisy_share": 0.5,
    "scaled_loss": True,
    "first_step": 1.0,
    "clip_norm": 1.0,
}

#: name -> recipe: a look at whether it runs, those that made the bundled checkpoints, the paper's.
PRESETS = {
    "smoke": PretrainingConfig(steps=6, batch=2, channels=4, positions=8, pool=2, fresh_every=2, model=_TINY, **_MIXED),
    "cpu": PretrainingConfig(
        steps=6_000, lr=2e-3, channels=16, positions=32, pool=256, fresh_every=6, model=SMALL, **_MIXED
    ),
    "medium": PretrainingConfig(
        steps=10_000,
        lr=1e-3,
        pct_start=0.1,
        averaging=0.998,
        channels=16,
        positions=32,
        pool=256,
        fresh_every=6,
        model=MEDIUM,
        **_MIXED,
    ),
    "paper": PretrainingConfig(),
}


def pretrain(
    config: PretrainingConfig,
    out_dir: str | Path,
    *,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> TimePFN:
    """Pretrain a TimePFN, or resume an interrupted run, and write it to `out_dir`.

    The folder gets ``model.safetensors`` and ``config.json``, for `TimePFN.from_pretrained`, and
    ``state.safetensors``, from which a run resumes. It belongs to one recipe.
    """
    folder = Path(out_dir)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training_seed(config.seed, _WEIGHTS))
        model = TimePFN(config.model)
    pool, recipe = Pool(config), asdict(config)
    loop = LoopConfig.of(config, optimiser="adam", schedule="one_cycle")

    def loss(step: int) -> Tensor:
        return forecast_loss(model, pool.batch(step), config)

    done = fit_model(model, loss, loop, report, state=folder / STATE, settings=recipe)
    model.save_pretrained(folder, {"recipe": recipe, "seconds": round(done.seconds), **(notes or {})})
    return model


@dataclass(frozen=True)
class ForecastBatch:
    """Inputs (batch, window, N), targets (batch, horizon, N), channel indices (N,) and deviations (batch, 1, N)."""

    window: Tensor
    target: Tensor
    channels: Tensor
    deviation: Tensor


class Pool:
    """The LMC series that a step draws its windows from: a range of a stream that moves on with the step."""

    def __init__(self, config: PretrainingConfig) -> None:
        self.config = config
        self.lmc = LMCConfig(channels=config.channels)
        self.series: OrderedDict[int, np.ndarray] = OrderedDict()

    def batch(self, step: int) -> ForecastBatch:
        """The windows of a step, drawn with its own generator."""
        config, model = self.config, self.config.model
        rng = np.random.default_rng([config.seed, _WINDOWS, step])
        last = self._refresh(step)
        length = model.window + model.horizon
        drawn = np.empty((config.batch, length, config.channels))
        for b in range(config.batch):
            series = self.series[int(rng.integers(last - config.pool, last))]
            start = int(rng.integers(len(series) - length + 1))
            drawn[b] = series[start : start + length]
        window, target, deviation = corrupt_windows(drawn, model.window, config, rng)
        channels = rng.permutation(config.positions)[: config.channels]
        inputs, targets, deviations = (torch.from_numpy(array).float() for array in (window, target, deviation))
        return ForecastBatch(inputs, targets, torch.from_numpy(channels), deviations)

    def _refresh(self, step: int) -> int:
        """Make the series of this step, drop the older ones; returns the number after the last."""
        last = self.config.pool + int(step / self.config.fresh_every)
        for number in range(last - self.config.pool, last):
            if number not in self.series:
                self.series[number] = lmc_series(self.lmc, _LMC_SEED + self.config.seed, number).astype(np.float32)
        while next(iter(self.series)) < last - self.config.pool:
            self.series.popitem(last=False)
        return last


def corrupt_windows(
    drawn: np.ndarray, window: int, config: PretrainingConfig, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input and target of windows (batch, window + horizon, N), and the deviation of each channel over both.

    Some windows are rescaled as a whole; some inputs get white noise of one level for all channels, 0.1 to 4 times
    the median channel's deviation (noisy returns have a ratio of about 2); some are multiplied by N(1, 0.1²).
    """
    batch = len(drawn)
    chosen = rng.random((3, batch, 1, 1)) < np.reshape(
        (config.rescaled_share, config.noisy_share, config.multiplicative_share), (3, 1, 1, 1)
    )
    amplitude = np.where(chosen[0], 10 ** rng.uniform(-2.5, 0.5, (batch, 1, 1)), 1.0)
    drawn = amplitude * drawn
    deviation = drawn.std(axis=1, keepdims=True)
    drawn = drawn * np.where(chosen[2], 1 + 0.1 * rng.standard_normal(drawn.shape), 1.0)
    level = np.median(deviation, axis=2, keepdims=True) * 10 ** rng.uniform(-1.0, 0.6, (batch, 1, 1))
    noise = np.where(chosen[1], level * rng.standard_normal((batch, window, drawn.shape[2])), 0.0)
    deviation = np.maximum(deviation, np.sqrt(config.model.eps))
    return drawn[:, :window] + noise, drawn[:, window:], np.sqrt(deviation**2 + np.where(chosen[1], level, 0.0) ** 2)


def forecast_loss(model: TimePFN, batch: ForecastBatch, config: PretrainingConfig) -> Tensor:
    """Mean squared error over the horizon, plus `first_step` times that of its first step."""
    error = model(batch.window, batch.channels) - batch.target  # (batch, horizon, N)
    if config.scaled_loss:
        error = error / batch.deviation
    return error.square().mean() + config.first_step * error[:, 0].square().mean()
