"""One problem given as plain arrays of float64, by the compiled kernels: checked, solved and certified in one call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from time2decide.qp import engines
from time2decide.qp.problem import BATCH

_NOTHING, _NO_ROWS, _FLOAT = np.zeros(0), np.zeros((0, 0)), np.dtype(float)
_SHARP = 1e-12  # gap at which no better answer is looked for
_KERNEL_SIZE = 128  # variables up to which the kernel is faster than what calls BLAS


class _Kernel:
    """The compiled kernel for one problem at a time: loaded when `BATCH` problems show that it pays."""

    solve: Callable[..., bool] | None = None
    solve_from: Callable[..., bool]
    asked = 0

    @classmethod
    def load(cls) -> bool:
        """Whether it is there."""
        cls.asked += 1
        if cls.asked < BATCH and engines.HAS_DAQP and "time2decide.qp.bulk" not in sys.modules:
            return False
        try:
            from time2decide.qp.bulk import solve_one
            from time2decide.qp.warm import solve_from
        except ImportError:
            return False
        cls.solve, cls.solve_from = staticmethod(solve_one), staticmethod(solve_from)
        return True


def solve_plain_arrays(
    A: Any, b: Any, C: Any, d: Any, E: Any, f: Any, lb: Any, ub: Any, tol: float = _SHARP, start: Any = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """x (n,) and the multipliers of C, E and the bounds in one array, certified; None where that takes more care.

    For whoever has plain arrays of float64 of one problem and cannot wait; anything else may be given. `start` are
    multipliers to start from, for A known to be definite; they are overwritten.
    """
    if _Kernel.solve is None and not _Kernel.load():
        return None
    if type(b) is not np.ndarray or b.ndim != 1 or not 0 < b.shape[0] <= _KERNEL_SIZE:
        return None
    n = b.shape[0]
    square, line = (n, n), (n,)
    if not (is_plain_array(A, square) and is_plain_array(b, line)):
        return None
    m = p = 0
    if C is None and d is None:
        C, d = _NO_ROWS, _NOTHING
    else:
        m = d.shape[0] if type(d) is np.ndarray and d.ndim == 1 else -1
        if not (is_plain_array(d, (m,)) and is_plain_array(C, (m, n))):
            return None
    if E is None and f is None:
        E, f = _NO_ROWS, _NOTHING
    else:
        p = f.shape[0] if type(f) is np.ndarray and f.ndim == 1 else -1
        if not (is_plain_array(f, (p,)) and is_plain_array(E, (p, n))):
            return None
    if lb is None and ub is None:
        lb = ub = _NOTHING
    else:
        lb, ub = np.full(n, -np.inf) if lb is None else lb, np.full(n, np.inf) if ub is None else ub
        if not (is_plain_array(lb, line) and is_plain_array(ub, line)):
            return None
    x, duals = np.empty(n), np.empty(m + p + n) if start is None else start
    assert _Kernel.solve is not None
    kernel = _Kernel.solve if start is None else _Kernel.solve_from
    return (x, duals) if kernel(A, b, C, d, E, f, lb, ub, tol, x, duals) else None


def is_plain_array(array: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is an array as the kernel takes it: of float64 and this shape, in order, and writable."""
    return type(array) is np.ndarray and array.dtype is _FLOAT and array.shape == shape and array.flags.carray
