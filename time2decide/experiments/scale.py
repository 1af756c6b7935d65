"""What the paper's full sweep costs on other machines, worked out from measured task times.

A training step of a transformer with P weights in its layers takes about 6·P floating-point operations per token:
two for each weight forward and four backward. Stored rows say how many such operations a core does per second. The
rest is counting: the paper's 336 QP cells and 448 fine-tunings, and how many of them fit beside each other.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from time2decide.experiments.paper import published
from time2decide.experiments.store import Store
from time2decide.qp.checks import InputError

Line = dict[str, Any]
_MACHINES = {"1 core": (1, 0), "64 cores": (64, 0), "8 GPUs": (8, 8)}  # name -> (tasks at a time, GPUs)


@dataclass(frozen=True)
class Assumptions:
    """What cannot be read from the store."""

    qp_epochs: int = 150  # of at most 500: training stops 30 epochs after the best one
    qp_batch: int = 128
    qp_width: int = 256
    qp_gpu_flops: float = 2e12  # a GPU on batches of 128 short sequences: bound by launching kernels
    tuning_epochs: int = 10  # of at most 50: training stops 5 epochs after the best one
    tuning_windows: int = 300 * (1024 - 96 - 96 + 1)  # 300 series, window and horizon 96, stride 1
    tuning_flop: float = 14e9  # of one training window: 7.6 M weights, 32 channels and 16 covariance tokens
    tuning_runs: int = 7 * 16 * 2 * 2  # budgets × weights of the return loss × models × data sets
    tuning_core_flops: float = 40e9  # a core on matrices of width 256
    tuning_gpu_flops: float = 15e12  # a GPU in mixed precision on sequences of 368 tokens
    efficiency: float = 0.9  # share of a machine that is busy: the last tasks end at different times


def step_flop(layers: int, width: int, batch: int, n: int, m: int) -> float:
    """One training step of a QP transformer: 6 · 12·layers·width² · batch · (n + m + 3)."""
    return 6.0 * 12 * layers * width**2 * batch * (n + m + 3)


def measured_flops(lines: list[Line]) -> float:
    """Operations per second of one core, the median over stored trainings of transformers."""
    rates = []
    for line in lines:
        config, rows = line["config"], line["rows"]
        if line["error"] is None and rows and config.get("layers") and rows[0].get("device") == "cpu":
            step = step_flop(config["layers"], config["d_model"], config["training"]["batch"], config["n"], config["m"])
            rates.append(rows[0]["steps"] * step / rows[0]["train_seconds"])
    if not rates:
        raise InputError("results: expected stored trainings of qp-grid, found none")
    return median(rates)


def paper_core_flops(*, layers: int = 8, rounds: int = 3) -> float:
    """Operations per second of this core on a step of the `paper` preset at (5, 3), by processor time."""
    import torch
    from torch.nn.functional import mse_loss

    from time2decide.experiments.qp_cells import cell, new_model

    torch.set_num_threads(1)
    config = cell("paper", 5, 3, "LinearTransformer", layers, 2)
    model, generator = new_model(config), torch.Generator().manual_seed(0)
    tokens, answers = torch.randn(128, 11, 5, generator=generator), torch.randn(128, 5, generator=generator)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    seconds = []
    for _ in range(rounds + 1):  # the first warms up
        start = time.process_time()
        optimiser.zero_grad()
        mse_loss(model(tokens), answers).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        seconds.append(time.process_time() - start)
    return step_flop(layers, config["d_model"], len(tokens), 5, 3) / median(seconds[1:])


def qp_flop(assumptions: Assumptions) -> float:
    """All cells of the paper's grids together."""
    total = 0.0
    for place, _ in published("qp_r2"):
        size = {key: int(value) for key, value in (item.split("=") for item in place.split(";"))}
        steps = math.ceil((50_000 if size["n"] <= 10 else 100_000) / assumptions.qp_batch) * assumptions.qp_epochs
        step = step_flop(size["layers"], assumptions.qp_width, assumptions.qp_batch, size["n"], size["m"])
        total += steps * step
    return total


def table(rows: list[Line]) -> str:
    """The costs as rows of a Markdown table."""
    lines = (f"| {row['machine']} | {_days(row['qp_days'])} | {_days(row['tuning_days'])} |" for row in rows)
    return "\n".join(lines)


def _days(value: float) -> str:
    return f"{value:.1f} days" if value < 10 else f"{value:,.0f} days" if value < 730 else f"{value / 365:.0f} years"


def costs(
    root: str | Path | None = None, *, core_flops: float | None = None, assumptions: Assumptions | None = None
) -> list[Line]:
    """Days of the two sweeps on one core, 64 cores and 8 GPUs.

    `core_flops` is the speed of a core on the QP cells of the paper's width, where it was measured; otherwise the
    speed of the stored, smaller models is used, which is an under-estimate.
    """
    chosen = assumptions or Assumptions()
    speed = core_flops or measured_flops(list(Store("qp-grid", "cpu", root).lines().values()))
    tuning = chosen.tuning_runs * chosen.tuning_epochs * chosen.tuning_windows * chosen.tuning_flop
    rows = []
    for name, (tasks, gpus) in _MACHINES.items():
        share = tasks * (1.0 if tasks == 1 else chosen.efficiency)
        qp = qp_flop(chosen) / (share * (chosen.qp_gpu_flops if gpus else speed))
        fine = tuning / (share * (chosen.tuning_gpu_flops if gpus else chosen.tuning_core_flops))
        rows.append({"machine": name, "qp_days": qp / 86_400, "tuning_days": fine / 86_400})
    return rows
