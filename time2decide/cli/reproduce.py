"""``time2decide reproduce`` and ``report``: tables and figures of the paper, run, shown and put on one page."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from time2decide.cli.console import AsJson, console, echo, print_tables

Results = Annotated[
    Path | None,
    typer.Option(help="Folder of the rows; TIME2DECIDE_RESULTS or ./results by default, then those of the package."),
]


def reproduce(
    name: Annotated[str, typer.Argument(metavar="ID", help="A table or figure; `list` names them all.")],
    preset: Annotated[str, typer.Option(help="smoke: seconds. cpu: the numbers we publish. paper: full size.")] = "cpu",
    results: Results = None,
    engine: Annotated[
        str, typer.Option(help="local: processes of this machine. ray: Ray, also on a cluster.")
    ] = "local",
    workers: Annotated[int, typer.Option(help="Tasks at a time; 1 runs them in this process.")] = 1,
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster, or auto.")] = None,
    gpus: Annotated[float, typer.Option(help="Share of a GPU per task, for Ray.")] = 0,
    only: Annotated[str, typer.Option(help="Run only these tasks now: field=value,field=value.")] = "",
    as_json: AsJson = False,
) -> None:
    """Run a table or figure of the paper, or show it if it is already in the results.

    Rows that came with the package (a wheel) are shown as they are; --results names a folder of your own to run in.

    Exit code: 0 when every task has a result, 1 when one failed (the others are shown), 2 for bad input.

    Example: time2decide reproduce convergence --preset cpu --workers 2
    """
    from time2decide.experiments import get_experiment, stored_tasks
    from time2decide.experiments import reproduce as run
    from time2decide.experiments.claims import claims_tables
    from time2decide.experiments.engines import Engine
    from time2decide.experiments.registry import find_store, is_packaged
    from time2decide.experiments.store import check_store_writable, last_error_line
    from time2decide.reports import draw, results_of

    if name == "list":
        _list_experiments(results, as_json)
        return
    experiment = get_experiment(name)
    place = Engine(engine, workers, address, gpus)

    def progress(number: int, total: int, config: dict[str, Any]) -> None:
        text = " ".join(f"{key}={value}" for key, value in config.items() if not isinstance(value, dict | list))
        print(f"[{number + 1}/{total}] {text}", file=sys.stderr)

    if preset in experiment.presets and not as_json:
        stored, total = stored_tasks(experiment, preset, results, only)
        store, expected = find_store(name, preset, results), experiment.presets[preset]
        if is_packaged(store):
            print(
                f"{stored} of {total} tasks, rows of the package; --results names a folder for others", file=sys.stderr
            )
        elif stored < total:
            check_store_writable(results)
            folder = store.path.parents[1]
            print(f"{total - stored} tasks are not in {folder}: running them (all take {expected})", file=sys.stderr)
    rows = run(experiment, preset, root=results, progress=progress, engine=place, only=only)
    tables, claims = results_of(experiment, rows)
    pictures = draw(experiment.id, rows, preset, results)
    if as_json:
        echo(json.dumps(rows))
    else:
        print_tables([*tables, *claims_tables(claims)])
        for picture in pictures:
            echo(f"figure: {picture}")
    errors = [last_error_line(row["error"]) for row in rows if row["error"]]
    for error in dict.fromkeys(errors):
        echo(f"time2decide: {errors.count(error)} failed: {error}", err=True)
    if errors:
        raise typer.Exit(1)


def report(
    out: Annotated[Path, typer.Option(help="The page; the Markdown is written beside it.")] = Path("report.html"),
    results: Results = None,
    as_json: AsJson = False,
) -> None:
    """Write every table, figure and claim of the paper beside ours, from the stored rows alone.

    Example: time2decide report --out report.html
    """
    from time2decide.core.validation import expect
    from time2decide.reports import write_report

    expect(out.suffix in (".html", ".htm"), "--out", "a file that ends with .html", out)
    folder = results or os.environ.get("TIME2DECIDE_RESULTS")
    name = "--results" if results else "TIME2DECIDE_RESULTS"
    expect(not folder or Path(folder).is_dir(), name, "a folder with stored rows", folder)
    _say_where(results)
    page, text = write_report(out, results)
    echo(json.dumps({"html": str(page), "markdown": str(text)}) if as_json else f"report: {page}\nreport: {text}")


def _say_where(results: Path | None) -> None:
    """A line on standard error if rows are read from the package, or if there are none."""
    from time2decide.experiments.registry import PACKAGED, reads_package
    from time2decide.experiments.store import results_root

    folder = results_root(results)
    if reads_package(results):
        echo(f"rows: those in {folder}, else those of the package, {PACKAGED}", err=True)
    elif not any(folder.glob("*/*.jsonl")):
        known = "a checkout has them in results/, a wheel inside the package"
        echo(f"no stored rows in {folder}: name their folder with --results ({known})", err=True)


def _list_experiments(results: Path | None, as_json: bool) -> None:
    from time2decide.experiments import experiment_ids, get_experiment, stored_tasks

    _say_where(results)
    listing: list[dict[str, Any]] = []
    for experiment in map(get_experiment, experiment_ids()):
        state = {}
        for preset, expected in experiment.presets.items():
            stored, total = stored_tasks(experiment, preset, results)
            state[preset] = {"expected": expected, "stored": stored, "tasks": total}
        listing.append({"id": experiment.id, "title": experiment.title, "paper": experiment.paper, "presets": state})
    if as_json:
        echo(json.dumps(listing))
        return
    from rich.table import Table

    table = Table("id", "what", "in the paper", "preset", "takes", "stored")
    for entry in listing:
        states = entry["presets"]
        takes = "\n".join(state["expected"] for state in states.values())
        counts = "\n".join(f"{state['stored']}/{state['tasks']}" for state in states.values())
        table.add_row(entry["id"], entry["title"], entry["paper"], "\n".join(states), takes, counts, end_section=True)
    console().print(table)
