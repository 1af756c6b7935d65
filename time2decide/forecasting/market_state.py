"""The state of a market from years of returns, carried forward day by day.

`MarketState` reads rows of returns and keeps sums, never the rows themselves:

- variances of every asset and correlations of every pair, each at several half-lives;
- *residuals*: the part of a day's move that the other assets do not explain, u = Ω z with z the standardised returns
  and Ω the inverse of their correlation matrix. Reversals show in u more clearly than in z;
- regressions *pooled over assets* of the mean standardised return of the next h days on residuals and momentum, and a
  regression of tomorrow's returns on all of today's;
- the *record* of each forecast: how far outcomes have followed it so far (`records.py`);
- two fast numbers for the level of risk (`reactive_covariance`), from which `covariance` states that of the next row.

A forecast is a path: the mean return of each asset over the rows of each of `HORIZONS`.

Forecasts are of what a decision can earn: made after the last row, for the rows from 1 + `delay` after it on. They
are fitted for those rows and their records judged on them, so that what fades before it can be traded has no record.

A missing return (NaN) leaves an asset's sums as they are: nothing is filled in. Returns beyond six standard
deviations are cut off, and a bad price that comes back counts nowhere (`bad_prints`); `unusual` says where that
happened.

Many rows are read together: each step below is one operation over all of them, and every number is computed from its
row and the sums before it, so that rows read together and one by one give the same state to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat

import numpy as np

from time2decide.forecasting.bad_prints import FAR, UNUSUAL, UnusualReturns, screen_row, unusual_returns
from time2decide.forecasting.correlations import constant_correlation, inverse_triangle, pair_correlations
from time2decide.forecasting.reactive_covariance import (
    LEVEL_KEEP,
    CovarianceParts,
    level_news,
    mixed_correlation,
    mixed_observations,
    pooled_volatility,
    reactive_covariance,
)
from time2decide.forecasting.recent_rows import RecentRows, RunningSums
from time2decide.forecasting.records import record_terms
from time2decide.markets.periods import YEAR
from time2decide.markets.policy_config import RecordConfig

VOLATILITY_HALF_LIVES = (10.0, 21.0, 63.0, 125.0, 250.0, 1000.0)  # days
CORRELATION_HALF_LIVES = (63.0, 125.0, 250.0, 1000.0)
HORIZONS = ((0, 1), (1, 2), (2, 3), (3, 5), (5, 10), (10, 21))  # rows a, b: the rows a + 1 … b that a forecast is for
EXPERTS = ("own past", "all assets")  # what each forecast is made from; that from all assets is for the first horizon
LAGS = ((1, 0), (2, 1), (3, 2), (5, 0))  # residuals: means over the days t − a … t − b − 1
TRENDS = ((21, 0), (63, 0), (252, 21))  # the same of standardised returns
YOUNG = 10  # rows before the returns of an asset are standardised
_STANDARDISE = np.array([0.3, 0.4, 0.3])  # weights of the three fastest variances in the unit of z
_RESIDUAL = 2  # index of the correlation half-life that residuals are made with
_PENALTY = 200.0  # of the pooled regressions, in observations
_CROSS_PENALTY = 400.0  # of the regression on all assets: coefficients have a prior standard deviation of 0.05
_MOST_CROSS = 200  # assets; beyond, a coefficient for every pair is too many and too dear, and that forecast is 0
_FORGET_FIT, _FORGET_CROSS = 750.0, 500.0  # half-lives
FORECAST_WINDOW = 96  # last returns that are kept, for forecasts from a window
_TINY = 1e-12
_TOGETHER = 126  # rows that are read together


def state_decay(half_life: float | np.ndarray) -> np.ndarray:
    """Factor per day of a half-life."""
    return np.asarray(0.5 ** (1.0 / np.asarray(half_life)))


def effective_state_rows(rows: float | np.ndarray, half_life: np.ndarray) -> np.ndarray:
    """(Σw)²/Σw² of exponential weights over `rows` rows: how many equal weights they are worth."""
    keep = state_decay(half_life)
    return np.asarray((1 - keep**rows) ** 2 * (1 + keep) / ((1 - keep) * np.maximum(1 - keep ** (2 * rows), _TINY)))


LENGTHS = np.array([b - a for a, b in HORIZONS])
_ENDS = np.array([b for _, b in HORIZONS])
_PATH = len(HORIZONS)
_CHANNELS = np.append(np.arange(_PATH), 0)  # horizon of each forecast that is made: a path, and one from all assets
_FEATURES = len(LAGS) + len(TRENDS)
_LAG_DAYS, _TREND_DAYS = np.array(LAGS).T, np.array(TRENDS).T
_SPANS = np.sqrt([first - last for first, last in LAGS + TRENDS])[:, None]
_RIDGE = _PENALTY * np.eye(_FEATURES)
_KEEP_VOLATILITY = state_decay(np.array(VOLATILITY_HALF_LIVES))[:, None]
_KEEP_CORRELATION = state_decay(np.array(CORRELATION_HALF_LIVES))[:, None]
_KEEP_FIT = float(state_decay(_FORGET_FIT))
_KEEP_RECORD = RecordConfig().keep


@dataclass(frozen=True)
class _Rows:
    """Some rows as they are read: returns with 0 in gaps, which of them count, and what they are measured in.

    returns, standardised : (T, m)
    known : (T, m) bool, they count and are of an asset with enough rows before; share : (T, m, 1), equal weights
    present : (T, m) bool, the same with those that wait or were bad prices
    unit : (T, m), of the standardised returns of the day after
    deviation : (T, m), σ of the covariance before each row
    """

    returns: np.ndarray
    standardised: np.ndarray
    known: np.ndarray
    share: np.ndarray
    present: np.ndarray
    unit: np.ndarray
    deviation: np.ndarray

    def __len__(self) -> int:
        return len(self.returns)

    def relative(self, values: np.ndarray) -> np.ndarray:
        """Values (T, E, m) less their mean over the known assets, and 0 for the others."""
        return np.where(self.known[:, None], values - values @ self.share, 0.0)


class MarketState:
    """Running sums over the returns of m assets; `extend` and `update` read rows; `forecasts` and `covariance`
    are those of the next rows.

    A year has `periods_per_year` rows; what is decided after a row is held from the close `delay` rows later on.
    """

    def __init__(self, assets: int, periods_per_year: float = YEAR, delay: int = 0) -> None:
        m, vols, corrs = assets, len(VOLATILITY_HALF_LIVES), len(CORRELATION_HALF_LIVES)
        self.rows, self.periods_per_year, self.delay = 0, float(periods_per_year), int(delay)
        self.age, self._unbroken = np.zeros(m, dtype=int), np.zeros(m, dtype=int)
        self._squares = np.zeros((2, vols, m))  # Σ r², Σ 1 with the weights of each half-life
        self._variance, self._unit = np.full((vols, m), _TINY), np.full(m, np.sqrt(_TINY))  # unit of z, per day
        self._far, self._waits = np.zeros(m), np.zeros(m, dtype=bool)  # see `bad_prints`
        self._unusual = np.zeros((len(UNUSUAL), 2, m), dtype=int)  # how often, and the last row
        self._level, self._market = np.ones(2), np.full(m, 1 / m)  # of risk; weights of the assets in the last row
        self._mixed = np.eye(m)  # correlation for the level, from the first inversion on
        self._moments, self._pairs = np.zeros((corrs, m, m)), np.zeros((corrs, 1, 1))  # (corrs, m, m) with gaps
        crossed = m if m <= _MOST_CROSS else 0
        self._cross, self._cross_weight = np.zeros((crossed, crossed)), 0.0  # of one day on the day before
        self._block: list[tuple[np.ndarray, np.ndarray]] = []  # z and mask of the rows not yet in the moments
        self._before = np.zeros((1 + delay, m))  # z of the rows before the block
        self._inner, self._outer = np.eye(m)[None], np.eye(m)[None]  # residuals and forecasts are outer (inner z)
        if crossed:
            self._inner, self._outer = np.stack([np.eye(m)] * 2), np.stack([np.eye(m), np.zeros((m, m))])
        longest, recent = max(first for first, _ in LAGS + TRENDS), int(_ENDS.max()) + delay
        self._residuals, self._returns = RunningSums(longest + 1, m), RunningSums(longest + 1, m)
        self._features = RecentRows(recent + 1, _FEATURES, m)
        self._fit = np.zeros((_FEATURES + _PATH, _FEATURES))  # Gram matrix and targets of the pooled regressions
        self._inverse_gram = RecentRows(recent, _FEATURES, _FEATURES)
        self._forecasts = RecentRows(recent + 1, len(_CHANNELS), m)
        self._raw = RecentRows(FORECAST_WINDOW, m)  # the returns themselves
        self._record = np.zeros((5, len(_CHANNELS)))

    @property
    def assets(self) -> int:
        return len(self.age)

    def extend(self, returns: np.ndarray) -> MarketState:
        """Read rows (time, m), oldest first; NaN where there was no trade."""
        returns, done = np.ascontiguousarray(returns, dtype=float), 0  # the order in memory would change the rounding
        while done < len(returns):
            done += self._read(returns[done : done + _TOGETHER])
        return self

    def update(self, row: np.ndarray) -> None:
        """Read the returns of one day, (m,); NaN where there was no trade."""
        self.extend(row[None])

    def _read(self, returns: np.ndarray) -> int:
        rows = self._standardise(returns)
        self._learn(rows)
        return len(rows)

    def _standardise(self, returns: np.ndarray) -> _Rows:
        """Returns in units of the volatility before them; volatilities and their scores go forward."""
        seen = np.isfinite(returns)
        r = np.where(seen, returns, 0.0)
        z, units, log_variance = np.empty_like(r), np.empty_like(r), np.empty((len(r), *self._variance.shape))
        counts, old = seen.copy(), np.empty_like(seen)
        for t in range(len(r)):
            old[t], log_variance[t] = self.age >= YOUNG, np.log(self._variance)
            z[t] = self._read_row(r[t], seen[t], counts[t], old[t])
            units[t] = self._unit
        known, present = counts & old, seen & old
        share = _equal_weights(known)
        z = np.where(known, z, 0.0)
        if known.any():
            self._market = share[np.flatnonzero(known.any(1))[-1], :, 0].copy()
        return _Rows(r, z, known, share, present, units, pooled_volatility(log_variance, self.periods_per_year))

    def _read_row(self, r: np.ndarray, seen: np.ndarray, counts: np.ndarray, old: np.ndarray) -> np.ndarray:
        """Variances go forward by a row (m,); what does not count is taken out of `r` and `counts`. Returns z."""
        squares, number = None, seen
        found = screen_row(r, seen, old, self._unit, self._far, self._waits)
        self.rows += 1
        if found is not None:
            r[:], counts[:] = found.returns, found.counts
            squares, number = r**2 + found.late**2, counts + (found.late > 0)
            self._far, self._waits = found.far, found.waits
            acted = np.stack([found.cut, found.bad])
            self._unusual = np.stack([self._unusual[:, 0] + acted, np.where(acted, self.rows, self._unusual[:, 1])], 1)
        self.age, self._unbroken = self.age + seen, np.where(seen, self._unbroken + 1, 0)
        z = np.clip(r / self._unit, -FAR, FAR)
        keep = _KEEP_VOLATILITY if number.all() else np.where(number, _KEEP_VOLATILITY, 1.0)
        sums = keep * self._squares
        sums[0] += r**2 if squares is None else squares
        sums[1] += number
        self._squares = sums
        self._variance = np.maximum(sums[0] / np.maximum(sums[1], _TINY), _TINY)
        self._unit = np.sqrt(_STANDARDISE @ self._variance[: len(_STANDARDISE)])
        return z

    def _learn(self, rows: _Rows) -> None:
        """Sum up the days, refit the regressions, make the forecasts of every day, and judge those of before."""
        z, count = rows.standardised, len(rows)
        residuals, across = self._project(rows)
        self._raw.add(rows.returns)
        self._returns.add(rows.relative(z[:, None])[:, 0])
        self._residuals.add(np.where(rows.known, residuals, 0.0))
        self._features.add(self._describe(count))
        outcome = self._returns.sum(LENGTHS, 0 * LENGTHS, count) / LENGTHS[:, None]  # (T, H, m)
        own = self._coefficients(outcome) @ self._features.back(1, count)  # (T, H, m)
        self._forecasts.add(rows.relative(np.concatenate([own, across[:, None]], axis=1)))
        self._judge(outcome)

    def outcome(self) -> np.ndarray:
        """Mean standardised returns relative to the others over as many last rows as each horizon has, (H, m)."""
        return np.asarray(self._returns.sum(LENGTHS, 0 * LENGTHS, 1)[0] / LENGTHS[:, None])

    @property
    def unit(self) -> np.ndarray:
        """Standard deviation per row that the next returns are measured in, (m,)."""
        return self._unit.copy()

    def complete(self, rows: int = FORECAST_WINDOW) -> np.ndarray:
        """Assets without a gap in the last rows, (m,) bool."""
        return np.asarray(self._unbroken >= rows)

    def window(self) -> np.ndarray:
        """The last returns, oldest first, (`FORECAST_WINDOW`, m); 0 in gaps and before the first row."""
        return self._raw.last(FORECAST_WINDOW).copy()

    def _project(self, rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
        """Residuals and forecasts from all assets, (T, m) each; the matrices change where a block of rows is full."""
        z, any_known = rows.standardised, np.asarray(rows.known.any(1))
        projected = np.zeros((len(z), 2, self.assets))
        news = np.zeros((len(z), 2))
        keep = np.ones((len(z), 2))
        first = 0
        while first < len(z):
            missing = self._refresh - len(self._block)
            last = first + int(np.searchsorted(np.add.accumulate(any_known[first:], dtype=int), missing)) + 1
            part = slice(first, min(last, len(z)))
            # Products row by row: a product of matrices would round by their number.
            projected[part, : len(self._inner)] = (self._outer @ (self._inner @ z[part, None, :, None]))[..., 0]
            if self._pairs.any():
                news[part] = self._news(rows, part)
                keep[part] = np.where(any_known[part, None], LEVEL_KEEP, 1.0)
            self._block += [(z[t], rows.present[t]) for t in range(first, part.stop) if any_known[t]]
            if len(self._block) >= self._refresh:
                self._fold(self.rows - len(z) + part.stop)
            first = part.stop
        self._level = _recursion(self._level, keep, news)[-1].copy()
        return projected[:, 0], projected[:, 1]

    def _news(self, rows: _Rows, part: slice) -> np.ndarray:
        """What rows say of the level of risk, (T, 2); 0 for rows without returns."""
        weights = rows.share[part, :, 0]
        news = level_news(rows.returns[part], rows.known[part], weights, rows.deviation[part], self._mixed)
        return np.where(rows.known[part].any(1, keepdims=True), news, 0.0)

    @property
    def _refresh(self) -> int:
        """Rows between two inversions: a month, a quarter where an inversion is dear."""
        return 21 if self.assets <= 200 else 63

    def _describe(self, count: int) -> np.ndarray:
        """Features of the regressions at the end of the last days, (count, features, m), each of variance about 1."""
        parts = [self._residuals.sum(_LAG_DAYS[0], _LAG_DAYS[1], count)]
        parts.append(self._returns.sum(_TREND_DAYS[0], _TREND_DAYS[1], count))
        return np.asarray(np.concatenate(parts, axis=1) / _SPANS)

    def _coefficients(self, outcome: np.ndarray) -> np.ndarray:
        """Of the pooled regressions of each of the last days, (count, pooled, features).

        The Gram matrix of the forecasts of a horizon is that of the forecasts for tomorrow, as many rows before as it
        ends after tomorrow.
        """
        count = len(outcome)
        x = self._features.back(2, count)  # what tomorrow's forecasts were made from
        new = np.empty((count, *self._fit.shape))
        new[:, :_FEATURES] = x @ x.swapaxes(1, 2)
        for e, end in enumerate(_ENDS):
            seen = self._features.back(1 + int(end) + self.delay, count)
            new[:, _FEATURES + e] = (seen @ outcome[:, e, :, None])[..., 0]
        fits = _recursion(self._fit, np.full((1, 1, 1), _KEEP_FIT), new)
        self._fit = fits[-1].copy()
        self._inverse_gram.add(np.linalg.inv(fits[:, :_FEATURES] + _RIDGE))
        inverse = self._inverse_gram.at(_ENDS + self.delay, count)
        return np.asarray((inverse @ fits[:, _FEATURES:, :, None])[..., 0])

    def _judge(self, outcome: np.ndarray) -> None:
        """Keep the record of the forecasts whose rows have passed; `outcome` (T, H, m) is what happened in them."""
        count = len(outcome)
        forecast = self._forecasts.of_each(1 + self.delay + _ENDS[_CHANNELS], count)  # (T, channels, m)
        new = record_terms(forecast, outcome[:, _CHANNELS]).swapaxes(0, 1)  # (T, 5, channels)
        keep = np.where(new[:, :1] > 0, _KEEP_RECORD, 1.0)  # a row without a forecast does not count
        self._record = _recursion(self._record, keep, new)[-1].copy()

    def _fold(self, rows: int) -> None:
        """Put the rows of the block into the moments, and invert; `rows` were read up to its end."""
        self._moments, self._pairs = self._folded()
        self._fold_cross()
        self._block = []
        m = self.assets
        self._mixed = mixed_correlation(self._moments, self._pairs)
        used = [_RESIDUAL, -1][: len(self._inner)]
        matrices = pair_correlations(self._moments[used], self._pairs[used])
        effective = float(effective_state_rows(rows, np.array(CORRELATION_HALF_LIVES[_RESIDUAL])))
        shrink = min(0.9, 0.2 + m / (m + effective))
        matrices[0] = (1 - shrink) * matrices[0] + shrink * constant_correlation(matrices[0])
        matrices[0].flat[:: m + 1] += _TINY  # assets may be copies of each other
        if self._cross.size:
            matrices[1].flat[:: m + 1] += _CROSS_PENALTY / self._cross_weight
        self._inner = inverse_triangle(np.linalg.cholesky(matrices))  # W with WᵀW the inverse
        self._outer = self._inner.swapaxes(1, 2).copy()
        self._outer[0] /= np.sqrt((self._outer[0] ** 2).sum(1, keepdims=True))
        if self._cross.size:
            self._outer[1] = self._cross / self._cross_weight @ self._outer[1]

    def _fold_cross(self) -> None:
        """Put the rows of the block into the moments of one day on the day before, or as many more as is the delay."""
        if not self._cross.size:
            return
        z = np.array([z for z, _ in self._block])
        read = np.vstack([self._before, z])
        before, self._before = read[: len(z)], read[len(z) :]
        forget = state_decay(_FORGET_CROSS)
        fading = forget ** np.arange(len(z) - 1, -1, -1)
        self._cross = forget ** len(z) * self._cross + (z * fading[:, None]).T @ before
        self._cross_weight = float(forget ** len(z) * self._cross_weight + fading.sum())

    def _folded(self) -> tuple[np.ndarray, np.ndarray]:
        """Moments and weights of the pairs, block included."""
        if not self._block:
            return self._moments, self._pairs
        z, mask = (np.array(part, dtype=float) for part in zip(*self._block, strict=True))  # (days, m)
        days = len(z)
        weight = _KEEP_CORRELATION ** np.arange(days - 1, -1, -1)  # (corrs, days)
        fade = (_KEEP_CORRELATION**days)[:, :, None]
        moments = fade * self._moments + (z.T[None] * weight[:, None]) @ z
        if self._pairs.shape[-1] == 1 and mask.all():
            pairs = fade * self._pairs + weight.sum(1)[:, None, None]
        else:
            pairs = fade * self._pairs + (mask.T[None] * weight[:, None]) @ mask
        return moments, pairs

    def covariance(self) -> np.ndarray:
        """Covariance of the returns of the next row, (m, m), positive definite."""
        return self.covariance_parts().covariance

    def covariance_parts(self) -> CovarianceParts:
        """The covariance of the next row and what it is made of."""
        correlation = mixed_correlation(*self._folded())
        read = max(float(self.age.mean()) - YOUNG, 2.0)
        volatility = pooled_volatility(np.log(self._variance), self.periods_per_year)
        return reactive_covariance(
            correlation, mixed_observations(read, _KEEP_CORRELATION[:, 0]), volatility, self._market, self._level
        )

    @property
    def unusual(self) -> list[UnusualReturns]:
        """Where returns were cut off or taken for bad prices, assets in order."""
        return unusual_returns(self._unusual)

    def forecasts(self) -> tuple[np.ndarray, np.ndarray]:
        """Forecasts after the last row and their records, (E, H, m) and (5, E, H), by each of `EXPERTS`.

        A forecast is the mean return of each asset over the rows of each of `HORIZONS` from the delay on, relative to
        the other assets, before its record counts; 0 where none is made.
        """
        made = self._forecasts.back(1)[0] * self._unit
        forecast, record = np.zeros((len(EXPERTS), _PATH, self.assets)), np.zeros((5, len(EXPERTS), _PATH))
        forecast[0], forecast[1, 0] = made[:_PATH], made[_PATH]
        record[:, 0], record[:, 1, 0] = self._record[:, :_PATH], self._record[:, _PATH]
        return forecast, record


def _recursion(start: np.ndarray, keep: np.ndarray, new: np.ndarray) -> np.ndarray:
    """x_t = keep_t · x_{t−1} + new_t from x_0 = `start`, for every t, (T, ...); one `keep` may stand for all."""
    values = np.empty((len(new), *start.shape))
    last = start
    for value, factor, term in zip(values, keep if len(keep) > 1 else repeat(keep[0]), new, strict=False):
        np.multiply(last, factor, out=value)
        value += term
        last = value
    return values


def _equal_weights(known: np.ndarray) -> np.ndarray:
    """Weights (T, m, 1) of the mean over the known assets (T, m)."""
    return np.asarray((known / np.maximum(known.sum(1, keepdims=True), 1))[..., None])
