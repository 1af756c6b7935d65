"""A table as the checks see it: returns, scales of every column, and where each cell is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from time2decide.data.findings import Findings

#: Spellings of an empty cell.
EMPTY = frozenset(("", "-", "--", "n/a", "na", "#n/a", "#na", "nan", "null", "none", "nat", "<na>", ".", "#div/0!"))
TO_DEVIATION = 1.4826  # median of absolute values -> standard deviation of a normal law
_UNDATED = 21.0  # trading days that a row may stand for where nothing says how many
_FEWEST = 20  # rows below which nothing but dates and cells is judged


def median(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Median along an axis without the missing values; NaN where there is none. Faster than numpy's."""
    rows = np.sort(np.ascontiguousarray(np.moveaxis(values, axis, -1)), axis=-1)  # NaN last
    count = np.isfinite(rows).sum(-1)
    low, high = (np.maximum(count - 1, 0) // 2, count // 2)
    high = np.where(count > 0, np.minimum(high, rows.shape[-1] - 1), 0)
    low, high = (np.take_along_axis(rows, place[..., None], -1)[..., 0] for place in (low, high))
    return np.where(count > 0, (low + high) / 2, np.nan)


def memory_of(values: np.ndarray, lag: int = 1) -> np.ndarray:
    """Autocorrelation of every column, about 0."""
    values = np.where(np.isfinite(values), values, 0.0)
    return (values[lag:] * values[:-lag]).sum(0) / np.maximum((values**2).sum(0), 1e-300)


def numbers_of(table: pd.DataFrame, names: Sequence[str], found: Findings) -> np.ndarray:
    """The cells as numbers (rows, m), NaN where there is none; text and infinite numbers are findings."""
    cells, wrong = np.full(table.shape, np.nan), {}
    plain = [j for j, kind in enumerate(table.dtypes) if kind.kind in "fiu"]
    if plain:
        cells[:, plain] = table.iloc[:, plain].to_numpy(dtype=float, na_value=np.nan)
    for j in set(range(table.shape[1])) - set(plain):
        column = table.iloc[:, j]
        if column.dtype.kind in "bMmc":
            wrong[j] = int(column.notna().sum())
            continue
        cells[:, j] = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        texts = [str(cell).strip().lower() for cell in column[np.isnan(cells[:, j]) & column.notna().to_numpy()]]
        if count := sum(text not in EMPTY for text in texts):
            wrong[j] = count
    if wrong:
        found.add("not_numbers", [names[j] for j in sorted(wrong)], f"{sum(wrong.values())} cells")
    infinite = np.isinf(cells)
    if infinite.any():
        places = [f"{names[j]} @ {str(table.index[t])[:10]}" for t, j in np.argwhere(infinite)[:20]]
        found.add("infinite", places, f"{infinite.sum()} cells")
    return np.where(infinite, np.nan, cells)


class Panel:
    """Returns (rows, m) with robust scales of every column.

    `days` are the trading days that a row stands for, None without dates; `span` is the same, and lenient without.
    `live` columns are still judged: one that is no series of returns takes no part in what follows.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        names: list[str],
        cells: np.ndarray,
        prices: bool,
        days: float | None,
        found: Findings,
    ) -> None:
        self.found, self.names, self.days = found, names, days
        self.span = max(_UNDATED if days is None else days, 1.0)
        self.cells, self.index = cells, table.index
        self.prices: np.ndarray | None = None
        self.returns = cells
        if prices:
            self.prices = np.where(cells > 0, cells, np.nan)
            self.returns, self.index = _returns_of(self.prices), table.index[1:]
        self.enough = len(cells) >= _FEWEST
        self.finite = np.isfinite(self.returns)
        self.live = np.ones(len(names), dtype=bool)
        if self.enough:
            self.measure()

    def measure(self) -> None:
        """Scales of the columns as they are now."""
        x = self.returns
        filled = np.where(self.finite, x, 0.0)
        self.count = np.maximum(self.finite.sum(0), 1)
        self.low = np.where(self.finite, x, np.inf).min(0)
        self.high = np.where(self.finite, x, -np.inf).max(0)
        mean = filled.sum(0) / self.count
        variance = (np.where(self.finite, x - mean, 0.0) ** 2).sum(0) / self.count
        self.deviation = np.maximum(np.sqrt(variance), 1e-300)
        self.centre = median(x)
        least = np.maximum(1e-12, 1e-3 * np.minimum(self.deviation, 0.02))
        self.moving = self.finite & (np.abs(filled) > least)
        scale = TO_DEVIATION * median(np.where(self.moving, np.abs(x), np.nan))
        self.scale = np.where(np.isfinite(scale), scale, 0.0)  # of the rows that move, about 0
        self.memory = memory_of(np.clip((x - self.centre) / self.deviation, -4, 4))
        self.below = (filled < -1).sum(0)

    @property
    def root(self) -> float:
        """Square root of the days of a row: how much larger its moves are than a day's."""
        return float(self.span**0.5)

    @property
    def usual(self) -> float:
        """The usual move of the usual column."""
        return float(np.median(self.scale[self.live])) if self.live.any() else 0.0

    def at(self, row: Any, column: Any) -> str:
        """The place of a return."""
        return f"{self.names[column]} @ {self.date(row)}"

    def date(self, row: Any) -> str:
        """The label of a row."""
        return str(self.index[row])[:10]

    def mark(
        self, mask: np.ndarray, name: str, evidence: Callable[[int], str], *, stops: bool = True, drop: bool = True
    ) -> None:
        """A finding for the columns of a mask; if dropped, they take no part in what follows."""
        columns = np.flatnonzero(mask & self.live)
        if columns.size:
            self.found.add(name, [self.names[j] for j in columns], evidence(int(columns[0])), stops=stops)
            if drop:
                self.live[columns] = False


def _returns_of(prices: np.ndarray) -> np.ndarray:
    """p_t / p_{t−1} − 1 from the last price before, in rows with a price."""
    before = prices[:-1]
    if np.isnan(before).any():
        before = pd.DataFrame(prices).ffill().to_numpy()[:-1]
    return prices[1:] / before - 1
