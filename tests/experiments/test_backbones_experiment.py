"""The comparison of backbones runs under smoke and its table has every backbone and way to decide."""

import numpy as np
import pytest

from time2decide.experiments.backbones import BACKBONES, backbone_forecast_errors
from time2decide.experiments.registry import get_experiment, reproduce
from time2decide.forecasting.backbones import load_backbone


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_smoke_run_prints_its_table(tmp_path):
    pytest.importorskip("chronos")
    experiment = get_experiment("backbones")
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert [row["error"] for row in rows if row["error"]] == []
    text = experiment.tables(rows)[0].text()
    assert all(name in text for name in (*BACKBONES[2:4], "decision layer, no covariance", "pto", "uniform"))


def test_errors_are_those_of_the_first_step():
    returns = 0.01 * np.random.default_rng(0).standard_normal((2, 113, 3)).cumsum(axis=1)
    backbone = load_backbone("kernel-bank:")
    found = backbone_forecast_errors(backbone, returns)
    twice = backbone_forecast_errors(backbone, 2 * returns)
    assert twice["forecast_mse"] == pytest.approx(4 * found["forecast_mse"], rel=1e-3)
    assert twice["difference_mse"] == pytest.approx(found["difference_mse"], rel=1e-3)
