from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from time2decide.backtesting import backtest
from time2decide.cli import app
from time2decide.core.validation import InputError
from time2decide.forecasting.simple import ridge
from time2decide.markets import Constraints, Limit
from time2decide.markets.estimators import EWMA, two_scale
from time2decide.markets.portfolio import nearest_portfolio
from time2decide.markets.universe import universe_of
from time2decide.policy.market_decision import MarketStrategy
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.model import Time2Decide
from time2decide.simulation.engine import Observation
from time2decide.simulation.execution import drifted_weights

#: Steps are compared with one decision each.
same_close = partial(backtest, delay=0)


def market(rows=130, assets=6):
    rng = np.random.default_rng(0)
    dates = pd.bdate_range("2020-01-01", periods=rows)
    return pd.DataFrame(rng.standard_normal((rows, assets)) * 0.01, dates, list("ABCDEF")[:assets])


RISK = 50.0  # λ, so that risk counts beside forecasts of one day
ALLOCATED = np.array([0.3, 0.3, 0.1, 0.1, 0.1, 0.1])  # a benchmark
GROUP = Limit("group x", np.array([1.0, 1, 0, 0, 0, 0]), 0.1, 0.3)
#: What the how-to has an example of: constraints, benchmark and cost in basis points.
TERMS = {
    "bounds": (Constraints(lower=0.13, upper=0.18), None, 0.0),
    "group": (Constraints(limits=(GROUP,)), None, 0.0),
    "cash": (Constraints(cash=(0.1, 0.3), cash_return=1e-5), None, 0.0),
    "benchmark": (None, ALLOCATED, 0.0),
    "costs": (None, None, 3.0),
    "all": (Constraints(upper=0.3, cash=(0.05, 0.4), limits=(GROUP,)), ALLOCATED, 3.0),
}


def posed(strategy, returns, previous, gamma, cost, constraints, benchmark):
    """μ, Σ, λ and the cost of a unit that a strategy gives to the solver after the rows of `returns`."""
    m = len(previous)
    if strategy == "pto-ridge":
        window = returns[-96:]
        return ridge(window[None])[0], np.cov(window.T), RISK, 0.0
    if strategy == "two-scale-minvar":
        return np.zeros(m), two_scale(least=2).update(returns).covariance(), 25.0, cost / 20
    if strategy == "minimum-variance-ewma":
        return np.zeros(m), EWMA(63, least=3).update(returns[-504:]).covariance(), RISK, 0.0
    observation = Observation(
        returns[None], previous[None, None, None], None, np.array([gamma]), RISK,
        cost_bps=1e4 * cost, constraints=constraints, benchmark=benchmark,
    )  # fmt: skip
    made = MarketStrategy(MarketPolicy(), strategy, follow=strategy == "market").pose(observation)[0].alone()
    return made.mean, made.covariance, RISK, cost * float(made.rate)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize(
    "strategy", ["market", "market-risk", "pto-ridge", "two-scale-minvar", "minimum-variance-ewma"]
)
def test_strategies_that_optimise_solve_under_the_terms_by_cvxpy(strategy, term, cvxpy_portfolio):
    constraints, benchmark, cost = TERMS[term]
    table, gamma = market(99), 2.0 if strategy.startswith("minimum") else 0.6
    options = {"risk_aversion": RISK, "cost_bps": cost, "constraints": constraints, "benchmark": benchmark}
    weights = same_close(table, [strategy], gamma, **options).weights(strategy, gamma).to_numpy()
    returns, step = table.to_numpy(), 0 if strategy.startswith("minimum") else 1  # it is refitted every 21 steps
    previous = np.full(6, 1 / 6) if step == 0 else drifted_weights(weights[0], returns[96])
    mean, S, risk, price = posed(strategy, returns[: 96 + step], previous, gamma, cost / 1e4, constraints, benchmark)
    given = {"benchmark": benchmark, "constraints": constraints}
    theirs = cvxpy_portfolio(mean, S, previous, risk_aversion=risk, turnover_l1=gamma, cost=price, **given)
    np.testing.assert_allclose(weights[step], theirs, atol=2e-5)
    plain = same_close(table, [strategy], gamma, risk_aversion=RISK, cost_bps=0.0).weights(strategy, gamma).to_numpy()
    weighs = strategy in ("market", "market-risk", "two-scale-minvar") or term != "costs"
    assert (np.abs(weights[step] - plain[step]).max() > 1e-3) == weighs


@pytest.mark.parametrize("strategy", ["minimum-variance", "mean-variance-shrunk"])
def test_skfolios_optimisers_are_given_the_constraints(strategy):
    constraints = Constraints(lower=0.02, upper=0.3, cash=(0.05, 0.4), limits=(GROUP,))
    rolled = same_close(market(99), [strategy], 2.0, constraints=constraints).rollouts[0]
    np.testing.assert_allclose(rolled.raw[0, 0, 96], rolled.allocations[0, 0, 96], atol=1e-6)
    free = same_close(market(99), [strategy], 2.0).rollouts[0].raw[0, 0, 96]
    projected = nearest_portfolio(free[None], np.full((1, 6), 1 / 6), np.array([2.0]), constraints)[0]
    assert np.abs(projected - rolled.allocations[0, 0, 96]).max() > 1e-3


def test_a_benchmark_must_name_the_assets():
    with pytest.raises(InputError, match="benchmark: expected one weight for each asset"):
        same_close(market(), ["uniform"], benchmark=pd.Series({"A": 1.0}))


@pytest.mark.parametrize("strategy", ["market", "pto-ridge", "uniform", "soft-persistence"])
def test_weights_meet_bounds_groups_and_cash_at_every_step(strategy):
    group = Limit("group x", np.array([1.0, 1, 0, 0, 0, 0]), 0.1, 0.3)
    constraints = Constraints(upper=0.3, cash=(0.05, 0.4), limits=(group,))
    result = same_close(market(), [strategy], [0.2, 1.0], risk_aversion=5.0, constraints=constraints)
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
    result = same_close(market(), ["uniform"], 0.1, constraints=constraints)
    first = result.weights("uniform", 0.1)["A"].to_numpy()
    assert first[0] == pytest.approx(1 / 6 + 0.05, abs=1e-9)
    assert first[-1] >= 0.9 - 1e-9
    assert result.frame["traded"].max() <= 0.1 + 1e-9


def test_contradictions_are_refused_before_any_work():
    with pytest.raises(InputError, match=r"the sum of weights \(1\) and the upper bounds of 6 assets"):
        same_close(market(), ["uniform"], constraints=Constraints(upper=0.1))


@pytest.fixture(scope="module")
def changing():
    """F lists late, E is delisted, D is halted on rows 104 to 106, C misses row 110."""
    table = market(150)
    table.iloc[:20, 5], table.iloc[108:, 4], table.iloc[104:107, 3], table.iloc[110, 2] = (np.nan,) * 4
    return table


@pytest.mark.parametrize(
    "strategy", ["market", "pto-ridge", "two-scale-minvar", "minimum-variance", "minimum-variance-ewma", "uniform"]
)
def test_constraints_hold_while_assets_come_and_go(strategy, changing):
    pair = Limit("pair", np.array([0.0, 0, 0, 0, 0, 1]), 0.05, 0.2)  # waits until F is listed
    rules = Constraints(lower=0.03, upper=0.4, cash=(0.05, 0.2), limits=(GROUP, pair), assets=tuple("ABCDEF"))
    given = {"constraints": rules, "benchmark": ALLOCATED, "risk_aversion": RISK}
    result = same_close(changing, [strategy], [0.3, 1.0], gaps="keep", **given)
    inside = universe_of(changing.to_numpy(), 96).members[96:]
    assert len(np.unique(inside.sum(1))) == 2
    for k, gamma in enumerate((0.3, 1.0)):
        weights = result.weights(strategy, gamma).to_numpy()
        assert (weights[~inside] == 0).all()
        for t in range(5, len(weights)):  # the first steps come from 1/N
            held, members = weights[t], inside[t]
            moved = drifted_weights(weights[t - 1], result.returns[0, 96 + t - 1])
            halted = members & np.isnan(changing.to_numpy()[96 + t - 1])
            np.testing.assert_allclose(held[halted], moved[halted], atol=1e-12)
            free = members & ~halted
            entered = members & ~inside[t - 5]  # a new asset is reached as the budget allows
            if not entered.any():
                assert (held[free] >= 0.03 - 1e-9).all()
                assert 0.1 - 1e-9 <= held[:2].sum() <= 0.3 + 1e-9
            assert held[free].max() <= 0.4 + 1e-9
            assert 0.8 - 1e-9 <= held.sum() <= 0.95 + 1e-9
        if strategy in ("market", "pto-ridge", "two-scale-minvar"):  # they solve under the rules of the moment
            raw = result.rollouts[0].raw[0, k, 96:]
            np.testing.assert_allclose(raw[14:18], weights[14:18], atol=1e-9)
    assert result.weights(strategy, 1.0)["F"].iloc[-1] >= 0.05 - 1e-9


def test_what_the_assets_of_the_moment_cannot_meet_is_refused_with_the_date(changing):
    with pytest.raises(InputError, match=r"upper bounds of 5 assets .* can be held on 2020-05-14"):
        same_close(changing, ["uniform"], gaps="keep", constraints=Constraints(upper=0.19))


def test_where_halted_weights_leave_no_portfolio_nothing_is_traded():
    table = market(110)
    table.iloc[99:104, 3] = np.nan
    rises = table.copy()
    rises.iloc[97:99, 3] = 0.7  # D rises beyond the group, and is halted
    rules = Constraints(limits=(Limit("x", np.array([0.0, 0, 1, 1, 0, 0]), 0.0, 0.2),))
    for strategy in ("market", "uniform"):
        result = same_close(rises, [strategy], 0.05, gaps="keep", constraints=rules)
        weights = result.weights(strategy, 0.05).to_numpy()
        for t in range(4, 8):  # steps 100 to 103
            moved = drifted_weights(weights[t - 1], result.returns[0, 96 + t - 1])
            assert moved[3] > 0.2
            np.testing.assert_allclose(weights[t], moved, atol=1e-12)


def test_the_smallest_trade_is_that_of_a_live_decision():
    table, least = market(104), 0.03
    options = {"cost_bps": 3.0, "risk_aversion": RISK, "min_trade": least}
    result = same_close(table, ["market", "uniform"], 0.2, **options)
    weights = result.weights("market", 0.2)
    now, counts = np.full(6, 1 / 6), set()
    for step in range(96, 104):
        live = Time2Decide.from_pretrained().decision(table.iloc[:step], now, 0.2, delay=0, **options)
        np.testing.assert_allclose(weights.iloc[step - 96], live.weights, atol=1e-12)
        trade = np.abs(live.weights - now)
        assert ((trade < 1e-12) | (trade >= least * (1 - 1e-9))).all()
        counts.add(int((trade > 0.01).sum()))
        now = drifted_weights(live.weights, table.iloc[step].to_numpy())
    assert counts > {0}  # days with trades and days without
    with pytest.raises(InputError, match=r"min_trade: expected a number in \[0, 1\], found 2"):
        same_close(table, ["uniform"], 0.2, min_trade=2.0)


def test_a_problem_without_an_answer_is_named_by_strategy_and_date(monkeypatch, capsys):
    """In one line, with the exit code of bad input; other arithmetic errors are faults of the program."""

    class Fails:
        name, wants_hindsight, error = "fails", False, ArithmeticError("portfolio: no answer was found")

        def decide(self, observation):
            if observation.step == 99:
                raise self.error
            return observation.previous

    table = market(104)
    named = f"fails, {str(table.index[99])[:10]}: portfolio: no answer was found"
    with pytest.raises(ArithmeticError, match=named):
        same_close(table, [Fails()], 0.2)

    def failing(*_, **__):
        same_close(table, [Fails()], 0.2)

    command = SimpleNamespace(make_context=lambda *_: nullcontext(), invoke=failing)
    monkeypatch.setattr(app.typer.main, "get_command", lambda _: command)
    assert app.run_command() == 2
    assert capsys.readouterr().err == f"time2decide: {named}\n"
    Fails.error = ZeroDivisionError("a fault")
    with pytest.raises(ZeroDivisionError, match="a fault"):
        app.run_command()
