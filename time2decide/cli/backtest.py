"""`time2decide backtest`: compare strategies walk-forward on real or synthetic returns."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from time2decide.cli.console import (
    Accept,
    AsJson,
    DateOrder,
    Decimal,
    Prices,
    Returns,
    Separator,
    console,
    constraint_sources,
    echo,
    finding_lines,
    reading_flags,
    step_progress,
    use_one_thread,
    validate_source,
    values_flag,
)
from time2decide.core.validation import InputError, expect

if TYPE_CHECKING:
    import pandas as pd

    from time2decide.backtesting.walk_forward import Backtest
    from time2decide.markets.constraints import Constraints
    from time2decide.markets.periods import Frequency

_TABLES = ("summary.csv", "steps.csv", "weights.csv")
_OF_THE_ORACLE = ("regret", "MSE")  # columns that need the oracle
#: None of them needs an extra package.
DEFAULT_STRATEGIES = "market,market-risk,uniform,inverse-volatility,minimum-variance-qis,mean-variance-lw,pto-ar1"
#: What the columns of the table mean, for the page and for the terminal.
_COLUMNS = {
    "γ": "turnover budget per step: at most this ℓ1 change of the weights",
    "return": "compound rate a {span}, after costs, with its 95 % interval",
    "volatility": "standard deviation of net returns, per {span}",
    "Sharpe": "arithmetic mean (not the compound rate) over standard deviation of net returns, per {span}, with its "
    "95 % interval",
    "utility": "mean − λ · variance of net returns, per {span}: the certain return worth as much",
    "turnover": "bought plus sold per {period}, as a share of wealth, from the drifted weights",
    "Sharpe − 1/N": "difference from equal weights on the same {period}s, with its 95 % interval; above 0 is better",
    "drawdown": "deepest fall from a peak of wealth",
    "regret": "utility per step given up against the oracle, in basis points; lower is better",
    "MSE": "squared distance of the raw answer from the oracle's weights, ×10⁴; not money, and easier for those who "
    "read the oracle's past weights (time2decide, lag1-oracle)",
}


def column_meanings(frequency: Frequency) -> dict[str, str]:
    """What the columns mean, of figures for a year, or for a row where a year is unknown."""
    return {key: text.format(span=frequency.span, period=frequency.period) for key, text in _COLUMNS.items()}


def backtest(
    file: Annotated[
        str | None, typer.Argument(help="sp500, or a .csv or .parquet file: dates first, one column per asset.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The same as FILE.")] = None,
    strategies: Annotated[
        str, typer.Option(help="Comma-separated names, folders of models, or `list` to see all names.")
    ] = DEFAULT_STRATEGIES,
    turnover: Annotated[
        str, typer.Option(help="Budget γ in (0, 2] on the l1 change of the weights; several with commas.")
    ] = "1.0",
    prices: Prices = False,
    returns: Returns = False,
    cost_bps: Annotated[float, typer.Option(help="Cost in basis points of the amount traded.")] = 10.0,
    risk_aversion: Annotated[float, typer.Option(help="λ of the utility sᵀr − λ sᵀΣs per period.")] = 2.0,
    constraints: Annotated[
        Path | None, typer.Option(help="Bounds, groups, exposures and cash: a .toml, or a .csv asset,lower,upper.")
    ] = None,
    benchmark: Annotated[
        Path | None, typer.Option(help="Weights that risk is measured from: a CSV with the columns asset,weight.")
    ] = None,
    min_trade: Annotated[
        float, typer.Option(help="Smallest trade, in weights, of strategies that solve their problem at every step.")
    ] = 0.0,
    window: Annotated[int, typer.Option(help="Steps of history before the first decision.")] = 96,
    last: Annotated[int | None, typer.Option(help="Use only this many last rows.")] = None,
    gaps: Annotated[
        str, typer.Option(help="Empty cells: refuse them, or keep them as assets that list late, halt or are delisted.")
    ] = "refuse",
    delisting_return: Annotated[
        float,
        typer.Option(help="Of assets whose column ends, on their last price: 0 for mergers, -1 for a total loss."),
    ] = -0.3,
    periods_per_year: Annotated[
        float | None, typer.Option(help="Rows of the table in a year; as the dates say by default.")
    ] = None,
    delay: Annotated[
        int, typer.Option(help="Rows between a decision and its trade: 1 at the next close; 0 cannot be traded.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder for summary.csv, steps.csv, weights.csv and the figures.")] = Path(
        "backtest"
    ),
    report: Annotated[Path | None, typer.Option(help="Write an interactive page to this .html.")] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="Decide again on every date of this journal of `run`, and compare; nothing else."),
    ] = None,
    accept: Accept = None,
    separator: Separator = None,
    decimal: Decimal = None,
    dates: DateOrder = None,
    as_json: AsJson = False,
) -> None:
    """Compare strategies walk-forward, with costs; each sees only the past.

    Example: time2decide backtest sp500 --last 1000 --turnover 0.1,0.5,1 --report report.html
    """
    if strategies == "list":
        _list_strategies(as_json)
        return
    expect((file is None) != (data is None), "file", "a file or sp500", "nothing" if file is None else "two (--data)")
    source = str(file or data)
    validate_source(source)
    if journal is not None:
        _replay(source, journal, values_flag(prices, returns), as_json)
        return
    from time2decide.backtesting.walk_forward import backtest as run
    from time2decide.backtesting.walk_forward import with_intervals
    from time2decide.data.check import load_checked
    from time2decide.markets.constraint_files import read_constraints
    from time2decide.markets.table_files import read_source
    from time2decide.markets.tables import read_weights

    use_one_thread()
    budgets = _budgets(turnover)
    _check_outputs((source, *constraint_sources(constraints), benchmark), budgets, out, report)
    reference = None if benchmark is None else read_weights(benchmark)
    table_source = read_source(source, reading_flags(separator, decimal, dates))
    checked = load_checked(table_source, values_flag(prices, returns), gaps=gaps, accept=accept or ())
    table, values = checked.returns, checked.values
    expect(table.shape[1] >= 2, source, "at least 2 assets", table.shape[1])
    if last is not None:
        expect(last >= 1, "last", "a positive number of rows", last)
        table = table.iloc[-last:]
    limits = None if constraints is None else read_constraints(constraints, [str(name) for name in table.columns])
    names = [name.strip() for name in strategies.split(",") if name.strip()]
    terms: dict[str, Any] = {"cost_bps": cost_bps, "risk_aversion": risk_aversion, "constraints": limits}
    terms |= {"benchmark": reference, "window": window, "periods_per_year": periods_per_year, "gaps": gaps}
    terms |= {"min_trade": min_trade, "delay": delay, "delisting_return": delisting_return}
    terms |= {"accept": accept or (), "findings": checked.findings}
    with step_progress([name for name in names if name != "oracle"]) as progress:
        result = run(table, names, budgets, **terms, progress=progress)
    summary = with_intervals(result)
    files = _write(result, summary, out)
    year = result.frequency.per_year
    data_kind = f"{values}, {year:g} a year" if year is not None else f"{values}, without dates: figures per row"
    applied = "" if constraints is None or limits is None else _applied(constraints.name, limits, table.shape[1])
    least = f"Smallest trade {min_trade:g}." if min_trade else ""
    applied = " ".join(filter(None, (applied, least, *_gap_lines(table, gaps))))
    if report is not None:
        decision = latest_decision(result, table, limits, reference, min_trade)
        told = " ".join(filter(None, (applied, _sales_line(table, delisting_return))))
        files.append(write_backtest_report(result, summary, report, source, data_kind, decision, told))
    if as_json:
        from time2decide.reports.backtest_page import backtest_page_records

        echo(json.dumps(backtest_page_records(summary), allow_nan=False))
        return
    print_backtest_summary(result, summary, f"{source} ({data_kind})", applied, _sales_line(table, delisting_return))
    notes = [f"The table is read as: {', '.join(checked.read_as)}."] if checked.read_as else []
    for line in [*notes, *finding_lines(one.to_json() for one in result.findings)]:
        echo(line)
    for written in files:
        echo(f"written: {written}")


def _applied(name: str, limits: Constraints, assets: int) -> str:
    """The constraints of a backtest in words, and how each strategy meets them."""
    lower, upper = limits.bounds(assets)
    bounded = int(((lower != 0) | (upper < math.inf)).sum())
    parts = [f"bounds of {bounded} assets"] if bounded else []
    parts += [f"{len(limits.limits)} limit{'s'[: len(limits.limits) != 1]} on groups and exposures"]
    parts += [f"cash from {limits.cash[0]:.0%} to {limits.cash[1]:.0%}"] if any(limits.cash) else []
    met = "Strategies that do not optimise are projected onto them; the oracle is not bound by them."
    return f"Constraints of {name}: {', '.join(parts)}. {met}"


def _gap_lines(table: pd.DataFrame, gaps: str) -> list[str]:
    """What is missing from the rows that are used, and which assets are not there at all."""
    from time2decide.markets.universe import gap_summary
    from time2decide.policy.decision_facts import listed_names

    if gaps != "keep":
        return []
    absent = [str(name) for name in table.columns[table.isna().all()]]
    return [
        gap_summary(table.to_numpy()),
        *([f"Without any return in these rows, so never held: {listed_names(absent)}."] if absent else []),
    ]


def _sales_line(table: pd.DataFrame, delisting_return: float) -> str:
    """What holdings of assets that end before the table are taken to bring; empty for a table without gaps."""
    from time2decide.markets.universe import DELISTED, DELISTING_RETURN
    from time2decide.policy.decision_facts import listed_names

    if not table.isna().any(axis=None):
        return ""
    last = table.notna().to_numpy()[::-1].argmax(axis=0)  # rows without a return at the end
    gone = [str(name) for name, rows in zip(table.columns, last, strict=True) if DELISTED <= rows < len(table)]
    if not gone:
        return ""
    shumway = delisting_return == DELISTING_RETURN
    source = "the mean of failures, Shumway 1997; mergers are near 0" if shumway else "as stated"
    return (
        f"Delisted before the end: {listed_names(gone)}. Holdings are paid out {DELISTED} rows after the last return, "
        f"at {delisting_return:+.0%} on the last price ({source}: --delisting-return), outside the turnover budget, "
        "which the mean turnover may exceed by them."
    )


def _replay(source: str, journal: Path, values: str | None, as_json: bool) -> None:
    """Compare the live decisions of a journal with simulated ones; exit code 1 if they differ."""
    from time2decide.core.files import validate_input_file

    validate_input_file(journal)
    from time2decide.backtesting.journal_replay import replay_journal
    from time2decide.markets.tables import load_market

    use_one_thread()
    found = replay_journal(journal, load_market(source, values, gaps="keep")[0])
    if as_json:
        facts = {"decisions": len(found.dates), "equal": found.equal, "other_model": found.other_model}
        facts["differences"] = dict(zip(found.dates, found.differences.tolist(), strict=True))
        facts |= {"live_return": found.live_return, "simulated_return": found.simulated_return}
        echo(json.dumps(facts | {"held_return": found.held_return}, allow_nan=False))
    else:
        echo("\n".join(found.text))
    if not found.equal:
        raise typer.Exit(1)


def _list_strategies(as_json: bool) -> None:
    from time2decide.backtesting.registry import REGISTRY

    names = {name: entry.description for name, entry in REGISTRY.items()} | {"oracle": "knows each next return"}
    echo(json.dumps(names) if as_json else "\n".join(f"{name:22} {text}" for name, text in names.items()))


def latest_decision(
    result: Backtest,
    table: pd.DataFrame,
    constraints: Constraints | None = None,
    benchmark: pd.Series | None = None,
    min_trade: float = 0.0,
) -> dict[str, Any] | None:
    """The next decision of the policy, from its last weights, at the first budget; None if it is no strategy here."""
    import pandas as pd

    from time2decide.cli.decide import limit_lines
    from time2decide.markets.policy_config import NAMED
    from time2decide.policy.decision_facts import decision_facts

    names, holes = [one.name for one in result.rollouts], bool(table.isna().any(axis=None))
    strategy = next((name for name in NAMED if name in names), None)
    if strategy is None:
        return None
    budget = float(result.rollouts[0].turnover_l1[0])
    one = next(one for one in result.rollouts if one.name == strategy)
    current = pd.Series(one.current(result.returns)[0, 0], index=result.assets)
    facts = decision_facts(
        table,
        current / current.sum() if constraints is None else current,
        budget,
        risk_aversion=result.rollouts[0].risk_aversion,
        cost_bps=result.cost_bps,
        model=strategy,
        constraints=constraints,
        benchmark=benchmark,
        min_trade=min_trade,
        with_explanation=True,
        with_uncertainty=False,  # it takes as long as the backtest
        with_frontier=True,
        gaps="keep" if holes else "refuse",
        delay=result.delay,
        periods_per_year=result.frequency.per_year,
    )
    facts["input"]["simulated"] = True
    facts["limit_words"] = [line.strip() for line in limit_lines(facts)]
    return facts


def _budgets(text: str) -> list[float]:
    from time2decide.markets.validation import validate_turnover

    try:
        budgets = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"turnover: expected numbers separated by commas, found {text!r}") from None
    expect(len(set(budgets)) >= len(budgets), "turnover", "distinct numbers", f"{text!r}")
    return [validate_turnover(budget) for budget in budgets]


def _check_outputs(read: Sequence[str | Path | None], budgets: list[float], out: Path, report: Path | None) -> None:
    """Raise unless every file can be written, and none of them is read: before the work, not after it."""
    from time2decide.core.files import validate_not_read, validate_output_file, validate_output_folder
    from time2decide.reports.decision_figures import backtest_figure_name

    validate_output_folder("out", out)
    for name in (*_TABLES, *map(backtest_figure_name, budgets)):
        validate_output_file("out", out / name)
        validate_not_read("out", out / name, read)
    if report is not None:
        fits = report.suffix.lower() in (".html", ".htm") and report.parent.is_dir()
        expect(fits, "report", "a name ending in .html in an existing folder", report)
        validate_not_read("report", report, read)
        validate_output_file("report", report)


def _write(result: Backtest, summary: pd.DataFrame, folder: Path) -> list[Path]:
    from time2decide.core.files import atomic_path
    from time2decide.reports.decision_figures import write_backtest_figures

    files = []
    for name, frame in zip(_TABLES, (summary, result.frame, weights_table(result)), strict=True):
        with atomic_path(folder / name) as temporary:
            frame.to_csv(temporary, index=False, float_format="%.12g" if name == _TABLES[2] else None)
        files.append(folder / name)
    return files + write_backtest_figures(result, folder)


def weights_table(result: Backtest) -> pd.DataFrame:
    """The weights chosen at every step: date, strategy and budget, then a column per asset."""
    import pandas as pd

    parts = []
    for one in result.rollouts:
        for budget in map(float, one.turnover_l1):
            weights = result.weights(one.name, budget)
            keys = {"time": weights.index, "strategy": one.name, "turnover_l1": budget}
            # `concat`, as an asset may be called strategy
            parts.append(pd.concat([pd.DataFrame(keys), weights.reset_index(drop=True)], axis=1))
    return pd.concat(parts, ignore_index=True)


def write_backtest_report(
    result: Backtest,
    summary: pd.DataFrame,
    path: Path,
    source: str,
    values: str,
    decision: dict[str, Any] | None,
    constraints: str = "",
) -> Path:
    """The page of a backtest, with the meaning of its columns and strategies."""
    from time2decide.backtesting.registry import REGISTRY
    from time2decide.reports.backtest_page import write_page

    known = {one.name: REGISTRY[one.name].description for one in result.rollouts if one.name in REGISTRY}
    facts = {"source": source, "values": values, "cost_bps": result.cost_bps, "window": result.rollouts[0].window}
    return write_page(
        result,
        summary,
        path,
        facts | {"constraints": constraints, "columns": column_meanings(result.frequency) | known},
        decision,
    )


def print_backtest_summary(
    result: Backtest, summary: pd.DataFrame, data: str, constraints: str = "", note: str = ""
) -> None:
    """The table with a note under it, the findings, and the meaning of the columns."""
    from rich.markup import escape
    from rich.table import Table

    from time2decide.backtesting.walk_forward import backtest_findings, differences_from_own
    from time2decide.simulation.execution import when_traded

    first, final = result.frame["time"].iloc[0], result.frame["time"].iloc[-1]
    risk = result.rollouts[0].risk_aversion
    days = f"{str(first)[:10]} to {str(final)[:10]}"
    title = f"{data}: {len(result.assets)} assets, {days}, costs {result.cost_bps:g} bp, λ = {risk:g}, "
    title += f"traded {when_traded(result.delay, result.frequency.period)}"
    title += f"\n{constraints}" if constraints else ""
    table, columns = Table(title=escape(title)), _columns(result, summary)
    for name in ("strategy", *columns):
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=name == "strategy")
    for budget, rows in summary.groupby("turnover_l1", sort=False):
        for row in rows.sort_values("sharpe", ascending=False).to_dict(orient="records"):
            cells = _cells(row | {"γ": f"{budget:g}"}, result.periods_per_year)
            table.add_row(str(row["strategy"]), *(cells[name] for name in columns))
        table.add_section()
    screen, meanings = console(160), column_meanings(result.frequency)
    screen.print(table)
    if note:
        screen.print(note, markup=False, soft_wrap=True)
    screen.print("Columns (strategies: `backtest --strategies list`):", style="dim")
    for name in columns:
        screen.print(f"  {name}: {meanings[name]}", markup=False, style="dim")
    for budget, lines in backtest_findings(result, summary, differences_from_own(result)).items():
        screen.print(f"[bold]Findings at γ = {budget:g}[/] (brackets: 95 % intervals, differences paired)")
        for line in lines:
            screen.print(f"  {line}", markup=False)


def _columns(result: Backtest, summary: pd.DataFrame) -> list[str]:
    """The columns of the table that these strategies fill."""
    missing = set() if "sharpe_excess" in summary else {"Sharpe − 1/N"}
    if not any(one.name == "oracle" for one in result.rollouts):
        missing |= set(_OF_THE_ORACLE)
    return [name for name in _COLUMNS if name not in missing]


def _cells(row: dict[str, Any], periods: float) -> dict[str, str]:
    """The cells of a row by column."""
    utility = {key: periods * row[key] for key in ("net_utility", "net_utility_low", "net_utility_high")}
    return {
        "γ": row["γ"],
        "return": _interval(row, "annual_return", ".1%"),
        "volatility": f"{row['annual_volatility']:.1%}",
        "Sharpe": _interval(row, "sharpe", ".2f"),
        "utility": _interval(utility, "net_utility", "+.1%"),
        "turnover": f"{row['traded']:.2%}",
        "Sharpe − 1/N": _interval(row, "sharpe_excess", "+.2f") if "sharpe_excess" in row else "",
        "drawdown": f"{row['max_drawdown']:.1%}",
        "regret": f"{1e4 * row['regret']:.1f}",
        "MSE": f"{1e4 * row['mse']:.1f}",
    }


def _interval(row: dict[str, Any], key: str, form: str) -> str:
    form = form.replace(".", "z.")  # no minus before a rounded 0
    low, high = format(row[f"{key}_low"], form), format(row[f"{key}_high"], form)
    return f"{row[key]:{form}} [dim][{low}, {high}][/]"
