"""`time2decide backtest`: compare strategies walk-forward on real or synthetic returns."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from time2decide.qp.checks import InputError

if TYPE_CHECKING:
    from time2decide.decisions import Backtest

_COLUMNS = ("annual_return", "annual_volatility", "sharpe", "max_drawdown", "turnover", "traded", "regret", "mse")


def backtest(
    data: Annotated[str, typer.Option(help="sp500, or a .csv or .parquet file: dates first, one column per asset.")],
    strategies: Annotated[
        str, typer.Option(help="Comma-separated names; `oracle` is the bound that knows the future.")
    ] = "uniform,soft-persistence,pto-persistence,pto-ar1,pto-ridge",
    turnover: Annotated[
        str, typer.Option(help="Budget γ on the l1 change of the weights; several with commas.")
    ] = "1.0",
    values: Annotated[str, typer.Option(help="What the file holds: returns or prices.")] = "returns",
    cost_bps: Annotated[float, typer.Option(help="Cost in basis points of the amount traded.")] = 10.0,
    risk_aversion: Annotated[float, typer.Option(help="λ")] = 0.1,
    window: Annotated[int, typer.Option(help="Steps of history before the first decision.")] = 96,
    last: Annotated[int | None, typer.Option(help="Use only this many last rows.")] = None,
    periods_per_year: Annotated[float, typer.Option(help="For annual figures.")] = 252.0,
    out: Annotated[Path, typer.Option(help="Folder for summary.csv, steps.csv and the figures.")] = Path("backtest"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Compare strategies walk-forward, with costs; each sees only the past.

    Example: time2decide backtest --data sp500 --last 1000 --strategies uniform,pto-ar1 --turnover 0.5
    """
    from time2decide.decisions import backtest as run
    from time2decide.markets import load_returns

    budgets = _budgets(turnover)
    table = load_returns(data, values)
    if last is not None:
        if last < 1:
            raise InputError(f"last: expected a positive number of rows, found {last}")
        table = table.iloc[-last:]
    names = [name.strip() for name in strategies.split(",") if name.strip()]
    result = run(
        table,
        names,
        budgets,
        cost_bps=cost_bps,
        risk_aversion=risk_aversion,
        window=window,
        periods_per_year=periods_per_year,
    )
    files = _write(result, out)
    if as_json:
        typer.echo(json.dumps(_records(result), allow_nan=False))
        return
    _print_summary(result, data, cost_bps)
    for file in files:
        typer.echo(f"written: {file}")


def _records(result: Backtest) -> list[dict[str, object]]:
    """The summary as JSON can say it: a figure that does not exist (the Sharpe ratio of no movement) is null."""
    rows = result.summary.to_dict(orient="records")
    return [
        {str(k): None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows
    ]


def _budgets(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"turnover: expected numbers separated by commas, found {text!r}") from None


def _write(result: Backtest, folder: Path) -> list[Path]:
    from time2decide.decisions.figures import write_figures

    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, frame in (("summary.csv", result.summary), ("steps.csv", result.frame)):
            temporary = folder / f".{name}.tmp"
            try:
                frame.to_csv(temporary, index=False)
                os.replace(temporary, folder / name)
            finally:
                temporary.unlink(missing_ok=True)
            files.append(folder / name)
        return files + write_figures(result, folder)
    except OSError as error:
        raise InputError(f"out: expected a folder that can be written to, found {folder} ({error.strerror})") from None


def _print_summary(result: Backtest, data: str, cost_bps: float) -> None:
    from rich.console import Console
    from rich.table import Table

    first, final = result.frame["time"].iloc[0], result.frame["time"].iloc[-1]
    title = f"{data}: {len(result.assets)} assets, {_day(first)} to {_day(final)}, costs {cost_bps:g} bp"
    table = Table("strategy", "turnover_l1", *_COLUMNS, title=title)
    for row in result.summary.to_dict(orient="records"):
        table.add_row(str(row["strategy"]), f"{row['turnover_l1']:g}", *(f"{row[key]:.4f}" for key in _COLUMNS))
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _day(label: object) -> str:
    return str(label)[:10]
