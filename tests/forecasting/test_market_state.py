"""The state of a market: sums against their definitions, no look ahead, gaps, and what its records find."""

from copy import deepcopy
from dataclasses import fields

import numpy as np
import pytest

from tests.forecasting.market_state_reference import RowByRow
from time2decide.forecasting.market_state import (
    CORRELATION_HALF_LIVES,
    EXPERTS,
    READS,
    VOLATILITY_HALF_LIVES,
    MarketState,
    effective_state_rows,
)
from time2decide.forecasting.recent_rows import RunningSums


def noise(rows, assets=4, seed=0):
    return np.random.default_rng(seed).normal(0, 0.01, (rows, assets)) * np.linspace(0.5, 2, assets)


def reversal(rows=1500, assets=10, size=-0.15, seed=1):
    shocks = noise(rows, assets, seed)
    returns = shocks.copy()
    returns[1:] += size * shocks[:-1]
    return returns


def test_volatilities_are_exponentially_weighted():
    returns = noise(300)
    found = MarketState(4).extend(returns).tokens().volatility
    for k, half_life in enumerate(VOLATILITY_HALF_LIVES):
        weight = 0.5 ** (np.arange(300)[::-1] / half_life)
        expected = np.sqrt((weight[:, None] * returns**2).sum(0) / weight.sum())
        np.testing.assert_allclose(found[k], expected, rtol=1e-10)


def test_correlations_are_those_of_standardised_returns():
    rng = np.random.default_rng(2)
    common = rng.normal(size=(3000, 1))
    returns = 0.01 * (0.6 * common + 0.8 * rng.normal(size=(3000, 5)))
    found = MarketState(5).extend(returns).tokens().correlation
    assert found.shape == (len(CORRELATION_HALF_LIVES), 5, 5)
    np.testing.assert_allclose(found[:, range(5), range(5)], 1.0)
    np.testing.assert_allclose(found[-1][~np.eye(5, dtype=bool)], 0.36, atol=0.06)
    assert np.linalg.eigvalsh(found).min() > 0


@pytest.mark.parametrize("rows", [19, 40, 62, 63, 64, 300])
def test_reading_at_once_and_day_by_day_agree_to_the_last_bit(rows):
    returns = noise(rows)
    once, daily = MarketState(4).extend(returns), MarketState(4)
    for row in returns:
        daily.update(row)
        daily.tokens()  # asking changes nothing
    for name in ("volatility", "correlation", "forecast", "slope", "t_value", "worth", "pace", "score"):
        np.testing.assert_array_equal(getattr(once.tokens(), name), getattr(daily.tokens(), name))


def gappy(rows, assets, seed=4):
    returns = noise(rows, assets, seed)
    returns[np.random.default_rng(seed).uniform(size=returns.shape) < 0.02] = np.nan
    returns[: rows // 3, 1] = np.nan  # lists late
    returns[rows // 2 : rows // 2 + 30] = np.nan  # no trade anywhere
    return returns


def same_tokens(one, other, **tolerance):
    for name in (field.name for field in fields(one)):
        found, expected = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        scale = np.abs(expected).max(initial=0.0)
        np.testing.assert_allclose(found, expected, atol=tolerance["rtol"] * scale, err_msg=name, **tolerance)


CASES = {
    "reversal": lambda: reversal(600),
    "gaps": lambda: gappy(500, 6),
    "many": lambda: noise(150, 210),
    "one": lambda: noise(150, 1),
    "young": lambda: noise(8, 3),
    "bank": lambda: sinusoids(160),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_plain_form_row_by_row(case):
    returns = CASES[case]()
    m, delay = returns.shape[1], {"gaps": 1, "bank": 2}.get(case, 0)
    found = MarketState(m, delay=delay).extend(returns).tokens()
    same_tokens(found, RowByRow(m, delay).extend(returns).tokens(), rtol=1e-9)


def test_forecasts_are_judged_on_what_a_trade_after_the_delay_earns():
    """A reversal of one day is gone a row later; a trend of a month is not."""
    quick = [MarketState(10, delay=delay).extend(reversal()).tokens().t_value[0] for delay in (0, 1)]
    assert quick[0] > 6
    assert abs(quick[1]) < 3
    slow = np.convolve(np.random.default_rng(5).normal(size=1520), np.ones(21) / 21, "valid")[:, None] * np.linspace(
        -1, 1, 10
    )
    lasting = MarketState(10, delay=1).extend(noise(1500, 10) + 0.02 * slow).tokens()
    assert lasting.t_value[:4].max() > 6


@pytest.mark.parametrize("case", ["gaps", "many", "bank"])
def test_parts_of_any_length_give_the_same_bits(case):
    returns = CASES[case]()
    m, at = returns.shape[1], np.array([1, 2, 20, 47, 100, 131])
    parts = MarketState(m)
    for part in np.split(returns, at[at < len(returns)]):
        parts = deepcopy(parts).extend(part)
    same_tokens(parts.tokens(), MarketState(m).extend(returns).tokens(), rtol=0.0)
    columns = np.asfortranarray(returns)  # as in a DataFrame
    same_tokens(parts.tokens(), MarketState(m).extend(columns).tokens(), rtol=0.0)
    np.testing.assert_array_equal(parts.covariance(), MarketState(m).extend(columns).covariance())


def test_copies_of_one_asset_are_no_singular_matrix():
    tokens = MarketState(2).extend(np.repeat(noise(200, 1), 2, axis=1)).tokens()
    assert np.isfinite(tokens.forecast).all()
    assert np.abs(tokens.forecast).max() < 1e-6


def test_permuting_assets_permutes_the_tokens():
    returns, order = reversal(400), np.random.default_rng(0).permutation(10)
    plain, moved = MarketState(10).extend(returns).tokens(), MarketState(10).extend(returns[:, order]).tokens()
    np.testing.assert_allclose(moved.forecast, plain.forecast[:, order], rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(moved.correlation, plain.correlation[:, order][:, :, order], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(moved.t_value, plain.t_value, rtol=1e-4)


def test_the_unit_of_returns_does_not_matter():
    returns = reversal(400)
    small, large = MarketState(10).extend(returns).tokens(), MarketState(10).extend(100 * returns).tokens()
    np.testing.assert_allclose(large.forecast, 100 * small.forecast, rtol=1e-6, atol=1e-12)  # the bank is float32
    np.testing.assert_allclose(large.t_value, small.t_value, rtol=1e-4)
    np.testing.assert_allclose(large.worth, 100 * small.worth, rtol=1e-4, atol=1e-12)


def sinusoids(rows, assets=6):
    rng = np.random.default_rng(3)
    angle = 2 * np.pi * np.arange(rows)[:, None] / rng.uniform(8, 60, assets) + rng.uniform(0, 6, assets)
    return 0.01 * np.sin(angle) + 0.003 * rng.normal(size=(rows, assets))


def test_the_kernel_bank_is_asked_where_far_more_can_be_predicted_than_in_markets_of_stocks():
    noisy = MarketState(6).extend(noise(400, 6)).tokens()
    assert not noisy.forecast[-1].any()
    assert noisy.worth[-1] == 0
    waves = sinusoids(220)
    before = MarketState(6).extend(waves[:95]).tokens()
    assert not before.forecast[-1].any()
    found = MarketState(6).extend(waves).tokens()
    assert READS[-1] == "kernel bank"
    assert np.argmax(found.worth * found.pace) == len(EXPERTS) - 1
    relative = waves[1:] - waves[1:].mean(1, keepdims=True)
    state, said = MarketState(6).extend(waves[:150]), []
    for row in waves[150:]:
        said.append(state.tokens().forecast[-1])
        state.update(row)
    assert np.corrcoef(np.ravel(said), relative[149:].ravel())[0, 1] > 0.8


def test_scores_tell_moving_risks_from_constant_ones():
    calm = MarketState(8).extend(noise(1000, 8)).tokens().score
    assert calm[-1] < calm[2]
    moving = np.exp(0.02 * np.random.default_rng(5).normal(size=(1000, 8)).cumsum(0))
    score = MarketState(8).extend(noise(1000, 8) * moving).tokens().score
    assert score[-1] > score[2] + 0.02


def test_the_kernel_bank_is_not_asked_because_of_common_factors():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        returns = 0.01 * rng.normal(size=(300, 3)) @ rng.normal(size=(3, 60)) + 0.01 * rng.normal(size=(300, 60))
        assert not MarketState(60).extend(returns).tokens().forecast[-1].any()


def test_a_reversal_is_found_and_noise_is_not():
    found = MarketState(10).extend(reversal()).tokens()
    assert found.t_value[0] > 6
    assert 0.5 < found.slope[0] < 1.5
    assert found.worth[0] > 4 * found.worth_error[0]
    values = np.array([MarketState(6).extend(noise(900, 6, seed)).tokens().t_value for seed in range(12)])
    assert np.abs(values).mean() < 1.6
    assert (values > 3.5).mean() < 0.05


def test_effects_between_assets_are_found_by_the_regression_on_all():
    shocks = noise(1500, 4, 3)
    returns = shocks.copy()
    for t in range(1, 1500):
        returns[t, 1] += 0.4 * returns[t - 1, 0]
    found = MarketState(4).extend(returns).tokens()
    everything = READS.index("all assets")
    assert found.t_value[everything] > 3.5
    assert found.t_value[everything] > found.t_value[0] + 3


def test_worth_is_gain_per_unit_traded():
    """With a persistent signal traded rarely the worth is that of holding; gross of costs."""
    drift = np.array([0.001, -0.001, 0.001, -0.001])
    found = MarketState(4).extend(noise(1500) + drift).tokens()
    assert found.worth[EXPERTS.index(21)] > 20e-4
    assert (found.worth_error > 0).all()


def test_forecasts_do_not_know_the_future():
    returns = reversal(500)
    changed = returns.copy()
    changed[300:] = 0.05
    early = MarketState(10).extend(returns[:300]).tokens()
    again = MarketState(10).extend(changed[:300]).tokens()
    np.testing.assert_array_equal(early.forecast, again.forecast)


def test_a_gap_leaves_an_asset_as_it_is_and_fills_nothing():
    returns = noise(400)
    gaps = returns.copy()
    gaps[:250, 2] = np.nan  # lists late
    gaps[320:330, 1] = np.nan  # halted
    found = MarketState(4).extend(gaps).tokens()
    np.testing.assert_array_equal(found.age, [400, 390, 150, 400])
    alone = MarketState(1).extend(returns[250:, 2:3]).tokens()
    np.testing.assert_allclose(found.volatility[:, 2], alone.volatility[:, 0], rtol=1e-12)
    assert np.isfinite(found.correlation).all()
    assert np.isfinite(found.forecast).all()
    halted = MarketState(4).extend(gaps[:325]).tokens()
    assert (halted.forecast[:, 1] == 0).all()


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
    one, other = clean.tokens(), hit.tokens()
    np.testing.assert_allclose(other.volatility, one.volatility, rtol=0.05)
    np.testing.assert_allclose(other.correlation, one.correlation, atol=0.03)
    np.testing.assert_allclose(other.score, one.score, atol=0.01)
    np.testing.assert_allclose(other.worth, one.worth, atol=2e-4)
    np.testing.assert_allclose(hit.covariance(), clean.covariance(), rtol=0.1, atol=1e-6)
    (found,) = [event for event in hit.unusual if event.kind == "bad price"]
    assert found == (3, "bad price", 1, 802)


def test_a_bad_price_in_the_last_row_waits():
    returns = market()[:801]
    late = with_bad_price(np.vstack([returns, returns[:1]]), 800, 3, 5.0)[:801]
    clean, hit = MarketState(12).extend(returns), MarketState(12).extend(late)
    np.testing.assert_allclose(hit.tokens().volatility, clean.tokens().volatility, rtol=0.2)
    np.testing.assert_allclose(np.diag(hit.covariance()), np.diag(clean.covariance()), rtol=0.2)


@pytest.mark.parametrize("assets", [[3], range(12)])
def test_a_jump_in_the_level_of_volatility_is_learned_within_days(assets):
    returns = market()
    returns[800:, list(assets)] *= 10
    before, after = (MarketState(12).extend(returns[:rows]).tokens().volatility[0] for rows in (800, 810))
    assert (after[list(assets)] > 4 * before[list(assets)]).all()


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
    sigma, tokens = state.covariance(), state.tokens()
    assert np.isfinite(tokens.forecast).all()
    assert np.diag(sigma)[:2].max() < 1e-6 < np.diag(sigma)[2:].min()
    np.linalg.cholesky(sigma)


def test_the_kernel_bank_forecasts_beside_assets_that_do_not_move():
    returns = np.hstack([sinusoids(220), np.zeros((220, 1)), np.full((220, 1), 1e-4)])
    forecast = MarketState(8).extend(returns).tokens().forecast
    assert forecast[READS.index("kernel bank")].any()
    assert np.isfinite(forecast).all()


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
