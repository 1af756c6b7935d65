"""The kernel bank of the LMC generator: 33 covariance functions on a grid, each as a tall factor of its Gram matrix.

On [0, 1] every kernel here but white noise is smooth, so its Gram matrix K has a numerical rank of at most 31: a
factor F with FFᵀ = K to 1e-12 is 1024 × 31 instead of 1024 × 1024. That is four digits closer to K than the usual
Cholesky factor of K + 1e-8·I, and it makes drawing from sums and products of kernels cheap (see `lmc.py`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack, toeplitz

#: Periods of the periodic kernels in steps; those that occur several times are drawn more often, as in TimePFN.
PERIODS = (24, 48, 96, 168, 336, 672, 7, 14, 30, 60, 365, 730, 4, 26, 52, 4, 6, 12, 4, 40, 10)
LINEAR_OFFSETS = (0.0, 1.0, 10.0)
SMOOTH_SCALES = (0.1, 1.0, 10.0)
MIXTURES = (0.1, 1.0, 10.0)
NOISE_LEVELS = (0.1, 1.0)
_TOLERANCE = 1e-12  # of the largest variance


class Kernel(NamedTuple):
    """A covariance function on a grid of T points.

    factor : (T, rank) with FFᵀ = K, or (T, 0) for white noise, whose K = diag(variance) has no tall factor
    variance : (T,) diagonal of K
    """

    factor: np.ndarray
    variance: np.ndarray
    white: bool


@lru_cache(maxsize=4)
def kernel_bank(length: int) -> tuple[Kernel, ...]:
    """The 33 kernels on `length` equally spaced points of [0, 1]; a period of p steps is p/length.

    periodic exp(−2 sin²(πd/p)), linear xx' + σ₀², Gaussian exp(−d²/2ℓ²), rational quadratic (1 + d²/2α)^−α,
    white noise and the constant 1, with d = |x − x'|.
    """
    grid = np.linspace(0.0, 1.0, length)
    periodic = {p: _from_gram(toeplitz(np.exp(-2 * np.sin(np.pi * grid * length / p) ** 2))) for p in set(PERIODS)}
    stationary = [np.exp(-0.5 * (grid / scale) ** 2) for scale in SMOOTH_SCALES]
    stationary += [(1 + grid**2 / (2 * alpha)) ** -alpha for alpha in MIXTURES]
    return (
        *(periodic[p] for p in PERIODS),
        *(_from_factor(np.column_stack([grid, np.full(length, s)]) if s else grid[:, None]) for s in LINEAR_OFFSETS),
        *(_from_gram(toeplitz(column)) for column in stationary),
        *(Kernel(np.zeros((length, 0)), np.full(length, level), True) for level in NOISE_LEVELS),
        _from_factor(np.ones((length, 1))),
    )


def tall_factor(gram: np.ndarray) -> np.ndarray:
    """F (T, rank) with FFᵀ = gram up to 1e-12 of the largest variance, by Cholesky with pivoting."""
    tolerance = _TOLERANCE * float(gram.diagonal().max())
    lower, pivots, rank, _ = lapack.dpstrf(gram, tol=tolerance, lower=1)
    factor = np.empty((len(gram), rank))
    factor[pivots - 1] = np.tril(lower)[:, :rank]
    return factor


def _from_gram(gram: np.ndarray) -> Kernel:
    return Kernel(tall_factor(gram), gram.diagonal().copy(), False)


def _from_factor(factor: np.ndarray) -> Kernel:
    return Kernel(factor, np.einsum("ij,ij->i", factor, factor), False)
