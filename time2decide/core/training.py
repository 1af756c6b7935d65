"""One resumable training loop for every model, and its learning-rate schedules.

What step t learns from is a function of (seed, t): the caller's `loss(step)` draws its examples with a generator of its
own, and the loop seeds dropout. The state on disk therefore holds weights, moments and counters only, and a run that
was killed and started again ends with the same bits as one that was not (same machine, same number of threads).
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import error_line, load_tensors, save_tensors
from time2decide.core.validation import InputError, expect

Report = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last one
STATE = "state.safetensors"  # name of the resumable state in an output folder
SAVE_EVERY = 60.0  # seconds between two saves of a run
_DROPOUT = 17  # random stream of the dropout masks


@dataclass(frozen=True)
class LoopConfig:
    """Optimiser, schedule and stopping rule of a training."""

    steps: int
    lr: float  # highest learning rate
    optimiser: str = "adamw"  # or "adam", or "muon" for the matrices of the layers and AdamW for the rest
    muon_scale: float = 4.0  # muon: rate of the matrices in units of lr
    weight_decay: float = 0.0
    fused: bool = False
    schedule: str = "cosine"  # "cosine", "one_cycle" or "plateau"
    warmup: float = 0.0  # cosine: steps in which the rate grows
    decay_from: float = 0.0  # cosine: step from which it falls
    pct_start: float = 0.3  # one_cycle: share of the steps in which the rate grows
    factor: float = 0.5  # plateau: what the rate is multiplied by
    plateau_patience: int = 5  # plateau: evaluations without improvement before that
    min_lr: float = 0.0  # plateau: smallest rate
    clip_norm: float | None = None  # bound on the norm of the gradient
    averaging: float | None = None  # decay of the running average of the weights, which is then what is kept
    evaluate_every: int | None = None  # steps between evaluations; None: at the end
    evaluate_first: bool = False  # also before the first step
    patience: int | None = None  # evaluations without improvement before training stops
    stop_when_diverged: bool = False  # at a loss or gradient that is not finite; else its step is skipped
    seed: int = 0

    @classmethod
    def of(cls, recipe: object, **others: Any) -> LoopConfig:
        """The fields of these names of a recipe; `others` come first."""
        same = {field.name: getattr(recipe, field.name) for field in fields(cls) if hasattr(recipe, field.name)}
        return cls(**same | others)


@dataclass
class Progress:
    """Counters and history of a run."""

    every: int  # steps between evaluations
    step: int = 0
    seconds: float = 0.0  # over all sittings
    core_seconds: float = 0.0  # processor time of all threads, over all sittings
    skipped: int = 0  # steps whose gradient was not finite
    loss_sum: float = 0.0  # since the last evaluation
    best: float | None = None  # least validation loss
    best_step: int = 0
    diverged: bool = False
    finished: bool = False
    history: list[dict[str, float]] = field(default_factory=list)  # one entry per evaluation

    @property
    def epoch(self) -> int:
        """Epochs begun, an epoch being the steps between two evaluations."""
        return -(-self.step // self.every)

    @property
    def best_epoch(self) -> int:
        """The epoch after which the best loss was measured, counted from 1; 0 before the first step."""
        return self.best_step // self.every


class TrainingRun:
    """A training under way.

    Parameters
    ----------
    model : Module
        Trained in place; weights without `requires_grad` stay as they are.
    loss : step -> loss
        Must depend on the step, the weights and `kept` only.
    evaluate : () -> validation loss, optional
        The weights with the least one are kept.
    probe : () -> figures by name, optional
        Measured at every evaluation as well and kept in the history; nothing depends on them.
    state : path, optional
        File to save to and, where it exists, to resume from.
    settings : JSON-able mapping
        What the run belongs to; a state with other settings is refused.
    kept : tensors by name, optional
        What else must survive an interrupt; written in place on resume.
    tuned : prefixes of names, optional
        Of the weights to train; all with `requires_grad` by default. Freezing the others instead changes the rounding.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[int], Tensor],
        config: LoopConfig,
        *,
        evaluate: Callable[[], float] | None = None,
        probe: Callable[[], dict[str, float]] = dict,
        state: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        kept: Mapping[str, Tensor] | None = None,
        tuned: tuple[str, ...] = ("",),
    ) -> None:
        self.model, self.loss, self.config, self.evaluate, self.probe = model, loss, config, evaluate, probe
        self.path = None if state is None else Path(state)
        self.settings = json.loads(json.dumps({**(settings or {}), "loop": asdict(config)}))
        self.kept = dict(kept or {})
        named = dict(model.named_parameters())
        self.weights = {name: w for name, w in named.items() if w.requires_grad and name.startswith(tuned)}
        self.optimiser = make_optimiser(self.weights, config)
        self.average = {name: weight.detach().clone() for name, weight in named.items()}
        self.best = _copy(model) if evaluate else {}
        self.progress = Progress(config.evaluate_every or config.steps)

    def run(self, save_every: float | None = None, report: Report | None = None) -> Progress:
        """Resume, take all steps that are left, leave the model with the weights to keep, in evaluation mode.

        `report` is called after every step. SIGINT, SIGTERM and a KeyboardInterrupt of `report` end the run after the
        step they fall into, with its state saved.
        """
        self.resume()
        device = next(self.model.parameters()).device
        saved, pause = time.monotonic(), SAVE_EVERY if save_every is None else save_every
        with torch.random.fork_rng([device] if device.type == "cuda" else []), _deferred_signals() as pending:
            if self.config.evaluate_first and not self.progress.history:
                self._measure()
            while not self.progress.finished:
                loss = self.one_step()
                if time.monotonic() - saved >= pause or self.progress.finished:
                    self.save()
                    saved = time.monotonic()
                try:
                    if report:
                        report(self.progress.step, self.config.steps, loss)
                    _raise(pending)
                except (KeyboardInterrupt, SystemExit):
                    self.save()
                    raise
        self._finish()
        return self.progress

    def one_step(self) -> float:
        """Learn from one batch, average, evaluate at the end of an epoch; returns the loss."""
        began, worked, config, progress = time.monotonic(), time.process_time(), self.config, self.progress
        torch.manual_seed(training_seed(config.seed, _DROPOUT, progress.step))  # of the forked generator
        self.model.train()
        loss = self.loss(progress.step)
        self.model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.weights.values(), config.clip_norm or math.inf)
        rate, momentum = learning_rate(config, progress.step, progress.history)
        for group in self.optimiser.param_groups:
            group["lr"], group["betas"] = rate, (momentum, 0.999)
        value = loss.item()
        if bool(torch.isfinite(norm)):
            self.optimiser.step()
        else:
            progress.skipped += 1
        progress.diverged = config.stop_when_diverged and not math.isfinite(value + norm.item())
        if config.averaging is not None:
            decay = min(config.averaging, (progress.step + 1) / (progress.step + 10))  # a young average follows quickly
            for name, weight in self.weights.items():
                self.average[name].lerp_(weight.detach(), 1 - decay)
        progress.step, progress.loss_sum = progress.step + 1, progress.loss_sum + value
        progress.finished = progress.diverged or progress.step >= config.steps
        if self.evaluate and (progress.step % progress.every == 0 or progress.diverged):
            self._measure()
        progress.seconds += time.monotonic() - began
        progress.core_seconds += time.process_time() - worked
        return value

    def _measure(self) -> None:
        """Evaluate, keep the best weights, decide whether to stop."""
        assert self.evaluate is not None
        progress, config = self.progress, self.config
        self.model.eval()
        with torch.no_grad():
            error, figures = self.evaluate(), self.probe()
        count = progress.step - (progress.history[-1]["step"] if progress.history else 0)
        facts = {"train": progress.loss_sum / count, "lr": self.optimiser.param_groups[0]["lr"]} if count else {}
        progress.history.append({"step": progress.step, "validation": error, **facts, **figures})
        progress.loss_sum = 0.0
        if math.isfinite(error) and (progress.best is None or error < progress.best):
            progress.best, progress.best_step, self.best = error, progress.step, _copy(self.model)
        waited = progress.step - progress.best_step
        stuck = config.patience is not None and waited >= config.patience * progress.every
        progress.finished = progress.finished or stuck or not math.isfinite(error)

    def _finish(self) -> None:
        learned = self.progress.skipped < self.progress.step or self.progress.diverged
        expect(learned, "training", "finite gradients", f"none in {self.progress.step} steps")
        if self.config.averaging is not None:
            self.model.load_state_dict(self.average, strict=False)
        elif self.best:
            self.model.load_state_dict(self.best)
        self.model.eval()

    def save(self) -> None:
        """Everything a later sitting needs, in one file that is replaced as a whole."""
        if self.path is None:
            return
        parts: dict[str, Mapping[str, Tensor]] = {"model": self.model.state_dict(), "best": self.best}
        parts |= {"kept": self.kept, "average": self.average if self.config.averaging is not None else {}}
        # a weight that the loss does not use has no moments
        parts |= {f"adam/{name}": self.optimiser.state[weight] for name, weight in self.weights.items()}
        tensors = {f"{part}/{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
        save_tensors(self.path, tensors, {"settings": self.settings, "progress": asdict(self.progress)})

    def resume(self) -> None:
        """Go on from the state file, if there is one."""
        if self.path is None or not self.path.exists():
            return
        device = next(self.model.parameters()).device
        tensors, facts = load_tensors(self.path, device)
        same = facts.get("settings") == self.settings
        expect(same, "state", "a run of the same config and data", f"another in {self.path}")
        try:
            self.progress = Progress(**facts["progress"])
            self.model.load_state_dict(_under("model/", tensors))
            self.best = _under("best/", tensors)
            self.average |= _under("average/", tensors)
            for name, weight in self.weights.items():
                moments = _under(f"adam/{name}/", tensors)
                if "step" in moments and not self.config.fused:
                    moments["step"] = moments["step"].cpu()
                if moments:
                    self.optimiser.state[weight] = moments
            with torch.no_grad():
                for name, tensor in self.kept.items():
                    tensor.copy_(tensors[f"kept/{name}"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise InputError(f"state: expected a training state, found {self.path} ({error_line(error)})") from None


def fit_model(
    model: nn.Module, loss: Callable[[int], Tensor], config: LoopConfig, report: Report | None = None, **options: Any
) -> Progress:
    """Train `model` in place; `options` are those of `TrainingRun`, `report` is that of its `run`."""
    return TrainingRun(model, loss, config, **options).run(report=report)


class Muon(torch.optim.AdamW):
    """AdamW, and for the matrices of the layers the orthogonalised momentum of Muon.

    Each square block of the Nesterov momentum of a matrix (queries, keys and values are three) is replaced by an
    approximation of the nearest orthogonal matrix, from five Newton–Schulz steps: every direction moves at one rate.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], scale: float, **options: Any) -> None:
        inner = {name for name, weight in weights.items() if name.startswith("layers.") and weight.dim() == 2}
        self.matrices, self.scale = [weights[name] for name in sorted(inner)], scale
        super().__init__([weight for name, weight in weights.items() if name not in inner], **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        update = []
        for matrix in self.matrices:
            gradient = matrix.grad if matrix.grad is not None else torch.zeros_like(matrix)
            momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
            update.append(_square_blocks(gradient.lerp(momentum.lerp_(gradient, 0.05), 0.95)))
        turned = torch.split(orthogonalised(torch.cat(update)), [len(blocks) for blocks in update])
        for matrix, blocks in zip(self.matrices, turned, strict=True):
            matrix.sub_(_from_blocks(blocks, matrix), alpha=self.param_groups[0]["lr"] * self.scale)
        return loss


def orthogonalised(X: Tensor, steps: int = 5) -> Tensor:
    """Nearly the nearest orthogonal matrix of each in X (batch, k, k): Muon's Newton–Schulz polynomial of degree 5.

    The singular values end between 0.7 and 1.2, those that are tiny beside the largest one below.
    """
    X = X / (torch.linalg.matrix_norm(X, keepdim=True) + 1e-9)
    for _ in range(steps):
        gram = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), X, beta=3.4445)
    return X


def _square_blocks(matrix: Tensor) -> Tensor:
    """The blocks (count, k, k) of a matrix, k its smaller side."""
    parts = torch.split(matrix, min(matrix.shape))
    return torch.cat([part.reshape(len(part), -1, len(part)).transpose(0, 1) for part in parts])


def _from_blocks(blocks: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_square_blocks` for a tall or a wide matrix."""
    tall = like.shape[0] >= like.shape[1]
    return blocks.flatten(0, 1) if tall else blocks.transpose(0, 1).flatten(1)


def make_optimiser(weights: Mapping[str, nn.Parameter], config: LoopConfig) -> torch.optim.Optimizer:
    """The optimiser of a configuration for weights by name."""
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": config.fused or None}
    if config.optimiser == "muon":
        return Muon(weights, config.muon_scale, **options)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimiser](weights.values(), **options)


def learning_rate(config: LoopConfig, step: int, history: list[dict[str, float]]) -> tuple[float, float]:
    """Rate and β₁ of a step, given the evaluations so far."""
    if config.schedule == "one_cycle":
        return one_cycle_rate(step, config.steps, config.lr, config.pct_start)
    if config.schedule == "plateau":
        losses = [entry["validation"] for entry in history]
        return plateau_rate(losses, config.lr, config.factor, config.plateau_patience, config.min_lr), 0.9
    return cosine_rate(step, config.steps, config.lr, config.warmup, config.decay_from), 0.9


def cosine_rate(step: int, steps: int, lr: float, warmup: float = 0.0, decay_from: float = 0.0) -> float:
    """lr·min(1, (step + 1)/warmup)·½(1 + cos πp), p the share of the steps after `decay_from` that are done."""
    warm = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return lr * warm * 0.5 * (1 + math.cos(math.pi * max(step - decay_from, 0.0) / (steps - decay_from)))


def one_cycle_rate(step: int, steps: int, lr: float, pct_start: float) -> tuple[float, float]:
    """lr/25 → lr → lr/250000 by cosines, and β₁ 0.95 → 0.85 → 0.95, as torch's OneCycleLR."""
    top = pct_start * steps - 1
    if step <= top:
        share = step / max(top, 1e-9)
        return _between(lr / 25, lr, share), _between(0.95, 0.85, share)
    share = min((step - top) / max(steps - 1 - top, 1e-9), 1.0)
    return _between(lr, lr / 250_000, share), _between(0.85, 0.95, share)


def plateau_rate(losses: list[float], lr: float, factor: float, patience: int, min_lr: float) -> float:
    """The rate after these validation losses, as torch's ReduceLROnPlateau: lowered where `patience` is used up."""
    best, waited = math.inf, 0
    for loss in losses:
        better = loss < best * (1 - 1e-4)
        best, waited = (loss, 0) if better else (best, waited + 1)
        if waited > patience:
            lower = max(lr * factor, min_lr)
            lr, waited = (lower if lr - lower > 1e-8 else lr), 0
    return lr


def training_seed(seed: int, *key: int) -> int:
    """A 63-bit seed for one use of random numbers."""
    return int(np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def training_progress_bar(shown: bool | None = None, lines_every: float | None = None) -> Iterator[Report]:
    """A bar with the time left on standard error; `shown` None: on a terminal only.

    Where the bar is not shown, a line every `lines_every` seconds takes its place, or nothing.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield (lambda done, total, loss: None) if lines_every is None else _lines(lines_every)
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (bars.BarColumn(), bars.MofNCompleteColumn(), bars.TextColumn("steps"), bars.TimeElapsedColumn())
    times = (bars.TextColumn("left"), bars.TimeRemainingColumn())
    with bars.Progress(*columns, *times, console=Console(stderr=True)) as bar:
        task = bar.add_task("training")
        yield lambda done, total, loss: bar.update(task, completed=done, total=total)


def _lines(every: float) -> Report:
    """Lines with the time left, by the rate since the first step: what comes before it is not part of the rate."""
    last = time.monotonic()
    began: tuple[float, int] | None = None  # when the first step was done, and its number
    losses: list[float] = []

    def report(done: int, total: int, loss: float) -> None:
        nonlocal last, began
        now = time.monotonic()
        began = began or (now, done)
        losses.append(loss)
        if now - last < every and done < total:
            return
        steps = done - began[1]
        left = f" left {(now - began[0]) / steps * (total - done):.0f} s" if steps else ""
        mean = sum(losses) / len(losses)
        print(f"step {done}/{total} loss {mean:.5f}{left}", file=sys.stderr, flush=True)
        last = now
        losses.clear()

    return report


@contextmanager
def _deferred_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of acting on them; a second one of a kind ends the process at once.

    Inside a step the weights, the averages and the counter do not belong together, so nothing could be saved there.
    """
    pending: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread can have handlers
        yield pending
        return

    def note(number: int, frame: object) -> None:
        pending.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield pending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(pending: list[int]) -> None:
    if signal.SIGTERM in pending:
        raise SystemExit(128 + signal.SIGTERM)
    if pending:
        raise KeyboardInterrupt


def _between(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def _copy(model: nn.Module) -> dict[str, Tensor]:
    """The weights themselves, not references to them: training goes on changing those in place."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
