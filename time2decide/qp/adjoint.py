"""The adjoint of the KKT system on the active set, compiled, for many problems at once.

With F the variables that no bound and no ℓ1 term fixes and N the active rows (C, E and the ℓ1 ball where it binds), the
answer solves A_FF x_F + N_Fᵀy = … and N_F x_F = …, so that a gradient v of x and w of y ask for

    [A_FF  N_Fᵀ] [u]     [v_F]
    [N_F    0  ] [s] = − [w  ]

by A_FF = LLᵀ and the Schur complement VᵀV, V = L⁻¹N_Fᵀ, with one step of refinement.
"""

from __future__ import annotations

import numpy as np

from time2decide.core.compiled import numba

_MATH = {"contract", "reassoc", "nsz", "arcp"}


@numba.njit(cache=True, nogil=True, fastmath=_MATH)
def _cholesky(M, k):  # type: ignore[no-untyped-def]
    """M = LLᵀ in place, lower triangle; the smallest pivot beside its diagonal entry, at most 0 where it fails."""
    least = 1.0
    for j in range(k):
        whole = M[j, j]
        for i in range(j, k):
            total = M[i, j]
            for t in range(j):
                total -= M[i, t] * M[j, t]
            if i == j:
                if not total > 0.0 or not whole > 0.0:
                    return 0.0
                least = min(least, total / whole)
                M[j, j] = np.sqrt(total)
            else:
                M[i, j] = total / M[j, j]
    return least


@numba.njit(cache=True, nogil=True, fastmath=_MATH)
def _down(L, k, x):  # type: ignore[no-untyped-def]
    for i in range(k):
        total = x[i]
        for j in range(i):
            total -= L[i, j] * x[j]
        x[i] = total / L[i, i]


@numba.njit(cache=True, nogil=True, fastmath=_MATH)
def _up(L, k, x):  # type: ignore[no-untyped-def]
    for i in range(k - 1, -1, -1):
        x[i] /= L[i, i]
        for j in range(i):
            x[j] -= L[i, j] * x[i]


@numba.njit(cache=True, nogil=True, fastmath=_MATH)
def _step(L, W, S, k, r, u, s):  # type: ignore[no-untyped-def]
    """(u, s) ← the solution of the KKT system with right-hand side (u, s); W holds the rows V[:, i]."""
    _down(L, k, u)
    for i in range(r):
        total = -s[i]
        for j in range(k):
            total += W[i, j] * u[j]
        s[i] = total
    _down(S, r, s)
    _up(S, r, s)
    for i in range(r):
        for j in range(k):
            u[j] -= W[i, j] * s[i]
    _up(L, k, u)


@numba.njit(cache=True, nogil=True)
def adjoint(A, N, used, fixed, v, w, u_all, s_all, good):  # type: ignore[no-untyped-def]
    """u (batch, n) on the free variables and s (batch, r) on the active rows; `good` marks what could be solved.

    N is (batch, r, n), `used` (batch, r) marks its active rows and `fixed` (batch, n) the variables that are not free.
    """
    batch, n = v.shape
    most = 0
    for t in range(batch):
        most = max(most, used[t].sum())
    L, W, S = np.zeros((n, n)), np.zeros((most, n)), np.zeros((most, most))
    u, s, left, miss = np.zeros(n), np.zeros(most), np.zeros(n), np.zeros(most)
    for t in range(batch):
        free, rows = np.flatnonzero(~fixed[t]), np.flatnonzero(used[t])
        k, r = len(free), len(rows)
        good[t] = True
        for i in range(k):
            for j in range(i + 1):
                L[i, j] = A[t, free[i], free[j]]
        if k and not _cholesky(L, k) > 1e-12:
            good[t] = False
            continue
        for i in range(r):
            for j in range(k):
                W[i, j] = N[t, rows[i], free[j]]
            _down(L, k, W[i])
        for i in range(r):
            for j in range(i + 1):
                total = 0.0
                for c in range(k):
                    total += W[i, c] * W[j, c]
                S[i, j] = total
        if r and not _cholesky(S, r) > 1e-11:
            good[t] = False
            continue
        for j in range(k):
            u[j] = -v[t, free[j]]
        for i in range(r):
            s[i] = -w[t, rows[i]]
        _step(L, W, S, k, r, u, s)
        for j in range(k):  # what is left of the two equations
            total = -v[t, free[j]]
            for i in range(k):
                total -= A[t, free[j], free[i]] * u[i]
            for i in range(r):
                total -= N[t, rows[i], free[j]] * s[i]
            left[j] = total
        for i in range(r):
            total = -w[t, rows[i]]
            for j in range(k):
                total -= N[t, rows[i], free[j]] * u[j]
            miss[i] = total
        _step(L, W, S, k, r, left, miss)
        for j in range(k):
            u_all[t, free[j]] = u[j] + left[j]
        for i in range(r):
            s_all[t, rows[i]] = s[i] + miss[i]
