"""One engine for every strategy: it alone holds the future and hands out copies of the past.

A strategy is anything with a `name` and `decide(observation) -> raw allocations`. It is asked once per step for all
series and all turnover budgets together. Its raw answer is projected onto the feasible set; the projected weights are
its current weights from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

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
from time2decide.markets.allocation import validate_budgets
from time2decide.markets.constraints import Constraints
from time2decide.markets.covariance import empirical_covariance
from time2decide.markets.oracle import RISK_AVERSION, WINDOW, oracle_path, validate_return_array
from time2decide.markets.portfolio import nearest_portfolio
from time2decide.markets.validation import validate_real_returns, validate_risk_aversion
from time2decide.qp.projections import project_portfolio

#: What the turnover budget is measured from: the last weights chosen, as in the paper, or those after drift.
BUDGET_FROM = ("previous", "drifted")
_MOST_COST_BPS = 4999.0
_ROUNDING = 1e-12  # of a sum of weights and of a turnover
_LARGEST = 1e9  # of an answer, in weights: beyond it nothing is left of a projection but rounding


@dataclass(frozen=True)
class Observation:
    """Everything that is known when the weights of step t are chosen; the arrays are copies that end at t − 1.

    Attributes
    ----------
    returns : (series, window, m)
        Returns of the steps t − window … t − 1, oldest first.
    allocations : (series, budgets, window, m)
        The strategy's own projected weights of the same steps; uniform before its first decision.
    hindsight : (series, budgets, window, m), or None
        The oracle's weights of the same steps, which depend on returns up to t − 1 only; for strategies that ask.
    turnover_l1 : (budgets,)
        γ
    risk_aversion : float
        λ
    step : int, or None
        t, if the observation is one of a rollout.
    current : (series, budgets, m), or None
        The weights before the decision if they differ from the last of `allocations`: those after drift.
    cost_bps : float
        What a trade costs, in basis points of the amount traded.
    constraints : Constraints, or None for long-only and fully invested
        What the weights must meet; an answer that does not is projected.
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

    @property
    def previous(self) -> np.ndarray:
        """The weights that are held before the decision, (series, budgets, m); the budget is measured from them."""
        return self.allocations[:, :, -1] if self.current is None else self.current

    def oracle_history(self) -> np.ndarray:
        """`hindsight`, or an `InputError` if the strategy did not ask for it."""
        if self.hindsight is None:
            raise InputError("observation: expected the oracle's past allocations, found none (wants_hindsight is off)")
        return self.hindsight

    @cached_property
    def covariance(self) -> np.ndarray:
        """Empirical covariance of `returns`, (series, m, m)."""
        return empirical_covariance(self.returns)


def continues(last: np.ndarray | None, window: np.ndarray) -> bool:
    """Whether a window (series, time, m) is the last one moved on by one step."""
    if last is None or last.shape != window.shape:
        return False
    return np.array_equal(window[:, :-1], last[:, 1:], equal_nan=True)


class Strategy(Protocol):
    """What the engine needs of a strategy: a rule or a policy that answers an observation with weights.

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
    """What a strategy said and what it held, both (series, budgets, time, m); uniform before step `window`."""

    name: str
    raw: np.ndarray
    allocations: np.ndarray
    turnover_l1: np.ndarray
    window: int
    risk_aversion: float
    budget_from: str = "previous"


def rollout(
    returns: ArrayLike,
    strategy: Strategy,
    turnover_l1: float | Sequence[float],
    *,
    risk_aversion: float = RISK_AVERSION,
    window: int = WINDOW,
    budget_from: str = "previous",
    cost_bps: float = 0.0,
    constraints: Constraints | None = None,
    oracle: np.ndarray | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Rollout:
    """Run a strategy through every step from `window` on, for all series and budgets at once.

    Parameters
    ----------
    returns : (series, time, m), or (time, m)
    strategy : Strategy
    turnover_l1 : number or sequence
        Budgets γ on ‖s_t − p_t‖₁.
    budget_from : {"previous", "drifted"}
        p_t: the weights s_{t−1} of the step before, as in the paper, or what its returns made of them,
        s ⊙ (1 + r) / (1 + sᵀr), which is what an investor has to trade from.
    cost_bps : float
        Told to the strategy; the rollout charges nothing.
    constraints : Constraints, optional
        Bounds, groups, exposures and cash; long-only and fully invested unless given. What is not invested is cash
        without return.
    oracle : (series, budgets, time, m), optional
        The oracle's path if it is known already; it is computed for a strategy that wants hindsight otherwise.
    progress : function of (step, steps), optional
        Called before every decision.
    """
    validate_strategy(strategy)
    array = validate_simulation_returns(returns, window)
    budgets = validate_budgets(turnover_l1)
    risk = validate_risk_aversion(risk_aversion)
    cost = validate_cost(cost_bps)
    validate_choice("budget_from", budget_from, BUDGET_FROM)
    series, time, m = array.shape
    shape = (series, len(budgets), time, m)
    if strategy.wants_hindsight:
        oracle = oracle_path(array, budgets.tolist(), risk, window) if oracle is None else oracle
        fits = getattr(oracle, "shape", None) == shape and np.isfinite(oracle).all()
        found = getattr(oracle, "shape", type(oracle).__name__)
        expect(fits, "oracle", f"finite numbers of shape {shape}", found)
    raw, held = np.full(shape, 1.0 / m), np.full(shape, 1.0 / m)
    for t in range(window, time):
        steps = slice(t - window, t)
        if progress is not None:
            progress(t - window, time - window)
        hindsight = oracle[:, :, steps].copy() if oracle is not None and strategy.wants_hindsight else None
        now = held[:, :, t - 1].copy()
        if budget_from == "drifted" and t > window:  # the first decision starts from the uniform portfolio itself
            now = drifted(now, array[:, None, t - 1])
        past = array[:, steps].copy(), held[:, :, steps].copy(), hindsight
        seen = Observation(*past, budgets.copy(), risk, t, now.copy(), cost, constraints)
        raw[:, :, t] = _answer(strategy, seen, shape)
        held[:, :, t] = _project(raw[:, :, t], now, budgets, constraints)
    return Rollout(strategy.name, raw, held, budgets, window, risk, budget_from)


def drifted(weights: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """What returns make of weights, both (..., m): s ⊙ (1 + r) / (1 + sᵀr); the same weights if nothing is left."""
    grown = weights * (1 + returns)
    cash = 1 - weights.sum(-1, keepdims=True)
    total = grown.sum(-1, keepdims=True) + np.where(np.abs(cash) > _ROUNDING, cash, 0.0)
    return np.asarray(np.divide(grown, total, out=np.array(weights, dtype=float), where=total > 0))


def validate_cost(cost_bps: float) -> float:
    """Basis points of the amount traded; a full change of the portfolio, ‖Δ‖₁ = 2, may not take all wealth."""
    return validate_positive("cost_bps", cost_bps, allow_zero=True, most=_MOST_COST_BPS)


def validate_simulation_returns(returns: ArrayLike, window: int) -> np.ndarray:
    """Real returns as an array (series, time, m) with more than `window` steps, or an `InputError`."""
    return validate_return_array(validate_real_returns(returns), window)


def validate_strategy(strategy: object) -> None:
    """Raise unless `strategy` has what the engine asks of one."""
    fits = {
        "name (text)": isinstance(getattr(strategy, "name", None), str),
        "wants_hindsight (true or false)": isinstance(getattr(strategy, "wants_hindsight", None), (bool, np.bool_)),
        "decide(observation)": callable(getattr(strategy, "decide", None)),
    }
    missing = [what for what, fit in fits.items() if not fit]
    if isinstance(strategy, type):
        name = strategy.__name__
        raise InputError(f"strategy: expected an object, found the class {name} (an object of it is {name}())")
    expect(not missing, "strategy", ", ".join(missing), f"none in {type(strategy).__name__}")


def _answer(strategy: Strategy, observation: Observation, shape: tuple[int, int, int, int]) -> np.ndarray:
    series, budgets, _, m = shape
    said = strategy.decide(observation)
    try:
        answer = as_tensor(strategy.name, said).detach().cpu().double().numpy()
    except InputError as error:
        raise InputError(f"{strategy.name}: expected an array of weights ({error})") from None
    try:
        answer = np.broadcast_to(answer, (series, budgets, m))
    except ValueError:
        expected = f"({series}, {budgets}, {m})"
        raise InputError(f"{strategy.name}: expected weights of shape {expected}, found {answer.shape}") from None
    refuse(f"{strategy.name}: expected finite weights, found {value}" for value in answer[~np.isfinite(answer)])
    largest = np.abs(answer).max()
    expect(largest <= _LARGEST, strategy.name, f"weights within {_LARGEST:g}", f"{largest:g}")
    return answer


def _project(
    raw: np.ndarray, previous: np.ndarray, budgets: np.ndarray, constraints: Constraints | None = None
) -> np.ndarray:
    """The nearest feasible weights, (series, budgets, m); an answer that is feasible to rounding stays as it is."""
    if constraints is not None:
        m, per_row = raw.shape[-1], np.broadcast_to(budgets, raw.shape[:-1]).ravel()
        return nearest_portfolio(raw.reshape(-1, m), previous.reshape(-1, m), per_row, constraints).reshape(raw.shape)
    slack = np.maximum(np.abs(raw.sum(-1) - 1), np.abs(raw - previous).sum(-1) - budgets)
    if raw.min() >= 0 and slack.max() <= _ROUNDING:
        return raw
    gamma = torch.from_numpy(budgets.copy()).expand(raw.shape[:-1])
    return np.asarray(project_portfolio(torch.from_numpy(raw.copy()), torch.from_numpy(previous.copy()), gamma))
