"""Changing universes: late listings, halts, delistings; what is held, earned, sold, and that nothing leaks."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

from time2decide.backtesting.registry import make_strategy
from time2decide.backtesting.walk_forward import backtest
from time2decide.core.validation import InputError
from time2decide.markets import Constraints
from time2decide.markets.tables import load_returns
from time2decide.markets.universe import DELISTING_RETURN, gap_summary, universe_of, with_untradable_weights
from time2decide.policy.model import Time2Decide
from time2decide.simulation.engine import rollout
from time2decide.simulation.execution import drifted_weights
from time2decide.simulation.metrics import net_returns, rollout_traded

WINDOW = 40


@pytest.fixture
def whole():
    return np.random.default_rng(0).normal(0.0005, 0.02, (120, 5))


@pytest.fixture
def gaps(whole):
    """1 lists late, 2 is delisted after row 79, 3 is halted on rows 60 to 62, 4 misses row 90."""
    array = whole.copy()
    array[:30, 1], array[80:, 2], array[60:63, 3], array[90, 4] = np.nan, np.nan, np.nan, np.nan
    return array


@dataclass
class Watcher:
    """Keeps what it sees; wants everything in the last asset that it is given."""

    name: str = "watcher"
    wants_hindsight: bool = False
    seen: list = field(default_factory=list)

    def decide(self, past):
        self.seen.append(past)
        return np.eye(past.returns.shape[-1])[-1]


class Tilts(Watcher):
    """Wants 0.4 in the last asset that it is given, as much as the others have in all."""

    def decide(self, past):
        even = np.full(past.returns.shape[-1], 0.4 / (past.returns.shape[-1] - 1))
        return super().decide(past) * (0.4 - even) + even


def test_members_and_earnings(gaps, whole):
    universe = universe_of(gaps, WINDOW)
    inside = universe.members
    assert not inside[:WINDOW].any()
    assert inside[WINDOW:, 0].all()
    assert inside[:, 1].argmax() == 30 + WINDOW  # 40 rows after its first
    assert np.flatnonzero(inside[:, 2])[-1] == 100  # a return in the last 21 rows; then it is out
    assert inside[WINDOW:, 3].all()
    assert (~universe.tradable[61:64, 3]).all()
    assert universe.tradable[64, 3]
    assert universe.tradable[60, 3]
    np.testing.assert_array_equal(np.delete(universe.returns, 100, 0)[np.delete(np.isnan(gaps), 100, 0)], 0)
    np.testing.assert_array_equal(universe.returns[~np.isnan(gaps)], gaps[~np.isnan(gaps)])
    lost = universe_of(gaps, WINDOW, delisting_return=-1.0).returns
    assert np.flatnonzero(np.nan_to_num(lost - universe.returns).any(axis=1)).tolist() == [100]  # 21 rows later
    assert (lost[100, 2], universe.returns[100, 2]) == (-1, DELISTING_RETURN)
    assert not universe.locked.any()
    cuts = [(s.start, s.stop, s.assets.tolist()) for s in universe.segments()]
    assert cuts == [(40, 70, [0, 2, 3, 4]), (70, 101, [0, 1, 2, 3, 4]), (101, 120, [0, 1, 3, 4])]


def test_strategies_see_complete_windows_of_the_assets_of_the_moment(gaps):
    watcher = Watcher()
    rollout(universe_of(gaps, WINDOW), watcher, 0.5)
    for past in watcher.seen:
        t = past.step
        expected = np.nan_to_num(gaps[t - WINDOW : t, past.assets])
        np.testing.assert_array_equal(past.returns[0], expected)
        assert (past.assets == 1).any() == (t >= 70)
        assert (past.assets == 2).any() == (t <= 100)
        np.testing.assert_array_equal(past.frozen, np.isnan(gaps[t - 1, past.assets]))
        np.testing.assert_allclose(past.previous.sum(-1), 1)
        np.testing.assert_allclose(past.allocations.sum(-1), 1)


@pytest.mark.parametrize("budget_from", ["previous", "drifted"])
def test_weights_are_feasible_and_frozen_ones_do_not_change(gaps, budget_from):
    universe = universe_of(gaps, WINDOW)
    held = rollout(universe, Watcher(), [0.01, 2.0], budget_from=budget_from).allocations[0]
    np.testing.assert_allclose(held.sum(-1), 1)
    assert held.min() >= 0
    assert (held[:, :70, 1] == 0).all()  # not enough history
    assert (held[:, 101:, 2] == 0).all()  # sold
    assert held[0, 100, 2] > 0
    before = held[:, 60:63]
    if budget_from == "drifted":
        grown = before * (1 + universe.returns[60:63])
        before = grown / grown.sum(-1, keepdims=True)
    np.testing.assert_allclose(held[:, 61:64, 3], before[..., 3])  # halted
    turnover = np.abs(held[0, 41:] - held[0, 40:-1]).sum(-1)
    if budget_from == "previous":
        assert np.delete(turnover, 101 - 41).max() <= 0.01 + 1e-9


def test_a_delisted_weight_goes_to_the_others_in_proportion_and_costs(gaps):
    @dataclass
    class Holds:
        name: str = "holds"
        wants_hindsight: bool = False

        def decide(self, past):
            return past.previous

    universe = universe_of(gaps, WINDOW)
    result = rollout(universe, Holds(), 0.01, budget_from="drifted")
    held, returns = result.allocations[0, 0], universe.returns
    grown = held[100] * (1 + returns[100])
    grown /= grown.sum()
    grown[2] = 0
    np.testing.assert_allclose(held[101], grown / grown.sum())
    amount = rollout_traded(result, returns[None])[0, 0]
    np.testing.assert_allclose(np.flatnonzero(amount > 1e-12), [101 - WINDOW])
    sold = held[100, 2] * (1 + returns[100, 2]) / (1 + held[100] @ returns[100])
    assert amount[101 - WINDOW] == pytest.approx(2 * sold)
    net, _ = net_returns(result, returns[None], 100)
    assert net[0, 0, 0] == pytest.approx(held[WINDOW] @ returns[WINDOW])


def test_whether_an_asset_comes_back_changes_nothing_before_it_would_be_out(gaps):
    back = gaps.copy()
    back[110:, 2] = 0.01
    held, other = (rollout(universe_of(one, WINDOW), Watcher(), 0.5).allocations[0] for one in (gaps, back))
    np.testing.assert_array_equal(held[:, :101], other[:, :101])


@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize("rules", [None, Constraints(upper=0.5, cash=(0.0, 0.2))])
def test_a_halted_asset_is_sold_when_it_is_traded_again_and_not_before(delay, rules):
    array = np.random.default_rng(1).normal(0.0005, 0.02, (200, 4))
    array[80:140, 3] = np.nan  # 60 rows
    watcher, universe = Tilts(), universe_of(array, WINDOW)
    result = rollout(universe, watcher, 0.3, budget_from="drifted", delay=delay, constraints=rules)
    held = result.allocations[0, 0]
    moved = drifted_weights(held[80:141], universe.returns[80:141], rules)
    assert held[80, 3] > 0.3
    np.testing.assert_allclose(held[81:141, 3], moved[:60, 3], atol=1e-12)
    assert held[141, 3] == 0  # it has a price again at the close of row 140
    np.testing.assert_array_equal(universe.locked[:, 3].nonzero()[0], np.arange(101, 141))
    assert [past.assets.tolist() for past in watcher.seen if past.step in (100, 101, 170)] == [
        [0, 1, 2, 3],
        *[[0, 1, 2]] * 2,
    ]
    assert all(past.previous.sum() <= 1 + 1e-9 for past in watcher.seen)
    if rules is None:
        np.testing.assert_allclose(held.sum(1), 1)
        assert all(past.previous.sum() == pytest.approx(1) for past in watcher.seen)
    amount = rollout_traded(result, universe.returns[None])[0, 0]
    assert np.delete(amount, 141 - WINDOW).max() <= 0.3 + 1e-9


def test_a_holding_is_paid_out_at_the_delisting_return(gaps):
    whole, none, all_of_it = (
        backtest(table_of(gaps), ["uniform"], 1.0, window=WINDOW, gaps="keep", cost_bps=0.0, **given)
        for given in ({}, {"delisting_return": 0.0}, {"delisting_return": -1.0})
    )
    held = none.weights("uniform", 1.0)["C"].iloc[100 - WINDOW]
    net = [one.frame["net"].iloc[100 - WINDOW] for one in (whole, none, all_of_it)]
    assert net[0] == pytest.approx(net[1] - 0.3 * held)
    assert net[2] == pytest.approx(net[1] - held)
    with pytest.raises(InputError, match="delisting_return"):
        backtest(table_of(gaps), ["uniform"], window=WINDOW, gaps="keep", delisting_return=2.0)


def test_a_universe_without_gaps_is_the_plain_market(whole):
    for name in ("uniform", "pto-ridge", "minimum-variance-qis", "lag1-oracle"):
        plain = rollout(whole, make_strategy(name), [0.1, 1.0], window=WINDOW, budget_from="drifted")
        there = rollout(universe_of(whole, WINDOW), make_strategy(name), [0.1, 1.0], budget_from="drifted")
        np.testing.assert_allclose(there.allocations, plain.allocations, atol=1e-12)


def test_the_future_changes_nothing(gaps):
    """Other returns from row 75 on, before which nothing is known of them: weights up to step 75 are the same."""
    other = gaps.copy()
    other[75:] *= -2
    for name in ("uniform", "minimum-variance-qis", "pto-ridge", "time2decide"):
        paths = [
            rollout(universe_of(array, WINDOW), make_strategy(name), 0.2, budget_from="drifted").allocations
            for array in (gaps, other)
        ]
        np.testing.assert_array_equal(paths[0][:, :, :76], paths[1][:, :, :76])


def test_an_asset_that_is_mostly_missing_does_not_enter(whole):
    array = whole.copy()
    array[5:15, 0] = np.nan
    inside = universe_of(array, WINDOW).members
    assert inside[:, 0].argmax() == 15 + WINDOW - 2  # 95 % of the 40 rows before
    array[100:110, 0] = np.nan
    assert universe_of(array, WINDOW).members[110:, 0].all()  # a later halt does not expel it


def test_bad_universes(whole):
    with pytest.raises(InputError, match="some return, found none"):
        universe_of(np.full_like(whole, np.nan), WINDOW)
    with pytest.raises(InputError, match="2 assets with 40 rows"):
        universe_of(np.where(np.arange(120)[:, None] < [0, 50, 50, 50, 50], np.nan, whole), WINDOW)
    with pytest.raises(InputError, match="at least -1"):
        universe_of(whole - 2, WINDOW)
    with pytest.raises(InputError, match="delisting_return"):
        universe_of(whole, WINDOW, delisting_return=-3)
    with pytest.raises(InputError, match="more than 200 steps"):
        universe_of(whole, 200)


def table_of(array):
    return pd.DataFrame(array, index=pd.bdate_range("2024-01-01", periods=len(array)), columns=list("ABCDE"))


def test_backtest_refuses_gaps_unless_told(gaps):
    with pytest.raises(InputError, match="expected a number"):
        backtest(table_of(gaps), ["uniform"], 1.0, window=WINDOW)
    with pytest.raises(InputError, match="DataFrame"):
        backtest(gaps, ["uniform"], 1.0, window=WINDOW, gaps="keep")
    result = backtest(table_of(gaps), ["uniform", "minimum-variance-qis", "oracle"], 0.5, window=WINDOW, gaps="keep")
    weights = result.weights("uniform", 0.5)
    assert weights["B"].iloc[30] == 0  # decided at row 30 + WINDOW, held a row later
    assert weights["B"].iloc[31] > 0
    assert (weights["C"].iloc[61:] == 0).all()
    assert np.isfinite(result.summary.drop(columns="strategy").to_numpy(dtype=float)).all()
    regret = result.summary.set_index("strategy")["regret"]
    assert regret["oracle"] == pytest.approx(0, abs=1e-12)
    assert regret["uniform"] > 0


def test_prices_with_gaps(tmp_path):
    """The return over a gap falls on the day the price is back."""
    file = tmp_path / "prices.csv"
    file.write_text("date,A,B\n2024-01-01,100,\n2024-01-02,110,\n2024-01-03,,50\n2024-01-04,121,55\n2024-01-05,120,\n")
    with pytest.raises(InputError, match="empty cell"):
        load_returns(file, "prices")
    table = load_returns(file, "prices", gaps="keep")
    np.testing.assert_allclose(table["A"], [0.1, np.nan, 0.1, 120 / 121 - 1])
    np.testing.assert_allclose(table["B"], [np.nan, np.nan, 0.1, np.nan])
    file.write_text("date,A,B\n2024-01-01,100,\n2024-01-02,110,text\n2024-01-03,90,50\n")
    with pytest.raises(InputError, match="'text'"):
        load_returns(file, "prices", gaps="keep")
    with pytest.raises(InputError, match="gaps"):
        load_returns(file, gaps="fill")


def test_a_packed_file_is_read_and_a_damaged_one_refused(tmp_path):
    import gzip

    text = "date,A,B\n2024-01-01,100,\n2024-01-02,110,50\n2024-01-03,90,55\n"
    plain, packed = tmp_path / "prices.csv", tmp_path / "prices.csv.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    expected = load_returns(plain, "prices", gaps="keep")
    pd.testing.assert_frame_equal(load_returns(packed, "prices", gaps="keep"), expected)
    packed.write_bytes(packed.read_bytes()[:30])
    with pytest.raises(InputError, match=r"prices\.csv\.gz"):
        load_returns(packed, "prices", gaps="keep")


def test_gaps_are_counted_in_one_line():
    array = np.random.default_rng(0).normal(0, 0.01, (200, 7))
    assert gap_summary(array) == "Gaps: none, every asset has a return on every row."
    array[:50, 0], array[:170, 1], array[-1, 2], array[-25:, 3], array[90:95, 4] = (np.nan,) * 5
    assert gap_summary(array) == (
        "Gaps: 5 of 7 assets miss returns: 2 listed late (1 too young to be bought), 1 halted, "
        "1 delisted, 1 with returns missing in between."
    )
    array[:, 5] = np.nan  # never a return
    assert "6 of 7 assets" in gap_summary(array)
    assert "2 delisted, 1 with" in gap_summary(array)


def test_an_asset_without_any_return_is_never_held_and_changes_nothing(whole):
    table = pd.DataFrame(whole, columns=list("ABCDE"))
    gone = table.assign(C=np.nan)
    made = backtest(gone, ["uniform", "minimum-variance-qis"], 0.5, window=WINDOW, gaps="keep")
    without = backtest(table.drop(columns="C"), ["uniform", "minimum-variance-qis"], 0.5, window=WINDOW)
    assert not made.weights("uniform", 0.5)["C"].any()
    columns = ["net", "traded"]
    np.testing.assert_allclose(made.frame[columns], without.frame[columns], atol=1e-12)
    with pytest.raises(InputError, match="expected a number"):
        backtest(gone, ["uniform"], 0.5, window=WINDOW)


def test_current_weights_may_leave_out_what_cannot_be_traded_and_nothing_else(whole):
    returns = whole.copy()
    returns[-30:, 1] = np.nan  # delisted
    returns[-1, 2] = np.nan  # halted
    names = list("ABCDE")
    held = pd.Series({"E": 0.5, "A": 0.3, "D": 0.2})
    assert with_untradable_weights(held, names, returns).to_dict() == {**held.to_dict(), "B": 0.0, "C": 0.0}
    assert with_untradable_weights(held.drop("A"), names, returns).index.tolist() == ["E", "D", "B", "C"]  # A is live
    model = Time2Decide.from_pretrained()
    table = pd.DataFrame(returns, columns=names)
    stated = model.decide(table, held.reindex(names, fill_value=0.0), 0.3, gaps="keep")
    pd.testing.assert_series_equal(model.decide(table, held, 0.3, gaps="keep"), stated)
    with pytest.raises(InputError, match=r"one weight for each asset, found without \['A'\]"):
        model.decide(table, held.drop("A"), 0.3, gaps="keep")
    with pytest.raises(InputError, match=r"unknown \['Z'\]"):
        model.decide(table, pd.Series({**held, "Z": 0.1}), 0.3, gaps="keep")
