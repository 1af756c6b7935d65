"""Stylised markets have the law that they are named after, and a smoke run has its rows and tables."""

import numpy as np
import pytest

from time2decide.experiments.stylised_markets import (
    _KINDS,
    run_stylised_market,
    stylised_market,
    stylised_market_tables,
    stylised_market_tasks,
)


def market(kind, rows=4000, assets=8):
    return stylised_market(kind, rows, assets, np.random.default_rng(1))


def lag_correlation(returns, lag=1):
    centred = returns - returns.mean(0)
    return np.mean((centred[lag:] * centred[:-lag]).mean(0) / centred.var(0))


def test_unpredictable_markets_have_no_autocorrelation_but_their_volatilities_may():
    for kind in ("normal", "garch", "student"):
        assert abs(lag_correlation(market(kind))) < 0.02
        assert market(kind).std(0).max() > 1.5 * market(kind).std(0).min()
    assert abs(lag_correlation(market("normal") ** 2)) < 0.02
    assert lag_correlation(market("garch") ** 2) > 0.05
    heavy = market("student") / market("student").std(0)
    assert (heavy**4).mean() > 4.5
    assert np.corrcoef(market("garch").T)[~np.eye(8, dtype=bool)].mean() > 0.2


def test_predictable_markets():
    assert lag_correlation(market("ar1")) == pytest.approx(0.4, abs=0.03)
    returns = market("var1")
    fitted = np.linalg.lstsq(returns[:-1], returns[1:], rcond=None)[0]
    assert np.abs(np.linalg.eigvals(fitted)).max() == pytest.approx(0.6, abs=0.05)
    assert lag_correlation(market("regimes"), 10) > 0.05
    assert lag_correlation(market("sinusoids")) > 0.5


def test_a_smoke_run():
    found = stylised_market_tasks("smoke")
    assert {task["market"] for task in found} == set(_KINDS)
    chosen = [task for task in found if task["market"] == "ar1" and task["strategy"] in ("market", "pto-ridge")]
    rows = [{**task, **row} for task in chosen for row in run_stylised_market(task)]
    assert len(rows) == 4
    assert all(len(row["utilities"]) == 2 for row in rows)
    assert all(row["utility"] == pytest.approx(np.mean(row["utilities"])) for row in rows)
    shown = stylised_market_tables(rows)[0]
    assert [line[4] for line in shown.rows if line[2] == "market"] == ["–", "–"]
