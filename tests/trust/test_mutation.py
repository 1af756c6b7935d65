"""Are the tests able to fail? Faults are put into the code, and they must."""

import subprocess
import sys

from tests.trust import mutation
from tests.trust.figures import ROOT

SEED, COUNT = 2, 350


def test_faults_are_noticed(record):
    subprocess.run([sys.executable, "-m", "tests.trust.mutation", f"--seed={SEED}", f"--count={COUNT}"], cwd=ROOT)
    found = mutation.finished(SEED, COUNT)
    alive = [row for row in found if row["outcome"] == "survived"]
    share = 1 - len(alive) / len(found)
    assert len(found) > 0.95 * COUNT
    record(  # before the bar is judged: a run that misses it must not leave an older, better figure on the page
        "mutation",
        "{killed} of {count} faults noticed ({percent:.1f} %), {explained} of the others explained as harmless",
        killed=len(found) - len(alive),
        count=len(found),
        percent=100 * share,
        explained=sum(row["why"] is not None for row in alive),
    )
    assert share >= 0.85, "\n".join(f"{row['place']} {row['key']}: {row['why']}" for row in alive)
