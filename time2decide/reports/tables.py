"""Tables of the paper as structure: columns and cells of text, ours beside the paper's, from stored rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from time2decide.experiments.paper import published
from time2decide.experiments.scale import table
from time2decide.reports import decision_tables
from time2decide.reports.block import Block, estimate, pair
from time2decide.reports.theory_figures import published_r2

Row = dict[str, Any]


def convergence(rows: list[Row]) -> list[Block]:
    """Layers to 1e-6 and the largest difference to the classical iteration."""
    cells = [
        [
            f"{row['kind']} {row['method']}",
            f"{row['layers_to_1e-6']['median']:.0f}",
            str(row["layers_to_1e-6"]["max"]),
            f"{row['largest_difference']:.0e}",
        ]
        for row in rows
    ]
    return [Block("Layers to a KKT residual of 1e-6", ["method", "median", "largest", "|layer − step|"], cells)]


def runtime(rows: list[Row]) -> list[Block]:
    """µs per step and overhead."""
    cells = []
    for row in rows:
        place = f"problem={row['kind']};n={row['n']}" + (f";m={row['m']}" if row["m"] else "")
        paper = f"{published('runtime')[place, 'overhead']:.2f}" if row["batch"] == 1 else "–"
        size = f"{row['n']}, {row['m']}" if row["m"] else str(row["n"])
        times = [f"{row[f'{name}_us']:.1f}" for name in ("classical", "attention")]
        cells.append([size, str(row["batch"]), *times, f"{row['overhead']:.2f}", paper])
    columns = ["n, m" if rows and rows[0]["m"] else "n", "batch", "classical µs", "attention µs", "overhead", "paper"]
    return [Block("Time of one step, one thread", columns, cells)]


def qp_grid(rows: list[Row]) -> list[Block]:
    """R² by layers and heads, one table per size and architecture."""
    blocks = []
    for n, m, name in dict.fromkeys((row["n"], row["m"], row["architecture"]) for row in rows):
        chosen = {
            (r["layers"], r["heads"]): r["r2"] for r in rows if (r["n"], r["m"], r["architecture"]) == (n, m, name)
        }
        heads = sorted({h for _, h in chosen})
        cells = [
            [str(layers)]
            + [
                pair(chosen.get((layers, h)), published("qp_r2").get((f"n={n};m={m};layers={layers};heads={h}", name)))
                for h in heads
            ]
            for layers in sorted({layer for layer, _ in chosen})
        ]
        blocks.append(Block(f"R² at ({n}, {m}), {name}", ["layers", *(f"{h} heads" for h in heads)], cells))
    return blocks


def qp_shift(rows: list[Row]) -> list[Block]:
    """R² by range of κ."""
    names = list(dict.fromkeys(row["architecture"] for row in rows))
    r2 = {(row["kappa"], row["architecture"]): row["r2"] for row in rows}
    paper = published("qp_distribution_shift")
    cells = [
        [kappa, *(pair(r2.get((kappa, name)), paper.get((f"kappa={kappa}", name)), 4) for name in names)]
        for kappa in dict.fromkeys(row["kappa"] for row in rows)
    ]
    return [Block("R² under a shift of the condition number, (5, 3)", ["κ", *names], cells)]


def qp_ablation(rows: list[Row]) -> list[Block]:
    """R² by size and architecture."""
    names = list(dict.fromkeys(row["architecture"] for row in rows))
    r2 = {(row["n"], row["m"], row["architecture"]): row["r2"] for row in rows}
    paper = published("arch_ablation")
    cells = [
        [f"{n}, {m}", *(pair(r2.get((n, m, name)), paper.get((f"n={n};m={m}", name)), 4) for name in names)]
        for n, m in dict.fromkeys((row["n"], row["m"]) for row in rows)
    ]
    return [Block("R² by size and architecture", ["n, m", *names], cells)]


def qp_histograms(rows: list[Row]) -> list[Block]:
    """Errors of the best models."""
    columns = {"nmse_median": "NMSE median", "nmse_p95": "NMSE p95", "violation": "violation", "gap_absolute": "|gap|"}
    cells = [
        [f"({row['n']}, {row['m']}) {row['architecture']}", *(f"{row[key]:.4f}" for key in columns)] for row in rows
    ]
    return [
        Block("Errors on the test set (paper, (5, 3) linear: median 0.011, p95 0.095)", ["", *columns.values()], cells)
    ]


def toy_pto(rows: list[Row]) -> list[Block]:
    """Regret by number of samples."""
    cells = []
    for row in (row for row in rows if row["kind"] == "simulated"):
        values = [f"{1e3 * row[k]:.3f} ± {1e3 * row[f'{k}_se']:.3f}" for k in ("pto", "e2e", "difference")]
        exact = [f"{1e3 * row[f'{k}_exact']:.3f}" for k in ("pto", "e2e")]
        cells.append([str(row["n"]), f"{row['rho']:.3f}", values[0], exact[0], values[1], exact[1], values[2]])
    columns = ["n", "ρ", "PtO", "exact", "E2E", "exact", "PtO − E2E"]
    return [Block("Regret × 1e3, simulated ± standard error and exact (the paper prints no figures)", columns, cells)]


def parity(rows: list[Row]) -> list[Block]:
    """R² by arm."""
    cells = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        chosen = [row for row in rows if row["arm"] == arm]
        paper = published_r2(chosen[0])
        odd = "yes" if all(row["oddness"] < 1e-3 for row in chosen) else "no"
        found = estimate([row["r2"] for row in chosen], 4)
        cells.append([arm, found, "–" if paper is None else f"{paper:.4f}", odd, str(len(chosen))])
    return [Block("R² of the covariance of unseen series", ["arm", "R²", "paper", "odd in the data", "seeds"], cells)]


def full_sweep(rows: list[Row]) -> list[Block]:
    """Measured steps, and what they make of the full sweep."""
    blocks = []
    for caption, text in zip(
        ("Training steps of full size", "Time of the full sweep"), table(rows).split("\n\n"), strict=True
    ):
        head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
        blocks.append(Block(caption, head, lines))
    return blocks


#: Experiment -> its tables; an experiment that is not here is shown by its own `show`.
TABLES: dict[str, Callable[[list[Row]], list[Block]]] = {
    "convergence": convergence,
    **{f"runtime-{kind}": runtime for kind in ("u", "r", "c", "lc")},
    "qp-grid": qp_grid,
    "qp-shift": qp_shift,
    "qp-ablation": qp_ablation,
    "qp-histograms": qp_histograms,
    "portfolio-baselines": decision_tables.baselines,
    "portfolio-clean": decision_tables.portfolio,
    "portfolio-noisy": decision_tables.portfolio,
    "decide-ablation": decision_tables.ablation,
    "forecast-errors": decision_tables.forecast_errors,
    "lambda-sweep": decision_tables.lambda_sweep,
    "finetuned-pto": decision_tables.finetuned_pto,
    "sp500": decision_tables.sp500,
    "scale": full_sweep,
    "toy-pto": toy_pto,
    "parity": parity,
}
