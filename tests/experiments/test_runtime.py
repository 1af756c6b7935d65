"""The runtime tables: the paper's sizes, both forms timed, the paper's figures in the right place."""

import pytest

from time2decide.experiments import get_experiment, reproduce
from time2decide.experiments.runtime import sizes

SIZES = {"u": 4, "r": 4, "c": 4, "lc": 10}
OVERHEADS = {"u": "1.25", "r": "1.35", "c": "3.37", "lc": "1.25"}  # the paper's, of its smallest size


@pytest.mark.parametrize("kind", SIZES)
def test_smoke_run_and_table(kind, tmp_path):
    experiment = get_experiment(f"runtime-{kind}")
    assert len(experiment.tasks("cpu")) == len(sizes(kind.upper())) == SIZES[kind]
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert [row["batch"] for row in rows] == [1, 256]
    assert all(row["error"] is None and row["classical_us"] > 0 and row["overhead"] > 0 for row in rows)
    single = next(line for line in experiment.show(rows).splitlines() if line.startswith(kind.upper() + " "))
    assert single.endswith(OVERHEADS[kind])


def test_a_dear_layer_is_noticed():
    experiment = get_experiment("runtime-u")
    row = {"kind": "U", "n": 16, "m": 0, "batch": 1, "overhead": 1.3, "error": None}
    assert [item["held"] for item in experiment.findings([row])] == [True, False]
    assert [item["held"] for item in experiment.findings([row | {"overhead": 1.5}])] == [False, False]
    assert not any(item["tested"] for item in experiment.findings([]))
