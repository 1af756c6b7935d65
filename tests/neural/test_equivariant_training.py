"""The recipe of the size-agnostic solver: learns, is deterministic, survives SIGKILL to the last bit."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from time2decide.cli.app import app
from time2decide.neural.equivariant import (
    UNSEEN_SIZES,
    EquivariantConfig,
    EquivariantSolver,
    EquivariantTraining,
    draw_problem_size,
    draw_training_problems,
    equivariant_loss,
    train_equivariant,
)
from time2decide.qp import PAPER_SIZES, InputError

TINY = EquivariantTraining(
    steps=24, batch=8, warmup=4, depths=(2, 3), largest=6, seed=3, model=EquivariantConfig(width=4, hidden=8)
)
CHILD = """
import sys, torch
from time2decide.core import training
from time2decide.neural.equivariant import EquivariantConfig
from time2decide.neural.equivariant import EquivariantTraining, train_equivariant
torch.set_num_threads(1)
config = EquivariantTraining(
    steps=24, batch=8, warmup=4, depths=(2, 3), largest=6, seed=3, model=EquivariantConfig(width=4, hidden=8)
)
training.SAVE_EVERY = 0.0
print("ready", flush=True)
train_equivariant(config, sys.argv[1], report=lambda *facts: print(*facts, flush=True))
"""


def same_weights(first: EquivariantSolver, second: EquivariantSolver) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_killed_at_a_random_moment_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = train_equivariant(TINY, tmp_path / "whole")
    rng = random.Random(time.time_ns())  # another moment in every run
    folder = tmp_path / "killed"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(rng.randint(2, 16)):  # lines: it is ready, then one for every step
        child.stdout.readline()
    time.sleep(rng.random() * 0.02)  # anywhere inside a step or a save
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    step = load_step(folder)
    resumed = train_equivariant(TINY, folder)
    assert 0 < step < TINY.steps
    assert same_weights(whole, resumed)
    assert same_weights(whole, EquivariantSolver.from_pretrained(folder))


def load_step(folder: Path) -> int:
    from time2decide.core.checkpoints import load_tensors

    return int(load_tensors(folder / "state.safetensors")[1]["progress"]["step"])


@pytest.mark.usefixtures("one_thread")
def test_deterministic_by_seed_and_apart_from_the_global_generator(tmp_path: Path) -> None:
    runs = []
    for number, seed in enumerate((3, 3, 4)):
        torch.rand(1)
        before = torch.random.get_rng_state()
        runs.append(train_equivariant(replace(TINY, seed=seed), tmp_path / str(number)))
        assert torch.equal(before, torch.random.get_rng_state())
    assert same_weights(runs[0], runs[1])
    assert not same_weights(runs[0], runs[2])


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    steps: list[int] = []
    for _ in range(2):
        train_equivariant(TINY, tmp_path, report=lambda done, total, loss: steps.append(done))
    assert steps == list(range(1, TINY.steps + 1))


def test_a_folder_belongs_to_one_recipe(tmp_path: Path) -> None:
    train_equivariant(TINY, tmp_path)
    with pytest.raises(InputError, match="state: expected a run of the same config and data"):
        train_equivariant(replace(TINY, lr=1e-3), tmp_path)


def test_learns(tmp_path: Path) -> None:
    config = EquivariantTraining(steps=80, batch=48, warmup=10, largest=8, lr=8e-3, decay=0.9)
    trained = train_equivariant(config, tmp_path)
    problems = draw_training_problems(np.random.default_rng(99), 1000, 7, 6)
    with torch.no_grad():
        before, after = (equivariant_loss(model, problems, 6).item() for model in (EquivariantSolver(), trained))
    assert after < 0.7 * before


def test_sizes_that_training_sees() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_problem_size(rng, 24) for _ in range(5000)]
    assert not set(drawn) & set(UNSEEN_SIZES)
    assert set(PAPER_SIZES) <= set(drawn)
    assert 0.45 < np.mean([size in PAPER_SIZES for size in drawn]) < 0.6
    assert all(2 <= n <= 24 and 1 <= m <= 24 for n, m in drawn)


def test_command(tmp_path: Path) -> None:
    arguments = ["train", "qp", "--preset", "smoke", "--out", str(tmp_path / "run"), "--steps", "3", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    notes = json.loads((tmp_path / "run/config.json").read_text())["notes"]
    assert printed["notes"] == notes
    EquivariantSolver.from_pretrained(tmp_path / "run")
    assert notes["recipe"]["steps"] == 3
    assert notes["versions"]["torch"]
    refused = CliRunner().invoke(app, ["train", "qp", "--preset", "huge", "--out", str(tmp_path / "other")])
    assert isinstance(refused.exception, InputError)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected a whole number"),
        ({"lr": 0.0}, "lr: expected a positive number"),
        ({"depths": (4, 2)}, "depths: expected 1 <= low <= high"),
        ({"decay": 1.0}, "decay: expected a number in"),
    ],
)
def test_bad_recipes(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY, **change)  # type: ignore[arg-type]
