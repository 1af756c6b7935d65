"""Training of the paper's solvers of tokens → x̂ by mean squared error: epochs, rotations, early stopping."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from time2decide.core.training import LoopConfig, Progress, fit_model, training_progress_bar, training_seed
from time2decide.core.validation import expect, validate_choice, validate_fields
from time2decide.neural.datasets import random_rotation, rotate_qp_tokens

_EVALUATION_BATCH = 512
_ORDER, _ROTATION, _DROPOUT = range(3)  # streams of random numbers


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe; the defaults are the paper's."""

    epochs: int = 500  # at most; exactly, with the cosine schedule
    batch: int = 128
    lr: float = 1e-4
    weight_decay: float = 0.02
    schedule: str = "plateau"  # "plateau": halve the rate when stuck; "cosine": warm up, then cosine down to 0
    factor: float = 0.5  # plateau: what the rate is multiplied by
    patience: int = 5  # plateau: epochs without improvement before that
    min_lr: float = 1e-6  # plateau: smallest rate
    warmup: float = 0.05  # cosine: share of all steps that warm up
    stop_after: int | None = 30  # epochs without improvement before training stops; None: never
    clip_norm: float | None = None  # bound on the norm of the gradient
    rotate: bool = False  # turn every batch by a random rotation of the variables
    seed: int = 42

    def __post_init__(self) -> None:
        validate_fields(self, count="epochs batch stop_after", natural="patience seed", share="factor warmup")
        validate_fields(self, positive="lr clip_norm", non_negative="weight_decay")
        validate_choice("schedule", self.schedule, ("plateau", "cosine"))


def train(
    model: nn.Module,
    training: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    config: TrainingConfig,
    *,
    device: str | torch.device = "cpu",
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> Progress:
    """Train `model` in place by mean squared error and leave it with its best weights on the validation set.

    Parameters
    ----------
    training, validation : (tokens, answers)
        Shapes (count, tokens, entries) and (count, n).
    checkpoint : path, optional
        File to save to and, where it exists, to resume from. A finished one is loaded and nothing is trained.
    progress : bool, optional
        Show a bar with the time left; by default when standard error is a terminal.
    """
    _check_data(training, validation)
    examples = _Examples(training[0].to(device), training[1].to(device), config)
    tokens, answers = (part.to(device) for part in validation)
    settings = {"config": asdict(config), "data": [_summary(part) for part in (*training, *validation)]}
    model.to(device)
    with training_progress_bar(progress) as report:
        return fit_model(
            model,
            lambda step: functional.mse_loss(*examples.batch(model, step)),
            _loop(config, examples.per_epoch),
            evaluate=lambda: functional.mse_loss(predict(model, tokens), answers).item(),
            state=checkpoint,
            settings=settings,
            report=report,
        )


def _loop(config: TrainingConfig, per_epoch: int) -> LoopConfig:
    total = config.epochs * per_epoch
    return LoopConfig.of(
        config,
        fused=True,
        steps=total,
        warmup=config.warmup * total,
        decay_from=config.warmup * total,
        plateau_patience=config.patience,
        evaluate_every=per_epoch,
        patience=config.stop_after,
        stop_when_diverged=True,
    )


@dataclass
class _Examples:
    """The training set in the order of an epoch, which is drawn from (seed, epoch)."""

    tokens: Tensor
    answers: Tensor
    config: TrainingConfig
    epoch: int = -1
    order: Tensor | None = None

    @property
    def per_epoch(self) -> int:
        return math.ceil(len(self.tokens) / self.config.batch)

    def batch(self, model: nn.Module, step: int) -> tuple[Tensor, Tensor]:
        """Predictions and answers of a step."""
        config = self.config
        epoch, position = divmod(step, self.per_epoch)
        if self.order is None or epoch != self.epoch:
            generator = torch.Generator().manual_seed(training_seed(config.seed, _ORDER, epoch))
            self.epoch, self.order = epoch, torch.randperm(len(self.tokens), generator=generator)
        chosen = self.order[position * config.batch : (position + 1) * config.batch].to(self.tokens.device)
        tokens, answers = self.tokens[chosen], self.answers[chosen]
        if config.rotate:
            n = answers.shape[-1]
            generator = torch.Generator().manual_seed(training_seed(config.seed, _ROTATION, step))
            R = random_rotation(n, generator, answers.dtype).to(answers.device)
            tokens, answers = rotate_qp_tokens(tokens, n, R), answers @ R.mT
        torch.manual_seed(training_seed(config.seed, _DROPOUT, step))  # of the generator that the loop has forked
        return model(tokens), answers


def predict(model: nn.Module, tokens: Tensor) -> Tensor:
    """x̂ (count, n) for tokens (count, tokens, entries), in evaluation mode, on the device of the model."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    with torch.inference_mode():
        parts = torch.split(tokens, _EVALUATION_BATCH)
        answers = torch.cat([model(part.to(device)).to(tokens.device) for part in parts])
    model.train(was_training)
    return answers


def _summary(part: Tensor) -> list[Any]:
    """Enough of a data set to notice that it is another one."""
    return [*part.shape, part.double().sum().item()]


def _check_data(*splits: tuple[Tensor, Tensor]) -> None:
    for name, (tokens, answers) in zip(("training", "validation"), splits, strict=True):
        fits = len(tokens) == len(answers) and len(tokens)
        expect(fits, name, "as many answers as problems", f"{len(answers)} and {len(tokens)}")
