"""Faults of `make trust` are really there: in functions, their copies, their defaults and constants of modules."""

import ast
import subprocess
import sys
import tomllib

import pytest

from tests.trust import mutation

PROBE = """
import numpy as np
from tests.trust import mutation
from time2decide.markets import covariance, estimators, turnover_kernels, turnover_path
from time2decide.simulation import metrics

def fault(file, end):
    mutation.plant(next(one for one in mutation.mutants(file) if one.key.endswith(end)), functions)

functions = mutation.functions_in_memory()
windows = np.random.default_rng(0).normal(size=(20, 3))
before = covariance.empirical_covariance(windows)
fault("markets/covariance", "/ (windows.shape[-2] + 1))")
np.testing.assert_allclose(covariance.empirical_covariance(windows) * 21, before * 19)
fault("markets/estimators", "_WARM = 21  # observations of an asset before its returns are divided by its volatility")
assert estimators._WARM == 21
fault("markets/estimators", "window: int = 505, least: int = LEAST_OBSERVATIONS) -> None:")
assert estimators.RollingQIS().window == 505
assert estimators.EWMA().half_life == 63
fault("markets/turnover_path", "g -= h * (da + dnu)")
try:
    fault("markets/estimators", "place = np.ix_(assets, assets) → place = np.ix_(assets, assets)")
except LookupError as refused:
    assert "no fault" in str(refused)
else:
    raise AssertionError("the same text was taken for a fault")
g = np.zeros(2)
turnover_path._advance(np.zeros(2), g, np.ones(1), np.ones(2), 0.0, np.array([0]), 1, 0.5)
np.testing.assert_array_equal(g, -0.5)
"""


def test_every_explained_fault_is_one_of_todays_code():
    explained = tomllib.loads(mutation.EXPLAINED.read_text(encoding="utf-8"))
    possible = {one.key for file in mutation.FILES for one in mutation.mutants(file)}
    assert sorted(set(explained) - possible) == []


def test_a_fault_is_planted_where_it_says():
    result = subprocess.run([sys.executable, "-c", PROBE], cwd=mutation.ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("code", "faults"),
    [
        ("a < b", ["a <= b"]),
        ("a + b", ["a - b"]),
        ("a and b", ["a or b"]),
        ("not a", ["a"]),
        ("f(a, b)", ["f(b, a)"]),
        ("max(a, b)", []),
        ("1e-8", ["1.00000001"]),
        ("1e20", ["2e+20"]),
        ("True", ["False"]),
        ("'text'", []),
        ("a if b else c", ["a if not b else c"]),
    ],
)
def test_faults_of_expressions(code, faults):
    assert [ast.unparse(one) for one in mutation.replacements(ast.parse(code).body[0].value)] == faults


@pytest.mark.parametrize(
    ("code", "faults"),
    [
        ("a += b", ["pass", "a -= b"]),
        ("a = f(a)", ["pass"]),
        ("a = f(b)", []),
        ("a[0] = b", ["pass"]),
        ("f(a)", ["pass"]),
        ("raise a", ["pass"]),
        ("if a:\n    b", ["if not a:\n    b"]),
    ],
)
def test_faults_of_statements(code, faults):
    assert [ast.unparse(one) for one in mutation.replacements(ast.parse(code).body[0])] == faults


def test_a_sample_is_drawn_by_lines_and_survivors_that_are_explained_exist():
    sample = mutation.drawn(0, 100)
    assert 90 < len(sample) < 130
    assert len({(one.file, one.node.lineno) for one in sample}) == len(sample)
    assert {one.file for one in sample} == set(mutation.FILES)
    assert [one.key for one in mutation.drawn(0, 100)] == [one.key for one in sample]
