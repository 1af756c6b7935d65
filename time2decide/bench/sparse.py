"""Sparse problems beside PIQP: how long until a certified answer, and how many problems of a set are solved.

*sparse*: trend filtering (banded, two limits a row) of growing size: from arrays to the certified answer, checks of the
data included, against PIQP's set-up and solve alone. With a folder of problems (``.mat`` files with P, c, A, b, G, h_l,
h_u, x_l, x_u, as those of Maros and Mészáros in PIQP's sources) both run on every file. A problem counts as solved if
primal residual, dual residual and duality gap are at most 1e-6 (1e-9), absolute, or relative to the terms of each sum.
Times are of the processor, one thread.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy import sparse

from time2decide.bench.timing import one_thread
from time2decide.core.validation import InputError, expect
from time2decide.qp.sparse import SparseQP, solve_sparse
from time2decide.solving import solve

_TOLERANCES = (1e-6, 1e-9)
_SIZES = (4_000, 100_000, 1_000_000)


def sparse_rows(quick: bool = False, problems: Path | None = None) -> list[dict[str, Any]]:
    """Banded problems, or a folder of problem files."""
    with one_thread():
        if problems is None:
            return [_banded_row(n) for n in (_SIZES[:1] if quick else _SIZES)]
        files = sorted(problems.glob("*.mat"), key=lambda file: file.stat().st_size)
        expect(files, "--problems", "a folder with .mat files", f"none in {str(problems)!r}")
        rows = [_file_row(file) for file in (files[:5] if quick else files)]
        return [*rows, _summary(rows)]


def _banded_row(n: int) -> dict[str, Any]:
    D = sparse.diags([1.0, -2.0, 1.0], [0, 1, 2], shape=(n - 2, n)).tocsc()
    y = np.cumsum(np.random.default_rng(0).standard_normal(n))
    data = (sparse.identity(n) + 10 * D.T @ D).tocsc(), -y, sparse.vstack([D, -D]).tocsc(), np.full(2 * (n - 2), 0.3)
    bounds = {"lb": np.full(n, -20.0), "ub": np.full(n, 20.0)}
    problem, times = SparseQP(*data, **bounds), []
    for _ in range(5 if n <= 4_000 else 1):
        start = time.process_time()
        found = solve(SparseQP(*data, **bounds))
        middle = time.process_time()
        _by_piqp(problem, 1e-10, 1e-10)
        times.append((middle - start, time.process_time() - middle))
    ours, theirs = (min(seconds) for seconds in zip(*times, strict=True))
    row: dict[str, Any] = {"kind": "banded", "variables": n, "rows": 2 * (n - 2), "status": found.status}
    row |= {"ours_s": ours, "piqp_s": theirs, "ratio": median(a / b for a, b in times)}
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return row | {"kkt": float(found.kkt_residual), "megabytes": megabytes}


def _by_piqp(p: SparseQP, tol: float, relative: float = 0.0) -> Any:
    """PIQP's result for an absolute and a relative tolerance."""
    import piqp

    solver = piqp.SparseSolver()
    solver.settings.eps_abs = solver.settings.eps_duality_gap_abs = tol
    solver.settings.eps_rel = solver.settings.eps_duality_gap_rel = relative
    solver.setup(p.A, p.b, p.E, p.f, p.C, np.full(p.m, -np.inf), p.d, p.lb, p.ub)
    solver.solve()
    return solver.result


def load_sparse_problem(file: Path) -> SparseQP:
    """A problem of a file; sides of rows that have none are left out."""
    from scipy.io import loadmat

    found = loadmat(file)
    c, b, low, high, lb, ub = (found[name].ravel().astype(float) for name in ("c", "b", "h_l", "h_u", "x_l", "x_u"))
    above, below = high < 1e20, low > -1e20
    rows = sparse.vstack([found["G"][above], -found["G"][below]])
    return SparseQP(found["P"], c, rows, np.append(high[above], -low[below]), found["A"], b, lb, ub)


def _file_row(file: Path) -> dict[str, Any]:
    print(f"\r{file.stem:<12}", end="", file=sys.stderr, flush=True)
    row: dict[str, Any] = {"kind": "problem", "problem": file.stem}
    try:
        start = time.process_time()
        p = load_sparse_problem(file)
        loaded = time.process_time()
        found = solve_sparse(p, _TOLERANCES[-1])
        seconds = time.process_time() - loaded
    except InputError as error:
        return row | {"refused": str(error)}
    row |= {"variables": p.n, "rows": p.m, "equations": len(p.f), "seconds": seconds, "check_seconds": loaded - start}
    row |= {"level": found.level, "residual": p.residual(*found.point)}
    for tol in _TOLERANCES:
        start = time.process_time()
        theirs = _by_piqp(p, tol)
        box = np.array(theirs.z_bu) - np.array(theirs.z_bl)
        row |= {f"piqp_seconds_{tol:g}": time.process_time() - start}
        point = np.array(theirs.x), np.array(theirs.z_u), np.array(theirs.y), box
        row |= {f"piqp_residual_{tol:g}": p.residual(*point)}
    return row


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many problems each solves to each tolerance."""
    summary: dict[str, Any] = {
        "kind": "solved",
        "problems": len(rows),
        "refused": sum("refused" in row for row in rows),
    }
    solved = [row for row in rows if "refused" not in row]
    for tol in _TOLERANCES:
        summary[f"certified_{tol:g}"] = sum(row["level"] <= tol for row in solved)
        summary[f"absolute_{tol:g}"] = sum(row["residual"] <= tol for row in solved)
        summary[f"piqp_absolute_{tol:g}"] = sum(row[f"piqp_residual_{tol:g}"] <= tol for row in solved)
    return summary
