"""Where a result comes from: commit, versions, machine and time."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    """Commit, versions, machine and time."""
    return {"time": datetime.now(UTC).isoformat(timespec="seconds"), **_machine()}


@cache
def _machine() -> dict[str, Any]:
    packages = ("time2decide", "torch", "numpy", "daqp")
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version()} | {p: importlib.metadata.version(p) for p in packages},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
    }


def _commit() -> str | None:
    """The commit of the source tree, with '+' when the package has uncommitted changes; None outside a checkout."""
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        # a lock of git's that is left behind when this process group is killed would stop the user's next commit
        command = ["git", "--no-optional-locks", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", str(package))
        return git("rev-parse", "--short=12", "HEAD") + ("+" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None
