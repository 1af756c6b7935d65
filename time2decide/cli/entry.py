"""The start of the command line: signals, exit codes, one line on standard error for what goes wrong.

Exit codes are 0 (done), 1 (what was asked has a negative answer), 2 (bad input, a file that cannot be written, or a
problem for which no answer was found), 130 (Ctrl-C), 143 (SIGTERM) and 141 (the reader of the output went away, as in
``| head -1``). Only the standard library is imported before signals are handled, so that a Ctrl-C during the imports
ends the command as any other does.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType
from typing import Any

_BROKEN_PIPE = 141


def main() -> None:
    """Run the command line and end the process."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    gc.set_threshold(100_000)  # imports make a million objects and no garbage: looking for it is a tenth of `decide`
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as `>&-` does
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
    code = _code()
    for number in (signal.SIGINT, signal.SIGTERM):  # all is done: a signal now only ends the process sooner
        signal.signal(number, signal.SIG_DFL)
    gc.freeze()  # the interpreter need not look for garbage once more at its end: a fifth of `decide`
    sys.exit(code)


def _code() -> int:
    """Run the command; its exit code."""
    stopped: list[int] = []  # signals that have come
    try:
        _handle_signals(stopped)
        from time2decide.cli.app import run_command

        code = run_command()
        sys.stdout.flush()
        return code
    except _Terminated:
        return _interrupted(stopped)
    except SystemExit as ended:  # a training has told where it stopped
        return ended.code if isinstance(ended.code, int) else 0
    except KeyboardInterrupt:
        return _interrupted(stopped)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads what is left to write
        return _BROKEN_PIPE
    except Exception as error:
        if stopped:  # libraries that are imported turn an interrupt into errors of their own
            return _interrupted(stopped)
        if isinstance(error, OSError):  # a folder that is a file, no permission, a full disk
            return complain(f"{error.filename or 'output'}: {error.strerror or error}")
        raise


def complain(message: str) -> int:
    """Say in one line what is wrong; the exit code of bad input."""
    if message.strip():  # a bare `time2decide` has printed its help
        from time2decide.core.validation import printable

        print("time2decide: " + printable(" ".join(message.split())), file=sys.stderr)
    return 2


class _Terminated(SystemExit):
    """SIGTERM has come."""


def _handle_signals(stopped: list[int]) -> None:
    """Let SIGINT and SIGTERM raise; the first one counts."""

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)
        if _importing(frame):  # nothing is open yet, and an exception in C++ code that is being set up aborts
            os._exit(_interrupted(stopped))
        raise KeyboardInterrupt if number == signal.SIGINT else _Terminated(128 + number)

    def unraisable(event: Any) -> None:
        if stopped:  # raised where Python cannot pass it on, as in a callback from C: the command would go on
            os._exit(_interrupted(stopped))
        sys.__unraisablehook__(event)

    sys.unraisablehook = unraisable
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _interrupted(stopped: list[int]) -> int:
    resumable = sys.argv[1:2] in (["reproduce"], ["run"], ["train"])
    kept = "what is stored is kept, start the same command again to resume" if resumable else "no file is half-written"
    print(f"time2decide: interrupted; {kept}", file=sys.stderr, flush=True)
    return 128 + (stopped[0] if stopped else signal.SIGINT)
