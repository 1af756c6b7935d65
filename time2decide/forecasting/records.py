"""The record of a forecast: how far what happened has followed what was forecast.

A forecast f of the differences between assets has the slope β of outcomes y on forecasts. A forecast that is worth
nothing has β = 0, one that means what it says β = 1. `posterior_slopes` weighs both: with a prior probability some
expert is worth something, and then β ~ N(1, ½²), β > 0; else it is 0. The likelihood comes from five sums over the
rows since, with errors clustered by row, because all assets of a row share what moved it. The posterior mean is the
factor by which a forecast is followed.

The sums forget with a half-life, so that a forecast that stops working is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from time2decide.markets.policy_config import RecordConfig

_TINY = 1e-100
_UNKNOWN = 1e12  # variance of a slope that too few rows have told of
_FEWEST = 3.0  # rows: a variance from fewer has no mean


class SlopePosterior(NamedTuple):
    """Of E experts and H horizons.

    slope : (E, H) posterior mean, 0 counted as the slope of what is worth nothing
    probability : (E, H) that this expert is the one to follow
    estimate, error : (E, H) slope so far and its standard error; NaN before there are rows
    """

    slope: np.ndarray
    probability: np.ndarray
    estimate: np.ndarray
    error: np.ndarray


def record_terms(forecast: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """What a row adds to the sums, (5, ...), from forecasts and outcomes (..., m).

    A row counts by the length of its forecast, not by its square: forecasts are far larger on some rows, in restless
    times, and one of them would outweigh a year.
    """
    length = np.sqrt(np.einsum("...m,...m->...", forecast, forecast))
    along = np.einsum("...m,...m->...", forecast, outcome) / np.maximum(length, _TINY)
    return np.stack([length, along, along * along, along * length, length * length])


def posterior_slopes(
    sums: np.ndarray, lengths: np.ndarray, config: RecordConfig, made: np.ndarray | None = None
) -> SlopePosterior:
    """Posterior of the slopes from sums (5, E, H).

    `lengths` (H,) are the rows of each horizon: forecasts that overlap count once. `made` (E, H) says which experts
    forecast which horizon at all.
    """
    xx, xy, xyxy, xyxx, xxxx = sums
    made = np.ones(xx.shape, dtype=bool) if made is None else made
    xx = np.maximum(xx, _TINY)
    estimate = xy / xx
    clusters = np.where(xxxx > 0, xx**2 / np.maximum(xxxx, _TINY**2), 0.0) / lengths
    spread = np.maximum(xyxy - 2 * estimate * xyxx + estimate**2 * xxxx, 0.0) * lengths / xx**2
    known = clusters > _FEWEST
    correction = np.where(known, clusters / np.where(known, clusters - _FEWEST, 1.0), 1.0)
    variance = np.where(known, spread * correction + 1e-12, _UNKNOWN)
    prior = config.deviation**2
    narrow = 1 / (1 / prior + 1 / variance)
    mean = narrow * (estimate / variance + config.slope / prior)
    edge = mean / np.sqrt(narrow)
    odds = (mean**2 / narrow - config.slope**2 / prior + np.log(narrow / prior)) / 2
    odds += log_ndtr(edge) - log_ndtr(config.slope / config.deviation)  # slopes below 0 are left out
    probability = _to_follow(np.where(made, odds, -np.inf), config)
    density = np.exp(-(edge**2) / 2) / np.sqrt(2 * np.pi)
    positive = np.where(edge > -8, mean + np.sqrt(narrow) * density / np.maximum(ndtr(edge), _TINY), 0.0)
    found = (np.where(known & made, one, np.nan) for one in (estimate, np.sqrt(variance)))
    return SlopePosterior(probability * positive, probability, *found)


def _to_follow(odds: np.ndarray, config: RecordConfig) -> np.ndarray:
    """Probability (E, H) that an expert is the one to follow, from its log odds against being worth nothing.

    Neighbouring horizons have the same answer with probability `same`, else a new one: what is worth nothing at the
    horizons that many rows have told of is not followed at those that few have.
    """
    horizons, made = odds.shape[1], np.isfinite(odds)
    none = np.full((1, horizons), 1 - config.worth)
    prior = np.concatenate([none, config.worth * made / np.maximum(made.sum(0), 1)])
    prior /= prior.sum(0)
    likelihood = np.exp(np.concatenate([np.zeros((1, horizons)), odds]) - np.maximum(odds.max(0), 0.0))
    forward, backward = np.empty_like(prior), np.ones_like(prior)
    for h in range(horizons):
        before = prior[:, h] if h == 0 else config.same * forward[:, h - 1] + (1 - config.same) * prior[:, h]
        forward[:, h] = before * likelihood[:, h] + _TINY
        forward[:, h] /= forward[:, h].sum()
    for h in reversed(range(horizons - 1)):
        later = likelihood[:, h + 1] * backward[:, h + 1]
        backward[:, h] = config.same * later + (1 - config.same) * (prior[:, h + 1] @ later) + _TINY
        backward[:, h] /= backward[:, h].max()
    both = forward * backward
    return np.asarray((both / both.sum(0))[1:] * made)
