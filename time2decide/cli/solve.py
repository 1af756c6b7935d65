"""``time2decide solve``: the quadratic programs in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from time2decide.cli.console import AsJson, echo, print_tables
from time2decide.core.files import validate_input_file, validate_not_read
from time2decide.core.table import Table, cell_text

_SHOWN = 20  # problems in the table


def solve(
    file: Annotated[
        Path, typer.Argument(help="Problem: .npz or .json with A, b and optionally C, d, l1_penalty, l1_radius.")
    ],
    method: Annotated[
        str,
        typer.Option(
            help="exact; U: gradient, nesterov; LC: arrow_hurwicz; R: ista; C: projected_gradient; R, C: fista; "
            "LC, R, C: admm; all: newton_schulz; U, LC: neural, neural+polish."
        ),
    ] = "exact",
    steps: Annotated[int | None, typer.Option(help="Run exactly this many layers.")] = None,
    tol: Annotated[float | None, typer.Option(help="Stop at this KKT residual; 1e-8 by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all but the objective to this .npz.")] = None,
    as_json: AsJson = False,
) -> None:
    """Solve the quadratic programs in a file.

    The column `how` of neural+polish says where an answer comes from: predicted (the network's active set, proven
    optimal), repaired (that set after a few exchanges) or exact (the exact solver).

    Exit code: 0 when every problem is solved to the tolerance, 1 when one is not_converged, infeasible (which may say
    "within rounding") or unbounded (all that was found is printed and written), 2 for bad input.

    Example: time2decide solve problem.npz --method admm --json
    """
    validate_input_file(file)
    from time2decide.qp.files import read_problem, solution_as_dict, validate_solution_path, write_solution
    from time2decide.solving import solve as solve_problem

    if out is not None:
        validate_solution_path(out)
        validate_not_read("out", out, (file,))
    solution = solve_problem(read_problem(file), method=method, steps=steps, tol=tol)
    if out is not None:
        write_solution(solution, out)
    answer = solution_as_dict(solution)
    if as_json:
        echo(json.dumps(answer))
    else:
        print_tables([_solution_table(answer, f"{solution.qp!r} by {method}")])
    if set(answer["status"]) != {"optimal"}:
        raise typer.Exit(1)


def _solution_table(answer: dict[str, Any], title: str) -> Table:
    """The first problems of an answer, a row each; columns that every problem has."""
    columns = [name for name in ("status", "how", "kkt_residual", "objective") if name in answer]
    rows = []
    for i, x in enumerate(answer["x"][:_SHOWN]):
        shown = " ".join(cell_text(v) for v in x[:8]) + (" …" if len(x) > 8 else "")
        rows.append([str(i), *(cell_text(answer[name][i]) for name in columns), shown])
    more = len(answer["x"]) - _SHOWN
    note = f"{more} more problems: --json or --out gives all" if more > 0 else ""
    return Table(title, ["problem", *(name.replace("kkt_", "KKT ") for name in columns), "x"], rows, note)
