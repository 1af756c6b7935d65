"""Every arm of the ablation changes the recipe, and the smoke preset prints its table."""

import pytest

from time2decide.experiments.paper_ablation import ARMS, PAIRS, ablation_covariance_claims, ablation_recipe
from time2decide.experiments.registry import get_experiment, reproduce


def test_every_arm_differs_from_the_repaired_model():
    shared = {"recipe": "cpu", "market": "clean", "seed": 0, "steps": 5}
    recipes = [ablation_recipe({**shared, "arm": arm}) for arm in ARMS]
    assert len({str(recipe) for recipe in recipes}) == len(ARMS)
    assert all(recipe.markets == ("clean",) and recipe.steps == 5 for recipe in recipes)


@pytest.mark.slow
def test_a_smoke_run_prints_its_table(tmp_path):
    experiment = get_experiment("paper-ablation")
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert [row["error"] for row in rows if row["error"]] == []
    text = experiment.tables(rows)[0].text()
    assert all(name in text for name in ("repaired", "with the risk gradient", "pto-timepfn", "uniform"))


def test_a_pair_differs_in_covariance_tokens_alone():
    for ours, sft in PAIRS.values():
        assert ARMS[sft][0] == {**ARMS[ours][0], "covariance": False}
        assert ARMS[sft][1] == ARMS[ours][1]


def test_a_claim_counts_the_cells_that_both_have():
    cells = [("clean", 1.0, 0.2, 0.3), ("clean", 2.0, 0.5, 0.4), ("noisy", 1.0, 0.1, None)]
    rows = [
        {"market": market, "turnover_l1": budget, "risk_aversion": 10.0, "strategy": name, "mse": mse}
        | {"seed": 0, "mse_series": [0.9 * mse, mse, 1.1 * mse]}
        for market, budget, ours, sft in cells
        for name, mse in (("ours", ours), ("sft", sft))
        if mse is not None
    ]
    (claim,) = ablation_covariance_claims(rows, "ours", "sft", "a model")
    assert claim.cases == [True, False]
    assert claim.detail == "counted if the interval is above 0; less MSE on average in 1 of 2"
    assert "λ = 10" in claim.text


def test_a_pair_of_several_trainings_is_pooled_and_shown_seed_by_seed():
    ours, sft = PAIRS["sizes in the read-out"]
    rows = [
        {
            "market": "clean",
            "risk_aversion": 10.0,
            "steps": 4,
            "recipe": "smoke",
            "evaluation": [2, 3],
            "strategy": name,
        }
        | {"seed": seed, "turnover_l1": budget, "mse": mse, "mse_series": [mse, mse]}
        for seed, gain in ((0, 0.9), (1, 1.1), (2, 0.7))
        for name, mse in ((ours, 0.2 * gain), (sft, 0.2))
        for budget in (0.5, 1.0, 2.0)
    ]
    experiment = get_experiment("paper-ablation")
    arms, pairs = experiment.tables(rows)
    assert [row[1] for row in arms.rows] == ["1800.0", "2000.0"]  # of the first seed alone
    assert pairs.rows[0][3] == "4"
    assert pairs.rows[0][4].startswith("10 [")
    assert pairs.rows[0][4].endswith("(10, -10, 30)")
    (claim, *_) = experiment.claims(rows)
    assert claim.cases == [False] * 3  # less on average, but the interval holds 0
    assert "in 3 of 3" in claim.detail


def test_the_bundled_pair_is_compared_at_larger_risk_aversions(tmp_path):
    experiment = get_experiment("paper-risks")
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert [row["error"] for row in rows if row["error"]] == []
    text = experiment.tables(rows)[0].text()
    assert "saves against paper-repaired-sft" in text
    assert {row["risk_aversion"] for row in rows} == {10.0}
    assert len(experiment.claims(rows)[0].cases) == 7
