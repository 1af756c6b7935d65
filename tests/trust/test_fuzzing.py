"""Ten minutes of processor time on damaged input: nothing but our own errors, no hang, bounded memory."""

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz.runner import LONGEST
from tests.fuzz.targets import TARGETS

SECONDS = 600  # of processor time
_BUSY = 20  # times as long by the clock, at most: the runner ends what hangs, this what only waits
_MOST_MEGABYTES = 512  # by which a process may grow


def test_every_reader(record):
    each = SECONDS / len(TARGETS)

    def fuzzed(seed, target):
        command = [sys.executable, "-m", "tests.fuzz.runner", target, f"{each}", f"{seed}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        most = _BUSY * (each + LONGEST)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=most, env=environment)
        assert ran.returncode == 0, (target, ran.stderr[-2000:])
        return json.loads(ran.stdout.splitlines()[-1])

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(TARGETS, pool.map(fuzzed, itertools.count(1000), TARGETS), strict=True))
    defects = {target: one["defects"] for target, one in found.items() if one["defects"]}
    assert defects == {}
    megabytes = max(one["megabytes"] for one in found.values())
    assert megabytes <= _MOST_MEGABYTES
    record(
        "fuzzing",
        "{cases} damaged inputs of {kinds} kinds, {refused} refused, none with another error; slowest {slowest:.1f} s, "
        "at most {megabytes:.0f} MB more",
        kinds=len(found),
        cases=sum(one["cases"] for one in found.values()),
        refused=sum(one["refused"] for one in found.values()),
        slowest=max(one["slowest"] for one in found.values()),
        megabytes=megabytes,
    )
