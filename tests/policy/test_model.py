"""Time2Decide as users meet it: feasible answers for any table, and clear words for bad ones."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from time2decide.backtesting.walk_forward import backtest
from time2decide.core.validation import InputError
from time2decide.markets import synthetic_returns
from time2decide.markets.constraint_files import read_constraints
from time2decide.markets.policy_config import NAMED
from time2decide.markets.synthetic import LMCConfig
from time2decide.policy.model import REPLACED, Time2Decide
from time2decide.simulation.engine import rollout


@pytest.fixture(scope="module")
def model() -> Time2Decide:
    return Time2Decide.from_pretrained()


def returns(time: int = 120, assets: int = 6, seed: int = 0) -> np.ndarray:
    return 0.01 * np.random.default_rng(seed).standard_normal((time, assets))


@settings(max_examples=15, deadline=None)
@given(
    assets=st.integers(2, 100),
    time=st.sampled_from([20, 41, 96, 300]),
    gamma=st.floats(0.01, 2.0),
    seed=st.integers(0, 9),
)
def test_every_answer_is_feasible(assets: int, time: int, gamma: float, seed: int) -> None:
    model = Time2Decide.from_pretrained()
    rng = np.random.default_rng(seed)
    previous = rng.dirichlet(np.ones(assets))
    weights = np.asarray(model.decide(returns(time, assets, seed), previous, gamma))
    assert weights.min() >= 0
    assert abs(weights.sum() - 1) <= 1e-9
    assert np.abs(weights - previous).sum() <= gamma + 1e-9


def test_permuting_assets_permutes_the_answer(model: Time2Decide) -> None:
    table, order = returns(200, 9), np.random.default_rng(1).permutation(9)
    plain, moved = np.asarray(model.decide(table)), np.asarray(model.decide(table[:, order]))
    assert np.allclose(moved, plain[order], atol=1e-5)


def test_the_answer_comes_in_the_kind_of_the_question(model: Time2Decide) -> None:
    table = pd.DataFrame(returns(), columns=list("abcdef"), index=pd.bdate_range("2024-01-01", periods=120))
    series = model.decide(table, pd.Series(1 / 6, index=list("fedcba")), 0.5)
    assert isinstance(series, pd.Series)
    assert list(series.index) == list("abcdef")
    assert isinstance(model.decide(torch.from_numpy(returns())), torch.Tensor)
    assert np.allclose(series, model.decide(returns(), np.full(6, 1 / 6), 0.5))


@pytest.mark.parametrize("name", NAMED)
def test_the_future_cannot_change_a_decision(name) -> None:
    table = synthetic_returns("noisy", "train", count=1, config=LMCConfig(channels=4, length=106), cache=False)
    changed = table.copy()
    changed[:, 102:] *= -20
    strategies = [Time2Decide.from_pretrained(name).strategy() for _ in range(2)]
    before, after = (rollout(r, one, [0.5, 2.0]).raw for one, r in zip(strategies, (table, changed), strict=True))
    assert np.array_equal(before[:, :, :102], after[:, :, :102])
    assert not np.array_equal(before[:, :, 103:], after[:, :, 103:])


@pytest.mark.parametrize("name", NAMED)
def test_budgets_and_series_do_not_influence_each_other(name) -> None:
    table = np.stack([returns(100, seed=seed) for seed in (0, 1)])
    model = Time2Decide.from_pretrained(name)
    together = rollout(table, model.strategy(), [0.2, 1.5]).allocations
    for i, gamma in ((0, 1.5), (1, 0.2)):
        alone = rollout(table[i], model.strategy(), gamma).allocations[0, 0]
        assert np.allclose(together[i, int(gamma > 1)], alone, atol=1e-5)


def test_the_papers_setting_earns_more_than_holding_what_was_best() -> None:
    table = synthetic_returns("clean", "train", count=2, config=LMCConfig(channels=8, length=120), cache=False)
    ours = Time2Decide.from_pretrained("time2decide").strategy()
    summary = backtest(table, ["uniform", "lag1-oracle", ours], 1.0, delay=0).summary.set_index("strategy")
    assert summary.loc["time2decide", "regret"] < summary.loc["lag1-oracle", "regret"]
    assert summary.loc["time2decide", "regret"] < 0.5 * summary.loc["uniform", "regret"]


@pytest.mark.parametrize("name", REPLACED)
def test_names_of_networks_that_are_gone_answer_with_what_took_their_place(name) -> None:
    with pytest.warns(DeprecationWarning, match=f"{name} is gone; {REPLACED[name]} took its place"):
        assert Time2Decide.from_pretrained(name).name == REPLACED[name]


def test_a_configuration_comes_back_from_its_folder_and_damage_is_named(tmp_path) -> None:
    model = Time2Decide.from_pretrained("time2decide-nocov")
    path = model.save_pretrained(tmp_path / "mine")
    assert Time2Decide.from_pretrained(tmp_path / "mine").policy.config == model.policy.config
    for damaged in ("{", "[]", "null", '{"record": 1}', path.read_text().replace("pooled", "polled")):
        path.write_text(damaged)
        with pytest.raises(InputError, match=r"policy\.json: expected the configuration of a policy"):
            Time2Decide.from_pretrained(tmp_path / "mine")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((returns(19),), "at least 20 rows"),
        ((returns(50, 1),), "2 assets"),
        ((np.full((50, 3), np.nan),), "returns"),
        ((np.zeros((50, 3)),), "an asset that moves"),
        ((returns() - 2,), "at least -1"),
        ((returns()[0],), "shape"),
        ((returns(), np.full(5, 0.2)), "6 finite numbers"),
        ((returns(), np.full(6, 0.2)), "sum 1"),
        ((returns(), np.array([2.0, -1, 0, 0, 0, 0])), "non-negative"),
        ((returns(), ["a"] * 6), "previous_weights: expected an array of numbers"),
        ((returns(), {"a": 1.0}), "previous_weights: expected an array of numbers"),
        ((returns(), [[1.0], [1.0, 2.0]]), "previous_weights: expected an array of numbers"),
        ((returns(), np.full(6, 1j)), "previous_weights: expected real numbers"),
        ((returns(), [np.nan, 1, 0, 0, 0, 0]), "not finite"),
        ((returns(), None, 0.0), "turnover_l1"),
        ((returns(), None, 2.1), r"\(0, 2\]"),
        ((returns(), None, float("nan")), "turnover_l1"),
    ],
)
def test_bad_questions_are_answered_by_name(model: Time2Decide, arguments: tuple, words: str) -> None:
    with pytest.raises(InputError, match=words):
        model.decide(*arguments)


@pytest.mark.parametrize("name", ["nowhere", "x" * 5000, "."])
def test_what_is_no_policy_is_refused(name) -> None:
    with pytest.raises(InputError, match="model: expected one of market, time2decide, time2decide-nocov"):
        Time2Decide.from_pretrained(name)


@pytest.mark.parametrize(
    "given", [[True, False], np.array([True, False]), torch.tensor([True, False]), (0.5, np.True_)]
)
@pytest.mark.parametrize("name", ["previous_weights", "benchmark"])
def test_weights_that_are_true_or_false_are_refused(given, name):
    with pytest.raises(InputError, match=f"{name}: expected real numbers, found (dtype|true or false)"):
        Time2Decide.from_pretrained().decide(returns(assets=2), **{name: given})


@pytest.mark.parametrize("gaps", ["refuse", "keep"])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"A": [0.1] * 20}, "a DataFrame or array, found dict"),
        (None, "a DataFrame or array, found None"),
        ("sp500", "a DataFrame or array, found 'sp500'"),
        (torch.empty(120, 4, device="meta"), "a tensor with numbers, found one on the device meta"),
        ([[True, False]] * 30, "real numbers, found true or false"),
    ],
)
def test_what_is_no_table_is_named(given, text, gaps):
    with pytest.raises(InputError, match=f"^returns: expected {text}"):
        Time2Decide.from_pretrained().decide(given, gaps=gaps)


def test_constraints_may_be_a_file(tmp_path):
    path, model = tmp_path / "limits.toml", Time2Decide.from_pretrained()
    table = pd.DataFrame(returns(assets=3), columns=list("ABC"))
    path.write_text("[weights]\nupper = 0.4\n[assets.B]\nupper = 0.3\n")
    rules = read_constraints(path, list("ABC"))
    for file in (path, str(path)):
        pd.testing.assert_series_equal(model.decide(table, constraints=file), model.decide(table, constraints=rules))
        found = backtest(table, ["uniform"], window=96, constraints=file).weights("uniform", 1.0)
        assert (found["B"].iloc[1:] <= 0.3 + 1e-9).all()  # from its first trade on
    path.write_text('[assets."asset 1"]\nupper = 0.3\n')
    assert model.decide(returns(assets=3), constraints=path)[1] <= 0.3 + 1e-9
    with pytest.raises(InputError, match=r"limits\.toml: .*found 'asset 1'"):
        model.decide(table, constraints=path)
    for wrong in (tmp_path / "none.toml", 7):
        with pytest.raises(InputError, match=r"expected a (file, found none|Constraints object or the path of a file)"):
            model.decide(table, constraints=wrong)
