"""A warm process that runs command lines in forks of itself: a test can then kill a hundred of them in minutes.

A cold start spends seconds on imports, where a kill can destroy nothing. Training states are saved after every step, so
that kills fall into their writing as well.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Warm:
    """The warm process, seen from a test."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.trust.warm"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
        )

    def run(self, folder: Path, command: str, kill_after: float | None = None, watch: Path | None = None) -> int:
        """Run a command in a folder; its exit code, −9 if it was killed.

        It is killed this many seconds after its start, or after it has written the file to watch.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps([str(folder), command, kill_after, watch and str(watch)]), file=self._process.stdin, flush=True
        )
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _serve() -> None:
    import matplotlib.pyplot  # noqa: F401
    import plotly.graph_objects  # noqa: F401

    import time2decide.backtesting.walk_forward
    import time2decide.policy.paper_training
    import time2decide.reports.page  # noqa: F401
    from time2decide.core import training

    training.SAVE_EVERY = 0.0
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        folder, command, kill_after, watch = json.loads(line)
        before = _written(watch)
        child = os.fork()
        if child == 0:
            _be(folder, command)
        print(_outcome(child, kill_after, watch, before), file=answers, flush=True)


def _be(folder: str, command: str) -> None:
    """Run a command in this fork and end it."""
    from time2decide.cli import main

    os.chdir(folder)
    os.dup2(os.open("messages.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = ["time2decide", *command.split()]
    code = 1
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        os._exit(code)


def _written(path: str | None) -> int | None:
    return os.stat(path).st_mtime_ns if path and os.path.exists(path) else None


def _outcome(child: int, kill_after: float | None, watch: str | None, before: int | None) -> int:
    began = time.monotonic()
    while kill_after is None or time.monotonic() < began + kill_after:
        if watch and _written(watch) == before:
            began = time.monotonic()
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    _serve()
