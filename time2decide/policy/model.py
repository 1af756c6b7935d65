"""Time2Decide: returns in, the next allocation out.

One object for every trained policy: the market policy, which is the default, and the decision networks of the paper's
synthetic markets, which are strategies of the rollout engine here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from time2decide.core.checkpoints import PretrainedModel, load_checkpoint
from time2decide.core.validation import ArrayLike, expect, validate_choice, validate_positive
from time2decide.data.check import check_returns, column_labels, load_history
from time2decide.data.findings import Finding, refuse_faults
from time2decide.data.terms import check_terms
from time2decide.forecasting.features import LEAST_WINDOW, WindowFeatures, window_features
from time2decide.forecasting.market_state import MarketState
from time2decide.markets.constraint_files import constraints_for
from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.oracle import RISK_AVERSION, WINDOW, best_allocations, oracle_path
from time2decide.markets.orders import Orders
from time2decide.markets.periods import frequency_of
from time2decide.markets.portfolio import PortfolioSolution, solve_portfolio
from time2decide.markets.table_files import is_frame
from time2decide.markets.tables import GAPS
from time2decide.markets.universe import with_untradable_weights
from time2decide.markets.validation import (
    validate_any_weights,
    validate_current_weights,
    validate_delay,
    validate_returns,
    validate_risk_aversion,
    validate_turnover,
    validate_weights,
)
from time2decide.policy.decision_record import DecisionOrigin, checked_result, save_decision, with_origin
from time2decide.policy.market_decision import (
    COST_BPS,
    MarketDecision,
    MarketStrategy,
    decide_market,
    market_decision,
)
from time2decide.policy.market_decision import RISK_AVERSION as MARKET_RISK_AVERSION
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.network import HISTORY, Policy, PolicyInput, PolicyOutput
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.engine import Observation, validate_cost

PRETRAINED = {**MarketPolicy.BUNDLED, **Policy.BUNDLED}  # checkpoints by name; the first is the default
HISTORIES = ("hindsight", "own")
MEMORY = 512  # steps back that the oracle's path is followed from; it has forgotten its start long before


@dataclass(frozen=True)
class PolicyStrategy:
    """A decision network as a strategy; `history` says whose past allocations it reads."""

    policy: Policy
    history: str = "hindsight"
    name: str = "time2decide"
    features_of: Callable[[np.ndarray], WindowFeatures] = window_features

    def __post_init__(self) -> None:
        expect(self.history in HISTORIES, "history", f"one of {', '.join(HISTORIES)}", f"{self.history!r}")

    @property
    def wants_hindsight(self) -> bool:
        return self.history == "hindsight"

    def decide(self, observation: Observation) -> np.ndarray:
        return self.target(self.output(self.inputs(observation)), observation)

    def inputs(self, observation: Observation) -> PolicyInput:
        """Inputs of the network for (series · budgets) decisions."""
        history = observation.oracle_history() if self.wants_hindsight else observation.allocations
        n, k = history.shape[:2]
        return PolicyInput(
            self.features_of(observation.returns)[torch.arange(n).repeat_interleave(k)],
            _latest(history.reshape(n * k, *history.shape[2:])),
            torch.full((n * k,), float(self.wants_hindsight)),
            torch.from_numpy(np.tile(np.minimum(observation.turnover_l1, 2.0), n)).float(),
            torch.full((n * k,), observation.risk_aversion),
        )

    @torch.no_grad()
    def output(self, inputs: PolicyInput) -> PolicyOutput:
        """The network's answer, (series · budgets, m)."""
        return self.policy(inputs)

    def target(self, output: PolicyOutput, observation: Observation) -> np.ndarray:
        """The target weights of an output, (series, budgets, m)."""
        n, k, m = observation.previous.shape
        if self.policy.config.objective == "oracle":
            return output.weights.double().numpy().reshape(n, k, m)
        scores, kappa = output.scores.double().numpy(), output.curvature.double().numpy()
        sigma = observation.covariance.repeat(k, axis=0)
        curvature = 2 * observation.risk_aversion * sigma + kappa[:, None, None] * np.eye(m)
        half = np.tile(observation.turnover_l1 / 2, n).clip(max=1.0)  # every decision has its own curvature: a row each
        previous = observation.previous.reshape(n * k, 1, m)
        return best_allocations(scores[:, None], curvature, previous, half[:, None]).reshape(n, k, m)


@dataclass(frozen=True)
class NetworkForecast:
    """The network's forecast of the next returns as a forecaster for predict-then-optimise."""

    policy: Policy
    features_of: Callable[[np.ndarray], WindowFeatures] = window_features

    def __call__(self, returns: np.ndarray) -> np.ndarray:
        return self.law(returns)[0]

    @torch.no_grad()
    def law(self, returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The forecast and its standard error, (series, m) each."""
        n, _, m = returns.shape
        flat = torch.full((n, m, HISTORY), 1.0 / m)
        inputs = PolicyInput(
            self.features_of(returns), flat, torch.ones(n), torch.ones(n), torch.full((n,), RISK_AVERSION)
        )
        forecast, error = self.policy.expect(inputs)
        return forecast.double().numpy(), error.double().numpy()


def default_policy_history(policy: Policy, notes: Mapping[str, Any]) -> str:
    """The history that a network was trained to read."""
    return str(notes.get("history", "own" if policy.config.objective == "utility" else "hindsight"))


def _latest(history: np.ndarray) -> Tensor:
    """The last HISTORY allocations of histories (n, window, m), latest first, (n, m, HISTORY)."""
    return torch.from_numpy(np.ascontiguousarray(history[:, : -HISTORY - 1 : -1].swapaxes(1, 2))).float()


@dataclass(frozen=True)
class Decision:
    """One decision and what led to it; arrays are (m,).

    weights : feasible: non-negative, of sum 1, within the turnover budget of `previous`
    target : the network's answer before the budget is imposed
    forecast, forecast_error : of the next returns, and its standard error
    covariance : (m, m) empirical, of the window
    returns : (time, m) the history
    observation, inputs : what the strategy saw, and what the network read
    solution : with constraints, costs or a benchmark, the exact portfolio for the forecasts, its prices and its gap
    constraints, benchmark, cost_bps : that it was solved with
    """

    weights: np.ndarray
    previous: np.ndarray
    target: np.ndarray
    forecast: np.ndarray
    forecast_error: np.ndarray
    covariance: np.ndarray
    turnover_l1: float
    risk_aversion: float
    returns: np.ndarray = field(repr=False)
    observation: Observation = field(repr=False)
    inputs: PolicyInput = field(repr=False)
    solution: PortfolioSolution | None = field(default=None, repr=False)
    constraints: Constraints = field(default=LONG_ONLY, repr=False)
    benchmark: np.ndarray | None = field(default=None, repr=False)
    cost_bps: float = 0.0
    origin: DecisionOrigin | None = field(default=None, repr=False)

    def save(self, path: str | Path, orders: Orders | None = None, **about: str) -> Path:
        """Write a decision file (.json), which `verify_decision` and `time2decide verify` check.

        `orders` are those of `whole_shares` for this decision, if any; `about` is what is known of the data.
        """
        return save_decision(self, path, orders, **about)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found in the data that the decision was made from, and accepted."""
        return () if self.origin is None else self.origin.findings

    @property
    def start(self) -> np.ndarray:
        """Weights that the turnover budget is measured from."""
        return self.previous if self.solution is None else self.solution.problem.previous[0]

    @property
    def turnover(self) -> float:
        """‖weights − previous‖₁"""
        return float(np.abs(self.weights - self.previous).sum())

    @property
    def window(self) -> int:
        """Rows that the forecasts are made of."""
        return int(self.observation.returns.shape[1])


class Time2Decide:
    """A trained policy for any number of assets, turnover budget and unit of returns.

    >>> model = Time2Decide.from_pretrained()
    >>> weights = model.decide(returns, previous_weights=current, turnover_l1=0.5)
    """

    def __init__(
        self, policy: Policy | MarketPolicy, notes: Mapping[str, Any] | None = None, name: str = "unnamed"
    ) -> None:
        self.policy = policy.eval()
        self.notes = dict(notes or {})
        self.name = name

    @classmethod
    def from_pretrained(cls, name_or_dir: str | Path = "market") -> Time2Decide:
        """The policy of a bundled checkpoint (``market``, ``decide``, ``decide-utility``) or of a training folder."""
        policy, notes = _load(name_or_dir, {"Policy": Policy, "MarketPolicy": MarketPolicy})
        assert isinstance(policy, (Policy, MarketPolicy))
        return cls(policy, notes, str(name_or_dir))

    @property
    def risk_aversion(self) -> float:
        """Default λ: 2 for the market policy, the paper's 0.1 for the networks of its synthetic markets."""
        return MARKET_RISK_AVERSION if isinstance(self.policy, MarketPolicy) else RISK_AVERSION

    @property
    def cost_bps(self) -> float:
        """Default cost of a trade: 10 basis points for the market policy, none for the others."""
        return COST_BPS if isinstance(self.policy, MarketPolicy) else 0.0

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write ``model.safetensors`` and ``config.json`` to a folder."""
        return self.policy.save_pretrained(folder, self.notes)

    def strategy(self, history: str | None = None, name: str | None = None) -> PolicyStrategy | MarketStrategy:
        """The model as a strategy for `backtest` and `rollout`.

        `history` is whose past allocations a network of synthetic markets reads; by default the one it was trained
        for: ``own`` for a fine-tuned network and for one trained on utility, else ``hindsight``.
        """
        if isinstance(self.policy, MarketPolicy):
            return MarketStrategy(self.policy, name or "market")
        return PolicyStrategy(
            self.policy, history or default_policy_history(self.policy, self.notes), name or "time2decide"
        )

    def decide(
        self,
        returns: ArrayLike | pd.DataFrame,
        previous_weights: ArrayLike | pd.Series | None = None,
        turnover_l1: float = 1.0,
        *,
        risk_aversion: float | None = None,
        constraints: Constraints | str | Path | None = None,
        cost_bps: float | None = None,
        benchmark: ArrayLike | pd.Series | None = None,
        gaps: str = "refuse",
        min_trade: float = 0.0,
        delay: int = 1,
        periods_per_year: float | None = None,
        accept: Sequence[str] | str = (),
    ) -> ArrayLike | pd.Series:
        """The next allocation: non-negative, of sum 1, at most `turnover_l1` away from `previous_weights`.

        Parameters
        ----------
        returns : DataFrame (dates × assets), or array (time, assets)
            Past returns, oldest first, at least 20 rows. The market policy reads all of them and wants years; the
            networks of synthetic markets forecast from the last 96.
        previous_weights : (assets,), optional
            Current weights; uniform if not given. What is traded at the close of the last row counts as traded.
        turnover_l1 : float
            Budget γ in (0, 2] on ‖new − previous‖₁; 2 allows any change.
        risk_aversion : float, optional
            λ of the utility sᵀr − λ sᵀΣs per period; 2 for the market policy, 0.1 for the others unless given.
        cost_bps : float, optional
            Cost of a trade in basis points of the amount traded; 10 for the market policy, none for the others
            unless given.
        constraints, benchmark : optional
            The market policy's weights are the exact maximum of μᵀs − λ (s−b)ᵀΣ(s−b) − c ‖s − previous‖₁ under the
            constraints. So are those of the other networks where constraints, costs or a benchmark are given, with
            their forecasts as μ and the covariance of the window. Constraints are an object, or the path of a TOML or
            CSV file that names the columns.
        gaps : {"refuse", "keep"}
            Whether returns may be missing (NaN); for the market policy. Nothing is filled in. An asset with fewer than
            63 returns is not bought, one without a return on the last row is not traded, one without any in the last 21
            rows is sold outside the budget. Groups and the net exposure count assets that cannot be traded, and their
            own bounds wait. Without current weights those that can be held are equal. A Series of current weights
            may leave out assets that cannot be traded: they have 0.
        min_trade : float in [0, 1]
            Smallest trade, in weights; for the market policy. Assets whose optimal trade is smaller keep their weight,
            and the rest is solved again; where constraints forbid that, trades are at least this size if possible.
        delay : int
            Rows between the decision and its trade, for the market policy: 1 if orders are executed at the next close,
            0 if at the close of the last row. Forecasts are for, and judged on, what can be earned then.
        periods_per_year : float, optional
            Rows of returns in a year, by which the market policy reckons; as the dates of a DataFrame say by default,
            and business days without dates.
        accept : names of findings
            The market policy checks returns, constraints and benchmark first (`check_returns`). A finding that stops
            is an `InputError` unless its name is among these.

        Returns
        -------
        (assets,): a Series for a DataFrame, a tensor for a tensor, else an array.
        """
        terms: dict[str, Any] = {"constraints": constraints, "cost_bps": cost_bps, "benchmark": benchmark, "gaps": gaps}
        terms |= {"min_trade": min_trade, "delay": delay, "periods_per_year": periods_per_year, "accept": accept}
        result = self.decision(returns, previous_weights, turnover_l1, risk_aversion=risk_aversion, **terms)
        assert result.origin is not None
        if is_frame(returns):
            return pd.Series(result.weights, index=column_labels(returns, result.origin.table), name="weight")
        return torch.from_numpy(result.weights) if isinstance(returns, Tensor) else result.weights

    def decision(
        self,
        returns: ArrayLike | pd.DataFrame,
        previous_weights: ArrayLike | pd.Series | None = None,
        turnover_l1: float = 1.0,
        *,
        risk_aversion: float | None = None,
        constraints: Constraints | str | Path | None = None,
        cost_bps: float | None = None,
        benchmark: ArrayLike | pd.Series | None = None,
        gaps: str = "refuse",
        min_trade: float = 0.0,
        delay: int = 1,
        periods_per_year: float | None = None,
        accept: Sequence[str] | str = (),
        findings: Sequence[Finding] | None = None,
    ) -> Decision | MarketDecision:
        """`decide` with everything that led to the answer; `findings` are those of a table that is checked already."""
        validate_choice("gaps", gaps, GAPS)
        real = isinstance(self.policy, MarketPolicy)
        table, found = load_history(returns, gaps, accept, findings if real else ())
        array = validate_returns(returns if table is None else table.to_numpy(), LEAST_WINDOW, WINDOW, gaps)
        if table is None and real and findings is None:
            found = tuple(refuse_faults(check_returns(array, "returns"), accept))
        names = None if table is None else column_labels(returns, table)
        previous_weights = with_untradable_weights(previous_weights, names, array)
        rules, m = constraints_for(constraints, names, array.shape[1]), array.shape[1]
        if rules is None:
            previous = validate_weights(previous_weights, m, names)
        else:
            previous = validate_current_weights("previous_weights", previous_weights, m, names, rules)
        gamma = validate_turnover(turnover_l1)
        risk = validate_risk_aversion(self.risk_aversion if risk_aversion is None else risk_aversion)
        cost = validate_cost(self.cost_bps if cost_bps is None else cost_bps)
        least = validate_positive("min_trade", min_trade, allow_zero=True, most=1)
        b = None if benchmark is None else validate_any_weights("benchmark", benchmark, m, names)
        terms: dict[str, Any] = {"constraints": rules, "benchmark": b}
        frequency = frequency_of(None if table is None else table.index, periods_per_year)
        known = pd.DataFrame(array) if table is None else table
        found += check_terms(known.index, rules, b, accept) if real else ()
        origin = DecisionOrigin(known, self.policy, self.name, gaps, validate_delay(delay), frequency, found)
        if not isinstance(self.policy, MarketPolicy):
            expect(not np.isnan(array).any(), "gaps", "the market policy where returns are missing", "another policy")
            expect(not least, "min_trade", "0, or the market policy", f"{least:g} with another policy")
            return replace(self._network_decision(array, previous, gamma, risk, cost, terms), origin=origin)
        state, current = MarketState(m, frequency.assumed, delay), None if previous_weights is None else previous
        terms["min_trade"] = least
        made = decide_market(self.policy, state.extend(array), array, current, gamma, risk, cost, **terms)
        return checked_result(with_origin(made, origin), accept)

    def _network_decision(
        self, array: np.ndarray, previous: np.ndarray, gamma: float, risk: float, cost: float, terms: dict[str, Any]
    ) -> Decision:
        strategy, observation = self.strategy(), observe_histories(array[None], previous, gamma, risk)
        assert isinstance(strategy, PolicyStrategy)
        inputs = strategy.inputs(observation)
        output = strategy.output(inputs)
        forecast, solution = output.forecast[0].double().numpy(), None
        if not cost and all(term is None for term in terms.values()):
            target = strategy.target(output, observation)[0, 0]
            weights = np.asarray(project_portfolio(target, previous, gamma))
        else:
            options: dict[str, Any] = {"risk_aversion": risk, "turnover_l1": gamma, "cost": cost / 1e4, **terms}
            solution = solve_portfolio(forecast, observation.covariance[0], previous, **options)
            weights = target = solution.weights
        return Decision(
            weights=weights,
            previous=previous,
            target=target,
            forecast=forecast,
            forecast_error=output.deviation[0].double().numpy(),
            covariance=observation.covariance[0],
            turnover_l1=gamma,
            risk_aversion=risk,
            returns=array,
            observation=observation,
            inputs=inputs,
            solution=solution,
            constraints=terms["constraints"] or LONG_ONLY,
            benchmark=terms["benchmark"],
            cost_bps=cost,
        )

    def decide_batch(
        self, histories: np.ndarray, previous: np.ndarray, turnover_l1: float, risk_aversion: float, **terms: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Feasible weights and forecasts of the next returns for validated histories (n, time, m), each (n, m).

        `terms` are constraints, cost and benchmark as in `solve_portfolio`, and for the market policy the delay and
        periods a year; with any a network of synthetic markets answers exactly for its forecasts.
        """
        if isinstance(self.policy, MarketPolicy):
            cost = 1e4 * terms.pop("cost", self.cost_bps / 1e4)
            when = terms.pop("periods_per_year", frequency_of().assumed), terms.pop("delay", 1)
            states = [MarketState(history.shape[1], *when).extend(history) for history in histories]
            made = [
                market_decision(self.policy, one, previous, turnover_l1, risk_aversion, cost, **terms) for one in states
            ]
            return np.stack([one.weights for one in made]), np.stack([one.mean for one in made])
        strategy, observation = self.strategy(), observe_histories(histories, previous, turnover_l1, risk_aversion)
        assert isinstance(strategy, PolicyStrategy)
        output = strategy.output(strategy.inputs(observation))
        if terms:
            forecast = output.forecast.double().numpy()
            options = {"risk_aversion": risk_aversion, "turnover_l1": turnover_l1, **terms}
            return solve_portfolio(forecast, observation.covariance, previous, **options).weights, forecast
        target = strategy.target(output, observation)[:, 0]
        weights = np.asarray(project_portfolio(target, np.broadcast_to(previous, target.shape), turnover_l1))
        return weights, output.forecast.double().numpy()


def load_policy(name_or_dir: str | Path) -> tuple[Policy, dict[str, Any]]:
    """The network of a bundled name or of a folder, in evaluation mode, and the notes on how it was made."""
    policy, notes = _load(name_or_dir, {"Policy": Policy})
    assert isinstance(policy, Policy)
    return policy, notes


def _load(
    name_or_dir: str | Path, kinds: Mapping[str, type[PretrainedModel]]
) -> tuple[PretrainedModel, dict[str, Any]]:
    return load_checkpoint(name_or_dir, kinds, PRETRAINED)


def observe_histories(
    returns: np.ndarray, previous: np.ndarray, turnover_l1: float, risk_aversion: float
) -> Observation:
    """The observation after the last row of histories (n, time, m): windows, current weights, the oracle's paths.

    With fewer than 96 rows the window is all of them, and the oracle follows what a shorter one allows.
    """
    n, time, m = returns.shape
    window = min(WINDOW, time)
    recent = returns[:, -(MEMORY + window) :]
    estimate = min(window, max(LEAST_WINDOW // 2, recent.shape[1] - HISTORY - 1))
    path = np.full((n, 1, window, m), 1.0 / m)
    if recent.shape[1] > estimate:
        oracle = np.asarray(oracle_path(recent, [turnover_l1], risk_aversion, estimate))  # (n, 1, time, m)
        path[:, :, -min(window, oracle.shape[2]) :] = oracle[:, :, -window:]
    own = np.broadcast_to(previous, (n, 1, window, m))
    return Observation(returns[:, -window:], own, path, np.array([turnover_l1]), risk_aversion)
