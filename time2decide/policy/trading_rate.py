"""How fast a policy trades: the rate z, from portfolios that it runs on paper.

z depends on the rows of a table alone, not on what is held, so that a decision about a table and a walk-forward that
has come to the same row have the same. A paper portfolio starts from equal weights at every 63rd row, with full
information and without costs charged; the rate is that of the one that has traded for 63 to 126 rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from time2decide.forecasting.market_state import FORECAST_WINDOW
from time2decide.policy.market_policy import LEAST_RATE
from time2decide.simulation.execution import drifted_weights

_APART = 63  # rows between the starts of two portfolios: a half-life of the rate
_STEPS = ((64, 1), (128, 3), (256, 7))  # most assets, and rows between two decisions on paper
_FEWEST = 21  # rows between them with more assets


def paper_step(assets: int) -> int:
    """Rows between two decisions on paper; divides the rows between two starts."""
    return next((step for most, step in _STEPS if assets <= most), _FEWEST)


def paper_rows(rows: int, assets: int) -> list[int]:
    """After which rows, before the decision after `rows`, the portfolio that counts then decides on paper."""
    step = paper_step(assets)
    first = -(-FORECAST_WINDOW // step) * step
    start = max((rows - _APART) // _APART * _APART, first)
    return list(range(start, rows, step))


@dataclass
class TradingRate:
    """The rate z of one or several portfolios (...): mean of traded / distance over the last rows."""

    total: np.ndarray
    weight: float = 1.0

    KEEP = 0.5 ** (1 / 63)  # per row: a quarter of a year

    @classmethod
    def start(cls, turnover_l1: np.ndarray | float) -> TradingRate:
        """Before the first row: as if every trade took all of the budget on the way to another portfolio."""
        return cls(np.minimum(np.asarray(turnover_l1, dtype=float), 2.0) / 2)

    @property
    def value(self) -> np.ndarray:
        return np.clip(self.total / self.weight, LEAST_RATE, 1.0)

    def update(self, traded: np.ndarray, distance: np.ndarray, rows: int = 1) -> None:
        """After trades (...) by a policy that was so far (...) from where it would be, so many rows after the last."""
        share = np.where(distance > 1e-9, np.minimum(traded / np.maximum(distance, 1e-9), 1.0), 1.0)
        rate = 1 - (1 - share) ** (1 / rows)
        keep = self.KEEP**rows
        self.total, self.weight = keep * self.total + rate, keep * self.weight + 1


@dataclass
class PaperPortfolio:
    """Weights (series, budgets, m) on paper, and the rate at which they are traded."""

    start: int
    weights: np.ndarray
    rate: TradingRate
    row: int

    def drift(self, returns: np.ndarray, row: int) -> None:
        """Hold the weights up to a row; returns (series, rows, m) end with it."""
        for one in range(self.row - row, 0):
            earned = np.maximum(np.nan_to_num(returns[:, None, one]), -1.0)
            self.weights = drifted_weights(self.weights, earned)
        self.row = row


@dataclass
class PaperPortfolios:
    """The portfolios on paper of one strategy."""

    turnover_l1: np.ndarray  # (budgets,)
    shape: tuple[int, ...]  # of weights
    alive: list[PaperPortfolio] = field(default_factory=list)

    def starting(self, row: int) -> bool:
        """Whether a portfolio starts with the decision after this row."""
        return not self.alive or row % _APART == 0

    def start(self, row: int) -> None:
        """Start one from equal weights."""
        rate = TradingRate.start(np.broadcast_to(self.turnover_l1, self.shape[:-1]))
        self.alive.append(PaperPortfolio(row, np.full(self.shape, 1.0 / self.shape[-1]), rate, row))

    def rate(self, row: int) -> np.ndarray:
        """z (series, budgets) for the decision after a row."""
        while len(self.alive) > 1 and self.alive[1].start <= row - _APART:
            self.alive.pop(0)
        if not self.alive:
            return TradingRate.start(np.broadcast_to(self.turnover_l1, self.shape[:-1])).value
        return self.alive[0].rate.value
