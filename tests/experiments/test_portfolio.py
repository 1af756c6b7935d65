"""The portfolio experiments run under smoke, score all strategies, and their comparisons say what the scores say."""

from pathlib import Path

import numpy as np
import pytest

from time2decide.experiments.portfolio import (
    MAKERS,
    portfolio_bootstrap_error,
    portfolio_gain,
    portfolio_scores,
    portfolio_tables,
)
from time2decide.experiments.registry import get_experiment, reproduce
from time2decide.experiments.store import Store
from time2decide.markets import BUDGETS


def test_every_strategy_is_scored_on_the_same_series(tmp_path: Path) -> None:
    experiment = get_experiment("portfolio-clean")
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert not [row["error"] for row in rows if row["error"]]
    assert {row["strategy"] for row in rows} == set(MAKERS)
    assert len(rows) == len(MAKERS) * len(BUDGETS)
    assert all(len(row["mse_series"]) == 2 for row in rows)
    assert max(row["violation"] for row in rows) <= 1e-9
    assert np.isclose(portfolio_scores(rows, "uniform", 2.0, "mse").mean(), 15 / 256, atol=1e-3)
    text = "\n".join(table.text() for table in experiment.tables(rows))
    assert "(323)" in text  # the paper's Time2Decide at γ = 0.5
    assert "compared in pairs" in text


@pytest.mark.parametrize("name", ["portfolio-sizes", "decide-ablation", "decide-seeds"])
def test_the_other_experiments_run(name: str, tmp_path: Path) -> None:
    experiment = get_experiment(name)
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert not [row["error"] for row in rows if row["error"]]
    assert "MSE × 1e4" in experiment.tables(rows)[0].caption


def test_a_gain_is_that_of_the_means_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.uniform(1.0, 2.0, 60)
    ours = 0.7 * theirs + 0.05 * rng.standard_normal(60)
    middle, low, high = portfolio_gain(ours, theirs, "mse")
    assert np.isclose(middle, 100 * (1 - ours.mean() / theirs.mean()))
    assert 25 < low < middle < high < 35
    assert np.isclose(portfolio_bootstrap_error(theirs), theirs.std(ddof=1) / 60**0.5, rtol=0.1)


@pytest.mark.parametrize("key", ["mse", "regret"])
def test_intervals_called_95_per_cent_hold_the_truth_in_about_95_of_100_samples(key: str) -> None:
    rng = np.random.default_rng(2)
    truth = 50.0 if key == "mse" else 1e4  # the mean of theirs is 2, that of ours 1
    trials = 300
    inside = 0
    for _ in range(trials):
        theirs = 2 + 0.5 * rng.standard_normal(60)
        ours = 1 + 0.5 * rng.standard_normal(60)
        _, low, high = portfolio_gain(ours, theirs, key)
        inside += low <= truth <= high
    assert 0.90 <= inside / trials <= 0.985


def test_a_gain_in_regret_is_a_difference_and_may_pass_zero() -> None:
    rng = np.random.default_rng(1)
    theirs = 1e-4 * rng.uniform(1.0, 2.0, 60)
    ours = theirs - 3e-4 + 1e-5 * rng.standard_normal(60)
    middle, low, high = portfolio_gain(ours, theirs, "regret")
    assert np.isclose(middle, 3.0, atol=0.1)
    assert low < middle < high
    assert portfolio_gain(theirs, theirs, "regret") == (0.0, 0.0, 0.0)
    assert np.isclose(portfolio_gain(0.5 * theirs, theirs, "mse")[0], 50.0)


def test_tables_count_the_budgets_where_ours_is_below() -> None:
    rows = [
        {
            "strategy": name,
            "turnover_l1": budget,
            "market": "clean",
            "seed": 0,
            "evaluation": 2,
            "violation": 0.0,
            "mse_series": [0.01, 0.02] if name == "time2decide-own" and budget < 1.2 else [0.02, 0.03],
            "regret_series": [0.1, 0.2],
            "shown_oracle_mse": 0.011,
            "other_returns_mse": 0.012,
        }
        for name in MAKERS
        for budget in BUDGETS
    ]
    compared = next(table for table in portfolio_tables(rows) if "MSE less by" in table.caption)
    line = next(row for row in compared.rows if row[0] == "time2decide-own against uniform")
    assert line[-2:] == ["7 of 7", "3"]
    assert "95% intervals" in compared.caption
    line = next(row for row in compared.rows if row[0] == "paper-repaired against pto-timepfn")
    assert line[-2:] == ["7 of 7", "0"]  # equal is not below for sure
    assert "time2decide-own below the paper's Time2Decide: 7 of 7" in compared.note
    assert "paper-repaired 110.0, with the returns of another series 120.0" in compared.note


@pytest.mark.parametrize("name", ["portfolio-clean", "portfolio-noisy", "portfolio-sizes", "decide-seeds"])
def test_stored_rows_have_the_names_of_the_registry(name: str) -> None:
    rows = Store(name, "cpu", Path(__file__).parents[2] / "results").rows()
    assert {row["strategy"] for row in rows} <= set(MAKERS)
