"""The last rows of a sequence of arrays, and sums over any of them."""

from __future__ import annotations

import numpy as np


class RecentRows:
    """The last rows of a sequence of arrays; zeros before the first.

    Rows are only ever written behind the end, so that a shallow copy remains what it was while the original goes on.
    """

    def __init__(self, length: int, *shape: int) -> None:
        self._length, self._end = length, length
        self._rows = np.zeros((2 * length, *shape))

    def add(self, rows: np.ndarray) -> None:
        end = self._end + len(rows)
        if end > len(self._rows):
            kept = self._rows[self._end - self._length : self._end]
            self._rows = np.zeros((self._length + max(self._length, len(rows)), *kept.shape[1:]))
            self._rows[: self._length] = kept
            end = self._length + len(rows)
        self._rows[end - len(rows) : end] = rows
        self._end = end

    def back(self, days: int, count: int = 1) -> np.ndarray:
        """For each of the last `count` days the array of so many days before, 1 for that day's own, (count, ...)."""
        return self._rows[self._end - count + 1 - days : self._end + 1 - days]

    def last(self, count: int) -> np.ndarray:
        """The last rows, oldest first, (count, ...)."""
        return self._rows[self._end - count : self._end]

    def at(self, days: np.ndarray, count: int) -> np.ndarray:
        """The same for several numbers of days, (count, len(days), ...)."""
        return np.asarray(self._rows[self._index(days, count)])

    def of_each(self, days: np.ndarray, count: int) -> np.ndarray:
        """Row e of the array of days[e] before, for every e, (count, E, ...)."""
        return np.asarray(self._rows[self._index(days, count), np.arange(len(days))])

    def _index(self, days: np.ndarray, count: int) -> np.ndarray:
        return np.arange(self._end - count + 1, self._end + 1)[:, None] - days


class RunningSums(RecentRows):
    """Sums over any of the last days of m series, zero before the first day."""

    def add(self, rows: np.ndarray) -> None:
        super().add(np.add.accumulate(np.concatenate([self.back(1), rows]))[1:])

    def sum(self, first: np.ndarray, last: np.ndarray, count: int = 1) -> np.ndarray:
        """Sums over the days t − first … t − last − 1 for each of the last `count` days, t the day after it.

        Of several such spans, (count, spans, m).
        """
        return np.asarray(self.at(1 + last, count) - self.at(1 + first, count))
