"""How the size-agnostic solver is trained: fresh problems of all sizes, deterministic by seed, killed at will.

Step t draws its size, its problems and its depth from a generator seeded by (seed, t), so a run that was killed and
started again does what the uninterrupted one would have done, to the last bit (on the same kind of machine with the
same number of threads).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from time2decide.neural.checkpoints import load_tensors, save_tensors
from time2decide.neural.equivariant import EquivariantConfig, EquivariantSolver
from time2decide.qp import PAPER_SIZES, InputError, random_qp, solve_exact
from time2decide.qp.checks import check_count, check_positive

#: Sizes (n, m) that training never sees, to measure how the solver carries over.
UNSEEN_SIZES = ((4, 2), (12, 12), (30, 20), (40, 10))
_STATE = "state.safetensors"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of Adam
Report = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last one


@dataclass(frozen=True)
class EquivariantTraining:
    """The recipe; the defaults made the bundled checkpoint."""

    steps: int = 16_000
    batch: int = 256  # problems in a step, all of one size
    lr: float = 4e-3  # highest learning rate: linear warm-up, then a cosine down to 0
    warmup: int = 200  # steps
    weight_decay: float = 1e-4
    clip_norm: float = 1.0  # bound on the norm of the gradient
    decay: float = 0.998  # of the running average of the weights, which is what is kept in the end
    depths: tuple[int, int] = (5, 10)  # passes through the looped layer, drawn anew for every step
    largest: int = 24  # n and m of the sizes drawn at random
    seed: int = 0
    model: EquivariantConfig = field(default_factory=EquivariantConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "warmup"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, least=0)
        check_count("largest", self.largest, least=2)
        for name in ("lr", "clip_norm"):
            check_positive(name, getattr(self, name))
        check_positive("weight_decay", self.weight_decay, allow_zero=True)
        low, high = self.depths
        if not 1 <= low <= high:
            raise InputError(f"depths: expected 1 <= low <= high, found {self.depths}")
        if not 0 <= self.decay < 1:
            raise InputError(f"decay: expected a number in [0, 1), found {self.decay}")


#: name -> recipe: a look at whether it runs, and the one that made the bundled checkpoint.
PRESETS = {"smoke": EquivariantTraining(steps=20, batch=16, warmup=5, largest=8), "cpu": EquivariantTraining()}


def train_equivariant(
    config: EquivariantTraining,
    out_dir: str | Path,
    *,
    device: str | torch.device = "cpu",
    save_every: float = 120.0,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> EquivariantSolver:
    """Train a solver, or go on where a killed run left off, and write it to `out_dir`.

    Parameters
    ----------
    out_dir : folder
        Gets ``model.safetensors`` and ``config.json``, for `EquivariantSolver.from_pretrained`, and
        ``state.safetensors``, from which a run goes on. Belongs to one recipe.
    save_every : float
        Seconds between checkpoints.
    report : callable, optional
        Called after every step with the steps done, the steps in all and the loss. If it raises KeyboardInterrupt,
        the state after that step is saved first. (An interrupt inside a step leaves the last checkpoint as it is.)
    notes : dict, optional
        Facts to be stored in ``config.json`` beside the recipe.
    """
    check_positive("save_every", save_every, allow_zero=True)
    run = _Run(config, Path(out_dir), torch.device(device))
    run.resume()
    saved = time.monotonic()
    while run.step < config.steps:
        loss = run.one_step()
        if time.monotonic() - saved >= save_every or run.step == config.steps:
            run.save()
            saved = time.monotonic()
        try:
            if report:
                report(run.step, config.steps, loss)
        except KeyboardInterrupt:
            run.save()
            raise
    return run.finish(notes or {})


class _Run:
    """A training under way."""

    def __init__(self, config: EquivariantTraining, folder: Path, device: torch.device) -> None:
        self.config, self.folder, self.device = config, folder, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # the first weights; the caller's generator is left as it was
            self.model = EquivariantSolver(config.model).to(device)
        self.weights = dict(self.model.named_parameters())
        self.average = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.optimiser = torch.optim.AdamW(self.model.parameters(), config.lr, weight_decay=config.weight_decay)
        self.step, self.seconds, self.skipped = 0, 0.0, 0

    def one_step(self) -> float:
        """Draw, learn, average; returns the loss."""
        began, config = time.monotonic(), self.config
        rng = np.random.default_rng([config.seed, self.step])
        n, m = draw_size(rng, config.largest)
        depth = int(rng.integers(config.depths[0], config.depths[1] + 1))
        problems = {name: tensor.to(self.device) for name, tensor in draw_problems(rng, config.batch, n, m).items()}
        loss = solver_loss(self.model, problems, depth)
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
        tensors |= {f"average/{name}": weight for name, weight in self.average.items()}
        for name, weight in self.weights.items():
            tensors |= {f"adam/{name}/{key}": self.optimiser.state[weight][key] for key in _MOMENTS}
        facts = {"recipe": recipe(self.config), "step": self.step, "seconds": self.seconds, "skipped": self.skipped}
        save_tensors(self.folder / _STATE, tensors, facts)

    def resume(self) -> None:
        """Go on from the folder's state, if there is one; it must belong to the same recipe."""
        path = self.folder / _STATE
        if not path.exists():
            return
        tensors, facts = load_tensors(path, self.device)
        if facts.get("recipe") != recipe(self.config):
            raise InputError(f"out_dir: expected an empty folder or a run of the same recipe, found another in {path}")
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(tensors[f"weight/{name}"])
                self.average[name].copy_(tensors[f"average/{name}"])
                moments = {key: tensors[f"adam/{name}/{key}"].clone() for key in _MOMENTS}
                self.optimiser.state[weight] = {**moments, "step": moments["step"].cpu()}
        self.step, self.seconds, self.skipped = facts["step"], facts["seconds"], facts["skipped"]

    def finish(self, notes: dict[str, Any]) -> EquivariantSolver:
        """The solver with the averaged weights, written for `from_pretrained`."""
        self.model.load_state_dict(self.average)
        made = {"recipe": recipe(self.config), "skipped_steps": self.skipped, "seconds": round(self.seconds)}
        self.model.cpu().save_pretrained(self.folder, made | notes)
        return self.model.eval()


def recipe(config: EquivariantTraining) -> dict[str, Any]:
    """The recipe as JSON gives it back: lists, not tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def draw_size(rng: np.random.Generator, largest: int) -> tuple[int, int]:
    """In half the steps a size of the paper, in the others any 2 ≤ n ≤ largest, 1 ≤ m ≤ largest but the unseen."""
    if rng.random() < 0.5:
        n, m = PAPER_SIZES[rng.integers(len(PAPER_SIZES))]
        return n, m
    while True:
        size = int(rng.integers(2, largest + 1)), int(rng.integers(1, largest + 1))
        if size not in UNSEEN_SIZES:
            return size


def draw_problems(rng: np.random.Generator, count: int, n: int, m: int) -> dict[str, Tensor]:
    """`count` problems of the paper's distribution with exact x and dual, float32."""
    qp = random_qp(count, n, m, seed=rng)
    answer = solve_exact(qp, workers=1)
    tensors = {"A": qp.A, "b": qp.b, "C": qp.C, "d": qp.d, "x": answer.x, "dual": answer.dual}
    return {name: tensor.float() for name, tensor in tensors.items()}


def learning_rate(config: EquivariantTraining, step: int) -> float:
    """lr·min(1, (step + 1)/warmup)·½(1 + cos(π·step/steps))."""
    warm = min(1.0, (step + 1) / config.warmup)
    return config.lr * warm * 0.5 * (1 + math.cos(math.pi * step / config.steps))


def solver_loss(model: EquivariantSolver, problems: dict[str, Tensor], depth: int) -> Tensor:
    """Deeply supervised loss; pass l of L has weight 2^(l−L), normalised. Of every pass,

        log(1 + ‖dx‖² / mean‖x*‖²)                        what R² sees, without letting one instance rule
        + 0.3·log(1 + ‖dx‖_A / √(‖x* − x₀‖_A² + 0.05))    relative, so that easy instances count too
        + 0.3·BCE(gate, active)                           the active set itself

    with x₀ the unconstrained minimum; the second is measured in the normalised dual, where it is a product with M̂.
    """
    A, b, C, d, x, dual = (problems[name] for name in ("A", "b", "C", "d", "x", "dual"))
    problem = model.dual_problem(A, b, C, d)
    target = dual.unsqueeze(-1) / problem.unit  # (batch, m, 1)
    active = (target > 1e-9).to(target.dtype)
    energy = (target * (problem.scores @ target)).sum((1, 2))  # (batch,)
    spread = x.square().sum(1).mean()
    total, weights = x.new_zeros(()), 0.0
    for level, (hat, logit) in enumerate(model.iterate(problem, depth), start=1):
        error = torch.relu(hat) - target
        dx = problem.X @ (C.mT @ (error * problem.unit))  # (batch, n, 1)
        pooled = torch.log1p(dx.square().sum((1, 2)) / spread).mean()
        ratio = (error * (problem.scores @ error)).sum((1, 2)).clamp_min(0) / (energy + 0.05)
        relative = torch.log1p((ratio + 1e-8).sqrt()).mean()
        gate = functional.binary_cross_entropy_with_logits(logit, active)
        weight = 0.5 ** (depth - level)
        total = total + weight * (pooled + 0.3 * relative + 0.3 * gate)
        weights += weight
    return total / weights
