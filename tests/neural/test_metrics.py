"""Measures against their formulas and at points where they are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from sklearn.metrics import r2_score as sklearn_r2

from time2decide.neural import LabelledQPs, evaluate, histograms, labelled_qps, r2_score
from time2decide.neural.metrics import (
    HISTOGRAM_EDGES,
    constraint_violation,
    estimated_dual,
    normalised_mse,
    objective_gap,
)
from time2decide.qp import QP, InputError, kkt, random_qp, solve_exact


@pytest.fixture(scope="module")
def data() -> LabelledQPs:
    return labelled_qps(400, 5, 3, seed=9, cache=False)


def disturbed(data: LabelledQPs, size: float, seed: int = 0) -> torch.Tensor:
    return data.x + size * torch.randn(data.x.shape, generator=torch.Generator().manual_seed(seed))


def test_r2_is_the_variance_weighted_one_of_sklearn(data: LabelledQPs) -> None:
    x = disturbed(data, 0.3)
    expected = sklearn_r2(data.x.numpy(), x.numpy(), multioutput="variance_weighted")
    assert r2_score(x.double(), data.x.double()) == pytest.approx(expected, abs=1e-6)
    assert r2_score(data.x, data.x) == 1
    assert r2_score(data.x.mean(0).expand_as(data.x), data.x) == pytest.approx(0, abs=1e-6)


def test_measures_at_the_answer(data: LabelledQPs) -> None:
    row = evaluate(data, data.x, data.dual)
    assert row["r2"] == row["r2_active"] == row["r2_inactive"] == 1
    for key in ("nmse_mean", "gap_signed", "gap_absolute", "mse"):
        assert row[key] == 0
    assert row["violation"] < 1e-6
    assert row["kkt_p95"] < 1e-5


def test_measures_by_hand() -> None:
    qp = QP(torch.eye(2), torch.tensor([-3.0, -5.0]), torch.eye(2), torch.tensor([1.0, 2.0]))  # x* = (1, 2)
    x, truth = torch.tensor([[2.0, 2.0]]), torch.tensor([[1.0, 2.0]])
    assert normalised_mse(x, truth).item() == pytest.approx(1 / 5)
    assert constraint_violation(qp, x).item() == pytest.approx(0.5)  # mean of (1, 0)
    assert objective_gap(qp, x, truth).item() == pytest.approx(-12 - (-10.5))  # better than x*, since infeasible


def test_parts_make_up_the_whole(data: LabelledQPs) -> None:
    row = evaluate(data, disturbed(data, 0.1))
    share = row["active_share"]
    for key in ("nmse_mean", "violation", "gap_signed", "gap_absolute"):
        whole = share * row[f"{key}_active"] + (1 - share) * row[f"{key}_inactive"]
        assert row[key] == pytest.approx(whole, rel=1e-9)
    assert abs(row["gap_signed"]) <= row["gap_absolute"]


def test_no_part_without_instances() -> None:
    row = evaluate(free := labelled_qps(50, 4, 0, seed=1, cache=False), free.x)
    assert row["active_share"] == 0
    assert row["violation"] == 0
    assert "nmse_mean_active" not in row
    assert row["nmse_mean_inactive"] == row["nmse_mean"]


def test_estimated_dual_is_the_true_one_at_the_answer() -> None:
    qp = random_qp(300, 6, 4, seed=4)
    answer = solve_exact(qp)
    dual = estimated_dual(qp, answer.x)
    torch.testing.assert_close(dual, answer.dual, rtol=1e-6, atol=1e-7)
    assert kkt(qp, answer.x, dual).worst.max() < 1e-6


@given(seed=st.integers(0, 10_000), m=st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_estimated_dual_is_non_negative_least_squares(seed: int, m: int) -> None:
    qp = random_qp(1, 4, m, seed=seed)
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((1, 4)))
    slack = (qp.C[0] @ x[0] - qp.d[0]).numpy()
    matrix = np.vstack([qp.C[0].numpy().T, np.diag(slack)])
    right = np.concatenate([-(qp.A[0] @ x[0] + qp.b[0]).numpy(), np.zeros(m)])
    best = nnls(matrix, right)[1]
    ours = np.linalg.norm(matrix @ estimated_dual(qp, x)[0].numpy() - right)
    assert ours == pytest.approx(best, rel=1e-5, abs=1e-6)


def test_histograms_count_every_instance_once(data: LabelledQPs) -> None:
    x = disturbed(data, 0.2)
    counts = histograms(data, x)
    for name, edges in HISTOGRAM_EDGES.items():
        assert len(counts[name]) == len(edges) + 1
        assert sum(counts[name]) == len(data)
    errors = normalised_mse(x.double(), data.x.double()).numpy()
    inside = np.histogram(errors, HISTOGRAM_EDGES["nmse"])[0]
    assert counts["nmse"][1:-2] == inside.tolist()[:-1]
    assert histograms(data, data.x)["nmse"][0] == len(data)


def test_bad_input_is_named(data: LabelledQPs) -> None:
    with pytest.raises(InputError, match=r"x: expected shape \(400, 5\), found \(400, 4\)"):
        evaluate(data, torch.zeros(400, 4))
