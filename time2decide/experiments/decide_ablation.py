"""What the decision network gains from the covariance, and from forecasting beside deciding.

One network per answer to "what is it told of the covariance" and per weight λ_r of the forecasts in the loss, all with
the same short recipe. Scored with the oracle's past allocations on episodes of validation and evaluation series; λ_r
is chosen by the former.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import torch

from time2decide.experiments.findings import held, show_findings
from time2decide.experiments.registry import Experiment
from time2decide.markets.oracle import RISK_AVERSION
from time2decide.policy.episodes import EpisodeConfig, episodes
from time2decide.policy.losses import Group
from time2decide.policy.network import COVARIANCES, HISTORY, Policy, PolicyConfig
from time2decide.policy.training import PRESETS, train_policy

Config = dict[str, Any]
Row = dict[str, Any]
_RETURN_WEIGHTS = (0.0, 0.1, 1.0)
_KINDS = {"clean": (0.0, 0.0), "noisy": (0.004, 0.012)}  # noise levels that count as the market
_BUDGETS = {"γ < 0.9": (0.0, 0.9), "0.9 ≤ γ < 1.4": (0.9, 1.4), "1.4 ≤ γ": (1.4, 2.1)}
NOTE = (
    "none: standardised windows only (SFT); correlation: and correlations; scale: and standard deviations and "
    "means;\ncovariance: standard deviations and correlations; full: all three."
)


def tasks(preset: str) -> list[Config]:
    """Five views of the covariance with λ_r = 0.1, and the other weights with the full view."""
    steps, stretch_count = {"smoke": (6, 6), "cpu": (1000, 150), "paper": (5000, 1000)}[preset]
    weight = PRESETS["cpu"].return_weight
    pairs = [(covariance, weight) for covariance in COVARIANCES]
    pairs += [("full", other) for other in _RETURN_WEIGHTS if other != weight]
    pairs = pairs[:2] if preset == "smoke" else pairs
    recipe = "smoke" if preset == "smoke" else "cpu"
    common = {"steps": steps, "stretches": stretch_count, "recipe": recipe, "seed": 0}
    return [{"covariance": c, "return_weight": w, **common} for c, w in pairs]


def run(config: Config) -> list[Row]:
    """Train one network and score it on both splits."""
    recipe = replace(
        PRESETS[config["recipe"]],
        steps=config["steps"],
        return_weight=config["return_weight"],
        model=PolicyConfig(covariance=config["covariance"]),
        seed=config["seed"],
    )
    with tempfile.TemporaryDirectory() as folder:
        policy = train_policy(recipe, folder)
    return [row for split in ("validation", "evaluation") for row in _scores(policy, config, split)]


@torch.no_grad()
def _scores(policy: Policy, config: Config, split: str) -> list[Row]:
    """MSE by kind of market and size of budget, with its standard error over episodes."""
    count = config["stretches"]
    episode = EpisodeConfig(count=count, split=split, series=30 if count > 10 else 4, seed=1)
    group = Group(episodes(episode))
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


def findings(rows: list[Row]) -> list[Row]:
    """What the paper says of covariance and of the return loss, one case per market and size of the budget."""
    measured = [row for row in rows if not row["error"] and row["mse"] is not None]
    usual = PRESETS["cpu"].return_weight
    told = {name: _by_cell(measured, (name, usual), "evaluation") for name in COVARIANCES}
    known = {w: _by_cell(measured, ("full", w), "validation") for w in _RETURN_WEIGHTS}
    known = {weight: scores for weight, scores in known.items() if scores}
    positive = [weight for weight in known if weight > 0]
    forecasting: dict[tuple[str, str], float] = {}
    if positive:
        best = min(positive, key=lambda weight: mean(known[weight].values()))
        forecasting = _by_cell(measured, ("full", best), "evaluation")
    pairs = {
        "Our network: told of the covariance it is below the one told nothing (SFT)": (
            told["covariance"],
            told["none"],
        ),
        "Our network: covariance and means together are below nothing (SFT)": (told["full"], told["none"]),
        "Our network: correlations alone, which the paper's tokens hold, are below nothing (SFT)": (
            told["correlation"],
            told["none"],
        ),
        "Our network: correlations improve on standard deviations and means alone": (told["full"], told["scale"]),
        "Our network: forecasting beside deciding (the best λ_r > 0) is below λ_r = 0": (
            forecasting,
            _by_cell(measured, ("full", 0.0), "evaluation"),
        ),
    }
    return [held(text, *_compared(*pair)) for text, pair in pairs.items()]


def _by_cell(rows: list[Row], name: tuple[str, float], split: str) -> dict[tuple[str, str], float]:
    return {(row["market"], row["budgets"]): row["mse"] for row in rows if _is(row, name, split)}


def _compared(ours: dict[tuple[str, str], float], theirs: dict[tuple[str, str], float]) -> tuple[list[bool], str]:
    """Whether ours is lower, cell by cell, and by how much."""
    less = [100 * (1 - ours[cell] / theirs[cell]) for cell in ours.keys() & theirs.keys()]
    return [value > 0 for value in less], f"{min(less):.1f} to {max(less):.1f} % less MSE" if less else ""


def show(rows: list[Row]) -> str:
    """Both ablations, MSE × 1e4."""
    measured = [row for row in rows if not row["error"] and row["mse"] is not None]
    failed = [
        f"failed: {row['covariance']}, λ_r = {row['return_weight']}: {row['error']}" for row in rows if row["error"]
    ]
    names = list(dict.fromkeys((row["covariance"], row["return_weight"]) for row in measured))
    cells = list(dict.fromkeys((row["market"], row["budgets"]) for row in measured))
    blocks = [*failed]
    for split in ("evaluation", "validation"):
        lines = [f"MSE × 1e4 on {split} episodes, the oracle's past allocations as history"]
        lines.append(
            "covariance     λ_r".ljust(24) + "".join(f"{market} {budgets}".rjust(22) for market, budgets in cells)
        )
        for name in names:
            found = {(r["market"], r["budgets"]): r for r in measured if _is(r, name, split)}
            text = "".join(_cell(found.get(cell)).rjust(22) for cell in cells)
            lines.append(f"{name[0]:14s} {name[1]:<8g}".ljust(24) + text)
        blocks.append("\n".join(lines))
    blocks.append(NOTE)
    blocks.append(show_findings(findings(rows)))
    return "\n\n".join(blocks)


def _is(row: Row, name: tuple[str, float], split: str) -> bool:
    return (row["covariance"], row["return_weight"]) == name and row["split"] == split


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    error = f" ± {1e4 * row['mse_error']:.1f}" if row["mse_error"] is not None else ""
    return f"{1e4 * row['mse']:.1f}{error}"


EXPERIMENTS = (
    Experiment(
        id="decide-ablation",
        title="What the decision network gains from the covariance, and from forecasting",
        paper="Section 5.2 (SFT against Time2Decide) and Appendix H, for our network",
        presets={"smoke": "20 s", "cpu": "25 min", "paper": "3 h"},
        tasks=tasks,
        run=run,
        show=show,
        findings=findings,
    ),
)
