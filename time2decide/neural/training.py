"""One training loop for every learned solver of tokens → x̂: deterministic by seed and resumable after a kill.

All randomness is a function of (seed, epoch) or (seed, step): the order of an epoch, the rotation of a batch and
the dropout masks of a step can be drawn again without any generator's state. A checkpoint therefore holds weights,
optimiser, schedule and position only, and a run that was killed and started again ends with the same bits as one
that was not.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.validation import InputError, validate_count, validate_positive
from time2decide.neural.progress import training_progress
from time2decide.neural.tokens import random_rotation, rotate

_EVALUATION_BATCH = 512
_ORDER, _ROTATION, _DROPOUT = range(3)  # streams of random numbers


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults are the paper's."""

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
    checkpoint_every: int = 200  # steps between checkpoints; the end of an epoch is always one
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "checkpoint_every"):
            validate_count(name, getattr(self, name))
        for name in ("patience", "seed"):
            validate_count(name, getattr(self, name), least=0)
        validate_positive("lr", self.lr)
        validate_positive("weight_decay", self.weight_decay, allow_zero=True)
        if self.schedule not in ("plateau", "cosine"):
            raise InputError(f"schedule: expected 'plateau' or 'cosine', found {self.schedule!r}")
        if self.stop_after is not None:
            validate_count("stop_after", self.stop_after)
        if self.clip_norm is not None:
            validate_positive("clip_norm", self.clip_norm)
        for name in ("factor", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name}: expected a number in [0, 1), found {getattr(self, name)}")


@dataclass
class TrainingState:
    """Where a run stands; after `train` also what came out of it."""

    epoch: int = 0  # epochs completed
    step: int = 0  # steps completed, over all epochs
    position: int = 0  # steps completed in this epoch
    loss_sum: float = 0.0  # of the steps of this epoch
    best_loss: float | None = None  # smallest validation loss (mean squared error)
    best_epoch: int = 0  # the epoch it was measured after, counted from 1
    seconds: float = 0.0  # of training, over all sittings
    diverged: bool = False  # the loss was not a number any more
    finished: bool = False
    history: list[dict[str, float]] = field(default_factory=list)  # one entry per epoch


def train(
    model: nn.Module,
    training: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    config: TrainingConfig,
    *,
    device: str | torch.device = "cpu",
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> TrainingState:
    """Train `model` in place by mean squared error and leave it with its best weights on the validation set.

    Parameters
    ----------
    training, validation : (tokens, answers)
        Shapes (count, tokens, entries) and (count, n).
    checkpoint : path, optional
        File to save to and, where it exists, to go on from. A finished one is loaded and nothing is trained.
    progress : bool, optional
        Show a bar with the time left; by default when standard error is a terminal.
    """
    _check_data(training, validation)
    run = _Run(model.to(device), training, validation, config, torch.device(device), checkpoint)
    run.resume()
    devices = [run.device] if run.device.type == "cuda" else []
    total = config.epochs * run.steps
    with torch.random.fork_rng(devices), training_progress(total, run.state.step, progress) as show:
        while not run.state.finished:
            run.one_step()
            if run.state.position == run.steps or run.state.diverged:
                run.end_epoch()
            if run.state.position % config.checkpoint_every == 0 or run.state.finished:
                run.save()
            show(run.state)
    model.load_state_dict(run.best)
    model.eval()
    return run.state


def predict(model: nn.Module, tokens: Tensor, *, batch: int = _EVALUATION_BATCH) -> Tensor:
    """x̂ (count, n) for tokens (count, tokens, entries), in evaluation mode, on the device of the model."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    with torch.inference_mode():
        answers = torch.cat([model(part.to(device)).to(tokens.device) for part in torch.split(tokens, batch)])
    model.train(was_training)
    return answers


class _Run:
    """A training under way: what `train` needs in one place."""

    def __init__(
        self,
        model: nn.Module,
        training: tuple[Tensor, Tensor],
        validation: tuple[Tensor, Tensor],
        config: TrainingConfig,
        device: torch.device,
        checkpoint: str | Path | None,
    ) -> None:
        self.model, self.config, self.device = model, config, device
        self.path = None if checkpoint is None else Path(checkpoint)
        self.settings = {"config": asdict(config), "data": [_summary(part) for part in (*training, *validation)]}
        self.tokens, self.answers = (part.to(device) for part in training)
        self.held_out = tuple(part.to(device) for part in validation)
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
        )
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimiser, factor=config.factor, patience=config.patience, min_lr=config.min_lr
        )
        self.state = TrainingState()
        self.steps = math.ceil(len(self.tokens) / config.batch)  # per epoch
        self.best = _copy(model)
        self.order: Tensor | None = None
        self.clock = time.monotonic()

    def one_step(self) -> None:
        state, config = self.state, self.config
        if self.order is None:
            generator = torch.Generator().manual_seed(_stream(config.seed, _ORDER, state.epoch))
            self.order = torch.randperm(len(self.tokens), generator=generator).to(self.device)
        chosen = self.order[state.position * config.batch : (state.position + 1) * config.batch]
        tokens, answers = self.tokens[chosen], self.answers[chosen]
        if config.rotate:
            tokens, answers = self._rotated(tokens, answers)
        if config.schedule == "cosine":
            for group in self.optimiser.param_groups:
                group["lr"] = cosine_rate(config, state.step, config.epochs * self.steps)
        torch.manual_seed(_stream(config.seed, _DROPOUT, state.step))  # of the forked generator: dropout
        self.model.train()
        loss = torch.nn.functional.mse_loss(self.model(tokens), answers)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        self.optimiser.step()
        state.step, state.position, state.loss_sum = state.step + 1, state.position + 1, state.loss_sum + loss.item()
        state.diverged = not math.isfinite(state.loss_sum)

    def end_epoch(self) -> None:
        """Validate, keep the weights if they are the best so far, move the schedule, decide whether to stop."""
        state, config = self.state, self.config
        error = torch.nn.functional.mse_loss(predict(self.model, self.held_out[0]), self.held_out[1]).item()
        state.epoch += 1
        rate = self.optimiser.param_groups[0]["lr"]
        state.history.append({"train": state.loss_sum / state.position, "validation": error, "lr": rate})
        if math.isfinite(error) and (state.best_loss is None or error < state.best_loss):
            state.best_loss, state.best_epoch, self.best = error, state.epoch, _copy(self.model)
        if config.schedule == "plateau":
            self.plateau.step(error)
        stuck = config.stop_after is not None and state.epoch - state.best_epoch >= config.stop_after
        state.finished = state.diverged or stuck or state.epoch == config.epochs
        state.position, state.loss_sum, self.order = 0, 0.0, None

    def save(self) -> None:
        now = time.monotonic()
        self.state.seconds, self.clock = self.state.seconds + now - self.clock, now
        if self.path is None:
            return
        optimiser = self.optimiser.state_dict()
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        for index, values in optimiser["state"].items():
            tensors |= {f"optimiser/{index}/{name}": tensor for name, tensor in values.items()}
        facts = {"state": asdict(self.state), "groups": optimiser["param_groups"], "settings": self.settings}
        save_tensors(self.path, tensors, {**facts, "plateau": self.plateau.state_dict()})

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one; it must belong to the same settings and data."""
        if self.path is None or not self.path.exists():
            return
        tensors, facts = load_tensors(self.path, self.device)
        if facts.get("settings") != self.settings:
            raise InputError(f"checkpoint: expected one of the same settings and data, found another in {self.path}")
        self.state = TrainingState(**facts["state"])
        self.model.load_state_dict(_under("model/", tensors))
        self.best = _under("best/", tensors)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under("optimiser/", tensors).items():
            index, key = name.split("/", 1)
            moments.setdefault(int(index), {})[key] = tensor
        groups = [{**group, "betas": tuple(group["betas"])} for group in facts["groups"]]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.plateau.load_state_dict(facts["plateau"])

    def _rotated(self, tokens: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        n = answers.shape[-1]
        generator = torch.Generator().manual_seed(_stream(self.config.seed, _ROTATION, self.state.step))
        R = random_rotation(n, generator, answers.dtype).to(self.device)
        return rotate(tokens, n, R), answers @ R.mT


def cosine_rate(config: TrainingConfig, step: int, total: int) -> float:
    """Learning rate of `step` (from 0) out of `total`: linear warm-up, then lr·½(1 + cos πp) down to 0."""
    warm = config.warmup * total
    if step < warm:
        return config.lr * min(1.0, (step + 1) / warm)
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def _stream(seed: int, *key: int) -> int:
    """A 63-bit seed for one use of random numbers."""
    return int(np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)[0] >> 1)


def _copy(model: nn.Module) -> dict[str, Tensor]:
    """The weights themselves, not references to them: training goes on changing those in place."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _summary(part: Tensor) -> list[Any]:
    """Enough of a data set to notice that it is another one."""
    return [*part.shape, part.double().sum().item()]


def _check_data(*splits: tuple[Tensor, Tensor]) -> None:
    for name, (tokens, answers) in zip(("training", "validation"), splits, strict=True):
        if len(tokens) != len(answers) or not len(tokens):
            raise InputError(f"{name}: expected as many answers as problems, found {len(answers)} and {len(tokens)}")
