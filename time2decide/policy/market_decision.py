"""Decisions of the market policy: as a strategy for the rollout, and one decision with its verdict and its proof.

The *verdict* answers whether there is anything to predict in a universe: the record of each forecast, what it earned
per unit traded beside what trading costs, and what the decision would be without forecasts. `decide_market` is for
tables whose assets come and go.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from time2decide.data.findings import Finding
from time2decide.forecasting.market_state import FORECAST_WINDOW, HORIZONS
from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.oracle import best_allocations
from time2decide.markets.orders import Orders
from time2decide.markets.periods import YEAR
from time2decide.markets.portfolio import PortfolioSolution, solve_portfolio
from time2decide.markets.smallest_trade import solve_without_small_trades
from time2decide.markets.stated_problem import centred_reasons
from time2decide.markets.universe import Availability
from time2decide.markets.verdict import ForecastRecord, Verdict
from time2decide.policy.market_policy import MarketPolicy, MarketReader, PosedProblem, Seen
from time2decide.policy.trading_rate import PaperPortfolios, paper_rows, paper_step
from time2decide.simulation.engine import Observation, continues_observation, solve_observation

if TYPE_CHECKING:
    from time2decide.policy.decision_record import DecisionOrigin


from time2decide.core.validation import InputError, expect
from time2decide.markets.universe import enough_universe_assets

COST_BPS = 10.0  # default cost of a trade
RISK_AVERSION = 2.0  # default λ on real markets: a relative risk aversion of 4
_RECORDED = 504  # rows for which forecasts from a window are asked for before the first decision
_FEWEST_ERRORS = 16  # of forecasts, below which they say too little
TARGETS = ("utility", "expected")
_ANY_CHANGE = 2.0  # turnover that reaches every portfolio
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
    """A place in the rows that strategies have read: what is known there, and the next places."""

    seen: list[list[Seen]] | None = None
    after: dict[bytes, _Place] = field(default_factory=dict)


@dataclass
class SharedReading:
    """What one policy knows at the rows that several strategies read: only the first one reads them.

    Places are told apart by every byte that was read: the first window, then row by row.
    """

    most_bytes: int = 2**28  # of covariances; what comes after is not kept
    _first: _Place = field(default_factory=_Place, repr=False)
    _bytes: int = 0

    def place(self, last: _Place | None, rows: np.ndarray) -> _Place:
        """Where rows (series, time, m) lead from the last place; None is before the first row."""
        return (last or self._first).after.setdefault(rows.tobytes(), _Place())

    def keep(self, place: _Place, seen: list[list[Seen]]) -> None:
        """Remember what is known at a place, while there is room."""
        self._bytes += sum(one.covariance.nbytes for row in seen for one in row)
        if self._bytes <= self.most_bytes:
            place.seen = seen


@dataclass
class MarketStrategy:
    """A policy as a strategy; what it knows is carried forward while each observation continues the last.

    Its trading rate comes from portfolios on paper; at its first observation these decide the last rows again.
    """

    policy: MarketPolicy = field(default_factory=MarketPolicy)
    name: str = "market"
    follow: bool = True  # forecasts; without them decisions are about risk and the prior on means alone
    constraints: Constraints | None = None  # its own; those of the observation unless given
    orders: bool = True  # an asset whose weight it leaves as it is is not traded
    target: str = "utility"  # one of TARGETS: what to hold, or the mean of what an oracle will hold
    shared: SharedReading | None = field(default=None, repr=False, compare=False)  # with others of the same policy
    _last: np.ndarray | None = field(default=None, repr=False, compare=False)
    _readers: list[MarketReader] = field(default_factory=list, repr=False, compare=False)
    _unread: list[np.ndarray] = field(default_factory=list, repr=False, compare=False)  # rows not yet read
    _place: _Place | None = field(default=None, repr=False, compare=False)
    last_seen: list[Seen] = field(default_factory=list, repr=False, compare=False)  # by series
    _rows: int = field(default=0, repr=False, compare=False)  # read so far
    _papers: PaperPortfolios | None = field(default=None, repr=False, compare=False)
    _solution: PortfolioSolution | None = field(default=None, repr=False, compare=False)

    @property
    def wants_hindsight(self) -> bool:
        """The oracle's path up to the last row says where its next step starts."""
        return self.target == "expected"

    def decide(self, observation: Observation) -> np.ndarray:
        """Weights (series, budgets, m)."""
        if self.target == "expected":
            return self._expected(observation)
        if self.constraints is not None:
            observation = replace(observation, constraints=self.constraints)
        weights, self._solution = _answer(self.pose(observation), observation, self._solution)
        return weights

    def pose(self, observation: Observation, can: Availability | None = None) -> list[PosedProblem]:
        """The problems (budgets) of every series after the last row; of the assets known in `can` only."""
        going_on = continues_observation(self._last, observation.returns)
        before, count = (self._rows, self.last_seen), observation.returns.shape[1]
        self._last, self._rows = observation.returns, self._rows + 1 if going_on else count
        *replayed, seen = self._read(observation, going_on)
        if can is not None:
            *replayed, seen = [[one.of_assets(can.known, can.mature) for one in row] for row in (*replayed, seen)]
        past = observation.returns if can is None else observation.returns[..., can.known]
        rows = paper_rows(count, observation.returns.shape[2])
        if not going_on:
            self._papers = PaperPortfolios(observation.turnover_l1, observation.previous.shape)
        for row, known in [before] if going_on else zip(rows, replayed, strict=True):
            self._decide_on_paper(row, known, observation, past[:, : count + row - self._rows])
        self.last_seen, self._solution = seen, self._solution if going_on else None
        assert self._papers is not None
        return self._pose(seen, self._papers.rate(self._rows))

    def _expected(self, observation: Observation) -> np.ndarray:
        """E[s*] (series, budgets, m): the oracle's next step, averaged over the errors that forecasts had so far.

        The squared error to the oracle is least at this mean. Before there are errors, half of the changes from row to
        row stand for them.
        """
        plain = observation.constraints is None and observation.benchmark is None and not observation.cost_bps
        expect(plain, "target", "utility, with constraints, costs or a benchmark", "expected")
        posed, anchor = self.pose(observation), observation.oracle_history()[:, :, -1]
        answer = np.empty(anchor.shape)
        half = np.minimum(observation.turnover_l1, _ANY_CHANGE) / 2
        for i, (one, seen) in enumerate(zip(posed, self.last_seen, strict=True)):
            errors = seen.errors if len(seen.errors) >= _FEWEST_ERRORS else np.diff(observation.returns[i], axis=0) / 2
            drawn = np.einsum("e,em->m", one.slopes.slope[:, 0], seen.forecast[:, 0]) + errors  # (J, m)
            curvature = np.broadcast_to(
                2 * observation.risk_aversion * seen.covariance, (len(half), *seen.covariance.shape)
            )
            scenarios = np.broadcast_to(drawn, (len(half), *drawn.shape))
            start = np.broadcast_to(anchor[i][:, None], scenarios.shape)
            steps = best_allocations(scenarios, curvature, start, np.broadcast_to(half[:, None], scenarios.shape[:2]))
            answer[i] = steps.mean(1)
        return answer

    def _pose(self, seen: list[Seen], rate: np.ndarray) -> list[PosedProblem]:
        return [self.policy.pose(one, z, self.follow) for one, z in zip(seen, rate, strict=True)]

    def _decide_on_paper(self, row: int, seen: list[Seen], observation: Observation, past: np.ndarray) -> None:
        """Decide the portfolios on paper after a row, with which returns (series, time, m) end."""
        papers, step = self._papers, paper_step(observation.returns.shape[2])
        if papers is None or row < FORECAST_WINDOW or row % step:
            return
        if papers.starting(row):
            papers.start(row)
        gamma = np.minimum(step * observation.turnover_l1, _ANY_CHANGE)
        free = np.full_like(observation.turnover_l1, _ANY_CHANGE)
        for paper in papers.alive:
            paper.drift(past, row)
            now = replace(observation, current=paper.weights, turnover_l1=gamma, frozen=None, min_trade=0.0)
            posed = self._pose(seen, paper.rate.value)
            ends = _answer(posed, now, None)[0], _answer(posed, replace(now, turnover_l1=free), None, True)[0]
            traded, distance = (np.abs(end - paper.weights).sum(-1) for end in ends)
            paper.rate.update(traded, distance, step)
            paper.weights = ends[0]

    def _read(self, observation: Observation, going_on: bool) -> list[list[Seen]]:
        """What is known of every series at the rows to replay and after the last one; from another strategy if it has
        read the same rows."""
        rows = np.array(observation.returns[:, -1:] if going_on else observation.returns)  # (series, time, m)
        if not going_on:
            terms = rows.shape[-1], observation.periods_per_year, observation.delay
            self._readers, self._unread = [self.policy.reader(*terms) for _ in rows], []
        self._unread.append(rows)
        if self.shared is not None:
            self._place = self.shared.place(self._place if going_on else None, rows)
            if self._place.seen is not None:
                return self._place.seen
        unread, self._unread = np.concatenate(self._unread, axis=1), []
        wanted = [] if going_on else paper_rows(*rows.shape[1:])
        seen = [_read_rows(reader, series, wanted) for reader, series in zip(self._readers, unread, strict=True)]
        by_row = [list(row) for row in zip(*seen, strict=True)]
        if self.shared is not None and self._place is not None:
            self.shared.keep(self._place, by_row)
        return by_row


def _read_rows(reader: MarketReader, rows: np.ndarray, wanted: list[int]) -> list[Seen]:
    """What is known after the wanted rows and the last one of rows (time, m) that are read.

    Forecasts from a window are asked for in the last rows only: those that the record remembers best.
    """
    first = max(len(rows) - _RECORDED, 0)
    reader.skip(rows[:first])
    found = []
    for t in range(first, len(rows)):
        reader.read(rows[t])
        if t + 1 in wanted or t == len(rows) - 1:
            found.append(reader.seen())
    return found


def _answer(
    posed: list[PosedProblem], observation: Observation, start: PortfolioSolution | None, free_of_cost: bool = False
) -> tuple[np.ndarray, PortfolioSolution | None]:
    """Weights (series, budgets, m) of the problems of every series."""
    mean, rate = np.stack([one.mean for one in posed]), np.stack([one.rate for one in posed])
    sigma = np.stack([one.covariance for one in posed])[:, None]  # (series, 1, m, m)
    cost = 0.0 if free_of_cost else observation.cost_bps / 1e4 * rate[..., None]
    spread = np.broadcast_to(cost, observation.previous.shape)
    return solve_observation(observation, mean, sigma, cost=spread, start=start)


def market_decision(
    posed: PosedProblem,
    seen: Seen,
    policy: MarketPolicy,
    previous: np.ndarray,
    turnover_l1: float,
    risk_aversion: float = RISK_AVERSION,
    cost_bps: float = COST_BPS,
    constraints: Constraints | None = None,
    benchmark: np.ndarray | None = None,
    min_trade: float = 0.0,
) -> MarketDecision:
    """The decision for a posed problem, from validated arguments."""
    rate, sigma = float(posed.rate), posed.covariance
    terms: dict[str, Any] = {"risk_aversion": risk_aversion, "turnover_l1": turnover_l1}
    terms |= {"cost": cost_bps / 1e4 * rate, "benchmark": benchmark}
    solution, constraints = solve_without_small_trades(posed.mean, sigma, previous, min_trade, constraints, **terms)
    terms["constraints"] = constraints
    prior = policy.pose(seen, rate, follow=False).prior
    return MarketDecision(
        weights=solution.weights,
        previous=previous,
        without_forecasts=solve_portfolio(prior, sigma, previous, **terms).weights,
        mean=posed.mean,
        prior=posed.prior,
        signal=posed.signal,
        covariance=sigma,
        days=1 / rate,
        turnover_l1=turnover_l1,
        risk_aversion=risk_aversion,
        cost_bps=cost_bps,
        verdict=_verdict(policy, posed, seen, cost_bps),
        solution=solution,
        start=solution.problem.previous[0],
        constraints=constraints or LONG_ONLY,
        benchmark=benchmark,
        min_trade=min_trade,
    )


def _verdict(policy: MarketPolicy, posed: PosedProblem, seen: Seen, cost_bps: float) -> Verdict:
    made = (seen.forecast != 0).any(-1)
    slopes = posed.slopes
    records = tuple(
        ForecastRecord(
            first=first + 1,
            last=last,
            reads=reads,
            slope=float(slopes.estimate[e, h]),
            error=float(slopes.error[e, h]),
            probability=float(slopes.probability[e, h]),
            follow=float(slopes.slope[e, h]),
        )
        for e, reads in enumerate(seen.reads)
        for h, (first, last) in enumerate(HORIZONS)
        if made[e, h] and np.isfinite(slopes.error[e, h])
    )
    sharpe = policy.config.equilibrium + policy.config.equal_sharpe
    return Verdict(records, cost_bps, sharpe, prior_leads=bool(posed.prior.std() > posed.signal.std()))


def decide_market(
    policy: MarketPolicy,
    returns: np.ndarray,
    previous: np.ndarray | None,
    turnover_l1: float,
    risk_aversion: float = RISK_AVERSION,
    cost_bps: float = COST_BPS,
    constraints: Constraints | None = None,
    benchmark: np.ndarray | None = None,
    min_trade: float = 0.0,
    delay: int = 1,
    periods_per_year: float = YEAR,
) -> MarketDecision:
    """The decision after a table of returns (time, m); with gaps by the rules of `Availability`.

    Without current weights those that can be held are equal.
    """
    holes, m = bool(np.isnan(returns).any()), returns.shape[1]
    can = Availability.of(returns, previous)
    known = can.known if holes else np.ones(m, dtype=bool)
    given = known / max(known.sum(), 1) if previous is None else previous
    rules, reference = constraints, benchmark
    if holes:
        enough_universe_assets(can)
        rules, reference = can.constraints(constraints, given), can.benchmark(benchmark, given)
    among = rules.among(given, known) if holes and rules is not None else rules
    target, current = None if reference is None else reference[known], given[known][None, None, None]
    strategy = MarketStrategy(policy)
    try:
        observation = Observation(
            returns[None], current, None, np.array([turnover_l1]), risk_aversion,
            cost_bps=cost_bps, constraints=among, benchmark=target, delay=delay, periods_per_year=periods_per_year,
        )  # fmt: skip
        posed = strategy.pose(observation, can if holes else None)[0].alone()
        made = market_decision(
            posed, strategy.last_seen[0], policy, given[known], turnover_l1, risk_aversion, cost_bps,
            constraints=among, benchmark=target, min_trade=min_trade,
        )  # fmt: skip
    except InputError as error:
        raise InputError(f"{error}{_kept(can, rules, given) if holes and rules else ''}") from None
    return _over_all(made, given, can, rules, reference) if holes and rules is not None else made


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
