"""One decision layer on several backbones: how well each forecasts, and what its forecasts are worth in decisions.

Every backbone is frozen. The same covariance tokens and read-out are trained on top of it by the same recipe, on all
three markets together; predict-then-optimise uses its forecast as it is. The tiny Chronos models are trained here, from
random weights, because no weights are downloaded.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np

from time2decide.backtesting.baselines import PredictThenOptimise, Uniform
from time2decide.core.table import Table, tables_with_last_note
from time2decide.experiments.portfolio_scores import scored_portfolio_rows, tasks_on_lmc
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.forecasting.backbones import Backbone, BackboneForecaster, load_backbone
from time2decide.forecasting.chronos import ChronosTraining, TinyChronos, tiny_chronos, train_chronos
from time2decide.markets.oracle import BUDGETS, WINDOW
from time2decide.markets.synthetic import MARKETS, LMCConfig, synthetic_oracle, synthetic_returns
from time2decide.policy.paper_model import PaperModelStrategy
from time2decide.policy.repaired_training import REPAIRED_PRESETS, train_adapter
from time2decide.simulation.engine import Strategy

BACKBONES = ("timepfn:small", "timepfn:medium", "kernel-bank:", "tiny-chronos-bolt", "tiny-chronos-2")
_PTO, _DECIDES, _SFT = "pto", "decision layer", "decision layer, no covariance"
_BUDGETS = (0.5, 1.0, 2.0)


def _tasks(preset: str) -> list[Config]:
    """One task per backbone."""
    if preset == "smoke":
        sizes: Config = {"series": 2, "steps": 4, "length": 128, "adapter_steps": 3, "chronos_steps": 3}
        return [{"backbone": name, "recipe": "smoke", "seed": 0, **sizes} for name in BACKBONES[2:4]]
    sizes = {"series": 10, "steps": 300, "length": 1024, "adapter_steps": 600, "chronos_steps": 1_500}
    if preset == "paper":
        sizes |= {"series": 30, "steps": 928, "adapter_steps": 5_000, "chronos_steps": 20_000}
    return [{"backbone": name, "recipe": "cpu", "seed": 0, **sizes} for name in BACKBONES]


def _run(config: Config) -> list[Row]:
    """Forecast errors, predict-then-optimise, and the decision layer with and without covariance tokens."""
    with tempfile.TemporaryDirectory() as folder:
        backbone = _make(config, Path(folder) / "backbone")
        recipe = replace(REPAIRED_PRESETS[config["recipe"]], steps=config["adapter_steps"], seed=config["seed"])
        blind = replace(recipe, model=replace(recipe.model, covariance=False))
        strategies: dict[str, Strategy] = {
            "uniform": Uniform(),
            _PTO: PredictThenOptimise(BackboneForecaster(backbone), name=_PTO),
            _DECIDES: PaperModelStrategy((train_adapter(recipe, backbone, Path(folder) / "adapter"),), _DECIDES),
            _SFT: PaperModelStrategy((train_adapter(blind, backbone, Path(folder) / "blind"),), _SFT),
        }
    rows: list[Row] = []
    for market in MARKETS if config["recipe"] != "smoke" else ("clean",):
        options = {"count": config["series"], "seed": config["seed"], "config": LMCConfig(length=config["length"])}
        returns = synthetic_returns(market, **options)[:, : WINDOW + config["steps"]]
        chosen = [BUDGETS.index(budget) for budget in _BUDGETS]
        oracle = synthetic_oracle(market, **options)[:, chosen, : WINDOW + config["steps"]]
        errors = backbone_forecast_errors(backbone, returns)
        for name, strategy in strategies.items():
            found = scored_portfolio_rows(name, strategy, returns, oracle, budgets=_BUDGETS)
            rows += [{"market": market, **row, **errors} for row in found]
    return rows


def _make(config: Config, folder: Path) -> Backbone:
    """A backbone of a name; a tiny Chronos is trained first."""
    name: str = config["backbone"]
    if not name.startswith("tiny-chronos"):
        return load_backbone(name)
    start = tiny_chronos(TinyChronos(name.rpartition("-")[2], seed=config["seed"]))
    few = {"pool": 2, "batch": 1} if config["recipe"] == "smoke" else {}
    return train_chronos(start, ChronosTraining(config["chronos_steps"], seed=config["seed"], **few), folder)


def backbone_forecast_errors(backbone: Backbone, returns: np.ndarray, every: int = 8) -> dict[str, float]:
    """One-step errors: raw, and of differences between assets in units of the typical one-step change squared."""
    forecast, raw, relative = BackboneForecaster(backbone), [], []
    for t in range(WINDOW, returns.shape[1], every):
        seen = returns[:, t - WINDOW : t]
        error = forecast(seen) - returns[:, t]
        apart = error - error.mean(-1, keepdims=True)
        unit = (np.diff(seen, axis=1) ** 2).mean(axis=(1, 2))[:, None]
        raw.append(float((error**2).mean()))
        relative.append(float((apart**2 / unit).mean()))
    return {"forecast_mse": mean(raw), "difference_mse": mean(relative)}


def _tables(rows: list[Row]) -> list[Table]:
    """A table per market: a line per backbone and way to decide."""
    note = (
        f"MSE × 1e4 of the raw output to the oracle, own history; regret × 1e4 per step of the weights held, at γ = "
        f"{', '.join(f'{g:g}' for g in _BUDGETS)}. forecast: one-step MSE × 1e4, of all evaluation windows; "
        "differences: error of the differences between assets in units of the typical one-step change, squared. pto: "
        "exact optimum for the forecasts. decision layer: covariance tokens and the read-out in common units, "
        f"{rows[0]['adapter_steps']} training steps on the frozen backbone, one model for all γ and markets. "
        f"tiny-chronos: random weights, trained here for {rows[0]['chronos_steps']} steps on synthetic series; says "
        "nothing about the published Chronos models."
    )
    found = []
    for market, here in grouped_rows(rows, "market").items():
        cells = []
        for (backbone, strategy), own in grouped_rows(here, "backbone", "strategy").items():
            by_budget = {row["turnover_l1"]: row for row in own}
            figures = [f"{1e4 * by_budget[g][key]:.1f}" for key in ("mse", "regret") for g in _BUDGETS]
            error = [f"{1e4 * own[0]['forecast_mse']:.3f}", f"{own[0]['difference_mse']:.3f}"]
            cells.append([backbone, strategy, *(["–", "–"] if strategy == "uniform" else error), *figures])
        columns = ["backbone", "decides by", "forecast", "differences"]
        columns += [f"{key} γ={g:g}" for key in ("MSE", "regret") for g in _BUDGETS]
        sizes = f"{here[0]['series']} series × {here[0]['steps']} decisions"
        found.append(Table(f"{market}: the same decision layer on several backbones, {sizes}", columns, cells, note))
    return tables_with_last_note(found)


EXPERIMENTS = (
    Experiment(
        id="backbones",
        title="One decision layer on several forecasting backbones",
        paper="None: the paper has one backbone",
        presets={"smoke": "20 s", "cpu": "1 h", "paper": "a day"},
        tasks=tasks_on_lmc(_tasks),
        run=_run,
        tables=_tables,
    ),
)
