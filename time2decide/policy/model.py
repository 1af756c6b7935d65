"""Time2Decide: returns in, the next allocation out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from os.path import isfile  # False for a name that no file can have
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from time2decide.core.files import write_text
from time2decide.core.validation import (
    ArrayLike,
    InputError,
    expect,
    validate_choice,
    validate_positive,
)
from time2decide.data.check import check_returns, column_labels, load_history
from time2decide.data.findings import Finding, refuse_faults
from time2decide.data.terms import check_terms
from time2decide.markets.constraint_files import constraints_for
from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.oracle import RISK_AVERSION as PAPER_RISK_AVERSION
from time2decide.markets.oracle import WINDOW, oracle_path
from time2decide.markets.periods import frequency_of
from time2decide.markets.policy_config import NAMED, PolicyConfig, RecordConfig
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
from time2decide.policy.decision_record import DecisionOrigin, checked_result, with_origin
from time2decide.policy.market_decision import (
    COST_BPS,
    RISK_AVERSION,
    TARGETS,
    MarketDecision,
    MarketStrategy,
    decide_market,
)
from time2decide.policy.market_policy import MarketPolicy
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.engine import Observation, validate_cost

LEAST_ROWS = 20
SOLVERS = ("exact", "attention")
_MEMORY = 512  # rows that the oracle's path is followed over; it has forgotten its start long before
#: Names of networks that are gone, and what took their place.
REPLACED = {
    "decide": "time2decide",
    "decide-utility": "time2decide",
    "decide-blind": "time2decide-nocov",
    "repaired": "time2decide",
    "repaired-sft": "time2decide-nocov",
}
CONFIG_FILE = "policy.json"


@dataclass(frozen=True)
class Time2Decide:
    """One policy for any number of assets, turnover budget and unit of returns.

    >>> model = Time2Decide.from_pretrained()
    >>> weights = model.decide(returns, previous_weights=current, turnover_l1=0.5)
    """

    policy: MarketPolicy
    name: str = "unnamed"

    @classmethod
    def from_pretrained(cls, name_or_dir: str | Path = "market") -> Time2Decide:
        """The policy of a name (``market``, ``time2decide``, ``time2decide-nocov``) or a folder of `save_pretrained`.

        ``market`` is for tables of any kind; ``time2decide`` is the paper's setting: TimePFN forecasts, the covariance
        of the last 96 rows, no prior on means.
        """
        name = str(name_or_dir)
        if name in REPLACED and not Path(name).is_dir():
            warnings.warn(f"{name} is gone; {REPLACED[name]} took its place", DeprecationWarning, stacklevel=2)
            name = REPLACED[name]
        if name in NAMED:
            return cls(MarketPolicy(NAMED[name]), name)
        return cls(MarketPolicy(_read_config(Path(name))), name)

    @property
    def risk_aversion(self) -> float:
        """Default λ: 2, or the paper's 0.1 in its setting."""
        return RISK_AVERSION if self._has_prior else PAPER_RISK_AVERSION

    @property
    def cost_bps(self) -> float:
        """Default cost of a trade: 10 basis points, or none in the paper's setting."""
        return COST_BPS if self._has_prior else 0.0

    @property
    def _has_prior(self) -> bool:
        return self.policy.config.equilibrium + self.policy.config.equal_sharpe > 0

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the configuration of the policy to a folder, for `from_pretrained`."""
        path = Path(folder) / CONFIG_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self.policy.config), indent=2) + "\n")
        return path

    def strategy(self, name: str | None = None, target: str = "utility") -> MarketStrategy:
        """The policy as a strategy for `backtest` and `rollout`."""
        validate_choice("target", target, TARGETS)
        return MarketStrategy(self.policy, name or self.name, target=target)

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
        solver: str = "exact",
        target: str = "utility",
        accept: Sequence[str] | str = (),
    ) -> ArrayLike | pd.Series:
        """The next allocation: non-negative, of sum 1, at most `turnover_l1` away from `previous_weights`.

        Parameters
        ----------
        returns : DataFrame (dates × assets), or array (time, assets)
            Past returns, oldest first, at least 20 rows; years of them say more.
        previous_weights : (assets,), optional
            Current weights; uniform if not given. What is traded at the close of the last row counts as traded.
        turnover_l1 : float
            Budget γ in (0, 2] on ‖new − previous‖₁; 2 allows any change.
        risk_aversion : float, optional
            λ of the utility sᵀr − λ sᵀΣs per period; 2, or the paper's 0.1 for its setting, unless given.
        cost_bps : float, optional
            Cost of a trade in basis points of the amount traded; 10, or none in the paper's setting, unless given.
        constraints, benchmark : optional
            The weights are the exact maximum of μᵀs − λ (s−b)ᵀΣ(s−b) − c ‖s − previous‖₁ under the constraints, which
            are an object, or the path of a TOML or CSV file that names the columns.
        gaps : {"refuse", "keep"}
            Whether returns may be missing (NaN). Nothing is filled in. An asset with fewer than
            63 returns is not bought, one without a return on the last row is not traded, one without any in the last 21
            rows is not bought. Groups and the net exposure count assets that cannot be traded, and their
            own bounds wait. Without current weights those that can be held are equal. A Series of current weights
            may leave out assets that cannot be traded: they have 0.
        min_trade : float in [0, 1]
            Smallest trade, in weights. Assets whose optimal trade is smaller keep their weight,
            and the rest is solved again; where constraints forbid that, trades are at least this size if possible.
        delay : int
            Rows between the decision and its trade: 1 if orders are executed at the next close,
            0 if at the close of the last row. Forecasts are for, and judged on, what can be earned then.
        periods_per_year : float, optional
            Rows of returns in a year, by which forecasts and the prior reckon; as the dates of a DataFrame say by
            default, and business days without dates.
        solver : {"exact", "attention"}
            Who answers the problem: the exact solver, with a proof, or attention layers with written-down weights, near
            it; these take bounds, and no groups, exposures or cash.
        target : {"utility", "expected"}
            What to hold, or the mean of what an oracle that knows the next returns would hold, as near as the turnover
            budget allows; the latter without constraints, costs and benchmark.
        accept : names of findings
            The default policy checks returns, constraints and benchmark first (`check_returns`). A finding that stops
            is an `InputError` unless its name is among these.

        Returns
        -------
        (assets,): a Series for a DataFrame, a tensor for a tensor, else an array.
        """
        terms: dict[str, Any] = {"constraints": constraints, "cost_bps": cost_bps, "benchmark": benchmark, "gaps": gaps}
        terms |= {"min_trade": min_trade, "delay": delay, "periods_per_year": periods_per_year, "accept": accept}
        validate_choice("target", target, TARGETS)
        made = self.decision(
            returns, previous_weights, turnover_l1, risk_aversion=risk_aversion, solver=solver, **terms
        )
        weights = made.weights if target == "utility" else _expected_weights(made)
        if is_frame(returns):
            assert made.origin is not None
            return pd.Series(weights, index=column_labels(returns, made.origin.table), name="weight")
        return torch.from_numpy(weights) if isinstance(returns, Tensor) else weights

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
        solver: str = "exact",
        accept: Sequence[str] | str = (),
        findings: Sequence[Finding] | None = None,
    ) -> MarketDecision:
        """`decide` with everything that led to the answer; `findings` are those of a table that is checked already."""
        validate_choice("gaps", gaps, GAPS)
        validate_choice("solver", solver, SOLVERS)
        real = self._has_prior
        table, found = load_history(returns, gaps, accept, findings if real else ())
        array = validate_returns(returns if table is None else table.to_numpy(), LEAST_ROWS, WINDOW, gaps)
        if table is None and real and findings is None:
            found = tuple(refuse_faults(check_returns(array, "returns"), accept))
        names = None if table is None else column_labels(returns, table)
        previous_weights = with_untradable_weights(previous_weights, names, array)
        rules, m = constraints_for(constraints, names, array.shape[1]), array.shape[1]
        if rules is None:
            previous = validate_weights(previous_weights, m, names)
        else:
            previous = validate_current_weights("previous_weights", previous_weights, m, names, rules)
        frequency = frequency_of(None if table is None else table.index, periods_per_year)
        known = pd.DataFrame(array) if table is None else table
        b = None if benchmark is None else validate_any_weights("benchmark", benchmark, m, names)
        found += check_terms(known.index, rules, b, accept) if real else ()
        origin = DecisionOrigin(known, self.policy, self.name, gaps, validate_delay(delay), frequency, found)
        made = decide_market(
            self.policy,
            array,
            None if previous_weights is None else previous,
            validate_turnover(turnover_l1),
            validate_risk_aversion(self.risk_aversion if risk_aversion is None else risk_aversion),
            validate_cost(self.cost_bps if cost_bps is None else cost_bps),
            constraints=rules,
            benchmark=b,
            min_trade=validate_positive("min_trade", min_trade, allow_zero=True, most=1),
            delay=delay,
            periods_per_year=frequency.assumed,
        )
        made = with_origin(made if solver == "exact" else _by_attention(made), origin)
        return checked_result(made, accept) if real else made


def _by_attention(made: MarketDecision) -> MarketDecision:
    """The decision with the answer of the attention layers in place of the exact one."""
    from time2decide.attention.decision_head import attention_decision

    rules, m = made.constraints, len(made.weights)
    plain = not rules.limits and rules.cash == (0.0, 0.0)
    expect(plain, "solver", "exact, with groups, exposures or cash", "attention")
    lower, upper = rules.bounds(m)
    weights = attention_decision(
        made.mean,
        made.covariance,
        made.start,
        risk_aversion=made.risk_aversion,
        turnover_l1=made.turnover_l1,
        cost=made.cost_bps / 1e4 / made.days,
        benchmark=made.benchmark,
        lower=lower,
        upper=upper,
        exposure=rules.exposure,
    )
    return replace(made, weights=np.asarray(weights))


def _expected_weights(made: MarketDecision) -> np.ndarray:
    """The mean of the oracle's next step, from its path over the last rows, projected from the current weights."""
    assert made.origin is not None
    plain = made.constraints is LONG_ONLY and made.benchmark is None and not made.cost_bps
    expect(plain, "target", "utility, with constraints, costs or a benchmark", "expected")
    returns = made.origin.table.to_numpy()[None]
    window = min(WINDOW, returns.shape[1] - 1)
    recent = returns[:, -(_MEMORY + window) :]
    path = np.asarray(oracle_path(recent, [made.turnover_l1], made.risk_aversion, window))
    observation = Observation(
        returns, path[:, :, -1:], path[:, :, -1:], np.array([made.turnover_l1]), made.risk_aversion,
        delay=made.origin.delay, periods_per_year=made.origin.frequency.assumed,
    )  # fmt: skip
    answer = MarketStrategy(made.origin.policy, target="expected").decide(observation)[0, 0]
    return np.asarray(project_portfolio(answer, made.previous, made.turnover_l1))


def _read_config(folder: Path) -> PolicyConfig:
    """The configuration in a folder; anything else raises."""
    known = ", ".join(NAMED)
    expect(isfile(folder / CONFIG_FILE), "model", f"one of {known}, or a folder with {CONFIG_FILE}", f"{str(folder)!r}")
    try:
        values = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        config = PolicyConfig(**values | {"record": RecordConfig(**values["record"])})
        hash(config)
        return config
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{folder / CONFIG_FILE}: expected the configuration of a policy, found {error}") from None
