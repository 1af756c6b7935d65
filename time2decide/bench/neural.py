"""The learned solver against exact and first-order solvers on the same batches, and what its warm starts save.

One thread, batches of 4096 of the paper's distribution, set-up and conversions included in every time. OSQP is set
up once per structure and updated per instance, as its users do. Iterations are counted per instance from zero and
from the prediction of the network, with the residual looked at often enough to see a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from time2decide.bench.timing import interleaved, one_thread, ratio
from time2decide.neural.metrics import r2_score
from time2decide.neural.solver import predict
from time2decide.qp import QP, kkt, random_qp, solve_exact
from time2decide.solving import solve

SIZES = ((5, 3), (20, 16))
SEED = 20_261_000  # never used in training
_TIGHT = 1e-8
PolicyOutput = tuple[Tensor, Tensor]  # x (batch, n) and dual (batch, m)


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """Speed and accuracy of five solvers, then iterations cold and warm of three first-order ones."""
    batch, rounds, counted = (128, 1, 16) if quick else (4096, 5, 256)
    with one_thread(), torch.no_grad():
        speed = [row for n, m in SIZES for row in speed_rows(random_qp(batch, n, m, seed=SEED), rounds)]
        warm = [
            warm_start_row(random_qp(counted, n, m, seed=SEED + 1), method, tol)
            for n, m in (SIZES[:1] if quick else SIZES)
            for method in ("admm", "osqp", "arrow_hurwicz")
            for tol in ((1e-4,) if quick else (1e-4, 1e-6, 1e-8))
        ]
    keys = dict.fromkeys(key for row in (speed[0], warm[0]) for key in row)  # one table: all rows have all keys
    return [{key: row.get(key) for key in keys} for row in speed + warm]


def speed_rows(qp: QP, rounds: int) -> list[dict[str, Any]]:
    """One row per solver; `ratio` is its time over that of the exact solver."""
    peers: dict[str, Callable[[], Any]] = {
        "exact": lambda: _answer(solve_exact(qp, workers=1)),
        "neural": lambda: _answer(solve(qp, "neural")),
        "neural+polish": lambda: _answer(solve(qp, "neural+polish")),
        f"admm construction, tol {_TIGHT:g}": lambda: _answer(solve(qp, "admm", tol=_TIGHT, max_steps=5000)),
        "osqp, default tolerances": lambda: solve_osqp(qp),
        f"osqp, tol {_TIGHT:g}": lambda: solve_osqp(qp, eps_abs=_TIGHT, eps_rel=_TIGHT, max_iter=20_000),
    }
    answers = {name: call() for name, call in peers.items()}
    times = interleaved(peers, rounds=rounds)
    seconds = {name: median(values) for name, values in times.items()}
    residuals = {name: kkt(qp, *answer).worst for name, answer in answers.items()}
    truth = answers["exact"][0]
    return [
        {
            "what": f"{name} against exact",
            "n": qp.n,
            "m": qp.m,
            "batch": len(qp),
            "instances_per_second": len(qp) / seconds[name],
            "solver_us": 1e6 * seconds[name] / len(qp),
            "exact_us": 1e6 * seconds["exact"] / len(qp),
            "ratio": ratio(times, name, "exact"),
            "r2": r2_score(answers[name][0], truth),
            "kkt_median": residuals[name].median().item(),
            "kkt_p99": residuals[name].quantile(0.99).item(),
            "kkt_max": residuals[name].max().item(),
            "exact_kkt_max": residuals["exact"].max().item(),
        }
        for name in peers
    ]


def warm_start_row(qp: QP, method: str, tol: float) -> dict[str, Any]:
    """Iterations to KKT residual `tol` from zero and from the network's prediction; medians over instances."""
    start = predict(qp)
    cold, warm = (_iterations(qp, method, tol, initial) for initial in (None, start))
    saved = 1 - warm / np.maximum(cold, 1)
    return {
        "what": f"warm start of {method}",
        "n": qp.n,
        "m": qp.m,
        "batch": len(qp),
        "tol": tol,
        "cold_median": float(np.median(cold)),
        "warm_median": float(np.median(warm)),
        "saved_median": float(np.median(saved)),
        "saved_p10": float(np.quantile(saved, 0.1)),
        "ratio": float(warm.sum() / cold.sum()),
    }


def _iterations(qp: QP, method: str, tol: float, initial: PolicyOutput | None) -> np.ndarray:
    """Per instance, (batch,)."""
    if method == "osqp":
        return _osqp_iterations(qp, tol, initial)
    every, limit = (50, 20_000) if method == "arrow_hurwicz" else (1, 5000)
    return np.asarray(solve(qp, method, tol=tol, initial=initial, check_every=every, max_steps=limit).steps)


def solve_osqp(qp: QP, **settings: Any) -> PolicyOutput:
    """OSQP on every instance: one set-up for the structure, values updated, started from zero."""
    solver, values = _set_up(qp, settings)
    x, dual = np.empty((len(qp), qp.n)), np.empty((len(qp), qp.m))
    for i in range(len(qp)):
        solver.update(Px=values["P"][i], q=values["q"][i], Ax=values["A"][i], u=values["u"][i])
        solver.warm_start(x=np.zeros(qp.n), y=np.zeros(qp.m))
        result = solver.solve(raise_error=False)
        x[i], dual[i] = result.x, result.y
    return torch.from_numpy(x), torch.from_numpy(dual).clamp_min(0)


def _osqp_iterations(qp: QP, tol: float, initial: PolicyOutput | None) -> np.ndarray:
    """OSQP set up anew for every instance, so that no step size is inherited, and asked after every iteration."""
    x, dual = (qp.b * 0, qp.d * 0) if initial is None else initial
    counts = []
    for i in range(len(qp)):
        settings = {"eps_abs": tol, "eps_rel": tol, "check_termination": 1, "max_iter": 20_000}
        solver, _ = _set_up(qp[i], settings)
        solver.warm_start(x=x[i].numpy(), y=dual[i].numpy())
        counts.append(solver.solve(raise_error=False).info.iter)
    return np.array(counts)


def _set_up(qp: QP, settings: dict[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """An OSQP solver for the first instance, and the values of all of them in its order (columns, upper triangle)."""
    import osqp  # a peer, not a dependency

    columns, lines = np.tril_indices(qp.n)  # the upper triangle by columns is the lower one by rows
    P = np.ascontiguousarray(qp.A.numpy()[:, lines, columns])  # (batch, n(n + 1)/2)
    A = np.ascontiguousarray(qp.C.mT.numpy()).reshape(len(qp), -1)  # (batch, n·m), by columns
    q, u = qp.b.numpy(), qp.d.numpy()
    upper = sparse.csc_matrix((P[0], (lines, columns)), shape=(qp.n, qp.n))
    upper.sort_indices()
    dense = sparse.csc_matrix(
        (A[0], np.tile(np.arange(qp.m), qp.n), np.arange(qp.n + 1) * qp.m), shape=(qp.m, qp.n)
    )  # every entry is stored, even a zero
    solver = osqp.OSQP()
    solver.setup(upper, q[0], dense, np.full(qp.m, -np.inf), u[0], verbose=False, **settings)
    return solver, {"P": P, "q": q, "A": A, "u": u}


def _answer(solution: Any) -> PolicyOutput:
    return solution.x, solution.dual
