"""The QP core beside other solvers, in one run: one problem, many problems, problem files, layers.

*qp*: one problem at a time (`solve_qp`, against DAQP called directly and solvers through qpsolvers) and batches of the
paper's sizes and of (50, 40) against Moreau's compiled solver; all count from arrays to answer, ours in one thread.
With a folder of problems (``.mat`` files with P, q, r, l, A, u, as those of Maros and Mészáros) all solvers run on
each. A problem counts as solved if primal residual, dual residual and duality gap are at most 1e-6, absolute; failures
are charged the time limit, and times are summed up by the shifted geometric mean, as qpbenchmark does, and by the
median: charged alike (`median_ratio` is beside the best of the others), as measured, and over the problems that a
solver solves. Times are of the processor, one thread, the median of three runs: other work on the machine does not
count.

*layers*: forward and backward pass of batches as layers of a network, against Moreau, qpth and cvxpylayers. Where
gradients differ most, finite differences of exact answers say who is right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from time2decide.bench import installed
from time2decide.bench.timing import interleaved_times, one_thread, time_ratio
from time2decide.core.validation import expect
from time2decide.qp import PAPER_SIZES, QP, kkt, random_qp, solve_exact
from time2decide.qp.gradients import QPLayer
from time2decide.qp.problem import BATCH
from time2decide.qpsolvers_api import Problem, solve_problem, solve_qp
from time2decide.solving import solve

_LIMIT, _SHIFT, _EPS = 60.0, 10.0, 1e-6  # seconds, seconds, absolute tolerance
_NO_BOUND = 1e20
#: Settings of other solvers for an absolute tolerance of 1e-6, as qpbenchmark has them.
_SETTINGS: dict[str, dict[str, Any]] = {
    "piqp": {"eps_abs": _EPS, "eps_rel": 0.0, "eps_duality_gap_abs": _EPS, "eps_duality_gap_rel": 0.0},
    "clarabel": {"tol_feas": _EPS, "tol_gap_abs": _EPS, "tol_gap_rel": 0.0},
    "proxqp": {"eps_abs": _EPS, "eps_rel": 0.0, "check_duality_gap": True, "eps_duality_gap_abs": _EPS},
    "daqp": {"primal_tol": _EPS, "dual_tol": _EPS},
    "osqp": {"eps_abs": _EPS, "eps_rel": 0.0, "max_iter": 20_000},
    "quadprog": {},
}


def qp_rows(quick: bool = False, problems: Path | None = None) -> list[dict[str, Any]]:
    """Single problems and batches, or a folder of problem files."""
    with one_thread():
        if problems is not None:
            return _problem_rows(problems, quick)
        sizes = PAPER_SIZES[:1] if quick else PAPER_SIZES
        rounds = 3 if quick else 15
        singles = [(5, False)] if quick else [(n, more) for n in (5, 20, 50, 200) for more in (False, True)]
        single = [_single_row(n, more, rounds) for n, more in singles]
        batches = [(n, m, 256 if quick else 4096) for n, m in sizes] + ([] if quick else [(50, 40, 1024)])
        return single + [_bulk_row(n, m, batch, rounds) for n, m, batch in batches]


def _single_row(n: int, more: bool, rounds: int) -> dict[str, Any]:
    """One problem with n rows; with `more` also equations and bounds."""
    import daqp

    made = random_qp(1, n, n, seed=n)
    A, b, C, d = (t[0].numpy() for t in (made.A, made.b, made.C, made.d))
    low, sense = np.full(n, -1e30), np.zeros(n, dtype=np.int32)
    rows, high, extra = C, d, {}
    if more:
        E, bound = np.random.default_rng(n).normal(size=(max(1, n // 5), n)), np.full(n, 0.5)
        extra = {"A": E, "b": 0.01 * E.sum(1), "lb": -bound, "ub": bound}
        rows, high, low = (
            np.vstack([C, E]),
            np.concatenate([bound, d, extra["b"]]),
            np.concatenate([-bound, low, extra["b"]]),
        )
        sense = np.concatenate([np.zeros(2 * n, np.int32), np.full(len(E), 5, np.int32)])
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: solve_qp(A, b, C, d, **extra),
        "daqp_raw": lambda: daqp.solve(A, b, rows, high, low, sense),
    }
    for name in _available(("piqp", "clarabel", "proxqp", "quadprog", "osqp")):
        import qpsolvers

        problem = qpsolvers.Problem(A, b, C, d, **extra)
        calls[name] = partial(qpsolvers.solve_problem, problem, solver=name, **_SETTINGS[name])
    for _ in range(BATCH):
        calls["ours"]()
    times = interleaved_times(calls, rounds=rounds, repeat=dict.fromkeys(calls, 20 if n <= 50 else 3))
    ours, raw = median(times["ours"]), median(times["daqp_raw"])
    return {
        "compared": f"one problem of size ({n}, {n})" + (", equations and bounds" if more else ""),
        "ours_us": 1e6 * ours,
        "best": "DAQP called directly",
        "best_us": 1e6 * raw,
        "ratio": time_ratio(times, "ours", "daqp_raw"),
        "over_daqp_ms": 1e3 * median(a - b for a, b in zip(times["ours"], times["daqp_raw"], strict=True)),
        "others_us": {name: 1e6 * median(t) for name, t in times.items() if name not in ("ours", "daqp_raw")},
        "error": float(np.abs(calls["ours"]() - calls["daqp_raw"]()[0]).max()),
    }


def _available(names: tuple[str, ...]) -> list[str]:
    if not installed("qpsolvers"):
        return []
    import qpsolvers

    return [name for name in names if name in qpsolvers.available_solvers]


def _bulk_row(n: int, m: int, batch: int, rounds: int) -> dict[str, Any]:
    qp = random_qp(batch, n, m, seed=1)
    arrays = [tensor.numpy() for tensor in (qp.A, qp.b, qp.C, qp.d)]
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: solve_exact(QP(*arrays), workers=1),
        "two_threads": lambda: solve_exact(QP(*arrays), workers=2),
    }
    moreau = _moreau(qp) if installed("moreau") else None
    if moreau is not None:
        calls["moreau"] = moreau
    times = interleaved_times(calls, rounds=rounds)
    row = {
        "compared": f"{batch} problems of size ({n}, {m}), one thread",
        "ours_us": 1e6 * median(times["ours"]) / batch,
        "best": "Moreau" if moreau else "",
        "best_us": 1e6 * median(times["moreau"]) / batch if moreau else float("nan"),
        "ratio": time_ratio(times, "ours", "moreau") if moreau else float("nan"),
        "two_threads": time_ratio(times, "ours", "two_threads"),
        "error": float(solve_exact(qp).kkt.worst.max()),
    }
    if moreau is not None:
        found = moreau()
        row["best_error"] = float(kkt(qp, np.asarray(found.x), np.maximum(np.asarray(found.z), 0)).worst.max())
    return row


def _moreau(qp: QP) -> Callable[[], Any]:
    """Moreau's compiled solver on the same arrays, set up once per structure."""
    import moreau

    batch = len(qp)
    settings = moreau.Settings(device="cpu", batch_size=batch)
    solver = moreau.CompiledSolver(
        n=qp.n, m=qp.m, **_dense_pattern(qp), cones=moreau.Cones(num_nonneg_cones=qp.m), settings=settings
    )
    P, A, q, b = qp.A.numpy().reshape(batch, -1), qp.C.numpy().reshape(batch, -1), qp.b.numpy(), qp.d.numpy()

    def run() -> Any:
        solver.setup(P, A)
        return solver.solve(q, b)

    return run


def _dense_pattern(qp: QP) -> dict[str, np.ndarray]:
    """Row offsets and column indices of dense P and A, for Moreau."""
    n, m = qp.n, qp.m
    return {
        "P_row_offsets": np.arange(0, n * n + 1, n),
        "P_col_indices": np.tile(np.arange(n), n),
        "A_row_offsets": np.arange(0, m * n + 1, n),
        "A_col_indices": np.tile(np.arange(n), m),
    }


class _Run(NamedTuple):
    """One solver on one file: solved to the tolerance within the limit, seconds, objective, what the solver says."""

    solved: bool
    seconds: float
    value: float
    status: str


def _problem_rows(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """One row per solver: how many files it solves, how many it gets wrong, and its shifted geometric mean."""
    files = sorted(folder.glob("*.mat"))
    expect(files, "--problems", "a folder with .mat files", f"none in {str(folder)!r}")
    files = files[:8] if quick else files
    solvers = ["time2decide", *_available(tuple(_SETTINGS))]
    runs: dict[str, list[_Run]] = {name: [] for name in solvers}
    for path in files:
        problem = _read(path)
        for name in solvers:
            runs[name].append(_attempts(name, problem))
    best = [
        min((run.value for run in some if run.solved), default=math.inf) for some in zip(*runs.values(), strict=True)
    ]
    rows = [_solver_row(name, runs, best, files) for name in solvers]
    others = rows[1:] or rows
    fastest = min(row["shifted_geometric_mean_s"] for row in others)
    for row in rows:
        row["ratio"] = row["shifted_geometric_mean_s"] / fastest
        row["median_ratio"] = row["median_charged_s"] / min(other["median_charged_s"] for other in others)
    return rows


def _solver_row(name: str, runs: dict[str, list[_Run]], best: list[float], files: list[Path]) -> dict[str, Any]:
    """Counts and times of one solver, and ours on the problems that it solves; `best` are the least objectives."""
    mine, solved = runs[name], np.array([run.solved for run in runs[name]])
    seconds, ours = (np.array([run.seconds for run in some]) for some in (mine, runs["time2decide"]))
    charged = np.where(solved, seconds, _LIMIT)
    wrong = [
        run.status == "optimal" and math.isfinite(least) and abs(run.value - least) > 1e-4 * max(1.0, abs(least))
        for run, least in zip(mine, best, strict=True)
    ]
    return {
        "solver": name,
        "problems": len(files),
        "solved": int(solved.sum()),
        "wrong": sum(wrong),
        "shifted_geometric_mean_s": float(np.exp(np.log(charged + _SHIFT).mean()) - _SHIFT),
        "median_s": float(np.median(seconds)),
        "median_charged_s": float(np.median(charged)),
        "failed": [path.stem for path, right in zip(files, solved, strict=True) if not right],
        "median_solved_s": float(np.median(seconds[solved])),
        "ours_on_those_s": float(np.median(ours[solved])),
    }


def _read(path: Path) -> Problem:
    """l ≤ Ax ≤ u as inequalities, equations and, for the identity at its end, bounds."""
    from scipy.io import loadmat

    data = loadmat(path)
    P, A = (np.asarray(m.todense() if hasattr(m, "todense") else m, dtype=float) for m in (data["P"], data["A"]))
    q, low, high = (np.asarray(data[name], dtype=float).ravel() for name in ("q", "l", "u"))
    n = len(q)
    lb = ub = None
    if len(A) >= n and np.array_equal(A[-n:], np.eye(n)):
        lb = np.where(low[-n:] <= -_NO_BOUND, -np.inf, low[-n:])
        ub = np.where(high[-n:] >= _NO_BOUND, np.inf, high[-n:])
        A, low, high = A[:-n], low[:-n], high[:-n]
    equal = low == high
    above, below = ~equal & (high < _NO_BOUND), ~equal & (low > -_NO_BOUND)
    inequalities = np.vstack([A[above], -A[below]]), np.append(high[above], -low[below])
    G, h = inequalities if len(inequalities[1]) else (None, None)
    E, f = (A[equal], high[equal]) if equal.any() else (None, None)
    return Problem(P, q, G, h, E, f, lb, ub)


def _attempts(name: str, problem: Problem) -> _Run:
    """The first of three attempts with the median of their times; of one that takes long, itself."""
    found = [_attempt(name, problem)]
    while len(found) < 3 and found[0].seconds < 1:
        found.append(_attempt(name, problem))
    return found[0]._replace(seconds=median(run.seconds for run in found))


def _attempt(name: str, problem: Problem) -> _Run:
    start = time.process_time()
    try:
        if name == "time2decide":
            found = solve_problem(problem)
        else:
            import qpsolvers

            theirs = qpsolvers.Problem(*problem.unpack())
            start = time.process_time()
            found = qpsolvers.solve_problem(theirs, solver=name, **_SETTINGS[name])
        seconds = time.process_time() - start
    except Exception:  # a solver that raises has failed on this problem
        return _Run(False, time.process_time() - start, np.inf, "raised")
    x = found.x
    if x is None or not np.isfinite(np.asarray(x)).all():
        return _Run(False, seconds, np.inf, "none")
    P, q = np.asarray(problem.P), np.asarray(problem.q)
    residual = max(found.primal_residual(), found.dual_residual(), found.duality_gap())
    solved = bool(residual <= _EPS and seconds <= _LIMIT)
    return _Run(solved, seconds, float(x @ P @ x / 2 + q @ x), "optimal" if found.found else "none")


def layer_rows(quick: bool = False) -> list[dict[str, Any]]:
    """Forward and backward pass of 1,024 problems, with gradients of all data."""
    sizes = ((5, 3),) if quick else ((5, 3), (20, 16), (50, 50))
    with one_thread():
        return [_layer_row(n, m, 64 if quick else 1024, 2 if quick else 9) for n, m in sizes]


def _layer_row(n: int, m: int, batch: int, rounds: int) -> dict[str, Any]:
    qp = random_qp(batch, n, m, seed=2)
    weights = torch.randn(batch, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours = QPLayer(check=False)

    def pass_through(layer: Callable[..., torch.Tensor], count: int) -> list[torch.Tensor]:
        data = [t[:count].detach().clone().requires_grad_() for t in (qp.A, qp.b, qp.C, qp.d)]
        torch.autograd.backward((layer(*data) * weights[:count]).sum())
        return [t.grad for t in data if t.grad is not None]

    layers: dict[str, tuple[Callable[..., torch.Tensor], int]] = {"ours": (ours, batch)}
    for name, make in (("moreau", _moreau_layer), ("qpth", _qpth_layer), ("cvxpylayers", _cvxpy_layer)):
        if installed(name):
            layers[name] = (make(qp), batch if name in ("moreau", "qpth") else min(batch, 32))  # too slow for all
    calls = {name: (lambda layer=layer, c=c: pass_through(layer, c)) for name, (layer, c) in layers.items()}
    times = interleaved_times(calls, rounds=rounds)
    each = {name: 1e6 * median(found) / layers[name][1] for name, found in times.items()}
    row = {
        "compared": f"forward and backward, {batch} problems of size ({n}, {m})",
        **{f"{name}_us": value for name, value in each.items()},
        "ratio": time_ratio(times, "ours", "moreau") if "moreau" in times else float("nan"),
    }
    if "moreau" in calls:
        mine, theirs = calls["ours"]()[1], calls["moreau"]()[1]  # gradients of b
        apart = (mine - theirs).abs().amax(1)
        worst = int(apart.argmax())
        true = _finite_difference(qp[worst], weights[worst])
        row["difference"] = float(apart.max())
        row["error"] = float((mine[worst] - true).abs().max())
        row["best_error"] = float((theirs[worst] - true).abs().max())
    return row


def _finite_difference(qp: QP, weights: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    """The gradient of weightsᵀx with respect to b of one problem, from exact answers on both sides, (n,)."""
    moves = step * torch.eye(qp.n, dtype=torch.float64)
    around = torch.cat([qp.b + moves, qp.b - moves])  # (2n, n)
    x = solve(QP(qp.A[0], around, qp.C[0], qp.d[0], check=False)).x
    up, down = (x * weights).sum(1).chunk(2)
    return (up - down) / (2 * step)


def _moreau_layer(qp: QP) -> Callable[..., torch.Tensor]:
    import moreau
    from moreau.torch import Solver

    batch, pattern = len(qp), {name: torch.from_numpy(values) for name, values in _dense_pattern(qp).items()}
    settings = moreau.Settings(device="cpu", batch_size=batch, enable_grad=True)
    cones = moreau.Cones(num_nonneg_cones=qp.m)
    solver = Solver(n=qp.n, m=qp.m, **pattern, cones=cones, settings=settings)
    return lambda P, q, G, h: solver.solve(P.reshape(batch, -1), G.reshape(batch, -1), q, h).x


def _qpth_layer(qp: QP) -> Callable[..., torch.Tensor]:
    from qpth.qp import QPFunction

    none = torch.zeros(0, dtype=torch.float64)
    layer = QPFunction(verbose=-1, check_Q_spd=False)
    return lambda P, b, C, d: layer(P, b, C, d, none, none)


def _cvxpy_layer(qp: QP) -> Callable[..., torch.Tensor]:
    import cvxpy
    from cvxpylayers.torch import CvxpyLayer

    n, m = qp.n, qp.m
    root, q, G, h = cvxpy.Parameter((n, n)), cvxpy.Parameter(n), cvxpy.Parameter((m, n)), cvxpy.Parameter(m)
    x = cvxpy.Variable(n)
    problem = cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.sum_squares(root @ x) + q @ x), [G @ x <= h])
    layer = CvxpyLayer(problem, parameters=[root, q, G, h], variables=[x])
    return lambda P, b, C, d: layer(torch.linalg.cholesky(P).mT, b, C, d)[0]
