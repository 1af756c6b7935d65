"""Damaged input of every kind ends in an answer or in our own error, of one line. The long form is in tests/trust."""

import itertools
import json
import random

import pytest

from tests.fuzz import runner
from tests.fuzz.mutation import damaged_bytes, damaged_cells, damaged_value
from tests.fuzz.runner import Outcome, fuzz
from tests.fuzz.targets import TARGETS

#: Cases that are read in a second or two.
CASES = {"checkpoints": 30, "journals and states": 40, "stored rows": 12}


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_our_own_errors(target, tmp_path, monkeypatch):
    monkeypatch.setenv("TIME2DECIDE_CACHE", str(tmp_path))
    outcome = fuzz(target, tmp_path, cases=CASES.get(target, 80))
    assert outcome.defects == {}
    if target not in ("cache files", "decision files", "stored rows"):  # which are made again, judged, or left out
        assert outcome.refused > outcome.cases / 4


def test_a_defect_is_found_and_can_be_repeated(tmp_path, monkeypatch):
    def careless(folder):
        return lambda rng: json.loads(damaged_bytes(rng, b'{"a": [1, 2]}'))["a"][1]

    monkeypatch.setitem(TARGETS, "careless", careless)
    outcome = fuzz("careless", tmp_path, cases=50)
    assert isinstance(outcome, Outcome)
    assert outcome.cases == 50
    kinds = {text.split(":")[0] for text in outcome.defects.values()}
    assert {"JSONDecodeError", "UnicodeDecodeError"} <= kinds
    assert fuzz("careless", tmp_path, cases=50).defects == outcome.defects


def test_a_budget_is_processor_time(tmp_path, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(runner.time, "monotonic", lambda: 3600 * next(clock))  # a machine that is busy elsewhere
    monkeypatch.setattr(runner.time, "process_time", lambda: 0.1 * next(clock))
    monkeypatch.setitem(TARGETS, "quick", lambda folder: lambda rng: None)
    assert fuzz("quick", tmp_path, seconds=30).cases == 100  # three looks at the time a case


def test_damage_is_a_function_of_the_case_and_leaves_the_sound_input():
    rows, value = [["a", "b"], ["1", "2"]], {"a": [1, {"b": 2.0}]}
    for damage, sound in ((damaged_bytes, b"0123456789"), (damaged_cells, rows), (damaged_value, value)):
        cases = [repr(damage(random.Random(i), sound)) for i in range(60)]
        assert cases == [repr(damage(random.Random(i), sound)) for i in range(60)]
        assert len(set(cases)) > 30
    assert rows == [["a", "b"], ["1", "2"]]
    assert value == {"a": [1, {"b": 2.0}]}
