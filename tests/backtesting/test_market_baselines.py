"""Rules for real markets: the exact step with costs, state carried forward, forecasts only where there is something."""

import numpy as np
import pytest

from time2decide.backtesting.baselines import PooledRule, TwoScaleMinimumVariance, _PooledState
from time2decide.markets.estimators import two_scale
from time2decide.simulation.engine import Observation, rollout
from time2decide.simulation.metrics import rollout_traded


def market(steps=900, m=8, reversal=0.0, seed=0):
    """One factor and Student noise; `reversal` of the last idiosyncratic return."""
    rng = np.random.default_rng(seed)
    own = 0.01 * rng.standard_t(5, (steps, m))
    for t in range(1, steps):
        own[t] -= reversal * own[t - 1]
    return 0.008 * rng.normal(size=(steps, 1)) + own


@pytest.mark.parametrize("rule", [TwoScaleMinimumVariance(), PooledRule()])
def test_a_trade_that_is_not_worth_its_cost_is_not_made(rule):
    held = np.random.default_rng(0).dirichlet(np.ones(8), (1, 1))
    seen = Observation(market(400)[None], held[:, :, None], None, np.array([2.0]), 5.0, cost_bps=4000.0)
    np.testing.assert_allclose(rule.decide(seen), held, rtol=0, atol=1e-15)


def test_the_state_is_the_same_row_by_row():
    returns = market(400)
    whole, carried = _PooledState(returns), _PooledState(returns[:300])
    for row in returns[300:]:
        carried.update(row[None])
    np.testing.assert_allclose(carried.covariance(), whole.covariance())
    np.testing.assert_allclose(carried.forecast(), whole.forecast())
    assert carried.worth() == pytest.approx(whole.worth())
    np.testing.assert_allclose(whole.covariance(), two_scale().update(returns).covariance())


def test_another_series_starts_anew():
    first, second = market(330), market(330, seed=9)
    strategy = PooledRule()
    alone = rollout(second, PooledRule(), 0.1, window=300, budget_from="drifted").raw
    rollout(first, strategy, 0.1, window=300, budget_from="drifted")
    np.testing.assert_array_equal(rollout(second, strategy, 0.1, window=300, budget_from="drifted").raw, alone)


def test_forecasts_are_followed_where_there_is_something_to_predict():
    options = {"window": 520, "budget_from": "drifted", "cost_bps": 10.0, "risk_aversion": 5.0}
    nothing, something = market(), market(reversal=0.3)
    state = _PooledState(something)
    assert state.worth() > 0.5
    assert np.corrcoef(state.forecast(), -(something[-1] - something[-1].mean()))[0, 1] > 0.8
    assert _PooledState(nothing).worth() < 0.3
    quiet = rollout(nothing, PooledRule(), 0.5, **options)
    busy = rollout(something, PooledRule(), 0.5, **options)
    assert rollout_traded(busy, something[None]).mean() > 5 * rollout_traded(quiet, nothing[None]).mean()
    busy, flat = busy.allocations, rollout(something, TwoScaleMinimumVariance(), 0.5, **options).allocations
    gain = np.einsum("tm,tm->t", busy[0, 0, 520:] - flat[0, 0, 520:], something[520:]).mean()
    assert gain > 10e-4


def test_costs_lower_turnover():
    returns = market()
    amounts = []
    for cost in (0.0, 20.0, 200.0):
        held = rollout(returns, TwoScaleMinimumVariance(), 0.1, window=520, budget_from="drifted", cost_bps=cost)
        amounts.append(rollout_traded(held, returns[None]).mean())
    assert amounts[0] > amounts[1] > amounts[2]
