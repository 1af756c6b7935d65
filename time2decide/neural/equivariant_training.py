"""Training of the size-agnostic solver: every step on fresh problems of another size, with another depth."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from time2decide.core.training import STATE, LoopConfig, Report, fit_model
from time2decide.core.validation import expect, validate_count, validate_fields
from time2decide.neural.equivariant import EquivariantConfig, EquivariantSolver
from time2decide.qp import PAPER_SIZES, random_qp, solve_exact

#: Sizes (n, m) that training never sees, to measure how the solver carries over.
UNSEEN_SIZES = ((4, 2), (12, 12), (30, 20), (40, 10))


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
        validate_fields(self, count="steps batch warmup", natural="seed", share="decay")
        validate_fields(self, positive="lr clip_norm", non_negative="weight_decay")
        validate_count("largest", self.largest, least=2)
        low, high = self.depths
        expect(1 <= low <= high, "depths", "1 <= low <= high", self.depths)


#: name -> recipe: a look at whether it runs, and the one that made the bundled checkpoint.
PRESETS = {"smoke": EquivariantTraining(steps=20, batch=16, warmup=5, largest=8), "cpu": EquivariantTraining()}


def train_equivariant(
    config: EquivariantTraining,
    out_dir: str | Path,
    *,
    device: str | torch.device = "cpu",
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> EquivariantSolver:
    """Train a solver, or resume an interrupted run, and write it to `out_dir`.

    Parameters
    ----------
    out_dir : folder
        Gets ``model.safetensors`` and ``config.json``, for `EquivariantSolver.from_pretrained`, and
        ``state.safetensors``, from which a run resumes. Belongs to one recipe.
    report : callable, optional
        Called after every step with the steps done, the steps in all and the loss; may raise KeyboardInterrupt.
    notes : dict, optional
        Facts to be stored in ``config.json`` beside the recipe.
    """
    place = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # the first weights; the caller's generator is left as it was
        model = EquivariantSolver(config.model).to(place)

    def loss(step: int) -> Tensor:
        rng = np.random.default_rng([config.seed, step])
        n, m = draw_problem_size(rng, config.largest)
        depth = int(rng.integers(config.depths[0], config.depths[1] + 1))
        problems = {name: tensor.to(place) for name, tensor in draw_training_problems(rng, config.batch, n, m).items()}
        return equivariant_loss(model, problems, depth)

    loop = LoopConfig.of(config, averaging=config.decay)
    recipe = asdict(config)
    state = Path(out_dir) / STATE
    done = fit_model(model, loss, loop, report, state=state, settings=recipe)
    made = {"recipe": recipe, "skipped_steps": done.skipped, "seconds": round(done.seconds)}
    model.cpu().save_pretrained(out_dir, made | (notes or {}))
    return model


def draw_problem_size(rng: np.random.Generator, largest: int) -> tuple[int, int]:
    """In half the steps a size of the paper, in the others any 2 ≤ n ≤ largest, 1 ≤ m ≤ largest but the unseen."""
    if rng.random() < 0.5:
        n, m = PAPER_SIZES[rng.integers(len(PAPER_SIZES))]
        return n, m
    while True:
        size = int(rng.integers(2, largest + 1)), int(rng.integers(1, largest + 1))
        if size not in UNSEEN_SIZES:
            return size


def draw_training_problems(rng: np.random.Generator, count: int, n: int, m: int) -> dict[str, Tensor]:
    """`count` problems of the paper's distribution with exact x and dual, float32."""
    qp = random_qp(count, n, m, seed=rng)
    answer = solve_exact(qp, workers=1)
    tensors = {"A": qp.A, "b": qp.b, "C": qp.C, "d": qp.d, "x": answer.x, "dual": answer.dual}
    return {name: tensor.float() for name, tensor in tensors.items()}


def equivariant_loss(model: EquivariantSolver, problems: dict[str, Tensor], depth: int) -> Tensor:
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
    scale = x.square().sum(1).mean()
    total, weights = x.new_zeros(()), 0.0
    for level, (hat, logit) in enumerate(model.iterate(problem, depth), start=1):
        error = torch.relu(hat) - target
        dx = problem.X @ (C.mT @ (error * problem.unit))  # (batch, n, 1)
        pooled = torch.log1p(dx.square().sum((1, 2)) / scale).mean()
        ratio = (error * (problem.scores @ error)).sum((1, 2)).clamp_min(0) / (energy + 0.05)
        relative = torch.log1p((ratio + 1e-8).sqrt()).mean()
        gate = functional.binary_cross_entropy_with_logits(logit, active)
        weight = 0.5 ** (depth - level)
        total = total + weight * (pooled + 0.3 * relative + 0.3 * gate)
        weights += weight
    return total / weights
