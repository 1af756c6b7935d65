"""A small sweep for the tests of the engines: importable by workers, and a driver of its own that can be killed.

Every run of a task leaves a line in $SWEEP_TRACE/ran. The task with value 2 stops on its first run, with its process id
in $SWEEP_TRACE/stopped, until somebody kills it.
"""

import os
import signal
import sys
import time
from pathlib import Path

from time2decide.experiments import Experiment, reproduce
from time2decide.experiments.engines import Engine


def tasks(preset):
    return [{"value": value, "seed": 0} for value in range(6)]


def run(config):
    trace = Path(os.environ["SWEEP_TRACE"])
    with (trace / "ran").open("a") as file:
        file.write(f"{config['value']}\n")
    stopped = trace / "stopped"
    if config["value"] == 2 and os.environ.get("SWEEP_STOP") and not stopped.exists():
        stopped.with_suffix(".part").write_text(str(os.getpid()))
        stopped.with_suffix(".part").rename(stopped)
        time.sleep(600)
    return [{"square": config["value"] ** 2, "pid": os.getpid()}]


def die(config):
    os.kill(os.getpid(), signal.SIGKILL)


SWEEP = Experiment("sweep", "a sweep", "nowhere", {"smoke": "1 s"}, tasks, run, tables=list)

if __name__ == "__main__":
    engine, workers, root = sys.argv[1:]
    reproduce(SWEEP, "smoke", root=root, engine=Engine(engine, int(workers)))
