"""The experiment of the size-agnostic solver: fresh seeds, honest checks, published figures in the right place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from time2decide.experiments import Store, get_experiment, reproduce
from time2decide.experiments.qp_agnostic import (
    PRETRAINED,
    TARGETS,
    qp_agnostic_checkpoint_hash,
    qp_agnostic_checks,
    qp_agnostic_tasks,
)
from time2decide.neural.equivariant import UNSEEN_SIZES
from time2decide.qp import KAPPA_RANGES, PAPER_SIZES

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return reproduce(get_experiment("qp-agnostic"), "smoke", root=tmp_path_factory.mktemp("results"))


def test_smoke_run_and_table(stored: list[dict[str, Any]]) -> None:
    assert not [row["error"] for row in stored if row["error"]]
    table, targets = get_experiment("qp-agnostic").tables(stored)
    line = next(row for row in table.rows if row[0] == "(5, 3)")
    assert "0.9995" in line  # what is asked
    assert "0.974" in line  # the paper's best cell
    assert {row[1] for row in targets.rows} == {"met"}


def test_shares_add_up_and_all_is_certified(stored: list[dict[str, Any]]) -> None:
    for row in stored:
        assert row["predicted"] + row["repaired"] + row["exact"] == pytest.approx(1)
        assert row["certified"] == 1
        assert row["polished_kkt_max"] <= 1e-8


def test_every_asked_case_is_there_with_ten_thousand_fresh_problems() -> None:
    found = qp_agnostic_tasks("cpu")
    trained = {(t["n"], t["m"], t["kappa"] and tuple(t["kappa"])) for t in found if t["model"] == "trained"}
    assert {(*size, None) for size in (*PAPER_SIZES, *UNSEEN_SIZES)} <= trained
    assert {(5, 3, kappa) for kappa in KAPPA_RANGES} <= trained
    assert {task["count"] for task in found} == {10_000}
    assert min(task["seed"] for task in found) >= 20_260_000
    assert set(TARGETS) == {*PAPER_SIZES, *UNSEEN_SIZES}


def test_checks_notice_failure(stored: list[dict[str, Any]]) -> None:
    broken = [{**row, "r2": 0.9, "certified": 0.5, "certified_without_fallback": 0.5} for row in stored]
    verdicts = qp_agnostic_checks(broken)
    assert sum(not met for _, met, _ in verdicts) == 3  # the drop under κ is that of equal numbers
    assert all(met for _, met, _ in qp_agnostic_checks(stored))


def test_targets_are_those_that_were_asked() -> None:
    good = {"model": "trained", "n": 5, "m": 3, "kappa": None, "r2": 0.9996, "certified": 1.0}
    good["certified_without_fallback"] = 0.991
    hard = good | {"kappa": [10.0, 20.0], "r2": 0.9996 * (1 - 0.9e-3)}
    assert [met for _, met, _ in qp_agnostic_checks([good, hard])] == [True, True, True, True]
    worse = {"r2": 0.9994, "certified_without_fallback": 0.989}
    assert [met for _, met, _ in qp_agnostic_checks([good | worse, hard])] == [False, True, False, True]
    assert [met for _, met, _ in qp_agnostic_checks([good, hard | {"r2": 0.9996 * (1 - 1.1e-3)}])] == [
        True,
        False,
        True,
        True,
    ]
    large = good | {"n": 20, "m": 16, "r2": 0.9991}
    assert [met for _, met, _ in qp_agnostic_checks([large | {"certified_without_fallback": 0.951}])] == [
        True,
        True,
        True,
    ]
    assert [met for _, met, _ in qp_agnostic_checks([large | {"certified_without_fallback": 0.949}])] == [
        True,
        False,
        True,
    ]


def test_the_table_says_where_training_changes_nothing() -> None:
    rows = Store("qp-agnostic", "cpu", RESULTS).rows()
    note = get_experiment("qp-agnostic").tables(rows)[0].note
    assert note.startswith("At 7 of the paper's 9 sizes the untrained network is as good as the trained one")


def test_rows_belong_to_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = qp_agnostic_tasks("smoke")[0]["checkpoint"]
    (tmp_path / "model.safetensors").write_bytes(b"other")
    monkeypatch.setitem(PRETRAINED, "qp", tmp_path)
    qp_agnostic_checkpoint_hash.cache_clear()
    try:
        assert qp_agnostic_tasks("smoke")[0]["checkpoint"] != before
    finally:
        qp_agnostic_checkpoint_hash.cache_clear()
