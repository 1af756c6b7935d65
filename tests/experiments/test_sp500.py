"""The experiment on real prices: a small run of it, and what its table says."""

import json

import pytest

from time2decide.experiments import get_experiment


@pytest.mark.slow
def test_smoke_rows_are_complete_and_shown():
    experiment = get_experiment("sp500")
    (config,) = experiment.tasks("smoke")
    rows = experiment.run(json.loads(json.dumps(config)))
    assert {row["strategy"] for row in rows} >= {"time2decide", "time2decide-tuned", "uniform", "minimum-variance"}
    for row in rows:
        assert row["sharpe_low"] <= row["sharpe"] <= row["sharpe_high"]
        assert row["turnover"] <= row["turnover_l1"] + 1e-9
    (table,) = experiment.tables([{**config, **row, "preset": "smoke", "error": None} for row in rows])
    assert "γ = 0.5" in table.caption
    assert "Better than 1/N beyond the interval" in table.note
    assert json.loads(json.dumps(rows)) == rows


def test_the_published_run_covers_the_budgets():
    (config,) = get_experiment("sp500").tasks("cpu")
    assert config["budgets"] == [0.1, 0.5, 1.0]
    assert config["cost_bps"] == 10.0
