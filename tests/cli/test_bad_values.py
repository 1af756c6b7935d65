"""Every argument of the solvers and projections with everything that it cannot be: an `InputError` that names it."""

import numpy as np
import pytest
import torch

from time2decide import QP, InputError, kkt, load_returns, project_portfolio, random_qp, solve, solve_qp
from time2decide.attention import build
from time2decide.markets import covariance_by, synthetic_returns
from time2decide.qp import project_l1_ball, project_simplex, solve_exact

BATCH = random_qp(3, 4, 2, seed=0)
#: What no argument takes.
NEVER = {
    "text": "x",
    "NaN": float("nan"),
    "complex": 1j,
    "dict": {},
    "object": object(),
    "texts": np.array(["a", "b"]),
    "objects": np.array([1, None], dtype=object),
    "ragged": [[1], [1, 2]],
    "empty": [],
    "a number of 400 digits": 10**400,
    "wrong length": np.ones(7),
    "three dimensions": torch.ones(2, 2, 2, requires_grad=True),
}
METHOD_OPTIONS = {
    "steps": "admm",
    "tol": "exact",
    "form": "exact",
    "max_steps": "admm",
    "check_every": "exact",
    "history": "admm",
    "initial": "admm",
    "rho": "admm",
    "alpha": "admm",
    "inverse_by": "admm",
    "step_size": "arrow_hurwicz",
    "dual_step": "arrow_hurwicz",
    "checkpoint": "neural",
}
QP_ARRAYS = {"P": np.eye(2), "q": [1.0, 1.0], "G": [[1.0, 0.0]], "h": [1.0], "A": [[1.0, 1.0]], "b": [1.0]}
CALLS = {
    **{
        name: lambda bad, name=name: solve(BATCH, METHOD_OPTIONS[name], **({"max_steps": 3} | {name: bad}))
        for name in METHOD_OPTIONS
    },
    "neural tol": lambda bad: solve(BATCH, "neural+polish", tol=bad),
    "neural steps": lambda bad: solve(BATCH, "neural", steps=bad),
    "method": lambda bad: solve(BATCH, bad),
    "qp": lambda bad: solve(bad),
    "initial x": lambda bad: solve(BATCH, "admm", initial=(bad, np.zeros((3, 2)))),
    "initial dual": lambda bad: solve(BATCH, "admm", initial=(np.zeros((3, 4)), bad)),
    **{name: lambda bad, name=name: solve_qp(**(QP_ARRAYS | {name: bad})) for name in QP_ARRAYS},
    "lb": lambda bad: solve_qp(np.eye(2), [1.0, 1.0], lb=bad),
    "ub": lambda bad: solve_qp(np.eye(2), [1.0, 1.0], ub=bad),
    "solver": lambda bad: solve_qp(np.eye(2), [1.0, 1.0], solver=bad),
    "initvals": lambda bad: solve_qp(np.eye(2), [1.0, 1.0], initvals=bad),
    "workers": lambda bad: solve_exact(BATCH, workers=bad),
    "kkt x": lambda bad: kkt(BATCH, bad, torch.zeros(3, 2)),
    "kkt dual": lambda bad: kkt(BATCH, torch.zeros(3, 4), bad),
    "y": lambda bad: project_portfolio(bad, [0.2, 0.3, 0.5], 1.0),
    "previous": lambda bad: project_portfolio([0.2, 0.3, 0.5], bad, 1.0),
    "turnover_l1": lambda bad: project_portfolio(np.ones((4, 3)), [0.2, 0.3, 0.5], bad),
    "turnover_l1 of one": lambda bad: project_portfolio([0.2, 0.3, 0.5], [0.2, 0.3, 0.5], bad),
    "total": lambda bad: project_simplex([0.2, 0.3, 0.5], bad),
    "radius": lambda bad: project_l1_ball(np.ones((4, 3)), bad),
    "kind": lambda bad: random_qp(2, 3, kind=bad),
    "kappa": lambda bad: random_qp(2, 3, kappa=bad),
    "seed": lambda bad: random_qp(2, 3, seed=bad),
}
#: Where two arguments do not fit each other, either may be named.
OTHER_HALF = {"q": "P", "h": "G", "b": "A", "y": "previous"}
#: The residual at a point that is not a number is infinite.
FINE = {("kkt x", "NaN"), ("kkt dual", "NaN")}


@pytest.mark.parametrize("what", CALLS)
def test_what_an_argument_cannot_be(what):
    for kind, bad in NEVER.items():
        if (what, kind) in FINE:
            continue
        try:
            CALLS[what](bad)
            message = "accepted"
        except InputError as error:
            message = str(error)
        named = message.split(":")[0].replace(",", "").split()
        assert set(named) & {*what.split(), OTHER_HALF.get(what, "")}, (kind, message)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: project_portfolio(np.ones((3, 2)), np.full((2, 2), 0.5), 1.0), "previous: expected shape"),
        (lambda: project_portfolio(np.ones((0, 2)), [0.5, 0.5], 1.0), "y: expected shape"),
        (lambda: project_portfolio(np.ones((3, 2)), [0.5, 0.5], np.ones((3, 1))), "turnover_l1: expected a number or"),
        (lambda: project_simplex(0.5), "y: expected shape"),
        (lambda: project_l1_ball(np.ones((2, 0)), 1.0), "y: expected shape"),
        (lambda: project_l1_ball([1.0, 2.0], np.nan), "radius: expected finite"),
        (lambda: solve(BATCH, tol=True), "tol: expected a number"),
        (lambda: solve_qp(np.eye(1), [1.0], A=[[1.0]], b=[np.inf]), "b: expected finite"),
    ],
)
def test_shapes_and_values(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_what_is_fine_stays_fine():
    assert solve(QP(np.eye(2, dtype=">f8"), np.ones(2, dtype=np.longdouble))).status == "optimal"
    held = torch.tensor([0.5, 0.5], requires_grad=True)
    np.testing.assert_allclose(project_portfolio([0.5, 0.1], held, 1.0), [0.7, 0.3])
    gamma = np.array([0.0, 2.0])  # broadcasts over the three series
    assert project_portfolio(np.tile([0.9, 0.1], (3, 2, 1)), [0.5, 0.5], gamma).shape == (3, 2, 2)
    one = QP(np.eye(2), [-1.0, 0.0], [[1.0, 0.0]], [0.5])
    answer = solve(one)
    assert kkt(one, answer.x, answer.dual).worst.item() < 1e-12  # numpy, without the batch dimension
    with pytest.raises(IndexError, match="empty selection"):
        BATCH[0:0]


@pytest.mark.parametrize("bad", [None, 3, 1.5, [1.0, 2.0], np.eye(2), {}, True])
def test_sources_that_are_none(bad):
    with pytest.raises(InputError, match="source: expected a file, a DataFrame or sp500"):
        load_returns(bad)
    with pytest.raises(InputError, match="market: expected one of"):
        synthetic_returns(bad)
    with pytest.raises(InputError, match="estimator: expected one of scikit-learn"):
        covariance_by(bad)
    with pytest.raises(InputError, match="qp: expected a QP"):
        build(bad, "admm")
