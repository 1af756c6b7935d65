"""A table before it has a form, and how its figures are written."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, stdev


@dataclass(frozen=True)
class Block:
    """One table: a caption, the names of its columns, cells of text, a note; the first column names the row."""

    caption: str
    columns: list[str]
    cells: list[list[str]]
    note: str = ""


def pair(ours: float | None, paper: float | None, digits: int = 3) -> str:
    """Ours, and the paper's in brackets."""
    left = "–" if ours is None else f"{ours:.{digits}f}"
    return f"{left} ({'–' if paper is None else f'{paper:.{digits}f}'})"


def estimate(values: list[float], digits: int) -> str:
    """Mean ± standard error."""
    if not values:
        return "–"
    error = f" ± {stdev(values) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{error}"
