"""Decisions step by step: strategies, the engine that runs them on nothing but the past, scores and backtests."""

from time2decide.decisions.backtest import Backtest, backtest
from time2decide.decisions.forecasters import FORECASTERS, ar1, persistence, ridge
from time2decide.decisions.metrics import Score, score
from time2decide.decisions.rollout import Past, Rollout, Strategy, rollout
from time2decide.decisions.strategies import (
    STRATEGIES,
    AveragedOracle,
    LagOneOracle,
    PredictThenOptimise,
    SoftForecast,
    Uniform,
    make_strategy,
    oracle_rollout,
)

__all__ = [
    "FORECASTERS",
    "STRATEGIES",
    "AveragedOracle",
    "Backtest",
    "LagOneOracle",
    "Past",
    "PredictThenOptimise",
    "Rollout",
    "Score",
    "SoftForecast",
    "Strategy",
    "Uniform",
    "ar1",
    "backtest",
    "make_strategy",
    "oracle_rollout",
    "persistence",
    "ridge",
    "rollout",
    "score",
]
