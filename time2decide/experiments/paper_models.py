"""The paper's own models, read literally: how they learn and what they read, and a fine-tuned backbone.

Predict-then-optimise is scored with the backbone as it is and fine-tuned to forecast returns of the market it then
trades in; the shrinkage ρ is chosen per budget on validation series. The literal Time2Decide is rolled out from two
starts, and along its training by the paper's recipe. `lambda_sweep` has the paper's tables.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from time2decide.backtesting.baselines import Uniform, backbone_pto
from time2decide.core.cache import cache_directory
from time2decide.core.checkpoints import checkpoint_checksum
from time2decide.core.provenance import provenance
from time2decide.core.table import Table, cell_text, quantity_cell, tables_with_last_note
from time2decide.core.training import training_progress_bar
from time2decide.experiments.claims import Claim, published
from time2decide.experiments.portfolio_scores import portfolio_rows_of, shown_oracle_history, tasks_on_lmc
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows, task_key
from time2decide.forecasting.pretraining import PRESETS as PRETRAINING
from time2decide.forecasting.pretraining import pretrain
from time2decide.forecasting.timepfn import TimePFN, TimePFNForecaster
from time2decide.markets.oracle import BUDGETS, WINDOW
from time2decide.markets.synthetic import LMC_VERSION, LMCConfig, synthetic_oracle, synthetic_returns
from time2decide.policy.paper_model import PaperModel, PaperModelStrategy
from time2decide.policy.paper_training import (
    PAPER_MODEL_PRESETS,
    PaperModelTraining,
    fine_tune_forecaster,
    train_paper_model,
)
from time2decide.simulation.engine import Strategy, rollout
from time2decide.simulation.metrics import score, squared_distance_to_oracle

#: In a configuration -> name of the strategy.
MODELS = {"time2decide": "paper-time2decide", "sft": "paper-sft"}
_PTO = "pto-timepfn"
#: Strategy -> row of the paper's table on fine-tuning the forecaster.
_FINETUNED_ROWS = {_PTO: "Original Checkpoint", "pto-timepfn-finetuned": "Fine-tuned on Noisy Data"}
_SHRINKAGES = (1.0, 0.1, 0.03, 0.01, 0.003, 0.001)
#: Folder of the backbone of the paper's size, made when needed; before with `train timepfn --preset paper --out`.
PAPER_BACKBONE = "runs/forecast"
#: Sizes of a rollout by preset: series and decisions for the choice of parameters, and for the table.
SIZES: dict[str, Config] = {
    "smoke": {"recipe": "smoke", "backbone": "small", "known": [2, 4], "evaluation": [2, 4], "length": 256},
    "cpu": {"recipe": "cpu", "backbone": "small", "known": [3, 100], "evaluation": [10, 150], "length": 1024},
    "paper": {
        "recipe": "paper",
        "backbone": PAPER_BACKBONE,
        "known": [30, 928],
        "evaluation": [30, 928],
        "length": 1024,
    },
}


def paper_backbone(name: str) -> TimePFN:
    """A bundled backbone or that of a folder; the one of the paper's size is pretrained first where it is missing."""
    if name == PAPER_BACKBONE and not (Path(name) / "model.safetensors").is_file():
        print(f"time2decide: pretraining the paper's backbone to {name} first (resumable)", file=sys.stderr)
        return pretrain(PRETRAINING["paper"], name, notes={"preset": "paper", **provenance()})
    return TimePFN.from_pretrained(name)


def paper_model_recipe(config: Config, **changes: Any) -> PaperModelTraining:
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


def _scored(strategy: Strategy, config: Config, split: str, budgets: list[float]) -> list[Row]:
    """Scores per budget of a rollout on its own history."""
    returns, oracle = rollout_data(config, split, budgets)
    return portfolio_rows_of(rollout(returns, strategy, budgets, delay=0), returns, oracle)


def training_in_words(rows: list[Row]) -> str:
    """How long the models behind the rows were trained, in words."""
    steps = sorted({row["steps"] for row in rows if "steps" in row})
    batches = sorted({PAPER_MODEL_PRESETS[row["recipe"]].batch for row in rows if "recipe" in row})
    if not steps:
        return "not trained yet"
    return f"{' or '.join(map(str, steps))} training steps of {' or '.join(map(str, batches))} windows"


def _mse(row: Row, paper: float | None) -> str:
    return quantity_cell(row["mse"], ".4f", row.get("mse_error"), paper)


def _finetuned_tasks(preset: str) -> list[Config]:
    """One task per market and seed; the paper shows the noisy one."""
    markets = ["noisy"] if preset == "smoke" else ["noisy", "noisy-matched", "clean"]
    sizes = SIZES[preset] | ({"evaluation": [10, 928]} if preset == "cpu" else {})
    return [{"market": market, "seed": 0, **sizes} for market in markets]


def _run_finetuned(config: Config) -> list[Row]:
    """Fine-tune, choose ρ for either checkpoint, score all four."""
    original = paper_backbone(config["backbone"])
    recipe = paper_model_recipe(config, **({} if config["recipe"] == "paper" else {"returns_scale": 100.0}))
    tuned, progress = fine_tune_forecaster(recipe, original)
    training = {"steps": progress.step, "best_step": progress.best_step}
    rows: list[Row] = []
    for name, model in (("pto-timepfn", original), ("pto-timepfn-finetuned", tuned)):
        error = _one_step_error(model, config, recipe.returns_scale)
        best = _best_shrinkage(model, config, recipe.returns_scale)
        budgets = [*BUDGETS, *BUDGETS]  # plain and shrunk in one rollout, because the forecasts are the same
        shrinkage = (*[1.0] * len(BUDGETS), *best)
        scores = _scored(backbone_pto(model, recipe.returns_scale, shrinkage), config, "evaluation", budgets)
        for k, (budget, value, found) in enumerate(zip(budgets, shrinkage, scores, strict=True)):
            strategy = name if k < len(BUDGETS) else f"{name}-shrunk"
            cell = {"strategy": strategy, "turnover_l1": budget, "shrinkage": value}
            rows.append({**cell, **found, "forecast_mse": error, **training})
    return rows


def _best_shrinkage(model: TimePFN, config: Config, scale: float) -> list[float]:
    """ρ per budget with the least MSE on validation series; all values are run together, as extra budgets."""
    returns, oracle = rollout_data(config, "validation", list(BUDGETS))
    budgets, values = np.tile(BUDGETS, len(_SHRINKAGES)), np.repeat(_SHRINKAGES, len(BUDGETS))
    result = rollout(returns, backbone_pto(model, scale, tuple(values.tolist())), budgets.tolist(), delay=0)
    target = np.tile(oracle, (1, len(_SHRINKAGES), 1, 1))  # (series, values × budgets, time, m)
    error = squared_distance_to_oracle(result.raw, target, WINDOW).mean(axis=0).reshape(len(_SHRINKAGES), len(BUDGETS))
    return [_SHRINKAGES[i] for i in error.argmin(axis=0)]


def _one_step_error(model: TimePFN, config: Config, scale: float) -> float:
    """Mean squared error of the forecast that PtO uses, on every eighth step of the evaluation series."""
    returns, _ = rollout_data(config, "evaluation", [BUDGETS[0]])
    forecaster = TimePFNForecaster(model, scale)
    steps = range(WINDOW, returns.shape[1], 8)
    return mean(float(((forecaster(returns[:, t - WINDOW : t]) - returns[:, t]) ** 2).mean()) for t in steps)


def _finetuned_claims(rows: list[Row]) -> list[Claim]:
    """What the paper says of the forecaster and of plug-in decisions, market by market and budget by budget."""
    mse = {(r["market"], r["turnover_l1"], r["strategy"]): r["mse"] for r in rows}
    noisy = list(dict.fromkeys((market, budget) for market, budget, _ in mse if market != "clean"))
    gaps = [1 - mse[*cell, "pto-timepfn-finetuned"] / mse[*cell, _PTO] for cell in noisy]
    less = [1 - mse[*cell, "pto-timepfn-shrunk"] / mse[*cell, _PTO] for cell in noisy]
    rises = [
        mse[market, low, name] < mse[market, high, name]
        for market in dict.fromkeys(market for market, _ in noisy)
        for low, high in pairwise(BUDGETS)
        for name in _FINETUNED_ROWS
    ]
    claims = [
        Claim(
            "Noisy: fine-tuning the forecaster makes predict-then-optimise worse in most cases (paper: 6 of 7)",
            [gap < 0 for gap in gaps],
            f"MSE changes by {-100 * max(gaps):+.1f} to {-100 * min(gaps):+.1f} %" if gaps else "",
            most=True,
        ),
        Claim("Noisy: predict-then-optimise degrades as γ increases", rises),
        Claim(
            "Noisy: attenuating the forecasts improves on the plug-in decision (ρ from validation series)",
            [gap > 0 for gap in less],
            f"{100 * min(less):.0f} to {100 * max(less):.0f} % less MSE" if less else "",
        ),
    ]
    judged_on = f"predict-then-optimise on the small TimePFN backbone (fine-tuned: {training_in_words(rows)})"
    return [replace(claim, judged_on=judged_on) for claim in claims]


def _finetuned_tables(rows: list[Row]) -> list[Table]:
    """MSE per market and budget, the paper's in brackets."""
    paper = published("compare_timepfn_noise_sft_or_not")
    note = (
        "pto-timepfn: the small backbone as trained on synthetic series; -finetuned: and on this market, "
        f"{training_in_words(rows)}. Brackets: the paper's full-size backbone on its noisy market. ±: standard error "
        "over series. -shrunk: the forecast's deviations from their mean times ρ, chosen per γ on validation series."
    )
    found = []
    for market, here in grouped_rows(rows, "market").items():
        cells = []
        for name, own in grouped_rows(here, "strategy").items():
            mse = {row["turnover_l1"]: row for row in own}
            row = "" if market == "clean" else _FINETUNED_ROWS.get(name, "")
            line = [_mse(mse[b], paper.get((f"gamma={b}", row))) if b in mse else "–" for b in BUDGETS]
            cells.append([name, *line, f"{own[0]['forecast_mse']:.3g}" if "forecast_mse" in own[0] else "–"])
        series, steps = here[0]["evaluation"]
        caption = f"{market}: MSE of predict-then-optimise to the oracle (paper's), {series} series × {steps} decisions"
        found.append(Table(caption, ["strategy", *(f"γ={b:g}" for b in BUDGETS), "forecast MSE"], cells, note))
    return tables_with_last_note(found)


def _starts_tasks(preset: str) -> list[Config]:
    """One training per model, budget and scale of the returns; every one is rolled out from both starts."""
    budgets, scales, steps = ([1.0], [100.0], 2) if preset == "smoke" else ([1.0], [1.0, 100.0], 2_000)
    if preset == "paper":
        budgets = list(BUDGETS)
    sizes = SIZES[preset] | ({"evaluation": [1, 98]} if preset == "smoke" else {})
    sizes |= {"evaluation": [6, 400]} if preset == "cpu" else {}
    cell = {"market": "clean", "return_weight": 1000.0, "seed": 0, "steps_at_most": steps}
    return [
        {**cell, "turnover_l1": budget, "returns_scale": scale, "model": model, **sizes}
        for budget in budgets
        for model in list(MODELS)[: 1 if preset == "smoke" else None]
        for scale in scales
    ]


def _run_starts(config: Config) -> list[Row]:
    """Fine-tune a literal model, and roll it out from equal weights and from the oracle's first window."""
    recipe = PAPER_MODEL_PRESETS[config["recipe"]]
    if config["recipe"] != "paper":  # as many windows as fill the steps, no early stop
        epochs = min(10, config["steps_at_most"])
        windows = recipe.batch * (config["steps_at_most"] // epochs)
        recipe = replace(recipe, epochs=epochs, windows=windows, patience=epochs)
    changes = {key: config[key] for key in ("market", "seed", "turnover_l1", "return_weight", "returns_scale")}
    recipe = replace(recipe, covariance=config["model"] == "time2decide", **changes)
    model, progress = train_paper_model(recipe, paper_backbone(config["backbone"]))
    returns, oracle = rollout_data(config, "evaluation", [config["turnover_l1"]])
    rows: list[Row] = []
    for start in ("uniform", "oracle"):
        strategy = PaperModelStrategy((model,), MODELS[config["model"]], start)
        result = rollout(returns, strategy, [config["turnover_l1"]], delay=0, oracle=oracle)
        # both are scored on the same steps, those after the oracle's start
        row = dict(score(replace(result, window=2 * WINDOW), returns, oracle).rows()[0])
        rows.append({"strategy": strategy.name, "start": start, **row})
    free = PaperModelStrategy((model,), MODELS[config["model"]])
    probe = shown_oracle_history(free, returns, oracle, [config["turnover_l1"]])[0]
    training = {"steps": progress.step, "best_step": progress.best_step, "batch": recipe.batch}
    reference = score(
        replace(rollout(returns, Uniform(), [config["turnover_l1"]], delay=0), window=2 * WINDOW), returns, oracle
    )
    return [{**row, **probe, **training, "uniform_mse": float(reference.mse.mean())} for row in rows]


def _starts_tables(rows: list[Row]) -> list[Table]:
    """A line per budget, model and scale."""
    cells = []
    for (budget, scale, name), own in grouped_rows(rows, "turnover_l1", "returns_scale", "strategy").items():
        by_start = {row["start"]: row for row in own}
        first = own[0]
        line = [f"{by_start[start]['mse']:.4f}" if start in by_start else "–" for start in ("uniform", "oracle")]
        turnover = [f"{by_start[start]['turnover']:.4f}" if start in by_start else "–" for start in by_start]
        probe = [f"{first[key]:.4f}" for key in ("shown_oracle_mse", "other_returns_mse")]
        cells.append([f"{budget:g}", name, f"{scale:g}", *line, f"{first['uniform_mse']:.4f}", *probe, *turnover])
    columns = ["γ", "model", "scale", "from 1/m", "from s*", "uniform", "shown s*", "other returns"]
    columns += ["turnover from 1/m", "turnover from s*"]
    series, steps = rows[0]["evaluation"]
    trained = f"{max(row['steps'] for row in rows)} training steps of {rows[0]['batch']} windows, λ_r = 1000"
    note = (
        f"MSE of the raw output to the oracle over the steps from {2 * WINDOW} on, own history. from 1/m: its history "
        f"begins at equal weights; from s*: with the oracle's allocations up to step {2 * WINDOW}. scale: what returns "
        "are multiplied by before the backbone. shown s*: the oracle's history throughout (teacher forcing); other "
        "returns: the same with the returns of another series: a model that does as well there does not read returns."
    )
    return [
        Table(
            f"clean: the literal model from two starts, {series} series × {steps} steps, {trained}",
            columns,
            cells,
            note,
        )
    ]


def _curve_tasks(preset: str) -> list[Config]:
    """One training per budget and number of steps, each with the paper's whole schedule; longer ones are more tasks."""
    cell = {"market": "clean", "seed": 0, "turnover_l1": 1.0, "return_weight": 5000.0}  # λ_r: the paper's best at γ = 1
    if preset == "smoke":
        return [{**cell, "steps": 4, "every": 2, "held_out": 4, **SIZES["smoke"]}]
    sizes = {**SIZES[preset], "recipe": "paper", "evaluation": [10, 400]}
    length = {"steps": 2_000, "every": 200, "held_out": 512}
    if preset == "paper":
        length = {"steps": 50 * 7_810, "every": 7_810, "held_out": 4_096}  # 50 epochs
    return [{**cell, **length, **sizes}]


def _run_curve(config: Config) -> list[Row]:
    """Train Time2Decide by the paper's recipe for so many steps, measure on the way, and roll out the best weights."""
    backbone, budgets, every = paper_backbone(config["backbone"]), [config["turnover_l1"]], config["every"]
    recipe = paper_model_recipe(config, turnover_l1=budgets[0], return_weight=config["return_weight"])
    epochs, held_out = config["steps"] // every, config["held_out"]
    recipe = replace(recipe, epochs=epochs, windows=every * recipe.batch, patience=epochs, validation_windows=held_out)
    returns, oracle = rollout_data(config, "validation", budgets)
    fixed = {"uniform_mse": _scored(Uniform(), config, "validation", budgets)[0]["mse"]}
    fixed["copy_last_mse"] = float(squared_distance_to_oracle(np.roll(oracle, 1, axis=2), oracle, WINDOW).mean())

    def probe(model: PaperModel) -> dict[str, float]:
        strategy = PaperModelStrategy((model,))
        own = _scored(strategy, config, "validation", budgets)[0]["mse"]
        return {"own_mse": own, **fixed, **shown_oracle_history(strategy, returns, oracle, budgets)[0]}

    start = checkpoint_checksum(backbone.state_dict())
    state = cache_directory() / f"literal-curve-{task_key({**config, 'start': start, 'data': LMC_VERSION})}.safetensors"
    with training_progress_bar(lines_every=60.0) as report:
        model, progress = train_paper_model(recipe, backbone, state=state, report=report, probe=probe)
    facts = {"best_step": progress.best_step, "core_minutes": progress.core_seconds / 60, "curve": progress.history}
    rows = [
        {"strategy": strategy.name, **_scored(strategy, config, "evaluation", budgets)[0]}
        for strategy in (PaperModelStrategy((model,), MODELS["time2decide"]), Uniform())
    ]
    return [rows[0] | facts, rows[1]]


def _curve_tables(rows: list[Row]) -> list[Table]:
    """The curve of every training; its end on the evaluation series is in the caption."""
    columns = {"step": "step", "lr": "rate", "train": "loss", "validation": "decision error", "own_mse": "own history"}
    columns |= {"uniform_mse": "uniform", "shown_oracle_mse": "shown s*", "other_returns_mse": "other returns"}
    columns |= {"copy_last_mse": "copy of the last"}
    note = (
        "loss: λ_r‖r̂ − r‖² + ‖ŝ − s*‖² of the training windows since the line before; decision error: ‖ŝ − s*‖² over "
        "96 steps of held-out windows, the least of which chose the weights; then MSE to the oracle on validation "
        "series. own history: as it would decide; uniform: equal weights; shown s*: with the oracle's past "
        "allocations, as in training; other returns: likewise, with the returns of another series; copy of the last: "
        "s* of the step before."
    )
    found = []
    for _, (ours, uniform) in grouped_rows(rows, "turnover_l1", "return_weight", "steps", "seed").items():
        cells = [[cell_text(entry.get(key), 4) for key in columns] for entry in ours["curve"]]
        trained = f"{ours['steps']} steps of {PAPER_MODEL_PRESETS[ours['recipe']].batch} windows"
        caption = (
            f"{ours['market']}, γ={ours['turnover_l1']:g}, λ_r={ours['return_weight']:g}: {trained}, "
            f"{ours['core_minutes']:.0f} core-minutes; own history on {ours['evaluation'][0]} evaluation series: "
            f"{_mse(ours, None)}, uniform {_mse(uniform, None)}"
        )
        found.append(Table(caption, list(columns.values()), cells, note))
    return tables_with_last_note(found)


EXPERIMENTS = (
    Experiment(
        id="literal-starts",
        title="The literal Time2Decide from two starts, with returns scaled or not, and what it reads",
        paper="None: the paper does not say what history it starts from",
        presets={"smoke": "20 s", "cpu": "20 min", "paper": "days on one GPU"},
        tasks=tasks_on_lmc(_starts_tasks),
        run=_run_starts,
        tables=_starts_tables,
    ),
    Experiment(
        id="literal-curve",
        title="The literal Time2Decide by the paper's recipe: its decisions over the steps of training",
        paper="Section 5.2, Time2Decide: the paper shows the end of 50 epochs alone",
        presets={"smoke": "20 s", "cpu": "1 h", "paper": "days on one GPU"},
        tasks=tasks_on_lmc(_curve_tasks),
        run=_run_curve,
        tables=_curve_tables,
    ),
    Experiment(
        id="finetuned-pto",
        title="Predict-then-Optimise: original against fine-tuned backbone",
        paper="Appendix I, table on fine-tuning the forecaster on noisy data",
        presets={"smoke": "20 s", "cpu": "10 min", "paper": "days on one GPU"},
        tasks=tasks_on_lmc(_finetuned_tasks),
        run=_run_finetuned,
        tables=_finetuned_tables,
        claims=_finetuned_claims,
    ),
)
