"""How the decision network is trained: one network on a mixture of everything, deterministic by seed, killed at will.

The target is s*_t, so that the least loss is at E[s*_t | past], the calibrated answer. Half of the examples have the
oracle's past allocations as history; the other half have the network's own, gathered by rolling out the network as
it is from time to time, so that the histories of training are those of use. Step t draws from a generator seeded by
(seed, t).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.decisions.policy import Policy, PolicyConfig
from time2decide.decisions.policy_data import StretchConfig, Stretches, signals, stretches
from time2decide.decisions.policy_losses import Group, policy_loss, utility_loss
from time2decide.decisions.time2decide import save_policy
from time2decide.neural.checkpoints import load_tensors, save_tensors
from time2decide.qp.checks import InputError, check_count, check_positive

_STATE = "state.safetensors"
_OWN_SHARE = 0.5  # of examples whose history is the network's own
_SETTLED = 8  # decisions of a stretch before its own history no longer remembers how it was started
Report = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last one


@dataclass(frozen=True)
class PolicyTraining:
    """The recipe; the defaults made the bundled checkpoint."""

    steps: int = 5_000
    batch: int = 256
    lr: float = 2e-3  # highest learning rate: linear warm-up, then a cosine down to 0
    warmup: int = 200
    weight_decay: float = 1e-3
    clip_norm: float = 1.0
    decay: float = 0.998  # of the running average of the weights, which is what is kept
    return_weight: float = 0.1  # λ_r
    groups: tuple[tuple[int, int, float], ...] = ((16, 1000, 0.7), (8, 200, 0.1), (3, 200, 0.06), (32, 120, 0.14))
    unroll: int = 6  # consecutive decisions of an example, where utility is the objective
    refresh_every: int = 500  # steps between two gatherings of own histories
    refresh_share: float = 0.3  # of the stretches that are rolled out then
    stretch: StretchConfig = field(default_factory=StretchConfig)
    seed: int = 0
    model: PolicyConfig = field(default_factory=PolicyConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "warmup", "refresh_every"):
            check_count(name, getattr(self, name))
        for name in ("lr", "clip_norm"):
            check_positive(name, getattr(self, name))
        if not self.groups:
            raise InputError("groups: expected at least one (assets, stretches, share), found none")


#: name -> recipe: a look at whether it runs, and the one that made the bundled checkpoints.
PRESETS = {
    "smoke": PolicyTraining(
        steps=12,
        batch=16,
        warmup=4,
        groups=((4, 6, 1.0),),
        refresh_every=5,
        unroll=2,
        stretch=StretchConfig(steps=12, burn_in=4, budgets=2, series=4),
    ),
    "cpu": PolicyTraining(),
}
#: What is changed in a recipe that goes on from a trained network and trains it on utility.
UTILITY: dict[str, Any] = {"steps": 4_000, "batch": 64, "lr": 1e-3, "unroll": 8}


def train_policy(
    config: PolicyTraining,
    out_dir: str | Path,
    *,
    start: Policy | None = None,
    save_every: float = 120.0,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> Policy:
    """Train a network, or go on where a killed run left off, and write it to `out_dir`.

    Parameters
    ----------
    out_dir : folder
        Gets ``model.safetensors`` and ``config.json``, and ``state.safetensors``, from which a run goes on.
        Belongs to one recipe.
    start : Policy, optional
        Weights to start from, of the same shape.
    save_every : float
        Seconds between checkpoints.
    report : callable, optional
        Called after every step with the steps done, the steps in all and the loss. If it raises KeyboardInterrupt,
        the state after that step is saved first. (An interrupt inside a step leaves the last checkpoint as it is.)
    """
    run = PolicyRun(config, Path(out_dir), start)
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


class PolicyRun:
    """A training under way."""

    def __init__(self, config: PolicyTraining, folder: Path, start: Policy | None = None) -> None:
        self.config, self.folder = config, folder
        utility = config.model.objective == "utility"
        self.groups = [Group(_examples(c, utility)) for c in stretch_configs(config)]
        self.model = Policy(config.model, generator=torch.Generator().manual_seed(config.seed))
        if start is not None:
            self.model.load_state_dict(start.state_dict())
        if utility:  # forecasts stay as they are: only what is made of them is learned
            self.model.gate.requires_grad_(False)
        self.weights = dict(self.model.named_parameters())
        self.average = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.optimiser = torch.optim.AdamW(self.model.parameters(), config.lr, weight_decay=config.weight_decay)
        self.step, self.seconds, self.skipped = 0, 0.0, 0

    def one_step(self) -> float:
        """Draw, learn, average; returns the loss."""
        began, config = time.monotonic(), self.config
        rng = np.random.default_rng([config.seed, self.step])
        if self.step and self.step % config.refresh_every == 0:
            self._refresh(rng)
        loss = self._loss(rng)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        size = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(config, self.step)
        if bool(torch.isfinite(size)):
            self.optimiser.step()
        else:
            self.skipped += 1
        decay = min(config.decay, (self.step + 1) / (self.step + 10))
        for name, weight in self.weights.items():
            self.average[name].lerp_(weight.detach(), 1 - decay)
        self.step += 1
        self.seconds += time.monotonic() - began
        return loss.item()

    def _loss(self, rng: np.random.Generator) -> Tensor:
        config = self.config
        shares = np.array([share for _, _, share in config.groups])
        group = self.groups[rng.choice(len(shares), p=shares / shares.sum())]
        count, k = group.data.turnover_l1.shape
        stretch, budget = (torch.from_numpy(rng.integers(0, high, config.batch)) for high in (count, k))
        own = torch.from_numpy(rng.random(config.batch) < _OWN_SHARE) & (self.step > config.refresh_every)
        step = torch.from_numpy(rng.integers(0, group.steps, config.batch))
        if config.model.objective == "utility":
            return utility_loss(self.model, group, (stretch, budget, step), config.unroll, rng)
        step = torch.where(own, step.clamp_min(min(_SETTLED, group.steps - 1)), step)
        situation = group.situation(stretch, budget, step, (~own).float())
        return policy_loss(self.model, situation, group.data, (stretch, budget, step), config.return_weight)

    def _refresh(self, rng: np.random.Generator) -> None:
        """Gather own histories with the averaged weights, which are those that will be used."""
        model = Policy(self.config.model)
        model.load_state_dict(self.average)
        share = 1.0 if self.step == self.config.refresh_every else self.config.refresh_share
        for group in self.groups:
            count = len(group.data.turnover_l1)
            chosen = rng.choice(count, max(1, round(share * count)), replace=False)
            group.gather(model.eval(), torch.from_numpy(chosen))

    def save(self) -> None:
        """Everything a later sitting needs, in one file that is replaced as a whole."""
        tensors: dict[str, Tensor] = {f"weight/{name}": weight for name, weight in self.weights.items()}
        tensors |= {f"average/{name}": weight for name, weight in self.average.items()}
        tensors |= {f"own/{number}": group.own for number, group in enumerate(self.groups)}
        for name, weight in self.weights.items():  # a weight that the objective does not use has no moments
            tensors |= {f"adam/{name}/{key}": value for key, value in self.optimiser.state[weight].items()}
        facts = {"recipe": recipe(self.config), "step": self.step, "seconds": self.seconds, "skipped": self.skipped}
        save_tensors(self.folder / _STATE, tensors, facts)

    def resume(self) -> None:
        """Go on from the folder's state, if there is one; it must belong to the same recipe."""
        path = self.folder / _STATE
        if not path.exists():
            return
        tensors, facts = load_tensors(path)
        if facts.get("recipe") != recipe(self.config):
            raise InputError(f"out_dir: expected an empty folder or a run of the same recipe, found another in {path}")
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(tensors[f"weight/{name}"])
                self.average[name].copy_(tensors[f"average/{name}"])
                prefix = f"adam/{name}/"
                moments = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
                if moments:
                    self.optimiser.state[weight] = {key: value.clone() for key, value in moments.items()}
            for number, group in enumerate(self.groups):
                group.own.copy_(tensors[f"own/{number}"])
        self.step, self.seconds, self.skipped = facts["step"], facts["seconds"], facts["skipped"]

    def finish(self, notes: dict[str, Any]) -> Policy:
        """The network with the averaged weights, written for `Time2Decide.from_pretrained`."""
        self.model.load_state_dict(self.average)
        made = {"recipe": recipe(self.config), "skipped_steps": self.skipped, "seconds": round(self.seconds)}
        save_policy(self.model, self.folder, made | notes)
        return self.model.eval()


def _examples(config: StretchConfig, utility: bool) -> Stretches:
    """Stretches; for utility with returns without noise, which teach the same with less variance."""
    data = stretches(config)
    return replace(data, returns=signals(config)) if utility else data


def stretch_configs(config: PolicyTraining) -> list[StretchConfig]:
    """One configuration per group."""
    base = asdict(config.stretch)
    return [StretchConfig(**(base | {"assets": assets, "count": count})) for assets, count, _ in config.groups]


def recipe(config: PolicyTraining) -> dict[str, Any]:
    """The recipe as JSON gives it back: lists, not tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def learning_rate(config: PolicyTraining, step: int) -> float:
    """lr·min(1, (step + 1)/warmup)·½(1 + cos(π·step/steps))."""
    warm = min(1.0, (step + 1) / config.warmup)
    return config.lr * warm * 0.5 * (1 + math.cos(math.pi * step / config.steps))
