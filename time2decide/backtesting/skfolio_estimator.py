"""Time2Decide as an skfolio optimiser: in WalkForward, cross_val_predict and GridSearchCV, beside MeanRisk."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from skfolio.optimization import BaseOptimization
from sklearn.utils.validation import validate_data

from time2decide.core.validation import expect
from time2decide.forecasting.features import LEAST_WINDOW
from time2decide.markets.oracle import RISK_AVERSION, WINDOW
from time2decide.markets.validation import MOST_ASSETS, validate_risk_aversion, validate_turnover, validate_weights
from time2decide.policy.model import MEMORY, Time2Decide


class Time2DecidePortfolio(BaseOptimization):
    """The next allocation by a trained decision network; nothing is estimated but the forecast inside the network.

    Parameters
    ----------
    turnover_l1 : float, default=1.0
        Budget γ in (0, 2] on ‖weights_ − previous_weights‖₁, bought plus sold. It is one number for the whole
        portfolio; skfolio's `max_turnover` of MeanRisk is a bound per asset.
    risk_aversion : float, default=0.1
        λ of the utility sᵀr − λ sᵀΣs.
    model : str or Time2Decide, default="decide"
        A bundled checkpoint, a folder made by ``time2decide train decide``, or a loaded model.
    previous_weights : float, dict or array-like of shape (n_assets,), optional
        What is held now, of sum 1; equal weights if not given. Walk-forward validation passes the weights at the end
        of each fold on to the next.
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

    expected_returns_: np.ndarray

    def __init__(
        self,
        turnover_l1: float = 1.0,
        risk_aversion: float = RISK_AVERSION,
        model: str | Time2Decide = "decide",
        portfolio_params: dict[str, Any] | None = None,
        fallback: Any = None,
        previous_weights: Any = None,
        raise_on_failure: bool = True,
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

    @property
    def needs_previous_weights(self) -> bool:
        """Whether walk-forward validation has to pass on the weights: the budget is measured from them."""
        return True

    def fit(self, X: Any, y: Any = None) -> Time2DecidePortfolio:
        """Choose the weights that follow the last row of X.

        Parameters
        ----------
        X : array-like of shape (n_observations, n_assets)
            Returns, oldest first, at least 20 rows; the last 96 are forecast from, up to 512 before them tell what
            the oracle would have held.
        y : ignored
        """
        returns = validate_data(self, X, ensure_min_samples=2, ensure_min_features=2, dtype=np.float64)
        expect(len(returns) >= LEAST_WINDOW, "X", f"at least {LEAST_WINDOW} rows", len(returns))
        expect(returns.shape[1] <= MOST_ASSETS, "X", f"2 to {MOST_ASSETS} assets", returns.shape[1])
        gamma = validate_turnover(self.turnover_l1)
        risk = validate_risk_aversion(self.risk_aversion)
        previous = self._current_weights(returns.shape[1])
        model = self.model if isinstance(self.model, Time2Decide) else _loaded(str(self.model))
        weights, expected = model.decide_batch(returns[None, -(MEMORY + WINDOW) :], previous, gamma, risk)
        self.weights_, self.expected_returns_ = weights[0], expected[0]
        return self

    def _current_weights(self, assets: int) -> np.ndarray:
        """The previous weights, in the order of the columns where they have names."""
        names = getattr(self, "feature_names_in_", None)
        if isinstance(self.previous_weights, pd.Series) and names is not None:
            return validate_weights(self.previous_weights, assets, list(names))
        given = None if self.previous_weights is None else self._clean_previous_weights(assets)
        return validate_weights(given, assets)


@lru_cache(maxsize=4)
def _loaded(name: str) -> Time2Decide:
    """A checkpoint, read once: cross-validation fits hundreds of clones."""
    return Time2Decide.from_pretrained(name)
