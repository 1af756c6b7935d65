"""Walk-forward comparison of strategies on one table of returns, with costs: steps, a summary, and intervals.

What is measured is what could have been traded: weights decided at a close are traded at the next one unless told
otherwise, drift with the returns, and what is not invested earns the cash return of the constraints.

Intervals are 95 % by the stationary bootstrap with the same draws for every strategy: a paired difference is far more
certain than either of its parts. `backtest_findings` says in sentences what the intervals support.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from time2decide.backtesting.baselines import oracle_rollout
from time2decide.backtesting.registry import ORACLE, make_strategies
from time2decide.core.validation import ArrayLike, InputError, expect, validate_interval, validate_positive
from time2decide.data.check import load_history
from time2decide.data.findings import Finding
from time2decide.data.terms import check_terms
from time2decide.markets.constraint_files import constraints_for
from time2decide.markets.constraints import Constraints, refuse_contradictions
from time2decide.markets.oracle import RISK_AVERSION, WINDOW, validate_oracle_budgets
from time2decide.markets.periods import Frequency, frequency_of
from time2decide.markets.universe import DELISTING_RETURN, Universe, universe_of
from time2decide.markets.validation import validate_any_weights, validate_delay
from time2decide.policy.market_decision import RISK_AVERSION as MARKET_RISK_AVERSION
from time2decide.simulation.engine import (
    Rollout,
    Strategy,
    oracle_for_rollout,
    rollout,
    validate_cost,
    validate_simulation_returns,
)
from time2decide.simulation.execution import drifted_weights, portfolio_returns
from time2decide.simulation.metrics import (
    PairedBootstrap,
    annual_performance,
    gross_returns,
    net_returns,
    realised_utility,
    rollout_turnover,
    score,
    utility_path,
)

_DRAWS = 1000
_BLOCK = 20.0  # mean length of the blocks: longer than the memory of volatility within a month
_ONE_THREAD = 256  # assets up to which threads of the linear algebra only wait for each other
_STILL = 1e-12  # volatility below which nothing moves


@dataclass(frozen=True)
class Backtest:
    """The outcome of `backtest`.

    Attributes
    ----------
    frame : DataFrame
        One row per strategy, budget, series and row of the table: `gross` return, `cost`, `net` return, `wealth` of 1
        invested at the start, `turnover` from the weights that the budget is measured from (`budget_from`) and
        `traded`, the same from the weights after drift; `regret`, the oracle's utility of that row minus the
        strategy's.
    summary : DataFrame
        One row per strategy and budget, means over series. Annual figures are per row where a year is unknown.
    rollouts : list of Rollout
        The weights held in every row.
    cost_bps : float
        Cost of a trade; λ, γ, the window and the delay are those of the rollouts.
    frequency : Frequency
        How often the table has rows, and whether figures are stated for a year or a row.
    returns : array (series, time, assets)
        What the assets earned, 0 where there was no return.
    findings : tuple of Finding
        What was found in the data, and accepted.
    """

    frame: pd.DataFrame
    summary: pd.DataFrame
    assets: list[str]
    rollouts: list[Rollout] = field(repr=False)
    cost_bps: float
    frequency: Frequency
    returns: np.ndarray = field(repr=False)
    findings: tuple[Finding, ...] = ()

    @property
    def periods_per_year(self) -> float:
        """Rows that annual figures are stated for: those of a year, or 1 where a year is unknown."""
        return self.frequency.scale

    @property
    def delay(self) -> int:
        """Rows between a decision and its trade; the oracle, which is no strategy, has none."""
        return max(one.delay for one in self.rollouts)

    def returns_series(self, strategy: str, turnover_l1: float | None = None, series: int = 0) -> pd.Series:
        """Net returns of a strategy by time, as quantstats, pyfolio and pandas take them; the first budget by default.

        Of a table with dates the index is a DatetimeIndex.
        """
        frame, budgets = self.frame, list(dict.fromkeys(self.frame["turnover_l1"]))
        budget = budgets[0] if turnover_l1 is None else turnover_l1
        rows = frame[(frame["strategy"] == strategy) & (frame["turnover_l1"] == budget) & (frame["series"] == series)]
        known = sorted(set(frame["strategy"]))
        expect(len(rows), "strategy", f"one of {known} with a budget of {budgets}", (strategy, turnover_l1, series))
        return pd.Series(rows["net"].to_numpy(), index=pd.Index(rows["time"], name="time"), name=strategy)

    def to_skfolio(self, series: int = 0) -> Any:
        """A Population of skfolio, for its measures and plots: one MultiPeriodPortfolio per strategy and budget.

        Every step is one Portfolio with its weights, the drifted weights before it and the cost of the trade.
        Returns are those of the backtest, costs included, to rounding.
        """
        try:
            from skfolio import Population
        except ImportError:
            found = "none; pip install 'time2decide[skfolio]'"
            raise InputError(f"skfolio: expected it to be installed, found {found}") from None
        validate_interval("series", series, f"[0, {len(self.returns) - 1}]")
        return Population(
            [_skfolio_portfolio(self, one, k, series) for one in self.rollouts for k in range(len(one.turnover_l1))]
        )

    def weights(self, strategy: str, turnover_l1: float, series: int = 0) -> pd.DataFrame:
        """The weights that a strategy held in each row, after its trade at the close before, one column per asset."""
        for result in self.rollouts:
            place = np.flatnonzero(result.turnover_l1 == turnover_l1)
            if result.name == strategy and place.size:
                weights = result.allocations[series, place[0], result.window :]
                steps = pd.Index(self.frame["time"].unique(), name="time")
                return pd.DataFrame(weights, index=steps, columns=self.assets)
        known = sorted({(r.name, float(g)) for r in self.rollouts for g in r.turnover_l1})
        raise InputError(f"strategy: expected one of {known}, found {(strategy, turnover_l1)}")


def backtest(
    returns: ArrayLike | pd.DataFrame,
    strategies: Sequence[str | Strategy],
    turnover_l1: float | Sequence[float] = 1.0,
    *,
    cost_bps: float = 10.0,
    risk_aversion: float | None = None,
    window: int = WINDOW,
    delay: int = 1,
    periods_per_year: float | None = None,
    budget_from: str | None = None,
    constraints: Constraints | str | Path | None = None,
    benchmark: ArrayLike | pd.Series | None = None,
    min_trade: float = 0.0,
    gaps: str = "refuse",
    accept: Sequence[str] | str = (),
    findings: Sequence[Finding] | None = None,
    delisting_return: float = DELISTING_RETURN,
    progress: Callable[[str, int, int], None] | None = None,
) -> Backtest:
    """Run strategies step by step over the same returns; each sees only what lies before the step it decides.

    Weights of step t are decided on data up to the close of row t − 1, from row `window` on. They are traded at the
    close of row t − 1 + delay within the budget measured then, at the cost of what is traded, and held in row
    t + delay. Before its first trade a strategy holds equal weights, which drift.

    Parameters
    ----------
    returns : DataFrame (dates × assets), array (time, assets) or (series, time, assets)
        Simple returns per period. A DataFrame is checked as `load_returns` does.
    strategies : names or Strategy objects
        Names are those of `registry.REGISTRY`, and "oracle" for the one that knows each next return.
    turnover_l1 : number or several
        Budget γ per step on the ℓ1 distance from the current weights, before the decision.
    cost_bps : float
        Cost of a trade in basis points of the amount traded (bought plus sold), charged on drifted weights.
    risk_aversion : float, optional
        λ of the utility. By default 2 for a DataFrame, which is a real market, and the paper's 0.1 for arrays.
    delay : int
        Rows between a decision and its trade; 1 is the next close. 0 is the close that the decision is made from, at
        which nobody can trade.
    periods_per_year : float, optional
        Rows in a year, for annual figures and for what policies assume of a year. By default as the dates of a
        DataFrame say; without dates figures are per row, not per year.
    budget_from : {"drifted", "previous"}, optional
        Whether the budget is measured from the weights after drift or from the weights chosen a step before (the
        paper's convention). After drift for a DataFrame, which holds a real market, by default.
    constraints : Constraints or path of a TOML or CSV file, optional
        What every strategy's weights must meet. Strategies that optimise (`market`, `market-risk`, `pto-*`,
        `minimum-variance*`, `mean-variance*`, `two-scale-minvar`, `pooled-rule`) solve their problem under them; the
        answers of the others are projected onto them. The oracle, which regret is measured from, stays long-only and
        fully invested. Where the budget does not reach the constraints, weights go towards them as far as it allows.
    benchmark : (m,), or Series by asset, optional
        Weights that risk is measured from in strategies that optimise by `solve_portfolio`: all those above except
        `minimum-variance` and `mean-variance-shrunk`, which are skfolio's.
    min_trade : float in [0, 1]
        Smallest trade, in weights, of strategies that solve their problem at every step (`market`, `market-risk`,
        `pto-*`, `two-scale-minvar`, `pooled-rule`), as in `Time2Decide.decide`; the others trade as they do.
    gaps : {"refuse", "keep"}
        Whether missing returns (NaN) of a DataFrame are refused, or kept as assets that come and go: see
        `markets/universe.py` for who can be bought, held and sold when, and how constraints count. The oracle then
        starts anew from equal weights whenever the universe changes, and sales of assets that are delisted, or come
        back from a long halt, are outside the budget.
    accept : names of findings
        A DataFrame, which is a real market, is checked first (`check_returns`), and so are its constraints and
        benchmark. A finding that stops is an `InputError` unless its name is among these.
    findings : list of Finding, optional
        Those of a DataFrame that is checked already.
    delisting_return : float in [−1, 1]
        What a holding loses on its last price when its column ends, paid out 21 rows later. By default −30 %, the mean
        of stocks delisted for poor performance (Shumway 1997); 0 suits mergers, and stocks that left an index.
    progress : function of (strategy, step, steps), optional
        Called before every decision.
    """
    table, found = load_history(returns, gaps, accept, findings if isinstance(returns, pd.DataFrame) else ())
    expect(table is not None or gaps == "refuse", "returns", "a DataFrame if gaps are kept", type(returns).__name__)
    values = returns if table is None else table.to_numpy()
    changing = gaps == "keep" and np.isnan(values).any()
    validate_interval("delisting_return", delisting_return, "[-1, 1]")
    if changing:
        market: np.ndarray | Universe = universe_of(values, window, delisting_return=delisting_return)
    else:
        market = validate_simulation_returns(values, window)
    array = market.returns[None] if isinstance(market, Universe) else market  # what holdings earn, (series, time, m)
    steps = pd.RangeIndex(array.shape[1]) if table is None else table.index
    assets = [f"asset {i}" for i in range(array.shape[2])] if table is None else list(table.columns)
    cost = validate_cost(cost_bps)
    frequency = frequency_of(None if table is None else table.index, periods_per_year)
    validate_positive("min_trade", min_trade, allow_zero=True, most=1)
    convention = ("previous" if table is None else "drifted") if budget_from is None else budget_from
    if risk_aversion is None:
        risk_aversion = RISK_AVERSION if table is None else MARKET_RISK_AVERSION
    chosen = make_strategies(strategies)
    budgets = validate_oracle_budgets(turnover_l1)
    rules = constraints_for(constraints, None if table is None else assets, len(assets))
    if rules is not None:
        _refuse_contradictions(rules, market, assets, steps)
    reference = None if benchmark is None else validate_any_weights("benchmark", benchmark, len(assets), assets)
    found += () if table is None else check_terms(table.index, rules, reference, accept)
    _wealth(array[:, window:].mean(-1), array, frequency.scale)  # fail early if wealth would overflow
    terms: dict[str, Any] = {"risk_aversion": risk_aversion, "window": window, "budget_from": convention}
    terms |= {"cost_bps": cost, "constraints": rules, "benchmark": reference, "min_trade": min_trade}
    terms |= {"delay": validate_delay(delay), "periods_per_year": frequency.assumed}
    with threadpool_limits(1 if len(assets) <= _ONE_THREAD else None):
        oracle = oracle_for_rollout(market, budgets, risk_aversion, window)
        rollouts = [_run_strategy(strategy, market, steps, budgets, oracle, terms, progress) for strategy in chosen]
    best = utility_path(array, oracle, risk_aversion, window)
    frames, rows = [], []
    for result in rollouts:
        frame = _steps_frame(result, array, steps, cost, frequency.scale)
        own = utility_path(array, result.allocations, risk_aversion, window, result.constraints)
        frame["regret"] = (best - own).ravel()
        frames.append(frame)
        rows.extend(_summary_rows(result, array, oracle, frame, frequency.scale))
    whole, summary = pd.concat(frames, ignore_index=True), pd.DataFrame(rows)
    return Backtest(whole, summary, assets, rollouts, cost, frequency, array, found)


def _run_strategy(
    strategy: Strategy | str,
    market: np.ndarray | Universe,
    steps: pd.Index,
    budgets: np.ndarray,
    oracle: np.ndarray,
    terms: dict[str, Any],
    progress: Callable[[str, int, int], None] | None,
) -> Rollout:
    """The rollout of a strategy, or the oracle's path for its name."""
    if isinstance(strategy, str):
        return oracle_rollout(oracle, budgets, terms["window"], terms["risk_aversion"])
    name, place = strategy.name, 0

    def shown(step: int, count: int) -> None:
        nonlocal place
        place = step
        if progress is not None:
            progress(name, step, count)

    try:
        return rollout(market, strategy, budgets.tolist(), **terms, oracle=oracle, progress=shown)
    except ArithmeticError as error:
        date = str(steps[terms["window"] + place])[:10]
        raise type(error)(f"{name}, {date}: {error}") from error


def _skfolio_portfolio(result: Backtest, one: Rollout, k: int, series: int) -> Any:
    """A strategy at its k-th budget as a MultiPeriodPortfolio.

    skfolio charges costs linearly, r − c‖trade‖₁, the backtest before the return is earned, (1 − c‖trade‖₁)(1 + r) − 1:
    each step is charged c (1 + r), so that both are the same.
    """
    from skfolio import MultiPeriodPortfolio, Portfolio

    first, path, rules = one.window, one.allocations[series, k], one.constraints  # (time, m)
    rows = result.returns[series]
    times, assets = result.frame["time"].unique(), list(map(str, result.assets))
    before = drifted_weights(path[first - 1 : -1], rows[first - 1 : -1], rules)
    before[0] = path[first - 1]  # the first decision starts from the portfolio itself
    rates = result.cost_bps / 1e4 * (1 + portfolio_returns(path[first:], rows[first:], rules))
    weights, earned, free = path[first:], rows[first:], np.ones(len(assets))  # (steps, m)
    if rules is not None and rules.cash_return:  # cash is an asset that costs nothing to trade
        weights, before = (np.column_stack([part, rules.exposure - part.sum(-1)]) for part in (weights, before))
        earned = np.column_stack([earned, np.full(len(earned), rules.cash_return)])
        assets, free = [*assets, "cash"], np.append(free, 0.0)
    table = pd.DataFrame(earned, index=times, columns=assets)
    steps = [
        Portfolio(X=table.iloc[[t]], weights=weights[t], previous_weights=before[t], transaction_costs=rates[t] * free)
        for t in range(len(table))
    ]
    options = {"annualization_factor": result.periods_per_year, "compounded": False}
    return MultiPeriodPortfolio(steps, name=f"{one.name}, γ = {one.turnover_l1[k]:g}", tag=one.name, **options)


def _refuse_contradictions(
    constraints: Constraints, market: np.ndarray | Universe, assets: list[str], steps: pd.Index
) -> None:
    """Raise, with the date, where no portfolio of the assets of the moment meets the constraints."""
    if not isinstance(market, Universe):
        return refuse_contradictions(constraints, assets)
    for segment in market.segments():
        rules = market.terms(segment, constraints, None)[0]
        assert rules is not None
        try:
            refuse_contradictions(rules, [assets[int(i)] for i in segment.assets])
        except InputError as error:
            date = str(steps[segment.start])[:10]
            raise InputError(f"{error} (with the {len(segment.assets)} assets that can be held on {date})") from None
    return None


def _steps_frame(
    result: Rollout, returns: np.ndarray, steps: pd.Index, cost_bps: float, periods_per_year: float
) -> pd.DataFrame:
    start = result.window
    gross = gross_returns(result, returns)
    net, amount = net_returns(result, returns, cost_bps)
    series, budgets, length = gross.shape
    grid = np.indices(gross.shape)
    columns = {
        "strategy": result.name,
        "turnover_l1": result.turnover_l1[grid[1].ravel()],
        "series": grid[0].ravel(),
        "time": np.tile(steps[start:].to_numpy(), series * budgets),
        "gross": gross.ravel(),
        "cost": (cost_bps / 1e4 * amount).ravel(),
        "net": net.ravel(),
        "wealth": _wealth(net, returns, periods_per_year).ravel(),
        "turnover": rollout_turnover(result, returns).ravel(),
        "traded": amount.ravel(),
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(series * budgets * length))


def _wealth(net: np.ndarray, returns: np.ndarray, periods_per_year: float) -> np.ndarray:
    """Wealth of 1 invested, after every step of the last axis; raises where it, or a year of it, overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        wealth: np.ndarray = np.cumprod(1 + net, axis=-1)
        year = wealth[..., -1] ** (periods_per_year / net.shape[-1])
    fits = np.isfinite(wealth).all() and np.isfinite(year).all()
    expect(fits, "returns", "returns that keep wealth finite", f"returns up to {returns.max():.3g}")
    return wealth


def _summary_rows(
    result: Rollout, returns: np.ndarray, oracle: np.ndarray, frame: pd.DataFrame, periods_per_year: float
) -> list[dict[str, float | str]]:
    net = frame["net"].to_numpy().reshape(len(returns), len(result.turnover_l1), -1)  # (series, budgets, steps)
    amount = frame["traded"].to_numpy().reshape(net.shape)
    rows: list[dict[str, float | str]] = []
    for k, scores in enumerate(score(result, returns, oracle).rows()):
        investor = [annual_performance(path, periods_per_year) for path in net[:, k]]
        means = {key: float(np.mean([one[key] for one in investor])) for key in investor[0]}
        rows.append(
            {
                "strategy": result.name,
                "turnover_l1": float(result.turnover_l1[k]),
                **means,
                "turnover": scores["turnover"],
                "traded": float(amount[:, k].mean()),
                "net_utility": float(realised_utility(net[:, k], result.risk_aversion).mean()),
                "utility": scores["utility"],
                "regret": scores["regret"],
                "mse": scores["mse"],
                "mse_projected": scores["mse_projected"],
            }
        )
    return rows


def with_intervals(result: Backtest, *, draws: int = _DRAWS, block: float = _BLOCK, seed: int = 0) -> pd.DataFrame:
    """The summary of a backtest of one series with intervals beside it.

    Adds `_low` and `_high` of `annual_return`, `annual_volatility`, `sharpe` and `net_utility`, all of net returns, and
    `sharpe_excess(_low/_high)`, the difference in Sharpe ratio from 1/N (`uniform`) on the same draws, if that is among
    the strategies.
    """
    rows, drawn = result.summary, _drawn_figures(result, draws, block, seed)
    sharpe = {(row.strategy, row.turnover_l1): row.sharpe for row in rows.itertuples()}
    added = []
    for key in sharpe:
        columns, base, extra = dict(drawn[key]), ("uniform", key[1]), {}
        if base in drawn:
            columns["sharpe_excess"] = drawn[key]["sharpe"] - drawn[base]["sharpe"]
            extra["sharpe_excess"] = float(sharpe[key] - sharpe[base])
        added.append(extra | _intervals(columns))
    return pd.concat([rows, pd.DataFrame(added, index=rows.index)], axis=1)


def paired_strategy_differences(
    result: Backtest, strategy: str, *, draws: int = _DRAWS, block: float = _BLOCK, seed: int = 0
) -> pd.DataFrame:
    """Differences of a strategy from each other one at the same budget, with 95 % intervals on the same draws.

    One row per other strategy and budget: `strategy`, `turnover_l1`, and `sharpe` and `net_utility` of the given
    strategy minus the other's, with `_low` and `_high`.
    """
    known = list(dict.fromkeys(result.summary["strategy"]))
    expect(strategy in known, "strategy", f"one of {known}", repr(strategy))
    drawn = _drawn_figures(result, draws, block, seed)
    figures = result.summary.set_index(["strategy", "turnover_l1"])
    rows = []
    for name, budget in (key for key in drawn if key[0] != strategy):
        ours, theirs = drawn[strategy, budget], drawn[name, budget]
        values = {key: ours[key] - theirs[key] for key in ("sharpe", "net_utility")}
        point = {key: float(figures.loc[(strategy, budget), key] - figures.loc[(name, budget), key]) for key in values}
        rows.append({"strategy": name, "turnover_l1": budget} | point | _intervals(values))
    return pd.DataFrame(rows)


def _drawn_figures(
    result: Backtest, draws: int, block: float, seed: int
) -> dict[tuple[str, float], dict[str, np.ndarray]]:
    """Figures of net returns in every draw, (draws,) each, by strategy and budget."""
    groups = result.frame[result.frame["series"] == 0].groupby(["strategy", "turnover_l1"], sort=False)["net"]
    paths = {(str(name), float(budget)): net.to_numpy() for (name, budget), net in groups}
    keys, nets = list(paths), np.stack(list(paths.values()))  # (keys, time)
    risks = {one.name: one.risk_aversion for one in result.rollouts}
    length, periods = nets.shape[1], result.periods_per_year
    bootstrap = PairedBootstrap(length, draws=draws, block=block, seed=seed)
    growth, _ = bootstrap.moments(np.log1p(np.maximum(nets, -1 + 1e-12)))
    mean, variance = bootstrap.moments(nets)
    volatility = np.sqrt(variance * length / max(length - 1, 1) * periods)
    still = np.full(mean.shape, np.nan)
    sharpe = np.divide(mean * periods, volatility, out=still, where=volatility > _STILL)
    utility = mean - np.array([[risks[name]] for name, _ in keys]) * variance
    figures = {
        "annual_return": np.expm1(growth * periods),
        "annual_volatility": volatility,
        "sharpe": sharpe,
        "net_utility": utility,
    }
    return {key: {name: values[k] for name, values in figures.items()} for k, key in enumerate(keys)}


def _intervals(columns: dict[str, np.ndarray]) -> dict[str, float]:
    """The central 95 % of drawn values, by column."""
    ends = {name: PairedBootstrap.interval(values) for name, values in columns.items()}
    return {
        f"{name}_{end}": float(v) for name, pair in ends.items() for end, v in zip(("low", "high"), pair, strict=True)
    }


_NAMED = ("uniform", "minimum-variance")  # baselines whose difference is given in figures
_POLICIES = ("market", "time2decide")  # the product's own, the default first


def own_policy_of_backtest(names: Sequence[str]) -> str | None:
    """The policy of this package that a comparison is about: the market policy if it takes part."""
    return next((name for name in _POLICIES if name in names), None)


def differences_from_own(result: Backtest) -> pd.DataFrame | None:
    """`paired_strategy_differences` of the package's own policy from every other one; None if it did not take part."""
    own = own_policy_of_backtest([one.name for one in result.rollouts])
    return None if own is None or len(result.rollouts) < 2 else paired_strategy_differences(result, own)


def backtest_findings(
    result: Backtest, summary: pd.DataFrame, differences: pd.DataFrame | None
) -> dict[float, list[str]]:
    """Sentences by turnover budget: who ranks where, and which differences exceed their 95 % interval.

    Parameters
    ----------
    summary, differences
        Of `with_intervals` and `differences_from_own`.
    """
    own = own_policy_of_backtest([one.name for one in result.rollouts])
    usual = summary[summary["strategy"] != ORACLE].sort_values("sharpe", ascending=False)
    sentences: dict[float, list[str]] = {}
    for budget in dict.fromkeys(summary["turnover_l1"]):
        rows = usual[usual["turnover_l1"] == budget].to_dict(orient="records")
        if own is None or differences is None:
            sentences[float(budget)] = [_best(rows)]
            continue
        others = differences[(differences["turnover_l1"] == budget) & (differences["strategy"] != ORACLE)]
        utility = f"In net utility (λ = {result.rollouts[0].risk_aversion:g})"
        sentences[float(budget)] = [
            _rank(rows, own, result.frequency),
            *_differences(others, result.frequency),
            _beyond(others, "sharpe", own, "In net Sharpe ratio"),
            _beyond(others, "net_utility", own, utility),
        ]
    return sentences


def _rank(rows: list[dict[str, Any]], own: str, frequency: Frequency) -> str:
    place = next(i for i, row in enumerate(rows) if row["strategy"] == own)
    row, best = rows[place], rows[0]
    text = f"{own}: net Sharpe ratio {row['sharpe']:z.2f} (95 %: {row['sharpe_low']:z.2f} to "
    text += f"{row['sharpe_high']:z.2f}), rank {place + 1} of {len(rows)}"
    text += f", volatility {row['annual_volatility']:.1%} a {frequency.span}"
    text += f", turnover {row['traded']:.2%} a {frequency.period}"
    return text + ("." if place == 0 else f"; {best['strategy']} is first with {best['sharpe']:z.2f}.")


def _differences(rows: pd.DataFrame, frequency: Frequency) -> list[str]:
    """The differences from the baselines that everybody knows, in figures."""
    sentences = []
    for row in rows[rows["strategy"].isin(_NAMED)].to_dict(orient="records"):
        utility = [f"{frequency.scale * row[f'net_utility{end}']:+z.1%}" for end in ("", "_low", "_high")]
        sharpe = [f"{row[f'sharpe{end}']:+z.2f}" for end in ("", "_low", "_high")]
        sentences.append(
            f"Against {row['strategy']}: Sharpe {sharpe[0]} [{sharpe[1]}, {sharpe[2]}], "
            f"utility {utility[0]} a {frequency.span} [{utility[1]}, {utility[2]}]."
        )
    return sentences


def _beyond(rows: pd.DataFrame, key: str, own: str, measure: str) -> str:
    better = rows.loc[rows[f"{key}_low"] > 0, "strategy"].tolist()
    worse = rows.loc[rows[f"{key}_high"] < 0, "strategy"].tolist()
    parts = [f"{word} {_listed(names)}" for word, names in (("above", better), ("below", worse)) if names]
    if not parts:
        return f"{measure} no difference between {own} and another strategy exceeds its 95 % interval."
    rest = len(rows) - len(better) - len(worse)
    text = f"{measure} {own} is {' and '.join(parts)} beyond the 95 % interval of the difference"
    return text + (f"; {rest} cannot be told apart from it." if rest else ".")


def _best(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "Only the oracle was run."
    text = f"The highest net Sharpe ratio is {rows[0]['sharpe']:z.2f}, of {rows[0]['strategy']}"
    if "sharpe_excess" not in rows[0]:
        return f"{text}."
    better = [row["strategy"] for row in rows if row["sharpe_excess_low"] > 0]
    worse = [row["strategy"] for row in rows if row["sharpe_excess_high"] < 0]
    return f"{text}; above 1/N beyond the 95 % interval: {_listed(better)}; below: {_listed(worse)}."


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
