"""The grids of R² over layers and heads: Softmax- against LinearTransformer, one grid per size."""

from __future__ import annotations

from time2decide.experiments.findings import held, show_findings
from time2decide.experiments.paper import published
from time2decide.experiments.qp_cells import TRANSFORMERS, cell, describe, facts, split_of, trained
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row
from time2decide.neural.metrics import evaluate
from time2decide.neural.training import predict
from time2decide.qp import PAPER_SIZES

HEADS = (1, 2, 4, 8)
_LARGE = 15  # variables from which the paper stops at 8 layers


def tasks(preset: str) -> list[Config]:
    """One task per cell. `cpu` has the grid of (5, 3) to 8 layers, `paper` all nine sizes."""
    sizes = PAPER_SIZES if preset == "paper" else PAPER_SIZES[:1]
    heads = (1, 2) if preset == "smoke" else HEADS
    return [
        cell(preset, n, m, architecture, layers, h)
        for n, m in sizes
        for layers in _depths(preset, n)
        for h in heads
        for architecture in TRANSFORMERS
    ]


def run(config: Config) -> list[Row]:
    """Train the cell and measure it on the test set."""
    model, notes = trained(config)
    test = split_of(config, "test")
    return [{**evaluate(test, predict(model, test.tokens())), **facts(notes)}]


def findings(rows: list[Row]) -> list[Row]:
    """The paper's two findings about the grid, over all cells that have their partner."""
    r2 = _by_cell(rows)
    against, deeper = [], []
    for (n, m, architecture, layers, heads), value in sorted(r2.items()):
        softmax = r2.get((n, m, "SoftmaxTransformer", layers, heads))
        if architecture == "LinearTransformer" and layers >= 2 and softmax is not None:
            against.append((value >= softmax, f"{layers}×{heads}"))
        half = r2.get((n, m, architecture, layers // 2, heads))
        if 2 <= layers <= 8 and half is not None:
            deeper.append((value > half, f"{architecture.removesuffix('Transformer')} {layers}×{heads}"))
    return [
        held("Linear ≥ Softmax from 2 layers on", [ok for ok, _ in against], _exceptions(against)),
        held("accuracy grows with depth, to 8 layers", [ok for ok, _ in deeper], _exceptions(deeper)),
    ]


def show(rows: list[Row]) -> str:
    """One table per size: ours and, in brackets, the paper's."""
    r2, paper = _by_cell(rows), published("qp_r2")
    lines = [describe(rows), "R² on the test set, ours (paper's)"]
    for n, m in sorted({key[:2] for key in r2}):
        for architecture in reversed(TRANSFORMERS):
            chosen = {key[3:]: value for key, value in r2.items() if key[:3] == (n, m, architecture)}
            heads = sorted({h for _, h in chosen})
            lines.append(f"\n({n}, {m}) {architecture}")
            lines.append("layers  " + "".join(f"{f'{h} heads' if h > 1 else '1 head':<16}" for h in heads))
            for layers in sorted({depth for depth, _ in chosen}):
                entries = (
                    f"{_text(chosen.get((layers, h)))} ({_text(paper.get((_place(n, m, layers, h), architecture)))})"
                    for h in heads
                )
                lines.append(f"{layers:<8}" + "".join(f"{entry:<16}" for entry in entries))
    return "\n".join([*lines, "", show_findings(findings(rows))])


def _depths(preset: str, n: int) -> tuple[int, ...]:
    if preset == "smoke":
        return (1, 2)
    return (1, 2, 4, 8) if preset == "cpu" or n >= _LARGE else (1, 2, 4, 8, 16)


def _by_cell(rows: list[Row]) -> dict[tuple[int, int, str, int, int], float]:
    return {
        (row["n"], row["m"], row["architecture"], row["layers"], row["heads"]): row["r2"]
        for row in rows
        if row.get("error") is None
    }


def _place(n: int, m: int, layers: int, heads: int) -> str:
    return f"n={n};m={m};layers={layers};heads={heads}"


def _exceptions(cases: list[tuple[bool, str]]) -> str:
    missing = [name for ok, name in cases if not ok]
    return f"not at {', '.join(missing)}" if missing else ""


def _text(value: float | None) -> str:
    return "  –  " if value is None else f"{value:.3f}"


EXPERIMENTS = (
    Experiment(
        id="qp-grid",
        title="R² of learned QP solvers over layers and heads",
        paper="Section 4.2, Appendix E: tables",
        presets={"smoke": "10 s", "cpu": "20 to 50 min", "paper": "days on a GPU"},
        tasks=tasks,
        run=run,
        show=show,
        findings=findings,
    ),
)
