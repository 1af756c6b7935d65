"""What is traded when: delay, drift, costs, cash and budget beside a simulation written on its own; annual figures."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

from time2decide.backtesting import backtest
from time2decide.core.validation import InputError
from time2decide.markets import Constraints
from time2decide.simulation.engine import Observation, rollout
from time2decide.simulation.execution import traded_towards

WINDOW, COST, CASH = 30, 0.002, 0.0004
GAMMA = 0.15


def market(rows=90, assets=5, index=None):
    returns = np.random.default_rng(3).normal(0.0005, 0.02, (rows, assets))
    dates = pd.bdate_range("2022-01-03", periods=rows) if index is None else index
    return pd.DataFrame(returns, dates, list("ABCDE")[:assets])


def wish(past):
    """Weights that change a lot from day to day, with 10 to 30 % in cash."""
    score = np.exp(40 * past[-5:].sum(0))
    return (0.8 + 0.1 * np.tanh(50 * past[-1].mean())) * score / score.sum()


def towards(target, now, budget):
    length = np.abs(target - now).sum()
    return target if length <= budget else now + budget / length * (target - now)


def simulate(returns, budget, delay):
    """Net returns, amounts traded and weights, row by row, from nothing but the definition."""
    held, decided, rows = np.full(returns.shape[1], 1 / returns.shape[1]), {}, []
    for t in range(WINDOW, len(returns)):
        now = held
        if t > WINDOW:
            grown = held * (1 + returns[t - 1])
            now = grown / (grown.sum() + (1 - held.sum()) * (1 + CASH))
        expected = after = towards(decided[t - delay], now, budget) if t - delay in decided else now
        for step in range(t - delay + 1, t):
            expected = towards(decided[step], expected, budget) if step in decided else expected
        decided[t] = towards(wish(returns[t - WINDOW : t]), expected, budget)
        held = decided[t] if delay == 0 else after
        traded = np.abs(held - now).sum()
        earned = held @ returns[t] + (1 - held.sum()) * CASH
        rows.append(((1 - COST * traded) * (1 + earned) - 1, traded, *held))
    return np.array(rows)


@dataclass
class Wishes:
    """The same wishes as a strategy."""

    name: str = "wishes"
    wants_hindsight: bool = False
    seen: list = field(default_factory=list)

    def decide(self, observation: Observation) -> np.ndarray:
        self.seen.append((observation.delay, observation.periods_per_year))
        target = wish(observation.returns[0])
        return np.array([towards(target, now, GAMMA) for now in observation.previous[0]])[None]


@pytest.mark.parametrize("delay", [0, 1, 2, 5])
def test_an_independent_simulation_agrees(delay):
    table, rules, strategy = market(), Constraints(cash=(0.0, 1.0), cash_return=CASH), Wishes()
    result = backtest(
        table, [strategy], GAMMA, cost_bps=1e4 * COST, window=WINDOW, delay=delay, constraints=rules, risk_aversion=3.0
    )
    expected = simulate(table.to_numpy(), GAMMA, delay)
    np.testing.assert_allclose(result.frame["net"], expected[:, 0], atol=1e-12, rtol=0)
    np.testing.assert_allclose(result.frame["traded"], expected[:, 1], atol=1e-12, rtol=0)
    np.testing.assert_allclose(result.weights("wishes", GAMMA), expected[:, 2:], atol=1e-12, rtol=0)
    assert expected[:, 1].max() > GAMMA - 1e-9  # the budget binds
    row, net = result.summary.iloc[0], expected[:, 0]
    assert row["sharpe"] == pytest.approx(np.sqrt(252) * net.mean() / net.std(ddof=1))
    assert row["net_utility"] == pytest.approx(net.mean() - 3.0 * net.var())
    assert set(strategy.seen) == {(delay, 252.0)}
    assert result.delay == delay


def test_the_next_close_is_the_default():
    table = market()
    held = [
        backtest(table, [Wishes()], 2.0, window=WINDOW, **given).weights("wishes", 2.0) for given in ({}, {"delay": 0})
    ]
    np.testing.assert_allclose(held[0].iloc[0], 0.2)  # nothing can have been traded yet
    assert np.abs(held[0].iloc[1:].to_numpy() - held[1].iloc[:-1].to_numpy()).max() < 0.1  # but what prices did since
    with pytest.raises(InputError, match="delay"):
        backtest(table, ["uniform"], window=WINDOW, delay=-1)
    with pytest.raises(InputError, match="delay"):
        rollout(table.to_numpy(), Wishes(), 1.0, window=WINDOW, delay=1.5)


@dataclass
class Trades:
    """Buys some of A from B on the first day; then leaves everything as it is."""

    orders: bool
    name: str = "trades"
    wants_hindsight: bool = False

    def decide(self, observation):
        return observation.previous + 0.1 * (np.eye(5)[0] - np.eye(5)[1]) * (observation.step == WINDOW)


def test_what_has_no_order_is_not_traded():
    table = market()
    frame = backtest(table, [Trades(True)], 1.0, window=WINDOW).frame
    assert np.flatnonzero(frame["traded"] > 1e-12).tolist() == [1]
    weights = backtest(table, [Trades(True)], 1.0, window=WINDOW).weights("trades", 1.0).to_numpy()
    grown = 0.2 * (1 + table.to_numpy()[WINDOW])
    now = grown / grown.sum()
    np.testing.assert_allclose(weights[1, 2:], now[2:], atol=1e-15)  # C, D and E are not traded; A and B make room
    assert weights[1, 0] / weights[1, 1] == pytest.approx(3.0)
    back = backtest(table, [Trades(False)], 1.0, window=WINDOW).frame
    assert (back["traded"].to_numpy()[1:] > 1e-3).all()  # weights that are answered are traded for


def test_trades_around_what_cannot_be_traded():
    now, fixed = np.array([0.5, 0.3, 0.2]), np.array([True, False, False])
    np.testing.assert_allclose(traded_towards(np.array([0.2, 0.2, 0.6]), now, 2.0, fixed), [0.5, 0.125, 0.375])
    np.testing.assert_allclose(traded_towards(np.array([0.2, 0.2, 0.6]), now, 0.07, fixed), [0.5, 0.265, 0.235])
    np.testing.assert_array_equal(traded_towards(np.array([1.0, 0.0, 0.0]), now, 2.0, fixed), now)  # nobody makes room


TRADED_HOURS = pd.DatetimeIndex(
    [day + pd.Timedelta(hours=10 + hour) for day in pd.bdate_range("2024-01-01", periods=30) for hour in range(7)]
)


@pytest.mark.parametrize(
    ("index", "year"),
    [
        (pd.bdate_range("2022-01-03", periods=200), 252),
        (pd.date_range("2020-01-03", periods=200, freq="W-FRI"), 52),
        (pd.date_range("2000-01-31", periods=200, freq="ME"), 12),
        (TRADED_HOURS, 7 * 252),
        (pd.date_range("2024-01-01", periods=200), 365),
        (pd.RangeIndex(200), 1),
    ],
    ids=["days", "weeks", "months", "hours", "seven days", "rows"],
)
def test_annual_figures_are_those_of_numpy(index, year):
    table = market(len(index), index=index)
    if year == 1:
        table = table.to_numpy()
    result = backtest(table, ["uniform"], 1.0, window=WINDOW)
    row, net = result.summary.iloc[0], result.frame["net"].to_numpy()
    assert result.periods_per_year == year
    assert row["annual_volatility"] == pytest.approx(net.std(ddof=1) * np.sqrt(year), rel=1e-12)
    assert row["annual_return"] == pytest.approx(np.prod(1 + net) ** (year / len(net)) - 1, rel=1e-9)
    assert row["sharpe"] == pytest.approx(np.sqrt(year) * net.mean() / net.std(ddof=1), rel=1e-12)
    stated = backtest(table, ["uniform"], 1.0, window=WINDOW, periods_per_year=100).summary.iloc[0]
    assert stated["annual_volatility"] == pytest.approx(10 * net.std(ddof=1), rel=1e-12)
