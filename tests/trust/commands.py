"""Every command of the command line at its smallest, in a folder of its own; what it writes goes to ``out/``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


COMMANDS = {
    "decide": "decide table.csv --out out/decision.json --figure out/frontier.png",
    "decide csv": "decide table.csv --out out/weights.csv",
    "verify": "verify decision.json table.csv",
    "run": "run portfolio.toml",
    "backtest": "backtest table.csv --strategies uniform,minimum-variance --out out --report out/page.html",
    "solve": "solve problem.npz --out out/solution.npz",
    "train qp": "train qp --preset smoke --out out",
    "train timepfn": "train timepfn --preset smoke --out out",
    "train paper": "train paper --preset smoke --out out",
    "reproduce": "reproduce toy-pto --preset smoke --results out",
    "reproduce in two processes": "reproduce convergence --preset smoke --workers 2 --results out",
    "bench": "bench projection --quick --store",
    "report": "report --out out/report.html --results results",
    "serve": f"serve --port {free_port()}",
}


def prepare(folder: Path) -> Path:
    """A folder with the inputs of every command."""
    draw = np.random.default_rng(0)
    days = pd.bdate_range("2020-01-01", periods=900)
    table = pd.DataFrame(0.01 * draw.standard_normal((900, 4)), days, list("abcd"))
    table.iloc[:400].to_csv(folder / "table.csv")
    table.to_csv(folder / "long.csv")
    (folder / "portfolio.toml").write_text(
        'table = "table.csv"\nvalues = "returns"\njournal = "out/journal.jsonl"\nstate = "out/state.safetensors"\n'
        'decisions = "out"\n'
    )
    C = draw.standard_normal((5, 2, 3))
    np.savez(folder / "problem.npz", A=np.tile(np.eye(3), (5, 1, 1)), b=draw.standard_normal((5, 3)), C=C, d=C[:, :, 0])
    for made in ("decide table.csv --out decision.json", "reproduce toy-pto --preset smoke --results results"):
        subprocess.run(**command_line(made, folder), check=True)
    (folder / "out").mkdir()
    return folder


def command_line(arguments: str, folder: Path, **variables: str | None) -> dict:
    """Arguments of `subprocess` for a command line in a folder; a variable that is None is taken away."""
    known = os.environ | {"PYTHONPATH": str(ROOT), "TIME2DECIDE_RESULTS": "out"} | variables
    return {
        "args": [sys.executable, "-m", "time2decide.cli", *arguments.split()],
        "cwd": folder,
        "env": {name: value for name, value in known.items() if value is not None},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
