"""Fine-tuning the decision network on one's own universe, without a look at what comes later.

The rows are split in time:

    | training | embargo | validation | embargo | never touched |
      ........   1 window   ..........   1 window   last 30 %

The network goes on from the bundled weights with a low learning rate, reading its own past allocations, and the loss
charges what it trades. Every few steps it is scored on the validation rows; the best weights are kept, those it
started from included, so fine-tuning that does not help on the validation rows changes nothing.
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

from time2decide.decisions.policy import Policy
from time2decide.decisions.policy_data import Stretches, stretches_of
from time2decide.decisions.policy_losses import Group, policy_loss
from time2decide.decisions.time2decide import load_policy, save_policy
from time2decide.markets.oracle import RISK_AVERSION, WINDOW
from time2decide.qp.checks import InputError, check_count, check_positive

_VALIDATION = 0.25  # of the rows that may be used
Report = Callable[[int, int, float], None]


@dataclass(frozen=True)
class FineTuning:
    """The recipe."""

    share: float = 0.7  # of the rows that may be used at all; a window less
    steps: int = 300
    batch: int = 128
    lr: float = 3e-4  # highest learning rate, a cosine down to 0
    return_weight: float = 0.1  # λ_r
    cost_bps: float = 10.0  # of what is traded, in the loss
    budgets: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 1.5)
    stretches: int = 48  # of training
    decisions: int = 24  # per stretch
    burn_in: int = 24
    check_every: int = 25  # steps between two looks at the validation rows and gatherings of own histories
    patience: int = 4  # looks without progress before it stops
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "stretches", "decisions", "check_every", "patience"):
            check_count(name, getattr(self, name))
        check_count("burn_in", self.burn_in, least=3)
        check_positive("lr", self.lr)
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
    split = split_rows(len(returns), config)
    rng = np.random.default_rng(config.seed)
    training = Group(_stretches(returns[split.training], config, config.stretches, rng))
    validation = Group(_stretches(returns[split.validation], config, max(config.stretches // 3, 1), rng))
    model = copy.deepcopy(start).train()
    optimiser = torch.optim.AdamW(model.parameters(), config.lr, weight_decay=1e-3)
    best, losses = copy.deepcopy(start.state_dict()), [_validation_loss(start, validation, config)]
    kept, waited = 0, 0
    for step in range(config.steps):
        if step % config.check_every == 0:
            training.gather(model.eval(), torch.arange(len(training.data.turnover_l1)))
        loss = _one_step(model, optimiser, training, config, step, rng)
        if report:
            report(step + 1, config.steps, loss)
        if (step + 1) % config.check_every == 0:
            losses.append(_validation_loss(model.eval(), validation, config))
            if losses[-1] < min(losses[:-1]):
                best, kept, waited = copy.deepcopy(model.state_dict()), step + 1, 0
            else:
                waited += 1
            if waited == config.patience:
                break
    model.load_state_dict(best)
    notes = {
        "fine_tuning": asdict(config),
        "history": "own",
        "rows": {"training": [0, split.training.stop], "validation": [split.validation.start, split.validation.stop]},
        "untouched_from_row": split.untouched.start,
        "steps_kept": kept,
        "validation_losses": [round(loss, 6) for loss in losses],
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


def _stretches(rows: np.ndarray, config: FineTuning, count: int, rng: np.random.Generator) -> Stretches:
    """Stretches at random places of the rows, all assets."""
    length = WINDOW + config.burn_in + config.decisions
    starts = rng.integers(0, len(rows) - length + 1, count)
    cut = np.stack([rows[s : s + length] for s in starts])  # (n, length, m)
    budgets = np.tile(np.asarray(config.budgets, dtype=float), (count, 1))
    return stretches_of(cut, budgets, np.full(count, RISK_AVERSION), np.full(count, 0.01), config.burn_in)


def _one_step(
    model: Policy, optimiser: Any, group: Group, config: FineTuning, step: int, rng: np.random.Generator
) -> float:
    count, k = group.data.turnover_l1.shape
    highs = (count, k, group.steps)
    place = [torch.from_numpy(rng.integers(0, high, config.batch)) for high in highs]
    loss = _loss(model.train(), group, (place[0], place[1], place[2]), config)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for part in optimiser.param_groups:
        part["lr"] = config.lr * 0.5 * (1 + math.cos(math.pi * step / config.steps))
    optimiser.step()
    return loss.item()


def _loss(model: Policy, group: Group, place: tuple[Tensor, Tensor, Tensor], config: FineTuning) -> Tensor:
    """`policy_loss` on own histories, plus what the trade costs in units of forecast error, as utility is."""
    situation = group.situation(*place, torch.zeros(len(place[0])))
    loss = policy_loss(model, situation, group.data, place, config.return_weight)
    answer = model(situation)
    traded = (answer.weights - situation.allocations[..., 0]).abs().sum(-1)
    cost = config.cost_bps / 1e4 * traded / answer.deviation.mean(-1).detach().clamp_min(1e-12)
    return loss + cost.mean()


@torch.no_grad()
def _validation_loss(model: Policy, group: Group, config: FineTuning) -> float:
    """The loss over every decision of the validation stretches, with the network's own histories."""
    count, k = group.data.turnover_l1.shape
    group.gather(model, torch.arange(count))
    grid = torch.cartesian_prod(torch.arange(count), torch.arange(k), torch.arange(group.steps))  # (decisions, 3)
    parts = torch.split(grid, 1024)
    losses = [_loss(model, group, (part[:, 0], part[:, 1], part[:, 2]), config).item() for part in parts]
    return float(np.average(losses, weights=[len(part) for part in parts]))
