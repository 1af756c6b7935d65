"""One training loop for the backbone and what stands on it: Adam, OneCycle, killed and resumed at will.

What step t learns from is a function of t (`loss_of`), dropout included, so a run that was killed and started again
ends with the same bits as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.validation import InputError, validate_count, validate_positive

Report = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last one
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of Adam
_DROPOUT = 17  # the stream of random numbers of dropout masks


@dataclass(frozen=True)
class Schedule:
    """How many steps, at what rate, until when."""

    steps: int
    lr: float = 5e-4  # highest rate of the cycle
    pct_start: float = 0.3  # share of the steps in which the rate grows
    clip_norm: float | None = None  # bound on the norm of the gradient
    evaluate_every: int | None = None  # steps of an epoch, after which the validation loss is measured
    patience: int | None = None  # epochs without improvement before training stops
    seed: int = 0

    def __post_init__(self) -> None:
        validate_count("steps", self.steps)
        validate_positive("lr", self.lr)
        validate_count("seed", self.seed, least=0)
        if not 0 < self.pct_start < 1:
            raise InputError(f"pct_start: expected a number in (0, 1), found {self.pct_start}")


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    seconds: float = 0.0  # over all sittings
    best: float | None = None  # least validation loss
    best_step: int = 0
    finished: bool = False
    history: list[dict[str, float]] = field(default_factory=list)  # one entry per evaluation


def fit(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    schedule: Schedule,
    *,
    evaluate: Callable[[], float] | None = None,
    state: str | Path | None = None,
    recipe: dict[str, Any] | None = None,
    save_every: float = 60.0,
    report: Report | None = None,
) -> Progress:
    """Train `model` in place; with `evaluate`, leave it with the weights of the least validation loss.

    Parameters
    ----------
    loss_of : step -> loss
        Must depend on the step and the weights only.
    state : path, optional
        File to save to and, where it exists, to go on from; it must belong to the same `recipe`.
    save_every : float
        Seconds between two saves.
    report : callable, optional
        Called after every step. If it raises KeyboardInterrupt, the state after that step is saved first.
    """
    run = _Run(model, schedule, None if state is None else Path(state), recipe or {})
    run.resume()
    saved = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        while not run.progress.finished:
            loss = run.one_step(loss_of)
            run.after_step(evaluate)
            if time.monotonic() - saved >= save_every or run.progress.finished:
                run.save()
                saved = time.monotonic()
            try:
                if report:
                    report(run.progress.step, schedule.steps, loss)
            except KeyboardInterrupt:
                run.save()
                raise
    if run.best:
        model.load_state_dict(run.best)
    model.eval()
    return run.progress


class _Run:
    """A training under way."""

    def __init__(self, model: nn.Module, schedule: Schedule, path: Path | None, recipe: dict[str, Any]) -> None:
        self.model, self.schedule, self.path = model, schedule, path
        self.recipe = {**recipe, "schedule": asdict(schedule)}
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.optimiser = torch.optim.Adam(self.weights.values(), lr=schedule.lr)
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}

    def one_step(self, loss_of: Callable[[int], Tensor]) -> float:
        began, schedule, step = time.monotonic(), self.schedule, self.progress.step
        torch.manual_seed(stream(schedule.seed, _DROPOUT, step))  # of the forked generator
        self.model.train()
        loss = loss_of(step)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if schedule.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.weights.values(), schedule.clip_norm)
        rate, momentum = one_cycle(step, schedule)
        for group in self.optimiser.param_groups:
            group["lr"], group["betas"] = rate, (momentum, 0.999)
        self.optimiser.step()
        self.progress.step += 1
        self.progress.seconds += time.monotonic() - began
        return float(loss.item())

    def after_step(self, evaluate: Callable[[], float] | None) -> None:
        """At the end of an epoch: measure, keep the best weights, decide whether to stop."""
        progress, schedule = self.progress, self.schedule
        progress.finished = progress.step >= schedule.steps
        every = schedule.evaluate_every or schedule.steps
        if evaluate is None or (progress.step % every and not progress.finished):
            return
        self.model.eval()
        with torch.inference_mode():
            error = evaluate()
        progress.history.append({"step": progress.step, "validation": error})
        if math.isfinite(error) and (progress.best is None or error < progress.best):
            progress.best, progress.best_step = error, progress.step
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        stuck = schedule.patience is not None and progress.step - progress.best_step >= schedule.patience * every
        progress.finished = progress.finished or stuck or not math.isfinite(error)

    def save(self) -> None:
        """Everything a later sitting needs, in one file that is replaced as a whole."""
        if self.path is None:
            return
        tensors: dict[str, Tensor] = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        for name, weight in self.weights.items():
            tensors |= {f"adam/{name}/{key}": self.optimiser.state[weight][key] for key in _MOMENTS}
        save_tensors(self.path, tensors, {"recipe": self.recipe, "progress": asdict(self.progress)})

    def resume(self) -> None:
        """Go on from the file, if there is one."""
        if self.path is None or not self.path.exists():
            return
        tensors, facts = load_tensors(self.path)
        if facts.get("recipe") != self.recipe:
            raise InputError(f"out: expected an empty folder or a run of the same recipe, found another in {self.path}")
        self.progress = Progress(**facts["progress"])
        self.model.load_state_dict(_under("model/", tensors))
        self.best = _under("best/", tensors)
        for name, weight in self.weights.items():
            self.optimiser.state[weight] = {key: tensors[f"adam/{name}/{key}"].clone() for key in _MOMENTS}


def one_cycle(step: int, schedule: Schedule) -> tuple[float, float]:
    """Rate and β₁ of a step: lr/25 → lr → lr/250000 by cosines, and 0.95 → 0.85 → 0.95, as torch's OneCycleLR."""
    top = schedule.pct_start * schedule.steps - 1
    if step <= top:
        share = step / max(top, 1e-9)
        return _cosine(schedule.lr / 25, schedule.lr, share), _cosine(0.95, 0.85, share)
    share = min((step - top) / max(schedule.steps - 1 - top, 1e-9), 1.0)
    return _cosine(schedule.lr, schedule.lr / 250_000, share), _cosine(0.85, 0.95, share)


def stream(seed: int, *key: int) -> int:
    """A 63-bit seed for one use of random numbers."""
    return int(np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)[0] >> 1)


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
