"""Decisions of the market policy: as a strategy for the rollout, and one decision with its verdict and its proof.

The *verdict* answers whether there is anything to predict in a universe: the record of each forecast, what it earned
per unit traded beside what trading costs, and what the decision would be without forecasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from time2decide.core.validation import expect
from time2decide.forecasting.market_state import EXPERTS, READS, MarketState, MarketTokens
from time2decide.markets.constraints import Constraints
from time2decide.markets.portfolio import PortfolioSolution, solve_portfolio
from time2decide.policy.market_policy import MarketBatch, MarketOutput, MarketPolicy
from time2decide.simulation.decisions import solve_observation
from time2decide.simulation.engine import Observation, continues

COST_BPS = 10.0  # of a trade, unless told
RISK_AVERSION = 5.0  # λ of the market policy, unless told
_NORMAL = 1.96  # standard errors of a 95 % interval
_DELISTED, _ENOUGH = 21, 63  # rows without a return that mean delisted; returns that an asset must have to be bought
_FOLLOWED = 0.07  # probability from which the verdict speaks of a forecast that pays


@dataclass(frozen=True)
class ForecastRecord:
    """The record of one forecast out of sample.

    days : that it is for
    reads : what it is made from: each asset's own past and residuals, all assets, or the kernel bank
    slope, t_value : of what came on what was forecast
    worth_bps, worth_error_bps : gain per unit traded of a long-short portfolio along it, and its standard error
    probability : that this is the forecast that pays for its costs
    follow : factor by which it enters the decision
    """

    days: int
    reads: str
    slope: float
    t_value: float
    worth_bps: float
    worth_error_bps: float
    probability: float
    follow: float

    @property
    def interval_bps(self) -> tuple[float, float]:
        """95 % interval of `worth_bps`."""
        half = _NORMAL * self.worth_error_bps
        return self.worth_bps - half, self.worth_bps + half


@dataclass(frozen=True)
class Verdict:
    """Is there anything to predict here, net of costs?"""

    records: tuple[ForecastRecord, ...]
    cost_bps: float

    @property
    def probability(self) -> float:
        """That any of the forecasts pays for its costs."""
        return float(sum(record.probability for record in self.records))

    @property
    def best(self) -> ForecastRecord:
        """The forecast with the greatest probability to pay; where none pays, the one with the best record."""
        if self.probability < _FOLLOWED:
            made = [record for record in self.records if record.worth_error_bps > 0] or list(self.records)
            return max(made, key=lambda record: record.worth_bps / max(record.worth_error_bps, 1e-9))
        return max(self.records, key=lambda record: record.probability)

    @property
    def text(self) -> str:
        """One sentence for a person."""
        best = self.best
        low, high = best.interval_bps
        days = "the next day" if best.days == 1 else f"the next {best.days} days"
        worth = f"{best.worth_bps:.1f} bp per unit traded so far (95 %: {low:.1f} to {high:.1f})"
        if self.probability < _FOLLOWED:
            return f"Nothing to predict here, so this is about risk only: the best forecast, of {days}, earned {worth}."
        against = f"trading costs {self.cost_bps:g} bp"
        return f"Forecasts of {days} earned {worth}, {against}: followed at {best.follow:.0%}."


@dataclass(frozen=True)
class Availability:
    """What can be done with each asset of a table with gaps, (m,) bool each.

    delisted : no return in the last 21 rows; it is sold, and the proceeds go to the others in proportion
    halted : no return on the last row; its weight stays
    young : fewer than 63 returns; it is not bought, and what is held of it stays
    """

    delisted: np.ndarray
    halted: np.ndarray
    young: np.ndarray

    @classmethod
    def of(cls, returns: np.ndarray) -> Availability:
        """From returns (time, m) with NaN where there are none."""
        seen = np.isfinite(returns)
        delisted = ~seen[-_DELISTED:].any(axis=0)
        return cls(delisted, ~seen[-1] & ~delisted, (seen.sum(axis=0) < _ENOUGH) & ~delisted)

    @property
    def known(self) -> np.ndarray:
        """Assets that a decision is about."""
        return ~(self.delisted | self.young)

    def after_sales(self, previous: np.ndarray) -> np.ndarray:
        """Current weights after delisted assets are sold and the proceeds spread over those that can be traded."""
        open_ = self.known & ~self.halted
        held = np.where(open_, previous, 0.0)
        share = held / held.sum() if held.sum() > 0 else open_ / open_.sum()
        return np.asarray(np.where(self.delisted, 0.0, previous) + share * previous[self.delisted].sum())


@dataclass(frozen=True)
class MarketDecision:
    """One decision of the market policy and what led to it; arrays are (m,).

    weights : feasible and optimal for the problem that the policy posed; `solution` has the proof
    previous : current weights
    without_forecasts : weights of the same problem if no forecast is followed
    mean : expected returns per day; prior, signal: its two parts
    covariance : (m, m)
    days : over which the cost of a trade is spread
    forced : turnover that delisted assets force, outside the budget
    availability : what can be done with each asset, if the table has gaps; elsewhere numbers of unknown assets are 0
    """

    weights: np.ndarray
    previous: np.ndarray
    without_forecasts: np.ndarray
    mean: np.ndarray
    prior: np.ndarray
    signal: np.ndarray
    covariance: np.ndarray
    days: float
    turnover_l1: float
    risk_aversion: float
    cost_bps: float
    verdict: Verdict
    solution: PortfolioSolution = field(repr=False)
    forced: float = 0.0
    availability: Availability | None = None

    @property
    def turnover(self) -> float:
        """‖weights − previous‖₁"""
        return float(np.abs(self.weights - self.previous).sum())

    @property
    def forecast(self) -> np.ndarray:
        """Expected returns per day, as other decisions call them."""
        return self.mean


@dataclass
class MarketStrategy:
    """The market policy as a strategy; its state is carried forward while each observation continues the last."""

    policy: MarketPolicy
    name: str = "market"
    follow: bool = True  # forecasts; without them decisions are about risk and the prior on means alone
    constraints: Constraints | None = None  # its own; those of the observation unless given
    wants_hindsight: bool = False
    _last: np.ndarray | None = field(default=None, repr=False, compare=False)
    _states: list[MarketState] = field(default_factory=list, repr=False, compare=False)
    _solution: PortfolioSolution | None = field(default=None, repr=False, compare=False)

    def decide(self, observation: Observation) -> np.ndarray:
        """Weights (series, budgets, m)."""
        going_on = continues(self._last, observation.returns)
        if going_on:
            for state, series in zip(self._states, observation.returns, strict=True):
                state.update(series[-1])
        else:
            self._states = [MarketState(series.shape[1]).extend(series) for series in observation.returns]
        self._last = observation.returns
        tokens = [state.tokens() for state in self._states]
        cost = observation.cost_bps / 1e4
        answer = pose(self.policy, tokens, observation.risk_aversion, cost)
        mean = (answer.mean if self.follow else answer.prior)[:, None].double().numpy()  # (series, 1, m)
        sigma = answer.covariance[:, None].double().numpy()
        spread = cost / answer.days[:, None, None].double().numpy()
        if self.constraints is not None:
            observation = replace(observation, constraints=self.constraints)
        weights, self._solution = solve_observation(
            observation,
            mean,
            sigma,
            cost=np.broadcast_to(spread, observation.previous.shape),
            start=self._solution if going_on else None,
        )
        return weights


@torch.no_grad()
def pose(policy: MarketPolicy, tokens: Sequence[MarketTokens], risk_aversion: float, cost: float) -> MarketOutput:
    """The portfolio problem that the policy poses after each of the tokens."""
    answer: MarketOutput = policy(MarketBatch.of(tokens, risk_aversion, cost))
    return answer


def market_decision(
    policy: MarketPolicy,
    state: MarketState,
    previous: np.ndarray,
    turnover_l1: float,
    risk_aversion: float = RISK_AVERSION,
    cost_bps: float = COST_BPS,
    known: np.ndarray | None = None,
    **options: Any,
) -> MarketDecision:
    """The decision after the last row of a state, from validated arguments; `options` are `solve_portfolio`'s.

    `known` (m,) says which assets it is about; `previous` then has theirs only.
    """
    tokens, cost = state.tokens(), cost_bps / 1e4
    tokens = tokens if known is None else tokens.of_assets(known)
    answer = pose(policy, [tokens], risk_aversion, cost)
    mean, prior, sigma = (part[0].double().numpy() for part in (answer.mean, answer.prior, answer.covariance))
    days = float(answer.days[0])
    given = {"risk_aversion": risk_aversion, "turnover_l1": turnover_l1, "cost": cost / days, **options}
    solution = solve_portfolio(mean, sigma, previous, **given)
    return MarketDecision(
        weights=solution.weights,
        previous=previous,
        without_forecasts=solve_portfolio(prior, sigma, previous, **given).weights,
        mean=mean,
        prior=prior,
        signal=mean - prior,
        covariance=sigma,
        days=days,
        turnover_l1=turnover_l1,
        risk_aversion=risk_aversion,
        cost_bps=cost_bps,
        verdict=_verdict(tokens, answer, cost_bps),
        solution=solution,
    )


def market_decision_with_gaps(
    policy: MarketPolicy,
    returns: np.ndarray,
    previous: np.ndarray | None,
    turnover_l1: float,
    risk_aversion: float = RISK_AVERSION,
    cost_bps: float = COST_BPS,
) -> MarketDecision:
    """The decision for a table (time, m) with gaps, by the rules of `Availability`; long-only and fully invested."""
    can, m = Availability.of(returns), returns.shape[1]
    known = can.known
    expect((known & ~can.halted).sum() >= 2, "returns", f"2 assets with {_ENOUGH} returns and one today", "fewer")
    given = np.where(known, 1.0, 0.0) / known.sum() if previous is None else previous
    start = can.after_sales(given)
    fixed = can.halted[known]
    bounds = Constraints(
        lower=np.where(fixed, start[known], 0.0),
        upper=np.where(fixed, start[known], np.inf),
        exposure=float(start[known].sum()),
    )
    state = MarketState(m).extend(returns)
    options: dict[str, Any] = {"constraints": bounds, "known": known}
    made = market_decision(policy, state, start[known], turnover_l1, risk_aversion, cost_bps, **options)

    def whole(part: np.ndarray, rest: np.ndarray | float = 0.0) -> np.ndarray:
        full = np.broadcast_to(rest, (m,)).copy()
        full[known] = part
        return full

    covariance = np.zeros((m, m))
    covariance[np.ix_(known, known)] = made.covariance
    return replace(
        made,
        weights=whole(made.weights, start),
        previous=given,
        without_forecasts=whole(made.without_forecasts, start),
        covariance=covariance,
        forced=float(np.abs(start - given).sum()),
        availability=can,
        mean=whole(made.mean),
        prior=whole(made.prior),
        signal=whole(made.signal),
    )


def _verdict(tokens: MarketTokens, answer: MarketOutput, cost_bps: float) -> Verdict:
    records = tuple(
        ForecastRecord(
            days=days,
            reads=READS[e],
            slope=float(tokens.slope[e]),
            t_value=float(tokens.t_value[e]),
            worth_bps=1e4 * float(tokens.worth[e]),
            worth_error_bps=1e4 * float(tokens.worth_error[e]),
            probability=float(answer.probability[0, e]),
            follow=float(answer.follow[0, e]),
        )
        for e, days in enumerate(EXPERTS)
    )
    return Verdict(records, cost_bps)
