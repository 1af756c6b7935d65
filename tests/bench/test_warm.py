"""Sequences of similar problems: rows are complete, answers right, and warm starts save iterations."""

import json

import numpy as np
import pytest
import torch

from time2decide.bench.warm import warm_control_path, warm_portfolio_path, warm_rows


def test_rows_and_what_a_start_saves():
    rows = warm_rows(quick=True)
    assert json.loads(json.dumps(rows)) == rows
    for kind in ("control", "portfolio"):
        here = {row["method"]: row for row in rows if row["sequence"] == kind}
        assert len(here) == 11
        assert all(row["wrong"] == 0 for name, row in here.items() if not name.startswith(("OSQP", "PIQP")))
        iterations = [here[f"DAQP {start}"]["iterations"] for start in ("from the network", "cold")]
        assert iterations[0] < iterations[1]
        assert min(row["ratio"] for row in here.values() if "network" not in row["method"]) <= 1


@pytest.mark.parametrize("make", [warm_control_path, warm_portfolio_path])
def test_sequences_are_of_similar_problems_and_repeatable(make):
    one, two = (list(make(6, 3, 4, seed=1)) for _ in range(2))
    assert all(torch.equal(a.b, b.b) for a, b in zip(one, two, strict=True))
    assert not np.allclose(one[0].b, one[1].b)
    assert len(one) == 4
    assert len(one[0]) == 3
