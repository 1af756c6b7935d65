"""Claims: what rows that are made up for it must give, thresholds by their numbers, and rows that are not there."""

import pytest

from time2decide.core.validation import InputError
from time2decide.experiments import experiment_ids, get_experiment
from time2decide.experiments.claims import (
    GENERAL,
    NOT_SUPPORTED,
    NOT_TESTED,
    OUR_NETWORK,
    SUPPORTED,
    Claim,
    claims_tables,
)
from time2decide.markets import BUDGETS


def verdicts(name, rows, judged_on=""):
    """Claim -> (verdict, evidence), of those that are judged on one model."""
    found = get_experiment(name).claims(rows)
    return {
        claim.text: (claim.verdict, claim.evidence)
        for claim in found
        if (claim.judged_on == OUR_NETWORK) == (judged_on == OUR_NETWORK)
    }


def starting(found, start):
    (key,) = [key for key in found if key.startswith(start)]
    verdict, evidence = found[key]
    return verdict, evidence.split(";")[0]


def sweep(market, budget, scores):
    """Rows of one market and budget: references, and λ_r -> (MSE, MSE on validation series) of the two models."""
    common = {"market": market, "turnover_l1": budget, "steps": 100, "recipe": "cpu", "seed": 0, "preset": "paper"}
    rows = []
    for name, value in scores.items():
        if isinstance(value, dict):
            for weight, (mse, known) in value.items():
                cell = {"model": name, "strategy": name, "return_weight": weight}
                rows.append({**common, **cell, "mse": mse, "mse_series": [mse, mse], "validation_mse": known})
        else:
            rows.append({**common, "model": "references", "strategy": name, "mse": value, "mse_series": [value, value]})
    return rows


def test_the_sweep_compares_the_weights_chosen_on_validation_series():
    references = {"uniform": 0.5, "pretrained": 0.6, "pto-timepfn": 0.3}
    ours = {0: (0.1, 0.9), 100: (0.4, 0.2), 3000: (0.05, 0.5)}  # the least MSE is not the one that may be chosen
    sft = {0: (0.45, 0.1), 100: (0.2, 0.3)}
    rows = sweep("clean", 1.0, references | {"paper-time2decide": ours, "paper-sft": sft})
    rows += sweep("noisy", 1.0, references | {"paper-time2decide": {0: (0.2, 0.1)}, "paper-sft": {100: (0.4, 0.1)}})
    rows += sweep("noisy", 2.0, references | {"paper-time2decide": {100: (0.2, 0.1)}})
    found = verdicts("lambda-sweep", rows)
    assert starting(found, "Time2Decide is below SFT") == (SUPPORTED, "2 of 2 cases")
    assert starting(found, "Time2Decide is below Pretrained") == (SUPPORTED, "3 of 3 cases")
    assert starting(found, "Time2Decide is below equal weights") == (SUPPORTED, "3 of 3 cases")
    assert starting(found, "Clean: predict") == (SUPPORTED, "1 of 1 cases")
    assert starting(found, "Clean: Time2Decide") == (NOT_TESTED, "")
    assert starting(found, "Noisy: Time2Decide") == (SUPPORTED, "1 of 1 cases")
    assert starting(found, "Time2Decide: the best") == (NOT_SUPPORTED, "0 of 1 cases")
    assert starting(found, "SFT wants") == (NOT_SUPPORTED, "1 of 2 cases")  # half is not most


def test_equal_figures_support_nothing():
    rows = sweep("clean", 1.0, {"uniform": 0.3, "paper-time2decide": {0: (0.2, 0.1)}, "paper-sft": {0: (0.2, 0.1)}})
    assert starting(verdicts("lambda-sweep", rows), "Time2Decide is below SFT") == (NOT_SUPPORTED, "0 of 1 cases")


def test_rows_of_other_data_are_refused():
    rows = sweep("clean", 1.0, {"uniform": 0.3, "paper-time2decide": {0: (0.2, 0.1)}})
    for row, digest in zip(rows, "ab", strict=True):
        row["data"] = digest
    with pytest.raises(InputError, match="one digest of data, found a, b"):
        verdicts("lambda-sweep", rows)
    for row, regret in zip(rows, (0.1, 0.1 + 1e-8), strict=True):
        row |= {"data": "a", "utility": 0.2, "regret": regret}
    with pytest.raises(InputError, match=r"the same utility \+ regret"):
        verdicts("lambda-sweep", rows)


def test_claims_about_decisions_name_the_network_that_they_are_judged_on():
    rows = sweep("clean", 1.0, {"uniform": 0.5, "paper-time2decide": {0: (0.1, 0.9)}})
    literal, ours = dict.fromkeys(claim.judged_on for claim in get_experiment("lambda-sweep").claims(rows))
    assert literal.startswith("the paper's architecture (TimePFN with covariance tokens, as literally described")
    assert "100 training steps of 32 windows" in literal
    assert ours == OUR_NETWORK
    for name in experiment_ids():
        for claim in get_experiment(name).claims([]):
            assert claim.judged_on != GENERAL or "Time2Decide" not in claim.text


def crossing(name, ours, pto, judged_on=""):
    """Verdicts on the two sides of the crossing when predict-then-optimise is better at every budget."""
    rows = []
    for budget in BUDGETS:
        rows += sweep("clean", budget, {pto: 0.1, ours: {0: (0.2, 0.1)}})
    found = verdicts(name, rows, judged_on)
    (worse,) = [text for text in found if text.startswith("Clean: Time2Decide") and "γ ≥" in text]
    return starting(found, "Clean: predict-then-optimise"), starting(found, worse)


def test_on_clean_returns_the_curves_cross_between_1_25_and_1_5():
    expected = (SUPPORTED, "4 of 4 cases"), (NOT_SUPPORTED, "0 of 3 cases")
    assert crossing("lambda-sweep", "paper-time2decide", "pto-timepfn") == expected


def test_the_policy_is_compared_with_its_twin_and_with_predict_then_optimise():
    rows = []
    for budget in BUDGETS:
        figures = {"time2decide": 0.1, "time2decide-nocov": 0.1 if budget > 1 else 0.2, "pto-timepfn × 100": 0.3}
        rows += [row | {"model": "policies"} for row in sweep("noisy", budget, figures)]
    found = verdicts("lambda-sweep", rows, OUR_NETWORK)
    assert starting(found, "Time2Decide is below predict-then-optimise") == (SUPPORTED, "7 of 7 cases")
    assert starting(found, "Time2Decide is below its twin") == (NOT_SUPPORTED, "3 of 7 cases")
    assert starting(found, "Time2Decide is below Pretrained") == (NOT_TESTED, "")


def test_the_fine_tuned_forecaster_is_compared_budget_by_budget():
    name = "pto-timepfn"
    mse = {name: 1.0, f"{name}-shrunk": 0.9, f"{name}-finetuned": 1.1, f"{name}-finetuned-shrunk": 0.9}
    rows = [
        {"market": market, "turnover_l1": budget, "strategy": name, "mse": value * budget}
        for market in ("noisy", "clean")
        for budget in BUDGETS
        for name, value in mse.items()
    ]
    better = [row | {"mse": 0.1} if row["strategy"] == f"{name}-finetuned" else row for row in rows]
    found, other = verdicts("finetuned-pto", rows), verdicts("finetuned-pto", better)
    assert starting(found, "Noisy: fine-tuning") == (SUPPORTED, "7 of 7 cases")
    assert starting(other, "Noisy: fine-tuning") == (NOT_SUPPORTED, "0 of 7 cases")
    assert starting(found, "Noisy: predict-then-optimise degrades") == (SUPPORTED, "12 of 12 cases")
    assert starting(other, "Noisy: predict-then-optimise degrades") == (NOT_SUPPORTED, "6 of 12 cases")
    assert starting(found, "Noisy: attenuating") == (SUPPORTED, "7 of 7 cases")


def parity(**r2):
    names = {"linear": "LinearTransformer 4×2", "basic": "BasicLinearTransformer 4×2", "odd": "pure attention"}
    names |= {"lifted": "pure + constant channel", "width": "no projection, width 16"}
    names |= {"relu": "pure + ReLU network without bias"}
    return [{"arm": names[name], "r2": value} for name, value in r2.items()]


@pytest.mark.parametrize(
    ("name", "agrees", "differs"),
    [
        ("linear", 0.991, 0.989),
        ("basic", 0.349, 0.351),
        ("odd", -0.001, 0.001),
        ("lifted", 0.901, 0.899),
        ("width", 0.899, 0.901),
        ("relu", -0.001, 0.001),
    ],
)
def test_thresholds_of_the_parity_barrier(name, agrees, differs):
    claims = get_experiment("parity").claims
    assert [c.verdict for c in claims(parity(**{name: agrees})) if c.cases] == [SUPPORTED]
    assert [c.verdict for c in claims(parity(**{name: differs})) if c.cases] == [NOT_SUPPORTED]


def test_thresholds_of_the_two_asset_model():
    point = {"kind": "simulated", "pto": 0.031, "e2e": 0.0, "difference": 0.031, "difference_se": 0.01}
    point |= {"pto_se": 0.01, "e2e_se": 0.01, "pto_exact": 0.0015, "e2e_exact": 0.0}
    found = verdicts("toy-pto", [point])
    assert starting(found, "E2E regret < PtO regret in simulation")[0] == SUPPORTED  # 3.1 standard errors
    assert starting(found, "Simulation within")[0] == SUPPORTED  # 2.95
    found = verdicts("toy-pto", [point | {"difference": 0.029, "pto_exact": 0.0}])
    assert starting(found, "E2E regret < PtO regret in simulation")[0] == NOT_SUPPORTED
    assert starting(found, "Simulation within")[0] == NOT_SUPPORTED
    for last, verdict in ((1.099, SUPPORTED), (1.101, NOT_SUPPORTED)):
        signal = [{"kind": "signal", "pto_exact": value, "e2e_exact": value} for value in (1.0, last)]
        assert starting(verdicts("toy-pto", signal), "E2E's decision error stays")[0] == verdict


@pytest.mark.parametrize("name", experiment_ids())
def test_without_rows_nothing_is_tested(name):
    assert {claim.verdict for claim in get_experiment(name).claims([])} <= {NOT_TESTED}


def test_most_is_more_than_half():
    assert Claim("x", [True, True, False], most=True).verdict == SUPPORTED
    assert Claim("x", [True, False], most=True).verdict == NOT_SUPPORTED
    assert Claim("x", [], most=True).verdict == NOT_TESTED
    assert Claim("x", [True, True, False]).verdict == NOT_SUPPORTED


def test_a_table_of_claims_says_what_they_are_judged_on():
    table, general = claims_tables([Claim("x", [True], "far", judged_on="our network"), Claim("x", [True])])
    assert table.caption == "The paper's claims, judged on our network"
    assert table.rows == [[SUPPORTED, "x", "1 of 1 cases; far"]]
    assert general.caption == "The paper's claims"
