"""A training that keeps the running average of its weights, is deterministic by seed, and can be killed at will.

Step t draws from a generator seeded by (seed, t), so a run that was killed and started again does what the
uninterrupted one would have done, to the last bit (on the same kind of machine with the same number of threads).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.validation import InputError, validate_positive

_STATE = "state.safetensors"
Report = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last one


class Recipe(Protocol):
    """What a recipe (a frozen dataclass) must say; it is stored, and a folder belongs to one recipe."""

    @property
    def steps(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def warmup(self) -> int: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip_norm(self) -> float: ...
    @property
    def decay(self) -> float: ...
    @property
    def seed(self) -> int: ...


class AveragedRun:
    """A training under way: AdamW, clipped gradients, and the average of the weights.

    Parameters
    ----------
    model : Module
    config : Recipe
    folder : Path
        Gets ``state.safetensors``, from which a run goes on.
    loss : function of (generator, step)
        Draws the examples of a step and gives their loss.
    kept : dict of tensors, optional
        What else must survive an interruption; written in place when the run goes on.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Recipe,
        folder: Path,
        loss: Callable[[np.random.Generator, int], Tensor],
        kept: dict[str, Tensor] | None = None,
    ) -> None:
        self.model, self.config, self.folder, self.loss, self.kept = model, config, folder, loss, kept or {}
        self.weights = dict(model.named_parameters())
        self.average = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.optimiser = torch.optim.AdamW(model.parameters(), config.lr, weight_decay=config.weight_decay)
        self.step, self.seconds, self.skipped = 0, 0.0, 0

    def go(self, save_every: float, report: Report | None) -> None:
        """All steps that are left.

        `report` is called after every step. If it raises KeyboardInterrupt, the state after that step is saved first;
        an interrupt inside a step leaves the last checkpoint as it is.
        """
        validate_positive("save_every", save_every, allow_zero=True)
        saved = time.monotonic()
        while self.step < self.config.steps:
            loss = self.one_step()
            if time.monotonic() - saved >= save_every or self.step == self.config.steps:
                self.save()
                saved = time.monotonic()
            try:
                if report:
                    report(self.step, self.config.steps, loss)
            except KeyboardInterrupt:
                self.save()
                raise

    def one_step(self) -> float:
        """Draw, learn, average; returns the loss."""
        began, config = time.monotonic(), self.config
        loss = self.loss(np.random.default_rng([config.seed, self.step]), self.step)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        size = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(config, self.step)
        if bool(torch.isfinite(size)):
            self.optimiser.step()
        else:
            self.skipped += 1
        decay = min(config.decay, (self.step + 1) / (self.step + 10))  # a young average follows quickly
        for name, weight in self.weights.items():
            self.average[name].lerp_(weight.detach(), 1 - decay)
        self.step += 1
        self.seconds += time.monotonic() - began
        return loss.item()

    def save(self) -> None:
        """Everything a later sitting needs, in one file that is replaced as a whole."""
        tensors: dict[str, Tensor] = {f"weight/{name}": weight for name, weight in self.weights.items()}
        tensors |= {f"average/{name}": weight for name, weight in self.average.items()} | self.kept
        for name, weight in self.weights.items():  # a weight that the loss does not use has no moments
            tensors |= {f"adam/{name}/{key}": value for key, value in self.optimiser.state[weight].items()}
        facts = {"recipe": plain(self.config), "step": self.step, "seconds": self.seconds, "skipped": self.skipped}
        save_tensors(self.folder / _STATE, tensors, facts)

    def resume(self) -> None:
        """Go on from the folder's state, if there is one; it must belong to the same recipe."""
        path = self.folder / _STATE
        if not path.exists():
            return
        tensors, facts = load_tensors(path, next(iter(self.weights.values())).device)
        if facts.get("recipe") != plain(self.config):
            raise InputError(f"out_dir: expected an empty folder or a run of the same recipe, found another in {path}")
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(tensors[f"weight/{name}"])
                self.average[name].copy_(tensors[f"average/{name}"])
                prefix = f"adam/{name}/"
                moments = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
                if moments:
                    self.optimiser.state[weight] = {key: value.clone() for key, value in moments.items()}
                    self.optimiser.state[weight]["step"] = moments["step"].cpu()
            for name, tensor in self.kept.items():
                tensor.copy_(tensors[name])
        self.step, self.seconds, self.skipped = facts["step"], facts["seconds"], facts["skipped"]

    def finish(self) -> dict[str, Any]:
        """Give the model its averaged weights; returns notes on how they were made."""
        if self.skipped == self.config.steps:
            raise InputError(f"training: expected finite gradients, found none in {self.skipped} steps")
        self.model.load_state_dict(self.average)
        return {"recipe": plain(self.config), "skipped_steps": self.skipped, "seconds": round(self.seconds)}


def plain(config: Any) -> dict[str, Any]:
    """The recipe as JSON gives it back: lists, not tuples."""
    told: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return told


def learning_rate(config: Recipe, step: int) -> float:
    """lr·min(1, (step + 1)/warmup)·½(1 + cos(π·step/steps))."""
    warm = min(1.0, (step + 1) / config.warmup)
    return config.lr * warm * 0.5 * (1 + math.cos(math.pi * step / config.steps))
