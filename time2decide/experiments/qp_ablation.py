"""The ablation of architectures: two transformers, an MLP and an LSTM on six sizes."""

from __future__ import annotations

from time2decide.experiments.findings import held, show_findings
from time2decide.experiments.paper import published
from time2decide.experiments.qp_cells import (
    BASELINES,
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
from time2decide.qp import PAPER_SIZES

SIZES = PAPER_SIZES[:6]
#: "far better" as a number: at most this share of the best baseline's unexplained variance 1 − R²
MUCH_BETTER = 0.5


def tasks(preset: str) -> list[Config]:
    """One task per size and architecture."""
    sizes = SIZES[:1] if preset == "smoke" else SIZES
    return [best_cell(preset, n, m, architecture) for n, m in sizes for architecture in (*TRANSFORMERS, *BASELINES)]


def run(config: Config) -> list[Row]:
    """Train one model and measure it on the test set."""
    model, notes = trained(config)
    test = split_of(config, "test")
    return [{**evaluate(test, predict(model, test.tokens())), **facts(notes)}]


def findings(rows: list[Row]) -> list[Row]:
    """Transformers are far better than the baselines; Linear is at least as good as Softmax."""
    r2 = _by_cell(rows)
    complete = [size for size in SIZES if all((*size, name) in r2 for name in (*TRANSFORMERS, *BASELINES))]
    above, far, linear = [], [], []
    for size in complete:
        weakest = min(r2[*size, name] for name in TRANSFORMERS)
        strongest = max(r2[*size, name] for name in BASELINES)
        above.append(weakest > strongest)
        far.append(1 - weakest <= MUCH_BETTER * (1 - strongest))
        linear.append(r2[*size, "LinearTransformer"] >= r2[*size, "SoftmaxTransformer"])
    meaning = f"1 − R² of the weaker transformer at most {MUCH_BETTER:g} times that of the better baseline"
    return [
        held("both transformers above MLP and LSTM at every size", above),
        held("transformers ≫ MLP, LSTM", far, meaning),
        held("Linear ≥ Softmax at every size", linear),
    ]


def show(rows: list[Row]) -> str:
    """R² per size and architecture, ours and, in brackets, the paper's; then the numbers of parameters."""
    r2, paper = _by_cell(rows), published("arch_ablation")
    names = (*TRANSFORMERS, *BASELINES)
    lines = [describe(rows), "R² on the test set, ours (paper's)", f"{'n, m':<8}" + "".join(f"{n:<21}" for n in names)]
    for n, m in SIZES:
        entries = (f"{_text(r2.get((n, m, name)))} ({_text(paper[f'n={n};m={m}', name])})" for name in names)
        lines.append((f"{n}, {m}".ljust(8) + "".join(f"{entry:<21}" for entry in entries)).rstrip())
    sizes = {row["architecture"]: row["parameters"] for row in rows if row.get("error") is None}
    counted = ", ".join(f"{name} {sizes[name]:,}" for name in names if name in sizes)
    return "\n".join([*lines, f"parameters (largest size): {counted}", "", show_findings(findings(rows))])


def _by_cell(rows: list[Row]) -> dict[tuple[int, int, str], float]:
    return {(row["n"], row["m"], row["architecture"]): row["r2"] for row in rows if row.get("error") is None}


def _text(value: float | None) -> str:
    return "  –   " if value is None else f"{value:.4f}"


EXPERIMENTS = (
    Experiment(
        id="qp-ablation",
        title="Transformers against MLP and LSTM",
        paper="Appendix D: table",
        presets={"smoke": "10 s", "cpu": "25 to 60 min", "paper": "a day on a GPU"},
        tasks=tasks,
        run=run,
        show=show,
        findings=findings,
    ),
)
