"""Fine-tuning the decision network on one's own universe, without a look at what comes later.

The rows are split in time:

    | training | embargo | validation | embargo | never touched |
      ........   1 window   ..........   1 window   last 30 %

What is learned is what to do with a forecast, not the forecast: the read-out alone, some hundred weights, goes on
from the bundled ones, for the utility that its decisions earn net of costs, on its own past allocations. Real returns
carry too little to fit more. Every few steps it is rolled out over the validation rows, from equal weights; the weights
that earn the most there are kept, those it started from included. If even they do not earn more than holding still, by
one standard error, the network that is kept is one that does not trade.
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.checkpoints import checksum
from time2decide.core.training import STATE, LoopConfig, Progress, Report, fit
from time2decide.core.validation import expect, validate_count, validate_fields, validate_interval
from time2decide.markets.oracle import RISK_AVERSION, WINDOW
from time2decide.policy.episodes import Episodes, episodes_of
from time2decide.policy.losses import Group, Place, draw_inertia, rollout_utility, utility_loss
from time2decide.policy.model import load_policy
from time2decide.policy.network import HISTORY, Policy

_VALIDATION = 0.25  # of the rows that may be used
_TUNED = ("head.", "skip")  # the read-out


@dataclass(frozen=True)
class FineTuning:
    """The recipe."""

    share: float = 0.7  # of the rows that may be used at all; a window less
    steps: int = 200
    batch: int = 64
    lr: float = 1e-2  # highest learning rate, a cosine down to 0
    unroll: int = 8  # consecutive decisions of an example
    cost_bps: float = 10.0  # of what is traded
    risks: tuple[float, ...] = (RISK_AVERSION, 1.0, 10.0)  # λ of the episodes, in turn
    budgets: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 1.5)
    episodes: int = 200  # of training
    decisions: int = 24  # per episode
    burn_in: int = 24
    check_every: int = 25  # steps between two rollouts over the validation rows and gatherings of own histories
    patience: int = 4  # rollouts without progress before it stops
    seed: int = 0

    def __post_init__(self) -> None:
        counts = "steps batch unroll episodes decisions check_every patience"
        validate_fields(self, count=counts, natural="seed", positive="lr")
        validate_count("burn_in", self.burn_in, least=3)
        validate_interval("cost_bps", self.cost_bps, "[0, 5000)")
        for name, most in (("budgets", 2.0), ("risks", 1e6)):
            values = getattr(self, name)
            expect(values and all(0 < value <= most for value in values), name, f"numbers in (0, {most:g}]", values)
        validate_interval("share", self.share, "(0, 1]")


@dataclass(frozen=True)
class Split:
    """Rows by position, ends excluded."""

    training: slice
    validation: slice
    untouched: slice


def split_rows(rows: int, config: FineTuning) -> Split:
    """Training, validation and untouched rows, one window apart each."""
    length = WINDOW + config.burn_in + config.decisions
    last = int(config.share * rows) - WINDOW
    begin = last - max(length, round(_VALIDATION * last))
    needed = math.ceil((2 * length + 2 * WINDOW) / config.share) + 1
    expect(begin - WINDOW >= length, "data", f"at least {needed} rows to split in time", rows)
    return Split(slice(0, begin - WINDOW), slice(begin, last), slice(last + WINDOW, rows))


def fine_tune(
    returns: np.ndarray,
    start: Policy,
    config: FineTuning | None = None,
    report: Report | None = None,
    *,
    state: str | Path | None = None,
    save_every: float = 60.0,
) -> tuple[Policy, dict[str, Any]]:
    """The network fine-tuned on returns (time, m), and notes on how.

    Only the rows before `share` of them are looked at. `state` is a file to save to every `save_every` seconds and to
    resume from.
    """
    config = config or FineTuning()
    objective = start.config.objective
    expect(objective == "oracle", "start", "a network trained for the oracle", f"one for {objective}")
    split = split_rows(len(returns), config)
    rng = np.random.default_rng(config.seed)
    training = Group(_random_episodes(returns[split.training], config, rng))
    validation = Group(_one_episode(returns[split.validation], config))
    validation.own[:, :, :HISTORY] = 1.0 / returns.shape[1]
    model = copy.deepcopy(start)
    draws = [_draw(training, config, rng) for _ in range(config.steps)]  # all at once: step t needs no generator

    def loss(step: int) -> Tensor:
        if step % config.check_every == 0:
            training.gather(model, torch.arange(config.episodes))
        return utility_loss(model, training, *draws[step], config.unroll, config.cost_bps / 1e4)

    rows = torch.from_numpy(np.ascontiguousarray(returns[: split.validation.stop]))
    settings = {"fine_tuning": asdict(config), "data": checksum({"returns": rows} | start.state_dict())}
    done = fit(
        model,
        loss,
        _loop(config),
        evaluate=lambda: -float(_validate(model, validation, config).mean()),
        state=state,
        settings=settings,
        kept={"own": training.own},
        tuned=_TUNED,
        save_every=save_every,
        report=report,
    )
    still = holding(start)
    gain = _validate(model, validation, config) - _validate(still, validation, config)
    holds = bool(gain.mean() <= gain.std() / len(gain) ** 0.5)
    if holds:
        model.load_state_dict(still.state_dict())
    return model, _notes(config, split, done, holds)


def _loop(config: FineTuning) -> LoopConfig:
    return LoopConfig.of(
        config, weight_decay=1e-3, clip_norm=1.0, evaluate_every=config.check_every, evaluate_first=True
    )


def _notes(config: FineTuning, split: Split, done: Progress, holds: bool) -> dict[str, Any]:
    return {
        "fine_tuning": asdict(config),
        "history": "own",
        "rows": {"training": [0, split.training.stop], "validation": [split.validation.start, split.validation.stop]},
        "untouched_from_row": split.untouched.start,
        "steps_kept": 0 if holds else done.best_step,
        "holds": holds,
        "validation_utility": [round(-entry["validation"], 6) for entry in done.history],
    }


def fine_tune_to(
    folder: str | Path,
    returns: np.ndarray,
    start: str = "decide",
    config: FineTuning | None = None,
    *,
    save_every: float = 60.0,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> Path:
    """Fine-tune a bundled network or one of a folder and write it for `Time2Decide.from_pretrained`.

    The folder also gets ``state.safetensors``, from which an interrupted run resumes.
    """
    state = Path(folder) / STATE
    policy, made = fine_tune(returns, load_policy(start)[0], config, report, state=state, save_every=save_every)
    return policy.save_pretrained(folder, {"start": start, **made, **(notes or {})})


def _random_episodes(rows: np.ndarray, config: FineTuning, rng: np.random.Generator) -> Episodes:
    """Episodes at random places of the rows, all assets."""
    length = WINDOW + config.burn_in + config.decisions
    starts = rng.integers(0, len(rows) - length + 1, config.episodes)
    return _of(np.stack([rows[s : s + length] for s in starts]), config)  # (n, length, m)


def _one_episode(rows: np.ndarray, config: FineTuning) -> Episodes:
    """All rows as one episode, once for each λ."""
    return _of(np.repeat(rows[None], len(config.risks), axis=0), config)


def _of(cut: np.ndarray, config: FineTuning) -> Episodes:
    budgets = np.tile(np.asarray(config.budgets, dtype=float), (len(cut), 1))
    risks = np.resize(np.asarray(config.risks, dtype=float), len(cut))
    return episodes_of(cut, budgets, risks, np.zeros(len(cut)), config.burn_in)


def _draw(group: Group, config: FineTuning, rng: np.random.Generator) -> tuple[Place, Tensor]:
    """The decisions that a step learns from, and their inertia."""
    count, k = group.data.turnover_l1.shape
    episode, budget, at = (torch.from_numpy(rng.integers(0, high, config.batch)) for high in (count, k, group.steps))
    return (episode, budget, at), draw_inertia(config.batch, rng)


def _validate(model: Policy, group: Group, config: FineTuning) -> Tensor:
    """The net utility of every step of a rollout over the validation rows."""
    group.gather(model, torch.arange(len(group.data.turnover_l1)))
    return rollout_utility(group, config.cost_bps / 1e4)


@torch.no_grad()
def holding(policy: Policy) -> Policy:
    """The same network with a read-out that sells nothing."""
    still = copy.deepcopy(policy).eval()
    still.head.weight[1] = 0.0
    still.head.bias[1] = -40.0  # of the logit of the share that is sold
    still.skip[1] = 0.0
    return still
