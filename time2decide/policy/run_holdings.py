"""What a portfolio that is decided day by day holds before a decision: weights, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from time2decide.markets.constraints import Constraints
from time2decide.markets.orders import Orders, quoted_orders, read_quotes, weights_of_shares
from time2decide.markets.tables import read_by_asset, with_absent_assets
from time2decide.markets.validation import validate_current_weights, validate_delay, validate_weights, was_scaled
from time2decide.policy.market_decision import MarketDecision
from time2decide.simulation.execution import SAME, drifted_weights, traded_towards

if TYPE_CHECKING:
    from time2decide.policy.portfolio_config import PortfolioConfig

DRIFTED, EQUAL, FILE = "last target, drifted", "equal weights", "file"  # where current weights come from
_EQUAL = 1e-9  # largest difference of a weight that is called none
_SAME_SHARES = 1e-6  # largest difference of weights of the same shares: prices are rounded
_SHOWN = 5  # assets that a message names


@dataclass(frozen=True)
class Holdings:
    """Current weights before a decision: None for equal ones.

    source : where they come from
    in_shares : whether a file says them in shares
    value, quotes : of the portfolio and its assets, if orders are wanted
    absent : assets that the file leaves out
    total : sum of its weights, before they are scaled to 1
    """

    weights: np.ndarray | None
    source: str
    in_shares: bool = False
    value: float | None = None
    quotes: pd.DataFrame | None = None
    absent: tuple[str, ...] = ()
    total: float = 1.0

    @property
    def notes(self) -> list[str]:
        """What was made of the file: assets that it leaves out, and another sum than 1."""
        more = f" and {len(self.absent) - _SHOWN} more" if len(self.absent) > _SHOWN else ""
        notes = [f"{self.source} leaves out {', '.join(self.absent[:_SHOWN])}{more}: weight 0"] if self.absent else []
        if self.weights is not None and was_scaled(self.total, self.weights):
            notes.append(f"the weights of {self.source}, of sum {self.total:.9g}, are scaled to the sum 1")
        return notes

    def orders(self, decision: MarketDecision, config: PortfolioConfig) -> Orders | None:
        """The orders of a decision from these holdings."""
        if self.quotes is None or self.value is None:
            return None
        return quoted_orders(decision, self.quotes, self.value, config.path("price_file"))


def entry_rows(entries: list[dict[str, Any]]) -> int:
    """Rows of the table at the last decision."""
    return int(entries[-1]["data"]["rows"]) if entries else 0


def entry_delay(entry: dict[str, Any]) -> int:
    """Rows between a decision and its trade; journals of before the delay are of the same close."""
    return validate_delay(entry["terms"].get("delay", 0))


def drift_run_weights(weights: np.ndarray, returns: np.ndarray, constraints: Constraints | None = None) -> np.ndarray:
    """What rows of returns (time, m) make of weights (m,); a price without a return stands still."""
    for row in np.nan_to_num(returns):
        weights = drifted_weights(weights, row, constraints)
    return weights


def weights_since_entry(
    entry: dict[str, Any],
    before: np.ndarray,
    target: np.ndarray,
    returns: np.ndarray,
    constraints: Constraints | None,
) -> np.ndarray:
    """What the rows (time, m) since a decision made of its weights, traded after its delay as in a backtest.

    Those that are still to be traded count as if prices stood still.
    """
    delay = entry_delay(entry)
    if delay == 0 or len(returns) < delay:
        return drift_run_weights(target, returns if delay == 0 else returns[:0], constraints)
    now = drift_run_weights(before, returns[:delay], constraints)
    same = np.abs(target - before) <= SAME
    now = traded_towards(target, now, entry["terms"]["turnover_l1"], same)
    return drift_run_weights(now, returns[delay:], constraints)


def current_holdings(
    config: PortfolioConfig,
    holdings: str | Path | None,
    entries: list[dict[str, Any]],
    table: pd.DataFrame,
    values: str,
    constraints: Constraints | None,
) -> Holdings:
    """Current weights by a file, or the last target after drift, or none for equal weights."""
    path, names = config.path("holdings") if holdings is None else Path(holdings), [str(c) for c in table.columns]
    if path is not None:
        return read_holdings(config, path, table, values, constraints)
    value = config.value or None
    quotes = None if value is None else _quotes(config, table, values)
    if not entries:
        return Holdings(None, EQUAL, value=value, quotes=quotes)
    before, target = (np.array([entries[-1][key][name] for name in names]) for key in ("previous", "weights"))
    drifted = weights_since_entry(entries[-1], before, target, table.to_numpy()[entry_rows(entries) :], constraints)
    return Holdings(drifted, DRIFTED, value=value, quotes=quotes)


def _quotes(config: PortfolioConfig, table: pd.DataFrame, values: str) -> pd.DataFrame:
    """The prices of the assets."""
    return read_quotes(config.source(), values, config.path("price_file"), table)


def read_holdings(
    config: PortfolioConfig, path: Path, table: pd.DataFrame, values: str, constraints: Constraints | None
) -> Holdings:
    """The current weights of a file in weights or shares."""
    numbers, names = read_by_asset(path, "weight", "shares"), [str(column) for column in table.columns]
    in_shares, total = numbers.name == "shares", 1.0 if numbers.name == "shares" else float(numbers.sum())
    numbers, absent = with_absent_assets(numbers, names)
    value = config.value or None
    quotes = _quotes(config, table, values) if in_shares or value is not None else None
    if in_shares:
        numbers, value = weights_of_shares(numbers, quotes, value, constraints)
    if constraints is None:
        weights = validate_weights(numbers, len(names), names)
    else:
        weights = validate_current_weights("holdings", numbers, len(names), names, constraints)
    return Holdings(weights, f"{FILE} {path.name}", in_shares, value, quotes, tuple(absent), total)


def stale_holdings(held: Holdings, entries: list[dict[str, Any]], table: pd.DataFrame) -> str:
    """A warning if a file says the weights that the last decision started from, though that decision traded.

    Shares that are unchanged have weights that drifted.
    """
    previous, source = held.weights, held.source
    if previous is None or not source.startswith(FILE) or not entries:
        return ""
    last, names = entries[-1], [str(column) for column in table.columns]
    if len(table) - entry_rows(entries) < entry_delay(last):  # its trades are still to be made
        return ""
    before, target = (np.array([last[key][name] for name in names], dtype=float) for key in ("previous", "weights"))
    traded = np.abs(target - before).max() > _EQUAL
    if held.in_shares:
        before = drift_run_weights(before, table.to_numpy()[entry_rows(entries) :])
    if np.abs(previous - before).max() > (_SAME_SHARES if held.in_shares else _EQUAL) or not traded:
        return ""
    unchanged = f"WARNING: {source.removeprefix(FILE).strip()} is unchanged since the decision of {last['date']}"
    return f"{unchanged}, as if none of its trades had been made: update it, or the same trades are ordered twice"
