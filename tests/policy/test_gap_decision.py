"""Decisions where assets come and go: who is traded, and the exact optimum under constraints."""

import numpy as np
import pandas as pd
import pytest

from time2decide import InputError, Time2Decide, verify_decision
from time2decide.markets.constraints import Constraints, Limit
from time2decide.markets.universe import Availability

M = 8
LATE, GONE, HALTED = 5, 6, 7
PREVIOUS = np.array([0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.1])
GROUP = np.array([1.0, 1.0, 0, 0, 0, 0, 0, 1.0])  # holds the halted asset
NAMES = tuple("ABCDEFGH")


@pytest.fixture(scope="module")
def model():
    return Time2Decide.from_pretrained()


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    returns = (0.006 * rng.normal(size=(700, 1)) + 0.01 * rng.normal(size=(700, 5))) * np.linspace(0.5, 2, 5)
    table = np.vstack([returns, 1.1 * returns])[:, [0, 1, 2, 3, 4, 0, 1, 2]].copy()
    table = table + 1e-3 * np.random.default_rng(5).normal(size=table.shape)
    table[:-40, LATE] = np.nan  # listed 40 rows ago
    table[-30:, GONE] = np.nan
    table[-2:, HALTED] = np.nan
    return table


def test_young_assets_are_not_bought_halted_ones_not_traded_delisted_ones_sold(model, table):
    made = model.decision(table, PREVIOUS, 0.3, gaps="keep")
    assert made.weights[GONE] == 0
    assert made.weights[HALTED] == pytest.approx(0.1, abs=1e-12)
    assert made.weights[LATE] == pytest.approx(0.1, abs=1e-12)
    assert made.weights.sum() == pytest.approx(1, abs=1e-12)
    assert made.weights.min() >= 0
    assert made.forced == pytest.approx(0.4)
    assert made.turnover <= 0.3 + made.forced + 1e-9
    assert made.solution.gap <= 1e-12
    fresh = model.decision(table, None, 2.0, gaps="keep")
    assert fresh.weights[LATE] == fresh.weights[GONE] == 0


def test_without_missing_returns_nothing_changes(model, table):
    whole = table[:, :5]
    np.testing.assert_array_equal(model.decide(whole, None, 0.3, gaps="keep"), model.decide(whole, None, 0.3))


def test_gaps_are_refused_unless_kept_and_for_other_models(model, table):
    with pytest.raises(InputError, match="returns: expected finite numbers"):
        model.decide(table)
    with pytest.raises(InputError, match="gaps: expected the market policy"):
        Time2Decide.from_pretrained("decide").decide(table, gaps="keep")
    with pytest.raises(InputError, match="gaps: expected"):
        model.decide(table, gaps="fill")


RULES = {
    "bounds": Constraints(lower=0.0, upper=0.3, assets=NAMES),
    "group": Constraints(limits=(Limit("x", GROUP, 0.2, 0.35),), assets=NAMES),
    "cash": Constraints(cash=(0.05, 0.3), cash_return=1e-5, assets=NAMES),
    "shorts": Constraints(lower=-0.2, upper=0.4, assets=NAMES),
    "all": Constraints(upper=0.28, cash=(0.0, 0.2), limits=(Limit("x", GROUP, 0.2, 0.35),), assets=NAMES),
}


@pytest.mark.parametrize("benchmark", [None, np.array([0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])], ids=["", "benchmark"])
@pytest.mark.parametrize("rule", RULES)
def test_constraints_are_met_and_the_decision_is_cvxpys(model, table, rule, benchmark, cvxpy_portfolio):
    given = {"risk_aversion": 20.0, "cost_bps": 2.0, "benchmark": benchmark, "constraints": RULES[rule]}
    made = model.decision(table, PREVIOUS, 0.6, gaps="keep", **given)
    lower, upper = RULES[rule].bounds(M)
    assert (made.weights >= lower - 1e-12).all()
    assert (made.weights <= upper + 1e-12).all()
    for limit in RULES[rule].limits:
        assert limit.low - 1e-9 <= limit.coefficients @ made.weights <= limit.high + 1e-9
    least, most = RULES[rule].cash
    assert least - 1e-9 <= 1 - made.weights.sum() <= most + 1e-9
    assert made.weights[GONE] == 0
    np.testing.assert_allclose(made.weights[[LATE, HALTED]], PREVIOUS[[LATE, HALTED]], atol=1e-12)
    assert made.solution.gap <= 1e-12
    assert made.constraints.excess(made.weights, made.start, 0.6) <= 1e-9
    options = {"risk_aversion": 20.0, "turnover_l1": 0.6, "cost": 2e-4 / made.days}
    options |= {"benchmark": made.benchmark, "constraints": made.constraints}
    theirs = cvxpy_portfolio(made.mean, made.covariance, made.start, **options)
    np.testing.assert_allclose(made.weights, theirs, atol=2e-5)


def test_what_contradicts_the_gaps_is_refused_by_name(model, table):
    def refused(match, **rules):
        with pytest.raises(InputError, match=match):
            model.decide(table, PREVIOUS, 1.0, gaps="keep", constraints=Constraints(**rules, assets=NAMES))

    limit = Limit("x", np.eye(M)[HALTED] + np.eye(M)[0], -np.inf, 0.05)
    refused("x .* cannot be traded: F 0.1, H 0.1", limits=(limit,))


def test_bounds_and_groups_of_assets_that_cannot_be_traded_wait_and_are_named(model, table, tmp_path):
    lower, upper = np.full(M, 0.02), np.full(M, 0.5)
    lower[LATE], upper[HALTED] = 0.15, 0.05
    both = np.eye(M)[HALTED] + np.eye(M)[LATE]
    waits, holds = Limit("both", both, 0.3, 1.0), Limit("pair", both, 0.1, 0.4)
    rules = Constraints(lower=lower, upper=upper, limits=(waits, holds), assets=NAMES)
    made = model.decision(table, PREVIOUS, 1.0, gaps="keep", constraints=rules)
    np.testing.assert_allclose(made.weights[[LATE, HALTED]], 0.1, atol=1e-12)
    assert made.weights[GONE] == 0
    assert made.weights[:5].min() >= 0.02 - 1e-12
    assert made.availability.outside(rules, made.start, NAMES) == ["F", "G", "H", "both"]
    assert [one.name for one in made.constraints.limits] == ["pair"]
    frame = pd.DataFrame(table, pd.bdate_range("2020-01-01", periods=len(table)), list(NAMES))
    made = model.decision(frame, PREVIOUS, 1.0, gaps="keep", constraints=rules)
    found = verify_decision(made.save(tmp_path / "d.json"), frame)
    assert found.passed, str(found)


def test_the_benchmark_of_unknown_assets_goes_to_the_known_in_proportion(table):
    can = Availability.of(table)
    b = np.full(M, 1 / M)
    start = can.after_sales(PREVIOUS)
    found = can.benchmark(b, start)
    assert found.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found[can.known], found[0])
    np.testing.assert_array_equal(found[~can.known], start[~can.known])
