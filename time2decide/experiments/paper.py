"""The paper's published figures, bundled as data, for printing beside ours."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources


@cache
def published(table: str) -> dict[tuple[str, str], float]:
    """(cell, row) -> value of one of the paper's tables; cells are written as in ``n=5;m=3;layers=1;heads=1``."""
    source = resources.files("time2decide.experiments").joinpath("published.csv")
    with source.open(encoding="utf-8") as file:
        return {
            (line["cell"], line["row"]): float(line["value"]) for line in csv.DictReader(file) if line["table"] == table
        }
