"""The covariance of the market policy as an estimator by itself."""

from __future__ import annotations

import numpy as np

from time2decide.forecasting.market_state import MarketState
from time2decide.markets.estimators import LEAST_OBSERVATIONS, OnlineCovariance
from time2decide.policy.market_decision import pose
from time2decide.policy.market_policy import MarketPolicy


class MarketCovariance(OnlineCovariance):
    """Volatilities and correlations at several half-lives, mixed by the trained network."""

    def __init__(self, policy: MarketPolicy, least: int = LEAST_OBSERVATIONS) -> None:
        super().__init__(least)
        self.policy = policy

    def _start(self, m: int) -> None:
        self._rows = np.empty((0, m))
        self._state = MarketState(m)

    def _update(self, rows: np.ndarray) -> None:
        self._rows = np.vstack([self._rows, rows])
        self._state.extend(rows)

    def _estimate(self, assets: np.ndarray) -> np.ndarray:
        answer = pose(self.policy, [self._state.tokens().of_assets(assets)], risk_aversion=1.0, cost=0.0)
        return answer.covariance[0].double().numpy()

    def _forget(self, assets: np.ndarray) -> None:
        self._rows[:, assets] = np.nan
        self._state = MarketState(len(assets)).extend(self._rows)
