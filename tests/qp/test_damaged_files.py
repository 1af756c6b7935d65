"""Damaged problem files are refused in one line, whatever was damaged."""

import random

import numpy as np

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
