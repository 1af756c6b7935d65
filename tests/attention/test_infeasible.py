"""Infeasible problems end early with a proof, and nothing feasible is called infeasible."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from time2decide import QP, random_qp, solve
from time2decide.attention.loop import duals_prove_infeasible


def contradictory(batch, n, m, seed, by=0.3):
    """Random problems whose last constraint contradicts a positive combination of the others."""
    qp = random_qp(batch, n, m, seed=seed)
    share = torch.rand(batch, m - 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    C, d = qp.C.clone(), qp.d.clone()
    C[:, -1] = -(share * C[:, :-1]).sum(1)
    d[:, -1] = -(share.squeeze(-1) * d[:, :-1]).sum(1) - by
    return QP(qp.A, qp.b, C, d)


@pytest.mark.parametrize("method", ["admm", "arrow_hurwicz"])
@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
def test_infeasible_instances_stop_early_and_the_others_are_solved(method, unit):
    wrong, right = contradictory(4, 5, 3, seed=1), random_qp(4, 5, 3, seed=2)
    parts = (torch.cat([getattr(wrong, name), getattr(right, name)]) for name in ("A", "b", "C", "d"))
    A, b, C, d = parts
    answer = solve(QP(A, b * unit, C, d * unit), method, max_steps=20_000)
    assert answer.status.tolist() == ["infeasible"] * 4 + ["optimal"] * 4
    assert answer.steps.max() < 5_000
    assert torch.isnan(answer.x[:4]).all()
    np.testing.assert_allclose(answer.x[4:] / unit, solve(right).x, atol=1e-6)


def test_a_given_number_of_layers_is_run_whole():
    answer = solve(contradictory(2, 5, 3, seed=1), "admm", steps=2_000)
    assert answer.status.tolist() == ["not_converged"] * 2
    assert torch.isfinite(answer.x).all()


@given(st.integers(0, 10_000), st.floats(0, 2))
def test_no_change_of_duals_proves_a_feasible_problem_infeasible(seed, spread):
    qp = contradictory(8, 4, 3, seed=seed, by=-1e-6)  # feasible, by little
    rng = np.random.default_rng(seed)
    change = torch.from_numpy(rng.normal(size=(8, 3)) * 10 ** rng.normal(scale=4 * spread, size=(8, 1)))
    assert not duals_prove_infeasible(qp, change).any()
    assert (solve(qp).status == "optimal").all()
