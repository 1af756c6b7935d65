"""The experiments on learned QP solvers: every preset runs, rows are reused, findings are judged rightly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from time2decide.experiments import get_experiment, reproduce
from time2decide.experiments.claims import NOT_SUPPORTED, NOT_TESTED, SUPPORTED, published
from time2decide.experiments.qp_models import (
    BASELINES,
    BEST_CPU,
    RANGES,
    SETTINGS,
    TRANSFORMERS,
    best_published_qp_cell,
    best_qp_cell,
    qp_cell,
    qp_cell_model,
    trained_qp_model,
)
from time2decide.neural import TrainingConfig, count_parameters, labelled_qps, train
from time2decide.qp import PAPER_SIZES

IDS = ("qp-grid", "qp-shift", "qp-ablation", "qp-histograms")
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    """All four experiments under the preset `smoke`, with one cache: where it is, and id -> rows."""
    root = tmp_path_factory.mktemp("smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIME2DECIDE_CACHE", str(root / "cache"))
        rows = {name: reproduce(get_experiment(name), "smoke", root=root / "results") for name in IDS}
    return root, rows


def test_smoke_preset_measures_everything(smoke: Any) -> None:
    _, rows = smoke
    assert {name: len(found) for name, found in rows.items()} == {
        "qp-grid": 9,
        "qp-shift": 10,
        "qp-ablation": 4,
        "qp-histograms": 2,
    }
    for found in rows.values():
        for row in found:
            assert row["error"] is None
            assert row["preset"] == "smoke"
            assert row["r2"] <= 1
            assert row["parameters"] > 0
            assert row["steps"] == 32
    assert all(sum(row["nmse_counts"]) == 256 for row in rows["qp-histograms"])


def test_second_time_nothing_is_trained(smoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root, rows = smoke
    monkeypatch.setenv("TIME2DECIDE_CACHE", str(root / "cache"))
    monkeypatch.setattr("time2decide.experiments.qp_models.train", None)
    for experiment in map(get_experiment, IDS):
        assert reproduce(experiment, "smoke", root=root / "results") == rows[experiment.id]
        again = reproduce(experiment, "smoke", root=root / "elsewhere")  # other rows, same trained models
        assert [row["r2"] for row in again] == [row["r2"] for row in rows[experiment.id]]


def test_tables_show_ours_beside_the_papers(smoke: Any) -> None:
    _, rows = smoke
    shown = {name: "\n".join(table.text() for table in get_experiment(name).tables(rows[name])) for name in IDS}
    assert all("preset smoke: width 16" in text for text in shown.values())
    assert "(0.817)" in shown["qp-grid"]
    assert "R² of the two recipes" in shown["qp-grid"]
    assert "0.9515 (-2.29%)" in shown["qp-shift"]
    assert "(0.7045)" in shown["qp-ablation"]
    assert "median 0.011" in shown["qp-histograms"]


@pytest.mark.parametrize("architecture", [*TRANSFORMERS, *BASELINES])
def test_paper_preset_takes_a_real_step(architecture: str) -> None:
    config = best_qp_cell("paper", 5, 3, architecture)
    settings = TrainingConfig(**config["training"], seed=config["seed"])
    assert (config["d_model"], config["dropout"], config["counts"]["train"]) == (256, 0.1, 50_000)
    assert (settings.epochs, settings.batch, settings.lr, settings.weight_decay) == (500, 128, 1e-4, 0.02)
    model = qp_cell_model(config)
    data = labelled_qps(settings.batch, 5, 3, seed=42, cache=False)
    before = [weight.detach().clone() for weight in model.parameters()]
    state = train(model, (data.tokens(), data.x), (data.tokens(), data.x), replace(settings, epochs=1))
    assert state.step == 1
    assert not state.diverged
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(moved) > 0.9 * len(moved)


def test_tasks_of_the_paper_are_the_cells_of_its_tables() -> None:
    grid = {
        (f"n={c['n']};m={c['m']};layers={c['layers']};heads={c['heads']}", c["architecture"])
        for c in get_experiment("qp-grid").tasks("paper")
    }
    assert grid == set(published("qp_r2"))
    ablation = {(f"n={c['n']};m={c['m']}", c["architecture"]) for c in get_experiment("qp-ablation").tasks("paper")}
    assert ablation == set(published("arch_ablation"))
    ranges = {f"kappa={name}" for name in RANGES}
    assert ranges == {place for place, _ in published("qp_distribution_shift")}


def test_best_cells_of_the_paper() -> None:
    assert best_published_qp_cell(5, 3, "LinearTransformer") == (8, 2)
    assert best_published_qp_cell(5, 3, "SoftmaxTransformer") == (16, 2)
    assert best_published_qp_cell(20, 16, "LinearTransformer") == (4, 1)  # cells without a number count as lowest


def test_baselines_have_as_many_parameters_as_the_best_linear_transformer() -> None:
    for n, m in PAPER_SIZES[:6]:
        names = ("LinearTransformer", *BASELINES)
        sizes = {name: count_parameters(qp_cell_model(best_qp_cell("cpu", n, m, name))) for name in names}
        assert max(sizes.values()) < 1.06 * min(sizes.values()), sizes


def test_every_cell_of_a_preset_has_the_same_budget() -> None:
    tasks = [c for name in IDS for c in get_experiment(name).tasks("cpu")]
    assert len({json.dumps([c["counts"], c["training"]]) for c in tasks if "recipe" not in c}) == 1
    assert SETTINGS["cpu"]["training"]["schedule"] == "cosine"


def published_rows() -> list[dict[str, Any]]:
    rows = []
    for (place, architecture), r2 in published("qp_r2").items():
        parts = {key: int(value) for key, value in (item.split("=") for item in place.split(";"))}
        rows.append({**parts, "architecture": architecture, "r2": r2, "error": None})
    return rows


def verdicts(name: str, rows: list[dict[str, Any]]) -> list[str]:
    return [claim.verdict for claim in get_experiment(name).claims(rows)]


def test_claims_are_supported_by_the_papers_own_numbers() -> None:
    small = [row for row in published_rows() if row["n"] == 5]
    assert verdicts("qp-grid", small)[:2] == [SUPPORTED, SUPPORTED]
    assert verdicts("qp-grid", published_rows())[:2] == [NOT_SUPPORTED] * 2  # the paper's largest sizes break them
    assert "not at" in get_experiment("qp-grid").claims(published_rows())[0].detail
    rows = [
        {"n": int(place[2:].split(";")[0]), "m": int(place.split("m=")[1]), "architecture": name, "r2": value}
        for (place, name), value in published("arch_ablation").items()
    ]
    assert verdicts("qp-ablation", rows) == [SUPPORTED] * 3
    rows = [
        {"kappa": place.removeprefix("kappa="), "architecture": name, "r2": value}
        for (place, name), value in published("qp_distribution_shift").items()
    ]
    assert verdicts("qp-shift", rows) == [SUPPORTED] * 3


def best_row(n: int, m: int, **values: Any) -> dict[str, Any]:
    facts = {"live_units": 1.0, "instances": 1000, "core_minutes": 1.0, "seed": 42, "layers": 4, "heads": 1}
    facts |= {"parameters": 150_000}
    cell = {"n": n, "m": m, "architecture": "LinearTransformer", "recipe": "best", "d_model": 64}
    return {**cell, **facts, "training": {"batch": 32}, **values}


def test_a_dead_model_is_no_result() -> None:
    live = [row for row in published_rows() if row["n"] == 5]
    dead = [
        row | {"n": 20, "m": 16, "r2": -1.2e-4, "training": {}, "counts": {"train": 1}, "preset": "cpu"} for row in live
    ]
    grid = get_experiment("qp-grid")
    for alone, joined in zip(grid.claims(live), grid.claims(live + dead), strict=True):
        assert alone.cases == joined.cases
    assert f"{len(dead)} dead of {2 * len(dead)} models" in grid.claims(live + dead)[0].detail
    [table] = grid.tables([best_row(20, 16, r2=0.1, live_units=0.0)])
    assert "dead" in table.rows[0]
    assert "0.100" not in table.rows[0]


def test_seeds_are_averaged_and_short_trainings_are_a_curve_only() -> None:
    rows = [best_row(20, 16, r2=r2, seed=seed) for r2, seed in ((0.89, 42), (0.88, 43))]
    grid, short = get_experiment("qp-grid"), best_row(20, 16, r2=0.1, instances=10)
    assert grid.claims(rows)[2].verdict == NOT_SUPPORTED  # 0.885 against 0.887
    assert grid.claims([best_row(20, 16, r2=0.888), short])[2].verdict == SUPPORTED
    assert grid.claims(rows)[3].verdict == NOT_TESTED
    curve = grid.tables([*rows, short])[1]
    assert [row[1] for row in curve.rows] == ["10", "1,000"]
    one_third = grid.tables([best_row(20, 16, r2=0.97), best_row(20, 16, r2=0.91, instances=100)])[1].note
    assert "to the power −0.48: 3.4e+02 instances" in one_third  # 0.09 → 0.03 by 10 times as many


def test_far_better_is_half_of_the_unexplained_variance() -> None:
    def rows(transformer: float) -> list[dict[str, Any]]:
        r2 = dict.fromkeys(TRANSFORMERS, transformer) | dict.fromkeys(BASELINES, 0.5)
        return [{"n": 5, "m": 3, "architecture": name, "r2": value} for name, value in r2.items()]

    assert verdicts("qp-ablation", rows(0.751))[1] == SUPPORTED
    assert verdicts("qp-ablation", rows(0.749))[1] == NOT_SUPPORTED


@pytest.mark.parametrize(("median", "p95", "verdict"), [(0.0109, 0.0949, SUPPORTED), (0.0111, 0.09, NOT_SUPPORTED)])
def test_histograms_are_judged_by_the_papers_two_figures(median: float, p95: float, verdict: str) -> None:
    row = {"n": 5, "m": 3, "architecture": "LinearTransformer", "nmse_median": median, "nmse_p95": p95}
    assert verdicts("qp-histograms", [row]) == [verdict]
    assert verdicts("qp-histograms", [row | {"nmse_p95": 0.0951}]) == [NOT_SUPPORTED]


@pytest.mark.parametrize("name", IDS)
def test_without_rows_nothing_is_tested(name: str) -> None:
    assert set(verdicts(name, [])) == {NOT_TESTED}


def test_training_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = qp_cell("smoke", 5, 3, "LinearTransformer", 1, 1)
    monkeypatch.setenv("TIME2DECIDE_CACHE", str(tmp_path))
    whole, _ = trained_qp_model(config)
    [path] = (tmp_path / "models").iterdir()
    assert not list((tmp_path / "runs").iterdir())
    path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(
            "time2decide.experiments.qp_models.save_model", None
        )  # dies after training, before the model is kept
        with pytest.raises(TypeError):
            trained_qp_model(config)
    resumed, notes = trained_qp_model(config)
    assert notes["steps"] == 32
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_best_cells_of_the_stored_grid_are_those_that_are_used() -> None:
    lines = [json.loads(line) for line in (RESULTS / "qp-grid" / "cpu.jsonl").read_text().splitlines()]
    for architecture in TRANSFORMERS:
        rows = [
            {**line["config"], **line["rows"][0]}
            for line in lines
            if line["config"]["architecture"] == architecture and line["config"]["layers"] <= 8
        ]
        best = max(rows, key=lambda row: row["validation_r2"])
        assert (best["layers"], best["heads"]) == BEST_CPU[architecture]
