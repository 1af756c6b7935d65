"""Fine-tuning of the market policy on one's own universe, for risk, without a look at what comes later.

The rows are split in time as in `fine_tuning.py`. All weights of the network, some thousand, go on from those of the
start, for the loss of `market_training.py`: realised variance of minimum-variance portfolios, and their turnover. Every
few steps the loss is measured on the validation rows; the weights with the least are kept. If they are not below those
of the start by one standard error, the start is what is kept. Only then the last rows are read, once: the tuned policy
walks over them beside the start.
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

from time2decide.core.checkpoints import checksum
from time2decide.core.training import STATE, LoopConfig, Report, fit
from time2decide.core.validation import validate_fields, validate_interval
from time2decide.policy.fine_tuning import Prepared, Split, split_rows
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.market_training import AHEAD, APART, TrainingMarket, policy_path, risk_parts, trace
from time2decide.simulation.metrics import PairedBootstrap

_FIRST = 60  # rows before the first day that is learned from
_MOST = 64  # assets of a portfolio; larger universes are cut into random parts of this size
_PARTS = 2
_BLOCK = 63  # rows whose losses are taken as one when a standard error is estimated: they overlap
_RISKS = (5.0, 25.0)  # λ of the walks over the last rows
_LEAST = 1e-3  # of the loss: a smaller gain is none
_YEAR = 252.0


@dataclass(frozen=True)
class MarketTuning:
    """The recipe."""

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


def tune_market_policy(
    returns: np.ndarray,
    start: MarketPolicy,
    config: MarketTuning | None = None,
    report: Report | None = None,
    *,
    state: str | Path | None = None,
    save_every: float = 60.0,
    prepared: Prepared | None = None,
) -> tuple[MarketPolicy, dict[str, Any]]:
    """The policy fine-tuned on returns (time, m) without gaps, and notes on how.

    `state` is a file to save to every `save_every` seconds and to resume from. Before the first step the days are read;
    `prepared` is told how many are.
    """
    config = config or MarketTuning()
    split = split_rows(len(returns), config.share, 2 * _BLOCK + AHEAD)
    markets = _markets(returns[: split.validation.stop], config.seed, prepared)
    training, validation = (_days(markets, rows) for rows in (split.training, split.validation))
    policy = copy.deepcopy(start)

    def loss(step: int) -> Tensor:
        rng = np.random.default_rng([config.seed, step])
        market = training[int(rng.integers(len(training)))]
        days = rng.integers(0, len(market) - APART, config.portfolios)
        variance, turnover = risk_parts(policy, [(market, int(day)) for day in days])
        return variance.mean() + config.turnover_weight * turnover.mean()

    rows = torch.from_numpy(np.ascontiguousarray(returns[: split.validation.stop]))
    settings = {"fine_tuning": asdict(config), "data": checksum({"returns": rows} | start.state_dict())}
    progress = fit(
        policy,
        loss,
        _loop(config),
        evaluate=lambda: float(_losses(policy, validation, config).mean()),
        state=state,
        settings=settings,
        save_every=save_every,
        report=report,
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
        "rows": {"training": [0, split.training.stop], "validation": [split.validation.start, split.validation.stop]},
        "untouched_from_row": split.untouched.start,
        "steps_kept": progress.best_step if kept else 0,
        "kept": kept,
        "seconds": round(progress.seconds),
        "validation_loss": [round(entry["validation"], 6) for entry in progress.history],
        "held_out": _held_out(start, policy, returns, split, config) if kept else [],
    }
    return policy.eval(), notes


def tune_market_policy_to(
    folder: str | Path,
    returns: np.ndarray,
    start: str | Path = "market",
    config: MarketTuning | None = None,
    *,
    report: Report | None = None,
    prepared: Prepared | None = None,
    notes: dict[str, Any] | None = None,
) -> Path:
    """Fine-tune a bundled market policy or one of a folder and write it for `Time2Decide.from_pretrained`.

    The folder also gets ``state.safetensors``, from which an interrupted run resumes.
    """
    begun = MarketPolicy.from_pretrained(start)
    policy, made = tune_market_policy(returns, begun, config, report, state=Path(folder) / STATE, prepared=prepared)
    return policy.save_pretrained(folder, {"start": str(start), **made, **(notes or {})})


def _loop(config: MarketTuning) -> LoopConfig:
    every = config.check_every
    return LoopConfig.of(
        config, weight_decay=1e-3, warmup=10.0, clip_norm=1.0, evaluate_every=every, evaluate_first=True
    )


def _markets(returns: np.ndarray, seed: int, prepared: Prepared | None) -> list[TrainingMarket]:
    """The universe, or random parts of one that is larger than `_MOST`, with the tokens of every day."""
    m, days = returns.shape[1], len(returns) - _FIRST
    size = m // -(-m // _MOST)  # of equal parts
    order = np.random.default_rng([seed, m]).permutation(m)
    parts = [np.sort(order[i * size : (i + 1) * size]) for i in range(min(m // size, _PARTS))]

    def told(before: int) -> Callable[[int], None]:
        return lambda day: prepared(before + day, len(parts) * days) if prepared else None

    return [trace("universe", returns[:, part], _FIRST, done=told(i * days)) for i, part in enumerate(parts)]


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
        variance, turnover = risk_parts(policy, [(market, day) for market in markets for day in days])
        found.append(float(variance.mean() + config.turnover_weight * turnover.mean()))
    return np.asarray(found)


def _held_out(
    start: MarketPolicy, tuned: MarketPolicy, returns: np.ndarray, split: Split, config: MarketTuning
) -> list[dict[str, float]]:
    """Volatility a year of daily decisions on the last rows, of both, at γ = 0.1 and 10 basis points.

    `low` and `high` are the 95 % interval of the difference by block bootstrap.
    """
    m = returns.shape[1]
    part = np.sort(np.random.default_rng([config.seed, m]).permutation(m)[:_MOST])
    market = trace("held out", returns[:, part], split.untouched.start)
    bootstrap, rows = PairedBootstrap(len(market), seed=config.seed), []
    for risk in _RISKS:
        nets = np.stack([policy_path(policy, market, risk)[0] for policy in (start, tuned)])  # (2, days)
        before, after = math.sqrt(_YEAR) * nets.std(axis=-1)
        drawn = np.sqrt(_YEAR * bootstrap.moments(nets)[1])
        low, high = bootstrap.interval(drawn[1] - drawn[0])
        row = {"risk_aversion": risk, "volatility_start": before, "volatility": after, "low": low, "high": high}
        rows.append({name: round(float(value), 6) for name, value in row.items()})
    return rows
