"""The experiments of the literal models: their smoke presets run whole, and their tables show the paper's figures."""

import numpy as np
import pytest

from time2decide.experiments.forecast_errors import errors, iterate
from time2decide.experiments.registry import get_experiment, reproduce
from time2decide.forecasting.simple import persistence


@pytest.mark.parametrize("name", ["forecast-errors", "lambda-sweep", "finetuned-pto"])
def test_a_smoke_run_prints_its_table(name, tmp_path):
    experiment = get_experiment(name)
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert [row["error"] for row in rows if row["error"]] == []
    text = "\n".join(table.text() for table in experiment.tables(rows))
    expected = {"forecast-errors": "timepfn", "lambda-sweep": "(0.0479)", "finetuned-pto": "(0.0407)"}
    assert expected[name] in text
    assert reproduce(experiment, "smoke", root=tmp_path) == rows  # nothing is run twice


def test_the_sweep_covers_the_papers_grid():
    paper = [task for task in get_experiment("lambda-sweep").tasks("paper") if task["model"] != "references"]
    assert len(paper) == 2 * 7 * 16 * 2
    assert len({str(task) for task in paper}) == len(paper)


def test_a_forecast_is_iterated_on_itself():
    window = np.random.default_rng(0).standard_normal((3, 96, 2))
    path = iterate(persistence, window, 5)
    np.testing.assert_array_equal(path, np.repeat(window[:, -1:], 5, axis=1))
    grown = iterate(lambda seen: seen[:, -1] + seen[:, -2], window, 3)
    a, b = window[:, -2], window[:, -1]
    np.testing.assert_allclose(grown[:, 2], (a + b) * 2 + b)


def test_relative_errors_are_relative():
    rng = np.random.default_rng(1)
    window, target = rng.standard_normal((4, 96, 2)), rng.standard_normal((4, 96, 2))
    path = np.zeros_like(target)
    found, scaled = errors(path, window, target), errors(path, 10 * window, 10 * target)
    assert scaled["mse_96"] == pytest.approx(100 * found["mse_96"])
    assert scaled["relative_1"] == pytest.approx(found["relative_1"])
    assert found["mse_1"] == pytest.approx((target[:, 0] ** 2).mean())
