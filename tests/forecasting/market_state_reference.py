"""The state of a market in its plain form: one row after the other, as its definition reads. Slow; for comparison."""

from __future__ import annotations

import numpy as np

from time2decide.forecasting.market_state import (
    _CHANNELS,
    _CROSS_PENALTY,
    _ENDS,
    _FORGET_CROSS,
    _KEEP_FIT,
    _KEEP_RECORD,
    _KEEP_VOLATILITY,
    _LAG_DAYS,
    _MOST_CROSS,
    _RESIDUAL,
    _RIDGE,
    _SPANS,
    _STANDARDISE,
    _TINY,
    _TREND_DAYS,
    CORRELATION_HALF_LIVES,
    EXPERTS,
    LAGS,
    LENGTHS,
    TRENDS,
    VOLATILITY_HALF_LIVES,
    YOUNG,
    effective_state_rows,
    state_decay,
)

_MEMORY = max(first for first, _ in LAGS + TRENDS) + 1


class Recent:
    """The last arrays of a sequence, one a day; zeros before the first."""

    def __init__(self, length: int, *shape: int) -> None:
        self._rows, self._end, self._length = np.zeros((3 * length, *shape)), length, length

    def add(self, row: np.ndarray) -> None:
        if self._end == len(self._rows):
            self._rows[: self._length] = self._rows[-self._length :]
            self._end = self._length
        self._rows[self._end] = row
        self._end += 1

    def back(self, days: int | np.ndarray) -> np.ndarray:
        """The array of so many days ago, 1 for the latest; several for several."""
        return np.asarray(self._rows[self._end - days])

    def of_each(self, days: np.ndarray) -> np.ndarray:
        """Row e of the array of days[e] ago, for every e."""
        return np.asarray(self._rows[self._end - days, np.arange(len(days))])


class RunningSums(Recent):
    """Sums over any of the last days of m series, zero before the first day."""

    def __init__(self, width: int) -> None:
        super().__init__(_MEMORY, width)

    def add(self, row: np.ndarray) -> None:
        super().add(self.back(1) + row)

    def sum(self, first: int | np.ndarray, last: int | np.ndarray = 0) -> np.ndarray:
        """Sum over the days t − first … t − last − 1, with t the day after the latest."""
        return self.back(1 + last) - self.back(1 + first)


class RowByRow:
    """Running sums over the returns of m assets; `update` reads a row, `forecasts` are those after it."""

    def __init__(self, assets: int, delay: int = 0) -> None:
        self.delay = delay
        m, vols, corrs = assets, len(VOLATILITY_HALF_LIVES), len(CORRELATION_HALF_LIVES)
        self.rows = 0
        self._last_far, self._waiting = np.zeros(m), np.zeros(m, dtype=bool)
        self.age = np.zeros(m, dtype=int)
        self._squares, self._weights = np.zeros((vols, m)), np.zeros((vols, m))
        self._variance, self._unit = np.full((vols, m), _TINY), np.full(m, np.sqrt(_TINY))  # unit of z, per day
        self._moments, self._pairs = np.zeros((corrs, m, m)), np.zeros((corrs, 1, 1))  # (corrs, m, m) with gaps
        self._cross, self._cross_weight = np.zeros((m, m)), 0.0  # of one day on the day before
        self._block: list[tuple[np.ndarray, np.ndarray]] = []  # z and mask of the rows not yet in the moments
        self._before = np.zeros((1 + delay, m))  # z of the rows before the block
        self._precision, self._cross_fit = np.eye(m), np.zeros((m, m))
        self._residuals, self._returns = RunningSums(m), RunningSums(m)
        size = len(LAGS) + len(TRENDS)
        self._gram, self._target = np.zeros((len(_ENDS), size, size)), np.zeros((len(_ENDS), size))
        recent = int(_ENDS.max()) + 1 + delay
        self._features, self._forecasts = Recent(recent, m, size), Recent(recent, len(_CHANNELS), m)
        self._record = np.zeros((5, len(_CHANNELS)))

    @property
    def assets(self) -> int:
        return len(self.age)

    def extend(self, returns: np.ndarray) -> RowByRow:
        """Read rows (time, m), oldest first."""
        for row in returns:
            self.update(row)
        return self

    def update(self, row: np.ndarray) -> None:
        """Read the returns of one day, (m,); NaN where there was no trade."""
        seen = np.isfinite(row)
        old = self.age >= YOUNG
        r, counts, late = self._screen(row, seen, old)
        known = counts & old
        any_known = bool(known.any())
        z = np.where(known, np.clip(r / self._unit, -6, 6), 0.0)
        number = counts + (late > 0)
        self._squares = np.where(number, _KEEP_VOLATILITY * self._squares + r**2 + late**2, self._squares)
        self._weights = np.where(number, _KEEP_VOLATILITY * self._weights + number, self._weights)
        self._variance = np.maximum(self._squares / np.maximum(self._weights, _TINY), _TINY)
        self._unit = np.sqrt(_STANDARDISE @ self._variance[:3])
        self.age = self.age + seen
        self.rows += 1
        self._learn(z, known, any_known)
        if any_known:
            self._block.append((z, seen & old))
        if len(self._block) >= self._refresh:
            self._fold()

    def _screen(self, row, seen, old):
        """Returns as they count, whether they do, and those that waited for this row; asset by asset."""
        m = self.assets
        r, counts, late = np.where(seen, row, 0.0), seen.copy(), np.zeros(m)
        size, before = np.abs(r) / self._unit, self._last_far.copy()
        for i in np.flatnonzero(seen):
            others = np.sort(size[old & (np.arange(m) != np.argmax(np.where(old, size, -1.0)))])
            typical = others[(len(others) - 1) // 2] if len(others) else 0.0
            unit, last, far = self._unit[i], before[i], bool(old[i] and size[i] > 6)
            bad = self._waiting[i] and abs((1 + last) * (1 + r[i]) - 1) <= np.clip(
                abs(np.log1p(max(last, -0.99))) / 4, 3 * unit, 6 * unit
            )
            alone = far and not bad and abs(r[i]) > 6 * abs(last) and size[i] > 6 * max(1.0, typical)
            if self._waiting[i] and not bad:
                late[i] = min(abs(last), 6 * max(unit, abs(r[i]) if far and not alone else 0.0))
            self._last_far[i], self._waiting[i] = (r[i] if far and not bad else 0.0), alone
            most = 6 * max(unit, abs(last)) if old[i] else np.inf
            counts[i] = not bad and not alone
            r[i] = np.clip(r[i], -most, most) if counts[i] else 0.0
        return r, counts, late

    @property
    def _refresh(self) -> int:
        """Rows between two inversions: a month, a quarter where an inversion is dear."""
        return 21 if self.assets <= 200 else 63

    def _learn(self, z: np.ndarray, known: np.ndarray, any_known: bool) -> None:
        """Compare what was forecast with what came, refit the regressions, and make today's forecasts."""
        self._returns.add(np.where(known, z - z[known].mean(), 0.0) if any_known else z)
        self._residuals.add(np.where(known, self._precision @ z, 0.0))
        came = (
            self._returns.sum(LENGTHS) / LENGTHS[:, None]
        )  # mean of the last days relative to the other assets, (H, m)
        self._judge(came)
        x = self._features.back(_ENDS + self.delay)  # (H, m, features)
        self._gram = _KEEP_FIT * self._gram + x.swapaxes(1, 2) @ x
        self._target = _KEEP_FIT * self._target + (x * came[:, :, None]).sum(1)
        features = self._describe()
        self._features.add(features)
        across = self._cross_fit @ z if self.assets <= _MOST_CROSS else np.zeros(self.assets)
        forecast = np.vstack([self._coefficients() @ features.T, across])
        if any_known:
            forecast -= forecast[:, known].mean(1, keepdims=True)
        forecast[:, ~known] = 0.0
        self._forecasts.add(forecast)

    def _describe(self) -> np.ndarray:
        """Features of the regressions at the end of the day, (m, features), each of variance about 1."""
        parts = [self._residuals.sum(*_LAG_DAYS), self._returns.sum(*_TREND_DAYS)]
        return np.asarray((np.vstack(parts) / _SPANS).T)

    def _judge(self, came: np.ndarray) -> None:
        """Keep the record of the forecasts whose days have passed."""
        said, came = self._forecasts.of_each(_ENDS[_CHANNELS] + self.delay), came[_CHANNELS]
        xx = np.sqrt((said * said).sum(1))
        xy = (said * came).sum(1) / np.maximum(xx, 1e-100)
        new = np.stack([xx, xy, xy**2, xy * xx, xx**2])
        self._record = np.where(xx > 0, _KEEP_RECORD * self._record + new, self._record)

    def _coefficients(self) -> np.ndarray:
        """Of the pooled regressions, (H, features)."""
        return np.linalg.solve(self._gram + _RIDGE, self._target[..., None])[..., 0]

    def _fold(self) -> None:
        """Put the rows of the block into the moments, and invert."""
        self._moments, self._pairs, self._cross, self._cross_weight = self._folded()
        self._before = np.vstack([self._before, *(z for z, _ in self._block)])[-1 - self.delay :]
        self._block.clear()
        m = self.assets
        used = [_RESIDUAL, -1]
        near, slow = self._correlations(self._moments[used], self._pairs[used])
        rows = effective_state_rows(self.rows, np.array(CORRELATION_HALF_LIVES))
        shrink = min(0.9, 0.2 + m / (m + rows[_RESIDUAL]))
        precision = np.linalg.inv((1 - shrink) * near + shrink * _constant(near))
        self._precision = precision / np.sqrt(np.diag(precision))[:, None]
        if self._cross_weight > 1 and m <= _MOST_CROSS:
            penalty = _CROSS_PENALTY / self._cross_weight
            same = slow + penalty * np.eye(m)
            self._cross_fit = np.linalg.solve(same, (self._cross / self._cross_weight).T).T

    def _folded(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Moments, weights of the pairs, moments of one day on the day before, and their weight, block included."""
        if not self._block:
            return self._moments, self._pairs, self._cross, self._cross_weight
        z, mask = (np.array(part, dtype=float) for part in zip(*self._block, strict=True))  # (days, m)
        days = len(z)
        keep = state_decay(np.array(CORRELATION_HALF_LIVES))[:, None]
        weight = keep ** np.arange(days - 1, -1, -1)  # (corrs, days)
        fade = (keep**days)[:, :, None]
        moments = fade * self._moments + (z.T[None] * weight[:, None]) @ z
        if self._pairs.shape[-1] == 1 and mask.all():
            pairs = fade * self._pairs + weight.sum(1)[:, None, None]
        else:
            pairs = fade * self._pairs + (mask.T[None] * weight[:, None]) @ mask
        before = np.vstack([self._before, z])[: len(z)]
        forget = state_decay(_FORGET_CROSS)
        fading = forget ** np.arange(days - 1, -1, -1)
        cross = forget**days * self._cross + (z * fading[:, None]).T @ before
        return moments, pairs, cross, float(forget**days * self._cross_weight + fading.sum())

    def _correlations(self, moments: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """Correlation matrices (corrs, m, m) of moments; 0 between assets that were never seen together.

        With gaps every pair has its own days: pairs seen for a few days count little, and eigenvalues that this makes
        negative are raised.
        """
        second = moments / np.maximum(pairs, _TINY)
        scale = np.sqrt(np.maximum(second.diagonal(axis1=1, axis2=2), _TINY))
        correlation = np.clip(second / (scale[:, :, None] * scale[:, None, :]), -1.0, 1.0)
        index = np.arange(self.assets)
        if pairs.shape[-1] > 1:
            trust = pairs / (pairs + 20)
            correlation *= trust / trust.max((1, 2), keepdims=True)
        correlation[:, index, index] = 1.0
        return _raised(correlation) if pairs.shape[-1] > 1 else correlation

    def forecasts(self) -> tuple[np.ndarray, np.ndarray]:
        """Forecasts after the last row, and their records."""
        made, path = self._forecasts.back(1) * self._unit, len(_ENDS)
        forecast, record = np.zeros((len(EXPERTS), path, self.assets)), np.zeros((5, len(EXPERTS), path))
        forecast[0], forecast[1, 0] = made[:path], made[path]
        record[:, 0], record[:, 1, 0] = self._record[:, :path], self._record[:, path]
        return forecast, record


def _raised(correlation):
    values, vectors = np.linalg.eigh(correlation)
    if values.min() > 1e-3:
        return correlation
    near = (vectors * np.maximum(values, 1e-3)[..., None, :]) @ vectors.swapaxes(-1, -2)
    scale = np.sqrt(near.diagonal(axis1=-2, axis2=-1))
    return near / (scale[..., :, None] * scale[..., None, :])


def _constant(correlation):
    m = correlation.shape[-1]
    mean = (correlation.sum((-2, -1), keepdims=True) - m) / max(m * (m - 1), 1)
    return mean + (1 - mean) * np.eye(m)
