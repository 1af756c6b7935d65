"""Time2Decide as an skfolio optimiser: in WalkForward, cross_val_predict and GridSearchCV, beside MeanRisk."""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from skfolio.optimization import BaseOptimization
from sklearn.utils.validation import validate_data

from time2decide.core.validation import expect, validate_positive
from time2decide.markets.constraint_files import constraints_for
from time2decide.markets.constraints import Constraints
from time2decide.markets.periods import frequency_of
from time2decide.markets.validation import (
    looks_like_prices,
    validate_any_weights,
    validate_current_weights,
    validate_delay,
    validate_risk_aversion,
    validate_turnover,
    validate_weights,
)
from time2decide.policy.market_decision import decide_market
from time2decide.policy.model import LEAST_ROWS, Time2Decide
from time2decide.simulation.engine import validate_cost


class Time2DecidePortfolio(BaseOptimization):
    """The next allocation by a trained policy; `fit` estimates what the policy reads and asks it once.

    Parameters
    ----------
    turnover_l1 : float, default=1.0
        Budget γ in (0, 2] on ‖weights_ − previous_weights‖₁, bought plus sold. It is one number for the whole
        portfolio; skfolio's `max_turnover` of MeanRisk is a bound per asset.
    risk_aversion : float, optional
        λ of the utility sᵀr − λ sᵀΣs per period; 2 for the market policy and 0.1 for the others unless given.
    model : str or Time2Decide, default="market"
        A bundled checkpoint, a folder made by ``time2decide train``, or a loaded model.
    previous_weights : float, dict or array-like of shape (n_assets,), optional
        Current weights, of sum 1; equal weights if not given. Walk-forward validation passes the weights at the end
        of each fold on to the next.
    constraints : Constraints or path of a TOML or CSV file, optional
        Bounds, groups, exposures and cash; long-only and fully invested unless given. A file names the columns of X.
    cost_bps : float, optional
        Cost of trading in basis points of the amount traded; 10 for the market policy, none for the others unless
        given.
    benchmark : array-like or Series of shape (n_assets,), optional
        Risk is measured from these weights.
    min_trade : float in [0, 1], default=0.0
        Smallest trade, in weights; the market policy only.
    delay : int, default=1
        Rows between the decision and its trade, for the market policy. `WalkForward(..., purged_size=1)` trades at the
        next close, without it at the close that was decided from, which nobody can.
    periods_per_year : float, optional
        Rows of X in a year; as the dates of a DataFrame say by default, and business days without dates.
    portfolio_params, fallback, raise_on_failure
        As in every skfolio optimiser.

    Attributes
    ----------
    weights_ : ndarray of shape (n_assets,)
    expected_returns_ : ndarray of shape (n_assets,)
        The network's forecast of the next returns.

    Examples
    --------
    >>> from skfolio.model_selection import WalkForward, cross_val_predict
    >>> cross_val_predict(Time2DecidePortfolio(turnover_l1=0.5), X, cv=WalkForward(train_size=200, test_size=5))
    """

    __metadata_request__fit: ClassVar[dict[str, bool]] = {"active_mask": True}
    __metadata_request__partial_fit: ClassVar[dict[str, bool]] = {"active_mask": True}

    expected_returns_: np.ndarray
    _rows: np.ndarray  # seen since `fit`
    _dates: Any  # of the rows that `fit` read

    def __init__(
        self,
        turnover_l1: float = 1.0,
        risk_aversion: float | None = None,
        model: str | Time2Decide = "market",
        portfolio_params: dict[str, Any] | None = None,
        fallback: Any = None,
        previous_weights: Any = None,
        raise_on_failure: bool = True,
        constraints: Constraints | str | Path | None = None,
        cost_bps: float | None = None,
        benchmark: Any = None,
        min_trade: float = 0.0,
        delay: int = 1,
        periods_per_year: float | None = None,
    ) -> None:
        super().__init__(
            portfolio_params=portfolio_params,
            fallback=fallback,
            previous_weights=previous_weights,
            raise_on_failure=raise_on_failure,
        )
        self.turnover_l1 = turnover_l1
        self.risk_aversion = risk_aversion
        self.model = model
        self.constraints = constraints
        self.cost_bps = cost_bps
        self.benchmark = benchmark
        self.min_trade = min_trade
        self.delay = delay
        self.periods_per_year = periods_per_year

    @property
    def needs_previous_weights(self) -> bool:
        """Whether walk-forward validation has to pass on the weights: the budget is measured from them."""
        return True

    def fit(self, X: Any, y: Any = None, *, active_mask: Any = None) -> Time2DecidePortfolio:
        """Choose the weights that follow the last row of X.

        Parameters
        ----------
        X : array-like of shape (n_observations, n_assets)
            Returns, oldest first, at least 20 rows; NaN where there is none (see `Time2Decide.decide`, gaps).
        y : ignored
        active_mask : array-like of bool, of the shape of X, optional
            False where an asset is not listed: its return there is taken as missing. Routed as metadata.
        """
        for name in ("_rows", "_dates"):
            if hasattr(self, name):
                delattr(self, name)
        return self._update(X, active_mask)

    def partial_fit(self, X: Any, y: Any = None, *, active_mask: Any = None) -> Time2DecidePortfolio:
        """Read new rows of X, which follow those before, and choose the weights that follow the last one.

        The answer is that of `fit` on all rows. `previous_weights` are those of the estimator, set by walk-forward
        validation (`online_predict`).
        """
        online = self.fallback is None or (isinstance(self.fallback, str) and self.fallback == "previous_weights")
        expect(online, "fallback", "None or 'previous_weights' with partial_fit", type(self.fallback).__name__)
        return self._update(X, active_mask)

    def _update(self, X: Any, active_mask: Any) -> Time2DecidePortfolio:
        """Take the rows of X, then decide."""
        first = not hasattr(self, "_rows")
        checks: dict[str, Any] = {"ensure_min_features": 2, "dtype": np.float64, "ensure_all_finite": "allow-nan"}
        dates = X.index if first and isinstance(X, pd.DataFrame) else getattr(self, "_dates", None)
        when = frequency_of(dates, self.periods_per_year).assumed, validate_delay(self.delay)
        new = validate_data(self, X, reset=first, ensure_min_samples=2 if first else 1, **checks)
        if active_mask is not None:
            active = np.asarray(active_mask, dtype=bool)
            expect(active.shape == new.shape, "active_mask", f"shape {new.shape} as X", active.shape)
            new = np.where(active, new, np.nan)
        expect(not np.isinf(new).any(), "X", "finite returns, or NaN where there is none", "inf")
        rows = new if first else np.concatenate([self._rows, new])
        seen = rows[~np.isnan(rows)]
        if seen.size and looks_like_prices(seen):
            found = f"what look like prices (median {np.median(seen):g})"
            warnings.warn(f"X: expected returns, found {found}", stacklevel=3)
        expect(len(rows) >= LEAST_ROWS, "X", f"at least {LEAST_ROWS} rows", len(rows))
        gamma = validate_turnover(self.turnover_l1)
        model = self.model if isinstance(self.model, Time2Decide) else _loaded(str(self.model))
        risk = validate_risk_aversion(model.risk_aversion if self.risk_aversion is None else self.risk_aversion)
        m = new.shape[1]
        cost, constraints, benchmark = self._terms(m, model)
        previous = self._current_weights(m, constraints)
        least = validate_positive("min_trade", self.min_trade, allow_zero=True, most=1)
        current = None if self.previous_weights is None else previous
        terms: dict[str, Any] = {"constraints": constraints, "benchmark": benchmark, "min_trade": least}
        terms |= {"periods_per_year": when[0], "delay": when[1]}
        made = decide_market(model.policy, rows, current, gamma, risk, cost, **terms)
        self.weights_, self.expected_returns_ = made.weights, made.mean
        self._rows, self._dates = rows, dates
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _terms(self, assets: int, model: Time2Decide) -> tuple[float, Constraints | None, np.ndarray | None]:
        """Cost in basis points, constraints and benchmark for the exact solver."""
        names = list(map(str, getattr(self, "feature_names_in_", [f"asset {i}" for i in range(assets)])))
        cost = validate_cost(model.cost_bps if self.cost_bps is None else self.cost_bps)
        constraints = constraints_for(self.constraints, getattr(self, "feature_names_in_", None), assets)
        benchmark = self.benchmark
        if benchmark is not None:
            benchmark = validate_any_weights("benchmark", benchmark, assets, names)
        return cost, constraints, benchmark

    def _current_weights(self, assets: int, constraints: Constraints | None) -> np.ndarray:
        """The previous weights, in the order of the columns where they have names."""
        weights = self.previous_weights
        names = list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        if weights is not None and not isinstance(weights, pd.Series):
            weights = self._clean_previous_weights(assets)
        if constraints is not None:  # these may allow cash and short positions
            return validate_current_weights("previous_weights", weights, assets, names, constraints)
        return validate_weights(weights, assets, names)


@lru_cache(maxsize=4)
def _loaded(name: str) -> Time2Decide:
    """A checkpoint, read once: cross-validation fits hundreds of clones."""
    return Time2Decide.from_pretrained(name)
