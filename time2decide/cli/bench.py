"""``time2decide bench``: speed and accuracy against peers in one run."""

from __future__ import annotations

import importlib
import json
from typing import Annotated, Any

import typer

from time2decide.cli.console import AsJson, console, number
from time2decide.core.validation import validate_choice

BENCHMARKS = ("constructions", "labels", "projection", "neural", "oracle", "lmc", "decide")


def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHMARKS)}, or all.")],
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, for a first look.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure speed and accuracy against peers in one run.

    Example: time2decide bench constructions --json
    """
    validate_choice("name", name, (*BENCHMARKS, "all"))
    collected: list[dict[str, Any]] = []
    for each in BENCHMARKS if name == "all" else (name,):
        rows = importlib.import_module(f"time2decide.bench.{each}").rows(quick=quick)
        if not as_json:
            _print_rows(rows, each)
        collected += [{"bench": each, **row} for row in rows] if name == "all" else rows
    if as_json:
        typer.echo(json.dumps(collected))


def _print_rows(rows: list[dict[str, Any]], title: str) -> None:
    """Rows of equal keys as a table."""
    from rich.table import Table

    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*[number(value) for value in row.values()])
    console().print(table)
