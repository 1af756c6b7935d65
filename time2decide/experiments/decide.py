"""The decision network trained again: from another seed, and with parts of its input left out.

The seeds test whether the table of the bundled network comes out again. The ablation measures what the network gains
from the covariance and from forecasting beside deciding: one network per view of the covariance (`COVARIANCES`) and per
weight λ_r of the forecasts in the loss, all with the same short recipe. They are scored with the oracle's past
allocations on episodes of validation and evaluation series; λ_r is chosen by the former.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from statistics import mean

import numpy as np
import torch

from time2decide.core.table import Table, quantity_cell, tables_with_last_note
from time2decide.experiments.claims import OUR_NETWORK, Claim
from time2decide.experiments.portfolio import (
    RememberedFeatures,
    network_fingerprint,
    portfolio_series_with_features,
)
from time2decide.experiments.portfolio_scores import portfolio_scores, scored_portfolio_rows, tasks_on_lmc
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION
from time2decide.policy.model import PolicyStrategy, load_policy
from time2decide.policy.network import COVARIANCES, HISTORY, Policy, PolicyConfig
from time2decide.policy.training import (
    PRESETS,
    EpisodeConfig,
    EpisodeGroup,
    PolicyTraining,
    make_episodes,
    train_policy,
)

_HISTORIES = {"time2decide": "hindsight", "time2decide-own": "own"}
_RETURN_WEIGHTS = (0.0, 0.1, 1.0)
_KINDS = {"clean": (0.0, 0.0), "noisy": (0.004, 0.012)}  # noise levels that count as the market
_BUDGETS = {"γ < 0.9": (0.0, 0.9), "0.9 ≤ γ < 1.4": (0.9, 1.4), "1.4 ≤ γ": (1.4, 2.1)}


def _seeds_tasks(preset: str) -> list[Config]:
    """The bundled network, and one of another seed."""
    sizes = {"evaluation": 2, "length": 128} if preset == "smoke" else {"evaluation": 30, "length": 1024}
    common = {"recipe": preset, "seed": 0, **sizes}
    return [common | {"trained": "bundled", "network": network_fingerprint("decide")}, common | {"trained": "seed 1"}]


def _run_seeds(config: Config) -> list[Row]:
    """Train if need be, then score on both markets with both histories."""
    torch.set_num_threads(1)
    bundled = config["trained"] == "bundled"
    policy = load_policy("decide")[0] if bundled else _train(replace(PRESETS[config["recipe"]], seed=1))
    rows = []
    for market in ("clean", "noisy"):
        look = RememberedFeatures()
        data = portfolio_series_with_features(config | {"market": market}, "evaluation", look)
        for name, history in _HISTORIES.items():
            strategy = PolicyStrategy(policy, history, name, look)
            rows += [row | {"market": market} for row in scored_portfolio_rows(name, strategy, *data)]
    return rows


def _train(recipe: PolicyTraining) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        return train_policy(recipe, folder)


def _seeds_tables(rows: list[Row]) -> list[Table]:
    """MSE × 1e4 of both networks, and their difference in standard errors of the mean over series."""
    cells = []
    for (market, strategy), chosen in sorted(grouped_rows(rows, "market", "strategy").items()):
        scores = {
            trained: [portfolio_scores(own, strategy, g, "mse") for g in BUDGETS]
            for trained, own in sorted(grouped_rows(chosen, "trained").items())
        }
        for trained, line in scores.items():
            cells.append([f"{market}, {strategy}, {trained}", *(f"{1e4 * found.mean():.1f}" for found in line)])
        if len(scores) == 2:
            pairs = zip(*scores.values(), strict=True)
            apart = [(two.mean() - one.mean()) / (one.std(ddof=1) / len(one) ** 0.5) for one, two in pairs]
            cells.append(["difference in standard errors", *(f"{value:+.2f}" for value in apart)])
    return [Table("MSE × 1e4", ["market, strategy, training", *(f"γ={g:g}" for g in BUDGETS)], cells)]


def _ablation_tasks(preset: str) -> list[Config]:
    """Five views of the covariance with λ_r = 0.1, and the other weights with the full view."""
    steps, count = {"smoke": (6, 6), "cpu": (1000, 150), "paper": (5000, 1000)}[preset]
    weight = PRESETS["cpu"].return_weight
    pairs = [(covariance, weight) for covariance in COVARIANCES]
    pairs += [("full", other) for other in _RETURN_WEIGHTS if other != weight]
    pairs = pairs[:2] if preset == "smoke" else pairs
    recipe = "smoke" if preset == "smoke" else "cpu"
    common = {"steps": steps, "stretches": count, "recipe": recipe, "seed": 0}
    return [{"covariance": c, "return_weight": w, **common} for c, w in pairs]


def _run_ablation(config: Config) -> list[Row]:
    """Train one network and score it on both splits."""
    changes = {key: config[key] for key in ("steps", "return_weight", "seed")}
    model = PolicyConfig(covariance=config["covariance"])
    policy = _train(replace(PRESETS[config["recipe"]], **changes, model=model))
    return [row for split in ("validation", "evaluation") for row in _scores(policy, config, split)]


@torch.no_grad()
def _scores(policy: Policy, config: Config, split: str) -> list[Row]:
    """MSE by kind of market and size of budget, with its standard error over episodes."""
    count = config["stretches"]
    episode = EpisodeConfig(count=count, split=split, series=30 if count > 10 else 4, seed=1)
    group = EpisodeGroup(make_episodes(episode))
    k = group.data.turnover_l1.shape[1]
    place, budget = torch.arange(count).repeat_interleave(k), torch.arange(k).repeat(count)
    errors = np.zeros((count, k))
    for s in range(group.steps):
        step = torch.full_like(place, s)
        answer = policy(group.observation(place, budget, step, torch.ones(len(place))))
        target = group.data.oracle[place, budget, HISTORY + s]
        errors += (answer.weights - target).square().mean(-1).view(count, k).numpy() / group.steps
    noise, gamma = group.data.noise.numpy(), group.data.turnover_l1.numpy()
    usual = np.isclose(group.data.risk_aversion.numpy(), RISK_AVERSION)
    rows = []
    for market, (low, high) in _KINDS.items():
        for label, (least, most) in _BUDGETS.items():
            chosen = (usual & (noise >= low) & (noise <= high))[:, None] & (gamma >= least) & (gamma < most)
            found = errors[chosen]
            error = float(found.std(ddof=1) / len(found) ** 0.5) if len(found) > 1 else None
            mse = float(found.mean()) if len(found) else None
            rows.append({"split": split, "market": market, "budgets": label, "mse": mse, "mse_error": error})
    return rows


def _ablation_claims(rows: list[Row]) -> list[Claim]:
    """What the paper says of covariance and of the return loss, one case per market and size of the budget."""
    rows = [row for row in rows if row["mse"] is not None]
    usual = PRESETS["cpu"].return_weight
    scores = {name: _by_cell(rows, (name, usual), "evaluation") for name in COVARIANCES}
    known = {w: _by_cell(rows, ("full", w), "validation") for w in _RETURN_WEIGHTS}
    positive = [weight for weight, scores in known.items() if scores and weight > 0]
    forecasting: dict[tuple[str, str], float] = {}
    if positive:
        best = min(positive, key=lambda weight: mean(known[weight].values()))
        forecasting = _by_cell(rows, ("full", best), "evaluation")
    plain, nothing = _by_cell(rows, ("full", 0.0), "evaluation"), scores["none"]
    correlations = "Correlations alone, which the paper's tokens hold, are below nothing (SFT)"
    pairs = {
        "Told of the covariance it is below the one told nothing (SFT)": (scores["covariance"], nothing),
        "Covariance and means together are below nothing (SFT)": (scores["full"], nothing),
        correlations: (scores["correlation"], nothing),
        "Correlations improve on standard deviations and means alone": (scores["full"], scores["scale"]),
        "Forecasting beside deciding (the best λ_r > 0) is below λ_r = 0": (forecasting, plain),
    }
    return [Claim(text, *_compared(*pair), judged_on=OUR_NETWORK) for text, pair in pairs.items()]


def _by_cell(rows: list[Row], name: tuple[str, float], split: str) -> dict[tuple[str, str], float]:
    return {cell: row["mse"] for cell, row in _rows_of(rows, name, split).items()}


def _rows_of(rows: list[Row], name: tuple[str, float], split: str) -> dict[tuple[str, str], Row]:
    """Market and size of the budget -> row of one network, (covariance, λ_r), on a split."""
    known = (row for row in rows if (row["covariance"], row["return_weight"], row["split"]) == (*name, split))
    return {(row["market"], row["budgets"]): row for row in known}


def _compared(ours: dict[tuple[str, str], float], theirs: dict[tuple[str, str], float]) -> tuple[list[bool], str]:
    """Whether ours is lower, cell by cell, and by how much."""
    less = [100 * (1 - ours[cell] / theirs[cell]) for cell in ours.keys() & theirs.keys()]
    return [value > 0 for value in less], f"{min(less):.1f} to {max(less):.1f} % less MSE" if less else ""


def _ablation_tables(rows: list[Row]) -> list[Table]:
    """Both ablations, MSE × 1e4, on evaluation and on validation episodes."""
    rows = [row for row in rows if row["mse"] is not None]
    places = list(grouped_rows(rows, "market", "budgets"))
    note = (
        "none: standardised windows only (SFT); correlation: and correlations; scale: and standard deviations and "
        "means; covariance: standard deviations and correlations; full: all three."
    )
    found = []
    for split in ("evaluation", "validation"):
        cells = []
        for name in grouped_rows(rows, "covariance", "return_weight"):
            own = _rows_of(rows, name, split)
            cells.append([f"{name[0]}, λ_r = {name[1]:g}", *(_cell(own.get(place)) for place in places)])
        caption = f"MSE × 1e4 on {split} episodes, the oracle's past allocations as history"
        columns = ["told of the covariance", *(f"{market} {budgets}" for market, budgets in places)]
        found.append(Table(caption, columns, cells, note))
    return tables_with_last_note(found)


def _cell(row: Row | None) -> str:
    mse, error = (None if row is None or row[key] is None else 1e4 * row[key] for key in ("mse", "mse_error"))
    return quantity_cell(mse, ".1f", error)


EXPERIMENTS = (
    Experiment(
        id="decide-seeds",
        title="The decision network trained again from another seed",
        paper="none: the paper's tables are of one training",
        presets={"smoke": "20 s", "cpu": "25 min"},
        tasks=tasks_on_lmc(_seeds_tasks),
        run=_run_seeds,
        tables=_seeds_tables,
    ),
    Experiment(
        id="decide-ablation",
        title="What the decision network gains from the covariance, and from forecasting",
        paper="Section 5.2 (SFT against Time2Decide) and Appendix H, for our network",
        presets={"smoke": "20 s", "cpu": "25 min", "paper": "3 h"},
        tasks=tasks_on_lmc(_ablation_tasks),
        run=_run_ablation,
        tables=_ablation_tables,
        claims=_ablation_claims,
    ),
)
