"""One problem from the constraints that were active in a similar one: guess, solve, correct the guess, compiled.

With the variables that bounds, or rows of one entry, hold at their values and the other active rows as equations, an
answer is the solution of one linear system. Multipliers of the wrong sign and violated constraints change the guess; a
few rounds are enough where problems change little. What the kernel's test does not accept is left to the other ways.
"""

from __future__ import annotations

import numpy as np

from time2decide.core.compiled import numba
from time2decide.qp.adjoint import _cholesky, _down, _step
from time2decide.qp.bulk import _accept, _is_plain

_ROUNDS = 8
_FREE, _UPPER, _LOWER = -1, -2, -3  # what holds a variable: nothing, a bound, or the row of this number


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _columns(C, m, n):  # type: ignore[no-untyped-def]
    """The variable of each row that has one entry, else -1."""
    column = np.full(m, -1)
    for i in range(m):
        count = 0
        for j in range(n):
            if C[i, j] != 0.0:
                column[i] = j
                count += 1
                if count > 1:
                    column[i] = -1
                    break
    return column


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _on_active_set(A, b, C, d, E, f, lb, ub, held, on, x, y):  # type: ignore[no-untyped-def]
    """x, and y of the rows of E and then of those that are on; False where the system is not safely regular."""
    n, p = len(b), len(f)
    free, rows = np.flatnonzero(held == _FREE), np.flatnonzero(on)
    k, r = len(free), p + len(rows)
    for j in range(n):
        if held[j] == _UPPER:
            x[j] = ub[j]
        elif held[j] == _LOWER:
            x[j] = lb[j]
        else:
            x[j] = d[held[j]] / C[held[j], j] if held[j] >= 0 else 0.0
    L, N, W, S = np.empty((k, k)), np.empty((r, k)), np.empty((r, k)), np.empty((r, r))
    u, s, miss, left = np.empty(k), np.empty(r), np.empty(r), np.empty(k)
    for i in range(k):
        for j in range(i + 1):
            L[i, j] = A[free[i], free[j]]
    if k and not _cholesky(L, k) > 1e-11:
        return False
    for i in range(r):
        row = E[i] if i < p else C[rows[i - p]]
        bound = f[i] if i < p else d[rows[i - p]]
        s[i] = bound - np.dot(row, x)
        for j in range(k):
            N[i, j] = row[free[j]]
        W[i] = N[i]
        _down(L, k, W[i])
    for i in range(r):
        for j in range(i + 1):
            S[i, j] = np.dot(W[i], W[j])
    if r and not _cholesky(S, r) > 1e-11:
        return False
    for j in range(k):
        u[j] = -b[free[j]] - np.dot(A[free[j]], x)
    left[:], miss[:] = u, s
    _step(L, W, S, k, r, u, s)
    for j in range(k):  # what is left of the two equations
        for i in range(k):
            left[j] -= A[free[j], free[i]] * u[i]
    for i in range(r):
        miss[i] -= np.dot(N[i], u)
        for j in range(k):
            left[j] -= N[i, j] * s[i]
    _step(L, W, S, k, r, left, miss)
    for j in range(k):
        x[free[j]] = u[j] + left[j]
    y[:r] = s + miss
    return True


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _signs(A, b, C, E, lb, ub, held, on, x, y, rows, equal, box):  # type: ignore[no-untyped-def]
    """The multipliers; what pulls the wrong way is let go. Whether nothing did."""
    n, p = len(b), len(equal)
    good, place = True, p
    gradient = b + np.dot(A, x)
    rows[:], box[:] = 0.0, 0.0
    equal[:] = y[:p]
    for i in range(p):
        gradient += y[i] * E[i]
    for i in range(len(on)):
        if not on[i]:
            continue
        gradient += y[place] * C[i]
        if y[place] < 0.0:
            on[i], good = False, False
        else:
            rows[i] = y[place]
        place += 1
    for j in range(n):
        by, pull = held[j], -gradient[j]
        if by == _FREE:
            continue
        if by >= 0:
            pull /= C[by, j]
            rows[by] = max(pull, 0.0)
            wrong = pull < 0.0
        else:
            box[j] = pull
            wrong = lb[j] < ub[j] and (pull < 0.0 if by == _UPPER else pull > 0.0)
        if wrong:
            held[j], good = _FREE, False
    return good


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _violated(C, d, lb, ub, column, held, on, x):  # type: ignore[no-untyped-def]
    """What is violated becomes active. Whether nothing is."""
    good, size = True, np.abs(x)
    for j in range(len(lb)):
        if held[j] == _FREE and not lb[j] <= x[j] <= ub[j]:
            held[j], good = _UPPER if x[j] > ub[j] else _LOWER, False
    for i in range(len(d)):
        if on[i] or (column[i] >= 0 and held[column[i]] == i):
            continue
        over, reach = -d[i], abs(d[i])
        for j in range(len(x)):
            over += C[i, j] * x[j]
            reach += abs(C[i, j]) * size[j]
        if over > 1e-13 * reach:
            good = False
            if column[i] >= 0:
                held[column[i]] = i
            else:
                on[i] = True
    return good


@numba.njit(cache=True, nogil=True, error_model="numpy")
def solve_from(A, b, C, d, E, f, lb, ub, tol, x, duals):  # type: ignore[no-untyped-def]
    """One problem with definite A, into x and `duals`, as `bulk.solve_one`; the start is what `duals` holds."""
    n, m, p = len(b), len(d), len(f)
    if not _is_plain(A, b, C, d, E, f, lb, ub):
        return False
    rows, equal, box = duals[:m], duals[m : m + p], duals[m + p :]
    column, held, on = _columns(C, m, n), np.full(n, _FREE), np.zeros(m, np.bool_)
    for j in range(len(lb)):
        held[j] = _UPPER if box[j] > 0.0 or lb[j] == ub[j] else _LOWER if box[j] < 0.0 else _FREE
        if (held[j] == _UPPER and ub[j] == np.inf) or (held[j] == _LOWER and lb[j] == -np.inf):
            held[j] = _FREE
    for i in range(m):
        if rows[i] > 0.0:
            if column[i] < 0:
                on[i] = True
            elif held[column[i]] == _FREE:
                held[column[i]] = i
    y = np.empty(p + m)
    for _ in range(_ROUNDS):
        if p + on.sum() > n or not _on_active_set(A, b, C, d, E, f, lb, ub, held, on, x, y):
            return False
        pulls = _signs(A, b, C, E, lb, ub, held, on, x, y, rows, equal, box)
        if _violated(C, d, lb, ub, column, held, on, x) and pulls:
            return _accept(A, b, C, d, E, f, lb, ub, x, rows, equal, box, tol, np.empty(n), np.empty(n))
    return False
