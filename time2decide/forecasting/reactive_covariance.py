"""The covariance of the next returns: slow correlations, pooled volatilities, and two fast numbers for the level.

    S = diag(σ) R diag(σ),  b = S w,  v = wᵀ S w,  w equal weights
    Σ = c (S − b bᵀ / v) + g b bᵀ / v

R is a mixture of correlations of several half-lives, cleaned by quadratic inverse shrinkage; σ mixes volatilities in
logarithms, with the same shares for every asset. After a row with returns r and market return x = wᵀ r,

    g ← .02 + .9 g + (.02 + .12 · [x < 0]) min(x² / v, 25)                      the market's direction
    c ← .9 c + .1 mean_i min((r_i − β_i x)² / (S_ii − b_i² / v), 25)            the rest,  β = b / v

In crises the market's direction moves within days by far more than the rest, so one number for all of Σ does not do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from time2decide.forecasting.correlations import unit_diagonal
from time2decide.markets.estimators import qis_spectrum
from time2decide.markets.periods import YEAR

# Shares of the half-lives: of days, and of months, between which the rarer rows are the faster.
_OF_DAYS, _OF_MONTHS = np.array([0.01, 0.04, 0.75, 0.10, 0.05, 0.05]), np.array([0.4, 0.2, 0.1, 0.0, 0.2, 0.1])
_CORRELATION_MIX = np.array([0.02, 0.35, 0.10, 0.35]) / 0.82
_MOST = 25.0  # a squared return in units of its variance counts no more
_KEEP_REST, _KEEP_MARKET, _ANCHOR, _NEWS, _FALL = 0.9, 0.9, 0.02, 0.02, 0.12
_LEAST = 0.02  # of the two numbers
_STILL = 1e-12  # variance of an asset that does not move
_LEAST_EIGENVALUE = 1e-5  # of the cleaned correlations
_LEAST_OWN = 1e-6  # share of an asset's own variance


@dataclass(frozen=True)
class CovarianceParts:
    """A covariance of the next returns and what it is made of.

    covariance : (m, m)
    volatility : (m,), σ, before the two numbers
    eigenvalues : (m,), ascending, and eigenvectors : (m, m), of the cleaned correlations
    beta : (m,), of the assets on the market, whose weights are `market_weights` (m,)
    market_level, rest_level : float, g and c
    observations : float, equally weighted rows that the correlations are worth
    """

    covariance: np.ndarray
    volatility: np.ndarray
    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    beta: np.ndarray
    market_weights: np.ndarray
    market_level: float
    rest_level: float
    observations: float


def pooled_volatility(log_variance: np.ndarray, periods_per_year: float) -> np.ndarray:
    """σ (..., m) from log variances (..., K, m).

    Half-lives are of rows. A volatility lasts for so many days, so the rarer the rows the faster the mixture.
    """
    rare = min(max(np.log(YEAR / periods_per_year) / np.log(YEAR / 12), 0.0), 1.0)
    mixed = sum(w * log_variance[..., k, :] for k, w in enumerate((1 - rare) * _OF_DAYS + rare * _OF_MONTHS))
    return np.asarray(np.exp(mixed / 2))


def mixed_correlation(moments: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """R (m, m) from the moments of all half-lives (K', m, m) and their weights (K', m, m), or (K', 1, 1)."""
    mixed = np.zeros(moments.shape[1:])
    for share, moment, pair in zip(_CORRELATION_MIX, moments, pairs, strict=True):
        mixed += share / np.maximum(pair, _STILL) * moment
    return unit_diagonal(mixed, pairs[-1])


def mixed_observations(rows: float, keep: np.ndarray) -> float:
    """1 / Σ w²: the equally weighted rows that the mixture of half-lives is worth after `rows` rows."""
    part = _CORRELATION_MIX * (1 - keep) / (1 - keep**rows)
    both = np.outer(keep, keep)
    return float(1 / (np.outer(part, part) * (1 - both**rows) / (1 - both)).sum())


def level_news(
    returns: np.ndarray, known: np.ndarray, weights: np.ndarray, deviation: np.ndarray, correlation: np.ndarray
) -> np.ndarray:
    """What rows of returns (T, m) say of the two numbers: (T, 2), for `_recursion` with factors `LEVEL_KEEP`.

    `weights` (T, m) are those of the market, `deviation` (T, m) is σ before each row.
    """
    x = deviation * weights
    b = deviation * (correlation @ x[..., None])[..., 0]
    v = np.maximum(_dot(b, weights), _STILL * _dot(weights, weights)) + 1e-300  # of a row without returns
    market = _dot(returns, weights)
    own = np.maximum(deviation**2 - b**2 / v[:, None], _LEAST_OWN * deviation**2)
    rest = np.minimum((returns - b * (market / v)[:, None]) ** 2 / own, _MOST)
    moves = known & (deviation**2 > 2 * _STILL)
    mean = np.where(moves, rest, 0.0).sum(1) / np.maximum(moves.sum(1), 1)
    shock = np.minimum(market**2 / v, _MOST)
    return np.stack([_ANCHOR + (_NEWS + _FALL * (market < 0)) * shock, (1 - _KEEP_REST) * mean], axis=1)


LEVEL_KEEP = np.array([_KEEP_MARKET, _KEEP_REST])


def reactive_covariance(
    correlation: np.ndarray, observations: float, volatility: np.ndarray, weights: np.ndarray, level: np.ndarray
) -> CovarianceParts:
    """Σ and its parts from correlations (m, m) worth so many rows, σ (m,), market weights (m,) and the two numbers."""
    values, vectors = qis_spectrum(correlation, observations)
    values = np.maximum(values, _LEAST_EIGENVALUE)
    cleaned = (vectors * values) @ vectors.T
    unit = volatility / np.sqrt(cleaned.diagonal())
    base = cleaned * unit * unit[:, None]
    b = base @ weights
    v = max(float(b @ weights), _STILL * float(weights @ weights))
    market, rest = (max(float(one), _LEAST) for one in level)
    covariance = rest * base + (market - rest) / v * np.outer(b, b)
    return CovarianceParts(
        (covariance + covariance.T) / 2, volatility, values, vectors, b / v, weights, market, rest, observations
    )


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("ti,ti->t", a, b))
