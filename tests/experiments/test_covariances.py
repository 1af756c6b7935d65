"""The covariances experiment: figures by hand, equal turnover, a table of its rows."""

import numpy as np
import pandas as pd
import pytest

from time2decide.experiments import real_markets
from time2decide.experiments.covariances import (
    ESTIMATORS,
    _held,
    covariance_tables,
    covariance_tasks,
    run_covariances,
)


@pytest.fixture
def market(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    returns = 0.008 * rng.normal(size=(530, 1)) + 0.01 * rng.normal(size=(530, 4))
    file = tmp_path / "tiny.csv"
    pd.DataFrame(returns, index=pd.bdate_range("2007-01-01", periods=530), columns=list("ABCD")).to_csv(file)
    monkeypatch.setattr(real_markets, "real_market_sources", lambda: {"tiny": str(file)})
    monkeypatch.setattr("time2decide.experiments.covariances.real_market_sources", lambda: {"tiny": str(file)})
    return returns


def test_figures_of_every_estimator(market):
    task = next(task for task in covariance_tasks("cpu") if task["frequency"] == "day")
    rows = run_covariances(task)
    assert {row["estimator"] for row in rows} == set(ESTIMATORS)
    found = next(row for row in rows if row["estimator"] == "riskmetrics")
    qlike = []
    for t in range(520, 530):
        weight = 0.94 ** np.arange(t)[::-1]
        v = (weight * market[:t].mean(1) ** 2).sum() / weight.sum()
        qlike.append(np.log(v) + market[t].mean() ** 2 / v)
    assert found["qlike"] == pytest.approx(np.mean(qlike), rel=1e-6)
    assert "score" not in found
    assert next(row for row in rows if row["estimator"] == "reactive")["ours_qlike"] == 0
    (table,) = covariance_tables([task | row for row in rows])
    assert len(table.rows) == len(ESTIMATORS)
    assert all(len(line) == len(table.columns) for line in table.rows)


def test_weights_go_a_part_of_the_way_after_the_next_close():
    targets, returns = np.tile([1.0, 0.0], (3, 1)), np.array([[0.1, 0.0], [0.1, 0.0], [0.1, 0.0]])
    net, traded = _held(targets, returns, 0.5)
    drifted = 0.55 / 1.05
    moved = drifted + 0.5 * (1 - drifted)
    np.testing.assert_allclose(net[:2], [0.05, 0.1 * moved], rtol=1e-12)
    assert traded > 2 * (moved - drifted) / 3
