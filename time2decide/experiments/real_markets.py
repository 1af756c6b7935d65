"""Real markets, walk-forward, net of costs, with paired intervals.

Protocol: a decision at every row from past returns alone, long-only and fully invested, the first at row 520 or half
way through a shorter table. It is traded at the next close, within a turnover budget of 0.1 measured from the drifted
weights, at 10 basis points of what is traded. Baselines are delayed alike and refitted every month (21 days). The same
at the close of the decision, which nobody can trade at, stands beside it. Utility is mean − λ · variance of net
returns, per row; differences are paired, with 95 % intervals of the stationary block bootstrap.

The S&P 500 set of skfolio is always there. Other universes are tables of prices or returns named by the environment
variable TIME2DECIDE_MARKETS (paths separated as in PATH; empty cells are kept as assets that come and go). A path that
ends in @week or @month is read in weeks or months. Rows hold figures and a fingerprint of the data, never the data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from time2decide.backtesting.registry import REGISTRY, make_strategy
from time2decide.core.provenance import json_digest
from time2decide.core.table import Table
from time2decide.core.validation import InputError, expect
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.markets.periods import YEAR, Frequency, frequency_of
from time2decide.markets.tables import load_market
from time2decide.markets.universe import Universe, universe_of
from time2decide.policy.market_decision import MarketStrategy, SharedReading
from time2decide.simulation.engine import rollout
from time2decide.simulation.metrics import PairedBootstrap, net_returns, realised_utility, sharpe_ratio

MARKETS_VARIABLE = "TIME2DECIDE_MARKETS"
FIRST = 520  # rows before the first decision: two years of days
DELAYS = (1, 0)  # rows between a decision and its trade: the next close, and the close of the decision
#: Those that the others are compared with, pair by pair.
REFERENCES = ("uniform", "minimum-variance", "two-scale-minvar", "market-risk")
STRATEGIES = (
    *("market", *REFERENCES, "inverse-volatility"),
    *("minimum-variance-qis", "minimum-variance-ewma", "minimum-variance-iewma"),
    *("mean-variance-lw", "mean-variance-qis", "mean-variance-ewma", "mean-variance-iewma"),
    *("hierarchical", "risk-budgeting", "pto-ridge", "pooled-rule"),
)
_FULL: Config = {"budgets": [0.1], "risk_aversions": [2.0, 25.0], "costs_bps": [10.0]}
_SMOKE: Config = {"budgets": [0.1], "risk_aversions": [25.0], "costs_bps": [10.0], "last": FIRST + 40}
_SMOKE_STRATEGIES = ("uniform", "minimum-variance", "minimum-variance-iewma", "pooled-rule")
_CLOSE = {1: "at the next close", 0: "at the same close (nobody can)"}
_EVERY = {"week": ("W", 5), "month": ("M", 21)}  # a period of dates, and rows of a table without
#: γ, λ and cost -> net returns and turnover, (series, steps) each.
Paths = dict[tuple[float, float, float], tuple[np.ndarray, np.ndarray]]


def real_market_sources() -> dict[str, str]:
    """Name of a universe -> where it is read from: sp500, and the files of TIME2DECIDE_MARKETS by their stems."""
    found = {"sp500": "sp500"}
    for text in filter(None, os.environ.get(MARKETS_VARIABLE, "").split(os.pathsep)):
        path, at, every = text.partition("@")
        found[Path(path).name.split(".")[0] + at + every] = text
    return found


@lru_cache(maxsize=8)
def _load(source: str, last: int | None) -> tuple[Universe, Frequency, str]:
    """A universe, how often it has rows, and the fingerprint of its returns."""
    path, _, every = source.partition("@")
    table, _ = load_market(path, gaps="keep")
    table = (table if not every else _compounded(table, every)) if last is None else table.iloc[-last:]
    array = table.to_numpy()
    found = json_digest({"assets": list(table.columns), "shape": list(array.shape), "values": array.tobytes().hex()})
    return universe_of(array, min(FIRST, len(array) // 2)), frequency_of(table.index), found


def _compounded(table: pd.DataFrame, every: str) -> pd.DataFrame:
    """Returns over weeks or months, at their last dates."""
    expect(every in _EVERY, MARKETS_VARIABLE, f"one of {', '.join(_EVERY)} after @", every)
    period, rows = _EVERY[every]
    if not isinstance(table.index, pd.DatetimeIndex):
        return (1 + table).groupby(np.arange(len(table)) // rows).prod(min_count=1) - 1
    groups = table.index.to_period(period)
    found = (1 + table).groupby(groups).prod(min_count=1) - 1
    return found.set_axis(table.index.to_series().groupby(groups).max())


def real_market_tasks(preset: str) -> list[Config]:
    """One task per universe, delay and strategy; a strategy is left out while the registry does not have it."""
    chosen, cells = (_SMOKE_STRATEGIES, _SMOKE) if preset == "smoke" else (STRATEGIES, _FULL)
    found = []
    for name, source in real_market_sources().items():
        market, _, fingerprint = _load(source, cells.get("last"))
        common = {"universe": name, "data": fingerprint, **cells, "first": market.window, "seed": 0}
        found += [
            {**common, "strategy": strategy, "delay": delay} | policy_fingerprint(strategy)
            for delay in DELAYS
            for strategy in chosen
            if strategy in REGISTRY
        ]
    return found


def policy_fingerprint(strategy: str) -> Config:
    """The fingerprint of the policy, for rows of a strategy that has one."""
    made = make_strategy(strategy)
    return {"network": made.policy.fingerprint} if isinstance(made, MarketStrategy) else {}


def run_real_market(config: Config) -> list[Row]:
    """Figures of a strategy in every cell (γ, λ, cost), and differences from the references on the same days."""
    source = real_market_sources().get(config["universe"])
    if source is None:
        raise InputError(f"{MARKETS_VARIABLE}: expected the file of {config['universe']}, found none")
    market, frequency, fingerprint = _load(source, config.get("last"))
    expect(fingerprint == config["data"], source, f"the data of fingerprint {config['data']}", fingerprint)
    key = (
        source,
        config.get("last"),
        config["delay"],
        *(tuple(config[one]) for one in ("budgets", "risk_aversions", "costs_bps")),
    )
    own = _paths(config["strategy"], *key)
    others = {name: _paths(name, *key) for name in REFERENCES}
    steps, periods = len(market.returns) - market.window, frequency.scale
    bootstrap = PairedBootstrap(steps, seed=config["seed"])
    rows = []
    for (budget, risk, cost), ((net,), traded) in own.items():
        row = {
            "turnover_l1": budget,
            "risk_aversion": risk,
            "cost_bps": cost,
            "utility": float(realised_utility(net, risk)),
            "annual_mean": float(net.mean() * periods),
            "volatility": float(net.std() * np.sqrt(periods)),
            "sharpe": float(sharpe_ratio(net, periods)),
            "traded": float(traded.mean()),
            "steps": steps,
            "assets": market.returns.shape[1],
        }
        for name, paths in others.items():
            row |= _difference(name, net, paths[budget, risk, cost][0][0], risk, periods, bootstrap)
        rows.append(row)
    return rows


def _difference(
    name: str, net: np.ndarray, base: np.ndarray, risk: float, periods: float, bootstrap: PairedBootstrap
) -> Row:
    """Utility and Sharpe ratio less those of a reference in the same rows, with their 95 % intervals."""
    mean, variance = bootstrap.moments(np.stack([net, base]))
    with np.errstate(divide="ignore", invalid="ignore"):
        sharpe = np.nan_to_num(mean / np.sqrt(variance), posinf=0.0, neginf=0.0) * np.sqrt(periods)
    points = [
        ("over", mean - risk * variance, realised_utility(net, risk) - realised_utility(base, risk)),
        ("sharpe_over", sharpe, sharpe_ratio(net, periods) - sharpe_ratio(base, periods)),
    ]
    row: Row = {}
    for key, drawn, value in points:
        low, high = bootstrap.interval(drawn[0] - drawn[1])
        row |= {f"{key}_{name}": float(value), f"{key}_{name}_low": float(low), f"{key}_{name}_high": float(high)}
    return row


@lru_cache(maxsize=1)
def _shared(source: str, last: int | None, delay: int) -> SharedReading:
    """What the market policy has read of a market: `market` and `market-risk`, at every λ, read it once."""
    return SharedReading()


@lru_cache(maxsize=len(REFERENCES) + 1)
def _paths(
    name: str,
    source: str,
    last: int | None,
    delay: int,
    budgets: tuple[float, ...],
    risks: tuple[float, ...],
    costs: tuple[float, ...],
) -> Paths:
    """`real_market_net_paths` of a strategy on a universe."""
    strategy = make_strategy(name)
    if isinstance(strategy, MarketStrategy):
        strategy.shared = _shared(source, last, delay)
    market, frequency, _ = _load(source, last)
    when: dict[str, Any] = {"delay": delay, "periods_per_year": frequency.assumed}
    return real_market_net_paths(market, strategy, budgets, risks, costs, **when)


def real_market_net_paths(
    market: np.ndarray | Universe,
    strategy: Any,
    budgets: Sequence[float],
    risks: Sequence[float],
    costs: Sequence[float],
    window: int = FIRST,
    delay: int = 1,
    periods_per_year: float = YEAR,
) -> Paths:
    """Run a strategy for every cell (γ, λ, cost); budgets and costs are measured from drifted weights.

    Decisions that do not depend on λ or on the cost are made once for all of them.
    """
    returns = market.returns[None] if isinstance(market, Universe) else market  # (series, time, m)
    by_risk, by_cost = getattr(strategy, "uses_risk_aversion", True), getattr(strategy, "uses_cost", True)
    options: dict[str, Any] = {"window": window, "budget_from": "drifted", "delay": delay}
    options["periods_per_year"] = periods_per_year
    found: Paths = {}
    for risk in risks if by_risk else risks[:1]:
        for cost in costs if by_cost else costs[:1]:
            result = rollout(market, strategy, budgets, risk_aversion=risk, cost_bps=cost, **options)
            for paid in (cost,) if by_cost else costs:
                net, traded = net_returns(result, returns, paid)
                for k, budget in enumerate(budgets):
                    for same in (risk,) if by_risk else risks:
                        found[budget, same, paid] = net[:, k], traded[:, k]
    return found


def real_market_tables(rows: list[Row]) -> list[Table]:
    """One table per universe and λ, at the next close and at the same one, then mean ranks over universes.

    Rows of the protocol before the delay are left out.
    """
    rows = [row for row in rows if "delay" in row]
    groups = grouped_rows(rows, "universe", "risk_aversion", "delay").items()
    tables = [_universe_table(name, here) for (name, _, _), here in groups]
    return tables + [_rank_table(here, delay) for delay, here in grouped_rows(rows, "delay").items()]


def _universe_table(name: str, rows: list[Row]) -> Table:
    """Figures and differences of the strategies on one universe, best Sharpe ratio first."""
    lines = []
    for row in sorted(rows, key=lambda one: -one["sharpe"]):
        differences = [_interval(row, f"sharpe_over_{reference}") for reference in REFERENCES]
        figures = [f"{row['sharpe']:.2f}", f"{row['volatility']:.4f}", f"{1e4 * row['utility']:.2f}"]
        lines.append([row["strategy"], *figures, f"{row['traded']:.4f}", *differences])
    columns = ["strategy", "Sharpe", "volatility", "utility", "traded", *(f"Sharpe − {one}" for one in REFERENCES)]
    first = rows[0]
    caption = (
        f"{name}: {first['assets']} assets, {first['steps']} rows, γ = {first['turnover_l1']:g}, "
        f"{first['cost_bps']:g} bp, λ = {first['risk_aversion']:g}, traded {_CLOSE.get(first['delay'], 'later')}"
    )
    note = (
        "Net of costs; Sharpe ratio and volatility a year, a row where a year is unknown. Utility in bp a row: mean − "
        f"λ · variance. 95 % intervals of paired differences by block bootstrap. Data {first['data']}."
    )
    return Table(caption, columns, lines, note)


def _interval(row: Row, key: str) -> str:
    return f"{row[key]:+.2f} [{row[f'{key}_low']:+.2f}, {row[f'{key}_high']:+.2f}]"


def _rank_table(rows: list[Row], delay: int) -> Table:
    """Ranks of net utility (1 is best), mean over universes and costs; only universes that have every strategy."""
    names = list(grouped_rows(rows, "strategy"))
    cells = sorted({(row["turnover_l1"], row["risk_aversion"]) for row in rows})
    ranks: dict[tuple[float, float], dict[str, list[float]]] = {cell: {name: [] for name in names} for cell in cells}
    for (_, budget, risk, _), here in grouped_rows(
        rows, "universe", "turnover_l1", "risk_aversion", "cost_bps"
    ).items():
        if len(here) < len(names):
            continue
        values = np.array([row["utility"] for row in here])
        for row in here:
            better = (values > row["utility"]).sum() + ((values == row["utility"]).sum() - 1) / 2
            ranks[budget, risk][row["strategy"]].append(1 + float(better))
    mean = {
        name: [float(np.mean(ranks[cell][name])) if ranks[cell][name] else np.nan for cell in cells] for name in names
    }
    order = sorted(names, key=lambda name: float(np.nanmean(mean[name])) if not np.isnan(mean[name]).all() else np.inf)
    lines = [[name, *(f"{value:.1f}" for value in mean[name])] for name in order]
    columns = ["strategy", *(f"γ = {budget:g}, λ = {risk:g}" for budget, risk in cells)]
    universes = ", ".join(grouped_rows(rows, "universe"))
    caption = f"Mean rank of net utility over universes and costs, traded {_CLOSE.get(delay, 'later')} ({universes})"
    return Table(caption, columns, lines, "1 is best.")


EXPERIMENTS = (
    Experiment(
        id="real-markets",
        title="Real markets: every strategy net of costs over universes, with paired intervals",
        paper="– (beyond the paper)",
        presets={"smoke": "20 s", "cpu": "3 to 10 min a universe"},
        tasks=real_market_tasks,
        run=run_real_market,
        tables=real_market_tables,
        open_ended=True,
    ),
)
