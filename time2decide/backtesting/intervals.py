"""How much of a figure is luck: 95 % intervals by the stationary bootstrap, the same draws for every strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from time2decide.backtesting.walk_forward import Backtest
from time2decide.policy.histories import stationary_places

DRAWS = 1000
BLOCK = 20.0  # mean length of the blocks: longer than the memory of volatility within a month
_QUANTILES = (0.025, 0.975)


def with_intervals(
    result: Backtest, *, periods_per_year: float = 252.0, draws: int = DRAWS, block: float = BLOCK, seed: int = 0
) -> pd.DataFrame:
    """The summary of a backtest of one series with intervals beside it.

    Adds `annual_return_low/high`, `sharpe_low/high` of the net returns, and `sharpe_excess(_low/_high)`, the
    difference in Sharpe ratio from 1/m (`uniform`) on the same draws, if that is among the strategies: the paired
    difference is far more certain than either ratio.
    """
    rows = result.summary
    nets = {
        key: group["net"].to_numpy()
        for key, group in result.frame[result.frame["series"] == 0].groupby(["strategy", "turnover_l1"], sort=False)
    }
    length = len(next(iter(nets.values())))
    places = stationary_places(length, draws, min(block, float(length)), np.random.default_rng(seed))
    drawn = {key: _statistics(net, places, periods_per_year) for key, net in nets.items()}
    added = [_intervals(row["strategy"], row["turnover_l1"], nets, drawn, periods_per_year) for row in _records(rows)]
    return pd.concat([rows, pd.DataFrame(added, index=rows.index)], axis=1)


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = rows.to_dict(orient="records")
    return records


def _intervals(
    name: str, budget: float, nets: dict[Any, np.ndarray], drawn: dict[Any, Any], periods_per_year: float
) -> dict[str, float]:
    """The added columns of one row."""
    key, base = (name, budget), ("uniform", budget)
    columns = dict(zip(("annual_return", "sharpe"), drawn[key], strict=True))
    added = {}
    if base in drawn:
        columns["sharpe_excess"] = drawn[key][1] - drawn[base][1]
        added["sharpe_excess"] = _sharpe(nets[key], periods_per_year) - _sharpe(nets[base], periods_per_year)
    for column, values in columns.items():
        low, high = np.quantile(values, _QUANTILES)
        added |= {f"{column}_low": float(low), f"{column}_high": float(high)}
    return added


def _statistics(net: np.ndarray, places: np.ndarray, periods_per_year: float) -> tuple[np.ndarray, np.ndarray]:
    """Annual growth and Sharpe ratio of every draw, (draws,) each."""
    sample = net[places]  # (draws, time)
    growth = np.expm1(np.log1p(np.maximum(sample, -1 + 1e-12)).mean(axis=1) * periods_per_year)
    deviation = sample.std(axis=1, ddof=1) if len(net) > 1 else np.zeros(len(sample))
    ratio = sample.mean(axis=1) / np.where(deviation > 0, deviation, np.inf)
    return growth, ratio * np.sqrt(periods_per_year)


def _sharpe(net: np.ndarray, periods_per_year: float) -> float:
    deviation = net.std(ddof=1) if len(net) > 1 else 0.0
    return float(net.mean() / deviation * np.sqrt(periods_per_year)) if deviation > 0 else 0.0
