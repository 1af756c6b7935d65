"""Fine-tuning a policy on one's own universe, without a look at what comes later.

The rows are split in time:

    | training | embargo | validation | embargo | never touched |
      ........   1 window   ..........   1 window   last 30 %

Every few steps the validation rows are measured, and the weights that do best there are kept, those it started from
included.

- Of a decision network (`fine_tune`) the read-out alone, some hundred weights, is tuned for the utility that its
  decisions earn net of costs, on its own past allocations: what to do with a forecast, not the forecast. Real returns
  carry too little to fit more. If even the best weights do not earn more than holding still, by one standard error, the
  network that is kept is one that does not trade.
- Of the market policy (`tune_market_policy`) all weights, some thousand, are tuned for the loss of
  `market_training.py`: realised variance of minimum-variance portfolios, and their turnover. If that is not below the
  start's by one standard error, the start is kept. Only then the last rows are read, once: the tuned policy walks over
  them beside the start.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.checkpoints import PretrainedModel, checkpoint_checksum
from time2decide.core.training import STATE, LoopConfig, Progress, Report, fit_model
from time2decide.core.validation import expect, validate_count, validate_fields, validate_interval
from time2decide.markets.covariance import empirical_covariance, rolling_covariances
from time2decide.markets.oracle import RISK_AVERSION, WINDOW
from time2decide.markets.periods import YEAR
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.market_training import (
    AHEAD,
    APART,
    TrainingMarket,
    market_policy_path,
    market_risk_loss,
    trace_market,
)
from time2decide.policy.model import Time2Decide
from time2decide.policy.network import HISTORY, Policy
from time2decide.policy.training import (
    EpisodeGroup,
    Episodes,
    Place,
    draw_policy_inertia,
    episode_features,
    episode_oracle_paths,
    own_rollout_utility,
    policy_utility_loss,
)
from time2decide.simulation.metrics import PairedBootstrap

Prepared = Callable[[int, int], None]  # windows or days read, all of them
_VALIDATION = 0.25  # of the rows that may be used
_TUNED = ("head.", "skip")  # the read-out
_FIRST = 60  # rows before the first day that the market policy learns from
_MOST = 64  # assets of a portfolio; larger universes are cut into random parts of this size
_PARTS = 2
_BLOCK = 63  # rows whose losses are taken as one when a standard error is estimated: they overlap
_RISKS = (5.0, 25.0)  # λ of the walks over the last rows
_LEAST = 1e-3  # of the loss: a smaller gain is none


@dataclass(frozen=True)
class FineTuning:
    """The recipe for a decision network."""

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
class MarketTuning:
    """The recipe for the market policy."""

    share: float = 0.7  # of the rows that may be used at all; a window less
    steps: int = 400
    lr: float = 5e-4  # highest learning rate, a cosine down to 0
    portfolios: int = 40  # per step
    turnover_weight: float = 0.03  # of the turnover between two minimum-variance portfolios, in units of variance
    check_every: int = 25  # steps between two measurements on the validation rows
    patience: int = 6  # measurements without progress before it stops
    seed: int = 0

    def __post_init__(self) -> None:
        validate_fields(self, count="steps portfolios check_every patience", natural="seed", positive="lr")
        validate_fields(self, non_negative="turnover_weight")
        validate_interval("share", self.share, "(0, 1]")


@dataclass(frozen=True)
class TuningSplit:
    """Rows by position, ends excluded."""

    training: slice
    validation: slice
    untouched: slice

    def notes(self) -> dict[str, Any]:
        """For the notes of a checkpoint."""
        rows = {"training": [0, self.training.stop], "validation": [self.validation.start, self.validation.stop]}
        return {"rows": rows, "untouched_from_row": self.untouched.start}


def split_tuning_rows(rows: int, share: float, shortest: int) -> TuningSplit:
    """Training, validation and untouched rows, one window apart each; the first two have at least `shortest`."""
    last = int(share * rows) - WINDOW
    begin = last - max(shortest, round(_VALIDATION * last))
    needed = math.ceil((2 * shortest + 2 * WINDOW) / share) + 1
    expect(begin - WINDOW >= shortest, "data", f"at least {needed} rows to split in time", rows)
    return TuningSplit(slice(0, begin - WINDOW), slice(begin, last), slice(last + WINDOW, rows))


def fine_tune_to(
    folder: str | Path,
    returns: np.ndarray,
    start: str | Path = "market",
    config: FineTuning | MarketTuning | None = None,
    *,
    report: Report | None = None,
    prepared: Prepared | None = None,
    notes: dict[str, Any] | None = None,
) -> Path:
    """Fine-tune a bundled policy or one of a folder and write it for `Time2Decide.from_pretrained`.

    `config` is a `MarketTuning` for a market policy and a `FineTuning` for a decision network. The folder also gets
    ``state.safetensors``, from which an interrupted run resumes.
    """
    policy = Time2Decide.from_pretrained(start).policy
    tune: Any = fine_tune if isinstance(policy, Policy) else tune_market_policy
    tuned, made = tune(returns, policy, config, report, state=Path(folder) / STATE, prepared=prepared)
    saved: Path = tuned.save_pretrained(folder, {"start": str(start), **made, **(notes or {})})
    return saved


def _settings(
    config: FineTuning | MarketTuning, returns: np.ndarray, split: TuningSplit, start: PretrainedModel
) -> Any:
    """Settings that a resumed run must share: recipe, rows and first weights."""
    rows = torch.from_numpy(np.ascontiguousarray(returns[: split.validation.stop]))
    return {"fine_tuning": asdict(config), "data": checkpoint_checksum({"returns": rows} | start.state_dict())}


def _loop(config: FineTuning | MarketTuning, **others: Any) -> LoopConfig:
    every = config.check_every
    return LoopConfig.of(config, weight_decay=1e-3, clip_norm=1.0, evaluate_every=every, evaluate_first=True, **others)


def _part(prepared: Prepared | None, before: int, total: int) -> Callable[[int], None]:
    """`prepared` for a part of the reading, before which so much was read."""
    return lambda done: prepared(before + done, total) if prepared else None


def fine_tune(
    returns: np.ndarray,
    start: Policy,
    config: FineTuning | None = None,
    report: Report | None = None,
    *,
    state: str | Path | None = None,
    prepared: Prepared | None = None,
) -> tuple[Policy, dict[str, Any]]:
    """The network fine-tuned on returns (time, m), and notes on how.

    Only the rows before `share` of them are looked at. `state` is a file to save to and to resume from. Before the
    first step the windows of all episodes are read; `prepared` is told how many are.
    """
    config = config or FineTuning()
    objective = start.config.objective
    expect(objective == "oracle", "start", "a network trained for the oracle", f"one for {objective}")
    split = split_tuning_rows(len(returns), config.share, config.length)
    rng = np.random.default_rng(config.seed)
    training, validation = _groups(returns, split, config, rng, prepared)
    model = copy.deepcopy(start)
    draws = [_draw(training, config, rng) for _ in range(config.steps)]  # all at once: step t needs no generator

    def loss(step: int) -> Tensor:
        if step % config.check_every == 0:
            training.gather(model, torch.arange(config.episodes))
        return policy_utility_loss(model, training, *draws[step], config.unroll, config.cost_bps / 1e4)

    done = fit_model(
        model,
        loss,
        _loop(config),
        report,
        evaluate=lambda: -float(_validate(model, validation, config).mean()),
        state=state,
        settings=_settings(config, returns, split, start),
        kept={"own": training.own},
        tuned=_TUNED,
    )
    still = _holding(start)
    gain = _validate(model, validation, config) - _validate(still, validation, config)
    holds = bool(gain.mean() <= gain.std() / len(gain) ** 0.5)
    if holds:
        model.load_state_dict(still.state_dict())
    return model, _notes(config, split, done, holds)


def _groups(
    returns: np.ndarray, split: TuningSplit, config: FineTuning, rng: np.random.Generator, prepared: Prepared | None
) -> tuple[EpisodeGroup, EpisodeGroup]:
    """Episodes of the training rows, and the walk over the validation rows."""
    walk = split.validation.stop - split.validation.start - WINDOW - config.burn_in
    total = walk + min(config.episodes * config.decisions, split.training.stop)  # at most: windows are shared
    training = EpisodeGroup(_random_episodes(returns[split.training], config, rng, _part(prepared, 0, total)))
    return training, EpisodeGroup(_one_episode(returns[split.validation], config, _part(prepared, total - walk, total)))


def _notes(config: FineTuning, split: TuningSplit, done: Progress, holds: bool) -> dict[str, Any]:
    return {
        "fine_tuning": asdict(config),
        "history": "own",
        **split.notes(),
        "steps_kept": 0 if holds else done.best_step,
        "holds": holds,
        "validation_utility": [round(-entry["validation"], 6) for entry in done.history],
    }


def _random_episodes(
    rows: np.ndarray, config: FineTuning, rng: np.random.Generator, done: Callable[[int], None] | None = None
) -> Episodes:
    """Episodes at random places of the rows, all assets, from half the oracle's weights and half equal ones."""
    starts = rng.integers(0, len(rows) - config.length + 1, config.episodes)
    made = _of(rows, starts, config.decisions, config, done)
    before = np.stack([rows[s + WINDOW : s + WINDOW + config.burn_in - HISTORY + 1] for s in starts])
    past = np.stack([rolling_covariances(rows[s : s + WINDOW + before.shape[1] - 1], WINDOW) for s in starts])
    budgets, risks = (part.double().numpy() for part in (made.turnover_l1, made.risk_aversion))
    made.oracle[:] = torch.from_numpy(episode_oracle_paths(before, past, budgets, risks)[:, :, -1:])
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
        features=episode_features(views, done),
        windows=places,
        returns=torch.from_numpy(rows[at]).float(),
        covariance=covariance[places],
        oracle=torch.full((*budgets.shape, HISTORY + decisions, m), 1.0 / m),
        turnover_l1=budgets,
        risk_aversion=risks,
        noise=torch.zeros(len(starts)),
    )


def _draw(group: EpisodeGroup, config: FineTuning, rng: np.random.Generator) -> tuple[Place, Tensor]:
    """The decisions that a step learns from, and their inertia."""
    count, k = group.data.turnover_l1.shape
    episode, budget, at = (torch.from_numpy(rng.integers(0, high, config.batch)) for high in (count, k, group.steps))
    return (episode, budget, at), draw_policy_inertia(config.batch, rng)


def _validate(model: Policy, group: EpisodeGroup, config: FineTuning) -> Tensor:
    """The net utility of every step of a rollout over the validation rows."""
    group.gather(model, torch.arange(len(group.data.turnover_l1)))
    return own_rollout_utility(group, config.cost_bps / 1e4)


@torch.no_grad()
def _holding(policy: Policy) -> Policy:
    """The same network with a read-out that sells nothing."""
    still = copy.deepcopy(policy).eval()
    still.head.weight[1] = 0.0
    still.head.bias[1] = -40.0  # of the logit of the share that is sold
    still.skip[1] = 0.0
    return still


def tune_market_policy(
    returns: np.ndarray,
    start: MarketPolicy,
    config: MarketTuning | None = None,
    report: Report | None = None,
    *,
    state: str | Path | None = None,
    prepared: Prepared | None = None,
) -> tuple[MarketPolicy, dict[str, Any]]:
    """The policy fine-tuned on returns (time, m) without gaps, and notes on how.

    `state` is a file to save to and to resume from. Before the first step the days are read; `prepared` is told how
    many are.
    """
    config = config or MarketTuning()
    split = split_tuning_rows(len(returns), config.share, 2 * _BLOCK + AHEAD)
    markets = _markets(returns[: split.validation.stop], config.seed, prepared)
    training, validation = (_days(markets, rows) for rows in (split.training, split.validation))
    policy = copy.deepcopy(start)

    def loss(step: int) -> Tensor:
        rng = np.random.default_rng([config.seed, step])
        market = training[int(rng.integers(len(training)))]
        days = rng.integers(0, len(market) - APART, config.portfolios)
        return market_risk_loss(policy, [(market, int(day)) for day in days], config.turnover_weight)

    progress = fit_model(
        policy,
        loss,
        _loop(config, warmup=10.0),
        report,
        evaluate=lambda: float(_losses(policy, validation, config).mean()),
        state=state,
        settings=_settings(config, returns, split, start),
    )
    before = _losses(start, validation, config)  # (blocks,)
    gain = before - _losses(policy, validation, config)
    needed = max(gain.std(ddof=1) / math.sqrt(len(gain)), _LEAST * before.mean())
    kept = bool(gain.mean() > needed)
    if not kept:
        policy.load_state_dict(start.state_dict())
    notes = {
        "fine_tuning": asdict(config),
        "history": "years",
        **split.notes(),
        "steps_kept": progress.best_step if kept else 0,
        "kept": kept,
        "seconds": round(progress.seconds),
        "validation_loss": [round(entry["validation"], 6) for entry in progress.history],
        "held_out": _held_out(start, policy, returns, split, config) if kept else [],
    }
    return policy.eval(), notes


def _markets(returns: np.ndarray, seed: int, prepared: Prepared | None) -> list[TrainingMarket]:
    """The universe, or random parts of one that is larger than `_MOST`, with the tokens of every day."""
    m, days = returns.shape[1], len(returns) - _FIRST
    size = m // -(-m // _MOST)  # of equal parts
    order = np.random.default_rng([seed, m]).permutation(m)
    parts = [np.sort(order[i * size : (i + 1) * size]) for i in range(min(m // size, _PARTS))]
    told = [_part(prepared, i * days, len(parts) * days) for i in range(len(parts))]
    return [
        trace_market("universe", returns[:, part], _FIRST, done=tell) for part, tell in zip(parts, told, strict=True)
    ]


def _days(markets: list[TrainingMarket], rows: slice) -> list[TrainingMarket]:
    """The days of these rows whose realised covariances end within them."""
    days = slice(max(rows.start - _FIRST, 0), rows.stop - _FIRST - AHEAD)
    return [
        replace(
            market,
            tokens={name: token[days] for name, token in market.tokens.items()},
            returns=market.returns[days],
            covariance=market.covariance[days],
        )
        for market in markets
    ]


@torch.no_grad()
def _losses(policy: MarketPolicy, markets: list[TrainingMarket], config: MarketTuning) -> np.ndarray:
    """The loss by blocks of days, mean over the parts of the universe, (blocks,)."""
    last, found = len(markets[0]) - APART, []
    for first in range(0, last, _BLOCK):
        days = range(first, min(first + _BLOCK, last), APART)
        pairs = [(market, day) for market in markets for day in days]
        found.append(float(market_risk_loss(policy, pairs, config.turnover_weight)))
    return np.asarray(found)


def _held_out(
    start: MarketPolicy, tuned: MarketPolicy, returns: np.ndarray, split: TuningSplit, config: MarketTuning
) -> list[dict[str, float]]:
    """Volatility a year of daily decisions on the last rows, of both, at γ = 0.1 and 10 basis points.

    `low` and `high` are the 95 % interval of the difference by block bootstrap.
    """
    m = returns.shape[1]
    part = np.sort(np.random.default_rng([config.seed, m]).permutation(m)[:_MOST])
    market = trace_market("held out", returns[:, part], split.untouched.start)
    bootstrap, rows = PairedBootstrap(len(market), seed=config.seed), []
    for risk in _RISKS:
        nets = np.stack([market_policy_path(policy, market, risk)[0] for policy in (start, tuned)])  # (2, days)
        before, after = math.sqrt(YEAR) * nets.std(axis=-1)
        drawn = np.sqrt(YEAR * bootstrap.moments(nets)[1])
        low, high = bootstrap.interval(drawn[1] - drawn[0])
        row = {"risk_aversion": risk, "volatility_start": before, "volatility": after, "low": low, "high": high}
        rows.append({name: round(float(value), 6) for name, value in row.items()})
    return rows
