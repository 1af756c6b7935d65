"""`neural` and `neural+polish` as methods of `solve`: shapes, units, certificates, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import time2decide
from time2decide import QP, InputError, random_qp, solve, solve_qp
from time2decide.neural import solver as solver_module
from time2decide.neural.equivariant import EquivariantConfig, EquivariantSolver
from time2decide.neural.solver import predict_solution, solve_neural
from time2decide.qp import kkt, solve_exact

METHODS = ("neural", "neural+polish")


def test_methods_are_listed() -> None:
    assert set(METHODS) <= set(time2decide.METHODS)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 10),
    m=st.integers(0, 14),
    seed=st.integers(0, 10**6),
    power=st.integers(-3, 3),
    kappa=st.sampled_from([None, (1.2, 2.0), (50.0, 500.0)]),
)
def test_every_polished_answer_is_certified(n: int, m: int, seed: int, power: int, kappa: object) -> None:
    """KKT residual at most the tolerance, computed anew from the problem, or the status says otherwise."""
    qp = random_qp(8, n, m, seed=seed, kappa=kappa)  # type: ignore[arg-type]
    qp = QP(qp.A, 10.0**power * qp.b, qp.C, 10.0**power * qp.d)
    answer = solve(qp, "neural+polish", tol=1e-8)
    residual = kkt(qp, answer.x, answer.dual).worst.numpy()
    assert ((residual <= 1e-8) == (answer.status == "optimal")).all()
    assert (answer.status == "optimal").all()  # these problems are all solvable to 1e-8
    assert set(answer.how) <= {"predicted", "repaired", "exact"}


@pytest.mark.parametrize("size", [(5, 3), (20, 16)])
def test_almost_all_are_certified_without_the_exact_solver(size: tuple[int, int]) -> None:
    answer = solve(random_qp(1000, *size, seed=20_260_800), "neural+polish")
    assert (answer.kkt_residual <= 1e-8).all()
    assert (answer.how != "exact").mean() >= 0.99
    assert (answer.how == "predicted").mean() >= 0.99


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [0, 3])
def test_shape_type_and_precision_follow_the_problem(method: str, dtype: type, m: int) -> None:
    made = random_qp(4, 5, m, seed=1)
    arrays = [v.numpy().astype(dtype) for v in (made.A, made.b, made.C, made.d)]
    arrays = arrays if m else arrays[:2]
    batch, single = solve(QP(*arrays), method), solve(QP(*(v[0] for v in arrays)), method)
    tensors = solve(QP(*map(torch.from_numpy, arrays)), method)
    assert isinstance(batch.x, np.ndarray)
    assert batch.x.dtype == dtype
    assert (batch.x.shape, batch.dual.shape) == ((4, 5), (4, m))
    assert (single.x.shape, single.dual.shape) == ((5,), (m,))
    assert isinstance(single.status, str)
    assert isinstance(tensors.x, torch.Tensor)
    assert tensors.x.dtype == (torch.float32 if dtype is np.float32 else torch.float64)
    exact = solve_exact(made)
    np.testing.assert_allclose(batch.x, exact.x, atol=2e-3)
    np.testing.assert_allclose(single.x, batch.x[0], atol=1e-4)
    if method == "neural+polish":
        assert (batch.status == "optimal").all()
        np.testing.assert_allclose(batch.x, exact.x, atol=1e-5 if dtype is np.float32 else 1e-10)


def test_units_do_not_matter() -> None:
    """Prices in cents or in millions: the prediction is the same up to the change of units, even beyond float32."""
    qp = random_qp(50, 6, 4, seed=2)
    x, dual = predict_solution(qp)
    scale = torch.logspace(-8, 8, 6, dtype=torch.float64)  # x = scale · y
    rows = torch.logspace(30, -30, 4, dtype=torch.float64)
    size = 1e-25
    other = QP(
        size * scale.unsqueeze(1) * qp.A * scale,
        size * qp.b * scale,
        rows.unsqueeze(1) * qp.C * scale,
        rows * qp.d,
        check=False,
    )
    y, multipliers = predict_solution(other)
    torch.testing.assert_close(y * scale, x, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(multipliers * rows / size, dual, rtol=1e-3, atol=1e-4)


def test_large_batches_are_cut_and_the_answers_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    qp = random_qp(100, 7, 6, seed=3)
    whole = solve(qp, "neural+polish")
    monkeypatch.setattr(solver_module, "_NUMBERS_AT_ONCE", 10_000)
    cut = solve(qp, "neural+polish")
    np.testing.assert_array_equal(whole.how, cut.how)
    torch.testing.assert_close(whole.x, cut.x, rtol=0, atol=1e-10)
    x, _ = predict_solution(qp)
    torch.testing.assert_close(x, predict_solution(qp)[0], rtol=0, atol=0)


def test_steps_are_the_depth_and_status_is_honest() -> None:
    qp = random_qp(200, 10, 9, seed=4)
    shallow, deep = solve(qp, "neural", steps=0, tol=1e-3), solve(qp, "neural", steps=9, tol=1e-3)
    closing = set(shallow.steps)
    assert set(deep.steps) == {9 + steps for steps in closing}
    assert (deep.status == "optimal").mean() > 0.97 > (shallow.status == "optimal").mean()
    residual = deep.kkt_residual.numpy()
    assert ((residual <= 1e-3) == (deep.status == "optimal")).all()
    assert (solve(qp, "neural", tol=1e-12).status == "not_converged").any()


def test_infeasible_problems_are_said_to_be() -> None:
    qp = QP(np.eye(2), [-1.0, -1.0], [[1.0, 0.0], [-1.0, 0.0]], [-1.0, -1.0])
    answer = solve(qp, "neural+polish")
    assert answer.status == "infeasible"
    assert np.isnan(answer.x).all()
    assert solve(qp, "neural").status == "not_converged"


def test_another_checkpoint(tmp_path: object) -> None:
    model = EquivariantSolver(EquivariantConfig(width=4, hidden=8, depth=3)).eval()
    model.save_pretrained(str(tmp_path))
    qp = random_qp(10, 4, 3, seed=5)
    by_folder = solve(qp, "neural", checkpoint=str(tmp_path))
    by_model = solve_neural(qp, checkpoint=model)
    assert torch.equal(by_folder.x, by_model.x)
    assert set(by_folder.steps) == {3 + model.config.closing}


def test_qpsolvers_signature() -> None:
    x = solve_qp(np.eye(2), [-3.0, -5.0], ub=[1.0, 2.0], solver="neural+polish")
    np.testing.assert_allclose(x, [1.0, 2.0], atol=1e-12)


@pytest.mark.parametrize("kind", ["R", "C"])
def test_other_classes_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match=f"qp: expected a problem of class LC or U .* found class {kind}"):
        solve(random_qp(3, 4, kind=kind), "neural")


def test_singular_matrices_do_not_disturb_the_others() -> None:
    definite, singular = np.eye(2), np.array([[1.0, 1.0], [1.0, 1.0]])
    for bad in (singular, np.diag([1.0, 0.0]), singular + 1e-15 * np.eye(2)):
        batch = QP(np.stack([definite, bad]), np.array([1.0, 0.0]), np.eye(2), np.ones(2), lb=-9.0)
        polished, learned, layers = (solve(batch, method) for method in ("neural+polish", "neural", "admm"))
        np.testing.assert_allclose(polished.x[0], [-1.0, 0.0], atol=1e-12)
        assert polished.status.tolist() == ["optimal", "optimal"]
        assert polished.how[1] == "exact"
        assert learned.status.tolist() == layers.status.tolist() == ["optimal", "not_converged"]
        with pytest.raises(InputError, match=r"A: expected positive definite for a learned solver, .* in problem 0;"):
            solve(QP(bad, np.ones(2)), "neural")


def test_bad_arguments() -> None:
    qp = random_qp(2, 4, 3)
    for options, message in (
        ({"tol": -1.0}, "tol: expected a positive number"),
        ({"steps": -1}, "steps: expected a whole number of at least 0"),
        ({"rho": 1.0}, "rho: expected no such option for method 'neural'"),
        ({"history": True}, "history: expected no such option"),
        ({"initial": (np.zeros(4), np.zeros(3))}, "initial: expected no such option"),
        ({"checkpoint": "nowhere"}, "checkpoint: expected qp or a folder"),
    ):
        with pytest.raises(InputError, match=message):
            solve(qp, "neural", **options)


@pytest.mark.parametrize("method", ["neural", "neural+polish"])
@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e6, 1e12])
def test_answer_and_status_do_not_depend_on_units(method, unit):
    qp = random_qp(64, 10, 9, seed=21)
    plain = solve(qp, method, tol=1e-4 if method == "neural" else 1e-8)
    for scaled, x_unit, dual_unit in (
        (QP(unit * qp.A, unit * qp.b, qp.C, qp.d), 1.0, unit),  # of the objective
        (QP(qp.A, unit * qp.b, qp.C, unit * qp.d), unit, unit),  # of x
        (QP(qp.A, qp.b, unit * qp.C, unit * qp.d), 1.0, 1 / unit),  # of the constraints
    ):
        answer = solve(scaled, method, tol=1e-4 if method == "neural" else 1e-8)
        assert answer.status.tolist() == plain.status.tolist()
        assert np.array_equal(answer.how, plain.how)
        size = plain.x.abs().max()
        torch.testing.assert_close(answer.x / x_unit, plain.x, rtol=0, atol=1e-5 * size.item())
        torch.testing.assert_close(answer.dual / dual_unit, plain.dual, rtol=0, atol=1e-4 * plain.dual.max().item())
    if method == "neural+polish":
        tiny = solve(QP(1e-9 * qp.A, 1e-9 * qp.b, qp.C, qp.d), method, steps=0)
        torch.testing.assert_close(tiny.x, solve(qp).x, rtol=0, atol=1e-9)


def test_too_many_constraints_go_to_the_exact_solver_or_are_refused():
    rng = np.random.default_rng(0)
    qp = QP(np.eye(3), rng.normal(size=3), rng.normal(size=(501, 3)), np.ones(501))
    answer = solve(qp, "neural+polish")
    assert (answer.how, answer.status, answer.steps) == ("exact", "optimal", 0)
    np.testing.assert_allclose(answer.x, solve(qp).x)
    with pytest.raises(InputError, match="qp: expected at most 500 constraints for a learned solver, found 501"):
        solve(qp, "neural")
