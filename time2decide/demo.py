"""What ``make run`` shows: one problem of each class solved by transformers, against exact answers."""

from __future__ import annotations

import time

import torch
from rich.console import Console
from rich.table import Table

from time2decide import random_qp, solve
from time2decide.experiments import get_experiment, reproduce
from time2decide.reports import draw

_SHOWN = {
    "U": ("gradient", "nesterov", "newton_schulz"),
    "LC": ("arrow_hurwicz", "admm"),
    "R": ("ista", "fista", "admm"),
    "C": ("projected_gradient", "fista", "admm"),
}


def main() -> None:
    """Solve 256 problems of each class with every construction, print a table, draw the convergence figure."""
    torch.set_num_threads(1)
    table = Table(
        "class",
        "transformer",
        "layers (median)",
        "largest KKT residual",
        "largest error",
        "µs per problem",
        title="256 random problems of each class (n = 10, m = 6), solved by attention layers to 1e-8",
    )
    for kind, methods in _SHOWN.items():
        qp = random_qp(256, 10, 6 if kind == "LC" else 0, kind=kind, seed=0)
        exact = solve(qp)
        for method in methods:
            start = time.perf_counter()
            solution = solve(qp, method, tol=1e-8)
            seconds = time.perf_counter() - start
            table.add_row(
                kind,
                method,
                f"{sorted(solution.steps)[128]}",
                f"{solution.kkt_residual.max().item():.1e}",
                f"{(solution.x - exact.x).abs().max().item():.1e}",
                f"{1e6 * seconds / len(qp):.0f}",
            )
        table.add_section()
    console = Console(width=110)
    console.print(table)
    rows = reproduce(get_experiment("convergence"), "cpu")
    for picture in draw("convergence", rows, "cpu"):
        console.print(f"Convergence, layer by layer: {picture}")


if __name__ == "__main__":
    main()
