"""How the decision network is trained: one network on a mixture of everything.

The target is s*_t, so that the least loss is at E[s*_t | past], the calibrated answer. Half of the examples have the
oracle's past allocations as history; the other half have the network's own, gathered by rolling out the network as
it is from time to time, so that the histories of training are those of use.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.checkpoints import checksum
from time2decide.core.training import STATE, LoopConfig, Report, TrainingRun
from time2decide.core.validation import expect, validate_fields
from time2decide.policy.episodes import EpisodeConfig, Episodes, episodes, signals
from time2decide.policy.losses import Group, draw_inertia, policy_loss, utility_loss
from time2decide.policy.network import Policy, PolicyConfig

_OWN_SHARE = 0.5  # of examples whose history is the network's own
_SETTLED = 8  # decisions of an episode before its own history no longer remembers how it was started


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
    refresh_share: float = 0.3  # of the episodes that are rolled out then
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    seed: int = 0
    model: PolicyConfig = field(default_factory=PolicyConfig)
    start: str = ""  # digest of the weights that it starts from; set by `prepare`

    def __post_init__(self) -> None:
        validate_fields(self, count="steps batch warmup refresh_every", natural="seed")
        validate_fields(self, positive="lr clip_norm", non_negative="return_weight")
        expect(self.groups, "groups", "at least one (assets, episodes, share)", "none")


#: name -> recipe: a look at whether it runs, and the one that made the bundled checkpoints.
PRESETS = {
    "smoke": PolicyTraining(
        steps=12,
        batch=16,
        warmup=4,
        groups=((4, 6, 1.0),),
        refresh_every=5,
        unroll=2,
        episode=EpisodeConfig(steps=12, burn_in=4, budgets=2, series=4),
    ),
    "cpu": PolicyTraining(),
}
#: What is changed in a recipe that starts from a trained network and trains it on utility.
UTILITY: dict[str, Any] = {
    "steps": 1_000,
    "batch": 64,
    "lr": 3e-3,
    "weight_decay": 0.0,
    "decay": 0.995,
    "unroll": 20,
    "refresh_every": 200,
}


def train_policy(
    config: PolicyTraining,
    out_dir: str | Path,
    *,
    start: Policy | None = None,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> Policy:
    """Train a network, or resume an interrupted run, and write it to `out_dir`.

    Parameters
    ----------
    out_dir : folder
        Gets ``model.safetensors`` and ``config.json``, and ``state.safetensors``, from which a run resumes.
        Belongs to one recipe.
    start : Policy, optional
        Weights to start from, of the same shape.
    report : callable, optional
        Called after every step with the steps done, the steps in all and the loss; may raise KeyboardInterrupt.
    """
    run = prepare(config, Path(out_dir), start)
    done = run.run(report=report)
    model = run.model
    assert isinstance(model, Policy)
    made = {"recipe": run.settings["recipe"], "skipped_steps": done.skipped, "seconds": round(done.seconds)}
    model.save_pretrained(out_dir, made | (notes or {}))
    return model


def prepare(config: PolicyTraining, folder: Path, start: Policy | None = None) -> TrainingRun:
    """A training at its first step."""
    utility = config.model.objective == "utility"
    groups = [Group(_examples(c, utility)) for c in episode_configs(config)]
    model = Policy(config.model, generator=torch.Generator().manual_seed(config.seed))
    if start is not None:
        shapes = [{name: weight.shape for name, weight in one.named_parameters()} for one in (model, start)]
        expect(shapes[0] == shapes[1], "start", f"a network of the size {config.model}", start.config)
        model.load_state_dict(start.state_dict())
        config = replace(config, start=checksum(start.state_dict())[:16])  # a run is not resumed from other weights
    if utility:  # forecasts and features stay as they are: all weights together would fit the training series
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        if start is None or start.config.objective != "utility":
            model.start_scores()

    def loss(step: int) -> Tensor:
        rng = np.random.default_rng([config.seed, step])
        if step and step % config.refresh_every == 0:
            _refresh(run.average, groups, config, step, rng)
        return _loss(model, groups, config, step, rng)

    loop = LoopConfig.of(config, averaging=config.decay)
    kept = {str(number): group.own for number, group in enumerate(groups)}
    run = TrainingRun(model, loss, loop, state=folder / STATE, settings={"recipe": asdict(config)}, kept=kept)
    return run


def _loss(model: Policy, groups: list[Group], config: PolicyTraining, number: int, rng: np.random.Generator) -> Tensor:
    """The loss of step `number`: examples of one group, with own histories once there are any."""
    shares = np.array([share for _, _, share in config.groups])
    group = groups[rng.choice(len(shares), p=shares / shares.sum())]
    count, k = group.data.turnover_l1.shape
    episode, budget = (torch.from_numpy(rng.integers(0, high, config.batch)) for high in (count, k))
    own = torch.from_numpy(rng.random(config.batch) < _OWN_SHARE) & (number > config.refresh_every)
    step = torch.from_numpy(rng.integers(0, group.steps, config.batch))
    if config.model.objective == "utility":
        return utility_loss(model, group, (episode, budget, step), draw_inertia(config.batch, rng), config.unroll)
    step = torch.where(own, step.clamp_min(min(_SETTLED, group.steps - 1)), step)
    observation = group.observation(episode, budget, step, (~own).float())
    return policy_loss(model, observation, group.data, (episode, budget, step), config.return_weight)


def _refresh(
    average: dict[str, Tensor], groups: list[Group], config: PolicyTraining, number: int, rng: np.random.Generator
) -> None:
    """Gather own histories with the averaged weights, which are those that will be used."""
    model = Policy(config.model)
    model.load_state_dict(average)
    share = 1.0 if number == config.refresh_every else config.refresh_share
    for group in groups:
        count = len(group.data.turnover_l1)
        chosen = rng.choice(count, max(1, round(share * count)), replace=False)
        group.gather(model.eval(), torch.from_numpy(chosen))


def _examples(config: EpisodeConfig, utility: bool) -> Episodes:
    """Episodes; for utility with returns without noise, which teach the same with less variance."""
    data = episodes(config)
    return replace(data, returns=signals(config)) if utility else data


def episode_configs(config: PolicyTraining) -> list[EpisodeConfig]:
    """One configuration per group."""
    return [replace(config.episode, assets=assets, count=count) for assets, count, _ in config.groups]
