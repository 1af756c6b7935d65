"""The command line: ``time2decide --help``."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from time2decide.cli.backtest import backtest
from time2decide.cli.decide import decide
from time2decide.cli.reproduce import report, reproduce
from time2decide.cli.train import app as train_app
from time2decide.core.validation import InputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
#: What typer raises for a wrong option, argument or command; it keeps its own copy of click.
_CommandLineError: type[Any] = typer.BadParameter.__mro__[2]
BENCHMARKS = ("constructions", "labels", "projection", "neural", "oracle", "lmc", "decide")
_SHOWN = 20  # problems in the table of `solve`
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.callback(invoke_without_command=True)
def program(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Transformers that solve quadratic programs and make covariance-aware decisions."""
    if version:
        from time2decide import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
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
    tol: Annotated[float | None, typer.Option(help="Stop at this KKT residual; 1e-8 unless told.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all but the objective to this .npz.")] = None,
    as_json: AsJson = False,
) -> None:
    """Solve the quadratic programs in a file.

    The column `how` of neural+polish says where an answer comes from: predicted (the network's active set, proven
    optimal), repaired (that set after a few exchanges) or exact (the exact solver).

    Exit code: 0 when every problem is solved to the tolerance, 1 when one is not_converged, infeasible or unbounded
    (all that was found is printed and written), 2 for bad input.

    Example: time2decide solve problem.npz --method admm --json
    """
    from time2decide.qp.files import read_problem, solution_as_dict, validate_output, write_solution
    from time2decide.solving import solve as solve_problem

    if out is not None:
        validate_output(out)
    solution = solve_problem(read_problem(file), method=method, steps=steps, tol=tol)
    if out is not None:
        write_solution(solution, out)
    answer = solution_as_dict(solution)
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        _console().print(_solution_table(answer, title=f"{solution.qp!r} by {method}"))
    if set(answer["status"]) != {"optimal"}:
        raise typer.Exit(1)


def _solution_table(answer: dict[str, Any], title: str) -> Table:
    """The first problems of an answer, a row each; columns that every problem has."""
    columns = [name for name in ("status", "how", "kkt_residual", "objective") if name in answer]
    table = Table("problem", *(name.replace("kkt_", "KKT ") for name in columns), "x", title=title)
    for i, x in enumerate(answer["x"]):
        if i == _SHOWN:
            rest = [f"{len(answer['x']) - i} more", *[""] * (len(columns) - 1)]
            table.add_row("…", *rest, "(--json or --out gives all)")
            break
        shown = " ".join(_number(v) for v in x[:8]) + (" …" if len(x) > 8 else "")
        table.add_row(str(i), *(_number(answer[name][i]) for name in columns), shown)
    return table


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHMARKS)}, or all.")],
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, for a first look.")] = False,
    store: Annotated[bool, typer.Option("--store", help="Keep the rows in the results, for `report`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure speed and accuracy against peers in one run.

    Example: time2decide bench constructions --store
    """
    if name not in (*BENCHMARKS, "all"):
        raise InputError(f"name: expected one of {', '.join(BENCHMARKS)} or all, found {name!r}")
    if store:
        from time2decide.experiments.store import check_writable

        check_writable()
    collected: list[dict[str, Any]] = []
    for each in BENCHMARKS if name == "all" else (name,):
        start = time.perf_counter()
        rows = importlib.import_module(f"time2decide.bench.{each}").rows(quick=quick)
        if store:
            from time2decide.experiments.store import Store

            kept = Store(f"bench-{each}", "smoke" if quick else "cpu")
            kept.append({"bench": each}, rows, time.perf_counter() - start)
        if not as_json:
            _console().print(rows_table(rows, title=each))
        collected += [{"bench": each, **row} for row in rows] if name == "all" else rows
    if as_json:
        typer.echo(json.dumps(collected))


def rows_table(rows: list[dict[str, Any]], title: str) -> Table:
    """Rows of equal keys as a table."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*[_number(value) for value in row.values()])
    return table


def _number(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _console() -> Console:
    """A wide console when output is not a terminal, so that tables in logs are not folded."""
    return Console(width=None if sys.stdout.isatty() else 140)


app.command()(decide)
app.command()(backtest)
app.command()(reproduce)
app.command()(report)
app.add_typer(train_app, name="train")


def main() -> None:
    """Run the command line: bad input is one line on standard error and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        code = _complain(str(error))
    except _CommandLineError as error:
        code = _complain(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        code = 0
    except OSError as error:  # a folder that is a file, no permission, a full disk
        code = _complain(f"{error.filename or 'output'}: {error.strerror or error}")
    if code == 130:  # typer has caught the interrupt itself
        print("time2decide: interrupted; what is stored stays, start the same command again to go on", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    if not message.strip():  # a bare `time2decide` has printed its help
        return 2
    print("time2decide: " + " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
