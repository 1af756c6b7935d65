"""The rows that a daily run has seen, on disk: a table whose past is another one later is noticed to the number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.provenance import text_digest
from time2decide.core.validation import InputError, expect

_FORMAT = 4  # until 3 the file held the state of the policy as well


def save_seen_rows(path: str | Path, table: pd.DataFrame) -> Path:
    """Write the rows of a table of returns, whose index is text."""
    rows = {"returns": torch.from_numpy(np.ascontiguousarray(table.to_numpy(dtype=float)))}
    assets, dates = [str(column) for column in table.columns], list(table.index)
    return save_tensors(
        path, rows, {"format": _FORMAT, "dates": dates, "assets": assets, "labels": text_digest([*dates, *assets])}
    )


def load_seen_rows(path: str | Path) -> pd.DataFrame:
    """The table of returns (dates as text) of a file; else an `InputError`."""
    tensors, facts = load_tensors(path, need_checksum=True)
    expect(facts.get("format") == _FORMAT, "state", f"a state of format {_FORMAT}", facts.get("format"))
    try:
        named = all(isinstance(one, str) for one in (*facts["dates"], *facts["assets"]))
        expect(named, "state", "dates and assets as text", "others")
        whole = facts["labels"] == text_digest([*facts["dates"], *facts["assets"]])
        expect(whole, "state", "the dates and assets that were written", "others")
        return pd.DataFrame(tensors["returns"].numpy(), index=facts["dates"], columns=facts["assets"], dtype=float)
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"state: expected the rows of a table in {path}, found {type(error).__name__}") from None
