"""The cost of the full sweep: counts of the paper, scaling, and speeds read from the store."""

from pathlib import Path

import pytest

from time2decide.experiments.paper import published
from time2decide.experiments.scale import (
    Assumptions,
    costs,
    measured_flops,
    paper_core_flops,
    qp_flop,
    step_flop,
    table,
)
from time2decide.qp import InputError

STORED = Path(__file__).parent.parent.parent / "results"


def line(steps, seconds, error=None):
    config = {"layers": 2, "d_model": 32, "n": 5, "m": 3, "training": {"batch": 64}}
    return {"config": config, "error": error, "rows": [{"steps": steps, "train_seconds": seconds, "device": "cpu"}]}


def test_the_sweeps_have_the_papers_sizes():
    assert len(published("qp_r2")) == 336
    assert Assumptions().tuning_runs == 448


def test_speed_is_the_median_of_stored_trainings():
    step = step_flop(2, 32, 64, 5, 3)
    assert step == 6 * 12 * 2 * 32**2 * 64 * 11
    assert measured_flops([line(100, 1.0), line(100, 2.0), line(100, 4.0), line(1, 9.0, "RuntimeError")]) == 50 * step
    with pytest.raises(InputError, match="expected stored trainings"):
        measured_flops([])


def test_a_step_of_the_paper_preset_runs():
    assert paper_core_flops(layers=1, rounds=1) > 0


def test_costs_scale_with_machines_and_epochs():
    one, many, gpus = costs(STORED)
    assert one["qp_days"] == pytest.approx(many["qp_days"] * 64 * Assumptions().efficiency)
    assert gpus["tuning_days"] < many["tuning_days"] < one["tuning_days"]
    assert qp_flop(Assumptions(qp_epochs=300)) == pytest.approx(2 * qp_flop(Assumptions()))
    assert costs(STORED, core_flops=1e9)[0]["qp_days"] == pytest.approx(qp_flop(Assumptions()) / 1e9 / 86_400)


def test_the_page_quotes_the_table():
    assert table(costs(STORED, core_flops=40e9)) in (STORED.parent / "docs/scale.md").read_text()
