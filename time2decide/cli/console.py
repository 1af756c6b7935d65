"""Shared by commands: consoles, tables, options, the progress of a backtest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from time2decide.core.files import validate_input_file
from time2decide.core.table import Table
from time2decide.core.validation import expect, printable_lines

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Prices = Annotated[bool, typer.Option("--prices", help="The file holds prices; inferred by default.")]
Returns = Annotated[bool, typer.Option("--returns", help="The file holds returns; inferred by default.")]
_LINES_EVERY = 30.0  # seconds between two lines of progress where there is no terminal


def echo(text: object, *, err: bool = False) -> None:
    """Print lines. A name of a file that holds an escape sequence is shown, and not obeyed by the terminal."""
    typer.echo(printable_lines(str(text)), err=err)


def console(width: int = 140) -> Any:
    """A rich console, of fixed width when output is not a terminal, so that tables in logs are not folded.

    What cannot be printed is escaped, as by `echo`.
    """
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with exit code 1

        def render(self, renderable: Any, options: Any = None) -> Iterator[Any]:
            for part in super().render(renderable, options):
                yield part if part.control else part._replace(text=printable_lines(part.text))

    return Screen(width=None if sys.stdout.isatty() else width, highlight=False)


def print_tables(tables: Iterable[Table]) -> None:
    """Tables one below the other, as wide as the terminal; nothing is folded when output is not a terminal."""
    width = console().width if sys.stdout.isatty() else None
    for table in tables:
        echo(table.text(width) + "\n")


def values_flag(prices: bool, returns: bool) -> str | None:
    """Prices or returns, by the two flags; None without a flag."""
    expect(not prices or not returns, "prices, returns", "at most one of --prices and --returns", "both")
    return "prices" if prices else "returns" if returns else None


def validate_source(source: str) -> None:
    """Raise unless `source` is sp500 or an existing file: before torch and pandas are loaded."""
    if source != "sp500":
        validate_input_file(Path(source))


def constraint_sources(path: Path | None) -> list[Path]:
    """The files that constraints are read from."""
    from time2decide.markets.constraints import files_of_constraints

    return [] if path is None else files_of_constraints(path)


def _progress_lines(strategies: int) -> Callable[[str, int, int], None]:
    began = last = time.monotonic()
    done: dict[str, int] = {}

    def show(name: str, step: int, steps: int) -> None:
        nonlocal last
        done[name] = step + 1
        now = time.monotonic()
        if now - last >= _LINES_EVERY:
            share = sum(done.values()) / (strategies * steps)
            left = (now - began) * (1 - share) / share
            print(f"{name}: {share:.0%} of all steps, about {left:.0f} s left", file=sys.stderr, flush=True)
            last = now

    return show


@contextmanager
def step_progress(strategies: int) -> Iterator[Callable[[str, int, int], None]]:
    """A bar with the time left on standard error; a line every half minute if that is no terminal."""
    if not sys.stderr.isatty():
        yield _progress_lines(strategies)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting")
        done: dict[str, int] = {}

        def show(name: str, step: int, steps: int) -> None:
            done[name] = step + 1
            bar.update(task, description=name, completed=sum(done.values()), total=strategies * steps)

        yield show
