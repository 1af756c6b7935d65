"""A state on disk: going on from it gives the same bits as having read everything."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.validation import InputError
from time2decide.forecasting.market_state import MarketState
from time2decide.forecasting.state_files import load_market_state, save_market_state


def table_of(rows, m, seed, gaps=False, predictable=False):
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(rows, m))
    if predictable:  # the kernel bank is asked
        for t in range(1, rows):
            noise[t] -= 0.6 * noise[t - 1]
    array = 0.01 * noise + 0.005 * rng.normal(size=(rows, 1))
    if gaps:
        array[:60, 0] = np.nan
        array[rng.random((rows, m)) < 0.03] = np.nan
    return pd.DataFrame(array, [f"day {t}" for t in range(rows)], [f"A{i}" for i in range(m)])


def same(one, other):
    for field in dataclasses.fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), err_msg=field.name)


@pytest.mark.parametrize("kind", ["plain", "gaps", "predictable"])
@pytest.mark.parametrize("cut", [1, 15, 130, 300])
def test_going_on_gives_the_same_bits(kind, cut, tmp_path):
    table = table_of(330, 4, cut, gaps=kind == "gaps", predictable=kind == "predictable")
    array = table.to_numpy()
    state = MarketState(4).extend(array[:cut])
    save_market_state(tmp_path / "state.safetensors", state, table.iloc[:cut])
    loaded, seen = load_market_state(tmp_path / "state.safetensors")
    pd.testing.assert_frame_equal(seen, table.iloc[:cut])
    same(loaded.tokens(), state.tokens())
    for t in range(cut, cut + 10):
        loaded.update(array[t])
    loaded.extend(array[cut + 10 :])
    same(loaded.tokens(), MarketState(4).extend(array).tokens())


def test_damaged_and_foreign_files_are_refused(tmp_path):
    table = table_of(40, 3, 0)
    path = save_market_state(tmp_path / "s.safetensors", MarketState(3).extend(table.to_numpy()), table)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        content = bytearray(whole)
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content[: len(content) - int(rng.integers(3))])
        try:
            found, _ = load_market_state(path)
        except InputError:
            continue
        same(found.tokens(), MarketState(3).extend(table.to_numpy()).tokens())  # a harmless bit of the header
    with pytest.raises(InputError):
        load_market_state(tmp_path / "none")


@pytest.mark.parametrize("name", ["_moments", "_residuals", "_pairs", "block_z", "_before"])
@pytest.mark.parametrize("change", [lambda one: one[:-1], lambda one: one[..., None], lambda one: one * np.nan])
def test_arrays_of_another_shape_or_without_numbers_are_refused(tmp_path, name, change):
    table = table_of(40, 3, 0)
    path = save_market_state(tmp_path / "s.safetensors", MarketState(3).extend(table.to_numpy()), table)
    tensors, facts = load_tensors(path)
    if not len(tensors[name]):
        tensors[name] = tensors[name].new_zeros(2, *tensors[name].shape[1:])
    save_tensors(path, tensors | {name: change(tensors[name]).contiguous()}, facts)
    with pytest.raises(InputError, match="state: expected"):
        load_market_state(path)
