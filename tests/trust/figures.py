"""Figures of the trust tests: stored as rows with their provenance, and written into docs/trust.md from there.

``python -m tests.trust.figures`` fills the page after ``make trust``; an ordinary test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from time2decide.core.files import write_text
from time2decide.experiments.store import Store

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "trust.md"
STORE = Store("trust", "cpu", ROOT / "results")
_LINE = re.compile(r"^(\| `([\w-]+)` \|.*\| )([^|]*)( \| `[^|]*` \|)$", re.MULTILINE)  # name, …, figure, command


def record(name: str, text: str, seconds: float, **numbers: Any) -> None:
    """Store the figure of one promise: a sentence with {fields}, and the numbers that fill them."""
    STORE.append({"promise": name}, [{"figure": text.format(**numbers), **numbers}], seconds)


def recorded() -> dict[str, str]:
    """The figure last recorded for each promise."""
    return {row["promise"]: row["figure"] for row in STORE.rows()}


def promises(page: str) -> dict[str, str]:
    """The figure that the page gives for each promise."""
    return {name: figure for _, name, figure, _ in _LINE.findall(page)}


def filled(page: str, figures: dict[str, str]) -> str:
    """The page with these figures."""
    return _LINE.sub(lambda line: f"{line[1]}{figures.get(line[2], line[3])}{line[4]}", page)


if __name__ == "__main__":
    write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), recorded()))
