"""Training of the policy for real markets, end to end through the exact solver.

The loss is risk: the long-only minimum-variance portfolio under Σ, its realised variance over the next 21 days, and the
turnover between two such portfolios a week apart. Realised means have no part in it: a covariance that is bent towards
past winners would not be one. How far forecasts are followed and over how many days costs are spread are rules: trained
for utility on realised returns the first overfits, and the second learns from episodes that are short enough to train
on that trades do not last.

Markets are drawn from the prior, where conditional covariances are known, and from tables of real returns, as random
subsets of assets. Which universes were trained on and which were only measured is written into the notes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.provenance import json_digest
from time2decide.core.training import STATE, LoopConfig, Report, fit_model
from time2decide.core.validation import InputError, expect, validate_count
from time2decide.forecasting.market_state import MarketState, MarketTokens
from time2decide.markets.periods import YEAR
from time2decide.markets.portfolio import solve_portfolio
from time2decide.markets.portfolio_gradient import portfolio_layer
from time2decide.markets.prior import random_market
from time2decide.policy.market_policy import MarketBatch, MarketOutput, MarketPolicy, MarketPolicyConfig

AHEAD = 21  # days over which a realised covariance is taken
APART = 5  # days between two minimum-variance portfolios whose turnover is counted
_TOKENS = [field.name for field in fields(MarketTokens)]
_TOGETHER = 256  # days that are posed at once


@dataclass(frozen=True)
class MarketTraining:
    """Recipe of a market policy."""

    steps: int = 1500
    lr: float = 2e-3
    prior_markets: int = 40
    prior_days: int = 1100
    sizes: tuple[int, ...] = (6, 12, 20, 32)  # assets of a market; one subset of each size per real universe
    real_share: float = 0.7  # of the steps, if there are real universes
    portfolios: int = 40  # per step
    turnover_weight: float = 0.03  # of the turnover between two minimum-variance portfolios, in units of variance
    seed: int = 0

    def __post_init__(self) -> None:
        validate_count("steps", self.steps)
        expect(self.seed >= 0, "seed", "a number of at least 0", self.seed)


PRESETS = {
    "smoke": MarketTraining(steps=4, prior_markets=2, prior_days=160, sizes=(6,), portfolios=4),
    "cpu": MarketTraining(),
}


@dataclass(frozen=True)
class TrainingMarket:
    """A market with the tokens of every day from `first` on, and what decisions of that day are judged by.

    tokens : name -> (days, ...) float32, what is known before the returns of each day
    returns : (days, m)
    covariance : (days, m, m): realised over the 21 days from each or, where it is known, conditional
    """

    name: str
    tokens: dict[str, Tensor]
    returns: Tensor
    covariance: Tensor

    @property
    def assets(self) -> int:
        return int(self.returns.shape[1])

    @cached_property
    def level(self) -> float:
        """Mean variance of 1/N: losses are relative to it, so that volatile periods count for more than calm ones."""
        return max(float(self.covariance.mean()), 1e-10)

    def __len__(self) -> int:
        return len(self.returns)


def trace_market(
    name: str,
    returns: np.ndarray,
    first: int,
    covariance: np.ndarray | None = None,
    done: Callable[[int], None] | None = None,
) -> TrainingMarket:
    """Walk through returns (time, m) once and keep the tokens of every day from `first` on.

    `done` is told after every day how many have been read.
    """
    state = MarketState(returns.shape[1]).extend(returns[:first])
    seen: dict[str, list[np.ndarray]] = {token: [] for token in _TOKENS}
    for day, row in enumerate(returns[first:]):
        if done:
            done(day + 1)
        tokens = state.tokens()
        for token in _TOKENS:
            seen[token].append(np.asarray(getattr(tokens, token), dtype=np.float32))
        state.update(row)
    if covariance is None:
        windows = [returns[t : t + AHEAD] for t in range(first, len(returns))]
        covariance = np.stack([(window.T @ window / len(window)).astype(np.float32) for window in windows])
    return TrainingMarket(
        name,
        {token: torch.from_numpy(np.stack(rows)) for token, rows in seen.items()},
        *(torch.from_numpy(part) for part in (returns[first:].copy(), covariance.astype(np.float32))),
    )


@lru_cache(maxsize=1)
def prior_training_markets(config: MarketTraining) -> tuple[TrainingMarket, ...]:
    """Markets of the prior, young ones included: tokens begin after 40 days."""
    traced = []
    for index in range(config.prior_markets):
        rng = np.random.default_rng([config.seed, 1, index])
        market = random_market(config.sizes[index % len(config.sizes)], config.prior_days, rng)
        covariance = market.covariance(np.arange(40, config.prior_days))
        traced.append(trace_market(f"prior ({market.kind})", market.returns, 40, covariance))
    return tuple(traced)


def real_training_markets(name: str, returns: np.ndarray, config: MarketTraining) -> list[TrainingMarket]:
    """Random subsets of the assets of a real universe (time, m), from random days on."""
    traced = []
    for size in {min(size, returns.shape[1]) for size in config.sizes if size >= 12 or len(config.sizes) == 1}:
        rng = np.random.default_rng([config.seed, 2, zlib.crc32(name.encode()), size])
        chosen = np.sort(rng.choice(returns.shape[1], size, replace=False))
        begin = int(rng.integers(0, max(len(returns) // 8, 1)))
        traced.append(trace_market(name, returns[begin:, chosen], 60))
    return traced


def train_market_policy(
    config: MarketTraining,
    out: str | Path,
    universes: Mapping[str, np.ndarray | list[TrainingMarket]] | None = None,
    *,
    policy_config: MarketPolicyConfig | None = None,
    notes: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> MarketPolicy:
    """Train a policy and write it to a folder; an interrupted run resumes.

    Parameters
    ----------
    universes : name -> returns (time, m) or what `real_training_markets` made of them, optional
        Real universes to train on, without gaps; the prior alone unless given.
    """
    real: list[TrainingMarket] = []
    for name, table in (universes or {}).items():
        if isinstance(table, np.ndarray) and (table.ndim != 2 or len(table) < 400 or not np.isfinite(table).all()):
            raise InputError(f"{name}: expected at least 400 rows of finite returns, found shape {table.shape}")
        real += real_training_markets(name, table, config) if isinstance(table, np.ndarray) else table
    pools = [pool for pool in (prior_training_markets(config), real) if pool]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        policy = MarketPolicy(policy_config)
    shares = (1 - config.real_share, config.real_share) if len(pools) == 2 else (1.0,)

    def loss(step: int) -> Tensor:
        rng = np.random.default_rng([config.seed, 3, step])
        pool = pools[int(rng.choice(len(pools), p=shares))]
        return market_risk_loss(policy, draw_training_days(pool, config.portfolios, APART, rng), config.turnover_weight)

    loop = LoopConfig.of(config, weight_decay=1e-3, warmup=30.0, clip_norm=1.0, averaging=0.98)
    settings = {"training": asdict(config), "policy": asdict(policy.config), "universes": sorted(universes or {})}
    tables = {name: table for name, table in (universes or {}).items() if isinstance(table, np.ndarray)}
    settings["data"] = {name: json_digest({"values": table.tobytes().hex()}) for name, table in sorted(tables.items())}
    progress = fit_model(policy, loss, loop, report, state=Path(out) / STATE, settings=settings)
    facts = {**settings, "seconds": round(progress.seconds), "history": "years", **(notes or {})}
    policy.save_pretrained(out, facts)
    return policy


def market_policy_path(
    policy: MarketPolicy, market: TrainingMarket, risk_aversion: float, turnover_l1: float = 0.1, cost: float = 1e-3
) -> tuple[np.ndarray, np.ndarray]:
    """Net returns of daily decisions on every day of a traced market, from equal weights, and what each traded.

    The decisions of `MarketStrategy` in a rollout with budgets from drifted weights, without reading the returns again.
    """
    current, returns = np.full(market.assets, 1.0 / market.assets), market.returns.numpy()
    net, traded = np.empty(len(market)), np.empty(len(market))
    solution = None
    for first in range(0, len(market), _TOGETHER):
        days = np.arange(first, min(first + _TOGETHER, len(market)))
        one = torch.ones(1)
        with torch.no_grad():
            answer = _pose_days(policy, [(market, days)], risk_aversion * one, cost * one)
        mean, sigma, last = (part.double().numpy() for part in (answer.mean, answer.covariance, answer.days))
        for k, day in enumerate(days):
            terms = {"risk_aversion": risk_aversion, "turnover_l1": turnover_l1, "cost": cost / last[k]}
            solution = solve_portfolio(mean[k], sigma[k], current, **terms, start=solution)
            traded[day] = np.abs(solution.weights - current).sum()
            net[day] = (1 - cost * traded[day]) * (1 + solution.weights @ returns[day]) - 1
            current = solution.weights * (1 + returns[day])
            current = current / current.sum()
    return net, traded


def market_policy_figures(policy: MarketPolicy, returns: np.ndarray, first: int = 520) -> list[dict[str, float]]:
    """Net figures a year of daily decisions from row `first` on, at γ = 0.1 and 10 basis points, for λ = 1, 5, 25."""
    rows = []
    market = trace_market("measured", returns, min(first, len(returns) // 2))
    for risk in (1.0, 5.0, 25.0):
        net, amount = market_policy_path(policy, market, risk)
        mean, deviation = YEAR * net.mean(), math.sqrt(YEAR) * net.std()
        figures = {"volatility": deviation, "sharpe": mean / deviation, "traded": amount.mean()}
        figures["utility"] = mean - risk * deviation**2
        rows.append({"risk_aversion": risk, **{name: round(float(value), 5) for name, value in figures.items()}})
    return rows


def draw_training_days(
    pool: Sequence[TrainingMarket], count: int, ahead: int, rng: np.random.Generator
) -> list[tuple[TrainingMarket, int]]:
    """Markets of one size and a day of each; a third of the days are among the first 200, when little is known."""
    assets = pool[int(rng.integers(len(pool)))].assets
    fitting = [market for market in pool if market.assets == assets]
    drawn = []
    for _ in range(count):
        market = fitting[int(rng.integers(len(fitting)))]
        last = len(market) - ahead - AHEAD
        drawn.append((market, int(rng.integers(0, min(200, last) if rng.uniform() < 1 / 3 else last))))
    return drawn


def _pose_days(
    policy: MarketPolicy, days: Sequence[tuple[TrainingMarket, np.ndarray]], risk: Tensor, cost: Tensor
) -> MarketOutput:
    """The network's answer for days of markets of one size; λ and cost belong to markets."""
    tokens = {token: torch.cat([market.tokens[token][rows] for market, rows in days]) for token in _TOKENS}
    each = torch.tensor([len(rows) for _, rows in days])
    risk, cost = (value.float().repeat_interleave(each) for value in (risk, cost))
    answer: MarketOutput = policy(MarketBatch(**tokens, risk_aversion=risk, cost=cost))
    return answer


def market_risk_loss(policy: MarketPolicy, days: list[tuple[TrainingMarket, int]], turnover_weight: float) -> Tensor:
    """Mean realised variance of minimum-variance portfolios on each day and `APART` later, relative to 1/N.

    Plus `turnover_weight` times the mean turnover between the two.
    """
    pairs = [(market, np.array([day, day + APART])) for market, day in days]
    one = torch.ones(len(days))  # Σ does not depend on λ and costs
    answer = _pose_days(policy, pairs, one, one)
    sigma = answer.covariance.double()
    realised = torch.cat([market.covariance[rows] for market, rows in pairs]).double()
    level = torch.tensor([market.level for market, _ in pairs]).double().repeat_interleave(2)
    m = sigma.shape[-1]
    flat = torch.full((len(sigma), m), 1.0 / m, dtype=torch.float64)
    scaled = sigma / sigma.detach().mean((1, 2), keepdim=True)
    weights = portfolio_layer(torch.zeros_like(flat), scaled, flat, 1.0)  # (2B, m)
    variance = torch.einsum("bi,bij,bj->b", weights, realised, weights) / level
    both = weights.view(-1, 2, m)
    turnover = (both[:, 1] - both[:, 0]).abs().sum(-1)
    return variance.mean() + turnover_weight * turnover.mean()
