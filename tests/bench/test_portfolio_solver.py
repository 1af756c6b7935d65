import numpy as np

from time2decide.bench.portfolio_solver import (
    ACCURACY,
    _cell_row,
    check_portfolio,
    frontier_error,
    is_wrong_portfolio,
    random_portfolio_problem,
    sample_portfolio_cell,
)


def test_a_cell_has_every_peer_at_equal_accuracy():
    row = _cell_row(sample_portfolio_cell(12, 5.0, 0.5), ["clarabel", "daqp", "osqp"], quick=True)
    assert row["ours_gap"] < 1e-12
    assert max(row[f"{name}_error"] for name in ("clarabel", "daqp", "osqp")) < ACCURACY
    assert row["moreau_ms"] is None
    assert row["ratio"] > 0


def test_a_wrong_answer_is_counted():
    rng = np.random.default_rng(0)
    checked = check_portfolio(random_portfolio_problem(rng, 20))
    assert not is_wrong_portfolio(checked)
    assert is_wrong_portfolio(checked | {"gap": 1e-9})
    assert is_wrong_portfolio(checked | {"violation": 1e-9})
    assert frontier_error(random_portfolio_problem(rng, 20)) < 1e-9
