"""Many small strictly convex problems at once: the dual active-set method of Goldfarb and Idnani, compiled.

    min ½xᵀAx + bᵀx  subject to  Ex = f,  Cx ≤ d,  lb ≤ x ≤ ub

Starting from the unconstrained minimiser, the method adds the most violated constraint and drops those whose multiplier
would turn negative, until none is violated. With A = LLᵀ it keeps J = QᵀL⁻¹ and R, where QR = L⁻¹N for the normals N of
the active constraints; all loops run along the rows of J. One Newton correction on the final active set removes what
rounding has left.

The kernel accepts an answer only if it passes a test that is stricter than the rule of `certificate`; everything else
(singular A, dependent rows, contradictions, bad scaling) is left to the careful path.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from time2decide.core.compiled import numba
from time2decide.qp.certificate import Arrays, Point, distinct_entries
from time2decide.qp.problem import LARGEST, NO_BOUND

_SHARP = 1e-11  # relative residual of an accepted answer
_PIVOT = 1e-11  # smallest pivot of A, relative to its diagonal
_WORK = 1e6  # operations from which on a second thread pays


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _cholesky(A, L, n):  # type: ignore[no-untyped-def]
    """L of A = LLᵀ; False where A is not safely definite."""
    for j in range(n):
        for i in range(j, n):
            total = A[i, j]
            for k in range(j):
                total -= L[i, k] * L[j, k]
            if i == j:
                if not total > _PIVOT * A[j, j]:
                    return False
                L[j, j] = np.sqrt(total)
            else:
                L[i, j] = total / L[j, j]
    return True


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _factorise(A, J, L, n):  # type: ignore[no-untyped-def]
    """L of A = LLᵀ and J = L⁻¹; False where A is not safely definite."""
    if not _cholesky(A, L, n):
        return False
    for j in range(n):  # row j of L⁻¹
        for i in range(n):
            J[j, i] = 0.0
        for k in range(j):
            weight = L[j, k]
            for i in range(k + 1):
                J[j, i] -= weight * J[k, i]
        J[j, j] = 1.0
        inverse = 1.0 / L[j, j]
        for i in range(j + 1):
            J[j, i] *= inverse
    return True


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _normal(index, C, E, m, p, n, out):  # type: ignore[no-untyped-def]
    """The normal of a constraint in the form cᵀx ≤ bound: rows of E, rows of C, upper bounds, lower bounds."""
    if index < p:
        for j in range(n):
            out[j] = E[index, j]
    elif index < p + m:
        for j in range(n):
            out[j] = C[index - p, j]
    else:
        for j in range(n):
            out[j] = 0.0
        place = index - p - m
        out[place % n] = 1.0 if place < n else -1.0


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _bound(index, d, f, lb, ub, m, p, n):  # type: ignore[no-untyped-def]
    if index < p:
        return f[index]
    if index < p + m:
        return d[index - p]
    place = index - p - m
    return ub[place] if place < n else -lb[place - n]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _most_violated(C, d, lb, ub, x, size, used, m, p, n, boxed):  # type: ignore[no-untyped-def]
    """The constraint with the largest violation beside its terms, or -1."""
    worst, which = 1e-13, -1
    for i in range(m):
        if not used[p + i]:
            total, reach = 0.0, abs(d[i])
            for j in range(n):
                total += C[i, j] * x[j]
                reach += abs(C[i, j]) * size[j]
            if total - d[i] > worst * reach:
                worst, which = (total - d[i]) / reach, p + i
    if boxed:
        for j in range(n):
            if x[j] > ub[j] and not used[p + m + j]:
                miss = (x[j] - ub[j]) / (abs(ub[j]) + size[j])
                if miss > worst:
                    worst, which = miss, p + m + j
            if x[j] < lb[j] and not used[p + m + n + j]:
                miss = (lb[j] - x[j]) / (abs(lb[j]) + size[j])
                if miss > worst:
                    worst, which = miss, p + m + n + j
    return which


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _add(J, R, dv, z, steep, q, n):  # type: ignore[no-untyped-def]
    """Reflect J so that the new column of R is upper triangular; `z` is Jᵀdv and `steep` |dv|² from row q on."""
    length = np.sqrt(steep) if dv[q] <= 0.0 else -np.sqrt(steep)
    scale = 1.0 / (steep - length * dv[q])
    for i in range(q):
        R[i, q] = dv[i]
    R[q, q] = length
    dv[q] -= length
    for k in range(n):
        z[k] = scale * (z[k] - length * J[q, k])
    for j in range(q, n):
        weight = dv[j]
        for k in range(n):
            J[j, k] -= weight * z[k]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _drop(J, R, active, y, place, q, n):  # type: ignore[no-untyped-def]
    """Take the constraint at `place` out of the active set of q."""
    for i in range(place, q - 1):
        active[i] = active[i + 1]
        y[i] = y[i + 1]
        for k in range(i + 2):
            R[k, i] = R[k, i + 1]
    for j in range(place, q - 1):
        a, b = R[j, j], R[j + 1, j]
        if b != 0.0:
            h = np.sqrt(a * a + b * b)
            c, s = a / h, b / h
            for k in range(j, q - 1):
                u, v = R[j, k], R[j + 1, k]
                R[j, k] = c * u + s * v
                R[j + 1, k] = c * v - s * u
            for k in range(n):
                u, v = J[j, k], J[j + 1, k]
                J[j, k] = c * u + s * v
                J[j + 1, k] = c * v - s * u


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _solve(A, b, C, d, E, f, lb, ub, boxed, J, L, R, x, size, y, r, z, dv, normal, active, used):  # type: ignore[no-untyped-def]
    """The active set and its multipliers; returns its size, or -1 where the method gives up."""
    n, m, p = len(b), len(d), len(f)
    if not _factorise(A, J, L, n):
        return -1
    for i in range(n):
        x[i] = 0.0
    for j in range(n):  # x = −JᵀJb
        total = 0.0
        for k in range(j + 1):
            total += J[j, k] * b[k]
        for k in range(j + 1):
            x[k] -= total * J[j, k]
    used[:] = False
    q, nextequal, limit = 0, 0, 20 + 10 * (n + m + p)
    for _ in range(limit):
        if nextequal < p:
            which = nextequal
            nextequal += 1
        else:
            for j in range(n):
                size[j] = abs(x[j])
            which = _most_violated(C, d, lb, ub, x, size, used, m, p, n, boxed)
            if which < 0:
                return q
        _normal(which, C, E, m, p, n, normal)
        target = _bound(which, d, f, lb, ub, m, p, n)
        multiplier = 0.0
        for _ in range(limit):
            whole = 0.0
            for j in range(n):  # dv = J·normal
                total = 0.0
                for k in range(n):
                    total += J[j, k] * normal[k]
                dv[j] = total
                whole += total * total
            over, steep = -target, 0.0
            for j in range(n):
                over += normal[j] * x[j]
            for j in range(q, n):
                steep += dv[j] * dv[j]
            for i in range(q - 1, -1, -1):  # r = R⁻¹·dv
                total = dv[i]
                for k in range(i + 1, q):
                    total -= R[i, k] * r[k]
                r[i] = total / R[i, i]
            first, longest = -1, np.inf
            sign = 1.0 if over >= 0.0 else -1.0  # only an equation can lie on the other side
            for i in range(q):
                if active[i] >= p and sign * r[i] > 0.0:
                    ratio = y[i] / (sign * r[i])
                    if ratio < longest:
                        longest, first = ratio, i
            dependent = not steep > 1e-14 * whole
            if dependent and first < 0:
                return -1  # a contradiction, or a redundant equation: not for this method
            full = np.inf if dependent else abs(over) / steep
            step = min(full, longest)
            if not dependent:
                for k in range(n):
                    z[k] = 0.0
                for j in range(q, n):
                    weight = dv[j]
                    for k in range(n):
                        z[k] += weight * J[j, k]
                for k in range(n):
                    x[k] -= sign * step * z[k]
            for i in range(q):
                y[i] -= sign * step * r[i]
            multiplier += sign * step
            if step == full:
                _add(J, R, dv, z, steep, q, n)
                active[q], y[q], used[which] = which, multiplier, True
                q += 1
                break
            used[active[first]] = False
            _drop(J, R, active, y, first, q, n)
            q -= 1
        else:
            return -1
    return -1


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _correct(A, b, C, d, E, f, lb, ub, J, R, x, y, r, z, dv, normal, active, q):  # type: ignore[no-untyped-def]
    """One Newton step on the active set: [A Nᵀ; N 0][dx; dy] = −[gradient; Nx − bounds]."""
    n, m, p = len(b), len(d), len(f)
    for i in range(n):
        total = b[i]
        for k in range(n):
            total += A[i, k] * x[k]
        z[i] = total
    for i in range(q):
        _normal(active[i], C, E, m, p, n, normal)
        over = -_bound(active[i], d, f, lb, ub, m, p, n)
        for k in range(n):
            over += normal[k] * x[k]
            z[k] += normal[k] * y[i]
        r[i] = over
    for j in range(n):  # dv = J·gradient
        total = 0.0
        for k in range(n):
            total += J[j, k] * z[k]
        dv[j] = total
    # dx = Jᵀu with Rᵀu₁ = −r, u₂ = −dv₂; then R·dy = −dv₁ − u₁
    for i in range(q):
        total = -r[i]
        for k in range(i):
            total -= R[k, i] * z[k]
        z[i] = total / R[i, i]
    for i in range(q - 1, -1, -1):
        total = -dv[i] - z[i]
        for k in range(i + 1, q):
            total -= R[i, k] * r[k]
        r[i] = total / R[i, i]
    for j in range(q, n):
        z[j] = -dv[j]
    for j in range(n):
        weight = z[j]
        for k in range(n):
            x[k] += weight * J[j, k]
    for i in range(q):
        y[i] += r[i]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _put_on_row(row, bound, x, n):  # type: ignore[no-untyped-def]
    """An active row with one entry is a bound and is met exactly: zero stays zero."""
    place = -1
    for j in range(n):
        if row[j] != 0.0:
            if place >= 0:
                return
            place = j
    if place >= 0:
        x[place] = bound / row[place]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _accept(A, b, C, d, E, f, lb, ub, x, rows, equal, box, tol, net, size):  # type: ignore[no-untyped-def]
    """A sufficient condition for `certificate.is_optimal`; bounds are met exactly by then. `net`, `size`: (n,)."""
    n, m, p = len(b), len(d), len(f)
    gap, worth = 0.0, 0.0
    for j in range(n):
        net[j], size[j] = b[j] + box[j], abs(x[j])
    for i in range(m):
        if rows[i] < 0.0:
            return False
        total, reach = -d[i], abs(d[i])
        for j in range(n):
            total += C[i, j] * x[j]
            reach += abs(C[i, j]) * size[j]
        if not total <= _SHARP * reach:
            return False
        if rows[i] != 0.0:
            gap += rows[i] * abs(total)
            for j in range(n):
                net[j] += C[i, j] * rows[i]
    for i in range(p):
        total, reach = -f[i], abs(f[i])
        for j in range(n):
            total += E[i, j] * x[j]
            reach += abs(E[i, j]) * size[j]
            net[j] += E[i, j] * equal[i]
        if not abs(total) <= _SHARP * reach:
            return False
        gap += abs(equal[i] * total)
    for j in range(n):
        product, terms = 0.0, abs(b[j]) + abs(box[j])
        for k in range(n):
            product += A[j, k] * x[k]
            terms += abs(A[j, k]) * size[k]
        left = abs(product + net[j])
        if not left <= _SHARP * terms:
            return False
        gap += left * size[j]
        worth += size[j] * (abs(product) + abs(b[j]))
    return gap <= tol * worth


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _run_one(  # type: ignore[no-untyped-def]
    A, b, C, d, E, f, lb, ub, boxed, tol, point, rows, equal, box, J, L, R, size, y, r, z, dv, normal, active, used
):
    """One problem into `point` and its multipliers; whether the answer is accepted."""
    n, m, p = len(b), len(d), len(f)
    q = _solve(A, b, C, d, E, f, lb, ub, boxed, J, L, R, point, size, y, r, z, dv, normal, active, used)
    if q < 0:
        return False
    _correct(A, b, C, d, E, f, lb, ub, J, R, point, y, r, z, dv, normal, active, q)
    rows[:] = 0.0
    equal[:] = 0.0
    box[:] = 0.0
    for i in range(q):
        index = active[i]
        if index < p:
            equal[index] = y[i]
        elif index < p + m:
            rows[index - p] = y[i]
            _put_on_row(C[index - p], d[index - p], point, n)
        elif y[i] > 0.0:
            place = index - p - m
            box[place % n] = y[i] if place < n else -y[i]
            point[place % n] = ub[place] if place < n else lb[place - n]
    if boxed:
        for j in range(n):
            point[j] = min(max(point[j], lb[j]), ub[j])
    return _accept(A, b, C, d, E, f, lb, ub, point, rows, equal, box, tol, z, size)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _run(A, b, C, d, E, f, lb, ub, boxed, tol, x, rows, equal, box, solved, begin, end):  # type: ignore[no-untyped-def]
    """The problems from `begin` to `end`; without bounds, lb and ub have one row."""
    n, m, p = b.shape[1], d.shape[1], f.shape[1]
    J, L, R = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n + 1))
    size, y, r, z, dv, normal = np.zeros(n), np.zeros(n + 1), np.zeros(n + 1), np.zeros(n), np.zeros(n), np.zeros(n)
    active, used = np.zeros(n + 1, np.int64), np.zeros(p + m + 2 * n, np.bool_)
    for t in range(begin, end):
        s = t if boxed else 0
        solved[t] = _run_one(
            A[t], b[t], C[t], d[t], E[t], f[t], lb[s], ub[s], boxed, tol, x[t], rows[t], equal[t], box[t],
            J, L, R, size, y, r, z, dv, normal, active, used,
        )  # fmt: skip


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
def _is_plain(A, b, C, d, E, f, lb, ub):  # type: ignore[no-untyped-def]
    """Whether all numbers are finite and of sizes that mean themselves, and A is symmetric."""
    n = len(b)
    total, apart = 0.0, 0.0  # small only if every entry is
    for i in range(n):
        total += b[i] * b[i]
        for j in range(i):
            apart += abs(A[i, j] - A[j, i])
        for j in range(n):
            total += A[i, j] * A[i, j]
    for i in range(len(d)):
        if not abs(d[i]) < NO_BOUND:
            return False
        for j in range(n):
            total += C[i, j] * C[i, j]
    for i in range(len(f)):
        total += f[i] * f[i]
        for j in range(n):
            total += E[i, j] * E[i, j]
    for j in range(len(lb)):
        if not (lb[j] <= ub[j] and lb[j] < NO_BOUND and ub[j] > -NO_BOUND):
            return False
    return apart == 0.0 and total <= LARGEST * LARGEST


@numba.njit(cache=True, nogil=True, error_model="numpy")
def solve_one(A, b, C, d, E, f, lb, ub, tol, x, duals):  # type: ignore[no-untyped-def]
    """One problem, unbatched and unchecked, into x (n,) and `duals` (m + p + n,); whether the answer is accepted.

    Bounds are both there or both empty. Data that are not finite, a matrix that is not symmetric and bounds that stand
    for none are left to others, who say what is wrong or mean something else.
    """
    n, m, p = len(b), len(d), len(f)
    if not _is_plain(A, b, C, d, E, f, lb, ub):
        return False
    boxed = len(lb) > 0
    J, L, R = np.empty((n, n)), np.empty((n, n)), np.empty((n, n + 1))
    size, y, r, z, dv, normal = np.empty(n), np.empty(n + 1), np.empty(n + 1), np.empty(n), np.empty(n), np.empty(n)
    active, used = np.empty(n + 1, np.int64), np.empty(p + m + 2 * n, np.bool_)
    rows, equal, box = duals[:m], duals[m : m + p], duals[m + p :]
    return _run_one(
        A, b, C, d, E, f, lb, ub, boxed, tol, x, rows, equal, box, J, L, R, size, y, r, z, dv, normal, active, used
    )


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _are_plain(A, b, C, d, E, f, lb, ub):  # type: ignore[no-untyped-def]
    n = b.shape[1]
    L = np.empty((n, n))
    for t in range(len(b)):
        if not _is_plain(A[t], b[t], C[t], d[t], E[t], f[t], lb[t], ub[t]) or not _cholesky(A[t], L, n):
            return False
    return True


def are_plain(*arrays: np.ndarray) -> bool:
    """Whether batches A, b, C, d, E, f, lb, ub in order hold numbers that need no other check, and A is definite."""
    return bool(_are_plain(*arrays))


def solve_bulk(p: Arrays, tol: float, threads: int | None = None) -> tuple[Point, np.ndarray]:
    """Points of a batch without ℓ1 terms, and whether each is accepted, (batch,) of bool.

    `threads` is by default the number of cores where there is work for them.
    """
    batch, n = p.b.shape
    boxed = bool(any(np.isfinite(distinct_entries(bound)).any() for bound in (p.lb, p.ub)))
    arrays = [np.ascontiguousarray(array) for array in p[:6]]
    arrays += [np.ascontiguousarray(bound if boxed else bound[:1]) for bound in (p.lb, p.ub)]
    point = Point(np.empty((batch, n)), np.empty(p.d.shape), np.empty(p.f.shape), np.empty((batch, n)))
    solved = np.empty(batch, dtype=np.bool_)
    m = p.d.shape[1] + p.f.shape[1]
    work = batch * (200 + n**3 + 4 * (n + m) * n * min(n, m + 1))

    def run(begin: int, end: int) -> None:
        _run(*arrays, boxed, tol, *point, solved, begin, end)

    bulk_in_parts(run, batch, threads or min(os.cpu_count() or 1, int(1 + work / _WORK)))
    return point, solved


_pool: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)  # threads do not survive a fork


def bulk_in_parts(run: Callable[[int, int], None], batch: int, threads: int) -> None:
    """run(begin, end) over the whole batch on some threads; `run` must give up the interpreter's lock.

    Each thread takes parts until none is left, so that a core that is busy otherwise takes fewer.
    """
    if threads == 1 or batch < threads:
        run(0, batch)
        return
    edges = np.linspace(0, batch, 8 * threads + 1).astype(int).tolist()
    left = deque((i, j) for i, j in pairwise(edges) if j > i)

    def take_parts() -> None:
        while True:
            try:
                i, j = left.popleft()
            except IndexError:
                return
            run(i, j)

    if not _pool:
        _pool.append(ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "time2decide-qp"))
    others = [_pool[0].submit(take_parts) for _ in range(threads - 1)]  # threads that wait: starting one costs 0.1 ms
    take_parts()
    for other in others:
        if not other.cancel():
            other.result()
