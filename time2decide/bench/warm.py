"""Sequences of similar problems: is the learned solver worth it as a warm start?

*Control*: the condensed problem of model predictive control. A linear system is driven to the origin under bounds on
its inputs while noise pushes it; A and C stay, b follows the state.

*Portfolio*: mean-variance weights x ≥ 0, Σx ≤ 1 on a rolling window; A and b move with every day.

Many sequences run side by side, so that methods that take batches may. A warm start is the answer of the step before,
or the prediction of the network for this step. OSQP and PIQP are set up once per sequence and updated. Times are of the
processor, one thread, per problem; every answer is compared with the exact one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import daqp
import numpy as np
import torch
from scipy import sparse

from time2decide.bench.timing import one_thread
from time2decide.neural.solver import predict_solution
from time2decide.qp import QP, Solution, solve_exact
from time2decide.solving import solve

_RIGHT = 1e-5  # largest error of an answer that counts as solved, relative to the largest entry of x
_OSQP = {"eps_abs": 1e-7, "eps_rel": 1e-7, "max_iter": 20_000, "check_termination": 5, "verbose": False}


class _Found(NamedTuple):
    """Answers of one step, and the iterations that they took, where a solver counts them."""

    x: np.ndarray  # (sequences, n)
    dual: np.ndarray  # (sequences, m)
    iterations: np.ndarray | None = None  # (sequences,)


#: A method: the problems of a step, their index, and the answers of the step before (None at first).
Method = Callable[[QP, int, _Found | None], _Found]


def warm_rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per kind of sequence, size and method."""
    sequences, steps = (4, 4) if quick else (32, 40)
    rows = []
    with one_thread(), torch.no_grad():
        for kind, make in (("control", warm_control_path), ("portfolio", warm_portfolio_path)):
            for n in (10,) if quick else (10, 20, 40):
                rows += _measured(kind, list(make(n, sequences, steps, seed=n)))
    return rows


def _measured(kind: str, problems: list[QP]) -> list[dict[str, Any]]:
    exact = [solve_exact(qp) for qp in problems]
    rows = []
    for name, method in _methods().items():
        before: _Found | None = None
        seconds, counted, wrong = 0.0, [], 0
        for step, (qp, truth) in enumerate(zip(problems, exact, strict=True)):
            start = time.process_time()
            before = method(qp, step, before)
            seconds += (time.process_time() - start) * (step > 0)  # the first step sets up
            if before.iterations is not None and step:
                counted.append(before.iterations)
            x = np.asarray(truth.x)
            wrong += int((np.abs(before.x - x).max(1) > _RIGHT * np.abs(x).max(1)).sum())
        rows.append(
            {
                "sequence": kind,
                "n": problems[0].n,
                "m": problems[0].m,
                "method": name,
                "us": 1e6 * seconds / (len(problems[0]) * (len(problems) - 1)),
                "iterations": float(np.mean(counted)) if counted else None,
                "wrong": wrong,
            }
        )
    least = min(row["us"] for row in rows if "network" not in row["method"] and not row["wrong"])
    return [{**row, "ratio": row["us"] / least} for row in rows]


def warm_control_path(n: int, sequences: int, steps: int, seed: int) -> Iterator[QP]:
    """min Σ sᵀQs + uᵀRu over n inputs of a linear system with |u| ≤ 1, the state moved on by the first input."""
    rng = np.random.default_rng(seed)
    states, inputs = 6, 2
    horizon = n // inputs
    drift = rng.normal(size=(states, states))
    drift *= 1.02 / np.abs(np.linalg.eigvals(drift)).max()
    push = rng.normal(size=(states, inputs))
    powers = [np.linalg.matrix_power(drift, k) for k in range(horizon + 1)]
    ahead = np.vstack(powers[1:])  # (horizon·states, states)
    reach = np.zeros((horizon * states, n))
    for row in range(horizon):
        for column in range(row + 1):
            block = powers[row - column] @ push
            reach[row * states : (row + 1) * states, column * inputs : (column + 1) * inputs] = block
    A = 2 * (reach.T @ reach + 0.1 * np.eye(n))
    C, d = np.vstack([np.eye(n), -np.eye(n)]), np.ones(2 * n)
    state = 20 * rng.normal(size=(sequences, states))
    for _ in range(steps):
        b = 2 * state @ ahead.T @ reach
        yield QP(np.broadcast_to((A + A.T) / 2, (sequences, n, n)), b, C, d, check=False)
        u = np.clip(-np.linalg.solve(A, b.T).T[:, :inputs], -1, 1)  # near enough to the best first input
        state = state @ drift.T + u @ push.T + 5 * rng.normal(size=state.shape)


def warm_portfolio_path(n: int, sequences: int, steps: int, seed: int) -> Iterator[QP]:
    """min γ/2 xᵀΣx − μᵀx with x ≥ 0, Σx ≤ 1, mean and covariance of the last 60 days."""
    rng = np.random.default_rng(seed)
    load = rng.normal(size=(sequences, n, 3))
    days = steps + 60
    returns = 0.01 * np.einsum("stk,snk->stn", rng.normal(size=(sequences, days, 3)), load)
    returns += 0.01 * rng.normal(size=(sequences, days, n)) + 0.001
    C, d = np.vstack([-np.eye(n), np.ones((1, n))]), np.append(np.zeros(n), 1.0)
    for t in range(steps):
        past = returns[:, t : t + 60]
        centred = past - past.mean(1, keepdims=True)
        A = 5 * np.einsum("stn,stm->snm", centred, centred) / 60 + 1e-5 * np.eye(n)
        yield QP(A, -past.mean(1), C, d, check=False)


def _methods() -> dict[str, Method]:
    """Solvers cold, from the step before, and from the network."""
    return {
        "exact, batch": _ours(lambda qp, _: solve_exact(qp, workers=1)),
        "exact from the step before": _ours(lambda qp, before: solve(qp, initial=before and before[:2])),
        "exact from the network": _ours(lambda qp, _: solve(qp, initial=predict_solution(qp))),
        "network with certificate": _ours(lambda qp, _: solve(qp, "neural+polish")),
        "DAQP cold": _daqp(None),
        "DAQP from the step before": _daqp("before"),
        "DAQP from the network": _daqp("network"),
        "PIQP updated": _Updated("piqp", None),
        "OSQP cold": _Updated("osqp", None),
        "OSQP from the step before": _Updated("osqp", "before"),
        "OSQP from the network": _Updated("osqp", "network"),
    }


def _found(x: Any, dual: Any) -> _Found:
    return _Found(np.asarray(x, dtype=float), np.asarray(dual, dtype=float))


def _ours(call: Callable[[QP, _Found | None], Solution]) -> Method:
    def run(qp: QP, step: int, before: _Found | None) -> _Found:
        answer = call(qp, before)
        return _found(answer.x, answer.dual)

    return run


def _start(qp: QP, start: str | None, before: _Found | None) -> _Found | None:
    if start == "network":
        return _found(*predict_solution(qp))
    return before if start == "before" else None


def _daqp(start: str | None) -> Method:
    def run(qp: QP, step: int, before: _Found | None) -> _Found:
        A, b, C, d = (np.ascontiguousarray(t.numpy()) for t in (qp.A, qp.b, qp.C, qp.d))
        near = _start(qp, start, before)
        below, sense = np.full(qp.m, -1e30), np.zeros(qp.m, dtype=np.int32)
        x, dual, count = np.empty_like(b), np.empty_like(d), np.zeros(len(qp))
        for i in range(len(qp)):
            guess = {} if near is None else {"dual_start": near.dual[i].copy()}
            x[i], _, _, info = daqp.solve(A[i], b[i], C[i], d[i], below, sense, primal_tol=1e-9, **guess)
            dual[i], count[i] = info["lam"], info["iterations"]
        return _Found(x, dual, count)

    return run


class _Updated:
    """OSQP or PIQP, one solver per sequence, set up at the first step and updated at the others."""

    def __init__(self, name: str, start: str | None) -> None:
        self.name, self.start = name, start
        self.solvers: list[Any] = []

    def __call__(self, qp: QP, step: int, before: _Found | None) -> _Found:
        A, b, C, d = (t.numpy() for t in (qp.A, qp.b, qp.C, qp.d))
        near = _start(qp, self.start, before)
        found = [self._one(i, step, A[i], b[i], C[i], d[i], near) for i in range(len(qp))]
        x, dual, count = (np.array([part[k] for part in found]) for k in range(3))
        return _Found(x, dual, count)

    def _one(self, i: int, step: int, A: Any, b: Any, C: Any, d: Any, near: _Found | None) -> tuple[Any, Any, float]:
        if self.name == "piqp":
            return self._piqp(i, step, np.asfortranarray(A), b, np.asfortranarray(C), d)
        import osqp

        if step == 0:
            self.solvers.append(osqp.OSQP())
            P = sparse.triu(sparse.csc_matrix(A)).tocsc()
            self.solvers[i].setup(P, b, sparse.csc_matrix(C), np.full(len(d), -np.inf), d, **_OSQP)
        else:
            self.solvers[i].update(q=b, u=d, Px=A.T[np.tril_indices(len(b))])
        nothing = np.zeros_like(b), np.zeros_like(d)
        self.solvers[i].warm_start(*(nothing if near is None else (near.x[i], near.dual[i])))
        done = self.solvers[i].solve(raise_error=False)
        return done.x, np.maximum(done.y, 0), done.info.iter

    def _piqp(self, i: int, step: int, A: Any, b: Any, C: Any, d: Any) -> tuple[Any, Any, float]:
        import piqp

        none = np.full(len(d), -np.inf)
        if step == 0:
            self.solvers.append(piqp.DenseSolver())
            self.solvers[i].setup(A, b, None, None, C, none, d, None, None)
        else:
            self.solvers[i].update(P=A, c=b, G=C, h_l=none, h_u=d)
        self.solvers[i].solve()
        done = self.solvers[i].result
        return np.array(done.x), np.array(done.z_u), done.info.iter
