import numpy as np
import pandas as pd
import pytest

from time2decide.backtesting import backtest
from time2decide.core.validation import InputError
from time2decide.markets import Constraints, Limit


def market(rows=130, assets=6):
    rng = np.random.default_rng(0)
    dates = pd.bdate_range("2020-01-01", periods=rows)
    return pd.DataFrame(rng.standard_normal((rows, assets)) * 0.01, dates, list("ABCDEF")[:assets])


@pytest.mark.parametrize("strategy", ["pto-ridge", "uniform", "soft-persistence"])
def test_weights_meet_bounds_groups_and_cash_at_every_step(strategy):
    group = Limit("group x", np.array([1.0, 1, 0, 0, 0, 0]), 0.1, 0.3)
    constraints = Constraints(upper=0.3, cash=(0.05, 0.4), limits=(group,))
    result = backtest(market(), [strategy], [0.2, 1.0], risk_aversion=5.0, constraints=constraints)
    for gamma in (0.2, 1.0):
        weights = result.weights(strategy, gamma).to_numpy()[3:]  # the first steps come from 1/N
        assert weights.min() >= -1e-10
        assert weights.max() <= 0.3 + 1e-10
        inside = weights[:, :2].sum(1)
        assert inside.min() >= 0.1 - 1e-10
        assert inside.max() <= 0.3 + 1e-10
        assert 0.6 - 1e-10 <= weights.sum(1).min() <= weights.sum(1).max() <= 0.95 + 1e-10
    traded = result.frame[result.frame["turnover_l1"] == 0.2]["traded"]
    assert traded.max() <= 0.2 + 1e-9


def test_what_cannot_be_reached_at_once_is_approached():
    constraints = Constraints(lower=np.array([0.9, 0, 0, 0, 0, 0]))
    result = backtest(market(), ["uniform"], 0.1, constraints=constraints)
    first = result.weights("uniform", 0.1)["A"].to_numpy()
    assert first[0] == pytest.approx(1 / 6 + 0.05, abs=1e-9)
    assert first[-1] >= 0.9 - 1e-9
    assert result.frame["traded"].max() <= 0.1 + 1e-9


def test_contradictions_are_refused_before_any_work():
    with pytest.raises(InputError, match=r"the sum of weights \(1\) and the upper bounds of 6 assets"):
        backtest(market(), ["uniform"], constraints=Constraints(upper=0.1))
