"""The benchmark of the learned solver: complete rows, true peers, iterations that are counted right."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from time2decide.bench import solvers
from time2decide.bench.solvers import labels_by_osqp, neural_rows, warm_start_row
from time2decide.qp import random_qp, solve_exact


def test_rows() -> None:
    found = neural_rows(quick=True)
    assert json.loads(json.dumps(found)) == found
    assert len({tuple(row) for row in found}) == 1  # the same keys everywhere: one table
    for size in solvers.NEURAL_SIZES:
        here = {row["what"]: row for row in found if (row["n"], row["m"]) == size and row["tol"] is None}
        assert len(here) == 6
        for row in here.values():
            assert row["instances_per_second"] == pytest.approx(1e6 / row["solver_us"])
            assert row["r2"] > 0.99
        assert here["neural+polish against exact"]["kkt_max"] <= 1e-8
        assert here["exact against exact"]["ratio"] == 1
    warm = [row for row in found if row["tol"] is not None]
    assert {row["what"] for row in warm} == {f"warm start of {name}" for name in ("admm", "osqp", "arrow_hurwicz")}


def test_osqp_is_updated_to_every_instance() -> None:
    qp = random_qp(20, 6, 4, seed=1)
    x, dual = labels_by_osqp(qp, eps_abs=1e-9, eps_rel=1e-9, max_iter=50_000)
    exact = solve_exact(qp)
    torch.testing.assert_close(x, exact.x, atol=1e-5, rtol=0)
    torch.testing.assert_close(dual, exact.dual, atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["admm", "osqp", "arrow_hurwicz"])
def test_warm_starts_save_at_least_half_of_the_iterations(method: str) -> None:
    row = warm_start_row(random_qp(40, 5, 3, seed=20_261_100), method, 1e-5)
    assert row["saved_median"] >= 0.5
    assert row["warm_median"] < row["cold_median"]


def test_saved_share_is_nothing_when_the_prediction_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "predict_solution", lambda qp: (0 * qp.b, 0 * qp.d))
    row = warm_start_row(random_qp(10, 5, 3, seed=2), "admm", 1e-5)
    assert row["saved_median"] == 0
    assert np.isclose(row["ratio"], 1)
