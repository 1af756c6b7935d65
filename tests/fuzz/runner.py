"""Run the cases of a target and collect what is not our own error.

``python -m tests.fuzz.runner TARGET SECONDS SEED`` does so in a process of bounded memory and prints a JSON object;
``python -m tests.fuzz.runner TARGET CASE`` repeats one case and shows its traceback.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.fuzz.targets import TARGETS
from time2decide.core.validation import InputError

LONGEST = 30.0  # seconds of processor time of a case; a longer one is a hang
_MORE_BYTES = 4 * 2**30  # of address space that cases may take beyond what the sound input took
_SHOWN = 200


@dataclass
class Outcome:
    """How many cases were read, how many of them refused, and what else happened: case -> error."""

    cases: int = 0
    refused: int = 0
    slowest: float = 0.0  # seconds of processor time
    megabytes: float = 0.0  # by which the process grew
    defects: dict[str, str] = field(default_factory=dict)


def fuzz(target: str, folder: Path, *, cases: int | None = None, seconds: float = 0.0, seed: int = 0) -> Outcome:
    """Read a number of damaged inputs of a target, or as many as fit into some seconds of processor time."""
    case, outcome = TARGETS[target](folder), Outcome()
    ends = time.process_time() + seconds  # not of the clock: a busy machine reads as many
    before = _peak()
    signal.signal(signal.SIGPROF, _hang)
    while outcome.cases < cases if cases is not None else time.process_time() < ends:
        name = f"{seed}:{outcome.cases}"
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
        try:
            case(random.Random(name))
        except InputError as error:
            outcome.refused += 1
            if "\n" in str(error) or not str(error).strip():
                outcome.defects[name] = f"not one line: {str(error)[:_SHOWN]!r}"
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}"[:_SHOWN]
            outcome.defects[name] = f"{text} ({Path(place.filename).name}:{place.lineno})"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        outcome.cases += 1
        outcome.slowest = max(outcome.slowest, time.process_time() - began)
    outcome.megabytes = _peak() - before
    return outcome


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _hang(*_: object) -> None:
    raise TimeoutError(f"longer than {LONGEST:g} s")


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_BYTES, used + _MORE_BYTES))


def main(target: str, *arguments: str) -> None:
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as place:
        os.environ["TIME2DECIDE_CACHE"] = place
        if len(arguments) == 1:
            print(TARGETS[target](Path(place))(random.Random(arguments[0])))
            return
        fuzz(target, Path(place), cases=10)  # what is loaded and compiled on first use
        _limit_memory()
        seconds, seed = arguments
        print(json.dumps(asdict(fuzz(target, Path(place), seconds=float(seconds), seed=int(seed)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
