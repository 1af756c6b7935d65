"""The command line: ``time2decide --help``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from time2decide.cli.backtest import backtest
from time2decide.cli.bench import bench
from time2decide.cli.check import check
from time2decide.cli.console import echo
from time2decide.cli.decide import decide
from time2decide.cli.entry import complain
from time2decide.cli.reproduce import report, reproduce
from time2decide.cli.run import run
from time2decide.cli.serve import serve
from time2decide.cli.solve import solve
from time2decide.cli.train import train
from time2decide.cli.verify import verify
from time2decide.core.validation import InputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
#: What typer raises for a wrong option, argument or command; it keeps its own copy of click.
_CommandLineError: type[Any] = typer.BadParameter.__mro__[2]


@app.callback(invoke_without_command=True)
def program(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Transformers that solve quadratic programs and make covariance-aware decisions."""
    if version:
        from time2decide import __version__

        echo(__version__)
        raise typer.Exit


for command in (decide, check, verify, run, backtest, solve, reproduce, bench, report, serve, train):
    app.command()(command)


def run_command() -> int:
    """Run the command of `sys.argv`; its exit code. Bad input, or no answer, is one line on standard error and 2."""
    command = typer.main.get_command(app)
    try:  # not through `app()`, which has an exit code of its own for a broken pipe
        with command.make_context("time2decide", sys.argv[1:]) as context:
            command.invoke(context)
        return 0
    except typer.Exit as ended:
        return int(ended.exit_code)
    except InputError as error:
        return complain(str(error))
    except ArithmeticError as error:
        if type(error) is not ArithmeticError:  # a fault of the program, such as a division by zero
            raise
        return complain(str(error))
    except _CommandLineError as error:
        return complain(error.format_message())
