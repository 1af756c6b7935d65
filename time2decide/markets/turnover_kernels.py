"""`turnover_path.py` and `turnover_decision.py` compiled by numba, with loops in place of what takes the time.

Imported when many or large decisions are solved: the import takes half a second, and the first use on a machine
compiles (the result is cached on disk). The functions release the GIL, so that threads use all cores.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import zlib
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from time2decide.core.compiled import numba
from time2decide.markets import turnover_decision, turnover_path
from time2decide.markets.turnover_path import BUY, END, LEAVE, SELL


def curvature_row(Q, i):
    m = max(Q.S.shape[0], Q.B.shape[0])
    row = np.empty(m)
    if Q.S.shape[0] > 0:
        for j in range(m):
            row[j] = Q.factor * Q.S[i, j]
    else:
        for j in range(m):
            total = 0.0
            for f in range(Q.B.shape[1]):
                total += Q.B[i, f] * Q.B[j, f]
            row[j] = Q.factor * total
        row[i] += Q.factor * Q.D[i]
    return row


def curvature_product(Q, x):
    m = len(x)
    y = np.zeros(m)
    if Q.S.shape[0] > 0:
        for i in range(m):
            if x[i] != 0.0:
                for j in range(m):
                    y[j] += x[i] * Q.S[i, j]
        for j in range(m):
            y[j] *= Q.factor
        return y
    factors = np.zeros(Q.B.shape[1])
    for i in range(m):
        if x[i] != 0.0:
            for f in range(len(factors)):
                factors[f] += x[i] * Q.B[i, f]
    for i in range(m):
        total = Q.D[i] * x[i]
        for f in range(len(factors)):
            total += Q.B[i, f] * factors[f]
        y[i] = Q.factor * total
    return y


def curvature_diagonal(Q, m):
    diagonal = np.empty(m)
    for i in range(m):
        if Q.S.shape[0] > 0:
            diagonal[i] = Q.factor * Q.S[i, i]
        else:
            total = Q.D[i]
            for f in range(Q.B.shape[1]):
                total += Q.B[i, f] ** 2
            diagonal[i] = Q.factor * total
    return diagonal


def enter_inverse(inverse, k, column, pivot, least):
    b = np.zeros(k)
    for i in range(k):
        for j in range(k):
            b[j] += column[i] * inverse[i, j]
    d = pivot
    for i in range(k):
        d -= column[i] * b[i]
    if not d > least:
        return d
    for i in range(k):
        scaled = b[i] / d
        for j in range(k):
            inverse[i, j] += scaled * b[j]
        inverse[i, k] = -scaled
        inverse[k, i] = -scaled
    inverse[k, k] = 1 / d
    return d


def leave_inverse(inverse, k, i):
    column = inverse[:k, i].copy()
    for r in range(k):
        scaled = column[r] / column[i]
        for j in range(k):
            inverse[r, j] -= scaled * column[j]
    for j in range(k):
        inverse[i, j] = inverse[k - 1, j]
    for r in range(k):
        inverse[r, i] = inverse[r, k - 1]


def _direction(inverse, rows, sides, k, free, ds, da):
    ones = np.zeros(k)
    ds[:k] = 0.0
    for i in range(k):
        for j in range(k):
            ds[j] += sides[i] * inverse[i, j]
            ones[j] += inverse[i, j]
    dnu = 0.0
    if not free:
        bottom = 0.0
        for i in range(k):
            dnu += ds[i]
            bottom += ones[i]
        dnu /= bottom
        for i in range(k):
            ds[i] -= dnu * ones[i]
    da[:] = -dnu
    growth = 0.0
    for i in range(k):
        step = ds[i]
        growth += sides[i] * step
        for j in range(len(da)):
            da[j] -= step * rows[i, j]
    return dnu, growth


def _next_entry(a, da, cost, theta, up, down, most):
    kind, who = END, -1
    for i in range(len(a)):
        price, y = cost[i] + theta, da[i] + 1.0
        if up[i] * y > 1e-13 and (price - a[i]) / y < most:
            most, kind, who = max((price - a[i]) / y, 0.0), BUY, i
        y = 1.0 - da[i]
        if down[i] * y > 1e-13 and (price + a[i]) / y < most:
            most, kind, who = max((price + a[i]) / y, 0.0), SELL, i
    return most, kind, who


def _next_exit(d, ds, members, sides, k, low, high, most):
    kind, who = END, -1
    for i in range(k):
        asset, step = members[i], ds[i]
        if step == 0.0:
            continue
        limit = (0.0 if sides[i] > 0 else low[asset]) if step < 0 else high[asset] if sides[i] > 0 else 0.0
        time = (limit - d[asset]) / step
        if time < most:
            most, kind, who = max(time, 0.0), LEAVE, i
    return most, kind, who


def _advance(d, g, ds, da, dnu, members, k, h):
    for i in range(k):
        d[members[i]] += h * ds[i]
    for i in range(len(g)):
        g[i] += h * (da[i] + dnu)


_LOOPS = (
    curvature_row, curvature_product, curvature_diagonal,
    enter_inverse, leave_inverse, _direction, _next_entry, _next_exit, _advance,
)  # fmt: skip
_PATH = (
    "_refactor _exchange correct_path _first_trade _next_cash_event settle_on_path _drop wait_again_on_path _record "
    "follow_turnover_path"
)
_DECISION = (
    "_class_equations reclassify_assets release_asset polish_turnover_decision turnover_duality_gap _solve_one "
    "solve_turnover_rows adjoint_turnover_rows solve_turnover_single validate_turnover_matrices"
)


def _compile() -> dict[str, Any]:
    """Every function of the three files, compiled to call the compiled ones."""
    names = {**vars(turnover_path), **vars(turnover_decision)}
    files = (turnover_path.__file__, turnover_decision.__file__, __file__)
    sources = [Path(str(file)).read_bytes() for file in files]
    digest = f"{zlib.crc32(b''.join(sources)):08x}"  # the cache of numba sees changes of one file only
    path, decision = (
        [getattr(module, name) for name in text.split()]
        for module, text in ((turnover_path, _PATH), (turnover_decision, _DECISION))
    )
    for function in (*_LOOPS, *path, *decision):
        copy = FunctionType(function.__code__, names, function.__name__)
        copy.__qualname__, copy.__module__ = f"{function.__name__}_{digest}", function.__module__
        names[function.__name__] = numba.njit(cache=True, nogil=True, error_model="numpy")(copy)
    return names


_COMPILED = _compile()
solve_turnover_rows = _COMPILED["solve_turnover_rows"]
follow_turnover_path = _COMPILED["follow_turnover_path"]
adjoint_turnover_rows = _COMPILED["adjoint_turnover_rows"]
solve_turnover_single = _COMPILED["solve_turnover_single"]
validate_turnover_matrices = _COMPILED["validate_turnover_matrices"]
