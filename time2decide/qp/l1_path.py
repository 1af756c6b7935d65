"""Many problems with an ℓ1 radius at once, compiled: the path of x in the price τ of ‖x‖₁.

For min ½xᵀAx + bᵀx + τ‖x‖₁ the answer is x = 0 at τ = max|b|, and piecewise linear in τ from there on (the homotopy
that least-angle regression follows): on the variables S in use, with signs s, A_SS x_S = −b_S − τ s_S. One event enters
or removes one variable and changes the inverse of A_SS by rank one. The path is followed down to the τ at which
‖x‖₁ = B, or to τ = λ, the penalty that is given; there the equations of S are solved afresh:

    [A_SS  s_S] [x_S]   [−b_S]
    [s_Sᵀ   0 ] [ τ ] = [  B ]        (or A_SS x_S = −b_S − λ s_S within the ball).

Zeros are exact zeros. What the path cannot do (singular A_SS, ties) is left to the careful path.
"""

from __future__ import annotations

import os

import numpy as np

from time2decide.core.compiled import numba
from time2decide.qp.bulk import bulk_in_parts
from time2decide.qp.certificate import Arrays, Point, is_optimal

_PIVOT = 1e-11  # smallest pivot, relative to its diagonal
_WORK = 1e6  # operations from which on a second thread pays
_KERNEL = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",  # a division by zero fails its own problem, not the batch
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
}


@numba.njit(**_KERNEL)
def _enter(A, M, used, q, new):  # type: ignore[no-untyped-def]
    """M = A_SS⁻¹ with the variable `new` added to the q in use; False where A_SS becomes singular."""
    u = np.empty(q)
    pivot = A[new, new]
    for i in range(q):
        total = 0.0
        for k in range(q):
            total += M[i, k] * A[used[k], new]
        u[i] = total
        pivot -= total * A[used[i], new]
    if not pivot > _PIVOT * A[new, new]:
        return False
    for i in range(q):
        for k in range(q):
            M[i, k] += u[i] * u[k] / pivot
        M[i, q] = M[q, i] = -u[i] / pivot
    M[q, q] = 1.0 / pivot
    used[q] = new
    return True


@numba.njit(**_KERNEL)
def _leave(M, used, q, place):  # type: ignore[no-untyped-def]
    """M = A_SS⁻¹ without the variable at `place`; the last one takes its place."""
    last = q - 1
    for k in range(q):  # swap rows and columns
        M[place, k], M[last, k] = M[last, k], M[place, k]
    for k in range(q):
        M[k, place], M[k, last] = M[k, last], M[k, place]
    used[place], used[last] = used[last], used[place]
    for i in range(last):
        for k in range(last):
            M[i, k] -= M[i, last] * M[last, k] / M[last, last]


@numba.njit(**_KERNEL)
def _follow(A, b, penalty, radius, M, x, sign, used, gradient, way, pull):  # type: ignore[no-untyped-def]
    """The variables in use and their signs at the end of the path: their number, and whether the ball binds."""
    n, q, tau, total = len(b), 0, 0.0, 0.0
    for j in range(n):
        x[j], sign[j], gradient[j] = 0.0, 0.0, b[j]
        tau = max(tau, abs(b[j]))
    if tau <= penalty or radius == 0.0:
        return 0, radius == 0.0
    last, left = -1, 0.0  # the variable of the last event, and its sign if it has left: it does not come back at once
    for _ in range(20 + 10 * n):
        step, which, kind = tau - penalty, -1, 0
        for i in range(q):
            moved = 0.0
            for k in range(q):
                moved += M[i, k] * sign[used[k]]
            way[used[i]] = moved
        growth = 0.0
        for i in range(q):
            j = used[i]
            growth += sign[j] * way[j]
            if j != last and sign[j] * way[j] < 0.0 and -x[j] / way[j] < step:
                step, which, kind = -x[j] / way[j], i, 1
        for j in range(n):
            if sign[j] == 0.0:
                change = 0.0
                for i in range(q):
                    change += A[j, used[i]] * way[used[i]]
                pull[j] = change
                for side in (1.0, -1.0):  # side·gradient reaches −τ from above
                    gap, rate = tau + side * gradient[j], 1.0 - side * change
                    if rate > 0.0 and gap < step * rate and not (j == last and side == left):
                        step, which, kind = max(gap, 0.0) / rate, j, 2 if side > 0.0 else 3
        if growth > 0.0 and radius - total <= step * growth:
            return q, True
        tau -= step
        total += step * growth
        for i in range(q):
            x[used[i]] += step * way[used[i]]
        for j in range(n):
            gradient[j] += step * pull[j] if sign[j] == 0.0 else step * sign[j]
        if kind == 0:
            return q, False
        if kind == 1:
            last = used[which]
            left, sign[last], x[last] = sign[last], 0.0, 0.0
            _leave(M, used, q, which)
            q -= 1
        else:
            if not _enter(A, M, used, q, which):
                return -1, False
            sign[which], last, left = (1.0 if kind == 2 else -1.0), which, 0.0
            q += 1
    return -1, False


@numba.njit(**_KERNEL)
def _finish(A, b, penalty, radius, binds, L, x, sign, used, u, v, q):  # type: ignore[no-untyped-def]
    """x on the final variables, from a Cholesky factor of A_SS and one refinement; False where that fails."""
    n = len(b)
    for i in range(n):
        x[i] = 0.0
    for j in range(q):
        for i in range(j, q):
            total = A[used[i], used[j]]
            for k in range(j):
                total -= L[i, k] * L[j, k]
            if i == j:
                if not total > _PIVOT * A[used[j], used[j]]:
                    return False
                L[j, j] = np.sqrt(total)
            else:
                L[i, j] = total / L[j, j]
    tau = penalty
    for _ in range(2):
        for i in range(q):
            j = used[i]
            total = -b[j] - tau * sign[j]
            for k in range(q):
                total -= A[j, used[k]] * x[used[k]]
            u[i], v[i] = total, sign[j]
        _solve_factor(L, u, q)
        if binds and q:
            _solve_factor(L, v, q)
            over, steep = -radius, 0.0
            for i in range(q):
                over += sign[used[i]] * (x[used[i]] + u[i])
                steep += sign[used[i]] * v[i]
            more = over / steep
            tau += more
            for i in range(q):
                u[i] -= more * v[i]
        for i in range(q):
            x[used[i]] += u[i]
    return True


@numba.njit(**_KERNEL)
def _solve_factor(L, u, q):  # type: ignore[no-untyped-def]
    """u ← (LLᵀ)⁻¹u."""
    for i in range(q):
        for k in range(i):
            u[i] -= L[i, k] * u[k]
        u[i] /= L[i, i]
    for i in range(q - 1, -1, -1):
        for k in range(i + 1, q):
            u[i] -= L[k, i] * u[k]
        u[i] /= L[i, i]


@numba.njit(**_KERNEL)
def _run(A, b, penalty, radius, x, solved, begin, end):  # type: ignore[no-untyped-def]
    n = b.shape[1]
    M, L, used = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n, np.int64)
    sign, gradient, way, pull, u, v = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for t in range(begin, end):
        q, binds = _follow(A[t], b[t], penalty[t], radius[t], M, x[t], sign, used, gradient, way, pull)
        solved[t] = q >= 0 and _finish(A[t], b[t], penalty[t], radius[t], binds, L, x[t], sign, used, u, v, q)


def solve_l1(p: Arrays, tol: float, threads: int | None = None) -> tuple[Point, np.ndarray]:
    """Points of a batch with ℓ1 terms and no other constraint, and whether each is optimal to `tol`, (batch,)."""
    batch, n = p.b.shape
    A, b, penalty, radius = (np.ascontiguousarray(part) for part in (p.A, p.b, p.penalty, p.radius))
    x, solved = np.empty((batch, n)), np.empty(batch, dtype=np.bool_)

    def run(begin: int, end: int) -> None:
        _run(A, b, penalty, radius, x, solved, begin, end)

    bulk_in_parts(run, batch, threads or min(os.cpu_count() or 1, int(1 + batch * (200 + 4 * n**3) / _WORK)))
    point = Point(x, np.zeros(p.d.shape), np.zeros(p.f.shape), np.zeros((batch, n)))
    return point, solved & is_optimal(p, point, tol)
