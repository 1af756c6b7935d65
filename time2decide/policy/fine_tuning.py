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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.checkpoints import checksum
from time2decide.core.training import STATE, LoopConfig, Progress, Report, fit
from time2decide.core.validation import expect, validate_count, validate_fields, validate_interval
from time2decide.markets.covariance import empirical_covariance
from time2decide.markets.oracle import RISK_AVERSION, WINDOW
from time2decide.policy.episodes import Episodes, features_of, oracle_paths
from time2decide.policy.losses import Group, Place, draw_inertia, rollout_utility, utility_loss
from time2decide.policy.model import load_policy
from time2decide.policy.network import HISTORY, Policy

Prepared = Callable[[int, int], None]  # windows or days read, all of them
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

    @property
    def length(self) -> int:
        """Rows of an episode."""
        return WINDOW + self.burn_in + self.decisions


@dataclass(frozen=True)
class Split:
    """Rows by position, ends excluded."""

    training: slice
    validation: slice
    untouched: slice


def split_rows(rows: int, share: float, shortest: int) -> Split:
    """Training, validation and untouched rows, one window apart each; the first two have at least `shortest`."""
    last = int(share * rows) - WINDOW
    begin = last - max(shortest, round(_VALIDATION * last))
    needed = math.ceil((2 * shortest + 2 * WINDOW) / share) + 1
    expect(begin - WINDOW >= shortest, "data", f"at least {needed} rows to split in time", rows)
    return Split(slice(0, begin - WINDOW), slice(begin, last), slice(last + WINDOW, rows))


def fine_tune(
    returns: np.ndarray,
    start: Policy,
    config: FineTuning | None = None,
    report: Report | None = None,
    *,
    state: str | Path | None = None,
    save_every: float = 60.0,
    prepared: Prepared | None = None,
) -> tuple[Policy, dict[str, Any]]:
    """The network fine-tuned on returns (time, m), and notes on how.

    Only the rows before `share` of them are looked at. `state` is a file to save to every `save_every` seconds and to
    resume from. Before the first step the windows of all episodes are read; `prepared` is told how many are.
    """
    config = config or FineTuning()
    objective = start.config.objective
    expect(objective == "oracle", "start", "a network trained for the oracle", f"one for {objective}")
    split = split_rows(len(returns), config.share, config.length)
    rng = np.random.default_rng(config.seed)
    training, validation = _groups(returns, split, config, rng, prepared)
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


def _groups(
    returns: np.ndarray, split: Split, config: FineTuning, rng: np.random.Generator, prepared: Prepared | None
) -> tuple[Group, Group]:
    """Episodes of the training rows, and the walk over the validation rows."""
    walk = split.validation.stop - split.validation.start - WINDOW - config.burn_in
    total = walk + min(config.episodes * config.decisions, split.training.stop)  # at most: windows are shared

    def told(before: int) -> Callable[[int], None]:
        return lambda done: prepared(before + done, total) if prepared else None

    training = Group(_random_episodes(returns[split.training], config, rng, told(0)))
    return training, Group(_one_episode(returns[split.validation], config, told(total - walk)))


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
    prepared: Prepared | None = None,
    notes: dict[str, Any] | None = None,
) -> Path:
    """Fine-tune a bundled network or one of a folder and write it for `Time2Decide.from_pretrained`.

    The folder also gets ``state.safetensors``, from which an interrupted run resumes.
    """
    state = Path(folder) / STATE
    options: dict[str, Any] = {"state": state, "save_every": save_every, "prepared": prepared}
    policy, made = fine_tune(returns, load_policy(start)[0], config, report, **options)
    return policy.save_pretrained(folder, {"start": start, **made, **(notes or {})})


def _random_episodes(
    rows: np.ndarray, config: FineTuning, rng: np.random.Generator, done: Callable[[int], None] | None = None
) -> Episodes:
    """Episodes at random places of the rows, all assets, from half the oracle's weights and half equal ones."""
    starts = rng.integers(0, len(rows) - config.length + 1, config.episodes)
    made = _of(rows, starts, config.decisions, config, done)
    before = np.stack([rows[s + WINDOW : s + WINDOW + config.burn_in - HISTORY + 1] for s in starts])
    past = np.stack([_covariances(rows[s : s + WINDOW + before.shape[1] - 1]) for s in starts])
    budgets, risks = (part.double().numpy() for part in (made.turnover_l1, made.risk_aversion))
    made.oracle[:] = torch.from_numpy(oracle_paths(before, past, budgets, risks)[:, :, -1:])
    return made


def _one_episode(rows: np.ndarray, config: FineTuning, done: Callable[[int], None] | None = None) -> Episodes:
    """All rows as one episode, once for each λ, from equal weights."""
    starts = np.zeros(len(config.risks), dtype=int)
    return _of(rows, starts, len(rows) - WINDOW - config.burn_in, config, done)


def _of(
    rows: np.ndarray, starts: np.ndarray, decisions: int, config: FineTuning, done: Callable[[int], None] | None
) -> Episodes:
    """Episodes that begin at `starts` of the rows (time, m); a window that several share is read once.

    Their weights before the first decision are equal ones. No oracle is followed: these episodes are for utility.
    """
    budgets = torch.tensor(config.budgets).repeat(len(starts), 1)
    risks = torch.from_numpy(np.resize(np.asarray(config.risks, dtype=float), len(starts))).float()
    first = WINDOW + config.burn_in
    at = starts[:, None] + first + np.arange(decisions)  # (n, S) rows that come after each decision
    days, windows = np.unique(at, return_inverse=True)
    views = np.lib.stride_tricks.sliding_window_view(rows, WINDOW, axis=0)[days - WINDOW].swapaxes(1, 2)  # (days, T, m)
    covariance = torch.from_numpy(np.stack([empirical_covariance(window) for window in views])).float()
    m = rows.shape[1]
    places = torch.from_numpy(windows.reshape(at.shape))
    return Episodes(
        features=features_of(views, done),
        windows=places,
        returns=torch.from_numpy(rows[at]).float(),
        covariance=covariance[places],
        oracle=torch.full((*budgets.shape, HISTORY + decisions, m), 1.0 / m),
        turnover_l1=budgets,
        risk_aversion=risks,
        noise=torch.zeros(len(starts)),
    )


def _covariances(rows: np.ndarray) -> np.ndarray:
    """Of the window before each row from `WINDOW` on, and after the last one, (steps, m, m)."""
    return np.stack([empirical_covariance(rows[t - WINDOW : t]) for t in range(WINDOW, len(rows) + 1)])


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
