"""SIGKILL at random moments: started again, nothing is lost, and the result has the same bits."""

import random
import subprocess
import sys
import time

from time2decide.core.journal import Journal

WRITER = """
import sys
from time2decide.core.journal import Journal
journal = Journal(sys.argv[1])
journal.repair()
for number in range(len(journal.entries()), 10**6):
    journal.append({"number": number, "fill": 5000 * "x"})
    print(number, flush=True)
"""


def test_journal(tmp_path, record):
    path, kills, entries, draw = tmp_path / "journal.jsonl", 10, 0, random.Random(0)
    for _ in range(kills):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            writer.stdout.readline()
            time.sleep(draw.uniform(0, 0.3))
            writer.kill()
            acknowledged = [int(line) for line in writer.stdout if line.endswith("\n")]
        journal = Journal(path)
        numbers = [entry["number"] for entry in journal.entries()]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > max([entries, *acknowledged])
        entries = len(numbers) - 1
    record("kill-journal", "{kills} kills, {entries} entries, none lost", kills=kills, entries=entries + 1)
