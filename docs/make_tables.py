"""Write the tables of the pages that quote results from the stored rows: python docs/make_tables.py.

A block between ``<!-- table EXPERIMENT START -->`` and ``<!-- end -->`` is the table of that experiment whose caption
begins with START (* for the only one), or its claims (``claims``). A figure in prose is followed by the name of its
row, ``.887<!-- EXPERIMENT FIELD key=value key=value -->``; of several rows it is the mean, or ``min FIELD``, ``max
FIELD``. `figure_of_rows` computes it; tests/test_figures_have_rows.py compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from time2decide.core.table import Table
from time2decide.experiments import get_experiment
from time2decide.experiments.registry import experiment_ids
from time2decide.experiments.store import Store, grouped_rows, measured_rows, task_key

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/paper.md", "docs/neural_solver.md")
BLOCK = re.compile(r"(<!-- table (\S+) (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def stored_rows(name: str) -> list[dict[str, Any]]:
    """Measured rows of the tasks that the preset cpu has now, or of a benchmark."""
    if name not in experiment_ids():
        return list(Store(name, "cpu", ROOT / "results").measured())
    keys = {task_key(task) for task in get_experiment(name).tasks("cpu")}
    return measured_rows(Store(name, "cpu", ROOT / "results").rows(keys))


def table_of_rows(name: str, start: str) -> str:
    """The table of an experiment or benchmark as Markdown."""
    rows = stored_rows(name)
    if name == "bench-warm":
        return str(_sequence_table(rows).markdown())
    experiment = get_experiment(name)
    if start == "claims":
        cells = [[claim.verdict, claim.text, claim.evidence] for claim in experiment.claims(rows)]
        return str(Table("", ["verdict", "claim", "evidence"], cells).markdown())
    tables = experiment.tables(rows) if rows else []
    found = [table for table in tables if start == "*" or table.caption.startswith(start)]
    return str(found[0].markdown()) if len(found) == 1 else f"*No rows yet: `time2decide reproduce {name}`.*"


def figure_of_rows(source: str) -> float:
    """The figure that a comment names."""
    name, *words = source.split()
    how = words.pop(0) if words[0] in _HOW else "mean"
    field, *conditions = words
    wanted = dict(condition.split("=", 1) for condition in conditions)
    values = [
        float(row[field])
        for row in stored_rows(name)
        if row.get(field) is not None and all(str(row.get(key)) == value for key, value in wanted.items())
    ]
    if not values:
        raise LookupError(f"no row for {source}")
    return _HOW[how](values)


_HOW: dict[str, Callable[[list[float]], float]] = {"mean": fmean, "min": min, "max": max}


def page_with_tables(text: str) -> str:
    """A page with its blocks written anew."""
    return BLOCK.sub(lambda block: f"{block[1]}{table_of_rows(block[2], block[3])}\n{block[5]}", text)


def _sequence_table(rows: list[dict[str, Any]]) -> Table:
    """`bench warm`: a line per method, a column per kind and size of sequence."""
    places = list(grouped_rows(rows, "sequence", "n"))
    cells = [
        [method, *(_sequence_cell(own, place) for place in places)]
        for method, own in grouped_rows(rows, "method").items()
    ]
    return Table("", ["µs per problem (iterations)", *(f"{kind}, n = {n}" for kind, n in places)], cells)


def _sequence_cell(rows: Iterable[dict[str, Any]], place: tuple[str, int]) -> str:
    for row in rows:
        if (row["sequence"], row["n"]) == place:
            steps = f" ({row['iterations']:.1f})" if row["iterations"] else ""
            return f"{row['us']:.0f}{steps}" + (f", {row['wrong']} off" if row["wrong"] else "")
    return "–"


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(page_with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
