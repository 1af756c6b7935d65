"""The rows that a daily run has seen, on disk: the same to the last bit, and damaged files refused."""

import numpy as np
import pandas as pd
import pytest

from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.validation import InputError
from time2decide.policy.seen_rows import load_seen_rows, save_seen_rows


@pytest.fixture
def table():
    array = np.random.default_rng(0).normal(0, 0.01, (40, 3))
    array[:7, 1] = np.nan
    return pd.DataFrame(array, [f"day {t}" for t in range(40)], list("ABC"))


def test_rows_come_back_to_the_last_bit(table, tmp_path):
    pd.testing.assert_frame_equal(load_seen_rows(save_seen_rows(tmp_path / "s.safetensors", table)), table)


def test_damaged_and_foreign_files_are_refused(table, tmp_path):
    path = save_seen_rows(tmp_path / "s.safetensors", table)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        content = bytearray(whole)
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content[: len(content) - int(rng.integers(3))])
        try:
            found = load_seen_rows(path)
        except InputError:
            continue
        pd.testing.assert_frame_equal(found, table)  # a harmless bit of the header
    with pytest.raises(InputError):
        load_seen_rows(tmp_path / "none")


@pytest.mark.parametrize("change", [{"dates": ["x"]}, {"assets": [1, 2, 3]}, {"format": 3}])
def test_rows_without_their_labels_are_refused(table, tmp_path, change):
    path = save_seen_rows(tmp_path / "s.safetensors", table)
    tensors, facts = load_tensors(path)
    save_tensors(path, tensors, facts | change)
    with pytest.raises(InputError, match="state: expected"):
        load_seen_rows(path)
