"""Exact answers in bulk: DAQP, an active-set method, called directly; ℓ1 terms are lifted into linear ones.

DAQP solves the paper's problems in about 10 µs each to 1e-13. It holds the interpreter lock, so large batches
are shared out to worker processes.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import NamedTuple

import daqp
import numpy as np
import torch
from joblib import Parallel, delayed

from time2decide.core.validation import validate_count
from time2decide.qp.problem import QP
from time2decide.qp.solution import KKT, Solution, Status, kkt, proximal_map

_NO_BOUND = 1e30  # DAQP's infinity
_EQUALITY = 5  # DAQP's mark of an equality row
_SOLVED = (1, 2)  # DAQP's flags: optimal; soft optimal
_PARALLEL_FROM = 100_000  # below this, starting worker processes costs more than it saves
_PROXIMAL, _PROXIMAL_ROUNDS = (1e-6, 1e-4), 20  # weights that are tried one after the other where DAQP fails
_SETTINGS = {"primal_tol": 1e-11, "dual_tol": 1e-12}
_UNEVEN = 1e8  # ratio of the diagonal entries of A from which on variables count as of different sizes


class Rows(NamedTuple):
    """Arrays of a batch of problems min ½xᵀHx + fᵀx, Gx ≤ upper; `equal` marks the rows with Gx = upper."""

    H: np.ndarray  # (batch, k, k)
    f: np.ndarray  # (batch, k)
    G: np.ndarray  # (batch, rows, k)
    upper: np.ndarray  # (batch, rows)
    equal: np.ndarray  # (rows,) shared, bool


def solve_exact(qp: QP, *, tol: float = 1e-8, workers: int | None = None) -> Solution:
    """Solve every instance to machine precision.

    Infeasible and unbounded instances are reported in `status` with x = NaN; the others are unaffected.
    `workers` is the number of processes; by default all cores for large batches and this process for small ones.
    """
    if workers is not None:
        validate_count("workers", workers)
    problem, units = evened(qp.detached())
    x, dual, flag = solve_rows(as_rows(problem), workers=workers)
    x, dual = x[:, : qp.n], dual[:, : qp.m]
    lifted = qp.l1_penalty is not None or qp.l1_radius is not None
    # a singular A makes DAQP stop early, as the lifted problems do
    parts = kkt(problem, torch.from_numpy(x), torch.from_numpy(dual))
    early = np.arange(len(qp)) if lifted else np.flatnonzero(parts.worst.numpy() > 1e-9)
    if len(early):
        x[early], dual[early] = _polish(problem[torch.from_numpy(early)], x[early], dual[early])
    if settle_trivial(problem, x, dual) or len(early):
        parts = kkt(problem, torch.from_numpy(x), torch.from_numpy(dual))
    status = _statuses(problem, x, dual, parts, flag, tol)
    for weight in _PROXIMAL:
        stuck = np.flatnonzero(status == Status.NOT_CONVERGED)
        if len(stuck):
            left = problem[torch.from_numpy(stuck)]
            x[stuck], dual[stuck], flag = _better_proximally(left, x[stuck], dual[stuck], weight)
            status[stuck] = _statuses(left, x[stuck], dual[stuck], kkt(left, x[stuck], dual[stuck]), flag, tol)
    answered = (status == Status.OPTIMAL) | (status == Status.NOT_CONVERGED)
    x[~answered], dual[~answered] = np.nan, np.nan
    point, multipliers = (torch.from_numpy(array).to(qp.A) for array in (x / units[0], dual / units[1]))
    return Solution.build(qp, point, multipliers, status, "exact")


def solve_rows(rows: Rows, *, workers: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (batch, k), multipliers (batch, rows) and DAQP's flag (batch,) of every problem."""
    rows, unit, back = _equilibrated(rows)
    x, dual, flag = _solve_all(rows, workers)
    return x * unit, dual * back, flag


def solve_proximally(rows: Rows, weight: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`solve_rows` by x ← argmin f(x) + w/2 ‖x − x_before‖², which has the same answers; w is `weight` times max |H|.

    For semidefinite H, where DAQP alone may take a feasible problem for an infeasible one or stop early.
    """
    size = np.abs(rows.H).max(axis=(1, 2), initial=0)
    w = weight * np.where(size > 0, size, 1.0)
    definite = rows._replace(H=rows.H + w[:, None, None] * np.eye(rows.f.shape[1]))
    x = np.zeros_like(rows.f)
    for _ in range(_PROXIMAL_ROUNDS):
        x, dual, flag = solve_rows(definite._replace(f=rows.f - w[:, None] * np.nan_to_num(x)))
    return x, dual, flag


def _better_proximally(
    qp: QP, x: np.ndarray, dual: np.ndarray, weight: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The better of (x, dual) and of `solve_proximally` per instance, and DAQP's flags."""
    near, pull, flag = solve_proximally(as_rows(qp), weight)
    near, pull = near[:, : qp.n], pull[:, : qp.m]
    better = (kkt(qp, near, pull).worst < kkt(qp, x, dual).worst).numpy()[:, None]
    return np.where(better, near, x), np.where(better, pull, dual), flag


def _equilibrated(rows: Rows) -> tuple[Rows, np.ndarray, np.ndarray]:
    """The same problems with unit rows, objective and answer of order one, whatever units they came in.

    DAQP drops a row whose cᵀH⁻¹c is below an absolute limit and stops at absolute tolerances. Returns also the units of
    x, (batch, k), and the factors that bring the multipliers back, (batch, rows).
    """
    r = variable_units(np.diagonal(rows.H, axis1=1, axis2=2))  # (batch, k)
    if (r != 1).any():
        rows = rows._replace(H=rows.H / (r[:, :, None] * r[:, None]), f=rows.f / r, G=rows.G / r[:, None])

    def positive(size: np.ndarray) -> np.ndarray:
        return np.where(size > 0, size, 1.0)

    objective = positive(np.abs(rows.H).max(axis=(1, 2), initial=0))
    length = positive(np.linalg.norm(rows.G, axis=2))
    f, upper = rows.f / objective[:, None], rows.upper / length
    unit = positive(np.maximum(np.abs(f).max(axis=1), np.abs(upper).max(axis=1, initial=0)))
    scaled = rows._replace(
        H=rows.H / objective[:, None, None],
        f=f / unit[:, None],
        G=rows.G / length[:, :, None],
        upper=upper / unit[:, None],
    )
    return scaled, unit[:, None] / r, (objective * unit)[:, None] / length


def _solve_all(rows: Rows, workers: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    batch = len(rows.f)
    count = workers or ((os.cpu_count() or 1) if batch >= _PARALLEL_FROM else 1)
    if count == 1:
        return _solve_chunk(rows)
    edges = np.linspace(0, batch, 4 * count + 1).astype(int)
    chunks = (
        rows._replace(H=rows.H[i:j], f=rows.f[i:j], G=rows.G[i:j], upper=rows.upper[i:j])
        for i, j in pairwise(edges)
        if j > i
    )
    parts = Parallel(n_jobs=count, max_nbytes=None)(delayed(_solve_chunk)(chunk) for chunk in chunks)
    x, dual, flag = (np.concatenate(part) for part in zip(*parts, strict=True))
    return x, dual, flag


def _solve_chunk(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    batch, size = rows.f.shape
    x, dual = np.empty((batch, size)), np.zeros((batch, rows.G.shape[1]))
    flag = np.empty(batch, dtype=int)
    sense = np.where(rows.equal, _EQUALITY, 0).astype(np.int32)
    lower = np.where(rows.equal, rows.upper, -_NO_BOUND)
    solve = daqp.solve
    for i in range(batch):
        x[i], _, flag[i], info = solve(rows.H[i], rows.f[i], rows.G[i], rows.upper[i], lower[i], sense, **_SETTINGS)
        dual[i] = info["lam"]
    return x, dual, flag


def as_rows(qp: QP) -> Rows:
    """Lift the ℓ1 terms: t ≥ |x| as two rows per variable, then λ·1ᵀt in the objective and 1ᵀt ≤ B as a row."""
    A, b, C, d = (np.ascontiguousarray(t.numpy()) for t in (qp.A, qp.b, qp.C, qp.d))
    batch, n, m = len(qp), qp.n, qp.m
    lifted = qp.l1_penalty is not None or qp.l1_radius is not None
    if lifted:
        H = np.zeros((batch, 2 * n, 2 * n))
        H[:, :n, :n] = A
        penalty = np.zeros(batch) if qp.l1_penalty is None else qp.l1_penalty.numpy()
        b = np.concatenate([b, np.repeat(penalty[:, None], n, axis=1)], axis=1)
        eye = np.eye(n)
        extra = np.block([[eye, -eye], [-eye, -eye]])  # x ≤ t, −x ≤ t
        bounds = np.zeros((batch, 2 * n))
        if qp.l1_radius is not None:
            extra = np.vstack([extra, np.r_[np.zeros(n), np.ones(n)]])
            bounds = np.concatenate([bounds, qp.l1_radius.numpy()[:, None]], axis=1)
        C = np.concatenate([C, np.zeros((batch, m, n))], axis=2)
        C = np.concatenate([C, np.broadcast_to(extra, (batch, *extra.shape))], axis=1)
        A, d = H, np.concatenate([d, bounds], axis=1)
    count = C.shape[1]
    return Rows(A, b, C, d, np.zeros(count, dtype=bool))


def _polish(qp: QP, x: np.ndarray, dual: np.ndarray, rounds: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Make the lifted answer exact: solve the linear KKT system on the support, signs and active rows it shows.

    The lifted Hessian is singular in t, for which DAQP uses a proximal method that stops at about 1e-7. Each round
    reads the active set off the point of the round before, the last round off the lifted answer itself, whose tiny
    entries may be real; the point with the smallest KKT residual is kept.
    """
    lifted_x, lifted_dual = x, dual

    def residual_of(x: np.ndarray, dual: np.ndarray) -> np.ndarray:
        return kkt(qp, torch.from_numpy(x), torch.from_numpy(dual)).worst.numpy()

    best_x, best_dual, best = x, dual, residual_of(x, dual)
    for turn in range(rounds):
        unsolved = np.flatnonzero((best > 1e-13) & np.isfinite(x).all(axis=1))
        if not len(unsolved):
            break
        if qp.l1_penalty is None and qp.l1_radius is None:
            shrunk = np.ones_like(x)  # no sparsity: every variable is in the support
        elif turn == rounds - 1:
            x, dual = lifted_x, lifted_dual
            shrunk = np.where(np.abs(x) > 1e-9, x, 0.0)
        else:
            stepped = np.nan_to_num(x - _lagrangian_gradient(qp, x, dual))
            shrunk = proximal_map(qp, torch.from_numpy(stepped)).numpy()
        active = dual > qp.d.numpy() - np.einsum("bij,bj->bi", qp.C.numpy(), x)  # multiplier larger than slack
        x, dual = x.copy(), dual.copy()
        for i in map(int, unsolved):
            x[i], dual[i] = _polish_one(qp, i, shrunk[i], np.flatnonzero(active[i]))
        residual = residual_of(x, dual)
        better = (residual < best)[:, None]
        best_x, best_dual = np.where(better, x, best_x), np.where(better, dual, best_dual)
        best = np.minimum(residual, best)
    return best_x, best_dual


def _lagrangian_gradient(qp: QP, x: np.ndarray, dual: np.ndarray) -> np.ndarray:
    """Ax + b + Cᵀλ, (batch, n)."""
    A, b, C = qp.A.numpy(), qp.b.numpy(), qp.C.numpy()
    return np.einsum("bij,bj->bi", A, x) + b + np.einsum("bij,bi->bj", C, dual)


def _polish_one(qp: QP, i: int, shrunk: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The KKT system on the support and signs of `shrunk`, a point after a proximal step, and the active rows."""
    A, b, C, d = (t[i].numpy() for t in (qp.A, qp.b, qp.C, qp.d))
    support = np.flatnonzero(shrunk)
    signs = np.sign(shrunk[support])
    penalty = 0.0 if qp.l1_penalty is None else qp.l1_penalty[i].item()
    rows, values = C[np.ix_(active, support)], d[active]
    radius = np.inf if qp.l1_radius is None else qp.l1_radius[i].item()
    if np.abs(shrunk).sum() >= radius * (1 - 1e-6):  # the ball binds: one more row, 1ᵀ|x| = B on the support
        rows, values = np.vstack([rows, signs]), np.append(values, radius)
    k, r = len(support), len(values)
    system = np.zeros((k + r, k + r))
    system[:k, :k] = A[np.ix_(support, support)]
    system[:k, k:], system[k:, :k] = rows.T, rows
    right = np.concatenate([-b[support] - penalty * signs, values])
    answer = np.linalg.lstsq(system, right, rcond=None)[0]
    multipliers = answer[k : k + len(active)]
    if (multipliers < 0).any():  # of two opposite rows only one pulls
        return _polish_one(qp, i, shrunk, active[multipliers >= 0])
    new_x, new_dual = np.zeros(qp.n), np.zeros(qp.m)
    new_x[support], new_dual[active] = answer[:k], multipliers
    return new_x, new_dual


def _statuses(qp: QP, x: np.ndarray, dual: np.ndarray, parts: KKT, flag: np.ndarray, tol: float) -> np.ndarray:
    """Optimal where every condition holds to `tol` relative to a bound on the terms it is summed from."""
    A, b, C, d = (np.abs(t.numpy()).reshape(len(qp), -1).max(axis=1, initial=0) for t in (qp.A, qp.b, qp.C, qp.d))
    length, weight = (np.nan_to_num(np.abs(v)).sum(axis=1) for v in (x, dual))
    steep, reach = b + A * length + C * weight, d + C * length
    if qp.l1_penalty is not None or qp.l1_radius is not None:
        steep = np.maximum(steep, length)  # stationarity is then a distance between points
    if qp.l1_radius is not None:
        reach = np.maximum(reach, qp.l1_radius.numpy())
    solved = np.ones(len(qp), dtype=bool)
    limits = {"stationarity": steep, "primal": reach, "dual": weight, "complementarity": weight * reach}
    for name, scale in limits.items():
        solved &= getattr(parts, name).numpy() <= tol * np.where(scale < 1e200, scale, 0)
    status = np.where(solved, Status.OPTIMAL, Status.NOT_CONVERGED).astype("<U16")
    for i in map(int, np.flatnonzero(~solved | ~np.isin(flag, _SOLVED))):
        status[i] = _diagnose(qp, i, status[i])
    return status


def _diagnose(qp: QP, i: int, otherwise: str) -> str:
    """Infeasible, unbounded or merely not converged, by two linear programs."""
    from scipy.optimize import linprog  # seldom needed, slow to import

    A, b, C, d = (t[i].numpy() for t in (qp.A, qp.b, qp.C, qp.d))
    n = qp.n
    if qp.l1_radius is None:
        feasible = linprog(np.zeros(n), C if qp.m else None, d if qp.m else None, bounds=(None, None))
    else:  # x = u - v with u, v >= 0 and 1'(u + v) <= B
        rows = np.vstack([np.hstack([C, -C]), np.ones(2 * n)])
        feasible = linprog(np.zeros(2 * n), rows, np.append(d, qp.l1_radius[i].item()))
    if feasible.status == 2:
        return Status.INFEASIBLE
    spread = np.linalg.eigvalsh(A)
    singular = spread[0] <= 10 * n * np.finfo(float).eps * spread[-1]
    if singular and qp.l1_radius is None:  # a direction v in [-1, 1] with Av = 0, Cv <= 0 and falling objective
        penalty = 0.0 if qp.l1_penalty is None else qp.l1_penalty[i].item()
        cost = np.concatenate([b + penalty, -b + penalty])
        directions = np.hstack([C, -C]) if qp.m else None
        falling = linprog(
            cost, directions, np.zeros(qp.m) if qp.m else None, np.hstack([A, -A]), np.zeros(n), bounds=(0, 1)
        )
        if falling.status == 0 and falling.fun < -1e-9 * (1 + np.abs(b).max()):
            return Status.UNBOUNDED
    return otherwise


def variable_units(diagonal: np.ndarray) -> np.ndarray:
    """Factors r (batch, n) for x̂ = r·x: square roots of the diagonal of A where its entries are uneven, 1 elsewhere."""
    if diagonal.max() <= _UNEVEN * diagonal.min():  # all of them at once: the usual case
        return np.ones(diagonal.shape)
    used = diagonal > 0
    low = np.where(used, diagonal, np.inf).min(axis=1, keepdims=True)
    uneven = used & (diagonal.max(axis=1, keepdims=True) > _UNEVEN * low)
    return np.sqrt(np.where(uneven, diagonal, 1.0))


def evened(qp: QP) -> tuple[QP, tuple[np.ndarray, np.ndarray]]:
    """The same problem in x̂ = r·x and with rows of C of length one where its variables are uneven; r and the lengths.

    Tolerances, which are relative to the whole problem, would not see the small ones. dual = dual̂ / lengths. Even
    problems stay as they are to the last bit, and so do those with ℓ1 terms, which tie the variables' units together.
    """
    r = variable_units(qp.A.diagonal(dim1=1, dim2=2).numpy())
    w = np.ones(tuple(qp.d.shape))
    if qp.l1_penalty is not None or qp.l1_radius is not None or (r == 1).all():
        return qp, (np.ones_like(r), w)
    units = torch.from_numpy(r)
    C = qp.C / units.unsqueeze(1)
    length = C.norm(dim=-1).numpy()
    w = np.where((r != 1).any(axis=1, keepdims=True) & (length > 0), length, w)
    lengths = torch.from_numpy(w)
    A = qp.A / (units.unsqueeze(1) * units.unsqueeze(2))
    return QP(A, qp.b / units, C / lengths.unsqueeze(-1), qp.d / lengths, check=False), (r, w)


def settle_trivial(qp: QP, x: np.ndarray, dual: np.ndarray) -> bool:
    """Where rounding is all there is: a radius of 0 leaves only x = 0, and without an objective nothing pulls.

    Returns whether there was any.
    """
    point = np.zeros(len(qp), dtype=bool) if qp.l1_radius is None else qp.l1_radius.numpy() == 0
    flat = ~qp.b.any(1).numpy() if qp.l1_penalty is None else np.zeros_like(point)
    flat[flat] = ~qp.A[torch.from_numpy(flat)].flatten(1).any(1).numpy()
    x[point], dual[flat] = 0.0, 0.0
    return bool(point.any() or flat.any())
