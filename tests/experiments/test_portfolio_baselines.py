import pytest

from time2decide.experiments import reproduce
from time2decide.experiments.portfolio_baselines import EXPERIMENTS
from time2decide.markets import BUDGETS, MARKETS


def test_smoke_preset_runs_and_is_shown_beside_the_paper(tmp_path):
    (experiment,) = EXPERIMENTS
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert not [row for row in rows if row["error"]]
    names = {row["strategy"] for row in rows}
    assert {"oracle", "uniform", "lag1-oracle", "soft-persistence", "pto-ar1", "pto-ridge-shrunk"} <= names
    assert len(rows) == len(names) * len(BUDGETS)
    uniform = [row["mse"] for row in rows if row["strategy"] == "uniform"]
    assert uniform[-1] == pytest.approx(15 / 256, abs=2e-4)
    text = "\n".join(table.text() for table in experiment.tables(rows))
    assert "(0.0425)" in text
    assert "regret" in text


def test_published_presets_cover_three_markets():
    (experiment,) = EXPERIMENTS
    for preset, seeds in (("cpu", 3), ("paper", 10)):
        tasks = experiment.tasks(preset)
        assert {task["market"] for task in tasks} == set(MARKETS)
        assert len(tasks) == 3 * seeds
