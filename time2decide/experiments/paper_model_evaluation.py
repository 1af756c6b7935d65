"""What the experiments on the literal models share: their data, their recipes, their scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from time2decide.markets import BUDGETS, RISK_AVERSION, WINDOW, LMCConfig, synthetic_oracle, synthetic_returns
from time2decide.policy.paper_training import PAPER_MODEL_PRESETS, PaperModelTraining
from time2decide.simulation.engine import Observation, Strategy, rollout
from time2decide.simulation.metrics import score

Config = dict[str, Any]
Row = dict[str, Any]
#: Sizes of a rollout by preset: series and decisions for the choice of parameters, and for the table.
SIZES: dict[str, Config] = {
    "smoke": {"recipe": "smoke", "backbone": "small", "known": [2, 4], "evaluation": [2, 4], "length": 256},
    "cpu": {"recipe": "cpu", "backbone": "small", "known": [3, 150], "evaluation": [6, 300], "length": 1024},
    "paper": {
        "recipe": "paper",
        "backbone": "runs/forecast",
        "known": [30, 928],
        "evaluation": [30, 928],
        "length": 1024,
    },
}


def recipe_of(config: Config, **changes: Any) -> PaperModelTraining:
    """The training recipe of a task."""
    return replace(PAPER_MODEL_PRESETS[config["recipe"]], market=config["market"], seed=config["seed"], **changes)


def rollout_data(config: Config, split: str, budgets: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (series, time, m) and the oracle (series, budgets, time, m) of as many series and steps as it says.

    Choices are made on the validation series after those that stopped the training.
    """
    skip = PAPER_MODEL_PRESETS[config["recipe"]].validation if split == "validation" else 0
    count, steps = config["known" if split == "validation" else "evaluation"]
    options: dict[str, Any] = {"seed": config["seed"], "config": LMCConfig(length=config["length"])}
    returns = synthetic_returns(config["market"], split, count=skip + count, **options)
    oracle = synthetic_oracle(config["market"], split, BUDGETS, count=skip + count, **options)
    chosen = [BUDGETS.index(budget) for budget in budgets]
    end = WINDOW + steps
    return returns[skip:, :end], oracle[skip:, chosen, :end]


def scored(strategy: Strategy, config: Config, split: str, budgets: list[float]) -> list[Row]:
    """Scores per budget of a rollout on its own history."""
    returns, oracle = rollout_data(config, split, budgets)
    result = rollout(returns, strategy, budgets)
    return [dict(row) for row in score(result, returns, oracle).rows()]


def teacher_forced(strategy: Strategy, config: Config, budget: float, every: int = 4) -> float:
    """MSE on the evaluation series if the past allocations were the oracle's, as in training; every few steps.

    The distance to the rollout's MSE is the price of a history of its own.
    """
    returns, oracle = rollout_data(config, "evaluation", [budget])
    steps = range(WINDOW, returns.shape[1], every)
    squared = []
    for t in steps:
        seen = slice(t - WINDOW, t)
        past = Observation(returns[:, seen], oracle[:, :, seen], None, np.array([budget]), RISK_AVERSION)
        squared.append(float(((strategy.decide(past) - oracle[:, :, t]) ** 2).mean()))
    return float(np.mean(squared))
