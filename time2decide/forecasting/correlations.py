"""Correlation matrices from sums of products, and the algebra of the state with them."""

from __future__ import annotations

import numpy as np

_FEW = 20.0  # rows of a pair at which its correlation counts half of one with all rows
_SMALL = 32  # rows of a triangle that is inverted at once
_TINY = 1e-12


def pair_correlations(moments: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Correlation matrices (K, m, m) of moments and their weights; 0 between assets that were never seen together.

    With gaps every pair has its own rows: pairs seen for a few rows count little, and eigenvalues that this makes
    negative are raised.
    """
    return unit_diagonal(moments / np.maximum(pairs, _TINY), pairs)


def unit_diagonal(second: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Correlations of second moments (..., m, m), whose pairs have weights (..., m, m), or (..., 1, 1) without gaps."""
    scale = np.sqrt(np.maximum(second.diagonal(axis1=-2, axis2=-1), _TINY))
    correlation = np.clip(second / (scale[..., :, None] * scale[..., None, :]), -1.0, 1.0)
    index = np.arange(second.shape[-1])
    gaps = pairs.shape[-1] > 1
    if gaps:
        trust = pairs / (pairs + _FEW)
        correlation *= trust / trust.max((-2, -1), keepdims=True)
    correlation[..., index, index] = 1.0
    return _raised(correlation) if gaps else correlation


def _raised(correlation: np.ndarray) -> np.ndarray:
    """Correlation matrices near symmetric ones of unit diagonal, with eigenvalues of at least about 0.001."""
    try:
        np.linalg.cholesky(correlation - 1e-3 * np.eye(correlation.shape[-1]))
        return correlation
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(correlation)
    near = (vectors * np.maximum(values, 1e-3)[..., None, :]) @ vectors.swapaxes(-1, -2)
    scale = np.sqrt(near.diagonal(axis1=-2, axis2=-1))
    return np.asarray(near / (scale[..., :, None] * scale[..., None, :]))


def inverse_triangle(L: np.ndarray) -> np.ndarray:
    """Inverses of lower triangular matrices (..., m, m), by halves."""
    if L.shape[-1] <= _SMALL:
        return np.linalg.inv(L)
    half = L.shape[-1] // 2
    inverse = np.zeros_like(L)
    top, bottom = inverse_triangle(L[..., :half, :half]), inverse_triangle(L[..., half:, half:])
    inverse[..., :half, :half], inverse[..., half:, half:] = top, bottom
    inverse[..., half:, :half] = -bottom @ (L[..., half:, :half] @ top)
    return inverse


def constant_correlation(correlation: np.ndarray) -> np.ndarray:
    """Correlation matrices (..., m, m) with every pair at the mean correlation."""
    m = correlation.shape[-1]
    mean = (correlation.sum((-2, -1), keepdims=True) - m) / max(m * (m - 1), 1)
    return np.asarray(mean + (1 - mean) * np.eye(m))
