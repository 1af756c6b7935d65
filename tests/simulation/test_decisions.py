"""One step's portfolio problem for every series and budget: the solver's answer, or as near as the budget allows."""

import numpy as np
import pytest

from time2decide.core.validation import InputError
from time2decide.markets import Constraints, Limit, solve_portfolio
from time2decide.simulation.engine import Observation, solve_observation

RNG = np.random.default_rng(0)
MEAN = RNG.normal(size=(2, 1, 4))
SIGMA = np.stack([G @ G.T for G in RNG.normal(size=(2, 4, 6))])[:, None]  # (series, 1, m, m)
HELD = RNG.dirichlet(np.ones(4), (2, 3))  # (series, budgets, m)
BUDGETS = np.array([0.1, 0.5, 2.0])


def observation(**given):
    return Observation(np.zeros((2, 5, 4)), HELD[:, :, None], None, BUDGETS, 2.0, **given)


def test_it_is_the_solvers_answer():
    benchmark = np.array([0.1, 0.2, 0.3, 0.4])
    weights, solved = solve_observation(observation(benchmark=benchmark), MEAN, SIGMA, cost=0.01)
    assert weights.shape == (2, 3, 4)
    for series, place in np.ndindex(2, 3):
        alone = solve_portfolio(
            MEAN[series, 0], SIGMA[series, 0], HELD[series, place], risk_aversion=2.0, turnover_l1=BUDGETS[place],
            cost=0.01, benchmark=benchmark,
        )  # fmt: skip
        np.testing.assert_allclose(weights[series, place], alone.weights, atol=1e-10)
    again, _ = solve_observation(observation(benchmark=benchmark), MEAN, SIGMA, cost=0.01, start=solved)
    np.testing.assert_allclose(again, weights, atol=1e-10)
    other, _ = solve_observation(observation(benchmark=benchmark), MEAN, SIGMA, cost=0.01, risk_aversion=20.0)
    assert np.abs(other - weights).max() > 0.01
    drifted = HELD[:, ::-1]
    moved, _ = solve_observation(observation(current=drifted, benchmark=benchmark), MEAN, SIGMA)
    assert (np.abs(moved - drifted).sum(-1) <= BUDGETS + 1e-12).all()


def test_out_of_reach_it_aims_at_the_best_portfolio_without_a_budget():
    rules = Constraints(limits=(Limit("first", np.eye(4)[0], 0.8, 1.0),))
    weights, solved = solve_observation(observation(constraints=rules), MEAN, SIGMA, cost=0.01)
    assert solved is None
    for series, place in np.ndindex(2, 3):
        far = 2 * (0.8 - HELD[series, place, 0]) > BUDGETS[place]
        aim = solve_portfolio(
            MEAN[series, 0], SIGMA[series, 0], HELD[series, place], risk_aversion=2.0, constraints=rules, cost=0.01,
            turnover_l1=2.0 if far else BUDGETS[place],
        )  # fmt: skip
        np.testing.assert_allclose(weights[series, place], aim.weights, atol=1e-9)


def test_what_is_frozen_stays():
    rules, frozen = Constraints(upper=0.9), np.array([True, False, False, False])
    weights, solved = solve_observation(observation(constraints=rules, frozen=frozen), MEAN, SIGMA)
    assert solved is None
    np.testing.assert_allclose(weights[..., 0], HELD[..., 0], atol=1e-12)
    assert (np.abs(weights - HELD).sum(-1) <= BUDGETS + 1e-12).all()
    assert np.abs(weights - HELD).max() > 0.01
    free, _ = solve_observation(observation(frozen=frozen), MEAN, SIGMA)  # without constraints the engine keeps it
    np.testing.assert_allclose(free, solve_observation(observation(), MEAN, SIGMA)[0], atol=1e-12)
    none, _ = solve_observation(observation(constraints=rules, frozen=~frozen & False), MEAN, SIGMA)
    assert np.abs(none[..., 0] - HELD[..., 0]).max() > 0.01


def test_where_frozen_weights_leave_no_portfolio_nothing_is_traded():
    rules = Constraints(limits=(Limit("pair", np.array([1.0, 1, 0, 0]), 0.0, 0.1),))
    assert (HELD[..., 0] > 0.1).all()
    weights, _ = solve_observation(
        observation(constraints=rules, frozen=np.array([True, False, False, False])), MEAN, SIGMA
    )
    np.testing.assert_array_equal(weights, HELD)
    nobody = Constraints(upper=0.2)  # four times 0.2 is not 1
    with pytest.raises(InputError):
        solve_observation(observation(constraints=nobody), MEAN, SIGMA)
    with pytest.raises(InputError, match="mean"):
        solve_observation(observation(), MEAN * np.nan, SIGMA)


def test_bad_data_are_named_as_the_solver_names_them():
    with pytest.raises(InputError, match="mean"):
        solve_observation(observation(), MEAN[..., :3], SIGMA)


@pytest.mark.parametrize("frozen", [None, np.array([True, False, False, False])])
def test_no_trade_is_smaller_than_the_smallest(frozen):
    free, _ = solve_observation(observation(frozen=frozen), MEAN, SIGMA, cost=0.05)
    small = np.abs(free - HELD)
    least = float(np.median(small[small > 1e-9]))  # so that half of the trades are too small
    weights, solved = solve_observation(observation(frozen=frozen, min_trade=least), MEAN, SIGMA, cost=0.05)
    trade = np.abs(weights - HELD)
    assert solved is None
    assert ((trade < 1e-12) | (trade >= least * (1 - 1e-9))).all()
    assert (trade > 0.01).any()
    assert (trade.sum(-1) <= BUDGETS + 1e-9).all()
    assert frozen is None or (trade[..., frozen] < 1e-12).all()
