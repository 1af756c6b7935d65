"""What the paper's full sweep costs on other machines, worked out from measured training steps.

Two kinds of work make up the sweep: 336 QP solvers and 448 fine-tunings of the literal decision model. Of each, real
steps of the `paper` preset are timed here by processor time and their floating-point operations counted. The rest is
counting: how many such steps there are, and how many tasks fit beside each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from time2decide.bench.timing import one_thread
from time2decide.core.table import Table
from time2decide.core.training import LoopConfig, make_optimiser
from time2decide.experiments.claims import published
from time2decide.experiments.qp_models import qp_cell, qp_cell_model
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row
from time2decide.policy.paper_model import PaperModel
from time2decide.policy.paper_training import PAPER_MODEL_PRESETS, paper_decision_loss

_MACHINES = {"1 core": (1, 0), "64 cores": (64, 0), "8 GPUs": (8, 8)}  # name -> (tasks at a time, GPUs)
_QP_BATCH, _QP_WIDTH = 128, 256  # the paper's
_TUNING_WINDOWS = 300 * (1024 - 96 - 96 + 1)  # of an epoch: 300 series, window and horizon 96, stride 1
_TUNING_RUNS = 7 * 16 * 2 * 2  # budgets × weights of the return loss × models × data sets


@dataclass(frozen=True)
class ScaleAssumptions:
    """Numbers that are assumed, not measured."""

    qp_epochs: int = 150  # of at most 500: training stops 30 epochs after the best one
    qp_gpu_flops: float = 2e12  # a GPU on batches of 128 short sequences: bound by launching kernels
    tuning_epochs: int = 10  # of at most 50: training stops 5 epochs after the best one
    tuning_gpu_flops: float = 15e12  # a GPU in mixed precision on sequences of 368 tokens
    efficiency: float = 0.9  # share of a machine that is busy: the last tasks end at different times


def _tasks(preset: str) -> list[Config]:
    """One task per kind of work."""
    small = preset == "smoke"
    return [
        {"work": "qp", "layers": 1 if small else 8, "batch": _QP_BATCH, "rounds": 1 if small else 15, "seed": 0},
        {"work": "tuning", "batch": 1 if small else 8, "rounds": 1 if small else 5, "seed": 0},
    ]


def _run(config: Config) -> list[Row]:
    """Processor seconds and operations of a training step, the median over rounds."""
    generator = torch.Generator().manual_seed(config["seed"])
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["seed"])  # of the dropout
        step, flop = (_qp_step if config["work"] == "qp" else _tuning_step)(config, generator)
        step()  # warms up
        seconds = []
        for _ in range(config["rounds"]):
            start = time.process_time()
            step()
            seconds.append(time.process_time() - start)
    return [{"core_seconds": median(seconds), "flop": flop, "core_flops": flop / median(seconds)}]


def scale_step_flop(layers: int, batch: int, n: int, m: int) -> float:
    """One training step of a QP transformer: 6·width²·batch·((12·layers − 10)·tokens + 14), tokens = n + m + 3.

    Each weight takes two operations per token forward and four backward. A layer has 12·width² of them, but the last
    one answers for a single token: of the others it needs keys and values only. The read-out has 4·width².
    """
    return 6.0 * _QP_WIDTH**2 * batch * ((12 * layers - 10) * (n + m + 3) + 14)


def _qp_step(config: Config, generator: torch.Generator) -> tuple[Callable[[], None], float]:
    """A linear transformer of the paper's width at (5, 3), on a batch of the paper's size."""
    n, m, layers, batch = 5, 3, config["layers"], config["batch"]
    model = qp_cell_model(qp_cell("paper", n, m, "LinearTransformer", layers, 2))
    tokens, answers = (torch.randn(batch, *shape, generator=generator) for shape in ((n + m + 3, n), (n,)))
    step = _training_step(model, lambda: mse_loss(model(tokens), answers))
    return step, scale_step_flop(layers, batch, n, m)


def _tuning_step(config: Config, generator: torch.Generator) -> tuple[Callable[[], None], float]:
    """The literal Time2Decide of full size: 16 assets, windows and targets of 96 steps; operations are counted."""
    from torch.utils.flop_counter import FlopCounterMode

    model, recipe = PaperModel().train(), PAPER_MODEL_PRESETS["paper"]
    shape = (config["batch"], 192, model.config.assets)
    returns = 0.01 * torch.randn(shape, generator=generator)
    allocations = torch.randn(shape, generator=generator).softmax(-1)
    step = _training_step(model, lambda: paper_decision_loss(model, returns, allocations, recipe))
    counter = FlopCounterMode(display=False)
    with counter:
        step()
    return step, float(counter.get_total_flops())


def _training_step(model: torch.nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimiser = make_optimiser(
        dict(model.named_parameters()), LoopConfig(steps=1, lr=1e-4, weight_decay=0.01, fused=True)
    )

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def scale_qp_flop(assumptions: ScaleAssumptions) -> float:
    """All cells of the paper's grids together."""
    total = 0.0
    for place, _ in published("qp_r2"):
        size = {key: int(value) for key, value in (item.split("=") for item in place.split(";"))}
        steps = math.ceil((50_000 if size["n"] <= 10 else 100_000) / _QP_BATCH) * assumptions.qp_epochs
        total += steps * scale_step_flop(size["layers"], _QP_BATCH, size["n"], size["m"])
    return total


def scale_tuning_flop(assumptions: ScaleAssumptions, row: Row) -> float:
    """All fine-tunings together, by the operations of a window that a stored row counts."""
    windows = _TUNING_RUNS * assumptions.tuning_epochs * _TUNING_WINDOWS
    return float(windows * row["flop"] / row["batch"])


def scale_costs(rows: list[Row]) -> list[Row]:
    """Days of the two sweeps on one core, 64 cores and 8 GPUs; none without both measurements."""
    known = ScaleAssumptions()
    measured = {row["work"]: row for row in rows}
    if set(measured) != {"qp", "tuning"}:
        return []
    flop = {"qp": scale_qp_flop(known), "tuning": scale_tuning_flop(known, measured["tuning"])}
    gpu_speed = {"qp": known.qp_gpu_flops, "tuning": known.tuning_gpu_flops}
    found = []
    for name, (at_once, gpus) in _MACHINES.items():
        day = 86_400 * at_once * (1.0 if at_once == 1 else known.efficiency)
        speed = gpu_speed if gpus else {work: row["core_flops"] for work, row in measured.items()}
        found.append({"machine": name} | {f"{work}_days": flop[work] / (day * speed[work]) for work in flop})
    return found


def scale_tables(rows: list[Row]) -> list[Table]:
    """Measured training steps, the costs of the sweeps, and their assumptions."""
    steps = []
    for row in rows:
        work, unit = ("QP cell", "problem") if row["work"] == "qp" else ("fine-tuning", "window")
        figures = [f"{row['flop'] / 1e9:.0f} GFLOP", f"{row['core_seconds']:.2f} s"]
        name = f"{work}, {row['batch']} {unit}{'s' * (row['batch'] > 1)}"
        steps.append([name, *figures, f"{row['core_flops'] / 1e9:.0f} GFLOP/s"])
    sweeps = [[row["machine"], _days(row["qp_days"]), _days(row["tuning_days"])] for row in scale_costs(rows)]
    known = ScaleAssumptions()
    note = (
        f"Assumed, not measured: a QP cell trains for {known.qp_epochs} epochs, a fine-tuning for "
        f"{known.tuning_epochs}; a GPU does {known.qp_gpu_flops / 1e12:g} TFLOP/s on QP cells and "
        f"{known.tuning_gpu_flops / 1e12:g} on fine-tunings; {known.efficiency:.0%} of several cores or GPUs are busy."
    )
    columns = ["a training step", "operations", "processor time", "speed of a core"]
    return [
        Table("Training steps of full size", columns, steps),
        Table("Time of the full sweep", ["machine", "336 QP cells", "448 fine-tunings"], sweeps, note),
    ]


def _days(value: float) -> str:
    return f"{value:.1f} days" if value < 10 else f"{value:,.0f} days" if value < 730 else f"{value / 365:.0f} years"


EXPERIMENTS = (
    Experiment(
        id="scale",
        title="What the paper's full sweep costs, from measured training steps",
        paper="not in the paper: its 336 QP cells and 448 fine-tunings",
        presets={"smoke": "5 s", "cpu": "1 min"},
        tasks=_tasks,
        run=_run,
        tables=scale_tables,
    ),
)
