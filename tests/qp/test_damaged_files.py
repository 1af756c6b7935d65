"""Damaged problem files are refused in one line, whatever was damaged."""

import random

import numpy as np
import pytest

from time2decide import QP, solve
from time2decide.core.validation import InputError
from time2decide.qp.files import read_problem


def test_a_damaged_archive_never_ends_in_a_raw_error(tmp_path):
    path, rng = tmp_path / "problem.npz", random.Random(0)
    np.savez_compressed(path, A=np.eye(3), b=np.ones(3), C=-np.eye(3), d=np.ones(3))
    whole = path.read_bytes()
    refused = []
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3, 20])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
        try:
            read_problem(path)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert not any("\n" in text for text in refused)


def test_a_small_archive_of_much_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "problem.npz"
    np.savez_compressed(path, A=np.zeros((1000, 1000)), b=np.zeros(1000))
    monkeypatch.setattr("time2decide.qp.files._MOST_BYTES", 2**20)
    with pytest.raises(InputError, match="archive: expected at most 1 MB, found 7 MB unpacked"):
        read_problem(path)


def test_numbers_at_the_ends_of_what_a_problem_takes_are_judged_without_warnings():
    big = QP(np.array([[9e149, 0.0], [0.0, 1e-300]]), np.array([-9e149, 1e-300]), lb=np.array([-1e300, -1e300]))
    assert isinstance(solve(big).status, str)
    with pytest.raises(InputError, match=r"A: expected numbers of at most 1e\+150"):
        QP(np.array([[2e300]]), np.array([1.0]))
