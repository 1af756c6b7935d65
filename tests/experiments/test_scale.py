"""The cost of the full sweep: counts of the paper, a real step of each kind, and the page that quotes the rows."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from time2decide.experiments import Store, get_experiment, reproduce
from time2decide.experiments.claims import published
from time2decide.experiments.qp_models import qp_cell, qp_cell_model
from time2decide.experiments.scale import (
    _TUNING_RUNS,
    ScaleAssumptions,
    scale_costs,
    scale_qp_flop,
    scale_step_flop,
    scale_tables,
    scale_tuning_flop,
)

STORED = Path(__file__).parent.parent.parent / "results"
QP = {"work": "qp", "batch": 128, "flop": 4e9, "core_seconds": 0.1, "core_flops": 40e9, "error": None}
TUNING = {"work": "tuning", "batch": 2, "flop": 28e9, "core_seconds": 1.0, "core_flops": 28e9, "error": None}


def test_the_sweeps_have_the_papers_sizes():
    assert len(published("qp_r2")) == 336
    assert _TUNING_RUNS == 448
    assert len([task for task in get_experiment("lambda-sweep").tasks("paper") if "return_weight" in task]) == 448


@pytest.mark.parametrize(("layers", "n", "m"), [(1, 5, 3), (2, 20, 16), (8, 5, 3)])
def test_operations_are_those_of_the_model(layers, n, m):
    model = qp_cell_model(qp_cell("paper", n, m, "LinearTransformer", layers, 2)).to("meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(128, n + m + 3, n, device="meta")).sum().backward()
    assert scale_step_flop(layers, 128, n, m) == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_a_smoke_run_takes_a_step_of_each_kind(tmp_path):
    experiment = get_experiment("scale")
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert [row["error"] for row in rows] == [None, None]
    assert rows[1]["flop"] == pytest.approx(14.07e9, rel=0.01)  # of one window
    assert scale_tables(rows)[0].rows[1][0] == "fine-tuning, 1 window"
    assert len(scale_costs(rows)) == 3


def test_costs_scale_with_machines_and_epochs():
    one, many, gpus = scale_costs([QP, TUNING])
    assert one["qp_days"] == pytest.approx(scale_qp_flop(ScaleAssumptions()) / 40e9 / 86_400)
    assert one["tuning_days"] == pytest.approx(448 * 10 * 249_900 * 0.5 / 86_400)
    assert one["qp_days"] == pytest.approx(many["qp_days"] * 64 * ScaleAssumptions().efficiency)
    assert gpus["tuning_days"] < many["tuning_days"] < one["tuning_days"]
    twice = ScaleAssumptions(qp_epochs=300, tuning_epochs=20)
    assert scale_qp_flop(twice) == pytest.approx(2 * scale_qp_flop(ScaleAssumptions()))
    assert scale_tuning_flop(twice, TUNING) == pytest.approx(2 * scale_tuning_flop(ScaleAssumptions(), TUNING))


def test_without_both_measurements_there_are_no_costs():
    assert scale_costs([QP]) == []
    assert scale_tables([QP])[1].rows == []


def test_the_page_quotes_the_stored_rows():
    page = (STORED.parent / "docs/scale.md").read_text()
    for table in scale_tables(Store("scale", "cpu", STORED).rows()):
        assert replace(table, caption="", note="").markdown() in page
