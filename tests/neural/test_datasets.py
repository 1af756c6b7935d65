"""Data sets: exact answers, reproducible, cached under a key of all their parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from time2decide.core.cache import cache_directory
from time2decide.neural import labelled_qps, paper_counts
from time2decide.neural.datasets import LabelledQPs
from time2decide.qp import InputError, kkt, random_qp


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIME2DECIDE_CACHE", str(tmp_path))


def same(one: LabelledQPs, other: LabelledQPs) -> bool:
    pairs = [(getattr(one.qp, key), getattr(other.qp, key)) for key in "AbCd"]
    pairs += [(getattr(one, key), getattr(other, key)) for key in ("x", "dual", "x_init")]
    return all(torch.equal(a, b) for a, b in pairs)


def test_answers_are_exact_for_the_rounded_problems() -> None:
    data = labelled_qps(500, 5, 3, seed=42)
    assert data.x.dtype == torch.float32
    residual = kkt(data.qp.to(torch.float64), data.x.double(), data.dual.double()).worst
    assert residual.max() < 1e-4
    assert residual.median() < 1e-6
    assert 0.1 < data.constrained.double().mean() < 0.9
    torch.testing.assert_close(data.qp.A, random_qp(500, 5, 3, seed=42).A.float(), rtol=0, atol=0)
    assert data.tokens().shape == (500, 11, 5)


def test_second_time_from_the_disk_and_the_same() -> None:
    first = labelled_qps(50, 4, 2, seed=1)
    [file] = cache_directory().iterdir()
    stamp = file.stat().st_mtime_ns
    assert same(first, labelled_qps(50, 4, 2, seed=1))
    assert same(first, labelled_qps(50, 4, 2, seed=1, cache=False))
    assert file.stat().st_mtime_ns == stamp
    assert len(list(cache_directory().iterdir())) == 1


def test_every_parameter_is_part_of_the_key() -> None:
    labelled_qps(20, 4, 2, seed=1)
    labelled_qps(21, 4, 2, seed=1)
    labelled_qps(20, 5, 2, seed=1)
    labelled_qps(20, 4, 3, seed=1)
    labelled_qps(20, 4, 2, seed=2)
    labelled_qps(20, 4, 2, seed=1, kappa=(2, 5))
    labelled_qps(20, 4, 2, seed=1, kappa=(5, 10))
    assert len(list(cache_directory().iterdir())) == 7


def test_a_stored_set_of_other_parameters_is_not_used() -> None:
    right = labelled_qps(20, 4, 2, seed=1)
    [file] = cache_directory().iterdir()
    labelled_qps(20, 4, 2, seed=2)
    [other] = set(cache_directory().iterdir()) - {file}
    file.write_bytes(other.read_bytes())
    assert same(right, labelled_qps(20, 4, 2, seed=1))


def test_counts_of_the_paper() -> None:
    assert paper_counts(10) == {"train": 50_000, "validation": 10_000, "test": 10_000}
    assert paper_counts(15) == {"train": 100_000, "validation": 20_000, "test": 20_000}


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="count: expected a whole number of at least 1, found 0"):
        labelled_qps(0, 5, 3, seed=1)
    with pytest.raises(InputError, match="seed: expected a whole number of at least 0, found -1"):
        labelled_qps(5, 5, 3, seed=-1)


def test_scaled_tokens_are_of_one_order() -> None:
    data = labelled_qps(2000, 15, 10, seed=1, cache=False)
    tokens, scaled = data.tokens(), data.tokens(scaled=True)
    for part, factor in ((slice(0, 15), 1 / 15), (slice(15, 26), 15**-0.5), (26, 10**-0.5 / 1.5)):
        torch.testing.assert_close(scaled[:, part], tokens[:, part] * factor)
    sizes = scaled.norm(dim=-1).mean(0)
    assert sizes[-1] == 0  # x_init
    assert 0.8 < sizes[:-1].min() <= sizes[:-1].max() < 1.6
