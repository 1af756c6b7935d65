"""How much of a figure is luck: 95 % intervals by the stationary bootstrap, the same draws for every strategy."""

from __future__ import annotations

import numpy as np
import pandas as pd

from time2decide.decisions.backtest import Backtest
from time2decide.decisions.histories import stationary_places

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
    rows = result.summary.copy()
    nets = {
        key: group["net"].to_numpy()
        for key, group in result.frame[result.frame["series"] == 0].groupby(["strategy", "turnover_l1"], sort=False)
    }
    length = len(next(iter(nets.values())))
    places = stationary_places(length, draws, min(block, float(length)), np.random.default_rng(seed))
    drawn = {key: _statistics(net, places, periods_per_year) for key, net in nets.items()}
    for place, row in enumerate(rows.to_dict(orient="records")):
        key = (row["strategy"], row["turnover_l1"])
        returns, sharpe = drawn[key]
        columns = {"annual_return": returns, "sharpe": sharpe}
        base = ("uniform", row["turnover_l1"])
        if base in drawn:
            columns["sharpe_excess"] = sharpe - drawn[base][1]
            own = (nets[key], nets[base])
            middle = [_sharpe(net, periods_per_year) for net in own]
            rows.loc[rows.index[place], "sharpe_excess"] = middle[0] - middle[1]
        for name, values in columns.items():
            low, high = np.quantile(values, _QUANTILES)
            rows.loc[rows.index[place], [f"{name}_low", f"{name}_high"]] = [float(low), float(high)]
    return rows


def _statistics(net: np.ndarray, places: np.ndarray, periods_per_year: float) -> tuple[np.ndarray, np.ndarray]:
    """Annual growth and Sharpe ratio of every draw, (draws,) each."""
    sample = net[places]  # (draws, time)
    growth = np.expm1(np.log1p(np.maximum(sample, -1 + 1e-12)).mean(axis=1) * periods_per_year)
    deviation = sample.std(axis=1, ddof=1)
    ratio = sample.mean(axis=1) / np.where(deviation > 0, deviation, np.inf)
    return growth, ratio * np.sqrt(periods_per_year)


def _sharpe(net: np.ndarray, periods_per_year: float) -> float:
    deviation = net.std(ddof=1)
    return float(net.mean() / deviation * np.sqrt(periods_per_year)) if deviation > 0 else 0.0
