"""Why predict-then-optimise on clean returns is better here than in the paper: what the backbone knows of small inputs.

TimePFN adds 1e-4 to the variance of a window before it divides by its root. Clean returns have variances near 2e-5, so
they reach the encoder shrunk to less than half; noisy ones have 1e-4 from the noise alone. A backbone that was
pretrained on series of unit variance has never seen shrunk windows. Two backbones of the same size, trained for the
same number of steps, differ in their pretraining alone: as the paper says, or with windows of all amplitudes as here.
Each is asked with returns as they are and with returns times 100.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import numpy as np

from time2decide.backtesting.baselines import Uniform, backbone_pto
from time2decide.core.table import Table, quantity_cell, tables_with_last_note
from time2decide.experiments.claims import published_mse
from time2decide.experiments.portfolio_scores import scored_portfolio_rows, tasks_on_lmc
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.forecasting.pretraining import PRESETS, pretrain
from time2decide.forecasting.timepfn import TimePFNForecaster
from time2decide.markets.oracle import BUDGETS, WINDOW
from time2decide.markets.synthetic import MARKETS, LMCConfig, synthetic_oracle, synthetic_returns

RETURNS_SCALE = 100.0  # of what the backbone is given: its normalisation cannot resolve returns as they are
#: What is changed in the recipe of the bundled backbone.
PRETRAININGS: dict[str, dict[str, Any]] = {
    "as the paper says": {
        "multiplicative_share": 1.0,
        "rescaled_share": 0.0,
        "noisy_share": 0.0,
        "scaled_loss": False,
        "first_step": 0.0,
    },
    "as here": {},
}


def _tasks(preset: str) -> list[Config]:
    """One task per way to pretrain."""
    sizes: Config = {"recipe": "cpu", "steps": 3_000, "evaluation": [30, 200], "length": 1024, "seed": 0}
    if preset == "smoke":
        sizes = {"recipe": "smoke", "steps": 2, "evaluation": [2, 3], "length": 128, "seed": 0}
    return [{"pretraining": name, **sizes} for name in PRETRAININGS]


def _run(config: Config) -> list[Row]:
    """Pretrain, then score predict-then-optimise with either scale of returns on every market."""
    recipe = replace(PRESETS[config["recipe"]], steps=config["steps"], seed=config["seed"])
    with tempfile.TemporaryDirectory() as folder:
        backbone = pretrain(replace(recipe, **PRETRAININGS[config["pretraining"]]), folder).eval()
    count, steps = config["evaluation"]
    options: Any = {"count": count, "seed": config["seed"], "config": LMCConfig(length=config["length"])}
    rows: list[Row] = []
    for market in MARKETS:
        returns = synthetic_returns(market, **options)[:, : WINDOW + steps]
        oracle = synthetic_oracle(market, **options)[:, :, : WINDOW + steps]
        for scale in (1.0, RETURNS_SCALE):
            error = _one_step_error(TimePFNForecaster(backbone, scale), returns)
            found = scored_portfolio_rows("pto", backbone_pto(backbone, scale), returns, oracle)
            rows += [{"market": market, "returns_scale": scale, "relative_error": error, **row} for row in found]
        if config["pretraining"] == "as here":
            rows += [{"market": market, **row} for row in scored_portfolio_rows("uniform", Uniform(), returns, oracle)]
    return rows


def _one_step_error(forecaster: TimePFNForecaster, returns: np.ndarray, every: int = 8) -> float:
    """Mean squared error of the first step over the mean variance of the windows."""
    squared, variance = [], []
    for t in range(WINDOW, returns.shape[1], every):
        seen = returns[:, t - WINDOW : t]
        squared.append(((forecaster(seen) - returns[:, t]) ** 2).mean())
        variance.append(seen.var(axis=1).mean())
    return float(np.mean(squared) / np.mean(variance))


def _tables(rows: list[Row]) -> list[Table]:
    """A table per market: a line per pretraining and scale, the paper's predict-then-optimise in brackets."""
    first = rows[0]
    note = (
        f"MSE × 1e4 of predict-then-optimise to the oracle, ± standard error over series; in brackets the paper's, on "
        f"its full-size backbone and 30 series × 928 decisions. Small TimePFN, {first['steps']} steps of pretraining "
        "each. scale: what returns are multiplied by before the backbone. forecast: one-step error over the variance "
        "of the windows."
    )
    found = []
    for market, here in grouped_rows(rows, "market").items():
        cells = []
        for (name, strategy), own in grouped_rows(here, "pretraining", "strategy").items():
            for scale in dict.fromkeys(row.get("returns_scale") for row in own):
                some = [row for row in own if row.get("returns_scale") == scale]
                start = [strategy] if scale is None else [f"pretrained {name}, scale {scale:g}"]
                error = "–" if scale is None else f"{some[0]['relative_error']:.3f}"
                cells.append([*start, error, *(_cell(market, row, "Predict-then-Optimize", scale) for row in some)])
        series, steps = here[0]["evaluation"]
        caption = f"{market}: predict-then-optimise by how its backbone was pretrained, {series} series × {steps} steps"
        found.append(Table(caption, ["", "forecast", *(f"γ={g:g}" for g in BUDGETS)], cells, note))
    return tables_with_last_note(found)


def _cell(market: str, row: Row, name: str, scale: float | None) -> str:
    paper = published_mse(market, name, row["turnover_l1"]) if scale == 1.0 else None
    error = row.get("mse_error")
    return quantity_cell(
        1e4 * row["mse"],
        ".1f",
        None if error is None else 1e4 * error,
        None if paper is None else 1e4 * paper,
        ".0f",
    )


EXPERIMENTS = (
    Experiment(
        id="pto-scale",
        title="Predict-then-optimise by how its backbone was pretrained, and by the scale of the returns it is given",
        paper="None: explains why its figure on clean returns is three times ours",
        presets={"smoke": "10 s", "cpu": "20 min"},
        tasks=tasks_on_lmc(_tasks),
        run=_run,
        tables=_tables,
    ),
)
