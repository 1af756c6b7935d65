"""Which lines of the package do the ordinary tests reach, in this process and in those that they start?"""

import json
import subprocess
import sys

from tests.trust.figures import ROOT


def test_lines_are_reached(record, tmp_path):
    """Compiled kernels cannot be traced and are left out: test_mutation.py runs them uncompiled."""

    def coverage(*arguments):
        return subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT).returncode

    coverage("erase")
    failed = coverage("run", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist")
    assert coverage("combine", "--quiet") == 0
    coverage("json", "--quiet", "-o", str(tmp_path / "report.json"))
    whole = json.loads((tmp_path / "report.json").read_text())["totals"]
    assert not failed
    assert whole["percent_covered"] >= 92
    record(
        "coverage",
        "{percent:.1f} % of {lines:,} lines",
        percent=whole["percent_covered"],
        lines=whole["num_statements"],
        excluded=whole["excluded_lines"],
    )
