"""The paper's market: LMC series turned into returns, clean and noisy, split by series, with their oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TypeVar

import numpy as np

from time2decide.core.cache import cached_array
from time2decide.core.validation import validate_choice, validate_count
from time2decide.markets.lmc import LMCConfig, lmc_generator, lmc_set
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW, oracle_path

#: Standard deviation of the noise of each market. The paper says 0.01; at 0.0065 the ratio of Uniform's noisy to its
#: clean row is the paper's.
MARKETS = {"clean": 0.0, "noisy": 0.01, "noisy-matched": 0.0065}
#: Series of each split: (number of the first, default count). The ranges can grow without meeting.
SPLITS = {"train": (0, 300), "validation": (1_000_000, 30), "evaluation": (2_000_000, 30)}
_SCALE, _LOWEST, _HIGHEST = 0.01, -0.3, 0.8
_NOISE_STREAM = 1  # second key of the noise generator, so that noise and series are independent
_VERSION = 1  # of the labels: raise it when the oracle gives other numbers

T = TypeVar("T")


def synthetic_returns(
    market: str = "clean",
    split: str = "evaluation",
    *,
    count: int | None = None,
    seed: int = 0,
    config: LMCConfig | None = None,
    cache: bool = True,
) -> np.ndarray:
    """Returns clip(0.01·x + noise, −0.3, 0.8) of LMC series x, (series, time, assets).

    `market` is one of `MARKETS` and `split` one of `SPLITS`; no series is in two splits. A series depends only on
    the seed and its number: the first ten of thirty are the same as the first ten of a hundred, and the three
    markets share their series and their noise, at three levels.
    """
    deviation = _choose("market", market, MARKETS)
    first, default = _choose("split", split, SPLITS)
    number = validate_count("count", default if count is None else count)
    series = lmc_set(number, config, seed=seed, first=first, cache=cache)
    noise = np.zeros_like(series)
    if deviation:
        for i in range(number):
            noise[i] = deviation * lmc_generator(seed, first + i, _NOISE_STREAM).standard_normal(series.shape[1:])
    return synthetic_to_returns(series, noise)


def synthetic_to_returns(series: np.ndarray, noise: np.ndarray | float = 0.0) -> np.ndarray:
    """clip(0.01·x + noise, −0.3, 0.8)"""
    return np.clip(_SCALE * series + noise, _LOWEST, _HIGHEST)


def synthetic_oracle(
    market: str = "clean",
    split: str = "evaluation",
    turnover_l1: Sequence[float] = BUDGETS,
    *,
    count: int | None = None,
    seed: int = 0,
    config: LMCConfig | None = None,
    cache: bool = True,
    risk_aversion: float = RISK_AVERSION,
) -> np.ndarray:
    """`oracle_path` of `synthetic_returns` for several budgets, (series, budgets, time, assets), kept on disk."""
    number = validate_count("count", _choose("split", split, SPLITS)[1] if count is None else count)
    key = {"kind": "oracle", "version": _VERSION, "market": market, "split": split, "count": number, "seed": seed}
    key |= {**asdict(config or LMCConfig()), "budgets": [float(g) for g in turnover_l1]}
    key |= {"window": WINDOW, "risk_aversion": risk_aversion}

    def make() -> np.ndarray:
        returns = synthetic_returns(market, split, count=number, seed=seed, config=config, cache=cache)
        return np.asarray(oracle_path(returns, list(turnover_l1), risk_aversion))

    return cached_array(key, make, enabled=cache)


def _choose(name: str, value: str, table: dict[str, T]) -> T:
    validate_choice(name, value, table)
    return table[value]
