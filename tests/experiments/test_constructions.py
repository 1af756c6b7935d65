"""The runtime tables: the paper's sizes, both forms timed, the paper's figures in the right place."""

import pytest

from time2decide.bench.solvers import RUNTIME_SIZES
from time2decide.experiments import get_experiment, reproduce
from time2decide.experiments.claims import NOT_SUPPORTED, NOT_TESTED, SUPPORTED, published

SIZES = {"u": 4, "r": 4, "c": 4, "lc": 10}
OVERHEADS = {"u": "1.25", "r": "1.35", "c": "3.37", "lc": "1.25"}  # the paper's, of its smallest size


@pytest.mark.parametrize("kind", SIZES)
def test_smoke_run_and_table(kind, tmp_path):
    experiment = get_experiment(f"runtime-{kind}")
    assert len(experiment.tasks("cpu")) == SIZES[kind]
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert [row["batch"] for row in rows] == [1, 256]
    assert all(row["error"] is None and row["classical_us"] > 0 and row["overhead"] > 0 for row in rows)
    assert all(row["literal_us"] > 0 and row["literal_overhead"] > 0 for row in rows)
    (table,) = experiment.tables(rows)
    assert table.rows[0][-1] == OVERHEADS[kind]
    assert "–" not in table.rows[0]


def test_the_sizes_are_those_of_the_papers_tables():
    ours = {
        f"problem={kind};n={n}" + (f";m={m}" if m else "") for kind, sizes in RUNTIME_SIZES.items() for n, m in sizes
    }
    assert ours == {place for place, _ in published("runtime")}


def verdicts(row):
    return [claim.verdict for claim in get_experiment("runtime-u").claims([row] if row else [])]


def test_near_parity_is_at_most_1_35_classical_steps_in_either_form():
    row = {"kind": "U", "n": 16, "m": 0, "batch": 1, "overhead": 1.349, "literal_overhead": 1.351}
    assert verdicts(row) == [SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED]
    assert verdicts(row | {"overhead": 1.351, "literal_overhead": 1.349}) == [NOT_SUPPORTED, SUPPORTED, NOT_SUPPORTED]
    assert verdicts(row | {"overhead": 1.249})[2] == SUPPORTED  # the paper has 1.25
    assert verdicts(None) == [NOT_TESTED] * 3


def test_rows_without_the_literal_form_are_still_read():
    row = {"kind": "U", "n": 16, "m": 0, "batch": 1, "overhead": 1.0, "classical_us": 1.0, "attention_us": 1.0}
    (table,) = get_experiment("runtime-u").tables([row | {"preset": "cpu"}])
    assert table.rows[0][5:7] == ["–", "–"]
    assert verdicts(row)[1] == NOT_TESTED


def test_a_difference_of_iterates_is_noticed():
    row = {"kind": "U", "method": "gradient", "largest_difference": 9e-10}
    claims = get_experiment("convergence").claims
    assert [claim.verdict for claim in claims([row])] == [SUPPORTED]
    assert [claim.verdict for claim in claims([row | {"largest_difference": 1.1e-9}])] == [NOT_SUPPORTED]
    assert [claim.verdict for claim in claims([row | {"method": "nesterov"}])] == [NOT_TESTED]
