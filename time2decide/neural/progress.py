"""A bar for a training: what is done, how good it is, how long it will take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def training_progress(total: int, done: int, wanted: bool | None) -> Iterator[Callable[[Any], None]]:
    """Give a function to be called with the state after every step.

    The bar counts steps of all epochs, from those already `done`, on standard error. With `wanted` None it is shown
    on a terminal only.
    """
    shown = sys.stderr.isatty() if wanted is None else wanted
    if not shown:
        yield lambda state: None
        return
    columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[best]}"))
    with Progress(*columns, *times, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=total, completed=done, epoch=0, best="")

        def show(state: Any) -> None:
            best = "" if state.best_loss is None else f"best validation loss {state.best_loss:.4g}"
            bar.update(task, completed=state.step, epoch=state.epoch, best=best)

        yield show
