"""The policy: what it makes of forecasts, records, rates and the prior, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from time2decide.core.validation import InputError
from time2decide.forecasting.market_state import HORIZONS, LENGTHS
from time2decide.forecasting.records import posterior_slopes
from time2decide.markets.policy_config import MARKET, NAMED, PolicyConfig
from time2decide.policy.market_policy import MarketPolicy, Seen
from time2decide.policy.trading_rate import TradingRate

M, H = 5, len(HORIZONS)
SURE = np.array([1e4, 1e4, 1e5, 1e5, 1e5])  # sums of a record that says: slope 1
NOTHING = np.zeros(5)


def seen(forecast=0.0, record=NOTHING, experts=1, seed=0):
    """Forecasts of every horizon that say the same, each with the same record."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(40, M)) * np.linspace(0.5, 2, M)
    path = np.broadcast_to(np.asarray(forecast, dtype=float), (experts, H, M))
    sums = np.broadcast_to(record[:, None, None], (5, experts, H))
    return Seen(path, sums, ("own past", "all assets")[:experts], 1e-4 * np.cov(factors.T), 252.0, np.zeros((0, M)))


def relative(seed=1):
    values = 1e-3 * np.random.default_rng(seed).normal(size=M)
    return values - values.mean()


def test_without_forecasts_the_problem_is_the_prior():
    posed = MarketPolicy().pose(seen(), 0.1)
    np.testing.assert_array_equal(posed.signal, 0.0)
    np.testing.assert_allclose(posed.mean, posed.prior)
    followed = MarketPolicy().pose(seen(relative(), SURE), 0.1)
    ignored = MarketPolicy().pose(seen(relative(), SURE), 0.1, follow=False)
    np.testing.assert_allclose(ignored.mean, posed.mean)
    assert np.abs(followed.signal).max() > 1e-4


@pytest.mark.parametrize("rate", [1.0, 0.3, 0.05])
def test_a_row_of_a_forecast_weighs_what_is_left_of_a_trade(rate):
    """Row k weighs z(1 − z)^(k−1), and the weights of the rows that are forecast sum to the life of the path."""
    shown = seen(relative(), SURE)
    slope = posterior_slopes(shown.record, LENGTHS, MARKET.record).slope[0]
    weight = np.array([sum(rate * (1 - rate) ** (k - 1) for k in range(a + 1, b + 1)) for a, b in HORIZONS])
    posed = MarketPolicy().pose(shown, rate)
    np.testing.assert_allclose(posed.signal, (weight * slope).sum() * relative(), rtol=1e-9)
    prior = MarketPolicy().pose(seen(), rate).prior
    np.testing.assert_allclose(posed.prior, prior * (1 - (weight * slope).sum()), rtol=1e-9)


def test_a_forecast_is_followed_as_far_as_its_record_says():
    signals = [
        np.abs(MarketPolicy().pose(seen(relative(), record), 0.2).signal).max()
        for record in (SURE * [1, 0, 1, 0, 1], NOTHING, SURE * [1, 0.5, 0.3, 0.5, 1], SURE)
    ]
    assert signals == sorted(signals)
    assert signals[0] < 0.05 * signals[-1]
    assert signals[1] == pytest.approx(MARKET.record.worth * signals[-1], rel=0.1)


def test_rates_of_several_portfolios_are_posed_at_once():
    rates = np.array([0.02, 0.5])
    both = MarketPolicy().pose(seen(relative(), SURE), rates)
    for k, rate in enumerate(rates):
        alone = MarketPolicy().pose(seen(relative(), SURE), rate)
        np.testing.assert_allclose(both.mean[k], alone.mean)
        assert both.rate[k] == alone.rate
    assert MarketPolicy().pose(seen(), 0.0).rate == pytest.approx(1e-3)  # a trade lasts a thousand rows at most


def test_the_prior_makes_equal_weights_efficient_or_sharpe_ratios_equal():
    shown = seen()
    beta = shown.covariance.mean(-1)
    risk = beta.mean() ** 0.5
    equilibrium = MarketPolicy(PolicyConfig(equal_sharpe=0.0)).pose(shown, 0.1).prior
    np.testing.assert_allclose(equilibrium / beta, (equilibrium / beta).mean())
    assert equilibrium.mean() / risk * 252**0.5 == pytest.approx(MARKET.equilibrium)
    equal = MarketPolicy(PolicyConfig(equilibrium=0.0)).pose(shown, 0.1).prior
    ratio = equal / np.sqrt(np.diag(shown.covariance))
    np.testing.assert_allclose(ratio, ratio.mean())
    assert equal.mean() / risk * 252**0.5 == pytest.approx(MARKET.equal_sharpe)
    monthly = MarketPolicy().pose(replace(shown, periods_per_year=12.0), 0.1).prior
    np.testing.assert_allclose(monthly, MarketPolicy().pose(shown, 0.1).prior * (252 / 12) ** 0.5)


def test_permuting_assets_permutes_the_problem():
    shown, order = seen(relative(), SURE), [3, 1, 4, 0, 2]
    moved = replace(shown, forecast=shown.forecast[..., order], covariance=shown.covariance[order][:, order])
    plain, other = (MarketPolicy().pose(one, 0.2) for one in (shown, moved))
    np.testing.assert_allclose(other.mean, plain.mean[order])


def test_of_assets_that_are_not_mature_a_mean_asset_is_known():
    shown = seen(relative(), SURE)
    chosen, mature = np.array([1, 1, 1, 1, 0], dtype=bool), np.array([1, 1, 1, 0, 1], dtype=bool)
    found = shown.of_assets(chosen, mature)
    assert (found.forecast[..., 3] == 0).all()
    np.testing.assert_allclose(found.covariance[:3, :3], shown.covariance[:3, :3])
    inner = shown.covariance[np.ix_(mature, mature)]
    np.testing.assert_allclose(found.covariance[3, :3], inner.mean(0)[:3])
    assert found.covariance[3, 3] == pytest.approx(inner.diagonal().mean())
    assert np.linalg.eigvalsh(found.covariance).min() > 0


@pytest.mark.parametrize("name", NAMED)
def test_readers_know_what_their_policy_reads(name):
    returns = 0.01 * np.random.default_rng(0).normal(size=(130, M))
    reader = MarketPolicy(NAMED[name]).reader(M, 252.0, 1)
    reader.skip(returns[:100])
    for row in returns[100:]:
        reader.read(row)
    found = reader.seen()
    assert found.reads == (("own past", "all assets", "last 96 rows") if name == "market" else ("last 96 rows",))
    assert found.forecast.shape == (len(found.reads), H, M)
    np.testing.assert_allclose(found.forecast[-1].sum(-1), 0.0, atol=1e-12)
    window = np.cov(returns[-96:].T, ddof=0)
    off = found.covariance[~np.eye(M, dtype=bool)]
    if name == "time2decide":
        np.testing.assert_allclose(found.covariance, window, rtol=0.02, atol=1e-8)
    assert (np.abs(off).max() == 0) == (name == "time2decide-nocov")


def test_the_rate_is_what_is_traded_of_the_way():
    rate = TradingRate.start(np.array([2.0, 0.5, 3.0]))
    np.testing.assert_allclose(rate.value, [1.0, 0.25, 1.0])
    for _ in range(2000):
        rate.update(np.array([0.1, 0.0, 0.3]), np.array([0.5, 1.0, 0.0]))
    np.testing.assert_allclose(rate.value, [0.2, 1e-3, 1.0], rtol=1e-6)  # nothing left to trade: all of it was
    slow = TradingRate.start(1.0)
    for _ in range(2000):
        slow.update(np.array(0.19), np.array(1.0), rows=2)
    assert float(slow.value) == pytest.approx(0.1)  # 19 % in two rows are 10 % a row


def test_fingerprints_tell_configurations_apart_and_bad_ones_are_named():
    prints = {MarketPolicy(config).fingerprint for config in NAMED.values()}
    assert len(prints) == 3
    assert MarketPolicy().fingerprint == MarketPolicy(NAMED["market"]).fingerprint
    with pytest.raises(InputError, match="covariance: expected one of market, window, none"):
        MarketPolicy(PolicyConfig(covariance="all"))
