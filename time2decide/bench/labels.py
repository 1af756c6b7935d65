"""Exact labels: `solve_exact` in bulk against the paper's route, CVXPY with OSQP rebuilt for every instance."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch

from time2decide.bench.timing import one_thread
from time2decide.qp import PAPER_SIZES, QP, kkt, random_qp, solve_exact


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per size of the paper: µs per label of both routes, and the KKT residual of each."""
    sizes = PAPER_SIZES[:1] if quick else PAPER_SIZES
    with one_thread():
        return [_row(n, m, rounds=2 if quick else 7, peers=3 if quick else 15) for n, m in sizes]


def _row(n: int, m: int, rounds: int, peers: int) -> dict[str, Any]:
    qp = random_qp(5_000, n, m, seed=1)
    ours, theirs, residuals = [], [], []
    for turn in range(rounds):
        start = time.perf_counter()
        solution = solve_exact(qp)
        ours.append((time.perf_counter() - start) / len(qp))
        few = qp[slice(turn * peers, (turn + 1) * peers)]
        start = time.perf_counter()
        with _silent():
            x, dual = zip(*(_paper_route(few, i) for i in range(peers)), strict=True)
        theirs.append((time.perf_counter() - start) / peers)
        residuals.append(kkt(few, torch.tensor(np.array(x)), torch.tensor(np.array(dual))).worst)
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


@contextmanager
def _silent() -> Iterator[None]:
    """OSQP prints a line from C when its polish finds nothing to do, whatever its settings."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C has buffered goes nowhere too
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _paper_route(qp: QP, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Build and solve one instance as the paper does."""
    import cvxpy

    A, b, C, d = (t[i].numpy() for t in (qp.A, qp.b, qp.C, qp.d))
    x = cvxpy.Variable(qp.n)
    constraint = C @ x <= d
    problem = cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.quad_form(x, cvxpy.psd_wrap(A)) + b @ x), [constraint])
    problem.solve(solver=cvxpy.OSQP)
    return x.value, constraint.dual_value
