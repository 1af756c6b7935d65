"""Time2Decide as users meet it: feasible answers for any table, and clear words for bad ones."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from time2decide.backtesting.walk_forward import backtest
from time2decide.core.checkpoints import save_tensors
from time2decide.core.validation import InputError
from time2decide.markets import synthetic_returns
from time2decide.markets.constraint_files import read_constraints
from time2decide.markets.synthetic import LMCConfig
from time2decide.policy.model import (
    PRETRAINED,
    NetworkForecast,
    PolicyStrategy,
    Time2Decide,
    load_policy,
)
from time2decide.policy.network import PolicyConfig
from time2decide.simulation.engine import Observation, rollout


@pytest.fixture(scope="module")
def model() -> Time2Decide:
    return Time2Decide.from_pretrained("decide")


def returns(time: int = 120, assets: int = 6, seed: int = 0) -> np.ndarray:
    return 0.01 * np.random.default_rng(seed).standard_normal((time, assets))


def test_bundled_checkpoints_are_small() -> None:
    for folder in PRETRAINED.values():
        assert sum(file.stat().st_size for file in folder.iterdir()) < 5e6


@settings(max_examples=15, deadline=None)
@given(
    assets=st.integers(2, 100),
    time=st.sampled_from([20, 41, 96, 300]),
    gamma=st.floats(0.01, 2.0),
    seed=st.integers(0, 9),
)
def test_every_answer_is_feasible(assets: int, time: int, gamma: float, seed: int) -> None:
    model = Time2Decide.from_pretrained("decide")
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


def test_the_future_cannot_change_a_decision(model: Time2Decide) -> None:
    table = synthetic_returns("noisy", "train", count=1, config=LMCConfig(channels=4, length=110), cache=False)
    changed = table.copy()
    changed[:, 105:] = changed[:, :5]
    for history in ("own", "hindsight"):
        before, after = (rollout(r, model.strategy(history), [0.5, 2.0]).raw for r in (table, changed))
        assert np.array_equal(before[:, :, :105], after[:, :, :105])
        assert not np.array_equal(before[:, :, 107:], after[:, :, 107:])


@pytest.mark.parametrize("name", PRETRAINED)
def test_budgets_and_series_do_not_influence_each_other(name: str) -> None:
    table = np.stack([returns(100, seed=seed) for seed in (0, 1)])
    strategy = Time2Decide.from_pretrained(name).strategy("own")
    together = rollout(table, strategy, [0.2, 1.5]).allocations
    for i, gamma in ((0, 1.5), (1, 0.2)):
        alone = rollout(table[i], strategy, gamma).allocations[0, 0]
        assert np.allclose(together[i, int(gamma > 1)], alone, atol=1e-5)


def test_the_network_is_shown_the_latest_weights_first_and_the_budget(model: Time2Decide) -> None:
    held = np.random.default_rng(0).dirichlet(np.ones(6), (1, 2, 96))
    past = Observation(returns(96)[None], held, None, np.array([0.3, 1.7]), 0.4)
    shown = model.strategy("own").inputs(past)
    for k in range(2):
        assert np.allclose(shown.allocations[k].numpy(), held[0, k, :-4:-1].T)
    assert shown.turnover_l1.tolist() == pytest.approx([0.3, 1.7])
    assert shown.risk_aversion.tolist() == pytest.approx([0.4, 0.4])
    assert shown.hindsight.tolist() == [0.0, 0.0]


def test_it_beats_uniform_and_holding_what_was_best_on_the_papers_market(model: Time2Decide) -> None:
    table = synthetic_returns("clean", "train", count=3, config=LMCConfig(channels=8, length=130), cache=False)
    summary = backtest(table, ["uniform", "lag1-oracle", model.strategy(name="ours")], 1.0).summary.set_index(
        "strategy"
    )
    assert summary.loc["ours", "mse"] < 0.8 * summary.loc["lag1-oracle", "mse"]
    assert summary.loc["ours", "mse"] < 0.5 * summary.loc["uniform", "mse"]


def test_the_network_forecasts_better_than_persistence(model: Time2Decide) -> None:
    table = synthetic_returns("noisy", "train", count=4, config=LMCConfig(channels=6, length=200), cache=False)
    windows = np.concatenate([table[:, t - 96 : t] for t in range(96, 200, 8)])
    actual = np.concatenate([table[:, t] for t in range(96, 200, 8)])
    forecast = NetworkForecast(model.policy)(windows)
    assert np.square(forecast - actual).mean() < 0.8 * np.square(windows[:, -1] - actual).mean()


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


def test_unknown_checkpoints_and_histories_are_refused(tmp_path: object) -> None:
    with pytest.raises(InputError, match="checkpoint: expected a name or a folder, found NoneType"):
        Time2Decide.from_pretrained(None)
    with pytest.raises(InputError, match="checkpoint: expected market, decide"):
        Time2Decide.from_pretrained("nowhere")
    with pytest.raises(InputError, match="history: expected one of"):
        PolicyStrategy(load_policy("decide")[0], "guess")


def altered(change: dict[str, object]) -> dict[str, object]:
    return {"architecture": "Policy", "config": asdict(PolicyConfig()), "notes": {}} | change


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("{", "path: expected JSON in the header"),
        ("[]", "path: expected a JSON object in the header of .* found list"),
        ("null", "path: expected a JSON object in the header of .* found NoneType"),
        (
            json.dumps({"architecture": "Policy"}),
            "config: expected an object with the fields of PolicyConfig, found None",
        ),
        (json.dumps(altered({"config": 1.5})), "config: expected an object with the fields of PolicyConfig, found 1.5"),
        (json.dumps(altered({"config": [1]})), "config: expected an object with the fields of PolicyConfig"),
        (json.dumps(altered({"config": {"width": "8"}})), "config: expected width of type int, found '8'"),
        (json.dumps(altered({"config": {"depth": 8}})), "config: expected keys among .* found 'depth'"),
        (json.dumps(altered({"config": {"width": -1}})), "checkpoint: expected weights that fit"),
        (json.dumps(altered({"config": {"width": 8}})), "checkpoint: expected weights that fit"),
        (json.dumps(altered({"notes": [1]})), "checkpoint: expected notes that are an object, found list"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, header: str, words: str) -> None:
    weights = load_policy("decide")[0].state_dict()
    save_file(weights, tmp_path / "model.safetensors", metadata={"time2decide": header})
    with pytest.raises(InputError, match=words):
        load_policy(tmp_path)


@pytest.mark.parametrize("damage", [lambda weight: weight * float("nan"), lambda weight: weight.int()])
def test_weights_that_are_no_finite_reals_are_refused(tmp_path: Path, damage: Callable[[Tensor], Tensor]) -> None:
    policy = load_policy("decide")[0]
    policy.save_pretrained(tmp_path)
    load_policy(tmp_path)
    first, *_ = weights = policy.state_dict()
    save_tensors(tmp_path / "model.safetensors", weights | {first: damage(weights[first])}, altered({}))
    with pytest.raises(InputError, match="checkpoint: expected weights that are finite real numbers"):
        load_policy(tmp_path)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(InputError, match="checkpoint: expected market, decide"):
        load_policy("x" * 5000)


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
