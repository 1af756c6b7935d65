"""A backtest as skfolio's portfolios, for its measures, plots and populations.

Every step is one `Portfolio` with the weights held, the drifted weights before it and the cost of the trade; a strategy
is a `MultiPeriodPortfolio` of them. Returns are those of the backtest, costs included, to rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from time2decide.core.validation import InputError, validate_interval
from time2decide.simulation.engine import drifted

if TYPE_CHECKING:
    from time2decide.backtesting.walk_forward import Backtest


def population_of(result: Backtest, series: int = 0) -> Any:
    """A `Population` with one `MultiPeriodPortfolio` per strategy and budget, tagged by strategy.

    skfolio charges costs linearly, r − c‖trade‖₁, the backtest before the return is earned, (1 − c‖trade‖₁)(1 + r) − 1:
    each step is charged c (1 + r), so that both are the same.
    """
    try:
        from skfolio import MultiPeriodPortfolio, Population, Portfolio
    except ImportError:
        raise InputError(
            "skfolio: expected it to be installed, found none; pip install 'time2decide[skfolio]'"
        ) from None
    validate_interval("series", series, f"[0, {len(result.returns) - 1}]")
    found = []
    for one in result.rollouts:
        first = one.window
        table = pd.DataFrame(
            result.returns[series, first:], index=result.frame["time"].unique(), columns=list(map(str, result.assets))
        )
        for k, budget in enumerate(one.turnover_l1):
            held = one.allocations[series, k, first:]  # (steps, m)
            before = drifted(one.allocations[series, k, first - 1 : -1], result.returns[series, first - 1 : -1])
            before[0] = one.allocations[series, k, first - 1]  # the first decision starts from the portfolio itself
            gross = (held * table.to_numpy()).sum(axis=1)
            rates = result.cost_bps / 1e4 * (1 + gross)
            steps = [
                Portfolio(
                    X=table.iloc[t : t + 1],
                    weights=held[t],
                    previous_weights=before[t],
                    transaction_costs=float(rates[t]),
                )
                for t in range(len(table))
            ]
            name = f"{one.name}, γ = {budget:g}"
            found.append(
                MultiPeriodPortfolio(
                    steps, name=name, tag=one.name, annualization_factor=result.periods_per_year, compounded=False
                )
            )
    return Population(found)
