"""The state of a market: sums against their definitions, no look ahead, gaps, and what its records find."""

from copy import deepcopy

import numpy as np
import pytest

from tests.forecasting.market_state_reference import RowByRow
from time2decide.forecasting.market_state import EXPERTS, HORIZONS, LENGTHS, MarketState, effective_state_rows
from time2decide.forecasting.recent_rows import RunningSums
from time2decide.forecasting.records import RecordConfig, posterior_slopes


def noise(rows, assets=4, seed=0):
    return np.random.default_rng(seed).normal(0, 0.01, (rows, assets)) * np.linspace(0.5, 2, assets)


def reversal(rows=1500, assets=10, size=-0.15, seed=1):
    shocks = noise(rows, assets, seed)
    returns = shocks.copy()
    returns[1:] += size * shocks[:-1]
    return returns


def slopes(state):
    """Posterior of the slopes of a state's forecasts."""
    forecast, record = state.forecasts()
    return posterior_slopes(record, LENGTHS, RecordConfig(), (forecast != 0).any(-1))


def evidence(state):
    """Slopes so far over their standard errors, (E, H)."""
    found = slopes(state)
    return found.estimate / found.error


def said(state):
    """What a state says of the next rows."""
    return [*state.forecasts(), state.covariance(), state.unit, state.age]


@pytest.mark.parametrize("rows", [19, 40, 62, 63, 64, 300])
def test_reading_at_once_and_day_by_day_agree_to_the_last_bit(rows):
    returns = noise(rows)
    once, daily = MarketState(4).extend(returns), MarketState(4)
    for row in returns:
        daily.update(row)
        said(daily)  # asking changes nothing
    for one, other in zip(said(once), said(daily), strict=True):
        np.testing.assert_array_equal(one, other)


def gappy(rows, assets, seed=4):
    returns = noise(rows, assets, seed)
    returns[np.random.default_rng(seed).uniform(size=returns.shape) < 0.02] = np.nan
    returns[: rows // 3, 1] = np.nan  # lists late
    returns[rows // 2 : rows // 2 + 30] = np.nan  # no trade anywhere
    return returns


CASES = {
    "reversal": lambda: reversal(600),
    "gaps": lambda: gappy(500, 6),
    "many": lambda: noise(150, 210),
    "one": lambda: noise(150, 1),
    "young": lambda: noise(8, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_plain_form_row_by_row(case):
    returns = CASES[case]()
    m, delay = returns.shape[1], {"gaps": 1, "reversal": 2}.get(case, 0)
    found, plain = (one(m, delay=delay).extend(returns).forecasts() for one in (MarketState, RowByRow))
    for part, expected in zip(found, plain, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max(initial=0.0))


def test_forecasts_are_judged_on_what_a_trade_after_the_delay_earns():
    """A reversal of one day is gone a row later; a trend of a month is not."""
    quick = [evidence(MarketState(10, delay=delay).extend(reversal()))[0, 0] for delay in (0, 1)]
    assert quick[0] > 6
    assert abs(quick[1]) < 3
    slow = np.convolve(np.random.default_rng(5).normal(size=1520), np.ones(21) / 21, "valid")[:, None] * np.linspace(
        -1, 1, 10
    )
    assert evidence(MarketState(10, delay=1).extend(noise(1500, 10) + 0.02 * slow))[0].max() > 6


@pytest.mark.parametrize("case", ["gaps", "many"])
def test_parts_of_any_length_give_the_same_bits(case):
    returns = CASES[case]()
    m, at = returns.shape[1], np.array([1, 2, 20, 47, 100, 131])
    parts = MarketState(m)
    for part in np.split(returns, at[at < len(returns)]):
        parts = deepcopy(parts).extend(part)
    columns = np.asfortranarray(returns)  # as in a DataFrame
    for whole in (MarketState(m).extend(returns), MarketState(m).extend(columns)):
        for one, other in zip(said(parts), said(whole), strict=True):
            np.testing.assert_array_equal(one, other)


def test_copies_of_one_asset_are_no_singular_matrix():
    forecast, _ = MarketState(2).extend(np.repeat(noise(200, 1), 2, axis=1)).forecasts()
    assert np.isfinite(forecast).all()
    assert np.abs(forecast).max() < 1e-6


def test_permuting_assets_permutes_what_is_said():
    returns, order = reversal(400), np.random.default_rng(0).permutation(10)
    plain, moved = MarketState(10).extend(returns), MarketState(10).extend(returns[:, order])
    for one, other in zip(plain.forecasts(), moved.forecasts(), strict=True):
        expected = one[..., order] if one.shape[-1] == 10 else one
        np.testing.assert_allclose(other, expected, rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(moved.covariance(), plain.covariance()[order][:, order], rtol=1e-8, atol=1e-14)


def test_the_unit_of_returns_does_not_matter():
    returns = reversal(400)
    small, large = MarketState(10).extend(returns), MarketState(10).extend(100 * returns)
    np.testing.assert_allclose(large.forecasts()[0], 100 * small.forecasts()[0], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(large.forecasts()[1], small.forecasts()[1], rtol=1e-6, atol=1e-9)


def test_the_window_has_the_last_returns_and_which_are_complete():
    returns = noise(150)
    returns[100, 1] = np.nan
    state = MarketState(4).extend(returns)
    np.testing.assert_allclose(state.window(), np.nan_to_num(returns[-96:]))
    np.testing.assert_array_equal(state.complete(), [True, False, True, True])
    outcome, before = state.outcome(), MarketState(4).extend(returns[:-1]).outcome()
    assert [b - a for a, b in HORIZONS[:4]] == [1, 1, 1, 2]
    np.testing.assert_allclose(outcome[1:3], outcome[[0, 0]])
    np.testing.assert_allclose(outcome[3], (outcome[0] + before[0]) / 2)
    np.testing.assert_allclose(outcome.sum(-1), 0.0, atol=1e-12)


def test_a_reversal_is_found_and_noise_is_not():
    state = MarketState(10).extend(reversal())
    assert evidence(state)[0, 0] > 6
    assert 0.5 < slopes(state).slope[0, 0] < 1.5
    values = np.array([slopes(MarketState(6).extend(noise(900, 6, seed))).slope for seed in range(12)])
    assert (values > 0.3).mean() < 0.05


def test_effects_between_assets_are_found_by_the_regression_on_all():
    shocks = noise(1500, 4, 3)
    returns = shocks.copy()
    for t in range(1, 1500):
        returns[t, 1] += 0.4 * returns[t - 1, 0]
    found = evidence(MarketState(4).extend(returns))
    everything = EXPERTS.index("all assets")
    assert found[everything, 0] > 3
    assert found[everything, 0] > found[0, 0] + 2.5


def test_forecasts_do_not_know_the_future():
    returns = reversal(500)
    changed = returns.copy()
    changed[300:] = 0.05
    for one, other in zip(*(said(MarketState(10).extend(table[:300])) for table in (returns, changed)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_gap_leaves_an_asset_as_it_is_and_fills_nothing():
    returns = noise(400)
    gaps = returns.copy()
    gaps[:250, 2] = np.nan  # lists late
    gaps[320:330, 1] = np.nan  # halted
    found = MarketState(4).extend(gaps)
    np.testing.assert_array_equal(found.age, [400, 390, 150, 400])
    alone = MarketState(1).extend(returns[250:, 2:3])
    np.testing.assert_allclose(found.unit[2], alone.unit[0], rtol=1e-12)
    for part in said(found):
        assert np.isfinite(part).all()
    forecast, _ = MarketState(4).extend(gaps[:325]).forecasts()
    assert (forecast[:, :, 1] == 0).all()


def test_running_sums():
    sums, rows = RunningSums(253, 2), np.random.default_rng(0).normal(size=(2000, 2))
    first, last, done = np.array([5, 252]), np.array([2, 21]), 0
    for count in (1, 1, 3, 300, 453, 1, 600):
        sums.add(rows[done : done + count])
        done += count
        found = sums.sum(first, last, count)
        for day in range(count):
            t = done - count + day + 1
            expected = [rows[max(t - a, 0) : max(t - b, 0)].sum(0) for a, b in zip(first, last, strict=True)]
            np.testing.assert_allclose(found[day], expected, atol=1e-10)


def test_effective_rows():
    half_life = np.array([63.0, 1000.0])
    weight = 0.5 ** (np.arange(200)[:, None] / half_life)
    np.testing.assert_allclose(effective_state_rows(200, half_life), weight.sum(0) ** 2 / (weight**2).sum(0))


def market(rows=900, assets=12, seed=0):
    """Common shocks and own ones, with fat tails."""
    rng = np.random.default_rng(seed)
    common = rng.standard_t(5, (rows, 1)) * rng.uniform(0.5, 1.5, assets)
    return 0.008 * (common + rng.standard_t(5, (rows, assets)) * np.linspace(0.5, 2, assets))


def with_bad_price(returns, row, asset, factor):
    """A price that is `factor` times the true one on a single row."""
    bad = returns.copy()
    bad[row, asset] = factor * (1 + bad[row, asset]) - 1
    bad[row + 1, asset] = (1 + bad[row + 1, asset]) / factor - 1
    return bad


@pytest.mark.parametrize("factor", [5.0, 0.2, 100.0, 1.5])
def test_a_bad_price_that_comes_back_leaves_no_trace_and_is_reported(factor):
    returns = market()
    clean, hit = (MarketState(12).extend(r) for r in (returns, with_bad_price(returns, 800, 3, factor)))
    np.testing.assert_allclose(hit.unit, clean.unit, rtol=0.05)
    np.testing.assert_allclose(slopes(hit).slope, slopes(clean).slope, atol=0.05)
    np.testing.assert_allclose(hit.covariance(), clean.covariance(), rtol=0.1, atol=1e-6)
    (found,) = [event for event in hit.unusual if event.kind == "bad price"]
    assert found == (3, "bad price", 1, 802)


def test_a_bad_price_in_the_last_row_waits():
    returns = market()[:801]
    late = with_bad_price(np.vstack([returns, returns[:1]]), 800, 3, 5.0)[:801]
    clean, hit = MarketState(12).extend(returns), MarketState(12).extend(late)
    np.testing.assert_allclose(hit.unit, clean.unit, rtol=0.2)
    np.testing.assert_allclose(np.diag(hit.covariance()), np.diag(clean.covariance()), rtol=0.2)


@pytest.mark.parametrize("assets", [[3], range(12)])
def test_a_jump_in_the_level_of_volatility_is_learned_within_days(assets):
    returns = market()
    returns[800:, list(assets)] *= 10
    before, after = (MarketState(12).extend(returns[:rows]).unit for rows in (800, 810))
    assert (after[list(assets)] > 3 * before[list(assets)]).all()


def test_zeros_before_a_listing_are_soon_forgotten():
    returns = market()
    returns[:700, 3] = 0.0
    found = np.diag(MarketState(12).extend(returns[:720]).covariance())
    assert found[3] > 0.1 * returns[700:720, 3].var()


def test_assets_that_do_not_move_and_bills_have_a_covariance():
    returns = market()
    returns[:, 0] = 0.0
    returns[:, 1] = np.repeat([1e-4, 5e-5, 2e-4], 300)
    state = MarketState(12).extend(returns)
    sigma = state.covariance()
    assert np.isfinite(state.forecasts()[0]).all()
    assert np.diag(sigma)[:2].max() < 1e-6 < np.diag(sigma)[2:].min()
    np.linalg.cholesky(sigma)


def test_the_mixture_of_volatilities_is_faster_where_rows_are_rarer():
    returns = market(400)
    returns[-10:] *= 3
    volatility = [MarketState(12, year).extend(returns).covariance_parts().volatility for year in (252, 52, 12)]
    assert (volatility[0] < volatility[1]).all()
    assert (volatility[1] < volatility[2]).all()


def test_the_covariance_is_stated_from_its_parts_and_is_definite():
    state = MarketState(12).extend(market())
    parts, sigma = state.covariance_parts(), state.covariance()
    np.testing.assert_array_equal(parts.covariance, sigma)
    cleaned = (parts.eigenvectors * parts.eigenvalues) @ parts.eigenvectors.T
    unit = parts.volatility / np.sqrt(np.diag(cleaned))
    base, w = cleaned * unit * unit[:, None], parts.market_weights
    beside, variance = base @ w, w @ base @ w
    np.testing.assert_allclose(w @ sigma @ w, parts.market_level * variance, rtol=1e-10)
    residual = base - np.outer(beside, beside) / variance
    expected = parts.rest_level * residual + parts.market_level * np.outer(beside, beside) / variance
    np.testing.assert_allclose(sigma, expected, rtol=1e-8, atol=1e-12)
    assert np.linalg.eigvalsh(sigma).min() > 0


def test_the_level_of_the_covariance_follows_a_crisis_within_days():
    returns = market(rows=700)
    returns[600:] *= 4
    w = np.full(12, 1 / 12)
    before, after = (w @ MarketState(12).extend(returns[:rows]).covariance() @ w for rows in (600, 612))
    assert after > 4 * before


@pytest.mark.parametrize("assets", [1, 2, 40])
def test_the_covariance_is_definite_with_few_rows_and_copies(assets):
    returns = np.repeat(market(30, 1), assets, axis=1)
    for rows in (0, 5, 12, 30):
        sigma = MarketState(assets).extend(returns[:rows]).covariance()
        assert np.linalg.eigvalsh(sigma).min() > 0
