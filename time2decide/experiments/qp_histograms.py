"""The distributions of errors of the best transformers: NMSE, constraint violation, objective error."""

from __future__ import annotations

import numpy as np

from time2decide.experiments.qp_cells import TRANSFORMERS, best_cell, describe, facts, split_of, trained
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row
from time2decide.neural.metrics import HISTOGRAM_EDGES, evaluate, histograms
from time2decide.neural.training import predict

#: The sizes for which the paper draws them.
SIZES = ((5, 3), (10, 3), (10, 6), (10, 9))
#: What the paper says about its figure for the best LinearTransformer at (5, 3).
PAPER_NMSE = {"median": 0.011, "p95": 0.095}


def tasks(preset: str) -> list[Config]:
    """One task per size and architecture, the best cell of each."""
    sizes = SIZES[:1] if preset == "smoke" else SIZES
    return [best_cell(preset, n, m, architecture) for n, m in sizes for architecture in TRANSFORMERS]


def run(config: Config) -> list[Row]:
    """Counts of the three errors on the test set, with the edges of the bins, and all measures."""
    model, notes = trained(config)
    test = split_of(config, "test")
    x = predict(model, test.tokens())
    counts = {f"{name}_counts": values for name, values in histograms(test, x).items()}
    edges = {f"{name}_edges": np.round(values, 9).tolist() for name, values in HISTOGRAM_EDGES.items()}
    return [{**evaluate(test, x), **counts, **edges, **facts(notes)}]


def show(rows: list[Row]) -> str:
    """Mean, median and 95th percentile of the NMSE, the other errors, and a histogram of the NMSE in one line."""
    columns = {"nmse_mean": "NMSE mean", "nmse_median": "median", "nmse_p95": "p95"}
    columns |= {"violation": "violation", "gap_absolute": "|gap|", "gap_signed": "gap"}
    head = f"{'n, m':<7}{'architecture':<20}" + "".join(f"{title:<11}" for title in columns.values())
    lines = [describe(rows), head + "NMSE, one column per quarter of a decade from 1e-5 to 1e2"]
    for row in rows:
        if row.get("error") is None:
            size, numbers = f"{row['n']}, {row['m']}", "".join(f"{row[key]:<11.4f}" for key in columns)
            lines.append(f"{size:<7}{row['architecture']:<20}{numbers}{_bars(row['nmse_counts'])}")
    paper = f"paper, (5, 3) LinearTransformer: NMSE median {PAPER_NMSE['median']}, p95 {PAPER_NMSE['p95']}"
    return "\n".join([*lines, paper])


def _bars(counts: list[int]) -> str:
    """Two bins to a column; height in eighths of the highest."""
    pairs = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]
    marks = " ▁▂▃▄▅▆▇█"
    return "".join(marks[-(-count * 8 // max(max(pairs), 1))] for count in pairs)


EXPERIMENTS = (
    Experiment(
        id="qp-histograms",
        title="Distributions of NMSE, violation and objective error",
        paper="Section 4.2, Appendix E: figures",
        presets={"smoke": "5 s", "cpu": "1 min after qp-ablation", "paper": "minutes after qp-grid"},
        tasks=tasks,
        run=run,
        show=show,
    ),
)
