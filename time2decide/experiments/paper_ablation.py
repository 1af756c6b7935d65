"""What each repair of the paper's model brings: the repaired model, and the same with one repair taken back.

Every arm is trained by the same recipe for the same number of steps from the same backbone, and rolled out on its own
history on the same series.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

from time2decide.backtesting.baselines import Uniform, backbone_pto
from time2decide.core.table import Table, quantity, with_last_note
from time2decide.experiments.paper_models import shown_oracle_history
from time2decide.experiments.portfolio import scored
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.lmc import LMCConfig
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW
from time2decide.markets.synthetic import synthetic_oracle, synthetic_returns
from time2decide.policy.paper_model import PaperModelStrategy
from time2decide.policy.readout import ReadoutConfig
from time2decide.policy.repaired_training import REPAIRED_PRESETS, RepairedTraining, train_repaired
from time2decide.simulation.engine import Strategy

#: Arm -> changes of the model's switches, and of the recipe.
ARMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "repaired": ({}, {}),
    "no covariance tokens (SFT)": ({"covariance": False}, {}),
    "literal read-out": ({"readout": None}, {}),
    "literal read-out, SFT": ({"readout": None, "covariance": False}, {}),
    "literal read-out, joint normalisation": ({"readout": None, "normalisation": "joint"}, {}),
    "literal read-out, joint normalisation, SFT": (
        {"readout": None, "normalisation": "joint", "covariance": False},
        {},
    ),
    "no skip from the forecast": ({"readout": ReadoutConfig(skip=False)}, {}),
    "oracle's histories": ({}, {"own": 0.0, "corrupted": 0.0}),
    "corrupted histories only": ({}, {"own": 0.0, "corrupted": 0.9}),
    "allocations normalised per channel": ({"allocation_scale": None}, {}),
    "returns not scaled": ({"returns_scale": 1.0}, {}),
    "no moments in the covariance tokens": ({"moments": False}, {}),
    "no tokens for γ and λ": ({"conditioned": False}, {}),
    "no return loss": ({}, {"return_weight": 0.0}),
}
#: Arms that are compared at larger λ too: covariance tokens or none, sizes restored in the read-out or not.
_AT_RISK = (
    "repaired",
    "no covariance tokens (SFT)",
    "literal read-out, joint normalisation",
    "literal read-out, joint normalisation, SFT",
    "literal read-out",
    "literal read-out, SFT",
)
_RISKS = (10.0, 100.0)
_BUDGETS = (0.5, 1.0, 2.0)
_REFERENCES = "references"


def tasks(preset: str) -> list[Config]:
    """One task per market and arm, and one for the references."""
    if preset == "smoke":
        shared: Config = {"recipe": "smoke", "steps": 3, "evaluation": [1, 4], "length": 320, "seed": 0}
        arms = (_REFERENCES, *list(ARMS)[:3])
        return [{"market": "clean", "arm": arm, "risk_aversion": RISK_AVERSION, **shared} for arm in arms]
    shared = {"seed": 0, "recipe": "cpu", "steps": 400, "evaluation": [10, 200], "length": 1024}
    if preset == "paper":
        shared |= {"steps": 5_000, "evaluation": [30, 928]}
    risks = {RISK_AVERSION: (_REFERENCES, *ARMS)} | {risk: (_REFERENCES, *_AT_RISK) for risk in _RISKS}
    return [
        {"market": market, "arm": arm, "risk_aversion": risk, **shared}
        for market in ("clean", "noisy-matched")
        for risk, arms in risks.items()
        for arm in arms
    ]


def recipe_of(config: Config) -> RepairedTraining:
    """The recipe of an arm, on one market."""
    base = REPAIRED_PRESETS[config["recipe"]]
    switches, changes = ARMS[config["arm"]]
    model = replace(base.model, **switches)
    recipe = {"markets": (config["market"],), "risks": (config["risk_aversion"],), "steps": config["steps"]}
    return replace(base, seed=config["seed"], model=model, **recipe, **changes)


def run(config: Config) -> list[Row]:
    """Train an arm and score it, or score the references."""
    count, steps = config["evaluation"]
    options: Any = {"count": count, "seed": config["seed"], "config": LMCConfig(length=config["length"])}
    returns = synthetic_returns(config["market"], **options)[:, : WINDOW + steps]
    chosen = [BUDGETS.index(budget) for budget in _BUDGETS]
    risk = config["risk_aversion"]
    oracle = synthetic_oracle(config["market"], risk_aversion=risk, **options)[:, chosen, : WINDOW + steps]
    options = {"budgets": _BUDGETS, "risk_aversion": risk}
    backbone = TimePFN.from_pretrained()
    if config["arm"] == _REFERENCES:
        strategies: list[Strategy] = [Uniform(), backbone_pto(backbone, 100.0)]
        return [row for one in strategies for row in scored(one.name, one, returns, oracle, **options)]
    with tempfile.TemporaryDirectory() as folder:
        model = train_repaired(recipe_of(config), backbone, folder)
    strategy = PaperModelStrategy((model,), config["arm"])
    shown = shown_oracle_history(strategy, returns, oracle, every=8, **options)
    rows = scored(config["arm"], strategy, returns, oracle, **options)
    return [row | probe for row, probe in zip(rows, shown, strict=True)]


def tables(rows: list[Row]) -> list[Table]:
    """A table per market and λ: a line per arm."""
    note = (
        "MSE × 1e4 of the raw output to the oracle on its own history, ± standard error over series. shown s*: mean "
        "over γ with the oracle's history (teacher forcing); other returns: the same with the returns of another "
        "series. Every arm is the repaired model but for what its name says; training steps as in the caption, of the "
        f"{REPAIRED_PRESETS[rows[0]['recipe']].batch} windows each, on this market alone."
    )
    found = []
    for (market, risk), here in grouped(rows, "market", "risk_aversion").items():
        cells = []
        for name, own in grouped(here, "strategy").items():
            by_budget = {row["turnover_l1"]: row for row in own}
            errors = [by_budget[g].get("mse_error") for g in _BUDGETS]
            figures = [
                quantity(1e4 * by_budget[g]["mse"], ".1f", None if error is None else 1e4 * error)
                for g, error in zip(_BUDGETS, errors, strict=True)
            ]
            keys = ("shown_oracle_mse", "other_returns_mse")
            probes = [f"{1e4 * sum(row[k] for row in own) / len(own):.1f}" if k in own[0] else "–" for k in keys]
            cells.append([name, *figures, *probes])
        series, steps = here[0]["evaluation"]
        sizes = f"{here[0]['steps']} training steps, {series} series × {steps} decisions"
        caption = f"{market}, λ = {risk:g}: the repaired model without one repair, {sizes}"
        columns = ["arm", *(f"γ={g:g}" for g in _BUDGETS), "shown s*", "other returns"]
        found.append(Table(caption, columns, cells, note))
    return with_last_note(found)


EXPERIMENTS = (
    Experiment(
        id="paper-ablation",
        title="The paper's architecture repaired, one repair taken back at a time",
        paper="None: the paper has no ablation",
        presets={"smoke": "15 s", "cpu": "5 h", "paper": "a day on a GPU"},
        tasks=tasks,
        run=run,
        tables=tables,
    ),
)
