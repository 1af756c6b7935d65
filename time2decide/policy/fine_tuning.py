"""Fine-tuning the decision network on one's own universe, without a look at what comes later.

The rows are split in time:

    | training | embargo | validation | embargo | never touched |
      ........   1 window   ..........   1 window   last 30 %

What is learned is what to do with a forecast, not the forecast: the read-out alone, some hundred weights, goes on
from the bundled ones, for the utility that its decisions earn net of costs, on its own past allocations. Real returns
say too little to fit more. Every few steps the network walks over the validation rows, from equal weights; the weights
that earn the most there are kept, those it started from included. If even they do not earn more than holding still, by
one standard error, the network that is kept is one that does not trade.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.validation import InputError, validate_count, validate_positive
from time2decide.markets.oracle import RISK_AVERSION, WINDOW
from time2decide.policy.episodes import Episodes, episodes_of
from time2decide.policy.losses import Group, utility_loss, walk_utility
from time2decide.policy.model import load_policy, save_policy
from time2decide.policy.network import HISTORY, Policy

_VALIDATION = 0.25  # of the rows that may be used
_TUNED = ("head.", "skip")  # the read-out
Report = Callable[[int, int, float], None]


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
    check_every: int = 25  # steps between two walks over the validation rows and gatherings of own histories
    patience: int = 4  # walks without progress before it stops
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "unroll", "episodes", "decisions", "check_every", "patience"):
            validate_count(name, getattr(self, name))
        validate_count("burn_in", self.burn_in, least=3)
        validate_positive("lr", self.lr)
        validate_count("seed", self.seed, least=0)
        if not 0 <= self.cost_bps < 5000:
            raise InputError(f"cost_bps: expected a number in [0, 5000), found {self.cost_bps}")
        for name, most in (("budgets", 2.0), ("risks", 1e6)):
            values = getattr(self, name)
            if not values or not all(0 < value <= most for value in values):
                raise InputError(f"{name}: expected numbers in (0, {most:g}], found {values}")
        if not 0 < self.share <= 1:
            raise InputError(f"share: expected a number in (0, 1], found {self.share}")


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
    if begin - WINDOW < length:
        needed = math.ceil((2 * length + 2 * WINDOW) / config.share) + 1
        raise InputError(f"data: expected at least {needed} rows to split in time, found {rows}")
    return Split(slice(0, begin - WINDOW), slice(begin, last), slice(last + WINDOW, rows))


def fine_tune(
    returns: np.ndarray, start: Policy, config: FineTuning | None = None, report: Report | None = None
) -> tuple[Policy, dict[str, Any]]:
    """The network fine-tuned on returns (time, m), and notes on how.

    Only the rows before `share` of them are looked at.
    """
    config = config or FineTuning()
    if start.config.objective != "oracle":
        raise InputError(f"start: expected a network trained for the oracle, found one for {start.config.objective}")
    split = split_rows(len(returns), config)
    rng = np.random.default_rng(config.seed)
    training = Group(_stretches(returns[split.training], config, rng))
    validation = Group(_walk(returns[split.validation], config))
    validation.own[:, :, :HISTORY] = 1.0 / returns.shape[1]
    model = copy.deepcopy(start).train()
    tuned = [weight for name, weight in model.named_parameters() if name.startswith(_TUNED)]
    optimiser = torch.optim.AdamW(tuned, config.lr, weight_decay=1e-3)
    best, earned = copy.deepcopy(start.state_dict()), [_validate(start, validation, config)]
    kept, waited = 0, 0
    for step in range(config.steps):
        if step % config.check_every == 0:
            training.gather(model.eval(), torch.arange(config.episodes))
        loss = _one_step(model, optimiser, training, config, step, rng)
        if report:
            report(step + 1, config.steps, loss)
        if (step + 1) % config.check_every == 0:
            earned.append(_validate(model.eval(), validation, config))
            if earned[-1].mean() > max(one.mean() for one in earned[:-1]):
                best, kept, waited = copy.deepcopy(model.state_dict()), step + 1, 0
            else:
                waited += 1
            if waited == config.patience:
                break
    still = holding(start)
    gain = max(earned, key=lambda one: float(one.mean())) - _validate(still, validation, config)
    holds = bool(gain.mean() <= gain.std() / len(gain) ** 0.5)
    model.load_state_dict(still.state_dict() if holds else best)
    notes = {
        "fine_tuning": asdict(config),
        "history": "own",
        "rows": {"training": [0, split.training.stop], "validation": [split.validation.start, split.validation.stop]},
        "untouched_from_row": split.untouched.start,
        "steps_kept": 0 if holds else kept,
        "holds": holds,
        "validation_utility": [round(float(one.mean()), 6) for one in earned],
    }
    return model.eval(), notes


def fine_tune_to(
    folder: str | Path,
    returns: np.ndarray,
    start: str = "decide",
    config: FineTuning | None = None,
    *,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> Path:
    """Fine-tune a bundled network or one of a folder and write it for `Time2Decide.from_pretrained`."""
    policy, made = fine_tune(returns, load_policy(start)[0], config, report)
    return save_policy(policy, folder, {"start": start, **made, **(notes or {})})


def _stretches(rows: np.ndarray, config: FineTuning, rng: np.random.Generator) -> Episodes:
    """Stretches at random places of the rows, all assets."""
    length = WINDOW + config.burn_in + config.decisions
    starts = rng.integers(0, len(rows) - length + 1, config.episodes)
    return _of(np.stack([rows[s : s + length] for s in starts]), config)  # (n, length, m)


def _walk(rows: np.ndarray, config: FineTuning) -> Episodes:
    """All rows as one episode, once for each λ."""
    return _of(np.repeat(rows[None], len(config.risks), axis=0), config)


def _of(cut: np.ndarray, config: FineTuning) -> Episodes:
    budgets = np.tile(np.asarray(config.budgets, dtype=float), (len(cut), 1))
    risks = np.resize(np.asarray(config.risks, dtype=float), len(cut))
    return episodes_of(cut, budgets, risks, np.zeros(len(cut)), config.burn_in)


def _one_step(
    model: Policy, optimiser: Any, group: Group, config: FineTuning, step: int, rng: np.random.Generator
) -> float:
    count, k = group.data.turnover_l1.shape
    episode, budget, at = (torch.from_numpy(rng.integers(0, high, config.batch)) for high in (count, k, group.steps))
    loss = utility_loss(model.train(), group, (episode, budget, at), config.unroll, rng, config.cost_bps / 1e4)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    for part in optimiser.param_groups:
        nn.utils.clip_grad_norm_(part["params"], 1.0)
        part["lr"] = config.lr * 0.5 * (1 + math.cos(math.pi * step / config.steps))
    optimiser.step()
    return loss.item()


def _validate(model: Policy, group: Group, config: FineTuning) -> Tensor:
    """The net utility of every step of a walk over the validation rows."""
    group.gather(model, torch.arange(len(group.data.turnover_l1)))
    return walk_utility(group, config.cost_bps / 1e4)


@torch.no_grad()
def holding(policy: Policy) -> Policy:
    """The same network with a read-out that sells nothing."""
    still = copy.deepcopy(policy).eval()
    still.head.weight[1] = 0.0
    still.head.bias[1] = -40.0  # of the logit of the share that is sold
    still.skip[1] = 0.0
    return still
