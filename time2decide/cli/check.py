"""``time2decide check``: faults in a table of prices or returns, before anything is decided from it."""

from __future__ import annotations

import json
from typing import Annotated

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
    echo,
    reading_flags,
    validate_source,
    values_flag,
)


def check(
    file: Annotated[str, typer.Argument(help="sp500, or a .csv, .parquet or .xlsx file of prices or returns.")],
    prices: Prices = False,
    returns: Returns = False,
    accept: Accept = None,
    separator: Separator = None,
    decimal: Decimal = None,
    dates: DateOrder = None,
    as_json: AsJson = False,
) -> None:
    """Find faults in a table: units, bad prices, splits, dates, copies, columns that are no assets.

    A finding stops `decide`, `backtest`, `run` and `serve`, or it warns. Exit code 2 if one stops that is not accepted.

    Example: time2decide check prices.csv
    """
    validate_source(file)
    values = values_flag(prices, returns)
    import pandas as pd

    from time2decide.data.check import check_source
    from time2decide.data.findings import validate_accept
    from time2decide.markets.table_files import read_source

    accepted = validate_accept(accept or ())
    source = read_source(file, reading_flags(separator, decimal, dates))
    findings = check_source(source, values, today=pd.Timestamp.now())
    stops = [one for one in findings if one.severity == "stop" and one.name not in accepted]
    if as_json:
        found = {"source": source.name, "read_as": source.read_as, "stops": bool(stops)}
        echo(json.dumps(found | {"findings": [one.to_json() for one in findings]}))
    else:
        from rich.box import SIMPLE_HEAD
        from rich.markup import escape
        from rich.table import Table

        if source.read_as:
            echo(f"{source.name} is read as: {', '.join(source.read_as)}.")
        table = Table("finding", "severity", "where", "evidence", "what to do", box=SIMPLE_HEAD, pad_edge=False)
        for one in findings:
            severity = "accepted" if one.severity == "stop" and one not in stops else one.severity
            table.add_row(*map(escape, (one.name, severity, one.places, one.evidence, one.remedy)))
        console(160).print(table) if findings else echo(f"Nothing found in {source.name}.")
    if stops:
        raise typer.Exit(2)
