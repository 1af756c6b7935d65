"""One engine for every strategy: it alone holds the future and hands out copies of the past.

A strategy is anything with a `name` and `decide(observation) -> raw allocations`. It decides once per step for all
series and all turnover budgets together. Its raw answer is projected onto the feasible set, and traded as many rows
later as the delay says: `execution` has the rules.

`solve_observation` is for strategies that optimise: the exact portfolio for their forecasts under the constraints,
benchmark, turnover budget and current weights of the observation, which the engine need not project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from time2decide.core.validation import (
    ArrayLike,
    InputError,
    as_tensor,
    expect,
    refuse,
    validate_choice,
    validate_positive,
)
from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.covariance import empirical_covariance
from time2decide.markets.oracle import (
    RISK_AVERSION,
    WINDOW,
    oracle_path,
    validate_oracle_budgets,
    validate_oracle_returns,
)
from time2decide.markets.periods import YEAR
from time2decide.markets.portfolio import (
    PortfolioSolution,
    nearest_portfolio,
    solve_portfolio,
)
from time2decide.markets.smallest_trade import solve_without_small_trades
from time2decide.markets.universe import Universe
from time2decide.markets.validation import validate_delay, validate_real_returns, validate_risk_aversion
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.execution import SAME, drifted_weights, traded_towards

#: What the turnover budget is measured from: the last weights chosen, as in the paper, or those after drift.
BUDGET_FROM = ("previous", "drifted")
_MOST_COST_BPS = 4999.0
_ROUNDING = 1e-12  # of a sum of weights and of a turnover
_LARGEST = 1e9  # of an answer, in weights: beyond it nothing is left of a projection but rounding


@dataclass(frozen=True)
class Observation:
    """Everything that is known when the weights of step t are chosen; the arrays are copies that end at t − 1.

    With a delay of d rows the weights of step t are traded at the close of row t − 1 + d and held from row t + d on.

    Attributes
    ----------
    returns : (series, window, m)
        Returns of the steps t − window … t − 1, oldest first.
    allocations : (series, budgets, window, m)
        The weights held in the same rows; uniform before the first trade.
    hindsight : (series, budgets, window, m), or None
        The oracle's weights of the same steps, which depend on returns up to t − 1 only; if the
        strategy has `wants_hindsight`.
    turnover_l1 : (budgets,)
        γ
    risk_aversion : float
        λ
    step : int, or None
        t, if the observation is one of a rollout.
    current : (series, budgets, m), or None
        The weights before the decision if they differ from the last of `allocations`: those after drift. With a
        delay, those expected when the trade is made: after the trades on their way, if prices stand still.
    cost_bps : float
        What a trade costs, in basis points of the amount traded.
    constraints : Constraints, or None for long-only and fully invested
        What the weights must meet; an answer that does not is projected.
    benchmark : (m,), or None
        Weights that risk is measured from, for strategies that optimise.
    assets : (m,), or None
        In a changing universe: which assets these are, as indices of its columns.
    frozen : (m,), bool, or None
        In a changing universe: assets whose weight cannot change at this step.
    min_trade : float
        Smallest trade, in weights, for strategies that solve their problem at every step; 0 for any.
    delay : int
        Rows between the decision and its trade.
    periods_per_year : float
        Rows of the table in a year; those of business days where that is unknown.
    """

    returns: np.ndarray
    allocations: np.ndarray
    hindsight: np.ndarray | None
    turnover_l1: np.ndarray
    risk_aversion: float
    step: int | None = None
    current: np.ndarray | None = None
    cost_bps: float = 0.0
    constraints: Constraints | None = None
    assets: np.ndarray | None = None
    frozen: np.ndarray | None = None
    benchmark: np.ndarray | None = None
    min_trade: float = 0.0
    delay: int = 0
    periods_per_year: float = YEAR

    @property
    def previous(self) -> np.ndarray:
        """Weights before the trade that is decided, (series, budgets, m); the decision's budget is measured from them.

        With a delay they are expected, not known; the budget counts again from the true ones when the trade is made.
        """
        return self.allocations[:, :, -1] if self.current is None else self.current

    def oracle_history(self) -> np.ndarray:
        """`hindsight`, or an `InputError` without `wants_hindsight`."""
        if self.hindsight is None:
            raise InputError("observation: expected the oracle's past allocations, found none (wants_hindsight is off)")
        return self.hindsight

    @cached_property
    def covariance(self) -> np.ndarray:
        """Empirical covariance of `returns`, (series, m, m)."""
        return empirical_covariance(self.returns)


def continues_observation(last: np.ndarray | None, window: np.ndarray) -> bool:
    """Whether a window (series, time, m) continues the last one by one step."""
    if last is None or last.shape != window.shape:
        return False
    return np.array_equal(window[:, :-1], last[:, 1:], equal_nan=True)


class Strategy(Protocol):
    """The protocol of a strategy: a rule or a policy that answers an observation with weights.

    With a delay weights move before they are traded. A strategy with `orders = True` decides on trades: an asset whose
    weight it leaves as it is has no order, and keeps the weight that it has when the others are traded. Otherwise the
    weights that it answered are what is held after the trade.

    Whatever a strategy keeps between steps (skfolio baselines keep their last fit) it must have learned from its
    observations, and it must start anew when an observation does not continue the one before.
    """

    @property
    def name(self) -> str:
        """Short name for tables."""

    @property
    def wants_hindsight(self) -> bool:
        """Whether `observation.hindsight` is to be filled."""

    def decide(self, observation: Observation) -> np.ndarray:
        """Raw weights of step t, of a shape that broadcasts to (series, budgets, m); they need not be feasible."""


@dataclass(frozen=True)
class Rollout:
    """The raw answers of a strategy by the step of the decision, and the weights held in each row.

    Both are (series, budgets, time, m); uniform before step `window`. With a delay of d rows the answer of step t is
    held from row t + d on. `constraints` say what cash earns; `pending` are the targets that are still to be traded
    after the last row, oldest first, each with the assets that have no order.
    """

    name: str
    raw: np.ndarray
    allocations: np.ndarray
    turnover_l1: np.ndarray
    window: int
    risk_aversion: float
    budget_from: str = "previous"
    delay: int = 0
    constraints: Constraints | None = None
    pending: tuple[tuple[np.ndarray, np.ndarray], ...] = ()

    def current(self, returns: np.ndarray) -> np.ndarray:
        """Weights (series, budgets, m) that the decision after the last row of (series, time, m) starts from."""
        now = drifted_weights(self.allocations[:, :, -1], returns[:, None, -1], self.constraints)
        for target, fixed in self.pending:
            now = traded_towards(target, now, self.turnover_l1, fixed)
        return now


def rollout(
    returns: ArrayLike | Universe,
    strategy: Strategy,
    turnover_l1: float | Sequence[float],
    *,
    risk_aversion: float = RISK_AVERSION,
    window: int = WINDOW,
    budget_from: str = "previous",
    cost_bps: float = 0.0,
    constraints: Constraints | None = None,
    benchmark: np.ndarray | None = None,
    min_trade: float = 0.0,
    delay: int = 0,
    periods_per_year: float = YEAR,
    oracle: np.ndarray | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Rollout:
    """Run a strategy through every step from `window` on, for all series and budgets at once.

    Parameters
    ----------
    returns : (series, time, m), or (time, m), or Universe
        A `Universe` has assets that come and go; the strategy is given those of the moment, with complete windows and
        their constraints, and its answer is put back in place. Its window counts. See `markets/universe.py` for the
        rules.
    strategy : Strategy
    turnover_l1 : number or sequence
        Budgets γ on ‖s_t − p_t‖₁.
    budget_from : {"previous", "drifted"}
        p_t: the weights s_{t−1} of the step before, as in the paper, or what its returns made of them,
        s ⊙ (1 + r) / (1 + sᵀr), which is what an investor has to trade from.
    cost_bps : float
        Passed to the strategy; the rollout charges nothing.
    constraints : Constraints, optional
        Bounds, groups, exposures and cash; long-only and fully invested unless given. What is not invested earns their
        cash return.
    benchmark : (m,), optional
        Passed to the strategy: weights that risk is measured from.
    min_trade : float in [0, 1]
        Passed to the strategy: the smallest trade, in weights.
    delay : int
        Rows between a decision and its trade: weights decided on data up to the close of row t − 1 are traded at the
        close of row t − 1 + delay. 0 is the same close, as in the paper.
    periods_per_year : float
        Passed to the strategy: rows of the table in a year.
    oracle : (series, budgets, time, m), optional
        The oracle's path if it is known already; it is computed for a strategy that wants hindsight otherwise.
    progress : function of (step, steps), optional
        Called before every decision.
    """
    validate_strategy(strategy)
    universe = returns if isinstance(returns, Universe) else None
    window = window if universe is None else universe.window
    array = validate_simulation_returns(returns, window) if universe is None else universe.returns[None]
    budgets = validate_oracle_budgets(turnover_l1)
    risk = validate_risk_aversion(risk_aversion)
    validate_choice("budget_from", budget_from, BUDGET_FROM)
    shape = (len(array), len(budgets), *array.shape[1:])
    weights = _starting_weights(shape, universe)
    terms: dict[str, Any] = {
        "turnover_l1": budgets,
        "risk_aversion": risk,
        "cost_bps": validate_cost(cost_bps),
        "min_trade": validate_positive("min_trade", min_trade, allow_zero=True, most=1),
        "delay": validate_delay(delay),
        "periods_per_year": validate_positive("periods_per_year", periods_per_year),
    }
    hindsight = None
    if strategy.wants_hindsight:
        known = array if universe is None else universe
        hindsight = oracle_for_rollout(known, budgets, risk, window) if oracle is None else oracle
        fits = getattr(hindsight, "shape", None) == shape and np.isfinite(hindsight).all()
        found = getattr(hindsight, "shape", type(hindsight).__name__)
        expect(fits, "oracle", f"finite numbers of shape {shape}", found)
    book = _Book(array, universe, weights, budgets, window, delay, budget_from == "drifted", constraints)
    raw = weights.copy()
    for t, assets, rules, reference in _steps(array, universe, window, constraints, benchmark):
        if progress is not None:
            progress(t - window, shape[2] - window)
        previous, place = book.before_decision(t), slice(None) if assets is None else assets
        share = book.unlocked(previous, t)
        given = {**terms, "constraints": rules, "benchmark": reference}
        start = previous[..., place] / share
        seen = _observe(book, t, assets, hindsight, start.copy(), given)
        if assets is not None:
            raw[:, :, t] = 0.0
        raw[:, :, t, place] = answer = _answer(strategy, seen)
        frozen = None if universe is None else ~universe.tradable[t, place]
        target = _project(answer, start, budgets, rules, frozen)
        same = np.abs(target - start) <= (SAME if getattr(strategy, "orders", False) else -1.0)
        book.order(t, place, previous, share * target, same)
    return Rollout(strategy.name, raw, weights, budgets, window, risk, budget_from, delay, constraints, book.pending)


@dataclass
class _Book:
    """The weights held in every row, (series, budgets, time, m), and the trades on their way."""

    returns: np.ndarray
    universe: Universe | None
    weights: np.ndarray
    budgets: np.ndarray
    window: int
    delay: int
    drifts: bool
    constraints: Constraints | None
    _orders: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # step -> target, not traded

    def before_decision(self, t: int) -> np.ndarray:
        """Weights (series, budgets, m) that the decision of step t starts from; row t is held if there is a delay."""
        now = self.weights[:, :, t - 1]
        if self.drifts and t > self.window:  # the first decision starts from the uniform portfolio itself
            now = drifted_weights(now, self.returns[:, None, t - 1], self.constraints)
        now = now.copy() if self.universe is None else self.universe.availability(t).after_sales(now)
        if not self.delay:
            return now
        self.weights[:, :, t] = held = self._traded(now, t - self.delay, t)
        for step in range(t - self.delay + 1, t):
            held = self._traded(held, step, t)
        return np.array(held)

    def _traded(self, now: np.ndarray, step: int, t: int) -> np.ndarray:
        """Weights after the trade of a step, by what is known at the close of row t − 1."""
        if step not in self._orders:
            return now
        target, fixed = self._orders[step]
        if self.universe is not None:
            target = self.universe.availability(t).after_sales(target)
            fixed = fixed | ~self.universe.tradable[t]
        return traded_towards(target, now, self.budgets, fixed)

    @property
    def pending(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """The trades that are still to be made."""
        return tuple(self._orders.values())

    def unlocked(self, weights: np.ndarray, t: int) -> np.ndarray | float:
        """The share (series, budgets, 1) of weights that are not in assets halted for long."""
        if self.universe is None or not self.universe.locked[t].any():
            return 1.0
        return np.maximum(1.0 - weights[..., self.universe.locked[t]].sum(-1, keepdims=True), _ROUNDING)

    def order(
        self, t: int, place: slice | np.ndarray, previous: np.ndarray, target: np.ndarray, same: np.ndarray
    ) -> None:
        """Take the target weights of step t of some assets, of which the `same` ones are not traded; others stay."""
        whole = previous.copy()
        whole[..., place] = target
        if not self.delay:
            self.weights[:, :, t] = whole
            return
        fixed = np.zeros(whole.shape, dtype=bool)
        fixed[..., place] = same
        self._orders[t] = whole, fixed
        self._orders.pop(t - self.delay, None)


def _observe(
    book: _Book,
    t: int,
    assets: np.ndarray | None,
    hindsight: np.ndarray | None,
    previous: np.ndarray,
    terms: dict[str, Any],
) -> Observation:
    """Copies of what is known at the close of row t − 1, about the assets of the moment."""
    past, place = slice(t - book.window, t), slice(None) if assets is None else assets
    copies = {name: value.copy() for name, value in terms.items() if isinstance(value, np.ndarray)}
    return Observation(
        returns=book.returns[:, past, place].copy(),
        allocations=_within(book.weights[:, :, past], place),
        hindsight=None if hindsight is None else _within(hindsight[:, :, past], place),
        step=t,
        current=previous,
        assets=None if assets is None else assets.copy(),
        frozen=None if book.universe is None else ~book.universe.tradable[t, place],
        **{**terms, **copies},
    )


_Step = tuple[int, np.ndarray | None, Constraints | None, np.ndarray | None]


def _steps(
    array: np.ndarray,
    universe: Universe | None,
    window: int,
    constraints: Constraints | None,
    benchmark: np.ndarray | None,
) -> Iterator[_Step]:
    """Every step of a rollout with the assets of the moment (None for all), their constraints and benchmark."""
    if universe is None:
        yield from ((t, None, constraints, benchmark) for t in range(window, array.shape[1]))
        return
    for segment in universe.segments():
        terms = universe.terms(segment, constraints, benchmark)
        yield from ((t, segment.assets, *terms) for t in range(segment.start, segment.stop))


def _starting_weights(shape: tuple[int, ...], universe: Universe | None) -> np.ndarray:
    """Uniform weights of all steps, (series, budgets, time, m), over the assets of the first decision."""
    if universe is None:
        return np.full(shape, 1.0 / shape[-1])
    first = universe.members[universe.window]
    return np.broadcast_to(first / first.sum(), shape).copy()


def _within(weights: np.ndarray, assets: slice | np.ndarray) -> np.ndarray:
    """A copy of weights (..., m) of some assets: what was in others is put into these in proportion."""
    if isinstance(assets, slice):
        return weights.copy()
    part, whole = weights[..., assets], weights.sum(-1, keepdims=True)
    total = part.sum(-1, keepdims=True)
    even = np.full(part.shape, 1.0 / part.shape[-1])
    return np.asarray(whole * np.divide(part, total, out=even, where=total > 0))


def oracle_for_rollout(returns: np.ndarray | Universe, budgets: np.ndarray, risk: float, window: int) -> np.ndarray:
    """The oracle's path, (series, budgets, time, m); in a changing universe it starts anew whenever that changes."""
    if not isinstance(returns, Universe):
        return np.asarray(oracle_path(returns, budgets.tolist(), risk, window))
    path = _starting_weights((1, len(budgets), *returns.returns.shape), returns)
    for segment in returns.segments():
        rows = returns.returns[None, segment.start - window : segment.stop, segment.assets]
        path[:, :, segment.start : segment.stop] = 0.0
        found = oracle_path(rows, budgets.tolist(), risk, window)
        path[:, :, segment.start : segment.stop, segment.assets] = np.asarray(found)[:, :, window:]
    return path


def validate_cost(cost_bps: float) -> float:
    """Basis points of the amount traded; a full change of the portfolio, ‖Δ‖₁ = 2, may not take all wealth."""
    return validate_positive("cost_bps", cost_bps, allow_zero=True, most=_MOST_COST_BPS)


def validate_simulation_returns(returns: ArrayLike, window: int) -> np.ndarray:
    """Real returns as an array (series, time, m) with more than `window` steps, or an `InputError`."""
    return validate_oracle_returns(validate_real_returns(returns), window)


def validate_strategy(strategy: object) -> None:
    """Raise unless `strategy` follows the protocol `Strategy`."""
    if isinstance(strategy, type):
        name = strategy.__name__
        raise InputError(f"strategy: expected an object, found the class {name} (an object of it is {name}())")
    fits = {
        "name (text)": isinstance(getattr(strategy, "name", None), str),
        "wants_hindsight (true or false)": isinstance(getattr(strategy, "wants_hindsight", None), (bool, np.bool_)),
        "decide(observation)": callable(getattr(strategy, "decide", None)),
    }
    missing = ", ".join(what for what, fit in fits.items() if not fit)
    expect(not missing, "strategy", missing, f"none in {type(strategy).__name__}")


def _answer(strategy: Strategy, observation: Observation) -> np.ndarray:
    shape = observation.previous.shape  # (series, budgets, m)
    answer = as_tensor(strategy.name, strategy.decide(observation)).detach().cpu().double().numpy()
    try:
        answer = np.broadcast_to(answer, shape)
    except ValueError:
        raise InputError(f"{strategy.name}: expected weights of shape {shape}, found {answer.shape}") from None
    refuse(f"{strategy.name}: expected finite weights, found {value}" for value in answer[~np.isfinite(answer)])
    largest = np.abs(answer).max()
    expect(largest <= _LARGEST, strategy.name, f"weights within {_LARGEST:g}", f"{largest:g}")
    return answer


def _project(
    raw: np.ndarray,
    previous: np.ndarray,
    budgets: np.ndarray,
    constraints: Constraints | None = None,
    frozen: np.ndarray | None = None,
) -> np.ndarray:
    """The nearest feasible weights, (series, budgets, m); an answer that is feasible to rounding stays as it is."""
    if constraints is not None:
        return _project_onto(raw, previous, budgets, constraints, frozen)
    if frozen is not None and frozen.any():
        return _project_around(raw, previous, budgets, frozen)
    slack = np.maximum(np.abs(raw.sum(-1) - 1), np.abs(raw - previous).sum(-1) - budgets)
    if raw.min() >= 0 and slack.max() <= _ROUNDING:
        return raw
    gamma = torch.from_numpy(np.array(np.broadcast_to(budgets, raw.shape[:-1])))
    return np.asarray(project_portfolio(torch.from_numpy(raw.copy()), torch.from_numpy(previous.copy()), gamma))


def _project_onto(
    raw: np.ndarray, previous: np.ndarray, budgets: np.ndarray, constraints: Constraints, frozen: np.ndarray | None
) -> np.ndarray:
    """The same under constraints; where weights that cannot change leave no portfolio, nothing is traded."""
    m, per_row = raw.shape[-1], np.broadcast_to(budgets, raw.shape[:-1]).ravel()
    rows, now = raw.reshape(-1, m).copy(), previous.reshape(-1, m)
    halted = frozen is not None and bool(frozen.any())
    rules = [constraints.fix(held, frozen) if frozen is not None and halted else constraints for held in now]
    excess = [one.excess(*row) for one, row in zip(rules, zip(rows, now, per_row, strict=True), strict=True)]
    off = np.flatnonzero(np.array(excess) > _ROUNDING)
    if not halted and off.size:
        rows[off] = nearest_portfolio(rows[off], now[off], per_row[off], constraints)
    for i in off if halted else ():
        row = slice(i, i + 1)
        try:
            rows[row] = nearest_portfolio(rows[row], now[row], per_row[row], rules[i])
        except InputError:
            rows[row] = now[row]
    return rows.reshape(raw.shape)


def _project_around(raw: np.ndarray, previous: np.ndarray, budgets: np.ndarray, frozen: np.ndarray) -> np.ndarray:
    """The same with the weights of some assets fixed: the others share what is left, within the same budget."""
    free = ~frozen
    rest = previous[..., free].sum(-1, keepdims=True)  # (series, budgets, 1)
    answer = previous.copy()
    if free.any() and rest.min() > _ROUNDING:
        scaled = _project(raw[..., free] / rest, previous[..., free] / rest, budgets / rest[..., 0])
        answer[..., free] = rest * scaled
    return answer


UNLIMITED = 1e6  # a turnover budget that never binds


def solve_observation(
    observation: Observation,
    mean: np.ndarray,
    covariance: np.ndarray,
    *,
    risk_aversion: float | None = None,
    cost: np.ndarray | float = 0.0,
    start: PortfolioSolution | None = None,
) -> tuple[np.ndarray, PortfolioSolution | None]:
    """Weights (series, budgets, m) for means (series, budgets or 1, m) and covariances (series, budgets or 1, m, m).

    λ is the observation's unless given. Where the budget does not reach the constraints the best portfolio without a
    budget is returned, which the engine approaches as far as the budget allows; there is no solution then to start the
    next decision from, nor with a smallest trade. Under constraints, weights that cannot change are fixed; where they
    leave no portfolio, the current weights are returned.
    """
    previous, risk = observation.previous, observation.risk_aversion if risk_aversion is None else risk_aversion
    lead, m = previous.shape[:-1], previous.shape[-1]
    gamma = np.broadcast_to(observation.turnover_l1, lead)
    options: dict[str, Any] = {"risk_aversion": risk, "benchmark": observation.benchmark}
    frozen, least = observation.frozen, observation.min_trade
    rules = LONG_ONLY if observation.constraints is None and least else observation.constraints
    halted = rules is not None and frozen is not None and bool(frozen.any())
    options["constraints"] = rules
    if not halted and not least:
        try:
            solved = solve_portfolio(mean, covariance, previous, turnover_l1=gamma, cost=cost, start=start, **options)
            return solved.weights, solved
        except InputError:
            if rules is None:
                raise
    means, costs = np.broadcast_to(mean, previous.shape), np.broadcast_to(cost, previous.shape)
    matrices, weights = np.broadcast_to(covariance, (*lead, m, m)), np.empty(previous.shape)
    for place in np.ndindex(lead):
        data = means[place], matrices[place], previous[place]
        if halted:
            assert rules is not None
            assert frozen is not None
            options["constraints"] = rules.fix(previous[place], frozen)
        weights[place] = _reach(data, float(gamma[place]), costs[place], least, options, may_stay=halted)
    return weights, None


def _reach(
    data: tuple[np.ndarray, np.ndarray, np.ndarray],
    gamma: float,
    cost: np.ndarray,
    least: float,
    options: dict[str, Any],
    may_stay: bool,
) -> np.ndarray:
    """The best portfolio within the budget, or else without one; the current weights if there is none and they may."""
    for budget in (gamma, UNLIMITED):
        try:
            return solve_without_small_trades(*data, least, turnover_l1=budget, cost=cost, **options)[0].weights
        except InputError:
            if budget == UNLIMITED and not may_stay:
                raise
    return data[2]
