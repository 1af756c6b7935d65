"""Certified answers: a right active set is recognised, a wrong one repaired or handed to the exact solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from time2decide.neural import polish as polish_module
from time2decide.neural.polish import polish_prediction
from time2decide.qp import QP, kkt, random_qp, reference_problems, solve_exact


def test_the_true_active_set_is_certified_at_once() -> None:
    qp = random_qp(200, 8, 6, seed=1)
    exact = solve_exact(qp)
    answer = polish_prediction(qp, exact.dual > 1e-9)
    assert set(answer.how) == {"predicted"}
    assert answer.residual.max() < 1e-12
    torch.testing.assert_close(answer.x, exact.x, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(answer.dual, exact.dual, rtol=1e-8, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 8), m=st.integers(1, 12), seed=st.integers(0, 10**6), share=st.floats(0, 1))
def test_any_guess_ends_at_the_answer(n: int, m: int, seed: int, share: float) -> None:
    """Whatever the guess, even more active rows than variables, the certificate is true and so is the answer."""
    qp = random_qp(6, n, m, seed=seed)
    guess = torch.from_numpy(np.random.default_rng(seed).random((6, m)) < share)
    answer = polish_prediction(qp, guess)
    assert (answer.status == "optimal").all()
    assert kkt(qp, answer.x, answer.dual).worst.max() <= 1e-8
    torch.testing.assert_close(answer.residual, kkt(qp, answer.x, answer.dual).worst)
    torch.testing.assert_close(answer.x, solve_exact(qp).x, rtol=1e-5, atol=1e-7)


def test_wrong_guesses_are_repaired_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    qp = random_qp(300, 10, 9, seed=2)
    active = solve_exact(qp).dual > 1e-9
    wrong = active.clone()
    wrong[::2, 0] ^= True
    assert set(polish_prediction(qp, wrong).how[::2]) == {"repaired"}
    assert set(polish_prediction(qp, wrong).how[1::2]) == {"predicted"}
    monkeypatch.setattr(polish_module, "FULL_EXCHANGES", 0)
    monkeypatch.setattr(polish_module, "SINGLE_EXCHANGES", 0)
    fallen = polish_prediction(qp, wrong)
    assert set(fallen.how[::2]) == {"exact"}
    assert (fallen.status == "optimal").all()


def test_the_guess_is_not_changed() -> None:
    guess = torch.ones(5, 4, dtype=torch.bool)
    polish_prediction(random_qp(5, 6, 4, seed=3), guess)
    assert guess.all()


def test_infeasible_instances_are_reported_and_the_others_unaffected() -> None:
    C = np.tile([[1.0, 0.0], [-1.0, 0.0]], (3, 1, 1))
    d = np.array([[1.0, 1.0], [-1.0, -1.0], [0.5, 1.0]])  # the second asks for x ≤ −1 and x ≥ 1
    qp = QP(torch.eye(2).double(), torch.tensor([-3.0, -5.0]).double(), torch.from_numpy(C), torch.from_numpy(d))
    answer = polish_prediction(qp, torch.zeros(3, 2, dtype=torch.bool))
    assert answer.status.tolist() == ["optimal", "infeasible", "optimal"]
    assert answer.how[1] == "exact"
    assert torch.isnan(answer.x[1]).all()
    torch.testing.assert_close(answer.x[[0, 2]], torch.tensor([[1.0, 5.0], [0.5, 5.0]]).double())


def test_textbook_problems_and_degenerate_rows() -> None:
    for reference in reference_problems():
        if reference.qp.kind in ("U", "LC"):
            qp = reference.qp.to(torch.float64)
            answer = polish_prediction(qp, torch.zeros(1, qp.m, dtype=torch.bool))
            np.testing.assert_allclose(answer.x[0], reference.x, atol=1e-12)
    # the same row twice, and a row of zeros: every guess must still end at (½, ½)
    rows, bounds = [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]], [1.0, 1.0, 1.0]
    qp = QP(torch.eye(2).double(), -torch.ones(2).double(), torch.tensor(rows).double(), torch.tensor(bounds).double())
    for code in range(8):
        guess = torch.tensor([[bool(code >> bit & 1) for bit in range(3)]])
        answer = polish_prediction(qp, guess)
        assert answer.status[0] == "optimal"
        np.testing.assert_allclose(answer.x[0], [0.5, 0.5], atol=1e-8)


def test_ill_conditioned_problems() -> None:
    qp = random_qp(50, 8, 6, seed=5)
    scale = torch.logspace(-4, 4, 8, dtype=torch.float64)
    hard = QP(scale.unsqueeze(1) * qp.A * scale, qp.b * scale, qp.C * scale, qp.d)  # κ(A) up to 1e18
    answer = polish_prediction(hard, solve_exact(qp).dual > 1e-9)
    assert (answer.status == "optimal").all()
    assert (answer.how == "predicted").mean() > 0.9


def test_tolerance_beyond_reach_is_not_claimed() -> None:
    answer = polish_prediction(random_qp(20, 6, 4, seed=6), torch.zeros(20, 4, dtype=torch.bool), tol=1e-30)
    within = (answer.residual <= 1e-30).numpy()
    assert not within.all()
    assert (answer.status[~within] == "not_converged").all()
