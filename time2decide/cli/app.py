"""The command line: ``time2decide --help``."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated, Any

import typer

from time2decide.cli.backtest import backtest
from time2decide.cli.bench import bench
from time2decide.cli.decide import decide
from time2decide.cli.reproduce import report, reproduce
from time2decide.cli.run import run
from time2decide.cli.serve import serve
from time2decide.cli.solve import solve
from time2decide.cli.train import app as train_app
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

        typer.echo(__version__)
        raise typer.Exit


for command in (decide, verify, run, backtest, solve, reproduce, bench, report, serve):
    app.command()(command)
app.add_typer(train_app, name="train")


def main() -> None:
    """Run the command line: bad input is one line on standard error and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    gc.set_threshold(100_000)  # imports make a million objects and no garbage: looking for it is a tenth of `decide`
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
        print("time2decide: interrupted; stored rows are kept, start the same command again to resume", file=sys.stderr)
    gc.freeze()  # the interpreter need not look for garbage once more at its end: a fifth of `decide`
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    if not message.strip():  # a bare `time2decide` has printed its help
        return 2
    print("time2decide: " + " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
