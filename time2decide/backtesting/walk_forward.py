"""Walk-forward comparison of strategies on one table of returns, with costs: a tidy DataFrame and a summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd

from time2decide.backtesting.baselines import oracle_rollout
from time2decide.backtesting.registry import choose
from time2decide.core.validation import ArrayLike, InputError, validate_positive
from time2decide.markets.allocation import validate_budgets
from time2decide.markets.oracle import RISK_AVERSION, WINDOW, oracle_path
from time2decide.markets.tables import load_returns
from time2decide.simulation.engine import Rollout, Strategy, rollout, validate_simulation_returns
from time2decide.simulation.metrics import performance, score, traded, utility_path

_RUIN_BPS = 5000.0  # at this cost a full change of the portfolio, ‖Δ‖₁ = 2, takes all wealth


@dataclass(frozen=True)
class Backtest:
    """The outcome of `backtest`.

    Attributes
    ----------
    frame : DataFrame
        One row per strategy, budget, series and step: `gross` return, `cost`, `net` return, `wealth` of 1 invested
        at the start, `turnover` ‖s_t − s_{t−1}‖₁ and `traded`, the same against the weights after drift; `regret`,
        the oracle's utility of that step minus the strategy's.
    summary : DataFrame
        One row per strategy and budget, means over series.
    rollouts : list of Rollout
        The weights of every step.
    """

    frame: pd.DataFrame
    summary: pd.DataFrame
    assets: list[str]
    rollouts: list[Rollout] = field(repr=False)

    def weights(self, strategy: str, turnover_l1: float, series: int = 0) -> pd.DataFrame:
        """The weights that a strategy held, one row per step and one column per asset."""
        for result in self.rollouts:
            place = np.flatnonzero(result.turnover_l1 == turnover_l1)
            if result.name == strategy and place.size:
                held = result.allocations[series, place[0], result.window :]
                steps = pd.Index(self.frame["time"].unique(), name="time")
                return pd.DataFrame(held, index=steps, columns=self.assets)
        known = sorted({(r.name, float(g)) for r in self.rollouts for g in r.turnover_l1})
        raise InputError(f"strategy: expected one of {known}, found {(strategy, turnover_l1)}")


def backtest(
    returns: ArrayLike | pd.DataFrame,
    strategies: Sequence[str | Strategy],
    turnover_l1: float | Sequence[float] = 1.0,
    *,
    cost_bps: float = 10.0,
    risk_aversion: float = RISK_AVERSION,
    window: int = WINDOW,
    periods_per_year: float = 252.0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Backtest:
    """Run strategies step by step over the same returns; each sees only what lies before the step it decides.

    Parameters
    ----------
    returns : DataFrame (dates × assets), array (time, assets) or (series, time, assets)
        Simple returns per period. A DataFrame is checked as `load_returns` does.
    strategies : names or Strategy objects
        Names are those of `REGISTRY`, and "oracle" for the one that knows each next return.
    turnover_l1 : number or several
        Budget γ on ‖s_t − s_{t−1}‖₁ per step.
    cost_bps : float
        Cost of a trade in basis points of the amount traded (bought plus sold), charged on drifted weights.
    periods_per_year : float
        For annual figures.
    progress : function of (strategy, step, steps), optional
        Called before every decision.
    """
    table = load_returns(returns) if isinstance(returns, pd.DataFrame) else None
    array = validate_simulation_returns(returns if table is None else table.to_numpy(), window)
    steps = pd.RangeIndex(array.shape[1]) if table is None else table.index
    assets = [f"asset {i}" for i in range(array.shape[2])] if table is None else list(table.columns)
    cost = validate_positive("cost_bps", cost_bps, allow_zero=True)
    if cost >= _RUIN_BPS:
        raise InputError(f"cost_bps: expected less than {_RUIN_BPS:g} basis points, found {cost_bps}")
    validate_positive("periods_per_year", periods_per_year)
    chosen = choose(strategies)
    budgets = validate_budgets(turnover_l1)
    _wealth(
        array[:, window:].mean(-1), array, periods_per_year
    )  # of equal weights: what is hopeless is told before the work
    oracle = np.asarray(oracle_path(array, budgets.tolist(), risk_aversion, window))
    best = utility_path(array, oracle, risk_aversion, window)
    frames, rows, rollouts = [], [], []
    for strategy in chosen:
        if isinstance(strategy, str):
            result = oracle_rollout(oracle, budgets, window, risk_aversion)
        else:
            result = rollout(
                array,
                strategy,
                budgets.tolist(),
                risk_aversion=risk_aversion,
                window=window,
                oracle=oracle,
                progress=None if progress is None else partial(progress, strategy.name),
            )
        frame = _steps_frame(result, array, steps, cost / 1e4, periods_per_year)
        frame["regret"] = (best - utility_path(array, result.allocations, risk_aversion, window)).ravel()
        frames.append(frame)
        rows.extend(_summary_rows(result, array, oracle, frame, periods_per_year))
        rollouts.append(result)
    return Backtest(pd.concat(frames, ignore_index=True), pd.DataFrame(rows), assets, rollouts)


def _steps_frame(
    result: Rollout, returns: np.ndarray, steps: pd.Index, cost: float, periods_per_year: float
) -> pd.DataFrame:
    start = result.window
    held = result.allocations[:, :, start:]
    gross = np.einsum("nktm,ntm->nkt", held, returns[:, start:])
    amount = traded(result.allocations, returns, start)
    turnover = np.abs(np.diff(result.allocations[:, :, start - 1 :], axis=2)).sum(-1)
    net = (1 - cost * amount) * (1 + gross) - 1  # the cost is paid from wealth before the return is earned
    series, budgets, length = gross.shape
    grid = np.indices(gross.shape)
    columns = {
        "strategy": result.name,
        "turnover_l1": result.turnover_l1[grid[1].ravel()],
        "series": grid[0].ravel(),
        "time": np.tile(steps[start:].to_numpy(), series * budgets),
        "gross": gross.ravel(),
        "cost": (cost * amount).ravel(),
        "net": net.ravel(),
        "wealth": _wealth(net, returns, periods_per_year).ravel(),
        "turnover": turnover.ravel(),
        "traded": amount.ravel(),
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(series * budgets * length))


def _wealth(net: np.ndarray, returns: np.ndarray, periods_per_year: float) -> np.ndarray:
    """What 1 has become after every step, along the last axis; raises where that, or a year of it, overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        wealth: np.ndarray = np.cumprod(1 + net, axis=-1)
        year = wealth[..., -1] ** (periods_per_year / net.shape[-1])
    if not (np.isfinite(wealth).all() and np.isfinite(year).all()):
        raise InputError(f"returns: expected returns that keep wealth finite, found returns up to {returns.max():.3g}")
    return wealth


def _summary_rows(
    result: Rollout, returns: np.ndarray, oracle: np.ndarray, frame: pd.DataFrame, periods_per_year: float
) -> list[dict[str, float | str]]:
    net = frame["net"].to_numpy().reshape(len(returns), len(result.turnover_l1), -1)  # (series, budgets, steps)
    amount = frame["traded"].to_numpy().reshape(net.shape)
    rows: list[dict[str, float | str]] = []
    for k, scores in enumerate(score(result, returns, oracle).rows()):
        investor = [performance(path, periods_per_year) for path in net[:, k]]
        means = {key: float(np.mean([one[key] for one in investor])) for key in investor[0]}
        rows.append(
            {
                "strategy": result.name,
                "turnover_l1": float(result.turnover_l1[k]),
                **means,
                "turnover": scores["turnover"],
                "traded": float(amount[:, k].mean()),
                "utility": scores["utility"],
                "regret": scores["regret"],
                "mse": scores["mse"],
                "mse_projected": scores["mse_projected"],
            }
        )
    return rows
