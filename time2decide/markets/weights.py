"""Portfolio weights as files: two columns, `asset,weight`."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd

from time2decide.core.files import validate_input_file, write_text
from time2decide.core.validation import InputError

_HEADER = ["asset", "weight"]


def read_weights(path: str | Path) -> pd.Series:
    """The weights of a CSV file with the columns `asset,weight`, by asset; refused with the row in question."""
    path = Path(path)
    validate_input_file(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file, strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path.name}: expected comma-separated text in UTF-8 ({error})") from None
    if not rows or rows[0] != _HEADER:
        found = ",".join(rows[0])[:60] if rows else "an empty file"
        raise InputError(f"{path.name}: expected the columns asset,weight, found {found}")
    weights: dict[str, float] = {}
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != 2:
            raise InputError(f"{path.name}: row {number}: expected 2 cells, found {len(row)}")
        if row[0] in weights:
            raise InputError(f"{path.name}: row {number}: expected distinct assets, found {row[0]!r} again")
        try:
            weights[row[0]] = float(row[1])
        except ValueError:
            raise InputError(f"{path.name}: row {number} ({row[0]}): expected a number, found {row[1]!r}") from None
    if not weights:
        raise InputError(f"{path.name}: expected a row for each asset, found none")
    return pd.Series(weights, name="weight", dtype=float)


def write_weights(weights: pd.Series, path: str | Path) -> Path:
    """Write weights for `read_weights`, whole or not at all."""
    path = Path(path)
    if path.suffix.lower() != ".csv":
        raise InputError(f"out: expected a name ending in .csv, found {path.name}")
    if not path.parent.is_dir():
        raise InputError(f"out: expected an existing folder, found {path.parent}")
    lines = [",".join(_HEADER), *(f"{_quoted(str(asset))},{float(w)!r}" for asset, w in weights.items())]
    write_text(path, "\n".join(lines) + "\n")
    return path


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\n') else text
