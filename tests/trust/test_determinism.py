"""The same command gives the same numbers: in another process to the last bit, with two threads within a bound.

Sums may be taken in another order when two threads share them; what is promised then is the bound. Adam turns the
last bit of a gradient near zero into a step of the size of the learning rate: the bound on trained weights is wide.
"""

import json
import os
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from tests.trust.commands import command_line, prepare
from time2decide.core.checkpoints import load_tensors
from time2decide.experiments.store import Store


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = prepare(tmp_path_factory.mktemp("prepared"))
    draw = np.random.default_rng(1)
    wide = 0.01 * draw.standard_normal((600, 120)) + 0.01 * draw.standard_normal((600, 1))
    pd.DataFrame(wide, pd.bdate_range("2020-01-01", periods=600)).to_csv(folder / "wide.csv")
    return folder


def decided(folder, text):
    return list(json.loads(text)["weights"].values())


def simulated(folder, text):
    return pd.read_csv(folder / "out/steps.csv").select_dtypes("number").to_numpy()


def solved(folder, text):
    return json.loads(text)["x"]


def trained(folder, text):
    tensors = load_tensors(folder / "out/model.safetensors")[0]
    return np.concatenate([tensor.double().numpy().ravel() for _, tensor in sorted(tensors.items())])


def reproduced(folder, text):
    rows = Store("convergence", "smoke", folder / "out").rows()
    return [row["largest_difference"] for row in rows] + [row["layers_to_1e-6"]["median"] or 0 for row in rows]


#: name -> command ({threads} where it can be told), its numbers, bound on what a second thread may change
WORKS = {
    "decide": ("decide wide.csv --returns --json", decided, 1e-8),
    "backtest": (
        "backtest wide.csv --returns --strategies market,minimum-variance --last 130 --out out",
        simulated,
        1e-8,
    ),
    "solve": ("solve problem.npz --method exact --json", solved, 1e-12),
    "train-timepfn": ("train timepfn --preset smoke --threads {threads} --out out", trained, 1e-2),
    "train-paper": ("train paper --preset smoke --threads {threads} --out out", trained, 1e-2),
    "reproduce": ("reproduce convergence --preset smoke --results out", reproduced, 1e-12),
}


@pytest.mark.parametrize("name", WORKS)
def test_the_same_numbers(prepared, tmp_path, record, name):
    command, numbers, bound = WORKS[name]
    found = []
    for run, threads in enumerate((1, 1, 2)):
        folder = shutil.copytree(prepared, tmp_path / str(run))
        several = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        options = command_line(command.format(threads=threads), folder, **several)
        done = subprocess.run(**options, check=False, timeout=900)
        assert done.returncode == 0, done.stderr
        found.append(np.asarray(numbers(folder, done.stdout), dtype=float))
    assert found[0].size
    assert np.array_equal(found[0], found[1], equal_nan=True)
    difference = float(np.nanmax(np.abs(found[0] - found[2])))
    assert difference <= bound
    text = "{numbers:,} numbers: two processes equal; 1 and 2 threads within {difference:.0e} ({bound:.0e} promised)"
    cores = len(os.sched_getaffinity(0))
    record(f"same-{name}", text, numbers=found[0].size, difference=difference, bound=bound, cores=cores)
