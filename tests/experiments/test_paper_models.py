"""The experiments of the literal models: their smoke presets run whole, and their tables show the paper's figures."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from time2decide.backtesting.baselines import backbone_pto
from time2decide.experiments import forecast_errors, lambda_sweep, paper_models
from time2decide.experiments.forecast_errors import forecast_errors_of, iterate_forecasts
from time2decide.experiments.paper_models import PAPER_BACKBONE, PRETRAINING, paper_backbone
from time2decide.experiments.portfolio_scores import shown_oracle_history
from time2decide.experiments.registry import get_experiment, reproduce
from time2decide.forecasting.simple import persistence
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.oracle import oracle_path
from time2decide.markets.synthetic import LMCConfig, synthetic_returns
from time2decide.policy.paper_training import PAPER_MODEL_PRESETS
from time2decide.simulation.engine import rollout
from time2decide.simulation.metrics import score


@pytest.mark.parametrize(
    "name",
    [
        *("forecast-errors", "lambda-sweep", "covariance-worth", "finetuned-pto"),
        *("literal-starts", "literal-curve", "pto-scale"),
    ],
)
def test_a_smoke_run_prints_its_table(name, tmp_path):
    experiment = get_experiment(name)
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert [row["error"] for row in rows if row["error"]] == []
    text = "\n".join(table.text() for table in experiment.tables(rows))
    expected = {"forecast-errors": "timepfn", "lambda-sweep": "(479)", "finetuned-pto": "(0.0407)"}
    expected |= {"literal-starts": "other returns", "pto-scale": "pretrained as the paper says, scale 1"}
    expected |= {"literal-curve": "4 steps of 2 windows", "covariance-worth": "clean, λ = 100"}
    assert expected[name] in text
    assert reproduce(experiment, "smoke", root=tmp_path) == rows  # nothing is run twice


def test_paper_presets_start_where_there_is_nothing_yet(tmp_path, monkeypatch):
    """The backbone is made when it is missing: one real step of the full size, then it is there."""
    monkeypatch.chdir(tmp_path)
    one_step = replace(PRETRAINING["paper"], steps=1, batch=1, pool=1, channels=4)
    monkeypatch.setitem(PRETRAINING, "paper", one_step)
    made = paper_backbone(PAPER_BACKBONE)
    assert sum(weight.numel() for weight in made.parameters()) > 7e6
    assert torch.equal(paper_backbone(PAPER_BACKBONE).norm.weight, made.norm.weight)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lambda-sweep", "finetuned-pto", "forecast-errors", "literal-curve"])
def test_paper_presets_take_a_real_step(name, tmp_path, monkeypatch):
    """One task of each, with the paper's sizes of model and batch; series, steps and decisions cut to a few."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paper_models, "paper_backbone", lambda _: full())
    monkeypatch.setattr(forecast_errors, "paper_backbone", lambda _: full())
    monkeypatch.setattr(lambda_sweep, "paper_backbone", lambda _: full())
    few = {"series": 1, "validation": 1, "validation_windows": 1, "epochs": 1, "windows": 2, "length": 256}
    monkeypatch.setitem(PAPER_MODEL_PRESETS, "paper", replace(PAPER_MODEL_PRESETS["paper"], **few))
    task = get_experiment(name).tasks("paper")[-1]
    cut = {"known": [1, 1], "evaluation": [1, 2], "length": 256, "series": 1, "every": 64}
    cut |= {"steps": 1, "every": 1, "held_out": 1} if name == "literal-curve" else {}
    task |= {key: value for key, value in cut.items() if key in task}
    rows = get_experiment(name).run(task)
    assert rows
    figures = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert np.isfinite(figures).all()


def full():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TimePFN().eval()


def test_a_model_that_copies_the_last_allocation_is_found_out():
    returns, oracle = 0.01 * np.random.default_rng(0).standard_normal((3, 104, 4)), np.full((3, 1, 104, 4), 0.25)
    oracle[:, :, 96:] = np.eye(4)[[0, 1, 2]][:, None, None]
    copies = SimpleNamespace(name="copies", wants_hindsight=False, decide=lambda past: past.allocations[:, :, -1])
    reads = SimpleNamespace(name="reads", wants_hindsight=False, decide=lambda past: past.returns[:, None, -1])
    copied, read = (shown_oracle_history(one, returns, oracle, [1.0], every=1)[0] for one in (copies, reads))
    assert copied["shown_oracle_mse"] == copied["other_returns_mse"] > 0
    assert read["shown_oracle_mse"] != read["other_returns_mse"]


def test_what_a_covariance_is_worth_is_measured_on_predict_then_optimise():
    experiment = get_experiment("covariance-worth")
    (task,) = experiment.tasks("smoke")
    rows = {(r["forecasts"], r["strategy"], r["turnover_l1"]): r for r in experiment.run(task)}
    best = [row for (of, known, _), row in rows.items() if (of, known) == ("the next returns", "Σ")]
    assert [(row["mse"], row["regret"]) for row in best] == [(0, 0)] * 3
    returns = synthetic_returns("clean", count=2, seed=0, config=LMCConfig(length=128))[:, :100]
    oracle = oracle_path(returns, [1.0], risk_aversion=100.0)
    result = rollout(returns, backbone_pto(TimePFN.from_pretrained(), 100.0), [1.0], delay=0, risk_aversion=100.0)
    (pto,) = score(result, returns, oracle).rows()
    ours = rows["TimePFN's forecasts", "Σ", 1.0]
    assert (ours["mse"], ours["regret"]) == pytest.approx((pto["mse"], pto["regret"]), rel=1e-4)
    assert rows["TimePFN's forecasts", "nothing", 1.0]["mse"] != pytest.approx(pto["mse"], rel=1e-2)


def test_the_sweep_covers_the_papers_grid():
    paper = [task for task in get_experiment("lambda-sweep").tasks("paper") if "return_weight" in task]
    assert len(paper) == 2 * 7 * 16 * 2
    assert len({str(task) for task in paper}) == len(paper)


def test_a_forecast_is_iterated_on_itself():
    window = np.random.default_rng(0).standard_normal((3, 96, 2))
    path = iterate_forecasts(persistence, window, 5)
    np.testing.assert_array_equal(path, np.repeat(window[:, -1:], 5, axis=1))
    grown = iterate_forecasts(lambda seen: seen[:, -1] + seen[:, -2], window, 3)
    a, b = window[:, -2], window[:, -1]
    np.testing.assert_allclose(grown[:, 2], (a + b) * 2 + b)


def test_relative_errors_are_relative():
    rng = np.random.default_rng(1)
    window, target = rng.standard_normal((4, 96, 2)), rng.standard_normal((4, 96, 2))
    path = np.zeros_like(target)
    found, scaled = forecast_errors_of(path, window, target), forecast_errors_of(path, 10 * window, 10 * target)
    assert scaled["mse_96"] == pytest.approx(100 * found["mse_96"])
    assert scaled["relative_1"] == pytest.approx(found["relative_1"])
    assert found["mse_1"] == pytest.approx((target[:, 0] ** 2).mean())
