"""The table of shifted condition numbers: one trained model per architecture, five test sets, no retraining."""

from __future__ import annotations

from itertools import pairwise

from time2decide.experiments.findings import held, show_findings
from time2decide.experiments.paper import published
from time2decide.experiments.qp_cells import (
    TRANSFORMERS,
    best_cell,
    describe,
    facts,
    split_of,
    trained,
)
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row
from time2decide.neural.metrics import evaluate
from time2decide.neural.training import predict
from time2decide.qp import KAPPA_RANGES, PAPER_SIZES

NONE = "none"
#: name in the table -> range of κ, None for the distribution of the training set
RANGES = {NONE: None} | {f"{low:g}-{high:g}": (low, high) for low, high in KAPPA_RANGES}


def tasks(preset: str) -> list[Config]:
    """One task per architecture: the best cell of its grid at (5, 3)."""
    n, m = PAPER_SIZES[0]
    return [best_cell(preset, n, m, architecture) for architecture in TRANSFORMERS]


def run(config: Config) -> list[Row]:
    """Measure one trained model on the five test sets."""
    model, notes = trained(config)
    rows = []
    for name, kappa in RANGES.items():
        test = split_of(config, "test", kappa)
        rows.append({"kappa": name, **evaluate(test, predict(model, test.tokens())), **facts(notes)})
    return rows


def findings(rows: list[Row]) -> list[Row]:
    """Accuracy falls as κ grows; Linear stays above Softmax and loses less of its R²."""
    r2 = _by_range(rows)
    names = [name for name in RANGES if all((name, a) in r2 for a in TRANSFORMERS)]
    linear, softmax = ([r2[name, architecture] for name in names] for architecture in TRANSFORMERS)
    falling = [b < a for values in (linear, softmax) for a, b in pairwise(values)]
    above = [a >= b for a, b in zip(linear, softmax, strict=True)]
    losses = [
        (linear[0] - a) / linear[0] <= (softmax[0] - b) / softmax[0]
        for a, b in zip(linear[1:], softmax[1:], strict=True)
    ]
    return [
        held("R² falls as κ grows", falling),
        held("Linear ≥ Softmax on every range of κ", above),
        held("Linear loses a smaller share of its R² than Softmax", losses),
    ]


def show(rows: list[Row]) -> str:
    """R² and its relative drop per range of κ, ours and the paper's."""
    r2, paper = _by_range(rows), published("qp_distribution_shift")
    lines = [describe(rows), f"{'κ':<9}" + "".join(f"{name + ' ours':<28}{'paper':<19}" for name in TRANSFORMERS)]
    for name in RANGES:
        text = f"{name:<9}"
        for architecture in TRANSFORMERS:
            ours = _with_drop(r2.get((name, architecture)), r2.get((NONE, architecture)))
            theirs = _with_drop(paper[f"kappa={name}", architecture], paper[f"kappa={NONE}", architecture])
            text += f"{ours:<28}{theirs:<19}"
        lines.append(text.rstrip())
    return "\n".join([*lines, "", show_findings(findings(rows))])


def _by_range(rows: list[Row]) -> dict[tuple[str, str], float]:
    return {(row["kappa"], row["architecture"]): row["r2"] for row in rows if row.get("error") is None}


def _with_drop(value: float | None, base: float | None) -> str:
    if value is None or base is None:
        return "–"
    return f"{value:.4f} ({100 * (value - base) / base:+.2f}%)"


EXPERIMENTS = (
    Experiment(
        id="qp-shift",
        title="R² under a shift of the condition number",
        paper="Section 4.2: table of κ ranges",
        presets={"smoke": "5 s", "cpu": "1 min after qp-grid", "paper": "minutes after qp-grid"},
        tasks=tasks,
        run=run,
        show=show,
        findings=findings,
    ),
)
