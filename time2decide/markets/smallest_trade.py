"""Decisions in which no trade is smaller than a given size: a rule for which assets keep their weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from time2decide.core.validation import InputError
from time2decide.markets.constraints import LONG_ONLY, Constraints, some_portfolio_meets
from time2decide.markets.portfolio import PortfolioSolution, solve_portfolio

_ROUNDING = 1e-9  # by which a trade may miss the smallest one, relative to it
_MET = 1e-9  # by which constraints may be exceeded, as in `some_portfolio_meets`
_SOLVES = 12  # at most, of problems; a few are enough but where constraints and small trades are tightly bound up


def solve_without_small_trades(
    mean: np.ndarray,
    covariance: np.ndarray,
    previous: np.ndarray,
    min_trade: float,
    constraints: Constraints | None = None,
    **terms: Any,
) -> tuple[PortfolioSolution, Constraints | None]:
    """One decision in which no trade is smaller than `min_trade`, and the constraints that it is exact for.

    Assets whose optimal trade is smaller are fixed at their current weights and the others solved again, until no trade
    is smaller. Where that leaves no portfolio, as many of the smallest are fixed as bisection finds; one that cannot be
    fixed by itself, as a weight outside its bounds, has to trade at least `min_trade` in its direction, and if that
    leaves none either, it trades as it does. `terms` are those of `solve_portfolio`.
    """
    solution = solve_portfolio(mean, covariance, previous, constraints=constraints, **terms)
    if not min_trade:
        return solution, constraints
    now, rules = solution.problem.previous[0], constraints or LONG_ONLY
    open_ = np.ones(len(now), dtype=bool)
    for _ in range(_SOLVES):
        trade = solution.weights - now
        small = open_ & (trade != 0) & (np.abs(trade) < min_trade * (1 - _ROUNDING))
        places = np.flatnonzero(small)[np.argsort(np.abs(trade[small]), kind="stable")]  # the smallest first
        found, decided = _without(places, trade, now, rules, min_trade, terms["turnover_l1"])
        open_[decided] = False
        if found is None:
            break
        try:
            solution = solve_portfolio(mean, covariance, now, constraints=found, **terms)
        except InputError:  # contradictory by no more than the linear program allows for
            continue
        constraints = rules = found
    return solution, constraints


def _without(
    places: np.ndarray, trade: np.ndarray, now: np.ndarray, rules: Constraints, least: float, turnover_l1: float
) -> tuple[Constraints | None, np.ndarray]:
    """Constraints without some of the small trades at `places`, and the assets that are decided.

    None if the constraints allow none of them to be left out or made larger.
    """
    lower, upper = rules.bounds(len(now))
    stays = rules.excess(now, now, turnover_l1) <= _MET  # no trade is allowed, so leaving out any is
    inside = (now[places] >= lower[places]) & (now[places] <= upper[places])
    places, done = np.concatenate([places[inside], places[~inside]]), 0
    while done < len(places):
        count = max(int(inside.sum()) - done, 0)
        while count:
            chosen = np.isin(np.arange(len(now)), places[done : done + count])
            found = replace(rules, lower=np.where(chosen, now, lower), upper=np.where(chosen, now, upper))
            if stays or some_portfolio_meets(found, now, turnover_l1):
                return found, places[: done + count]
            count //= 2
        i, done = places[done], done + 1
        low, high = lower.copy(), upper.copy()
        low[i], high[i] = (now[i] + least, upper[i]) if trade[i] > 0 else (lower[i], now[i] - least)
        if low[i] <= high[i] and some_portfolio_meets(found := replace(rules, lower=low, upper=high), now, turnover_l1):
            return found, places[:done]
    return None, places
