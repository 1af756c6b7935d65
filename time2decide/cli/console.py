"""Shared by commands: consoles, tables, options, the progress of a backtest."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from time2decide.core.files import validate_input_file
from time2decide.core.table import Table
from time2decide.core.validation import expect, printable_lines
from time2decide.data.findings import Finding

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Prices = Annotated[bool, typer.Option("--prices", help="The file holds prices; inferred by default.")]
Returns = Annotated[bool, typer.Option("--returns", help="The file holds returns; inferred by default.")]
Accept = Annotated[
    list[str] | None, typer.Option("--accept", help="A finding of `check` that is not to stop this; repeatable.")
]
Separator = Annotated[
    str | None, typer.Option("--separator", help="Between cells: comma, semicolon, tab, bar, space; else found out.")
]
Decimal = Annotated[str | None, typer.Option("--decimal", help="Decimal sign: . or , (else found out).")]
DateOrder = Annotated[
    str | None, typer.Option("--dates", help="day-first or month-first, of dates like 02/01/2024; else found out.")
]
_FIRST_LINE, _LINES_EVERY = 5.0, 30.0  # seconds to the first line of progress, and between two, without a terminal
#: Processor time of a step beside that of 1/N, measured on 64 stocks; for the time left.
_STEP_COSTS = {
    **{"market": 25.0, "market-risk": 6.0, "uniform": 1.0, "inverse-volatility": 1.0, "pto-ar1": 3.0},
    **{
        "minimum-variance-qis": 3.5,
        "mean-variance-lw": 2.0,
        "mean-variance-shrunk": 3.0,
        "minimum-variance": 3.0,
        "hierarchical": 4.0,
    },
}
_USUAL_COST = 8.0  # of a strategy that is not listed


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


def reading_flags(separator: str | None, decimal: str | None, dates: str | None) -> Any:
    """How a text file is to be read."""
    from time2decide.markets.table_files import Reading

    return Reading(separator, decimal, dates)


def finding_lines(findings: Iterable[Any]) -> list[str]:
    """A line for each finding, as it stands in JSON."""
    return [f"Data: {Finding.from_json(one)}" for one in findings]


def validate_source(source: str) -> None:
    """Raise unless `source` is sp500 or an existing file: before torch and pandas are loaded."""
    if source != "sp500":
        validate_input_file(Path(source))


def constraint_sources(path: Path | None) -> list[Path]:
    """The files that constraints are read from."""
    from time2decide.markets.constraint_files import files_of_constraints

    return [] if path is None else files_of_constraints(path)


def use_one_thread() -> None:
    """One thread for torch and for numpy's linear algebra: on small arrays several only wait for each other.

    On a busy machine that took ten times the processor time of the work itself. The numbers are the same.
    """
    import scipy.linalg  # noqa: F401  (it has a library of its own, which must be loaded to be limited)
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)


class _StepClock:
    """Share of a backtest that is done, and the seconds left, from the rate so far.

    A step of the market policy takes many times that of a simple rule, so steps count by `_STEP_COSTS`.
    """

    def __init__(self, strategies: Iterable[str]) -> None:
        self.costs = {name: _STEP_COSTS.get(name, _USUAL_COST) for name in strategies}
        self.done = dict.fromkeys(self.costs, 0.0)
        self.began: float | None = None

    def step(self, name: str, step: int, steps: int) -> tuple[float, float]:
        """Share done before this step, and seconds left (infinite before the second step)."""
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        self.done[name] = self.costs.setdefault(name, _USUAL_COST) * step / steps
        for before in list(self.done)[: list(self.done).index(name)]:  # they have ended
            self.done[before] = self.costs[before]
        share = sum(self.done.values()) / sum(self.costs.values())
        return share, (now - self.began) * (1 - share) / share if share else math.inf


def _in_words(seconds: float) -> str:
    """A duration as a person says it."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _progress_lines(strategies: Sequence[str]) -> Callable[[str, int, int], None]:
    clock, told = _StepClock(strategies), 0.0

    def show(name: str, step: int, steps: int) -> None:
        nonlocal told
        share, left = clock.step(name, step, steps)
        now = time.monotonic()
        assert clock.began is not None
        if now - max(told, clock.began) < (_LINES_EVERY if told else _FIRST_LINE) or not math.isfinite(left):
            return
        whole = "" if told else f"{len(strategies)} strategies, {steps} steps each; "
        print(f"{whole}at {name}: {share:.0%} of all done, about {_in_words(left)} left", file=sys.stderr, flush=True)
        told = now

    return show


@contextmanager
def step_progress(strategies: Sequence[str]) -> Iterator[Callable[[str, int, int], None]]:
    """The share done and the time left on standard error: a bar on a terminal, else a line early and every half minute.

    `strategies` are the names in their order.
    """
    if not sys.stderr.isatty():
        yield _progress_lines(strategies)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, clock = bar.add_task("starting", total=1.0, left=""), _StepClock(strategies)

        def show(name: str, step: int, steps: int) -> None:
            share, left = clock.step(name, step, steps)
            text = f"about {_in_words(left)} left" if math.isfinite(left) else ""
            bar.update(task, description=name, completed=share, left=text)

        yield show
