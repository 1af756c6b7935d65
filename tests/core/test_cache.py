"""The cache: equal keys are answered once, and nothing but what was written is ever accepted."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from time2decide.core.cache import cache_directory, cached_array, cached_tensors
from time2decide.core.checkpoints import save_tensors

KEY = {"kind": "test", "size": (2, 3), "seed": 1}
VALUE = np.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIME2DECIDE_CACHE", str(tmp_path / "cache"))


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> np.ndarray:
        self.calls += 1
        return VALUE.copy()


def stored() -> Path:
    [file] = cache_directory().iterdir()
    return file


def test_made_once_and_the_same_after() -> None:
    make = Maker()
    for _ in range(3):
        array = cached_array(KEY, make)
        assert array.dtype == VALUE.dtype
        np.testing.assert_array_equal(array, VALUE)
        array[:] = 0  # the caller's own copy
    assert make.calls == 1
    cached_array(KEY | {"seed": 2}, make)
    cached_array(KEY, make, enabled=False)
    assert make.calls == 3
    assert len(list(cache_directory().iterdir())) == 2


def test_damaged_and_wrong_files_are_made_again() -> None:
    make = Maker()
    cached_array(KEY, make)
    whole = stored().read_bytes()
    other = {"array": torch.zeros(2, 3, dtype=torch.float64)}
    damages = [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(whole[:-5]),
        lambda path: path.write_bytes(whole + b"x"),
        lambda path: path.write_bytes(b"PK\x03\x04" + whole),
        lambda path: save_tensors(path, {"array": torch.zeros(3)}, {"key": KEY | {"seed": 2}}),
        lambda path: save_tensors(path, other, {}),
        lambda path: save_file(other, path, metadata={"time2decide": '{"key": {"kind": "test"}}'}),
    ]
    for number, damage in enumerate(damages, start=2):
        damage(stored())
        np.testing.assert_array_equal(cached_array(KEY, make), VALUE)
        np.testing.assert_array_equal(cached_array(KEY, make), VALUE)
        assert make.calls == number


def test_no_flipped_bit_is_accepted() -> None:
    make = Maker()
    cached_array(KEY, make)
    whole = stored().read_bytes()
    path, rng = stored(), random.Random(0)
    for _ in range(300):
        content = bytearray(whole)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        np.testing.assert_array_equal(cached_array(KEY, make), VALUE)


def test_a_file_without_a_checksum_is_not_data() -> None:
    make = Maker()
    cached_array(KEY, make)
    wrong = {"array": torch.zeros(2, 3, dtype=torch.float64)}
    save_file(wrong, stored(), metadata={"time2decide": '{"key": {"kind": "test", "size": [2, 3], "seed": 1}}'})
    np.testing.assert_array_equal(cached_array(KEY, make), VALUE)


def test_named_tensors_keep_names_and_types() -> None:
    made = {"a/b": torch.arange(3), "c": torch.ones(2, dtype=torch.bool), "d": torch.tensor(1.5)}
    for _ in range(2):
        found = cached_tensors(KEY, lambda: made)
        assert found.keys() == made.keys()
        assert all(torch.equal(found[name], made[name]) and found[name].dtype == made[name].dtype for name in made)


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("TIME2DECIDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/time2decide")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "time2decide"


def test_without_a_home_there_is_a_folder_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TIME2DECIDE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", none)
    make = Maker()
    for _ in range(2):
        assert np.array_equal(cached_array(KEY, make), VALUE)
    assert make.calls == 1
    assert cache_directory().stat().st_mode & 0o077 == 0  # nobody else can put a file there
