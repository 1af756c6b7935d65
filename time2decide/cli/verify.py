"""``time2decide verify``: check a decision file against the table that it was made from; torch is not loaded."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from time2decide.cli.console import (
    AsJson,
    DateOrder,
    Decimal,
    Prices,
    Returns,
    Separator,
    echo,
    reading_flags,
    validate_source,
    values_flag,
)
from time2decide.core.files import validate_input_file

_NOT_CHECKED = (
    "Not checked: that the named model poses this problem for these returns, and has these records of forecasts; "
    "`decide` on the same table shows it."
)


def verify(
    decision: Annotated[Path, typer.Argument(help="A file written by `decide --out decision.json` or `run`.")],
    file: Annotated[
        str, typer.Argument(help="The table it was made from: .csv, .parquet or sp500; later rows may follow.")
    ],
    prices: Prices = False,
    returns: Returns = False,
    separator: Separator = None,
    decimal: Decimal = None,
    dates: DateOrder = None,
    as_json: AsJson = False,
) -> None:
    """Check a decision file: intact, made from this table, feasible, optimal for the problem it states.

    Optimality is proved from the file by a duality gap; no solver and no network is asked. Exit code 1 if a check
    fails.

    Example: time2decide verify decision.json returns.csv
    """
    validate_input_file(decision)
    validate_source(file)
    from time2decide.markets.decision_file import verify_decision
    from time2decide.markets.table_files import read_source

    source = read_source(file, reading_flags(separator, decimal, dates))
    found = verify_decision(decision, source, values_flag(prices, returns))
    if as_json:
        echo(json.dumps({"passed": found.passed, "checks": [asdict(check) for check in found.checks]}))
    else:
        echo(found)
        if found.passed:
            echo(_NOT_CHECKED)
            unproved = [check.name for check in found.checks if check.passed is None]
            if unproved:
                echo(f"Passed without a proof of: {', '.join(unproved)}.")
        elif any(check.name == "data" and check.passed is False for check in found.checks):
            echo("The table is not that of the decision: the other checks are of the file alone.")
    if not found.passed:
        raise typer.Exit(1)
