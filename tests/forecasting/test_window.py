"""Forecasts from a window: the experts alone, their average by record, gaps, the order of the assets."""

import numpy as np
import pytest

from time2decide.forecasting.backbones import BackboneForecaster, load_backbone
from time2decide.forecasting.market_state import FORECAST_WINDOW, HORIZONS, MarketState
from time2decide.forecasting.records import RecordConfig
from time2decide.forecasting.simple import ridge
from time2decide.forecasting.window import KernelExpert, LagExpert, PathExpert, WindowForecasts

SURE = RecordConfig(worth=0.99, deviation=0.25)


def waves(rows, m=4, seed=0):
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.arange(rows)[:, None] / rng.uniform(12, 40, m) + rng.uniform(0, 6, m)
    return 0.01 * np.sin(angle) + 1e-3 * rng.normal(size=(rows, m))


class Told:
    """An expert that is told what it forecasts: a path, the same from every window."""

    def __init__(self, path, horizon=40):
        self.values, self.horizon, self.asked = np.asarray(path, dtype=float), horizon, []

    def path(self, returns):
        self.asked.append(returns.copy())
        steps = np.linspace(1, 2, self.horizon)[:, None]
        return np.broadcast_to(steps * self.values, (len(returns), self.horizon, returns.shape[2]))


def read(returns, experts, delay=0, config=SURE, first=0):
    """State and forecasts after the rows; the experts are asked from row `first` on."""
    state = MarketState(returns.shape[1], delay=delay).extend(returns[:first])
    found = WindowForecasts(experts, returns.shape[1], delay, config)
    for row in returns[first:]:
        state.update(row)
        found.update(state)
    return state, found


@pytest.mark.parametrize(
    "expert", [KernelExpert(), LagExpert(), PathExpert(BackboneForecaster(load_backbone("timepfn:small")))]
)
def test_windows_in_a_batch_are_windows_one_by_one(expert):
    windows = np.stack([waves(FORECAST_WINDOW, seed=k) for k in range(3)])
    spans = [(0, 1), (1, 2), (5, 10)]
    together = expert.means(windows, spans)
    assert together.shape == (3, 3, 4)
    for k, window in enumerate(windows):
        np.testing.assert_allclose(
            together[k], expert.means(window[None], spans)[0], rtol=1e-4, atol=5e-6
        )  # the bank is float32


@pytest.mark.parametrize("expert", [KernelExpert(), LagExpert()])
def test_units_and_order_of_assets_do_not_matter_and_an_asset_that_does_not_move_stays(expert):
    window, order = waves(FORECAST_WINDOW)[None], [2, 0, 3, 1]
    plain = expert.means(window, [(0, 1)])
    moved = expert.means(50 * window[..., order], [(0, 1)])
    np.testing.assert_allclose(moved, 50 * plain[..., order], rtol=1e-4, atol=1e-7)
    window[..., 1] = 0.001
    np.testing.assert_allclose(expert.means(window, [(0, 1)])[0, 0, 1], 0.001, atol=1e-9)


def test_the_experts_forecast_what_comes_and_lags_the_next_row_alone():
    table = waves(FORECAST_WINDOW + 4)
    window, after = table[None, :FORECAST_WINDOW], table[FORECAST_WINDOW:]
    bank = KernelExpert().means(window, [(0, 1), (1, 4)])[0]
    size = np.abs(table).mean()
    assert np.abs(bank[0] - after[0]).mean() < 0.3 * size
    assert np.abs(bank[1] - after[1:].mean(0)).mean() < 0.4 * size
    lags = LagExpert().means(window, [(0, 1), (1, 4)])[0]
    assert np.abs(lags[0] - after[0]).mean() < 0.3 * size
    assert np.isnan(lags[1]).all()
    assert np.isnan(LagExpert().means(window, [(1, 2)])).all()  # with a delay the next row is no use
    assert np.corrcoef(lags[0], ridge(window)[0])[0, 1] > 0.9


def test_a_span_is_the_mean_of_its_steps_and_a_path_that_ends_gives_what_it_has():
    told = PathExpert(Told([1.0, 2.0], horizon=3))
    found = told.means(np.zeros((1, FORECAST_WINDOW, 2)), [(0, 1), (1, 3), (2, 9), (7, 9)])[0, :, 0]
    np.testing.assert_allclose(found, [1.0, 1.75, 2.0, 2.0])


def test_experts_see_the_last_rows_and_nothing_later():
    told, returns = Told(np.arange(4.0)), waves(140)
    read(returns, [PathExpert(told)])
    assert len(told.asked) == 140 - FORECAST_WINDOW + 1  # its record makes it worth asking at every row
    np.testing.assert_allclose(told.asked[-1][0], returns[-FORECAST_WINDOW:])
    np.testing.assert_allclose(told.asked[0][0], returns[:FORECAST_WINDOW])


def test_what_is_not_followed_is_asked_now_and_then():
    """Until its record speaks for it."""
    told = Told(np.arange(4.0))
    _, found = read(waves(140), [PathExpert(told)], config=RecordConfig(worth=1e-6))
    assert not found.followed
    assert len(told.asked) == len([row for row in range(FORECAST_WINDOW, 141) if row % 8 == 0])
    assert (found.forecast == 0).all() == (140 % 8 != 0)


def test_the_forecast_is_relative_to_the_other_assets_and_for_the_rows_after_the_delay():
    for delay in (0, 2):
        _, found = read(waves(120), [PathExpert(Told(np.arange(4.0)))], delay=delay)
        np.testing.assert_allclose(found.forecast.sum(-1), 0.0, atol=1e-12)
        step = np.linspace(1, 2, 40)
        for h, (a, b) in enumerate(HORIZONS):
            expected = step[a + delay : b + delay].mean() * (np.arange(4.0) - 1.5)
            np.testing.assert_allclose(found.forecast[h], expected)


def test_the_record_is_of_outcomes_after_the_forecast():
    """An expert that knows the next row has the slope 1; the same told a row late has not."""
    returns = waves(220, seed=3) + 0.01 * np.random.default_rng(4).normal(size=(220, 4))

    class Ahead:
        def __init__(self, late):
            self.late, self.row = late, FORECAST_WINDOW

        def path(self, window):
            (at,) = [
                t for t in range(FORECAST_WINDOW, 221) if np.array_equal(returns[t - FORECAST_WINDOW : t], window[0])
            ]
            at = min(at, 219) - self.late
            return np.repeat(returns[at][None, None], 40, axis=1)

    slopes = []
    for late in (0, 1):
        _, found = read(returns, [PathExpert(Ahead(late))])
        xx, xy = found.record[:2, 0]
        slopes.append(xy / xx)
    assert slopes[0] == pytest.approx(1.0, abs=0.05)
    assert slopes[1] < 0.6


def test_of_two_experts_each_asset_follows_the_one_that_forecasts_it_better():
    returns = waves(260, m=4, seed=5)
    zero = Told(np.zeros(4))
    _, found = read(returns, [KernelExpert(), PathExpert(zero)])
    _, alone = read(returns, [KernelExpert()])
    np.testing.assert_allclose(found.forecast[0], alone.forecast[0], atol=0.05 * np.abs(alone.forecast[0]).max())
    noise = 0.01 * np.random.default_rng(6).normal(size=(260, 4))
    wild = Told(0.05 * np.array([1.0, -1.0, 1.0, -1.0]))
    _, found = read(noise, [PathExpert(wild), PathExpert(zero)])
    assert np.abs(found.forecast).max() < 0.01


def test_an_asset_with_a_gap_in_its_window_has_no_forecast_and_the_others_keep_theirs():
    returns = waves(150, m=5)
    gaps = returns.copy()
    gaps[120, 2] = np.nan
    _, found = read(gaps, [KernelExpert(), LagExpert()])
    assert (found.forecast[:, 2] == 0).all()
    assert np.isfinite(found.record).all()
    others = [0, 1, 3, 4]
    direct = KernelExpert().means(returns[None, -FORECAST_WINDOW:][..., others], HORIZONS)[0]
    sign = np.sign(direct - direct.mean(-1, keepdims=True))
    assert (np.sign(found.forecast[1:, others]) == sign[1:]).mean() > 0.9
    late = returns.copy()
    late[:100, 2] = np.nan  # listed 50 rows ago
    assert (read(late, [KernelExpert()])[1].forecast[:, 2] == 0).all()
    alone = np.full((150, 3), np.nan)
    alone[:, 0] = returns[:, 0]
    assert (read(alone, [KernelExpert()])[1].forecast == 0).all()  # nothing to compare with


def test_permuting_assets_permutes_the_forecast():
    returns, order = waves(150, m=5), [3, 0, 4, 2, 1]
    plain = read(returns, [KernelExpert(), LagExpert()])[1]
    moved = read(returns[:, order], [KernelExpert(), LagExpert()])[1]
    np.testing.assert_allclose(moved.forecast, plain.forecast[:, order], rtol=1e-4, atol=5e-6)  # the bank is float32
    np.testing.assert_allclose(moved.record, plain.record, rtol=1e-3, atol=1e-8)


def test_reading_on_gives_what_reading_at_once_gives():
    """Rows before the experts are asked are for the state alone; the forecast depends on the window and the record."""
    returns = waves(160)
    state, found = read(returns, [KernelExpert()], first=60)
    again = read(returns, [KernelExpert()], first=60)[1]
    np.testing.assert_array_equal(found.forecast, again.forecast)
    changed = returns.copy()
    changed[150:] += 0.01
    early, other = (read(table[:150], [KernelExpert()])[1] for table in (returns, changed))
    np.testing.assert_array_equal(early.forecast, other.forecast)
    np.testing.assert_array_equal(state.window(), returns[-FORECAST_WINDOW:])
