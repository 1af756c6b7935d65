"""``time2decide bench``: speed and accuracy against other solvers in one run."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from time2decide.bench import BENCHMARKS
from time2decide.cli.console import AsJson, echo, print_tables
from time2decide.core.table import tables_of_rows
from time2decide.core.validation import expect, validate_choice


def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHMARKS)}, or all.")],
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, for a first look.")] = False,
    store: Annotated[bool, typer.Option("--store", help="Keep the rows in the results, for `report`.")] = False,
    problems: Annotated[
        Path | None,
        typer.Option("--problems", help="With qp or sparse: a folder of .mat files. With faults: one of tables."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed and accuracy against other solvers in one run.

    Example: time2decide bench constructions --store
    """
    validate_choice("name", name, (*BENCHMARKS, "all"))
    allowed = ("qp", "sparse", "faults")
    expect(problems is None or name in allowed, "--problems", "the benchmark qp, sparse or faults", name)
    if store:
        from time2decide.experiments.store import Store, check_store_writable

        check_store_writable()
    collected: list[dict[str, Any]] = []
    for each in BENCHMARKS if name == "all" else (name,):
        start = time.perf_counter()
        module, function = BENCHMARKS[each]
        options = {} if problems is None else {"problems": problems}
        rows = getattr(importlib.import_module(f"time2decide.bench.{module}"), function)(quick=quick, **options)
        if store:
            kept = Store(f"bench-{each}", "smoke" if quick else "cpu")
            config = {"bench": each} if problems is None else {"bench": each, "problems": problems.name}
            kept.append(config, rows, time.perf_counter() - start)
        if not as_json:
            print_tables(tables_of_rows(each, rows))
        collected += [{"bench": each, **row} for row in rows] if name == "all" else rows
    if as_json:
        echo(json.dumps(collected))
