"""What each repair of the paper's model brings, and what covariance tokens bring at larger risk aversions.

`paper-ablation` trains the repaired model, and the same with one repair taken back, by the same recipe for the same
number of steps from the same backbone, at three λ together, and rolls each out on its own history on the same series.
`paper-risks` rolls out the bundled models, with and without covariance tokens, at the λ that the main tables lack.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from typing import Any

from time2decide.backtesting.baselines import Uniform, backbone_pto
from time2decide.core.table import Table, quantity_cell, tables_with_last_note
from time2decide.experiments.claims import REPAIRED_ARCHITECTURE, Claim
from time2decide.experiments.portfolio import RETURNS_SCALE, network_fingerprint
from time2decide.experiments.portfolio_scores import (
    CONFIDENCE,
    paired_portfolio_scores,
    portfolio_gain,
    scored_portfolio_rows,
    shown_oracle_history,
    tasks_on_lmc,
)
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW
from time2decide.markets.synthetic import LMCConfig, synthetic_oracle, synthetic_returns
from time2decide.policy.paper_model import REPAIRED, PaperModel, PaperModelStrategy
from time2decide.policy.readout import ReadoutConfig
from time2decide.policy.repaired_training import REPAIRED_PRESETS, RepairedTraining, train_repaired
from time2decide.simulation.engine import Strategy

_FULL, _SFT = "repaired", "no covariance tokens (SFT)"
_GRADIENT: dict[str, Any] = {"readout": ReadoutConfig(gradient_passes=4)}
_JOINT: dict[str, Any] = {"readout": None, "normalisation": "joint"}
#: Arm -> changes of the model's switches, and of the recipe.
ARMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    _FULL: ({}, {}),
    _SFT: ({"covariance": False}, {}),
    "with the risk gradient": (_GRADIENT, {}),
    "with the risk gradient (SFT)": ({**_GRADIENT, "covariance": False}, {}),
    "literal read-out after joint normalisation": (_JOINT, {}),
    "literal read-out after joint normalisation (SFT)": ({**_JOINT, "covariance": False}, {}),
    "literal read-out": ({"readout": None}, {}),
    "literal read-out (SFT)": ({"readout": None, "covariance": False}, {}),
    "with one pass of the risk gradient": ({"readout": ReadoutConfig(gradient_passes=1)}, {}),
    "no skip from the forecast": ({"readout": replace(REPAIRED["readout"], skip=False)}, {}),
    "oracle's histories": ({}, {"own": 0.0, "corrupted": 0.0}),
    "corrupted histories only": ({}, {"own": 0.0, "corrupted": 0.9}),
    "allocations normalised per channel": ({"allocation_scale": None}, {}),
    "returns not scaled": ({"returns_scale": 1.0}, {}),
    "no moments in the covariance tokens": ({"moments": False}, {}),
    "no tokens for γ and λ": ({"conditioned": False}, {}),
    "no return loss": ({}, {"return_weight": 0.0}),
}
#: With and without covariance tokens, by what else the read-out knows of sizes and risk.
PAIRS: dict[str, tuple[str, str]] = {
    "sizes in the read-out": (_FULL, _SFT),
    "sizes and the risk gradient in the read-out": ("with the risk gradient", "with the risk gradient (SFT)"),
    "one normalisation for all returns": (
        "literal read-out after joint normalisation",
        "literal read-out after joint normalisation (SFT)",
    ),
    "every channel normalised": ("literal read-out", "literal read-out (SFT)"),
}
_LONGER = PAIRS["one normalisation for all returns"]  # trained longer as well
_RISKS = (RISK_AVERSION, 10.0, 100.0)
_BUDGETS = (0.5, 1.0, 2.0)
_REFERENCES = "references"


def _tasks(preset: str) -> list[Config]:
    """One task per market and arm, and one for the references; the second market has two pairs only.

    These two pairs are trained again from other seeds, on other series; a pair with the literal read-out is also
    trained longer, because it learns more slowly.
    """
    if preset == "smoke":
        shared: Config = {"recipe": "smoke", "steps": 3, "evaluation": [1, 4], "length": 320, "seed": 0}
        return [{"market": "clean", "arm": arm, **shared} for arm in (_REFERENCES, *list(ARMS)[:3])]
    shared = {"seed": 0, "recipe": "cpu", "steps": 400, "evaluation": [10, 150], "length": 1024}
    if preset == "paper":
        shared |= {"steps": 5_000, "evaluation": [30, 928]}
    paired = [arm for pair in list(PAIRS.values())[:2] for arm in pair]
    arms = {"clean": list(ARMS), "noisy-matched": paired}
    once = [{"market": market, "arm": arm, **shared} for market, some in arms.items() for arm in (_REFERENCES, *some)]
    again = [{"market": "clean", "arm": arm, **shared, "seed": seed} for seed in (1, 2) for arm in paired]
    longer = [{"market": "clean", "arm": arm, **shared, "steps": 4 * shared["steps"]} for arm in _LONGER]
    return [*once, *again, *longer]


def ablation_recipe(config: Config) -> RepairedTraining:
    """The recipe of an arm, on one market; its pool of own histories is as much shorter as its training."""
    base = REPAIRED_PRESETS[config["recipe"]]
    switches, changes = ARMS[config["arm"]]
    sizes: dict[str, Any] = {"episodes": max(3, base.episodes // 2), "episode_steps": max(3, base.episode_steps // 2)}
    model = replace(base.model, **switches)
    here: dict[str, Any] = {
        "markets": (config["market"],),
        "risks": _RISKS,
        "steps": config["steps"],
        "seed": config["seed"],
    }
    return replace(base, model=model, **here, **sizes, **changes)


def _run(config: Config) -> list[Row]:
    """Train an arm and score it at every λ, or score the references."""
    backbone = TimePFN.from_pretrained()
    if config["arm"] == _REFERENCES:
        strategies: list[Strategy] = [Uniform(), backbone_pto(backbone, RETURNS_SCALE)]
    else:
        with tempfile.TemporaryDirectory() as folder:
            model = train_repaired(ablation_recipe(config), backbone, folder)
        strategies = [PaperModelStrategy((model,), config["arm"])]
    found = []
    for risk in _RISKS:
        returns, oracle = _data(config, risk, _BUDGETS)
        options: Any = {"budgets": _BUDGETS, "risk_aversion": risk}
        for one in strategies:
            rows = scored_portfolio_rows(one.name, one, returns, oracle, **options)
            if config["arm"] != _REFERENCES:
                shown = shown_oracle_history(one, returns, oracle, every=16, **options)
                rows = [row | probe for row, probe in zip(rows, shown, strict=True)]
            found += [{"risk_aversion": risk, **row} for row in rows]
    return found


def _data(config: Config, risk: float, budgets: tuple[float, ...]) -> tuple[Any, Any]:
    """Returns (series, time, m) and the oracle at λ (series, budgets, time, m) of the evaluation series."""
    count, steps = config["evaluation"]
    options: Any = {"count": count, "seed": config["seed"], "config": LMCConfig(length=config["length"])}
    returns = synthetic_returns(config["market"], **options)[:, : WINDOW + steps]
    oracle = synthetic_oracle(config["market"], risk_aversion=risk, **options)
    return returns, oracle[:, [BUDGETS.index(budget) for budget in budgets], : WINDOW + steps]


def _tables(rows: list[Row]) -> list[Table]:
    """A table per market and λ: a line per arm; then what covariance tokens bring in each pair of arms."""
    note = (
        "MSE × 1e4 of the raw output to the oracle on its own history, ± standard error over series. shown s*: mean "
        "over γ with the oracle's history (teacher forcing); other returns: the same with the returns of another "
        "series. Every arm is the repaired model but for what its name says, one training for all γ and λ; training "
        f"steps as in the caption, of {REPAIRED_PRESETS[rows[0]['recipe']].batch} windows each, on this market alone. "
        "Only the first seed, so that all arms have the same series."
    )
    found = []
    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    for (market, risk, _), here in grouped_rows(first, "market", "risk_aversion", "steps").items():
        cells = []
        for name, own in grouped_rows(here, "strategy").items():
            by_budget = {row["turnover_l1"]: row for row in own}
            keys = ("shown_oracle_mse", "other_returns_mse")
            probes = [f"{1e4 * sum(row[k] for row in own) / len(own):.1f}" if k in own[0] else "–" for k in keys]
            cells.append([name, *(_mse(by_budget[g]) for g in _BUDGETS), *probes])
        series, steps = here[0]["evaluation"]
        sizes = f"{here[0]['steps']} training steps, {series} series × {steps} decisions"
        caption = f"{market}, λ = {risk:g}: the repaired model without one repair, {sizes}"
        columns = ["arm", *(f"γ={g:g}" for g in _BUDGETS), "shown s*", "other returns"]
        found.append(Table(caption, columns, cells, note))
    return [*tables_with_last_note(found), _pair_table(rows)]


def _mse(row: Row) -> str:
    error = row.get("mse_error")
    return quantity_cell(1e4 * row["mse"], ".1f", None if error is None else 1e4 * error)


def _pair_table(rows: list[Row]) -> Table:
    """MSE that covariance tokens save, per cent, in every pair of arms, market and λ; all seeds, and each."""
    cells = []
    for (market, risk, steps), here in grouped_rows(rows, "market", "risk_aversion", "steps").items():
        for title, (ours, sft) in PAIRS.items():
            seeds = _paired_seeds(here, ours, sft)
            if seeds:
                each = [_each_gain(here, ours, sft, budget, seeds) for budget in _BUDGETS]
                texts = [
                    f"{all_} {one}".strip() for all_, one in zip(_gains(here, ours, sft, _BUDGETS), each, strict=True)
                ]
                cells.append([market, f"{risk:g}", title, f"{steps}", *texts])
    columns = ["market", "λ", "read-out", "steps", *(f"γ={g:g}" for g in _BUDGETS)]
    caption = (
        f"What covariance tokens save of the MSE, per cent, in pairs on the same series, {CONFIDENCE:.0%} intervals"
    )
    note = "Where a pair was trained from several seeds: over all of their series, then (seed by seed)."
    return Table(caption, columns, cells, note)


def _paired_seeds(rows: list[Row], ours: str, sft: str) -> list[int]:
    """Seeds from which both arms of a pair were trained."""
    mine, theirs = ({row["seed"] for row in rows if row["strategy"] == name} for name in (ours, sft))
    return sorted(mine & theirs)


def _each_gain(rows: list[Row], ours: str, sft: str, budget: float, seeds: list[int]) -> str:
    """What tokens save at one budget, seed by seed, if there are several: the noise of training."""
    if len(seeds) < 2:
        return ""
    by_seed = grouped_rows(rows, "seed")
    gains = [portfolio_gain(*paired_portfolio_scores(by_seed[k], ours, sft, budget, "mse"), "mse")[0] for k in seeds]
    return f"({', '.join(f'{gain:.0f}' for gain in gains)})"


def _gains(rows: list[Row], ours: str, other: str, budgets: tuple[float, ...], key: str = "mse") -> list[str]:
    gains = [portfolio_gain(*paired_portfolio_scores(rows, ours, other, budget, key), key) for budget in budgets]
    digits = 0 if key == "mse" else 2
    return [f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]" for middle, low, high in gains]


def ablation_covariance_claims(rows: list[Row], ours: str, sft: str, judged_on: str, where: str = "") -> list[Claim]:
    """The paper's sentence on covariance tokens, λ by λ.

    A case is one market and γ; it is supported if the interval of what tokens save, over all series, is above zero.
    The evidence also counts the cases with less MSE on average.
    """
    found = []
    for risk, here in grouped_rows(rows, "risk_aversion").items():
        cells = [own for own in grouped_rows(here, "market", "turnover_l1").values() if _paired_seeds(own, ours, sft)]
        if not cells:
            continue
        pairs = [paired_portfolio_scores(own, ours, sft, own[0]["turnover_l1"], "mse") for own in cells]
        surely = [portfolio_gain(mine, theirs, "mse")[1] > 0 for mine, theirs in pairs]
        less = sum(bool(mine.mean() < theirs.mean()) for mine, theirs in pairs)
        text = f"Covariance tokens improve decisions, λ = {risk:g}{where}"
        beside = f"counted if the interval is above 0; less MSE on average in {less} of {len(pairs)}"
        found.append(Claim(text, surely, beside, judged_on=judged_on))
    return found


def _claims(rows: list[Row]) -> list[Claim]:
    """Every pair of arms by itself, and by how long it was trained."""
    judged_on = "the paper's architecture, repaired as its name says, {} training steps"
    return [
        claim
        for steps, here in grouped_rows(rows, "steps").items()
        for title, (ours, sft) in PAIRS.items()
        for claim in ablation_covariance_claims(here, ours, sft, judged_on.format(steps), f", {title}")
    ]


_MODELS = {"paper-repaired": "repaired", "paper-repaired-sft": "repaired-sft"}  # strategy -> bundled checkpoint


def _risk_tasks(preset: str) -> list[Config]:
    """One task per market, λ and strategy; a checkpoint is named by its weights."""
    risks, markets = list(_RISKS[1:]), ["clean", "noisy", "noisy-matched"]
    sizes: Config = {"evaluation": [30, 200 if preset == "cpu" else 928], "length": 1024, "seed": 0}
    if preset == "smoke":
        risks, markets, sizes = risks[:1], markets[:1], {"evaluation": [2, 3], "length": 128, "seed": 0}
    networks = {name: {"network": network_fingerprint(bundled)} for name, bundled in _MODELS.items()}
    strategies: dict[str, Config] = {"uniform": {}, "pto-timepfn": {}, **networks}
    return [
        {"market": market, "risk_aversion": risk, "strategy": name, **sizes, **needs}
        for risk in risks
        for market in markets
        for name, needs in strategies.items()
    ]


def _run_risk(config: Config) -> list[Row]:
    """Score one strategy at one λ."""
    name, risk = config["strategy"], config["risk_aversion"]
    returns, oracle = _data(config, risk, BUDGETS)
    if name in _MODELS:
        strategy: Strategy = PaperModelStrategy((PaperModel.from_pretrained(_MODELS[name]),), name)
    else:
        strategy = Uniform() if name == "uniform" else backbone_pto(TimePFN.from_pretrained(), RETURNS_SCALE)
    return scored_portfolio_rows(name, strategy, returns, oracle, risk_aversion=risk)


def _risk_tables(rows: list[Row]) -> list[Table]:
    """A table per market and λ: MSE of every strategy, and the comparisons of the repaired model in pairs."""
    note = (
        "MSE × 1e4 of the raw output to the oracle of that λ on its own history, ± standard error over series; below "
        f"it, per cent of the MSE (regret: 1e-4 a step) that paper-repaired saves, in pairs, {CONFIDENCE:.0%} "
        "intervals. One checkpoint each for all γ and λ. paper-repaired-sft: trained the same without covariance "
        "tokens. λ = 0.1 is in portfolio-clean and portfolio-noisy."
    )
    ours, found = "paper-repaired", []
    for (market, risk), here in grouped_rows(rows, "market", "risk_aversion").items():
        by_name = grouped_rows(here, "strategy")
        cells = [[name, *(_mse(row) for row in own)] for name, own in by_name.items()]
        for other in (name for name in by_name if name != ours and ours in by_name):
            cells.append([f"saves against {other}", *_gains(here, ours, other, BUDGETS)])
            if other != "uniform":
                cells.append([f"regret saved against {other}", *_gains(here, ours, other, BUDGETS, "regret")])
        series, steps = here[0]["evaluation"]
        caption = f"{market}, λ = {risk:g}: the paper's architecture, repaired, {series} series × {steps} decisions"
        found.append(Table(caption, ["strategy", *(f"γ={g:g}" for g in BUDGETS)], cells, note))
    return tables_with_last_note(found)


EXPERIMENTS = (
    Experiment(
        id="paper-ablation",
        title="The paper's architecture repaired, one repair taken back at a time",
        paper="None: the paper has no ablation",
        presets={"smoke": "15 s", "cpu": "2.5 h", "paper": "two days on a GPU"},
        tasks=tasks_on_lmc(_tasks),
        run=_run,
        tables=_tables,
        claims=_claims,
    ),
    Experiment(
        id="paper-risks",
        title="The paper's architecture, repaired, with and without covariance tokens at larger risk aversions",
        paper="None: the paper has one risk aversion",
        presets={"smoke": "10 s", "cpu": "40 min", "paper": "5 h"},
        tasks=tasks_on_lmc(_risk_tasks),
        run=_run_risk,
        tables=_risk_tables,
        claims=partial(
            ablation_covariance_claims, ours="paper-repaired", sft="paper-repaired-sft", judged_on=REPAIRED_ARCHITECTURE
        ),
    ),
)
