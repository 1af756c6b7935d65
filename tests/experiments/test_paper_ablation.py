"""Every arm of the ablation changes the recipe, and the smoke preset prints its table."""

import pytest

from time2decide.experiments.paper_ablation import ARMS, recipe_of
from time2decide.experiments.registry import get_experiment, reproduce


def test_every_arm_differs_from_the_repaired_model():
    shared = {"recipe": "cpu", "market": "clean", "seed": 0, "steps": 5, "risk_aversion": 1.0}
    recipes = [recipe_of({**shared, "arm": arm}) for arm in ARMS]
    assert len({str(recipe) for recipe in recipes}) == len(ARMS)
    assert all(recipe.markets == ("clean",) and recipe.steps == 5 for recipe in recipes)


@pytest.mark.slow
def test_a_smoke_run_prints_its_table(tmp_path):
    experiment = get_experiment("paper-ablation")
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert [row["error"] for row in rows if row["error"]] == []
    text = experiment.tables(rows)[0].text()
    assert all(name in text for name in ("repaired", "literal read-out", "pto-timepfn", "uniform"))
