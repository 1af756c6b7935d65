"""A `MarketState` on disk, with the rows that it has read. Going on from it gives the same bits as a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.validation import InputError, describe_value, expect
from time2decide.forecasting.market_state import MarketState
from time2decide.forecasting.recent_rows import RecentRows
from time2decide.markets.validation import validate_delay

_FORMAT = 3
_BLOCK, _PAIRS, _SEEN = "_block", "_pairs", "returns"


def save_market_state(path: str | Path, state: MarketState, table: pd.DataFrame) -> Path:
    """Write a state that has read all rows of a table of returns, whose index is text."""
    arrays: dict[str, np.ndarray] = {_SEEN: table.to_numpy(dtype=float)}
    numbers: dict[str, float | bool] = {}
    for name, value in vars(state).items():
        if isinstance(value, RecentRows):
            arrays[name] = value.back(1, value._length)
        elif name == _BLOCK:
            arrays["block_z"] = np.array([z for z, _ in value]).reshape(-1, state.assets)
            arrays["block_known"] = np.array([known for _, known in value], dtype=bool).reshape(-1, state.assets)
        elif isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            numbers[name] = value
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    assets = [str(column) for column in table.columns]
    return save_tensors(
        path, tensors, {"format": _FORMAT, "numbers": numbers, "dates": list(table.index), "assets": assets}
    )


def load_market_state(path: str | Path) -> tuple[MarketState, pd.DataFrame]:
    """The state of a file, and the table of returns (dates as text) that it has read; else an `InputError`."""
    tensors, facts = load_tensors(path, need_checksum=True)
    expect(facts.get("format") == _FORMAT, "state", f"a state of format {_FORMAT}", facts.get("format"))
    try:
        named = all(isinstance(one, str) for one in (*facts["dates"], *facts["assets"]))
        expect(named, "state", "dates and assets as text", "others")
        table = pd.DataFrame(tensors[_SEEN].numpy(), index=facts["dates"], columns=facts["assets"])
        numbers = facts["numbers"]
        state = MarketState(table.shape[1], float(numbers["periods_per_year"]), validate_delay(numbers["delay"]))
        for name, value in vars(state).items():
            setattr(state, name, _restored(name, value, tensors, numbers))
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"state: expected the state of a market in {path}, found {type(error).__name__}") from None
    fits = state.rows == len(table)
    expect(fits, "state", f"{state.rows} rows in {path}", len(table))
    return state, table


def _restored(name: str, value: Any, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> Any:
    """An attribute of a state in place of its value in an empty one."""
    if isinstance(value, RecentRows):
        empty = value.back(1, value._length)
        value._rows[: value._length] = _array(name, tensors, empty.dtype, empty.shape)
        return value
    m = tensors[_SEEN].shape[1]
    if name == _BLOCK:
        rows = len(tensors["block_z"])
        z, known = (_array(f"block_{k}", tensors, t, (rows, m)) for k, t in (("z", np.float64), ("known", np.bool_)))
        return list(zip(z, known, strict=True))
    if isinstance(value, np.ndarray):
        wide = (len(value), m, m)  # with gaps the pairs have a matrix each
        shape = wide if name == _PAIRS and tensors[name].shape == wide else value.shape
        return _array(name, tensors, value.dtype, shape)
    found = numbers[name]
    expect(type(found) is type(value) and np.isfinite(found), "state", f"{name} as a number", describe_value(found))
    return found


def _array(name: str, tensors: dict[str, torch.Tensor], kind: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A stored array of finite numbers of this type and shape."""
    found = np.asarray(tensors[name].numpy())
    fits = found.dtype == kind and found.shape == shape and bool(np.isfinite(found).all())
    expect(fits, "state", f"{name} with finite numbers of shape {shape}", f"{found.dtype} of shape {found.shape}")
    return found
