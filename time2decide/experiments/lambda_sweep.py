"""The paper's decisions by the paper's own cast: Uniform, Pretrained, predict-then-optimise, SFT, Time2Decide.

Time2Decide and SFT are the literal models, fine-tuned one by one for a market, γ and λ_r from the same backbone, and
rolled out on their own history. Beside them is the policy with the same backbone, with and without covariance tokens,
and the default one for markets of any kind; nothing of these is trained here. Where a cell has several λ_r, the one
with the least MSE of a rollout on validation series counts. All strategies of a market and seed are scored on the same
evaluation series, and compared in pairs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from time2decide.backtesting.baselines import Uniform, backbone_pto
from time2decide.backtesting.registry import make_strategy
from time2decide.core.table import Table, quantity_cell, tables_with_last_note
from time2decide.experiments.claims import OUR_NETWORK, Claim, paper_architecture, published
from time2decide.experiments.paper_models import (
    MODELS,
    SIZES,
    paper_backbone,
    paper_model_recipe,
    rollout_data,
    training_in_words,
)
from time2decide.experiments.portfolio_scores import (
    CONFIDENCE,
    oracle_portfolio_rows,
    paired_portfolio_scores,
    portfolio_bootstrap_error,
    portfolio_gain,
    scored_portfolio_rows,
    shown_oracle_history,
    tasks_on_lmc,
)
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.oracle import BUDGETS
from time2decide.policy.paper_model import PaperModelStrategy, pretrained_paper_model
from time2decide.policy.paper_training import RETURN_WEIGHTS, train_paper_model
from time2decide.simulation.engine import Strategy

_OURS, _SFT, _PTO = "paper-time2decide", "paper-sft", "pto-timepfn"
#: Strategy -> row of the paper's tables.
_PAPER_ROWS = {_OURS: "Time2Decide", _SFT: "SFT", "uniform": "Uniform", "pretrained": "Pretrained"}
_PAPER_ROWS |= {_PTO: "Predict-then-Optimize"}
#: What returns are multiplied by before the backbone: as they are, as the paper has it, and so that its eps is small.
_SCALES = {"": 1.0, " × 100": 100.0}
#: γ to which, on clean returns, the paper has predict-then-optimise below Time2Decide, and from which above it.
CLEAN_PTO_BETTER, CLEAN_PTO_WORSE = 1.25, 1.5
_SEEDS = 3  # under `cpu`
_UNTRAINED = ("references", "policies")
_POLICY = "time2decide"
_POLICIES = (_POLICY, "time2decide-nocov", "market")
#: What the policy is compared with -> its name in a claim.
_AGAINST = {
    f"{_PTO} × 100": "predict-then-optimise on the same forecasts",
    "time2decide-nocov": "its twin without covariance tokens",
    "pretrained": "Pretrained",
    "uniform": "equal weights",
}


def _tasks(preset: str) -> list[Config]:
    """Per seed and market the references and the policies, then one task per γ, λ_r and model.

    Under `cpu` λ_r is the paper's best of the cell and model, and 0 beside it at γ = 1 of the first seed.
    """
    markets, budgets, seeds = ["clean", "noisy"], list(BUDGETS), 1
    if preset == "smoke":
        markets, budgets = ["clean"], [1.0]
    elif preset == "cpu":
        seeds = _SEEDS
    found: list[Config] = []
    for seed in range(seeds):
        shared = {"seed": seed, **SIZES[preset]}
        found += [{"market": m, "model": kind, "budgets": budgets, **shared} for kind in _UNTRAINED for m in markets]
        for budget in sorted(budgets, key=lambda b: b != 1.0):
            for market in markets:
                for model, name in MODELS.items():
                    cell = {"market": market, "turnover_l1": budget}
                    weights = _return_weights(preset, seed, market, budget, _PAPER_ROWS[name])
                    found += [{**cell, "return_weight": weight, "model": model, **shared} for weight in weights]
    return found


def _return_weights(preset: str, seed: int, market: str, budget: float, row: str) -> list[int]:
    """The λ_r that a cell is trained for."""
    if preset != "cpu":
        return list(RETURN_WEIGHTS) if preset == "paper" else [0, 1000]
    grid = {
        weight: value for weight in RETURN_WEIGHTS if (value := _published(market, budget, weight, row)) is not None
    }
    best = min(grid, key=lambda weight: grid[weight])
    return sorted({best} | ({0} if budget == 1.0 and seed == 0 else set()))


def _published(market: str, budget: float, weight: float, row: str) -> float | None:
    return published(f"lambda_r_sweep_{market}").get((f"gamma={budget};lambda_r={weight}", row))


def _run(config: Config) -> list[Row]:
    """Score the references, or fine-tune one model and roll it out."""
    if config["model"] in _UNTRAINED:
        returns, oracle = rollout_data(config, "evaluation", config["budgets"])
        references = config["model"] == "references"
        rows = oracle_portfolio_rows(returns, oracle, config["budgets"]) if references else []
        cast = _references(paper_backbone(config["backbone"])) if references else map(make_strategy, _POLICIES)
        for one in cast:
            rows += scored_portfolio_rows(one.name, one, returns, oracle, budgets=tuple(config["budgets"]))
        return rows
    backbone = paper_backbone(config["backbone"])
    budgets = (config["turnover_l1"],)
    recipe = replace(
        paper_model_recipe(config),
        turnover_l1=budgets[0],
        return_weight=float(config["return_weight"]),
        covariance=config["model"] == "time2decide",
    )
    model, progress = train_paper_model(recipe, backbone)
    strategy = PaperModelStrategy((model,), name=MODELS[config["model"]])
    known = rollout_data(config, "validation", list(budgets))
    validation = scored_portfolio_rows(strategy.name, strategy, *known, budgets=budgets)[0]["mse"]
    returns, oracle = rollout_data(config, "evaluation", list(budgets))
    (row,) = scored_portfolio_rows(strategy.name, strategy, returns, oracle, budgets=budgets)
    training = {"steps": progress.step, "best_step": progress.best_step, "core_minutes": progress.core_seconds / 60}
    probe = shown_oracle_history(strategy, returns, oracle, budgets, every=16)[0]
    return [{**row, **probe, **training, "validation_mse": validation}]


def _references(backbone: TimePFN) -> list[Strategy]:
    """What has nothing to train, with either scale of returns."""
    found: list[Strategy] = [Uniform()]
    for name, scale in _SCALES.items():
        found.append(replace(pretrained_paper_model(backbone, scale), name=f"pretrained{name}"))
        found.append(backbone_pto(backbone, scale, name=f"{_PTO}{name}"))
    return found


def _chosen(rows: list[Row]) -> list[Row]:
    """One row per strategy, seed, market and γ; of several λ_r that with the least MSE on validation series.

    Also those of λ_r = 0 and of the best λ_r > 0 where a seed has both, named so.
    """
    found = [row for row in rows if row["model"] in _UNTRAINED]
    trained = [row for row in rows if row["model"] not in _UNTRAINED]
    for own in grouped_rows(trained, "strategy", "market", "turnover_l1", "seed").values():
        found.append(_least(own))
        without, some = ([row for row in own if bool(row["return_weight"]) == more] for more in (False, True))
        if without and some:
            name = own[0]["strategy"]
            found.append({**_least(without), "strategy": f"{name}, λ_r = 0"})
            found.append({**_least(some), "strategy": f"{name}, λ_r > 0"})
    return found


def _least(rows: list[Row]) -> Row:
    return min(rows, key=lambda row: row["validation_mse"])


def _below(
    rows: list[Row], ours: str, other: str, market: str = "", least: float = 0.0, most: float = 2.0
) -> list[bool]:
    """Whether one strategy is below the other beyond the interval of their pairs, per market and γ of a range."""
    cases = []
    for (name, budget), here in grouped_rows(rows, "market", "turnover_l1").items():
        seeds = [{row["seed"] for row in here if row["strategy"] == one} for one in (ours, other)]
        if market in ("", name) and least <= budget <= most and seeds[0] & seeds[1]:
            cases.append(portfolio_gain(*paired_portfolio_scores(here, ours, other, budget, "mse"), "mse")[1] > 0)
    return cases


def _claims(rows: list[Row]) -> list[Claim]:
    """What the paper says of its tables, one case per market and γ, each beyond the interval of the pairs."""
    best = _chosen(rows)
    others = [name for name in _PAPER_ROWS if name != _OURS]
    noisy = list(zip(*(cases for name in others if (cases := _below(best, _OURS, name, "noisy"))), strict=False))
    pairs = grouped_rows([row for row in best if row["strategy"] in (_OURS, _SFT)], "market", "turnover_l1", "seed")
    weights = [
        (by_name[_SFT]["return_weight"], by_name[_OURS]["return_weight"])
        for own in pairs.values()
        if len(by_name := {row["strategy"]: row for row in own}) == 2
    ]
    claims = [
        Claim("Time2Decide is below SFT at every γ", _below(best, _OURS, _SFT)),
        Claim("Time2Decide is below Pretrained at every γ", _below(best, _OURS, "pretrained")),
        Claim("Time2Decide is below equal weights at every γ", _below(best, _OURS, "uniform")),
        Claim(
            f"Clean: predict-then-optimise is below Time2Decide for γ ≤ {CLEAN_PTO_BETTER:g}",
            _below(best, _PTO, _OURS, "clean", most=CLEAN_PTO_BETTER),
        ),
        Claim(
            f"Clean: Time2Decide is below predict-then-optimise for γ ≥ {CLEAN_PTO_WORSE:g}",
            _below(best, _OURS, _PTO, "clean", CLEAN_PTO_WORSE),
        ),
        Claim("Noisy: Time2Decide is below every other strategy in most cases", [all(one) for one in noisy], most=True),
        Claim("Time2Decide: the best λ_r > 0 is below λ_r = 0", _below(best, f"{_OURS}, λ_r > 0", f"{_OURS}, λ_r = 0")),
        Claim("SFT wants a smaller λ_r than Time2Decide in most cases", _wants(weights, rows), most=True),
    ]
    judged_on = paper_architecture(training_in_words(rows))
    return [replace(claim, judged_on=judged_on) for claim in claims] + [
        Claim(f"Time2Decide is below {text} at every γ", _below(best, _POLICY, other), judged_on=OUR_NETWORK)
        for other, text in _AGAINST.items()
    ]


def _wants(weights: list[tuple[float, float]], rows: list[Row]) -> list[bool]:
    """Tested only where λ_r was chosen by us, from a grid."""
    grid = {row["return_weight"] for row in rows if row["model"] not in _UNTRAINED}
    return [sft < ours for sft, ours in weights] if rows and rows[0]["preset"] != "cpu" and len(grid) > 1 else []


def _tables(rows: list[Row]) -> list[Table]:
    """MSE and regret per market, then comparisons in pairs."""
    best, trained = _chosen(rows), [row for row in rows if row["model"] not in _UNTRAINED]
    series, steps = rows[0]["evaluation"]
    note = (
        "Mean over the series of all seeds, ± standard error by bootstrap. Brackets: the paper's full-size models on "
        f"30 series × 928 decisions, at its best λ_r. paper-time2decide, paper-sft: the paper's architecture, "
        f"{training_in_words(rows)}, far from the paper's training, λ_r the paper's best; pretrained, pto-timepfn: the "
        "small backbone, given returns as they are; × 100: multiplied first, because its normalisation cannot resolve "
        "them. time2decide, time2decide-nocov, market: the policy, which is not trained. on s* history: the trained "
        "models if they are shown the oracle's past allocations, as in training, instead of their own; other returns: "
        "and the returns of another series."
    )
    found = []
    for market, here in grouped_rows(best, "market").items():
        seeds = len({row["seed"] for row in here})
        for key, title in {
            "mse": "MSE of the raw answer to the oracle",
            "regret": "regret of the weights held",
        }.items():
            names = [name for name in grouped_rows(here, "strategy") if ", λ_r" not in name]
            cells = [[name, *(_cell(here, market, name, budget, key) for budget in BUDGETS)] for name in names]
            if key == "mse":
                cells += _probes([row for row in trained if row["market"] == market])
            caption = f"{market}: {title} × 1e4, {seeds} seed(s) of {series} series × {steps} decisions"
            found.append(Table(caption, ["strategy", *(f"γ={g:g}" for g in BUDGETS)], cells, note))
    return [*tables_with_last_note(found), *_pairs(best)]


def _cell(rows: list[Row], market: str, name: str, budget: float, key: str) -> str:
    own = [row for row in rows if row["strategy"] == name and row["turnover_l1"] == budget]
    if not own:
        return "–"
    scores = 1e4 * np.concatenate([row[f"{key}_series"] for row in own])
    row, paper = _PAPER_ROWS.get(name, ""), None
    if key == "mse" and row:
        grid = [value for weight in RETURN_WEIGHTS if (value := _published(market, budget, weight, row)) is not None]
        paper = 1e4 * min(grid)
    return quantity_cell(float(scores.mean()), ".1f", portfolio_bootstrap_error(scores), paper, ".0f")


def _probes(rows: list[Row]) -> list[list[str]]:
    """What the trained models read, on the oracle's history."""
    found = []
    for name, own in grouped_rows(rows, "strategy").items():
        for key, title in {"shown_oracle_mse": "s* history", "other_returns_mse": "s* history, other returns"}.items():
            by_budget = grouped_rows(own, "turnover_l1")
            cells = [
                f"{1e4 * np.mean([row[key] for row in by_budget[g]]):.1f}" if g in by_budget else "–" for g in BUDGETS
            ]
            found.append([f"{name} on {title}", *cells])
    return found


def _pairs(best: list[Row]) -> list[Table]:
    """How much less MSE and regret Time2Decide has than the others, in pairs on the same series."""
    found = []
    for market, here in grouped_rows(best, "market").items():
        for key, unit in {"mse": "MSE less by, per cent", "regret": "regret less by, × 1e-4"}.items():
            pairs = [(_OURS, other) for other in _PAPER_ROWS if other != _OURS]
            pairs += [(_POLICY, other) for other in _AGAINST]
            cells = [
                [f"{one} against {other}", *(_pair_cell(here, one, other, budget, key) for budget in BUDGETS)]
                for one, other in pairs
            ]
            caption = f"{market}: {unit}, in pairs on the same series, {CONFIDENCE:.0%} intervals"
            found.append(Table(caption, ["", *(f"γ={g:g}" for g in BUDGETS)], cells))
    return found


def _pair_cell(rows: list[Row], ours: str, other: str, budget: float, key: str) -> str:
    here = [row for row in rows if row["turnover_l1"] == budget]
    seeds = [{row["seed"] for row in here if row["strategy"] == name} for name in (ours, other)]
    if not seeds[0] & seeds[1]:
        return "–"
    middle, low, high = portfolio_gain(*paired_portfolio_scores(here, ours, other, budget, key), key)
    return f"{middle:z.1f} [{low:z.1f}, {high:z.1f}]"


EXPERIMENTS = (
    Experiment(
        id="lambda-sweep",
        title="The paper's decisions: Uniform, Pretrained, predict-then-optimise, SFT and Time2Decide as written",
        paper="Tables of Section 5.2, and of the λ_r sweep in Appendices H and I, clean and noisy",
        presets={"smoke": "30 s", "cpu": "1 h", "paper": "weeks on one GPU: 448 trainings"},
        tasks=tasks_on_lmc(_tasks),
        run=_run,
        tables=_tables,
        claims=_claims,
    ),
)
