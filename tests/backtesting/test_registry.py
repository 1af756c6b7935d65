"""What holds of every strategy that has a name."""

import numpy as np
import pytest

from time2decide.backtesting.registry import REGISTRY, make_strategies
from time2decide.backtesting.walk_forward import backtest
from time2decide.markets import LMCConfig, synthetic_returns

GAMMAS = [0.5, 2.0]
#: Names beyond the registry: backbones that come with the package, and a variant.
OTHERS = ["pto:kernel-bank", "pto:timepfn:small", "pto-ridge:shrinkage=0.1"]


@pytest.fixture(scope="module")
def returns():
    return synthetic_returns("noisy", count=2, config=LMCConfig(channels=4, length=122))


def test_a_strategy_on_its_own_history_gets_no_hindsight():
    wants = {name: REGISTRY[name].make().wants_hindsight for name in REGISTRY if name.startswith("time2decide")}
    assert wants == {"time2decide": False, "time2decide-nocov": False}


def test_the_two_market_strategies_share_their_answers_and_no_others_do():
    market, _, risk = make_strategies(["market", "uniform", "market-risk"])
    assert market.shared is not None
    assert market.shared is risk.shared
    own = REGISTRY["market"].make()
    assert make_strategies([own, "market-risk"])[0].shared is None
    assert make_strategies(["market"])[0].shared is None


@pytest.mark.parametrize("step", [96, 117])  # first decision and, of those that refit every 21 steps, second fit
@pytest.mark.parametrize("name", [*REGISTRY, *OTHERS])
def test_the_future_cannot_change_a_decision(returns, name, step):
    decides_without_the_future(returns, name, step)


def decides_without_the_future(returns, name, step):
    changed = returns.copy()
    changed[:, step:] = np.random.default_rng(0).uniform(-0.9, 2.0, changed[:, step:].shape)
    first, second = (backtest(table, [name], GAMMAS).rollouts[0] for table in (returns, changed))
    for one, other in ((first.raw, second.raw), (first.allocations, second.allocations)):
        np.testing.assert_array_equal(one[:, :, : step + 1], other[:, :, : step + 1])
