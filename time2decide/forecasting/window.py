"""Forecasts from each asset's last 96 returns, and one path made of them.

Several experts read the same window: the kernel bank, a regression on own lags, a backbone. Which of them is right
differs from asset to asset, so they are averaged asset by asset, weighted by how well each has forecast that asset so
far: an expert with the mean squared error e has the weight e⁻⁸, its posterior probability if rows counted as far
fewer than they are, because errors last. The average is one forecast with one record, like the forecasts of
`MarketState`.

An expert is asked at every row while its record makes it worth following, otherwise now and then, for the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from time2decide.forecasting.features import lag_forecast
from time2decide.forecasting.kernel_bank import kernel_bank
from time2decide.forecasting.market_state import FORECAST_WINDOW, HORIZONS, LENGTHS, MarketState
from time2decide.forecasting.records import posterior_slopes, record_terms
from time2decide.markets.policy_config import RecordConfig

_SHARPNESS = 8.0  # power of a mean squared error: 4 to 16 are alike on the training series of LMC
_POOLED_ROWS = 3.0  # rows that the errors of all assets count for each
_FOLLOWED = 0.01  # of a usual forecast, in standard deviations, from which experts are asked at every row
_SELDOM = 8  # rows between two forecasts that are made for the record alone, at least
_BANK_STEPS = 32  # steps that the kernel bank forecasts
_ERRORS = 128  # last errors of the average that are kept
_TINY = 1e-30


class WindowExpert(Protocol):
    """Means of the next returns over spans of rows, from the last returns alone; NaN where it forecasts none."""

    def means(self, windows: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        """From windows (n, 96, m) the mean return over the rows a + 1 … b, for each span (a, b), (n, spans, m)."""


class PathForecaster(Protocol):
    """Anything with a forecast of several steps, (series, window, m) -> (series, horizon, m)."""

    def path(self, returns: np.ndarray) -> np.ndarray: ...


class PathExpert:
    """A backbone as an expert: means of the steps of its path. Spans that end after it have what there is of them."""

    def __init__(self, forecaster: PathForecaster) -> None:
        self._forecaster = forecaster

    def means(self, windows: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        path = self._forecaster.path(windows)
        last = path.shape[1]
        return np.stack([path[:, min(a, last - 1) : max(b, a + 1)].mean(1) for a, b in spans], axis=1)


class KernelExpert:
    """The kernel bank."""

    def means(self, windows: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        n, steps, m = windows.shape
        z, level, scale = _standardised(windows)
        bank = kernel_bank(steps, ahead=_BANK_STEPS)
        spans = [(min(a, _BANK_STEPS - 1), min(max(b, a + 1), _BANK_STEPS)) for a, b in spans]
        found = bank.means(torch.from_numpy(z), spans).double().numpy()  # (n · m, spans)
        return np.asarray((level[:, None] + scale[:, None] * found).reshape(n, m, -1).swapaxes(1, 2))


class LagExpert:
    """A regression of each asset on its own lags, of the next row alone."""

    def means(self, windows: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        n, _, m = windows.shape
        z, level, scale = _standardised(windows)
        found = np.full((len(z), len(spans)), np.nan)
        if spans[0] == (0, 1):
            found[:, 0] = lag_forecast(torch.from_numpy(z)).numpy()
        return np.asarray((level[:, None] + scale[:, None] * found).reshape(n, m, -1).swapaxes(1, 2))


def _standardised(windows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows (n, T, m) asset by asset in their own units, (n · m, T), with levels and units (n · m,)."""
    rows = windows.swapaxes(1, 2).reshape(-1, windows.shape[1])
    level, scale = rows.mean(1), rows.std(1)
    unit = np.where(scale > 1e-9 * np.abs(rows).max(1), scale, np.inf)  # an asset that does not move stays at 0
    return (rows - level[:, None]) / unit[:, None], level, np.where(np.isfinite(unit), scale, 0.0)


class WindowForecasts:
    """The average of window experts for one table, carried forward row by row with its `MarketState`."""

    def __init__(self, experts: Sequence[WindowExpert], assets: int, delay: int, config: RecordConfig) -> None:
        self._experts, self._delay, self._config = tuple(experts), delay, config
        self._spans = [(a + delay, b + delay) for a, b in HORIZONS]
        self._made: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by row: the experts of `_errors`, and the average
        self._errors = np.zeros((2, len(self._experts), assets))  # Σ squares, Σ 1
        self._count, self.followed = 0.0, True  # rows in the record, and whether it says to follow
        self._seldom = max(_SELDOM, assets // 16)
        self._next: tuple[int, np.ndarray] | None = None  # row, and the average for the one row that its horizon has
        self.errors = np.zeros((0, assets))  # of the average in the first horizon, latest last
        self.record = np.zeros((5, len(HORIZONS)))
        self.forecast = np.zeros(
            (len(HORIZONS), assets)
        )  # mean return per row of each horizon, relative to the other assets

    def _worth_following(self) -> bool:
        """Whether the record makes a forecast worth following, as large as forecasts usually are."""
        length, count = self.record[0], max(self._count, 1.0)
        slope = posterior_slopes(self.record[:, None], LENGTHS, self._config).slope[0]
        usual = length / count / np.sqrt(self.forecast.shape[1])  # of an asset
        return bool((slope * usual).max() > _FOLLOWED)

    def update(self, state: MarketState) -> None:
        """Judge the forecasts whose rows have passed, after `state` has read one more row, and make new ones."""
        row = state.rows
        due = [(h, made) for h, (_, end) in enumerate(self._spans) if (made := self._made.get(row - end)) is not None]
        if due:
            outcome, last = state.outcome(), state.window()[-1]
            for h, made in due:
                self._judge(h, *made, outcome[h], last)
            self.followed = self._worth_following()
        if self._next is not None and self._next[0] == row - self._spans[0][1]:
            error = state.window()[-1] - self._next[1]
            self.errors = np.concatenate([self.errors, error[None]])[-_ERRORS:]
        self._made.pop(row - self._spans[-1][1], None)
        self.forecast = np.zeros_like(self.forecast)
        if row >= FORECAST_WINDOW and (row % self._seldom == 0 or self.followed):
            self._ask(state)

    def _judge(self, h: int, means: np.ndarray, average: np.ndarray, outcome: np.ndarray, row: np.ndarray) -> None:
        """Keep the record of horizon h: `average` (H, m), `outcome` (m,) are standardised, `means` and `row` not."""
        self.record[:, h] = self._config.keep * self.record[:, h] + record_terms(average[h], outcome)
        if h == 0:
            self._count = self._config.keep * self._count + 1
            seen = np.isfinite(means)
            new = np.stack([np.where(seen, means - row, 0.0) ** 2, seen])
            self._errors = np.where(seen, self._config.keep * self._errors + new, self._errors)

    def _ask(self, state: MarketState) -> None:
        """Ask every expert; assets without a complete window have no forecast and 0 in its place."""
        complete = state.complete()
        if complete.sum() < 2:
            return
        window = state.window()[None, :, complete]
        means = np.full((len(self._experts), *self.forecast.shape), np.nan)
        for e, expert in enumerate(self._experts):
            means[e][:, complete] = expert.means(window, self._spans)[0]
        weight = self._weights()[:, None] * np.isfinite(means)  # (E, H, m)
        weight /= np.maximum(weight.sum(0), _TINY)
        average = np.where(weight > 0, weight * means, 0.0).sum(0)
        self.forecast, self._next = _relative(average, complete), (state.rows, average[0])
        self._made[state.rows] = means[:, 0], _relative(average / state.unit, complete)

    def _weights(self) -> np.ndarray:
        """Weight of every expert for every asset, (E, m)."""
        squares, count = self._errors
        pooled = squares.sum(1, keepdims=True) / np.maximum(count.sum(1, keepdims=True), _TINY)
        error = (squares + _POOLED_ROWS * pooled) / (count + _POOLED_ROWS)
        weight = (np.maximum(error, _TINY) / np.maximum(error.min(0), _TINY)) ** -_SHARPNESS
        return np.asarray(weight / weight.sum(0))


def _relative(values: np.ndarray, assets: np.ndarray) -> np.ndarray:
    """Values (..., m) less their mean over some assets, (m,) bool, and 0 for the others."""
    return np.where(assets, values - values[..., assets].mean(-1, keepdims=True), 0.0)
