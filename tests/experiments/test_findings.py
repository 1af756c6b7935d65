"""Findings of the portfolio sweeps: what rows that are made up for it must give, and rows that are not there."""

import pytest

from time2decide.experiments import get_experiment
from time2decide.experiments.findings import held
from time2decide.markets import BUDGETS


def verdicts(name, rows):
    """Finding -> (held, tested, cases)."""
    found = get_experiment(name).findings(rows)
    return {item["finding"]: (item["held"], item["tested"], item["cases"]) for item in found}


def starting(found, start):
    (key,) = [key for key in found if key.startswith(start)]
    return found[key]


def sweep(market, budget, scores):
    """Rows of one market and budget: references, and λ_r -> (MSE, MSE on validation series) of the two models."""
    common = {"market": market, "turnover_l1": budget, "error": None}
    rows = []
    for name, value in scores.items():
        if isinstance(value, dict):
            for weight, (mse, known) in value.items():
                cell = {"model": name, "strategy": name, "return_weight": weight}
                rows.append({**common, **cell, "mse": mse, "validation_mse": known})
        else:
            rows.append({**common, "model": "references", "strategy": name, "mse": value})
    return rows


def test_the_sweep_compares_the_weights_chosen_on_validation_series():
    references = {"uniform": 0.5, "pretrained": 0.6, "pto-timepfn": 0.3}
    ours = {0: (0.1, 0.9), 100: (0.4, 0.2), 3000: (0.05, 0.5)}  # the least MSE is not the one that may be chosen
    rows = sweep("clean", 1.0, references | {"time2decide": ours, "sft": {0: (0.45, 0.1), 100: (0.2, 0.3)}})
    rows += sweep("noisy", 1.0, references | {"time2decide": {0: (0.2, 0.1)}, "sft": {100: (0.4, 0.1)}})
    rows += sweep("noisy", 2.0, references | {"time2decide": {100: (0.2, 0.1)}})
    found = verdicts("lambda-sweep", rows)
    assert starting(found, "Literal models: Time2Decide is below SFT") == (True, True, "2 of 2 cases")
    assert starting(found, "Literal models: Time2Decide is below Pretrained") == (True, True, "3 of 3 cases")
    assert starting(found, "Literal models, clean: PtO") == (True, True, "1 of 1 cases")
    assert starting(found, "Literal models, clean: Time2Decide") == (False, False, "0 of 0 cases")
    assert starting(found, "Literal models, noisy") == (True, True, "1 of 1 cases")
    assert starting(found, "Literal Time2Decide: the best") == (False, True, "0 of 1 cases")
    assert starting(found, "Literal models: SFT wants") == (False, True, "1 of 2 cases")  # half is not most


def test_the_fine_tuned_forecaster_is_compared_budget_by_budget():
    mse = {"pto-timepfn": 1.0, "pto-timepfn-shrunk": 0.9, "pto-finetuned": 1.1, "pto-finetuned-shrunk": 0.9}
    rows = [
        {"market": market, "turnover_l1": budget, "strategy": name, "mse": value * budget, "error": None}
        for market in ("noisy", "clean")
        for budget in BUDGETS
        for name, value in mse.items()
    ]
    better = [row | {"mse": 0.1} if row["strategy"] == "pto-finetuned" else row for row in rows]
    found, other = verdicts("finetuned-pto", rows), verdicts("finetuned-pto", better)
    assert starting(found, "Noisy: fine-tuning") == (True, True, "7 of 7 cases")
    assert starting(other, "Noisy: fine-tuning") == (False, True, "0 of 7 cases")
    assert starting(found, "Noisy: predict-then-optimise degrades") == (True, True, "12 of 12 cases")
    assert starting(other, "Noisy: predict-then-optimise degrades") == (False, True, "6 of 12 cases")
    assert starting(found, "Noisy: attenuating") == (True, True, "7 of 7 cases")


def test_the_ablation_compares_networks_cell_by_cell():
    def rows(covariance, weight, evaluation, validation):
        common = {"covariance": covariance, "return_weight": weight, "budgets": "γ < 0.9", "error": None}
        scores = {"evaluation": evaluation, "validation": (validation, validation)}
        return [
            {**common, "split": split, "market": market, "mse": mse}
            for split, pair in scores.items()
            for market, mse in zip(("clean", "noisy"), pair, strict=True)
        ]

    stored = rows("none", 0.1, (1.0, 1.0), 1.0) + rows("covariance", 0.1, (0.5, 1.5), 1.0)
    stored += rows("full", 0.1, (0.9, 0.9), 0.5) + rows("full", 1.0, (0.1, 0.1), 0.6) + rows("full", 0.0, (0.5, 1), 1.0)
    stored.append({"covariance": "scale", "return_weight": 0.1, "error": "RuntimeError: diverged"})
    found = verdicts("decide-ablation", stored)
    assert starting(found, "Our network: told of the covariance") == (False, True, "1 of 2 cases")
    assert starting(found, "Our network: covariance and means") == (True, True, "2 of 2 cases")
    assert starting(found, "Our network: correlations alone") == (False, False, "0 of 0 cases")
    assert starting(found, "Our network: correlations improve") == (False, False, "0 of 0 cases")  # no rows to compare
    assert starting(found, "Our network: forecasting") == (False, True, "1 of 2 cases")


@pytest.mark.parametrize("name", ["lambda-sweep", "finetuned-pto", "decide-ablation"])
def test_without_rows_nothing_is_tested(name):
    found = verdicts(name, [])
    assert found
    assert {(holds, tested) for holds, tested, _ in found.values()} == {(False, False)}


def test_most_is_more_than_half():
    assert held("x", [True, True, False], most=True)["held"]
    assert not held("x", [True, False], most=True)["held"]
    assert not held("x", [], most=True)["held"]
    assert not held("x", [True, True, False])["held"]
