"""Decisions of the market policy: certified, within their limits, silent where nothing is to be predicted."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from time2decide import Time2Decide, backtest, verify_decision
from time2decide.core.validation import InputError
from time2decide.markets.constraints import Constraints, Limit
from time2decide.markets.decision_file import read_decision
from time2decide.markets.portfolio import solve_portfolio
from time2decide.markets.universe import Availability
from time2decide.markets.verdict import ForecastRecord, Verdict
from time2decide.policy.decision_facts import decision_facts
from time2decide.policy.market_decision import MarketStrategy, SharedReading, decide_market
from time2decide.policy.market_policy import MarketReader
from time2decide.simulation.engine import rollout


@pytest.fixture(scope="module")
def model():
    return Time2Decide.from_pretrained()


@pytest.fixture(scope="module")
def returns():
    rng = np.random.default_rng(0)
    return (0.006 * rng.normal(size=(700, 1)) + 0.01 * rng.normal(size=(700, 5))) * np.linspace(0.5, 2, 5)


def test_a_decision_is_feasible_optimal_and_explained(model, returns):
    previous = np.array([0.1, 0.1, 0.2, 0.3, 0.3])
    made = model.decision(returns, previous, 0.2, risk_aversion=20.0, cost_bps=5.0)
    assert made.weights.sum() == pytest.approx(1, abs=1e-12)
    assert made.weights.min() >= 0
    assert made.turnover <= 0.2 + 1e-12
    assert made.solution.gap <= 1e-12
    again = solve_portfolio(
        made.mean, made.covariance, previous, risk_aversion=20.0, turnover_l1=0.2, cost=5e-4 / made.days
    )
    np.testing.assert_allclose(made.weights, again.weights, atol=1e-12)
    assert made.weights @ made.covariance @ made.weights < previous @ made.covariance @ previous
    np.testing.assert_allclose(made.mean, made.prior + made.signal)


@pytest.mark.parametrize("budget", [0.05, 1.0])
@pytest.mark.parametrize("reference", [None, "held", "other"])
@pytest.mark.parametrize("seed", range(3))
def test_the_reasons_of_bought_and_sold_assets_differ_by_the_cost(model, returns, budget, reference, seed):
    previous, other = np.random.default_rng(seed).dirichlet(np.full(5, 2.0), 2)
    benchmark = {None: None, "held": previous, "other": other}[reference]
    risk_aversion = 2.0 if reference == "held" else 10.0
    terms = {"risk_aversion": risk_aversion, "cost_bps": 0.5, "benchmark": benchmark}
    made = model.decision(returns, previous, budget, **terms)
    reasons, trade = sum(made.reasons_bps.values()), made.weights - made.previous
    bought, sold = trade > 1e-7, trade < -1e-7
    assert bought.any()
    assert sold.any()
    least = made.cost_bps / made.days + 1e4 * float(made.solution.turnover_price)
    apart = reasons[bought][:, None] - reasons[sold]
    assert apart.min() >= 2 * least - 1e-6
    inside = made.weights[sold] > 1e-9
    np.testing.assert_allclose(apart[:, inside], 2 * least, atol=1e-6)
    assert reasons[bought].min() >= -1e-6
    assert reasons[sold].max() <= 1e-6


def test_permuting_assets_permutes_the_decision(model, returns):
    order = np.array([3, 1, 4, 0, 2])
    plain, moved = model.decide(returns, None, 0.4), model.decide(returns[:, order], None, 0.4)
    np.testing.assert_allclose(moved, plain[order], atol=1e-5)


def test_dear_trades_are_not_made_and_nothing_predictable_means_no_forecasts(model, returns):
    made = model.decision(returns, None, 1.0, cost_bps=4999.0)
    assert made.turnover == 0
    assert made.verdict.probability < 0.1
    about = "risk and the prior on means (a Sharpe ratio of 0.3 a year for equal weights): the best forecast is of"
    assert made.verdict.text.startswith(f"Nothing to predict here, so this is about {about}")
    assert np.abs(made.weights - made.without_forecasts).sum() < 0.02


def test_the_verdict_names_the_forecast_that_is_followed():
    weak = ForecastRecord(1, 1, "own past", 0.1, 0.3, 0.05, 0.01)
    strong = ForecastRecord(4, 5, "own past", 0.8, 0.1, 0.9, 0.7)
    verdict = Verdict((weak, strong), 10.0)
    assert verdict.best is strong
    assert verdict.text == (
        "The forecast of days 4 to 5, from own past is followed at 70%: "
        "outcomes followed 80% of what it forecast (95 %: 60% to 100%)."
    )
    pooled = Verdict((weak, replace(strong, first=1, last=1, reads="all assets")), 10.0, period="month")
    assert "of the next month, from all assets is followed" in pooled.text
    assert pooled.probability == pytest.approx(0.95)  # some forecast of the same rows
    led = Verdict((weak, strong), 10.0, 0.3, prior_leads=True)
    assert led.text.endswith("; the prior on means (a Sharpe ratio of 0.3 a year for equal weights) weighs more.")
    assert "so this is about risk only: the best forecast" in Verdict((weak,), 10.0).text
    assert Verdict.from_json(led.to_json()["records"], led.to_json()["prior"], 10.0).text == led.text


def test_the_first_decision_of_a_strategy_is_the_decision_of_its_rows(model, returns):
    result = rollout(
        returns[:651], model.strategy(), [0.1, 0.5], risk_aversion=5.0, window=650, budget_from="drifted", cost_bps=10.0
    )
    made = decide_market(model.policy, returns[:650], None, 0.5, 5.0, 10.0, delay=1)
    assert np.abs(result.raw[0, 1, 650] - made.weights).max() < 0.02  # replayed from other portfolios


def test_going_on_row_by_row_is_beginning_there(model, returns):
    """What is known is the same to the last bit."""
    strategy = model.strategy()
    rollout(returns[:620], strategy, [0.5], window=600)
    (found,) = strategy.last_seen
    reader = MarketReader(model.policy.config, 5, 252.0, 0)
    reader.skip(returns[:96])  # forecasts from a window are asked for in the last 504 rows before the first decision
    for row in returns[96:619]:
        reader.read(row)
    again = reader.seen()
    np.testing.assert_array_equal(found.covariance, again.covariance)
    np.testing.assert_array_equal(found.forecast, again.forecast)
    np.testing.assert_array_equal(found.record, again.record)


def test_a_strategy_starts_anew_with_another_market(model, returns):
    strategy = model.strategy()
    first = rollout(returns[:, :3], strategy, 0.3, window=650).allocations
    rollout(2 * returns[:, 1:4], strategy, 0.3, window=650)
    np.testing.assert_array_equal(rollout(returns[:, :3], strategy, 0.3, window=650).allocations, first)


def test_unpredictable_markets_are_hardly_traded():
    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        0.01 * rng.standard_t(4, (500, 8)), index=pd.bdate_range("2020-01-01", periods=500), columns=list("ABCDEFGH")
    )
    result = backtest(table, ["market", "uniform"], 0.5, risk_aversion=10.0, cost_bps=10.0)
    market = result.frame[result.frame["strategy"] == "market"]
    assert market["traded"].iloc[100:].mean() <= 0.02


def test_two_assets_and_twenty_rows(model):
    weights = model.decide(0.01 * np.random.default_rng(0).normal(size=(20, 2)))
    assert weights.sum() == pytest.approx(1)


def test_uncertainty_is_refused_where_returns_are_missing(returns):
    table = pd.DataFrame(returns, columns=list("ABCDE"), index=pd.bdate_range("2020-01-01", periods=len(returns)))
    table.iloc[:300, 1] = np.nan
    expected = r"uncertainty: expected returns without gaps \(leave out .*\), found missing returns of B$"
    with pytest.raises(InputError, match=expected):
        decision_facts(table, gaps="keep")


# -- Assets that come and go -------------------------------------------------------------------------------------------

M = 8
LATE, GONE, HALTED = 5, 6, 7
PREVIOUS = np.array([0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.1])
GROUP = np.array([1.0, 1.0, 0, 0, 0, 0, 0, 1.0])  # holds the halted asset
NAMES = tuple("ABCDEFGH")


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


def test_young_assets_are_not_bought_and_what_has_no_price_is_not_traded(model, table):
    made = model.decision(table, PREVIOUS, 0.3, gaps="keep")
    np.testing.assert_allclose(made.weights[[GONE, HALTED]], [0.2, 0.1], atol=1e-12)
    assert 0 <= made.weights[LATE] <= 0.1
    assert made.weights.sum() == pytest.approx(1, abs=1e-12)
    assert made.weights.min() >= 0
    assert made.turnover <= 0.3 + 1e-9
    assert made.solution.gap <= 1e-12
    fresh = model.decision(table, None, 2.0, gaps="keep")
    assert fresh.weights[LATE] == fresh.weights[GONE] == 0


def test_a_young_asset_that_is_held_can_be_sold_and_its_risk_is_that_of_a_mean_asset(model, table):
    upper = np.ones(M)
    upper[LATE] = 0.03
    made = model.decision(table, PREVIOUS, 1.0, gaps="keep", constraints=Constraints(upper=upper))
    assert made.weights[LATE] <= 0.03 + 1e-12
    others = np.arange(M) != LATE
    sigma = made.covariance[np.ix_(others, others)]
    np.testing.assert_allclose(made.covariance[LATE, others], sigma.mean(0))
    assert made.covariance[LATE, LATE] == pytest.approx(sigma.diagonal().mean())
    assert np.linalg.eigvalsh(made.covariance).min() > 0
    assert made.signal[LATE] == 0
    assert made.mean[LATE] == pytest.approx(made.prior[others].mean(), rel=0.2)  # that of its own risk
    much = np.where(others, 0.3 / (M - 1), 0.7)
    risky = model.decision(table, much, 1.0, gaps="keep", risk_aversion=50.0)
    assert risky.weights[LATE] < 0.5  # so much of one asset is sold for its risk


def test_without_missing_returns_nothing_changes(model, table):
    whole = table[:, :5]
    np.testing.assert_array_equal(model.decide(whole, None, 0.3, gaps="keep"), model.decide(whole, None, 0.3))


def test_gaps_are_refused_unless_kept(model, table):
    with pytest.raises(InputError, match="returns: expected finite numbers"):
        model.decide(table)
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
    np.testing.assert_allclose(made.weights[[GONE, HALTED]], PREVIOUS[[GONE, HALTED]], atol=1e-12)
    assert made.weights[LATE] <= PREVIOUS[LATE] + 1e-12
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
    refused("x .* cannot be traded: G 0.2, H 0.1", limits=(limit,))


def test_bounds_and_groups_of_assets_that_cannot_be_traded_wait_and_are_named(model, table, tmp_path):
    lower, upper = np.full(M, 0.02), np.full(M, 0.5)
    lower[LATE], upper[HALTED] = 0.15, 0.05
    both = np.eye(M)[HALTED] + np.eye(M)[LATE]
    waits, holds = Limit("both", both, 0.3, 1.0), Limit("pair", both, 0.1, 0.4)
    rules = Constraints(lower=lower, upper=upper, limits=(waits, holds), assets=NAMES)
    made = model.decision(table, PREVIOUS, 1.0, gaps="keep", constraints=rules)
    np.testing.assert_allclose(made.weights[[LATE, HALTED]], 0.1, atol=1e-12)
    assert made.weights[GONE] == pytest.approx(0.2, abs=1e-12)
    assert made.weights[:5].min() >= 0.02 - 1e-12
    outside = made.availability.outside(rules, made.start, NAMES)
    assert list(outside) == ["F", "H", "both"]
    assert outside["H"] == "H 10% (at most 5%)"
    assert outside["both"] == "both 20% (at least 30%)"
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


@pytest.mark.parametrize("most_bytes", [2**28, 0])
def test_strategies_that_share_what_was_read_decide_as_alone_and_read_once(model, monkeypatch, most_bytes):
    policy, returns = model.policy, np.random.default_rng(5).normal(0, 0.01, (1, 110, 6))
    terms = {"risk_aversion": 2.0, "window": 96, "budget_from": "drifted", "cost_bps": 10.0}
    alone = [rollout(returns, MarketStrategy(policy, follow=follow), [0.5], **terms) for follow in (True, False)]
    asked, read = [], MarketReader.read
    monkeypatch.setattr(MarketReader, "read", lambda *a: asked.append(1) or read(*a))
    shared = SharedReading(most_bytes)
    for follow, before in zip((True, False), alone, strict=True):
        strategy = MarketStrategy(policy, follow=follow, shared=shared)
        np.testing.assert_array_equal(rollout(returns, strategy, [0.5], **terms).allocations, before.allocations)
    assert len(asked) == 109 * (1 if most_bytes else 2)


def test_what_was_read_is_shared_for_the_same_rows_only(model):
    policy, returns = model.policy, np.random.default_rng(6).normal(0, 0.01, (1, 105, 4))
    other = returns.copy()
    other[0, 100, 2] += 1e-9
    shared = SharedReading()
    for table, risk in ((returns, 2.0), (other, 2.0), (returns, 3.0)):
        terms = {"risk_aversion": risk, "window": 96, "budget_from": "drifted", "cost_bps": 10.0}
        alone = rollout(table, MarketStrategy(policy), [0.5], **terms).allocations
        np.testing.assert_array_equal(
            rollout(table, MarketStrategy(policy, shared=shared), [0.5], **terms).allocations, alone
        )


@pytest.mark.parametrize("total", [1.0, 1.0 - 3e-7, 1.0 + 9e-7])
def test_assets_whose_trade_is_too_small_are_named_whatever_rounding_the_weights_have(model, returns, total):
    """Weights are brought to a sum of 1 before each solve, so that the fixed ones differ in the last bit."""
    previous = np.array([0.15, 0.15, 0.2, 0.2, 0.3]) * total
    for rules in (None, Constraints(upper=0.5)):
        made = model.decision(returns, previous, 0.03, min_trade=0.5, cost_bps=0.1, constraints=rules)
        free = model.decision(returns, previous, 0.03, cost_bps=0.1, constraints=rules)
        assert np.abs(free.weights - free.start).max() > 1e-3
        assert np.abs(made.weights - made.start).max() < 1e-12
        assert made.untraded[np.abs(free.weights - free.start) > 1e-9].all()


# -- When it is traded, and how often the table has rows ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "period", "year"),
    [
        (pd.date_range("1990-01-31", periods=400, freq="ME"), "month", 12.0),
        (pd.bdate_range("2020-01-01", periods=400), "day", 252.0),
        (None, "row", None),
    ],
)
def test_a_decision_knows_its_delay_and_the_period_of_its_table(model, index, period, year, tmp_path):
    returns = pd.DataFrame(np.random.default_rng(0).normal(0, 0.01, (400, 6)), index, list("ABCDEF"))
    made = model.decision(returns, None, 0.5, delay=2)
    assert re.search(rf"\b{period}s?\b", made.verdict.text)
    document = read_decision(made.save(tmp_path / "d.json"))
    assert (document["delay"], document["periods_per_year"], document["period"]) == (2, year, period)
    assert verify_decision(tmp_path / "d.json", returns).passed
    facts = decision_facts(returns, None, 0.5, delay=2, with_uncertainty=False)
    assert facts["gain"]["periods_a_year"] == year
    assert facts["gain"]["a_year"] == (None if year is None else pytest.approx(year * facts["gain"]["utility"]))
    stated = model.decision(returns, None, 0.5, delay=2, periods_per_year=year or 252.0)
    np.testing.assert_array_equal(stated.weights, made.weights)
    for bad in ({"delay": -1}, {"delay": 0.5}, {"periods_per_year": 0.0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            model.decide(returns, **bad)


def test_a_forecast_that_does_not_survive_the_delay_is_not_followed(model):
    noise = np.random.default_rng(1).normal(0, 0.01, (1200, 8))
    returns = noise - 0.5 * np.vstack([np.zeros(8), noise[:-1]])  # half of each move is gone a row later
    quick, late = (model.decision(returns, None, 2.0, delay=delay) for delay in (0, 1))
    assert quick.verdict.best.follow > 0.8
    assert late.verdict.best.follow < 0.1
    assert np.abs(late.signal).max() < 0.05 * np.abs(quick.signal).max()
