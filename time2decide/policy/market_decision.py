"""Decisions of the market policy: as a strategy for the rollout, and one decision with its verdict and its proof.

The *verdict* answers whether there is anything to predict in a universe: the record of each forecast, what it earned
per unit traded beside what trading costs, and what the decision would be without forecasts. `decide_market` is for
tables whose assets come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from time2decide.data.findings import Finding
from time2decide.forecasting.market_state import EXPERTS, READS, MarketState, MarketTokens
from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.orders import Orders
from time2decide.markets.portfolio import PortfolioSolution, solve_portfolio
from time2decide.markets.smallest_trade import solve_without_small_trades
from time2decide.markets.stated_problem import centred_reasons
from time2decide.markets.universe import Availability
from time2decide.markets.verdict import ForecastRecord, Verdict
from time2decide.policy.market_policy import MarketBatch, MarketOutput, MarketPolicy
from time2decide.simulation.engine import Observation, continues_observation, solve_observation

if TYPE_CHECKING:
    from time2decide.policy.decision_record import DecisionOrigin


from time2decide.core.validation import InputError
from time2decide.markets.universe import enough_universe_assets

COST_BPS = 10.0  # default cost of a trade
RISK_AVERSION = 2.0  # default λ on real markets: a relative risk aversion of 4
_SAME = 1e-12  # weights that differ by less are the same: each solution takes the rounding out of their sum


@dataclass(frozen=True)
class MarketDecision:
    """One decision of the market policy and what led to it; arrays are (m,).

    weights : feasible and optimal for the problem that the policy posed; `solution` has the proof
    previous : current weights
    without_forecasts : weights of the same problem if no forecast is followed
    mean : expected returns per day; prior, signal: its two parts
    covariance : (m, m)
    days : over which the cost of a trade is spread
    start : weights that the turnover budget is measured from: `previous`, without its rounding
    constraints : those that were solved under; assets that cannot be traded, or whose trade is too small, are fixed
        in them
    min_trade : smallest trade; 0 for any
    benchmark : weights that risk is measured from, if any
    availability : what can be done with each asset, if the table has gaps; numbers of unknown assets are 0 then
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
    start: np.ndarray = field(repr=False)
    constraints: Constraints = field(repr=False)
    benchmark: np.ndarray | None = field(default=None, repr=False)
    availability: Availability | None = None
    min_trade: float = 0.0
    origin: DecisionOrigin | None = field(default=None, repr=False)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found in the data that the decision was made from, and accepted."""
        return () if self.origin is None else self.origin.findings

    @property
    def turnover(self) -> float:
        """‖weights − previous‖₁"""
        return float(np.abs(self.weights - self.previous).sum())

    @property
    def untraded(self) -> np.ndarray:
        """Assets that could be traded and keep their weight because their trade is too small, (m,) bool."""
        lower, upper = self.constraints.bounds(len(self.weights))
        halted = False if self.availability is None else self.availability.fixed
        kept = (lower == upper) & (np.abs(lower - self.start) <= _SAME)
        return np.asarray(kept & ~halted & (self.min_trade > 0))

    @property
    def forecast(self) -> np.ndarray:
        """Expected returns per day, as other decisions call them."""
        return self.mean

    @property
    def reasons_bps(self) -> dict[str, np.ndarray]:
        """Marginal utility a day of each asset beside the target portfolio, in basis points, by part.

        g − avg(g) for the gradient g of each part of the solved utility at the target weights w; risk is measured
        from the benchmark b: −2λΣ(w − b). The average is over the weights that no bound holds. By optimality the sum
        of the parts is greater for what is bought than for what is sold, by twice the daily cost and the price of
        turnover, limits on groups apart. Assets about which nothing is known have 0.
        """
        active = self.weights if self.benchmark is None else self.weights - self.benchmark
        risk = -2 * self.risk_aversion * self.covariance @ active
        known = None if self.availability is None else self.availability.known
        parts = {"prior": self.prior, "forecast": self.signal, "risk": risk}
        return centred_reasons(parts, self.weights, self.constraints, known)

    def save(self, path: str | Path, orders: Orders | None = None, **about: str) -> Path:
        """Write a decision file (.json), which `verify_decision` and `time2decide verify` check.

        `orders` are those of `whole_shares` for this decision, if any; `about` is what is known of the data.
        """
        from time2decide.policy.decision_record import save_decision

        return save_decision(self, path, orders, **about)


@dataclass
class _Place:
    """A place in the rows that strategies have read: the policy's answers there, by its terms, and the next places."""

    answers: dict[tuple[float, ...], MarketOutput] = field(default_factory=dict)
    after: dict[bytes, _Place] = field(default_factory=dict)


@dataclass
class SharedAnswers:
    """Answers of one policy for strategies that read the same rows: only the first one asks the policy.

    Places are told apart by every byte that was read: the first window, then row by row.
    """

    most_bytes: int = 2**28  # of covariances; what comes after is not kept
    _first: _Place = field(default_factory=_Place, repr=False)
    _bytes: int = 0

    def place(self, last: _Place | None, rows: np.ndarray) -> _Place:
        """Where rows (series, time, m) lead from the last place; None is before the first row."""
        return (last or self._first).after.setdefault(rows.tobytes(), _Place())

    def keep(self, place: _Place, terms: tuple[float, ...], answer: MarketOutput) -> None:
        """Remember an answer, while there is room."""
        self._bytes += answer.covariance.nbytes
        if self._bytes <= self.most_bytes:
            place.answers[terms] = answer


@dataclass
class MarketStrategy:
    """The market policy as a strategy; its state is carried forward while each observation continues the last."""

    policy: MarketPolicy
    name: str = "market"
    follow: bool = True  # forecasts; without them decisions are about risk and the prior on means alone
    constraints: Constraints | None = None  # its own; those of the observation unless given
    wants_hindsight: bool = False
    orders: bool = True  # an asset whose weight it leaves as it is is not traded
    shared: SharedAnswers | None = field(default=None, repr=False, compare=False)  # with others of the same policy
    _last: np.ndarray | None = field(default=None, repr=False, compare=False)
    _states: list[MarketState] = field(default_factory=list, repr=False, compare=False)
    _unread: list[np.ndarray] = field(default_factory=list, repr=False, compare=False)  # rows not yet in the states
    _place: _Place | None = field(default=None, repr=False, compare=False)
    _solution: PortfolioSolution | None = field(default=None, repr=False, compare=False)

    def decide(self, observation: Observation) -> np.ndarray:
        """Weights (series, budgets, m)."""
        going_on = continues_observation(self._last, observation.returns)
        self._last = observation.returns
        cost = observation.cost_bps / 1e4
        answer = self._answer(observation, going_on, cost)
        mean = (answer.mean if self.follow else answer.prior)[:, None].double().numpy()  # (series, 1, m)
        sigma = answer.covariance[:, None].double().numpy()
        sigma = (sigma + sigma.swapaxes(-1, -2)) / 2  # as in `market_decision`
        daily_cost = cost / answer.days[:, None, None].double().numpy()
        if self.constraints is not None:
            observation = replace(observation, constraints=self.constraints)
        weights, self._solution = solve_observation(
            observation,
            mean,
            sigma,
            cost=np.broadcast_to(daily_cost, observation.previous.shape),
            start=self._solution if going_on else None,
        )
        return weights

    def _answer(self, observation: Observation, going_on: bool, cost: float) -> MarketOutput:
        """The problem that the policy poses after the last row; from the others of the same policy if they have it."""
        rows = np.array(observation.returns[:, -1:] if going_on else observation.returns)  # (series, time, m)
        if not going_on:
            known = rows.shape[-1], observation.periods_per_year, observation.delay
            self._states, self._unread = [MarketState(*known) for _ in rows], []
        self._unread.append(rows)
        terms = observation.risk_aversion, cost, observation.periods_per_year, observation.delay
        if self.shared is not None:
            self._place = self.shared.place(self._place if going_on else None, rows)
            if terms in self._place.answers:
                return self._place.answers[terms]
        answer = pose_market_problem(self.policy, self._read(observation), observation.risk_aversion, cost)
        if self.shared is not None and self._place is not None:
            self.shared.keep(self._place, terms, answer)
        return answer

    def _read(self, observation: Observation) -> list[MarketTokens]:
        """The tokens after the last row of an observation: what the states have not read yet goes into them."""
        unread = np.concatenate(self._unread, axis=1)
        assert unread.shape[-1] == observation.returns.shape[-1]
        for state, series in zip(self._states, unread, strict=True):
            state.extend(series)
        self._unread = []
        return [state.tokens() for state in self._states]


@torch.no_grad()
def pose_market_problem(
    policy: MarketPolicy, tokens: Sequence[MarketTokens], risk_aversion: float, cost: float
) -> MarketOutput:
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
    can: Availability | None = None,
    constraints: Constraints | None = None,
    benchmark: np.ndarray | None = None,
    min_trade: float = 0.0,
) -> MarketDecision:
    """The decision after the last row of a state, from validated arguments.

    `can` says which assets it is about, in a table with gaps; `previous`, constraints and benchmark are theirs only.
    """
    tokens, cost = state.tokens(), cost_bps / 1e4
    tokens = tokens if can is None else tokens.of_assets(can.mature)
    answer = pose_market_problem(policy, [tokens], risk_aversion, cost)
    mean, prior, sigma = (part[0].double().numpy() for part in (answer.mean, answer.prior, answer.covariance))
    sigma = (sigma + sigma.T) / 2  # float32 rounds the two halves apart
    if can is not None:
        mean, prior, sigma = with_mean_assets(mean, prior, sigma, can.mature[can.known])
    days = float(answer.days[0])
    terms: dict[str, Any] = {"risk_aversion": risk_aversion, "turnover_l1": turnover_l1, "cost": cost / days}
    terms["benchmark"] = benchmark
    solution, constraints = solve_without_small_trades(mean, sigma, previous, min_trade, constraints, **terms)
    terms["constraints"] = constraints
    return MarketDecision(
        weights=solution.weights,
        previous=previous,
        without_forecasts=solve_portfolio(prior, sigma, previous, **terms).weights,
        mean=mean,
        prior=prior,
        signal=mean - prior,
        covariance=sigma,
        days=days,
        turnover_l1=turnover_l1,
        risk_aversion=risk_aversion,
        cost_bps=cost_bps,
        verdict=_verdict(policy, tokens, answer, cost_bps),
        solution=solution,
        start=solution.problem.previous[0],
        constraints=constraints or LONG_ONLY,
        benchmark=benchmark,
        min_trade=min_trade,
    )


def with_mean_assets(
    mean: np.ndarray, prior: np.ndarray, sigma: np.ndarray, mature: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, their prior and Σ of the `mature` assets (m,) bool, and of others that count as a mean asset of these.

    Such an asset moves as the equally weighted portfolio of the mature, with noise of its own up to their mean
    variance; its mean is their mean prior.
    """
    if mature.all():
        return mean, prior, sigma
    to = np.where(mature[:, None], np.eye(len(mature))[:, mature], 1.0 / mature.sum())  # (m, mature)
    whole, expected = to @ sigma @ to.T, to @ prior
    whole[np.diag_indices(len(mature))] = np.where(mature, whole.diagonal(), sigma.diagonal().mean())
    expected[mature], (signal := np.zeros(len(mature)))[mature] = prior, mean - prior
    return expected + signal, expected, whole


def _verdict(policy: MarketPolicy, tokens: MarketTokens, answer: MarketOutput, cost_bps: float) -> Verdict:
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
    sharpe = policy.config.equilibrium + policy.config.equal_sharpe
    leads = bool(answer.prior[0].std() > (answer.mean - answer.prior)[0].std())
    return Verdict(records, cost_bps, sharpe, prior_leads=leads)


def decide_market(
    policy: MarketPolicy,
    state: MarketState,
    returns: np.ndarray,
    previous: np.ndarray | None,
    turnover_l1: float,
    risk_aversion: float = RISK_AVERSION,
    cost_bps: float = COST_BPS,
    constraints: Constraints | None = None,
    benchmark: np.ndarray | None = None,
    min_trade: float = 0.0,
) -> MarketDecision:
    """The decision for a table (time, m) that `state` has read; with gaps by the rules of `Availability`.

    Without current weights those that can be held are equal.
    """
    holes, m = bool(np.isnan(returns).any()), returns.shape[1]
    can = Availability.of(returns, previous)
    known = can.known if holes else np.ones(m, dtype=bool)
    given = known / max(known.sum(), 1) if previous is None else previous
    terms: dict[str, Any] = {"turnover_l1": turnover_l1, "risk_aversion": risk_aversion, "cost_bps": cost_bps}
    terms["min_trade"] = min_trade
    if not holes:
        return market_decision(policy, state, given, **terms, constraints=constraints, benchmark=benchmark)
    enough_universe_assets(can)
    rules, reference = can.constraints(constraints, given), can.benchmark(benchmark, given)
    terms |= {"can": can, "constraints": rules.among(given, known)}
    terms["benchmark"] = None if reference is None else reference[known]
    try:
        made = market_decision(policy, state, given[known], **terms)
    except InputError as error:
        raise InputError(f"{error}{_kept(can, rules, given)}") from None
    return _over_all(made, given, can, rules, reference)


def _over_all(
    made: MarketDecision,
    start: np.ndarray,
    can: Availability,
    rules: Constraints,
    reference: np.ndarray | None,
) -> MarketDecision:
    """A decision about the known assets as one about all: the others keep the weights of `start`."""
    m, known = len(start), can.known

    def whole(part: np.ndarray, rest: np.ndarray | float = 0.0) -> np.ndarray:
        full = np.broadcast_to(rest, (m,)).copy()
        full[known] = part
        return full

    covariance = np.zeros((m, m))
    covariance[np.ix_(known, known)] = made.covariance
    lower, upper = map(whole, made.constraints.bounds(int(known.sum())), rules.bounds(m))  # small trades are fixed
    return replace(
        made,
        weights=whole(made.weights, start),
        previous=start,
        start=whole(made.start, start),
        without_forecasts=whole(made.without_forecasts, start),
        covariance=covariance,
        constraints=replace(rules, lower=lower, upper=upper),
        benchmark=reference,
        availability=can,
        mean=whole(made.mean),
        prior=whole(made.prior),
        signal=whole(made.signal),
    )


def _kept(can: Availability, rules: Constraints, start: np.ndarray) -> str:
    """Which weights could not be changed, for an error about constraints."""
    held = np.flatnonzero(can.fixed & (start != 0))
    names = rules.assets or tuple(f"asset {i}" for i in range(len(start)))
    kept = ", ".join(f"{names[i]} {start[i]:g}" for i in held[:8]) + (" and others" if len(held) > 8 else "")
    return f" (weights that cannot be traded: {kept})" if held.size else ""
