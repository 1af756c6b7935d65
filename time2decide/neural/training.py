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
from time2decide.neural.datasets import labelled_qps, random_rotation, rotate_qp_tokens

_EVALUATION_BATCH = 512
_ORDER, _ROTATION, _DROPOUT, _FRESH = range(4)  # streams of random numbers
_CHUNK = 8192  # fresh problems that are drawn at once


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
    optimiser: str = "adamw"  # "muon": orthogonalised momentum for the matrices of the layers, AdamW for the rest
    seed: int = 42

    def __post_init__(self) -> None:
        validate_fields(self, count="epochs batch stop_after", natural="patience seed", share="factor warmup")
        validate_fields(self, positive="lr clip_norm", non_negative="weight_decay")
        validate_choice("schedule", self.schedule, ("plateau", "cosine"))
        validate_choice("optimiser", self.optimiser, ("adamw", "muon"))


@dataclass(frozen=True)
class FreshQPs:
    """Labelled problems that are drawn while a training goes on, each seen once."""

    count: int  # over all epochs
    n: int
    m: int
    scaled: bool = False  # tokens, as in `LabelledQPs.tokens`

    def draw(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Tokens and answers."""
        data = labelled_qps(count, self.n, self.m, seed=seed, cache=False)
        return data.tokens(scaled=self.scaled), data.x


def train(
    model: nn.Module,
    training: tuple[Tensor, Tensor] | FreshQPs,
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
        Shapes (count, tokens, entries) and (count, n). Training problems can also be drawn as they are needed.
    checkpoint : path, optional
        File to save to and, where it exists, to resume from. A finished one is loaded and nothing is trained.
    progress : bool, optional
        Show a bar with the time left; by default when standard error is a terminal.
    """
    _check_data("validation", validation)
    tokens, answers = (part.to(device) for part in validation)
    data: list[Any] = [_summary(part) for part in validation]
    examples: _Examples
    if isinstance(training, FreshQPs):
        examples, data = _FreshExamples(training, config), [asdict(training), *data]
    else:
        _check_data("training", training)
        examples = _StoredExamples(training[0].to(device), training[1].to(device), config)
        data = [*map(_summary, training), *data]
    settings = {"config": asdict(config), "data": data}
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


class _Examples:
    """Where the steps of a training take their problems from."""

    config: TrainingConfig
    per_epoch: int  # steps

    def chosen(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and answers of a step."""
        raise NotImplementedError

    def batch(self, model: nn.Module, step: int) -> tuple[Tensor, Tensor]:
        """Predictions and answers of a step."""
        config, device = self.config, next(model.parameters()).device
        tokens, answers = (part.to(device) for part in self.chosen(step))
        if config.rotate:
            n = answers.shape[-1]
            generator = torch.Generator().manual_seed(training_seed(config.seed, _ROTATION, step))
            R = random_rotation(n, generator, answers.dtype).to(answers.device)
            tokens, answers = rotate_qp_tokens(tokens, n, R), answers @ R.mT
        torch.manual_seed(training_seed(config.seed, _DROPOUT, step))  # of the generator that the loop has forked
        return model(tokens), answers


@dataclass
class _StoredExamples(_Examples):
    """The training set in the order of an epoch, which is drawn from (seed, epoch)."""

    tokens: Tensor
    answers: Tensor
    config: TrainingConfig
    epoch: int = -1
    order: Tensor | None = None

    def __post_init__(self) -> None:
        self.per_epoch = math.ceil(len(self.tokens) / self.config.batch)

    def chosen(self, step: int) -> tuple[Tensor, Tensor]:
        config = self.config
        epoch, position = divmod(step, self.per_epoch)
        if self.order is None or epoch != self.epoch:
            generator = torch.Generator().manual_seed(training_seed(config.seed, _ORDER, epoch))
            self.epoch, self.order = epoch, torch.randperm(len(self.tokens), generator=generator)
        chosen = self.order[position * config.batch : (position + 1) * config.batch].to(self.tokens.device)
        return self.tokens[chosen], self.answers[chosen]


@dataclass
class _FreshExamples(_Examples):
    """Problems drawn in chunks, each from (seed, number of the chunk)."""

    problems: FreshQPs
    config: TrainingConfig
    number: int = -1
    chunk: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        self.per_epoch = math.ceil(self.problems.count / (self.config.epochs * self.config.batch))

    def chosen(self, step: int) -> tuple[Tensor, Tensor]:
        batch = self.config.batch
        number, position = divmod(step, max(_CHUNK // batch, 1))
        if self.chunk is None or number != self.number:
            seed = training_seed(self.config.seed, _FRESH, number)
            self.number, self.chunk = number, self.problems.draw(max(_CHUNK // batch, 1) * batch, seed)
        tokens, answers = (part[position * batch : (position + 1) * batch] for part in self.chunk)
        return tokens, answers


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


def _check_data(name: str, split: tuple[Tensor, Tensor]) -> None:
    tokens, answers = split
    fits = len(tokens) == len(answers) and len(tokens)
    expect(fits, name, "as many answers as problems", f"{len(answers)} and {len(tokens)}")
