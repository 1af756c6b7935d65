"""A stated problem survives its file to the last bit, and its gap is a true bound on what could be better."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from time2decide.core.validation import InputError
from time2decide.markets.constraints import Constraints, Limit
from time2decide.markets.portfolio import solve_portfolio
from time2decide.markets.stated_problem import FEASIBLE, MOST_GAP, Prices, StatedProblem


def draw(seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 15))
    p = rng.dirichlet(np.ones(m))
    group, beta = (rng.random(m) < 0.5) * 1.0, 50 * rng.normal(size=m)
    limits = (  # the start meets them
        Limit("group", group, 0.0, max(0.9, float(group @ p))),
        Limit("beta", beta, min(-60.0, float(beta @ p)), max(60.0, float(beta @ p))),
    )
    rules = Constraints(
        lower=np.where(rng.random(m) < 0.3, -0.1, 0.0),
        upper=np.where(rng.random(m) < 0.5, np.inf, 1.0),
        cash=(0.0, float(rng.choice([0.0, 0.3]))),
        cash_return=1e-5,
        limits=limits if rng.random() < 0.5 else (),
    )
    loadings = rng.normal(size=(m, 3))
    return StatedProblem(
        mean=1e-3 * rng.normal(size=m),
        covariance=1e-4 * (loadings @ loadings.T + np.diag(rng.random(m))),
        start=p,
        risk_aversion=float(rng.choice([0.0, 5.0, 50.0])),
        turnover_l1=float(rng.choice([0.1, 1.0, 2.0])),
        cost=float(rng.choice([0.0, 1e-4])),
        benchmark=rng.dirichlet(np.ones(m)) if rng.random() < 0.5 else None,
        constraints=rules,
    )


def solved(problem):
    found = solve_portfolio(
        problem.mean,
        problem.covariance,
        problem.start,
        risk_aversion=problem.risk_aversion,
        turnover_l1=problem.turnover_l1,
        cost=problem.cost,
        benchmark=problem.benchmark,
        constraints=problem.constraints,
    )
    return found.weights, Prices(float(found.turnover_price), float(found.budget_price), found.limit_prices)


@given(st.integers(0, 10_000))
def test_the_gap_proves_optimal_weights_and_no_others(seed):
    problem = draw(seed)
    weights, prices = solved(problem)
    assert problem.convexity <= problem.allowed_gap
    assert -1e-12 <= problem.gap(weights, prices) / problem.scale <= 1e-11
    names = [str(i) for i in range(len(weights))]
    assert min(row.slack / row.size for row in problem.rows(weights, names)) >= -1e-9
    other = problem.start  # feasible unless the constraints moved: what it lacks is at most its gap
    if min(row.slack / row.size for row in problem.rows(other, names)) >= 0:
        lacks = problem.utility(weights) - problem.utility(other)
        for one in (prices, Prices(0.0, 0.0, np.zeros(len(prices.limits))), prices._replace(turnover=1e-3)):
            assert problem.gap(other, one) >= lacks - 1e-12


@given(st.integers(0, 10_000))
def test_the_file_keeps_every_bit(seed):
    problem = draw(seed)
    names = [f"A{i}" for i in range(len(problem.mean))]
    again = StatedProblem.from_json(json.loads(json.dumps(problem.to_json(), allow_nan=False)), names)
    np.testing.assert_array_equal(again.covariance, problem.covariance)
    np.testing.assert_array_equal(again.mean, problem.mean)
    for ours, theirs in zip(again.constraints.bounds(len(names)), problem.constraints.bounds(len(names)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert again.to_json() == problem.to_json()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"mean": [0.1]}, "no list of 3 numbers"),
        ({"mean": [0.1, None, 0.2]}, "for a number"),
        ({"lower": "x"}, "problem"),
        ({"cash": [0.3]}, "problem"),
        ({"covariance": {"form": "rows", "data": ""}}, "the form"),
        ({"covariance": {"form": None, "data": "AAAA"}}, "the form"),
        ({"risk_aversion": -1.0}, "at least 0"),
        ({"limits": [{}]}, "KeyError"),
        ({"limits": 3}, "TypeError"),
    ],
)
def test_what_is_not_a_problem_is_refused(change, match):
    whole = StatedProblem(np.zeros(3), np.eye(3), np.full(3, 1 / 3), 1.0, 1.0, 0.0, None, Constraints()).to_json()
    with pytest.raises(InputError, match=match):
        StatedProblem.from_json(whole | change, list("ABC"))
    short = whole | {"covariance": whole["covariance"] | {"data": "AAAA"}}
    with pytest.raises(InputError, match="48 bytes"):
        StatedProblem.from_json(short, list("ABC"))


def test_a_matrix_with_a_negative_eigenvalue_proves_nothing():
    problem = StatedProblem(np.zeros(2), np.diag([1.0, -0.1]), np.full(2, 0.5), 1.0, 1.0, 0.0, None, Constraints())
    assert problem.convexity == pytest.approx(1.0 * 0.1 * 2.0**2)
    assert problem.gap(np.array([0.9, 0.1]), Prices(0.0, 0.0, np.zeros(0))) >= problem.convexity


def test_a_size_that_the_data_state_loosens_no_tolerance():
    pinned = Constraints(upper=np.array([1.0, 1.0, 0.0]), limits=(Limit("x", np.array([1.0, 0.0, 1e9]), 0.0, 0.5),))
    start, huge = np.array([0.5, 0.5, 0.0]), np.array([1e-3, 0.0, -1e9])  # the last asset can never be held
    problem = StatedProblem(huge, 1e-4 * np.eye(3), start, 1.0, 1.0, 0.0, None, pinned)
    assert problem.scale > 1e8
    assert problem.allowed_gap == MOST_GAP
    row = next(row for row in problem.rows(np.array([0.6, 0.4, 0.0]), list("abc")) if row.name == "x")
    assert row.slack < -FEASIBLE * row.size
    vast = replace(problem, covariance=np.diag([1e-4, -1e-4, 1e12]))
    assert vast.convexity > vast.allowed_gap


@given(st.integers(0, 10_000))
def test_the_gain_is_the_utility_above_that_of_not_trading(seed):
    problem = draw(seed)
    weights, _ = solved(problem)
    gain = problem.gain(weights)
    assert gain["utility"] == pytest.approx(problem.utility(weights) - problem.utility(problem.start), abs=1e-15)
    assert gain["utility"] == pytest.approx(gain["return"] + gain["risk"] + gain["cost"], abs=1e-18)
    assert gain["utility"] >= -1e-12  # the start is allowed
    assert gain["cost"] == pytest.approx(-problem.cost * np.abs(weights - problem.start).sum(), abs=1e-18)
    assert set(problem.gain(problem.start).values()) == {0.0}
    before = np.roll(problem.start, 1)  # trades from there to the start are forced: both sides pay for them

    def net(there):
        traded = np.abs(there - problem.start).sum() - np.abs(there - before).sum()
        return problem.utility(there) + problem.cost * traded  # its cost is that from the weights before

    assert problem.gain(weights, before)["utility"] == pytest.approx(net(weights) - net(problem.start), abs=1e-15)
    assert set(problem.gain(problem.start, before).values()) == {0.0}
