"""The state of a market from years of returns, carried forward day by day.

`MarketState` reads rows of returns and keeps sums, never the rows themselves:

- variances of every asset and correlations of every pair, each at several half-lives;
- *residuals*: the part of a day's move that the other assets do not explain, u = Ω z with z the standardised returns
  and Ω the inverse of their correlation matrix. Reversals show in u more clearly than in z;
- regressions *pooled over assets* of the mean standardised return of the next h days on residuals and momentum, and a
  regression of tomorrow's returns on all of today's;
- the forecasts of the kernel bank from each asset's last 96 returns, once the others show that far more can be
  predicted here than in markets of stocks;
- the *record* of each forecast: what it was worth out of sample so far. Forecasts are weighted by their record;
- two fast numbers for the level of risk (`reactive_covariance`), from which `covariance` states that of the next row.

Forecasts are of what a decision can earn: made after the last row, for the rows from 1 + `delay` after it on. They are
fitted for those rows and their records judged on them, so that what fades before it can be traded has no record.

A missing return (NaN) leaves an asset's sums as they are: nothing is filled in. Returns beyond six standard deviations
are cut off, and a bad price that comes back counts nowhere (`bad_prints`); `unusual` says where that happened.

Many rows are read together: each step below is one operation over all of them, and every number is computed from its
row and the sums before it, so that rows read together and one by one give the same state to the last bit.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from time2decide.forecasting.bad_prints import FAR, UNUSUAL, UnusualReturns, screen_row, unusual_returns
from time2decide.forecasting.correlations import constant_correlation, inverse_triangle, pair_correlations
from time2decide.forecasting.features import window_features
from time2decide.forecasting.kernel_bank import AHEAD
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
from time2decide.markets.periods import YEAR

VOLATILITY_HALF_LIVES = (10.0, 21.0, 63.0, 125.0, 250.0, 1000.0)  # days
CORRELATION_HALF_LIVES = (63.0, 125.0, 250.0, 1000.0)
EXPERTS = (1, 3, 5, 21, 1, 1)  # days that each forecast is for
READS = ("own past",) * 4 + ("all assets", "kernel bank")  # what each forecast is made from
LAGS = ((1, 0), (2, 1), (3, 2), (5, 0))  # residuals: means over the days t − a … t − b − 1
TRENDS = ((21, 0), (63, 0), (252, 21))  # the same of standardised returns
YOUNG = 10  # rows before the returns of an asset are standardised
_STANDARDISE = np.array([0.3, 0.4, 0.3])  # weights of the three fastest variances in the unit of z
_RESIDUAL = 2  # index of the correlation half-life that residuals are made with
_PENALTY = 200.0  # of the pooled regressions, in observations
_CROSS_PENALTY = 400.0  # of the regression on all assets: coefficients have a prior standard deviation of 0.05
_MOST_CROSS = 200  # assets; beyond, a coefficient for every pair is too many and too dear, and that forecast is 0
_FORGET_FIT, _FORGET_RECORD, _FORGET_SCORE, _FORGET_CROSS = 750.0, 500.0, 250.0, 500.0  # half-lives
_BANK_WINDOW = 96  # rows that the kernel bank reads
_PREDICTABLE = 0.1  # information coefficient from which the kernel bank forecasts as well
_SURE = 4.0  # standard errors of that correlation
_FIRST_RECORD = 0.2  # part of the record of the best other forecast that it begins with
_MOST_LOSS = 100.0  # a squared return in units of its variance, in the record of volatilities
_TINY = 1e-12
_TOGETHER = 126  # rows that are read together


def state_decay(half_life: float | np.ndarray) -> np.ndarray:
    """Factor per day of a half-life."""
    return np.asarray(0.5 ** (1.0 / np.asarray(half_life)))


def effective_state_rows(rows: float | np.ndarray, half_life: np.ndarray) -> np.ndarray:
    """(Σw)²/Σw² of exponential weights over `rows` rows: how many equal weights they are worth."""
    keep = state_decay(half_life)
    return np.asarray((1 - keep**rows) ** 2 * (1 + keep) / ((1 - keep) * np.maximum(1 - keep ** (2 * rows), _TINY)))


def forecast_record_rows(rows: Any) -> Any:
    """Weight of all rows in the record of a forecast."""
    keep = float(state_decay(_FORGET_RECORD))
    return (1 - keep**rows) / (1 - keep)


_DAYS = np.array(EXPERTS)
_POOLED = READS.count("own past")
_FEATURES = len(LAGS) + len(TRENDS)
_LAG_DAYS, _TREND_DAYS = np.array(LAGS).T, np.array(TRENDS).T
_SPANS = np.sqrt([first - last for first, last in LAGS + TRENDS])[:, None]
_RIDGE = _PENALTY * np.eye(_FEATURES)
_KEEP_VOLATILITY = state_decay(np.array(VOLATILITY_HALF_LIVES))[:, None]
_KEEP_CORRELATION = state_decay(np.array(CORRELATION_HALF_LIVES))[:, None]
_KEEP_FIT, _KEEP_RECORD, _KEEP_SCORE = (float(state_decay(h)) for h in (_FORGET_FIT, _FORGET_RECORD, _FORGET_SCORE))


@dataclass(frozen=True)
class MarketTokens:
    """The state after the last row: K half-lives, m assets, E forecasts.

    Attributes
    ----------
    volatility : (K, m)
        Standard deviations per day at `VOLATILITY_HALF_LIVES`.
    correlation : (K', m, m)
        At `CORRELATION_HALF_LIVES`; unit diagonal.
    forecast : (E, m)
        Mean return per day over the days of `EXPERTS` from the delay on, differences between assets only, before
        attenuation.
    slope, t_value : (E,)
        Record of each forecast: slope of outcomes on forecasts, and that slope in standard errors.
    worth, worth_error : (E,)
        What a long-short portfolio along each forecast has gained per unit traded, costs aside, and its standard
        error: trading along the forecast pays if it costs less than that.
    pace : (E,)
        Units traded per day by that portfolio.
    score : (K,)
        Record of each volatility: mean of log σ² + r²/σ² so far (QLIKE), less the least of them.
    age : (m,)
        Rows seen of each asset.
    rows : int
    periods_per_year : float
        How often the table has rows.
    delay : int
        Rows between a decision and its trade.
    """

    volatility: np.ndarray
    correlation: np.ndarray
    forecast: np.ndarray
    slope: np.ndarray
    t_value: np.ndarray
    worth: np.ndarray
    worth_error: np.ndarray
    pace: np.ndarray
    score: np.ndarray
    age: np.ndarray
    rows: int
    periods_per_year: float = YEAR
    delay: int = 0

    def of_assets(self, chosen: np.ndarray) -> MarketTokens:
        """The tokens of some assets, (m,) bool; records stay those of all."""
        return replace(
            self,
            volatility=self.volatility[:, chosen],
            correlation=self.correlation[:, chosen][:, :, chosen],
            forecast=self.forecast[:, chosen],
            age=self.age[chosen],
        )


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
    """Running sums over the returns of m assets; `extend` and `update` read rows, `tokens` gives the state then.

    A year has `periods_per_year` rows; what is decided after a row is held from the close `delay` rows later on.
    """

    def __init__(self, assets: int, periods_per_year: float = YEAR, delay: int = 0) -> None:
        m, vols, corrs, experts = assets, len(VOLATILITY_HALF_LIVES), len(CORRELATION_HALF_LIVES), len(EXPERTS)
        self.rows, self.periods_per_year, self.delay = 0, float(periods_per_year), int(delay)
        self.age = np.zeros(m, dtype=int)
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
        longest, recent = max(first for first, _ in LAGS + TRENDS), int(_DAYS.max()) + delay
        self._residuals, self._returns = RunningSums(longest + 1, m), RunningSums(longest + 1, m)
        self._gross = RunningSums(recent + 1, m)  # of the returns themselves
        self._features = RecentRows(recent + 1, _FEATURES, m)
        self._fit = np.zeros((_FEATURES + _POOLED, _FEATURES))  # Gram matrix and targets of the pooled regressions
        self._inverse_gram = RecentRows(recent, _FEATURES, _FEATURES)
        self._forecasts = RecentRows(recent + 1, experts, m)
        self._papers = RecentRows(recent + 2, experts, m)  # long-short weights along the forecasts
        self._raw = RecentRows(_BANK_WINDOW, m)  # the returns themselves
        self._bank_asked = False
        self._record = np.zeros((4, experts))  # Σ fy, Σ ff, Σ yy, count
        self._worth = np.zeros((4, experts))  # Σ gain, Σ gain², Σ traded, count
        self._score = np.zeros(vols + 1)  # Σ losses of the volatilities, Σ 1

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
        """Read rows, and how many: up to the row from which the kernel bank is used."""
        before = self._copy() if len(returns) > 1 and not self._bank_asked else self
        rows = self._standardise(returns)
        records = self._learn(rows)
        if not self._bank_asked:
            switch = np.flatnonzero(self._predictable(*records))
            if switch.size and switch[0] + 1 < len(rows):  # later rows were read without the kernel bank
                self.__dict__ = before.__dict__
                return self._read(returns[: switch[0] + 1])
            if switch.size:
                self._ask_the_bank(rows)
        return len(rows)

    def _copy(self) -> MarketState:
        """A copy that stays as it is while rows are read: sums are replaced, never changed in place."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, RecentRows | list):
                setattr(other, name, copy(value))
        return other

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
        self._score_volatilities(np.where(present, returns, 0.0), log_variance, _equal_weights(present))
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
        self.age = self.age + seen
        z = np.clip(r / self._unit, -FAR, FAR)
        keep = _KEEP_VOLATILITY if number.all() else np.where(number, _KEEP_VOLATILITY, 1.0)
        sums = keep * self._squares
        sums[0] += r**2 if squares is None else squares
        sums[1] += number
        self._squares = sums
        self._variance = np.maximum(sums[0] / np.maximum(sums[1], _TINY), _TINY)
        self._unit = np.sqrt(_STANDARDISE @ self._variance[: len(_STANDARDISE)])
        return z

    def _score_volatilities(self, r: np.ndarray, log_variance: np.ndarray, share: np.ndarray) -> None:
        """Losses log σ² + min(r²/σ², 100) of the volatilities before each row, from their log variances (T, K, m)."""
        ratio = np.minimum((r**2)[:, None] * np.exp(-log_variance), _MOST_LOSS)
        loss = ((log_variance + ratio) @ share)[..., 0]  # (T, K)
        any_known = share.any(1)  # (T, 1)
        new = np.where(any_known, np.concatenate([loss, any_known], axis=1), 0.0)
        self._score = _recursion(self._score, np.where(any_known, _KEEP_SCORE, 1.0), new)[-1].copy()

    def _learn(self, rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
        """Sum up the days, refit the regressions, make the forecasts of every day, and judge those of the days before.

        Returns records and sums of gains after each of the rows, (T, 4, E) each.
        """
        z, count = rows.standardised, len(rows)
        residuals, across = self._project(rows)
        self._raw.add(rows.returns)
        self._gross.add(rows.returns)
        self._returns.add(rows.relative(z[:, None])[:, 0])
        self._residuals.add(np.where(rows.known, residuals, 0.0))
        self._features.add(self._describe(count))
        kernels = self._kernel_forecasts(rows) if self._bank_asked else np.zeros_like(z)  # of tomorrow
        outcome = self._returns.sum(_DAYS, 0 * _DAYS, count) / _DAYS[:, None]
        own = self._coefficients(outcome) @ self._features.back(1, count)  # (T, pooled, m)
        forecasts, papers = self._with_portfolios(
            np.concatenate([own, across[:, None], kernels[:, None]], axis=1), rows
        )
        self._forecasts.add(forecasts)
        self._papers.add(papers)
        return self._judge(outcome)

    def _with_portfolios(self, forecast: np.ndarray, rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
        """Differences between assets of the forecasts (T, E, m), and the long-short portfolios along them."""
        forecast = rows.relative(forecast)
        paper = forecast / rows.unit[:, None]
        return forecast, paper / np.maximum(np.abs(paper).sum(-1, keepdims=True), _TINY)

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

        The Gram matrix of the forecasts for h days is that of the forecasts for tomorrow h − 1 + delay days before.
        """
        count = len(outcome)
        x = self._features.back(2, count)  # what tomorrow's forecasts were made from
        new = np.empty((count, *self._fit.shape))
        new[:, :_FEATURES] = x @ x.swapaxes(1, 2)
        for e, h in enumerate(EXPERTS[:_POOLED]):
            new[:, _FEATURES + e] = (self._features.back(1 + h + self.delay, count) @ outcome[:, e, :, None])[..., 0]
        fits = _recursion(self._fit, np.full((1, 1, 1), _KEEP_FIT), new)
        self._fit = fits[-1].copy()
        self._inverse_gram.add(np.linalg.inv(fits[:, :_FEATURES] + _RIDGE))
        inverse = self._inverse_gram.at(_DAYS[:_POOLED] + self.delay, count)
        return np.asarray((inverse @ fits[:, _FEATURES:, :, None])[..., 0])

    def _judge(self, outcome: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keep the record of the forecasts whose days have passed, and of what trading along them earned.

        `outcome` (T, E, m) has the mean returns of the last days relative to the other assets, standardised. Returns
        the records and the sums of the gains after each of the T days, (T, 4, E) each.
        """
        count = len(outcome)
        ago = 1 + self.delay + _DAYS
        forecast = self._forecasts.of_each(ago, count)  # (T, E, m)
        new = [_dot(forecast, outcome), _dot(forecast, forecast), _dot(outcome, outcome), (forecast != 0).sum(-1)]
        records = _recursion(self._record, *_counted(new[-1] > 0, new))
        self._record = records[-1].copy()
        paper = self._papers.of_each(ago, count)
        gain = _dot(paper, self._gross.sum(_DAYS, 0 * _DAYS, count))
        traded = np.abs(self._papers.back(2, count) - self._papers.of_each(2 + _DAYS, count)).sum(-1)
        before = np.arange(self.rows - count, self.rows)[:, None]  # forecasts made before each day
        counted = (before > _DAYS + self.delay) & paper.any(-1)
        worths = _recursion(self._worth, *_counted(counted, [gain, gain**2, traded, np.ones_like(gain)]))
        self._worth = worths[-1].copy()
        return records, worths

    def _predictable(self, records: np.ndarray, worths: np.ndarray) -> np.ndarray:
        """Whether the records after each of the last days, (T, 4, E), show that far more can be predicted than in
        markets of stocks, (T,) bool. Gains are judged as well: common factors make correlations look surer."""
        information = _information(records)[:, :-1]
        sure = information * np.sqrt(records[:, 3, :-1] / _DAYS[:-1]) > _SURE
        mean, error = _mean_gain(worths)
        sure &= (mean > _SURE * error)[:, :-1]
        after = np.arange(self.rows - len(records), self.rows) + 1
        few = self.assets <= _MOST_CROSS
        return few & (after >= _BANK_WINDOW) & ((information * sure).max(-1) > _PREDICTABLE)

    def _ask_the_bank(self, rows: _Rows) -> None:
        """From the last of the rows on; the kernel bank begins with a small part of the record of the best forecast."""
        self._bank_asked = True
        best = int(np.where(_DAYS[:-1] == 1, _information(self._record[None])[0, :-1], -np.inf).argmax())
        for kept in (self._record, self._worth):
            kept[:, -1] = _FIRST_RECORD * kept[:, best]
        last = _Rows(*(part[-1:] for part in vars(rows).values()))
        forecast = self._forecasts.back(1).copy()
        forecast[:, -1] = self._kernel_forecasts(last)
        for recent, row in zip((self._forecasts, self._papers), self._with_portfolios(forecast, last), strict=True):
            recent.replace_last(row[0])

    def _kernel_forecasts(self, rows: _Rows) -> np.ndarray:
        """Tomorrow's standardised returns from the last 96 of each asset, on each day, (T, m).

        The forecasts of the kernel bank and of a regression on own lags, weighted by their precisions. With a delay
        those of the days after tomorrow, of the bank alone.
        """
        windows = [self._raw.back(ago, len(rows)) for ago in range(_BANK_WINDOW, 0, -1)]
        forecasts = []
        for window in np.stack(windows, axis=1):  # (96, m)
            found = window_features(window[None])
            precision = found.deviations[0].clamp_min(_TINY) ** -2  # (m, 2); those of a constant are 0
            ahead = (precision * found.forecasts[0]).sum(-1) / precision.sum(-1)
            if self.delay:
                ahead = (AHEAD * found.ahead[0] - found.forecasts[0, :, 0]) / (AHEAD - 1)
            forecasts.append((found.level[0] + found.scale[0] * ahead).double().numpy())
        return np.array(forecasts) / rows.unit

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

    def tokens(self) -> MarketTokens:
        """The state after the last row."""
        moments, pairs = self._folded()
        products, squares, outcome, count = self._record
        slope = products / np.maximum(squares, _TINY)
        variance = outcome / np.maximum(count, 1.0) * np.array(EXPERTS) / np.maximum(squares, _TINY)  # overlapping days
        t_value = np.where(count > 0, slope / np.sqrt(np.maximum(variance, _TINY)), 0.0)
        worth, worth_error, pace = self._gain_per_unit_traded()
        score = self._score[:-1] / max(self._score[-1], _TINY)
        return MarketTokens(
            volatility=np.sqrt(self._variance),
            correlation=pair_correlations(moments, pairs),
            forecast=self._forecasts.back(1)[0] * self._unit,
            slope=slope,
            t_value=t_value,
            worth=worth,
            worth_error=worth_error,
            pace=pace,
            score=score - score.min(),
            age=self.age.copy(),
            rows=self.rows,
            periods_per_year=self.periods_per_year,
            delay=self.delay,
        )

    def _gain_per_unit_traded(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the long-short portfolios along the forecasts, its standard error, and units traded a day, (E,) each."""
        mean, error = _mean_gain(self._worth)
        traded, count = self._worth[2:]
        turnover = np.where(traded > 0, traded / np.maximum(count, 1.0), np.inf)
        return mean / turnover, error / turnover, traded / np.maximum(count, 1.0) / np.array(EXPERTS)


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


def _counted(counted: np.ndarray, new: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Factors (T, 1, E) and terms (T, n, E) of a record: a day that does not count (T, E) leaves it as it is."""
    keep = np.where(counted, _KEEP_RECORD, 1.0)[:, None]
    return keep, np.where(counted[:, None], np.stack(new, axis=1), 0.0)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Σ_i a_i b_i along the last axis."""
    return np.asarray(np.einsum("...i,...i->...", a, b))


def _mean_gain(worths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean gain of the long-short portfolios over the days of each forecast, and its standard error, (..., E)."""
    gains, squares, count = worths[..., 0, :], worths[..., 1, :], np.maximum(worths[..., 3, :], 1.0)
    mean = gains / count
    number = np.maximum(count / _DAYS, 1.0)  # days overlap
    return mean, np.sqrt(np.maximum(squares / count - mean**2, 0.0) / number)


def _information(records: np.ndarray) -> np.ndarray:
    """Information coefficient of each forecast so far: its correlation with the outcomes, (T, E)."""
    products, squares, outcome = records[:, 0], records[:, 1], records[:, 2]
    return np.asarray(products / np.sqrt(np.maximum(squares * outcome, _TINY)))
