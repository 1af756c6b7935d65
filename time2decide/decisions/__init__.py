"""Decisions step by step: strategies, the engine that runs them on nothing but the past, scores and backtests."""

from time2decide.decisions.backtest import Backtest, backtest
from time2decide.decisions.catalogue import CATALOGUE
from time2decide.decisions.forecasters import FORECASTERS, ar1, persistence, ridge
from time2decide.decisions.intervals import with_intervals
from time2decide.decisions.literal import (
    LiteralConfig,
    LiteralDecider,
    LiteralStrategy,
    backbone_pto,
    pretrained_strategy,
)
from time2decide.decisions.literal_training import LITERAL_PRESETS, LiteralTraining, fine_tune_forecaster, train_literal
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
from time2decide.decisions.time2decide import Decision, Time2Decide

__all__ = [
    "CATALOGUE",
    "FORECASTERS",
    "LITERAL_PRESETS",
    "STRATEGIES",
    "AveragedOracle",
    "Backtest",
    "Decision",
    "LagOneOracle",
    "LiteralConfig",
    "LiteralDecider",
    "LiteralStrategy",
    "LiteralTraining",
    "Past",
    "PredictThenOptimise",
    "Rollout",
    "Score",
    "SoftForecast",
    "Strategy",
    "Time2Decide",
    "Uniform",
    "ar1",
    "backbone_pto",
    "backtest",
    "fine_tune_forecaster",
    "make_strategy",
    "oracle_rollout",
    "persistence",
    "pretrained_strategy",
    "ridge",
    "rollout",
    "score",
    "train_literal",
    "with_intervals",
]
