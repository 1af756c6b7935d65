"""Scores of strategies on series, and their comparison in pairs: the difference on the same series of the same data.

A row keeps its score on every series, the digest of the returns that it was computed on, and its utility and regret.
Their sum is the oracle's utility, a function of the data alone, so that rows of other data betray themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from time2decide.backtesting.baselines import oracle_rollout
from time2decide.core.provenance import data_digest
from time2decide.core.validation import expect
from time2decide.experiments.store import Config, Row
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW
from time2decide.markets.synthetic import LMC_VERSION
from time2decide.simulation.engine import Observation, Rollout, Strategy, rollout
from time2decide.simulation.metrics import score

CONFIDENCE = 0.95  # of intervals
_DRAWS = 2000
_SAME_UTILITY = 1e-9


def tasks_on_lmc(tasks: Callable[[str], list[Config]]) -> Callable[[str], list[Config]]:
    """The same tasks, their keys with the version of the LMC series: rows on older series belong to no task."""

    @wraps(tasks)
    def named(preset: str) -> list[Config]:
        return [{**task, "lmc": LMC_VERSION} for task in tasks(preset)]

    return named


def scored_portfolio_rows(
    name: str,
    strategy: Strategy,
    returns: np.ndarray,
    oracle: np.ndarray,
    parameters: list[float] | None = None,
    budgets: tuple[float, ...] = BUDGETS,
    risk_aversion: float = RISK_AVERSION,
) -> list[Row]:
    """One row per budget: means, and the scores of every series; `violation` of the constraints at worst."""
    result = rollout(returns, strategy, budgets, delay=0, oracle=oracle, risk_aversion=risk_aversion)
    weights = result.allocations[:, :, WINDOW - 1 :]
    excess = np.abs(np.diff(weights, axis=2)).sum(-1) - np.asarray(budgets)[:, None]
    worst = np.maximum(np.maximum(np.abs(weights.sum(-1) - 1).max((0, 2)), -weights.min((0, 2, 3))), excess.max((0, 2)))
    return [
        {"strategy": name, "parameter": None if parameters is None else parameters[k], **row}
        | {"violation": float(max(worst[k], 0.0))}
        for k, row in enumerate(portfolio_rows_of(result, returns, oracle))
    ]


def oracle_portfolio_rows(returns: np.ndarray, oracle: np.ndarray, budgets: Sequence[float]) -> list[Row]:
    """Rows of the oracle itself."""
    result = oracle_rollout(oracle, np.asarray(budgets), WINDOW, RISK_AVERSION)
    return [{"strategy": "oracle", **row} for row in portfolio_rows_of(result, returns, oracle)]


def portfolio_rows_of(result: Rollout, returns: np.ndarray, oracle: np.ndarray) -> list[Row]:
    """One row per budget of a rollout: means, the scores of every series, the digest of the data."""
    scores, digest = score(result, returns, oracle), data_digest(returns)
    return [
        {
            "turnover_l1": float(budget),
            **means,
            "mse_series": np.round(scores.mse[:, k], 8).tolist(),
            "regret_series": np.round(scores.regret[:, k], 9).tolist(),
            "data": digest,
        }
        for k, (budget, means) in enumerate(zip(result.turnover_l1, scores.rows(), strict=True))
    ]


def shown_oracle_history(
    strategy: Strategy,
    returns: np.ndarray,
    oracle: np.ndarray,
    budgets: Sequence[float],
    every: int = 4,
    risk_aversion: float = RISK_AVERSION,
) -> list[Row]:
    """MSE per budget if the past allocations were the oracle's, as in training, at every few steps.

    `shown_oracle_mse` is with the returns that belong to them (teacher forcing): its distance to the rollout's MSE is
    the price of a history of its own. `other_returns_mse` is the probe beside it, with the returns of the next series:
    a model that does as well there copies the last allocation and does not read returns. With a single series its
    returns are reversed in time instead.
    """
    other = np.roll(returns, 1, axis=0) if len(returns) > 1 else returns[:, ::-1]
    found: dict[str, list[np.ndarray]] = {"shown_oracle_mse": [], "other_returns_mse": []}
    for t in range(WINDOW, returns.shape[1], every):
        seen = slice(t - WINDOW, t)
        for key, shown in zip(found, (returns, other), strict=True):
            past = Observation(shown[:, seen].copy(), oracle[:, :, seen], None, np.array(budgets), risk_aversion)
            found[key].append(((strategy.decide(past) - oracle[:, :, t]) ** 2).mean(axis=(0, 2)))  # (budgets,)
    means = {key: np.mean(parts, axis=0) for key, parts in found.items()}
    return [{key: float(value[k]) for key, value in means.items()} for k in range(len(budgets))]


def portfolio_scores(rows: list[Row], strategy: str, budget: float, key: str) -> np.ndarray:
    """Scores of every series of every seed, in order, (series · seeds,)."""
    chosen = sorted((r["seed"], r[f"{key}_series"]) for r in rows if _is(r, strategy, budget))
    return np.concatenate([np.asarray(scores) for _, scores in chosen]) if chosen else np.empty(0)


def paired_portfolio_scores(
    rows: list[Row], ours: str, other: str, budget: float, key: str
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of both on the series that both were run on; rows of one seed that differ in their data are refused."""
    found = [{r["seed"]: r for r in rows if _is(r, name, budget)} for name in (ours, other)]
    seeds = sorted(found[0].keys() & found[1].keys())
    for seed in seeds:
        check_same_data([of_seed[seed] for of_seed in found])
    mine, theirs = (np.concatenate([np.asarray(one[seed][f"{key}_series"]) for seed in seeds]) for one in found)
    return mine, theirs


def check_same_data(rows: Sequence[Row]) -> None:
    """Raise unless rows of one market, seed, γ and λ have one digest of data, and one sum of utility and regret."""
    names = [str(row["strategy"]) for row in rows]
    digests = {row["data"] for row in rows if "data" in row}
    expect(len(digests) <= 1, f"rows of {', '.join(names)}", "one digest of data", ", ".join(sorted(digests)))
    best = [row["utility"] + row["regret"] for row in rows if {"utility", "regret"} <= row.keys()]
    same = not best or max(best) - min(best) <= _SAME_UTILITY
    found = ", ".join(f"{value:.9g}" for value in best)
    expect(same, f"rows of {', '.join(names)}", "the same utility + regret, which the data alone determine", found)


def portfolio_gain(ours: np.ndarray, theirs: np.ndarray, key: str) -> tuple[float, float, float]:
    """How much less ours is, with its interval by bootstrap over paired series.

    In per cent for the MSE; in 1e-4 for regret, which may be negative and has no per cent.
    """
    draws = np.random.default_rng(0).integers(0, len(ours), (_DRAWS, len(ours)))
    least = np.finfo(float).tiny  # nobody is below a strategy without any error

    def less(mine: Any, other: Any) -> Any:
        return 100 * (1 - (mine + least) / (other + least)) if key == "mse" else 1e4 * (other - mine)

    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(less(ours[draws].mean(1), theirs[draws].mean(1)), [tail, 1 - tail])
    return float(less(ours.mean(), theirs.mean())), float(low), float(high)


def portfolio_bootstrap_error(scores: np.ndarray) -> float:
    """Standard error of the mean over series, by bootstrap."""
    draws = np.random.default_rng(0).integers(0, len(scores), (_DRAWS, len(scores)))
    return float(scores[draws].mean(1).std(ddof=1))


def _is(row: Row, strategy: str, budget: float) -> bool:
    return bool(row["strategy"] == strategy and row["turnover_l1"] == budget)
