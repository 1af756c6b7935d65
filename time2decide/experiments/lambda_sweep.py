"""The literal Time2Decide and SFT for several budgets γ and weights λ_r, on clean and noisy markets.

One model per cell, fine-tuned from the same backbone and rolled out on its own history. λ_r is chosen per market, γ
and model by the MSE of a rollout on validation series; the figures are those of the evaluation series.
"""

from __future__ import annotations

from typing import Any

from time2decide.backtesting.baselines import Uniform, backbone_pto
from time2decide.experiments.findings import held, show_findings
from time2decide.experiments.paper import published
from time2decide.experiments.paper_model_evaluation import SIZES, recipe_of, scored, teacher_forced
from time2decide.experiments.registry import Experiment
from time2decide.forecasting import TimePFN
from time2decide.markets import BUDGETS
from time2decide.policy.paper_model import PaperModelStrategy, pretrained_strategy
from time2decide.policy.paper_training import RETURN_WEIGHTS, train_paper_model

NAMES = {"time2decide": "Time2Decide", "sft": "SFT"}
REFERENCES = {"uniform": "Uniform", "pretrained": "Pretrained", "pto-timepfn": "Predict-then-Optimize"}
Config = dict[str, Any]
Row = dict[str, Any]


def tasks(preset: str) -> list[Config]:
    """The references of a market, then one task per market, γ, λ_r and model."""
    markets, budgets, weights = ["clean", "noisy"], list(BUDGETS), list(RETURN_WEIGHTS)
    if preset == "smoke":
        markets, budgets, weights = ["clean"], [1.0], [0, 1000]
    elif preset == "cpu":
        budgets, weights = [0.5, 1.0, 2.0], [0, 100, 3000, 40000]
    shared = {"seed": 0, **SIZES[preset]}
    found: list[Config] = [{"market": m, "model": "references", "budgets": budgets, **shared} for m in markets]
    for budget in sorted(budgets, key=lambda b: b != 1.0):
        for weight in weights:
            for market in markets:
                cell = {"market": market, "turnover_l1": budget, "return_weight": weight}
                found += [{**cell, "model": model, **shared} for model in NAMES]
    return found


def run(config: Config) -> list[Row]:
    """Fine-tune one model and roll it out, or roll out the references."""
    backbone = TimePFN.from_pretrained(config["backbone"])
    scale = recipe_of(config).returns_scale
    if config["model"] == "references":
        budgets = config["budgets"]
        strategies = (Uniform(), pretrained_strategy(backbone, scale), backbone_pto(backbone, scale))
        return [
            {"strategy": strategy.name, "turnover_l1": budget, **row}
            for strategy in strategies
            for budget, row in zip(budgets, scored(strategy, config, "evaluation", budgets), strict=True)
        ]
    recipe = recipe_of(
        config,
        turnover_l1=config["turnover_l1"],
        return_weight=float(config["return_weight"]),
        covariance=config["model"] == "time2decide",
    )
    model, progress = train_paper_model(recipe, backbone)
    strategy = PaperModelStrategy((model,), name=config["model"])
    known = scored(strategy, config, "validation", [config["turnover_l1"]])[0]
    row = scored(strategy, config, "evaluation", [config["turnover_l1"]])[0]
    training = {"steps": progress.step, "best_step": progress.best_step, "validation_loss": progress.best}
    row["teacher_forced_mse"] = teacher_forced(strategy, config, config["turnover_l1"])
    return [{"strategy": config["model"], **row, "validation_mse": known["mse"], **training}]


def findings(rows: list[Row]) -> list[Row]:
    """What the paper says of the sweep, one case per market and budget; λ_r is the one chosen on validation series."""
    cells: dict[tuple[str, float], list[Row]] = {}
    for row in (row for row in rows if not row["error"]):
        cells.setdefault((row["market"], row["turnover_l1"]), []).append(row)
    found = {cell: chosen_rows(some) for cell, some in cells.items()}

    def below(ours: str, rival: str, market: str = "", least: float = 0.0, most: float = 2.0) -> list[bool]:
        return [
            best[ours]["mse"] < best[rival]["mse"]
            for (name, budget), best in found.items()
            if {ours, rival} <= best.keys() and market in ("", name) and least <= budget <= most
        ]

    both = [best for best in found.values() if {"time2decide", "sft"} <= best.keys()]
    weights = [(best["sft"]["return_weight"], best["time2decide"]["return_weight"]) for best in both]
    dominated = [all(_beats(best, name) for name in (*REFERENCES, "sft") if name in best) for best in both]
    noisy = [case for case, best in zip(dominated, both, strict=True) if best["sft"]["market"] == "noisy"]
    pto = "pto-timepfn"
    return [
        held("Literal models: Time2Decide is below SFT at every γ", below("time2decide", "sft")),
        held("Literal models: Time2Decide is below Pretrained at every γ", below("time2decide", "pretrained")),
        held(
            "Literal models, clean: PtO is below Time2Decide for γ ≤ 1.25",
            below(pto, "time2decide", "clean", most=1.25),
        ),
        held("Literal models, clean: Time2Decide is below PtO for γ ≥ 1.5", below("time2decide", pto, "clean", 1.5)),
        held("Literal models, noisy: Time2Decide is below every other strategy in most cases", noisy, most=True),
        held(
            "Literal Time2Decide: the best λ_r > 0 is below λ_r = 0",
            below("time2decide, λ_r > 0", "time2decide, λ_r = 0"),
        ),
        held(
            "Literal models: SFT wants a smaller λ_r than Time2Decide in most cases",
            [tuned < ours for tuned, ours in weights],
            "chosen for SFT and Time2Decide: " + ", ".join(f"{a:g} and {b:g}" for a, b in weights) if weights else "",
            most=True,
        ),
    ]


def _beats(best: dict[str, Row], rival: str) -> bool:
    return bool(best["time2decide"]["mse"] < best[rival]["mse"])


def chosen_rows(rows: list[Row]) -> dict[str, Row]:
    """Strategy -> its row at one market and budget; of a learned one that with the least MSE on validation series."""
    found = {row["strategy"]: row for row in rows if row["model"] == "references"}
    for model in NAMES:
        own = [row for row in rows if row["model"] == model]
        parts = {
            model: own,
            f"{model}, λ_r > 0": [row for row in own if row["return_weight"]],
            f"{model}, λ_r = 0": [row for row in own if not row["return_weight"]],
        }
        found |= {name: min(some, key=lambda row: row["validation_mse"]) for name, some in parts.items() if some}
    return found


def show(rows: list[Row]) -> str:
    """A table per market and γ: MSE for every λ_r, the one chosen on validation series, the paper's in brackets."""
    blocks = [f"failed: {row['market']} {row['model']}: {row['error']}" for row in rows if row["error"]]
    measured = [row for row in rows if not row["error"]]
    for market in dict.fromkeys(row["market"] for row in measured):
        for budget in sorted({row["turnover_l1"] for row in measured if row["market"] == market}):
            chosen = [row for row in measured if row["market"] == market and row["turnover_l1"] == budget]
            blocks.append(_block(market, budget, chosen))
    if measured:
        first = measured[0]
        series, steps = first["evaluation"]
        blocks.append(
            f"Preset {first['preset']}: {series} evaluation series × {steps} decisions, own history, raw MSE before "
            "the projection. ±: standard error over series.\nBrackets: the paper's full-size models on 30 series × 928 "
            "decisions. chosen: λ_r with the least MSE of a rollout on\nvalidation series; in brackets the paper's "
            "best, which is the least of its whole row.\non s* history: the same models if they are shown the oracle's "
            "past allocations, as in training, instead of their own."
        )
        blocks.append(show_findings(findings(rows)))
    return "\n\n".join(blocks)


def _block(market: str, budget: float, rows: list[Row]) -> str:
    table = published(f"lambda_r_sweep_{market}")
    learned = [row for row in rows if row["model"] in NAMES]
    weights = sorted({row["return_weight"] for row in learned})
    lines = [f"{market}, γ={budget:g}: MSE to the oracle [paper]"]
    for row in rows:
        if row["model"] == "references":
            paper = table.get((f"gamma={budget};lambda_r=0", REFERENCES[row["strategy"]]))
            lines.append(row["strategy"].ljust(14) + _cell(row, paper))
    lines.append("λ_r".ljust(14) + "".join(f"{weight:g}".rjust(26) for weight in weights) + "chosen".rjust(34))
    for model, name in NAMES.items():
        own = {row["return_weight"]: row for row in learned if row["model"] == model}
        cells = []
        for weight in weights:
            paper = table.get((f"gamma={budget};lambda_r={weight}", name))
            cells.append(_cell(own[weight], paper) if weight in own else "–".rjust(26))
        if own:
            best = min(own.values(), key=lambda row: row["validation_mse"])
            published_best = [value for (cell, row), value in table.items() if row == name and f"={budget};" in cell]
            text = f"λ_r={best['return_weight']:g}:" + _cell(best, min(published_best)).strip()
            cells.append(text.rjust(34))
        lines.append(model.ljust(14) + "".join(cells))
        known = [f"{own[weight]['teacher_forced_mse']:.4f}" if weight in own else "–" for weight in weights]
        lines.append("  on s* history" + "".join(text.rjust(26) for text in known))
    return "\n".join(lines)


def _cell(row: Row, paper: float | None) -> str:
    error = f"±{row['mse_error']:.4f}" if "mse_error" in row else ""
    return (f"{row['mse']:.4f}{error}" + (f" [{paper:.4f}]" if paper is not None else "")).rjust(26)


EXPERIMENTS = (
    Experiment(
        id="lambda-sweep",
        title="Literal Time2Decide and SFT: MSE over turnover budgets γ and return weights λ_r",
        paper="Appendices H and I, tables of the λ_r sweep, clean and noisy",
        presets={"smoke": "30 s", "cpu": "45 min", "paper": "weeks on one GPU: 448 trainings"},
        tasks=tasks,
        run=run,
        show=show,
        findings=findings,
    ),
)
