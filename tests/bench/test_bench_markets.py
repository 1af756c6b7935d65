import json

import pytest

from time2decide.bench.markets import lmc_rows, oracle_rows


@pytest.mark.parametrize("bench", [lmc_rows, oracle_rows])
def test_rows_are_json_with_equal_keys(bench):
    rows = json.loads(json.dumps(bench(quick=True)))
    assert all(list(row) == list(rows[0]) for row in rows)
    assert rows[0]["ratio"] > 1


def test_the_oracle_is_exact_and_the_papers_route_is_not_better():
    row = oracle_rows(quick=True)[0]
    assert row["ours_objective_error"] < 1e-9
    assert row["ours_constraint_error"] < 1e-9
    assert row["cvxpy_osqp_weight_error"] > 0
