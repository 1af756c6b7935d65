"""Fine-tuning of the literal models: λ_r ‖r̂ − r‖² + ‖ŝ − s*‖² over 96 steps, from a pretrained backbone.

Past allocations are the oracle's while training (teacher forcing) and the model's own while deciding: the paper's
protocol, and the source of its exposure bias.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.training import STATE, LoopConfig, Progress, Report, fit_model
from time2decide.core.validation import expect, validate_fields
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.oracle import BUDGETS
from time2decide.markets.synthetic import LMCConfig, synthetic_oracle, synthetic_returns
from time2decide.policy.paper_model import PaperModel

_ORDER, _HELD_OUT = 1, 2  # streams of random numbers
_EVALUATION_BATCH = 32

#: The paper's grid of λ_r.
RETURN_WEIGHTS = (0, 10, 50, 100, 200, 300, 500, 1000, 3000, 5000, 10000, 20000, 40000, 80000, 160000, 320000)


@dataclass(frozen=True)
class PaperModelTraining:
    """The recipe; the defaults are the paper's."""

    market: str = "clean"
    turnover_l1: float = 1.0  # γ, one of the seven of the paper
    return_weight: float = 1000.0  # λ_r
    covariance: bool = True  # Time2Decide; False: SFT
    series: int = 300  # training series
    validation: int = 30  # series whose loss stops the training
    validation_windows: int = 4096  # windows of them, drawn once
    length: int = 1024
    epochs: int = 50
    windows: int | None = None  # windows of an epoch, drawn anew; None: all of them, stride 1
    batch: int = 32
    lr: float = 1e-4  # highest rate of OneCycle
    pct_start: float = 0.3
    patience: int = 5  # epochs
    first_step: float = 0.0  # extra weight of the first step, which is the one that decides
    returns_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        validate_fields(self, count="series validation validation_windows epochs batch patience", natural="seed")
        validate_fields(self, non_negative="return_weight", positive="lr", inside="pct_start")
        expect(self.turnover_l1 in BUDGETS, "turnover_l1", f"one of {BUDGETS}", self.turnover_l1)


_SHORT = 2e-3  # rate of the short trainings: at the paper's a few dozen steps move nothing

#: name -> recipe: a look at whether it runs, under a minute on one core, the paper's.
PAPER_MODEL_PRESETS = {
    "smoke": PaperModelTraining(
        series=2, validation=2, validation_windows=4, length=256, epochs=2, windows=4, batch=2, lr=_SHORT
    ),
    "cpu": PaperModelTraining(series=60, validation=10, validation_windows=64, epochs=5, windows=320, lr=_SHORT),
    "paper": PaperModelTraining(),
}


@dataclass(frozen=True)
class WindowSet:
    """All windows, stride 1, of some series: returns and the oracle's allocations, each (series, time, m)."""

    returns: Tensor
    allocations: Tensor
    window: int
    horizon: int

    @property
    def count(self) -> int:
        return len(self.returns) * self.per_series

    @property
    def per_series(self) -> int:
        return self.returns.shape[1] - self.window - self.horizon + 1

    def __getitem__(self, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """Returns and allocations of these windows, each (batch, window + horizon, m)."""
        series, start = np.divmod(numbers, self.per_series)
        steps = start[:, None] + np.arange(self.window + self.horizon)  # (batch, window + horizon)
        return self.returns[series[:, None], steps], self.allocations[series[:, None], steps]


def paper_training_windows(config: PaperModelTraining, split: str, backbone: TimePFN) -> WindowSet:
    """The windows of a split of the market, with the oracle's path at the recipe's budget."""
    count = config.series if split == "train" else config.validation
    options: dict[str, Any] = {"count": count, "seed": config.seed, "config": LMCConfig(length=config.length)}
    returns = synthetic_returns(config.market, split, **options)
    oracle = synthetic_oracle(config.market, split, BUDGETS, **options)[:, BUDGETS.index(config.turnover_l1)]
    sizes = backbone.config.window, backbone.config.horizon
    return WindowSet(torch.from_numpy(returns).float(), torch.from_numpy(oracle).float(), *sizes)


def train_paper_model(
    config: PaperModelTraining,
    backbone: TimePFN,
    *,
    state: str | Path | None = None,
    report: Report | None = None,
    probe: Callable[[PaperModel], dict[str, float]] = lambda model: {},
) -> tuple[PaperModel, Progress]:
    """Time2Decide (or SFT) of one budget and one λ_r, fine-tuned from `backbone`, which is left as it is.

    `state` is a file to save to and to resume from; the history of the progress has the figures of `probe`.
    """
    model = PaperModel.from_backbone(
        backbone,
        assets=LMCConfig().channels,
        covariance=config.covariance,
        returns_scale=config.returns_scale,
        seed=config.seed,
    )
    deciding = replace(config, return_weight=0.0)

    def loss(returns: Tensor, allocations: Tensor) -> Tensor:
        # what stops the training is the error of decisions alone: the paper does not say, and λ_r would drown it
        return paper_decision_loss(model, returns, allocations, config if model.training else deciding)

    return model, _fine_tune(model, loss, config, backbone, state=state, report=report, probe=partial(probe, model))


def train_paper_model_to(
    config: PaperModelTraining,
    backbone: TimePFN,
    out_dir: str | Path,
    *,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> PaperModel:
    """`train_paper_model`, resumed from and written to a folder, for `PaperModel.from_pretrained`."""
    model, done = train_paper_model(config, backbone, state=Path(out_dir) / STATE, report=report)
    model.save_pretrained(out_dir, {"recipe": asdict(config), "seconds": round(done.seconds), **(notes or {})})
    return model


def fine_tune_forecaster(
    config: PaperModelTraining, backbone: TimePFN, *, state: str | Path | None = None, report: Report | None = None
) -> tuple[TimePFN, Progress]:
    """The backbone fine-tuned to forecast the market's returns, for PtO; `backbone` is left as it is.

    The loss is measured in scaled returns: in raw ones its gradients would vanish beside the eps of Adam.
    """
    model = deepcopy(backbone)
    window = backbone.config.window

    def loss(returns: Tensor, _: Tensor) -> Tensor:
        scaled = 100.0 * returns
        error = 100.0 / config.returns_scale * model(config.returns_scale * returns[:, :window]) - scaled[:, window:]
        return _weighted(error, config.first_step)

    return model, _fine_tune(model, loss, config, backbone, state=state, report=report)


def paper_decision_loss(model: PaperModel, returns: Tensor, allocations: Tensor, config: PaperModelTraining) -> Tensor:
    """λ_r · mean(r̂ − r)² + mean(ŝ − s*)² of windows with their targets, (batch, window + horizon, m)."""
    window = model.config.backbone.window
    forecast, decision = model(returns[:, :window], allocations[:, :window])
    loss = _weighted(decision - allocations[:, window:], config.first_step)
    if config.return_weight:
        loss = loss + config.return_weight * _weighted(forecast - returns[:, window:], config.first_step)
    return loss


def _weighted(error: Tensor, first_step: float) -> Tensor:
    return error.square().mean() + first_step * error[:, 0].square().mean()


def _fine_tune(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    config: PaperModelTraining,
    backbone: TimePFN,
    **options: Any,
) -> Progress:
    training = paper_training_windows(config, "train", backbone)
    held_out = paper_training_windows(config, "validation", backbone)
    windows = min(config.windows or training.count, training.count)
    per_epoch = -(-windows // config.batch)  # steps, rounded up
    loop = LoopConfig.of(
        config, steps=config.epochs * per_epoch, optimiser="adam", schedule="one_cycle", evaluate_every=per_epoch
    )
    order: dict[int, np.ndarray] = {}

    def loss_of(step: int) -> Tensor:
        epoch, position = divmod(step, per_epoch)
        if epoch not in order:
            order.clear()
            drawn_anew = np.random.default_rng([config.seed, _ORDER, epoch]).permutation(training.count)
            order[epoch] = drawn_anew[:windows]
        return loss(*training[order[epoch][position * config.batch : (position + 1) * config.batch]])

    drawn = np.random.default_rng([config.seed, _HELD_OUT]).permutation(held_out.count)[: config.validation_windows]

    def evaluate() -> float:
        parts = [drawn[i : i + _EVALUATION_BATCH] for i in range(0, len(drawn), _EVALUATION_BATCH)]
        return sum(len(part) * loss(*held_out[part]).item() for part in parts) / len(drawn)

    settings = {"training": asdict(config), "model": type(model).__name__}
    return fit_model(model, loss_of, loop, evaluate=evaluate, settings=settings, **options)
