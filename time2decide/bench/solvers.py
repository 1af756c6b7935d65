"""QP solvers beside others: construction layers, exact labels, the learned solver.

*Constructions* (the paper's runtime tables): one attention layer, in its state form and in its literal form, and one
classical step. All run through the same loop body on the same problems, one thread, interleaved. The classical step is
the best we can write: everything constant is formed once, and the projection sorts. The state form (`attention_us`,
`overhead`) applies KᵀV, formed once per problem; for U and R that is the same operation as the classical step. The
literal form (`literal_us`, `literal_overhead`) computes token matrices, scores and feed-forward networks in every
layer, as in the proofs. ``reproduce runtime-u`` (-r, -c, -lc) prints the paper's overheads beside ours.

*Labels*: `solve_exact` in bulk against the paper's route, CVXPY with OSQP rebuilt for every instance.

*Neural*: the learned solver against exact and first-order solvers on the same batches, and what its warm starts save.
One thread, batches of 4096 of the paper's distribution, set-up and conversions included in every time. OSQP is set
up once per structure and updated per instance, as its users do. Iterations are counted per instance from zero and
from the prediction of the network, with the residual looked at often enough to see a difference.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from time2decide.attention import Algorithm, build
from time2decide.bench.timing import interleaved_times, one_thread, time_ratio, timed_call
from time2decide.neural.metrics import r2_score
from time2decide.neural.solver import predict_solution
from time2decide.qp import PAPER_SIZES, QP, kkt, random_qp, solve_exact
from time2decide.solving import solve

_METHODS = {"U": "gradient", "R": "ista", "C": "projected_gradient", "LC": "arrow_hurwicz"}
_PLACEMENTS = 8
#: The sizes (n, m) of the paper's runtime tables.
RUNTIME_SIZES = {kind: [(n, 0) for n in (16, 32, 64, 128)] for kind in ("U", "R", "C")}
RUNTIME_SIZES["LC"] = [(n, m) for n in (16, 32, 64) for m in (n // 4, n // 2, n) if m > 4] + [(128, 32), (128, 64)]
NEURAL_SIZES = ((5, 3), (20, 16))
SEED = 20_261_000  # never used in training
_TIGHT = 1e-8
Answer = tuple[Tensor, Tensor]  # x (batch, n) and dual (batch, m)


def construction_rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per class, size and batch."""
    cases = [(kind, *size) for kind, sizes in RUNTIME_SIZES.items() for size in sizes if not quick or size[0] == 16]
    with one_thread(), torch.no_grad():
        return [time_construction(*case, batch, rounds=5 if quick else 101) for case in cases for batch in (1, 256)]


def time_construction(kind: str, n: int, m: int, batch: int, *, rounds: int) -> dict[str, Any]:
    """Time per step of the classical iteration and of both forms of the layer, on one thread of the caller's choice."""
    qp = random_qp(batch, n, m, kind=kind, seed=n + m)
    state, literal = (_side_by_side(qp, kind, form, max(1, rounds // _PLACEMENTS)) for form in ("state", "literal"))
    return {
        "problem": kind,
        "n": n,
        "m": m,
        "batch": batch,
        "classical_us": 1e6 * median(state["classical"]),
        "attention_us": 1e6 * median(state["state"]),
        "overhead": time_ratio(state, "state", "classical"),
        "literal_us": 1e6 * median(literal["literal"]),
        "literal_overhead": time_ratio(literal, "literal", "classical"),
    }


def _side_by_side(qp: QP, kind: str, form: str, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of the classical iteration and of a form of the layer, interleaved."""
    times: dict[str, list[float]] = {"classical": [], form: []}
    for placement in range(_PLACEMENTS):
        # where the arrays happen to lie in memory moves a ratio by 5%: build both anew, in alternating order
        order = list(times) if placement % 2 == 0 else list(times)[::-1]
        steppers = {name: _stepper(build(qp, _METHODS[kind], name), qp) for name in order}
        probe = interleaved_times(steppers, rounds=5)
        repeat = {name: max(1, int(1e-3 / median(found))) for name, found in probe.items()}  # about 1 ms each
        for name, values in interleaved_times(steppers, rounds=rounds, repeat=repeat).items():
            times[name] += values
    return times


def _stepper(algorithm: Algorithm, qp: QP) -> Callable[[], None]:
    """A call that takes one more step from where the last one ended, after 100 steps from zero."""
    state = algorithm.start(qp.b.new_zeros(len(qp), qp.n), qp.b.new_zeros(len(qp), qp.m))
    for _ in range(100):
        state = algorithm.step(state)

    def one() -> None:
        nonlocal state
        state = algorithm.step(state)

    return one


def label_rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per size of the paper: µs per label of both routes, and the KKT residual of each."""
    sizes = PAPER_SIZES[:1] if quick else PAPER_SIZES
    with one_thread():
        return [_label_row(n, m, rounds=2 if quick else 7, few=3 if quick else 15) for n, m in sizes]


def _label_row(n: int, m: int, rounds: int, few: int) -> dict[str, Any]:
    qp = random_qp(5_000, n, m, seed=1)
    ours, theirs, residuals = [], [], []
    with redirect_stdout(io.StringIO()):
        _paper_route(qp, 0)  # imports and caches
    for turn in range(rounds):
        seconds, solution = timed_call(solve_exact, qp)
        ours.append(seconds / len(qp))
        some = qp[slice(turn * few, (turn + 1) * few)]
        with redirect_stdout(io.StringIO()):  # OSQP prints a line when its polish finds nothing to do
            seconds, answers = timed_call(lambda part: [_paper_route(part, i) for i in range(few)], some)
        theirs.append(seconds / few)
        x, dual = (torch.tensor(np.array(values)) for values in zip(*answers, strict=True))
        residuals.append(kkt(some, x, dual).worst)
    ours_kkt, peer_kkt = solution.kkt.worst, torch.cat(residuals)
    return {
        "n": n,
        "m": m,
        "ours": "exact (DAQP, bulk of 5000, one thread)",
        "peer": "CVXPY+OSQP per instance",
        "ours_us": 1e6 * median(ours),
        "peer_us": 1e6 * median(theirs),
        "ratio": median(b / a for a, b in zip(ours, theirs, strict=True)),
        "ours_kkt_mean": ours_kkt.mean().item(),
        "peer_kkt_mean": peer_kkt.mean().item(),
        "ours_kkt_max": ours_kkt.max().item(),
        "peer_kkt_max": peer_kkt.max().item(),
    }


def _paper_route(qp: QP, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Build and solve one instance as the paper does."""
    import cvxpy

    A, b, C, d = (t[i].numpy() for t in (qp.A, qp.b, qp.C, qp.d))
    x = cvxpy.Variable(qp.n)
    constraint = C @ x <= d
    problem = cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.quad_form(x, cvxpy.psd_wrap(A)) + b @ x), [constraint])
    problem.solve(solver=cvxpy.OSQP)
    return x.value, constraint.dual_value


def neural_rows(quick: bool = False) -> list[dict[str, Any]]:
    """Speed and accuracy of five solvers, then iterations cold and warm of three first-order ones."""
    batch, rounds, counted = (128, 1, 16) if quick else (4096, 5, 256)
    with one_thread(), torch.no_grad():
        speed = [row for n, m in NEURAL_SIZES for row in _speed_rows(random_qp(batch, n, m, seed=SEED), rounds)]
        warm = [
            warm_start_row(random_qp(counted, n, m, seed=SEED + 1), method, tol)
            for n, m in (NEURAL_SIZES[:1] if quick else NEURAL_SIZES)
            for method in ("admm", "osqp", "arrow_hurwicz")
            for tol in ((1e-4,) if quick else (1e-4, 1e-6, 1e-8))
        ]
    keys = dict.fromkeys(key for row in (speed[0], warm[0]) for key in row)  # one table: all rows have all keys
    return [{key: row.get(key) for key in keys} for row in speed + warm]


def _speed_rows(qp: QP, rounds: int) -> list[dict[str, Any]]:
    """One row per solver; `ratio` is its time over that of the exact solver."""
    calls: dict[str, Callable[[], Any]] = {
        "exact": lambda: _answer(solve_exact(qp, workers=1)),
        "neural": lambda: _answer(solve(qp, "neural")),
        "neural+polish": lambda: _answer(solve(qp, "neural+polish")),
        f"admm construction, tol {_TIGHT:g}": lambda: _answer(solve(qp, "admm", tol=_TIGHT, max_steps=5000)),
        "osqp, default tolerances": lambda: labels_by_osqp(qp),
        f"osqp, tol {_TIGHT:g}": lambda: labels_by_osqp(qp, eps_abs=_TIGHT, eps_rel=_TIGHT, max_iter=20_000),
    }
    answers = {name: call() for name, call in calls.items()}
    times = interleaved_times(calls, rounds=rounds)
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
            "ratio": time_ratio(times, name, "exact"),
            "r2": r2_score(answers[name][0], truth),
            "kkt_median": residuals[name].median().item(),
            "kkt_p99": residuals[name].quantile(0.99).item(),
            "kkt_max": residuals[name].max().item(),
            "exact_kkt_max": residuals["exact"].max().item(),
        }
        for name in calls
    ]


def warm_start_row(qp: QP, method: str, tol: float) -> dict[str, Any]:
    """Iterations to KKT residual `tol` from zero and from the network's prediction; medians over instances."""
    start = predict_solution(qp)
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


def _iterations(qp: QP, method: str, tol: float, initial: Answer | None) -> np.ndarray:
    """Per instance, (batch,)."""
    if method == "osqp":
        return _osqp_iterations(qp, tol, initial)
    every, limit = (50, 20_000) if method == "arrow_hurwicz" else (1, 5000)
    return np.asarray(solve(qp, method, tol=tol, initial=initial, check_every=every, max_steps=limit).steps)


def labels_by_osqp(qp: QP, **settings: Any) -> Answer:
    """OSQP on every instance: one set-up for the structure, values updated, started from zero."""
    solver, values = _set_up(qp, settings)
    x, dual = np.empty((len(qp), qp.n)), np.empty((len(qp), qp.m))
    for i in range(len(qp)):
        solver.update(Px=values["P"][i], q=values["q"][i], Ax=values["A"][i], u=values["u"][i])
        solver.warm_start(x=np.zeros(qp.n), y=np.zeros(qp.m))
        result = solver.solve(raise_error=False)
        x[i], dual[i] = result.x, result.y
    return torch.from_numpy(x), torch.from_numpy(dual).clamp_min(0)


def _osqp_iterations(qp: QP, tol: float, initial: Answer | None) -> np.ndarray:
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
    import osqp  # not a dependency

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


def _answer(solution: Any) -> Answer:
    return solution.x, solution.dual
