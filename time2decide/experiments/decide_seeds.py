"""The decision network trained again from another seed: does the table of the bundled one come out?"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import torch

from time2decide.experiments.portfolio import Remembered, fingerprint, scored, series_of
from time2decide.experiments.portfolio_tables import values
from time2decide.experiments.registry import Experiment
from time2decide.markets import BUDGETS
from time2decide.policy.model import HISTORIES, PolicyStrategy, load_policy
from time2decide.policy.network import Policy
from time2decide.policy.training import PRESETS, train_policy

Config = dict[str, Any]
Row = dict[str, Any]
MARKETS = ("clean", "noisy")


def tasks(preset: str) -> list[Config]:
    """The bundled network, and one of another seed."""
    sizes = {"evaluation": 2, "length": 128} if preset == "smoke" else {"evaluation": 30, "length": 1024}
    common = {"recipe": preset, "seed": 0, **sizes}
    return [common | {"trained": "bundled", "network": fingerprint("decide")}, common | {"trained": "seed 1"}]


def run(config: Config) -> list[Row]:
    """Train if need be, then score on both markets with both histories."""
    torch.set_num_threads(1)
    policy = load_policy("decide")[0] if config["trained"] == "bundled" else _train(config)
    rows = []
    for market in MARKETS:
        look = Remembered()
        returns, oracle = series_of(config | {"market": market}, "evaluation", look)
        for history in HISTORIES:
            name = f"{market}, {history}, {config['trained']}"
            rows += [
                row | {"market": market} for row in scored(PolicyStrategy(policy, history, name, look), returns, oracle)
            ]
    return rows


def _train(config: Config) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        return train_policy(replace(PRESETS[config["recipe"]], seed=1), folder)


def show(rows: list[Row]) -> str:
    """MSE × 1e4 of both networks, and their difference in standard errors of the mean over series."""
    failed = [f"failed: {row['trained']}: {row['error']}" for row in rows if row["error"]]
    rows = [row for row in rows if not row["error"]]
    lines = [*failed, "MSE × 1e4".ljust(30) + "".join(f"γ={g:g}".rjust(9) for g in BUDGETS)]
    for kind in dict.fromkeys(row["strategy"].rsplit(", ", 1)[0] for row in rows):
        found = {row["strategy"] for row in rows if row["strategy"].startswith(kind)}
        pairs = {name: [values(rows, name, g, "mse") for g in BUDGETS] for name in sorted(found)}
        for name, cells in pairs.items():
            lines.append(name.ljust(30) + "".join(f"{1e4 * cell.mean():9.1f}" for cell in cells))
        if len(pairs) == 2:
            apart = [
                (one.mean() - other.mean()) / (other.std(ddof=1) / len(other) ** 0.5)
                for other, one in zip(*pairs.values(), strict=True)
            ]
            lines.append("  difference in standard errors".ljust(30) + "".join(f"{value:+9.2f}" for value in apart))
    return "\n".join(lines)


EXPERIMENTS = (
    Experiment(
        id="decide-seeds",
        title="The decision network trained again from another seed",
        paper="none: the paper's tables are of one training",
        presets={"smoke": "20 s", "cpu": "25 min"},
        tasks=tasks,
        run=run,
        show=show,
    ),
)
