"""Digests: the same for the same content, and the ones that stored rows are keyed by."""

from pathlib import Path

import numpy as np

from time2decide.core.provenance import (
    array_digest,
    data_digest,
    file_digest,
    json_digest,
    text_digest,
)


def test_digests_are_those_that_stored_rows_are_keyed_by(tmp_path: Path) -> None:
    assert json_digest({"a": 1, "b": [1, 2]}) == json_digest({"b": [1, 2], "a": 1}) == "e6f20bdc3757e5e7"
    assert json_digest({"a": 1}) != json_digest({"a": 2})
    (tmp_path / "file").write_bytes(b"abc")
    assert file_digest(tmp_path / "file", 12) == "ba7816bf8f01"


def test_arrays_are_told_apart_by_every_bit_but_not_by_the_kind_of_nan() -> None:
    array = np.array([[0.1, np.nan], [0.0, -1.0]])
    other_nan = array.copy()
    other_nan.view(np.uint64)[0, 1] ^= 1
    assert array_digest(array) == array_digest(np.asfortranarray(array)) == array_digest(other_nan)
    assert array_digest(array) == array_digest(np.array([[0.1, np.nan], [-0.0, -1.0]]))
    assert array_digest(array) != array_digest(np.nextafter(array, 1))
    assert array_digest(np.zeros(2)) == "374708fff7719dd5979ec875d56cd2286f6d3cf7ec317a3b25632aab28ec37bb"


def test_the_digest_of_data_forgives_rounding_and_nothing_else() -> None:
    data = np.random.default_rng(0).standard_normal((30, 400, 16))
    first = data_digest(data)
    for k in range(20):
        assert first == data_digest(data * (1 + 1e-13 * np.random.default_rng(k).random(data.shape)))
    changed = data.copy()
    changed[17, 200, 3] += 0.1
    others = [changed, data[::-1], 2 * data, data[:29], data.reshape(30, 16, 400), np.where(data > 4.0, np.nan, data)]
    assert len({first, *(data_digest(other) for other in others)}) == 1 + len(others)
    assert data_digest(data, changed) != data_digest(changed, data)


def test_texts() -> None:
    assert text_digest(["a", "b"]) != text_digest(["ab"])
