"""The portfolio experiments run under smoke, score all strategies, and their comparisons say what the scores say."""

from pathlib import Path

import numpy as np
import pytest

from time2decide.experiments.portfolio import MAKERS
from time2decide.experiments.portfolio_tables import bootstrap_error, findings, gain, reduction, values
from time2decide.experiments.registry import get_experiment, reproduce
from time2decide.markets import BUDGETS


def test_every_strategy_is_scored_on_the_same_series(tmp_path: Path) -> None:
    experiment = get_experiment("portfolio-clean")
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert not [row["error"] for row in rows if row["error"]]
    assert {row["strategy"] for row in rows} == set(MAKERS)
    assert len(rows) == len(MAKERS) * len(BUDGETS)
    assert all(len(row["mse_series"]) == 2 for row in rows)
    assert max(row["violation"] for row in rows) <= 1e-9
    assert np.isclose(values(rows, "uniform", 2.0, "mse").mean(), 15 / 256, atol=1e-3)
    text = experiment.show(rows)
    assert "[323]" in text  # the paper's Time2Decide at γ = 0.5
    assert "compared in pairs" in text


@pytest.mark.parametrize("name", ["portfolio-sizes", "decide-ablation", "decide-seeds"])
def test_the_other_experiments_run(name: str, tmp_path: Path) -> None:
    experiment = get_experiment(name)
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert not [row["error"] for row in rows if row["error"]]
    assert "MSE × 1e4" in experiment.show(rows)


def test_a_reduction_is_that_of_the_means_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.uniform(1.0, 2.0, 60)
    ours = 0.7 * theirs + 0.05 * rng.standard_normal(60)
    middle, low, high = reduction(ours, theirs)
    assert np.isclose(middle, 1 - ours.mean() / theirs.mean())
    assert low < middle < high
    assert low > 0.25
    assert high < 0.35
    assert np.isclose(bootstrap_error(theirs), theirs.std(ddof=1) / 60**0.5, rtol=0.1)


def test_a_gain_in_regret_is_a_difference_and_may_pass_zero() -> None:
    rng = np.random.default_rng(1)
    theirs = 1e-4 * rng.uniform(1.0, 2.0, 60)
    ours = theirs - 3e-4 + 1e-5 * rng.standard_normal(60)
    middle, low, high = gain(ours, theirs, "regret")
    assert np.isclose(middle, 3.0, atol=0.1)
    assert low < middle < high
    assert gain(theirs, theirs, "regret") == (0.0, 0.0, 0.0)
    assert np.isclose(gain(0.5 * theirs, theirs, "mse")[0], 50.0)


def test_findings_count_the_budgets_where_ours_is_below() -> None:
    names = [*MAKERS]
    rows = [
        {
            "strategy": name,
            "turnover_l1": budget,
            "market": "clean",
            "seed": 0,
            "violation": 0.0,
            "mse_series": [0.01 * (1 + names.index(name) == 0), 0.02],
            "regret_series": [0.1, 0.2],
        }
        for name in names
        for budget in BUDGETS
    ]
    for row in rows:
        better = row["strategy"] == "time2decide (own)" and row["turnover_l1"] < 1.2
        row["mse_series"] = [0.01, 0.02] if better else [0.02, 0.03]
    text = "\n".join(findings(rows))
    assert "mse of time2decide (own) at or below uniform: 7 of 7 (interval above 0 in 3)" in text
