from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from time2decide import QP, InputError, random_qp, solve
from time2decide.qp import KAPPA_RANGES, kkt
from time2decide.qp.problem import _is_semidefinite, cholesky_factor


def eye(n=3):
    return np.eye(n)


BAD = {
    "A not square": (dict(A=np.ones((2, 3)), b=np.ones(3)), "A: expected shape square"),
    "A one-dimensional": (dict(A=np.ones(3), b=np.ones(3)), "A: expected shape (n, n)"),
    "A empty": (dict(A=np.zeros((0, 0)), b=np.zeros(0)), "A: expected at least one variable"),
    "A asymmetric": (dict(A=[[1.0, 2.0], [0.0, 1.0]], b=[0.0, 0.0]), "A: expected symmetric"),
    "A indefinite": (dict(A=np.diag([1.0, -1.0]), b=[0.0, 0.0]), "A: expected positive semidefinite"),
    "A NaN": (dict(A=np.diag([1.0, np.nan]), b=[0.0, 0.0]), "A: expected finite numbers, found nan"),
    "A text": (dict(A="abc", b=[0.0]), "A: expected an array of numbers"),
    "A ragged": (dict(A=[[1.0], [1.0, 2.0]], b=[0.0]), "A: expected an array of numbers"),
    "A complex": (dict(A=1j * eye(), b=np.ones(3)), "A: expected real numbers"),
    "A missing": (dict(A=None, b=np.ones(3)), "A: expected an array"),
    "C huge": (
        dict(A=eye(), b=np.ones(3), C=np.full((1, 3), 1e308), d=[1e307]),
        "C: expected numbers of at most 1e+150",
    ),
    "C huge, of sum 0": (
        dict(A=eye(), b=np.ones(3), C=np.array([[1e308, -1e308, 0]]), d=np.ones(1)),
        "C: expected numbers of at most 1e+150, found 1e+308",
    ),
    "variables in another order": (
        dict(A=eye(), b=pd.Series(np.ones(3), list("xyz")), C=pd.DataFrame([[1.0, 2, 3]], columns=list("xzy")), d=[1]),
        "C: expected the variables of b in the same order, found their variables in another order",
    ),
    "rows of other names": (
        dict(A=eye(), b=np.ones(3), C=pd.DataFrame(np.ones((2, 3)), index=list("ab")), d=pd.Series([1, 2], list("ba"))),
        "C's rows: expected the rows of d in the same order",
    ),
    "b short": (dict(A=eye(), b=np.ones(2)), "b: expected shape (3,) to match A"),
    "b infinite": (dict(A=eye(), b=[0.0, np.inf, 0.0]), "b: expected finite numbers, found inf at index (1,)"),
    "b batch": (dict(A=np.stack([eye()] * 4), b=np.ones((3, 3))), "b: expected a batch of 4 as in A, found 3"),
    "C without d": (dict(A=eye(), b=np.ones(3), C=np.ones((2, 3))), "d: expected together with C"),
    "d without C": (dict(A=eye(), b=np.ones(3), d=np.ones(2)), "C: expected together with d"),
    "C wide": (dict(A=eye(), b=np.ones(3), C=np.ones((2, 4)), d=np.ones(2)), "C: expected shape (m, 3) to match A"),
    "d short": (dict(A=eye(), b=np.ones(3), C=np.ones((2, 3)), d=np.ones(1)), "d: expected shape (2,) to match C"),
    "radius negative": (dict(A=eye(), b=np.ones(3), l1_radius=-1.0), "l1_radius: expected a non-negative number"),
    "penalty negative": (dict(A=eye(), b=np.ones(3), l1_penalty=-0.1), "l1_penalty: expected a non-negative number"),
    "penalty matrix": (dict(A=eye(), b=np.ones(3), l1_penalty=np.ones((2, 2))), "l1_penalty: expected shape"),
    "empty batch": (dict(A=np.zeros((0, 3, 3)), b=np.ones(3)), "A: expected at least one problem"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_names_the_argument(name):
    arguments, message = BAD[name]
    with pytest.raises(InputError) as caught:
        QP(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, int])
def test_numpy_in_numpy_out(dtype):
    solution = solve(QP(np.eye(2, dtype=dtype), np.array([1, 2], dtype=dtype)))
    assert isinstance(solution.x, np.ndarray)
    assert solution.x.shape == (2,)
    assert solution.x.dtype == (np.float32 if dtype is np.float32 else np.float64)
    np.testing.assert_allclose(solution.x, [-1, -2])
    assert solution.status == "optimal"
    assert isinstance(solution.kkt_residual, float)


def test_torch_in_torch_out_and_shared_arguments():
    b = torch.randn(5, 3, dtype=torch.float32)
    solution = solve(QP(torch.eye(3), b))  # one A for the whole batch
    assert isinstance(solution.x, torch.Tensor)
    assert solution.x.dtype == torch.float32
    torch.testing.assert_close(solution.x, -b)
    assert solution.dual.shape == (5, 0)
    assert solution.status.tolist() == ["optimal"] * 5


def test_kind_and_parts():
    qp = QP(eye(), np.ones(3), np.ones((2, 3)), np.ones(2), l1_penalty=0.5)
    assert (qp.kind, qp.n, qp.m, len(qp)) == ("LC+R", 3, 2, 1)
    batch = random_qp(6, 4, 2, seed=3)
    assert batch.kind == "LC"
    assert len(batch[2]) == 1
    assert len(batch[1:4]) == 3
    assert len(batch[-1]) == 1
    assert torch.equal(batch[4].b[0], batch.b[4])
    assert batch.to(torch.float32).A.dtype == torch.float32
    assert repr(batch) == "QP(LC, batch=6, n=4, m=2, float64)"


def test_generator_is_deterministic_and_shifts_the_condition_number():
    first, second = (random_qp(20, 6, 4, seed=7) for _ in range(2))
    assert torch.equal(first.A, second.A)
    assert torch.equal(first.d, second.d)
    assert not torch.equal(first.A, random_qp(20, 6, 4, seed=8).A)
    conditions = [torch.linalg.cond(random_qp(4000, 5, 3, kappa=k, seed=1).A).median() for k in (None, *KAPPA_RANGES)]
    assert all(a < b for a, b in pairwise(conditions))
    plain, shifted = random_qp(50, 5, 3, seed=1), random_qp(50, 5, 3, kappa=(10, 20), seed=1)
    norms = [torch.linalg.matrix_norm(qp.A - 0.1 * torch.eye(5, dtype=torch.float64)) for qp in (plain, shifted)]
    torch.testing.assert_close(norms[0], norms[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(batch=0, n=3), "batch: expected a whole number of at least 1"),
        (dict(batch=2, n=3, kind="X"), "kind: expected one of"),
        (dict(batch=2, n=3, m=2, kind="R"), "m: expected 0 for kind R"),
        (dict(batch=2, n=3, m=1, kappa=(5, 2)), "kappa: expected a range"),
    ],
)
def test_generator_refuses(arguments, message):
    with pytest.raises(InputError, match=message[:20]):
        random_qp(**arguments)


def test_the_conditions_of_a_single_point_need_no_batch_dimension():
    qp = random_qp(1, 4, 3, seed=0)
    answer = solve(qp)
    alone, batched = (kkt(qp, x, dual) for x, dual in ((answer.x[0], answer.dual[0]), (answer.x, answer.dual)))
    assert torch.equal(alone.worst, batched.worst)
    assert alone.worst.shape == (1,)
    with pytest.raises(InputError, match=r"x: expected shape \(1, 4\), found \(1, 3\)"):
        kkt(qp, answer.x[0, :3], answer.dual)


def test_a_matrix_with_rows_of_zeros_is_judged_by_the_others():
    inner, b = np.array([[1.0, -2.0], [-2.0, 5.0]]), np.array([1.0, 0.0, 0.0])
    A = np.zeros((3, 3))
    A[:2, :2] = inner
    assert solve(QP(A, b, lb=np.full(3, -9.0))).status == "optimal"
    A[1, 1] = 3.0  # its determinant is negative
    with pytest.raises(InputError, match="A: expected positive semidefinite"):
        QP(A, b)


def test_rows_of_huge_numbers_have_the_same_answer():
    A, b = np.array([[2, 0.5], [0.5, 1]]), -np.ones(2)
    found = solve(QP(A, b, np.full((1, 2), 1e150), np.array([0.8e150])))
    assert found.status == "optimal"
    np.testing.assert_allclose(found.x, [0.2, 0.6], atol=1e-9)


@pytest.mark.parametrize("given", ["all", "no ub", "no lb", "no equations"])
def test_the_rows_of_a_problem_have_its_multipliers(given):
    """Equations and bounds written as rows: the same answer, and `split_dual` gives back what they pull with."""
    rng = np.random.default_rng(0)
    G = rng.normal(size=(8, 4, 6))
    parts = {"E": np.ones((1, 4)), "f": [0.2], "lb": -0.3, "ub": 0.3}
    for name in {"all": (), "no ub": ("ub",), "no lb": ("lb",), "no equations": ("E", "f")}[given]:
        del parts[name]
    qp = QP(G @ G.transpose(0, 2, 1), 3 * rng.normal(size=(8, 4)), rng.normal(size=(2, 4)), [0.4, 0.4], **parts)
    answer, rows = solve(qp), solve(qp.as_inequalities())
    assert set(answer.status) == set(rows.status) == {"optimal"}
    np.testing.assert_allclose(rows.x, answer.x, atol=1e-10)
    dual, equal, box = (part.numpy() for part in qp.split_dual(torch.as_tensor(rows.dual)))
    np.testing.assert_allclose(dual, answer.dual, atol=1e-8)
    np.testing.assert_allclose(box, answer.dual_box, atol=1e-8)
    if "E" in parts:
        np.testing.assert_allclose(equal, answer.dual_eq, atol=1e-8)
    assert (box > 0).any() == ("ub" in parts)
    assert (box < 0).any() == ("lb" in parts)


def test_the_least_symmetric_matrix_is_named():
    """Beside its own size: one that is off by 1e-3 of 1e6 is nearer to symmetric than one that is off by half."""
    A = np.stack([np.eye(2), 1e6 * np.eye(2), np.eye(2)])
    A[1, 0, 1], A[2, 0, 1] = 1e3, 0.5
    with pytest.raises(InputError, match=r"found max \|A - A\^T\| = 0.5 in problem 2"):
        QP(A, np.zeros(2))


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("n", [2, 60])
def test_an_eigenvalue_may_be_negative_by_rounding_alone(n, unit):
    """Beside the size of A, and more so the more entries its rows are summed from."""
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(n, n)))[0]

    def matrix(least):
        A = basis @ np.diag(np.append(np.ones(n - 1), least)) @ basis.T
        return unit * (A + A.T) / 2

    for form in (np.asarray, torch.from_numpy, lambda A: np.stack([np.eye(n), A])):
        QP(form(matrix(-1e-10 * n)), np.ones(n))
        with pytest.raises(InputError, match="A: expected positive semidefinite"):
            QP(form(matrix(-1e-7 * n)), np.ones(n))


def test_tensors_without_numbers_are_refused():
    with pytest.raises(InputError, match="b: expected a tensor with numbers, found one on the device meta"):
        QP(torch.eye(2), torch.zeros(2, device="meta"))


def test_the_first_problem_without_a_minimum_is_named():
    A = np.stack([np.eye(2), np.eye(2), np.diag([1.0, -0.25]), -np.eye(2)])
    with pytest.raises(InputError, match=r"found eigenvalue -0.25 in problem 2$"):
        QP(A, np.zeros(2))


@pytest.mark.parametrize("n", [3, 48, 60])
def test_a_factor_is_that_of_the_matrix(n):
    """Large diagonal matrices are seen as such, and only these; what has no factor is told."""
    main = np.arange(1.0, n + 1)
    arrow, zero, negative = np.diag(main), main.copy(), main.copy()
    arrow[-1, -2] = arrow[-2, -1] = 0.5
    zero[-1], negative[-1] = 0.0, -1.0
    for A, singular, diagonal, good in (
        (np.diag(main), False, n >= 48, True),
        (np.diag(zero), True, n >= 48, True),
        (np.diag(negative), True, False, False),
        (arrow, False, False, True),
        (np.ones((n, n)), True, False, True),
        (np.ones((n, n)) - np.eye(n), True, False, False),
    ):
        found = cholesky_factor(A)
        assert (found.singular, found.diagonal) == (singular, diagonal)
        if not singular:
            L = np.tril(found.L)
            np.testing.assert_allclose(L @ L.T, A, atol=1e-12)
        assert _is_semidefinite(A, found) is good
