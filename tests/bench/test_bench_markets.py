import json

import pytest

from time2decide.bench import lmc, oracle


@pytest.mark.parametrize("bench", [lmc, oracle])
def test_rows_are_json_with_equal_keys(bench):
    rows = json.loads(json.dumps(bench.rows(quick=True)))
    assert all(list(row) == list(rows[0]) for row in rows)
    assert rows[0]["ratio"] > 1


def test_the_oracle_is_exact_and_the_papers_route_is_not_better():
    row = oracle.rows(quick=True)[0]
    assert row["ours_objective_error"] < 1e-9
    assert row["ours_constraint_error"] < 1e-9
    assert row["cvxpy_osqp_weight_error"] > 0
