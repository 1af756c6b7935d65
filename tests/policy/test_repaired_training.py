"""The repaired model: every switch does something, histories are what they say, training resumes to the bit."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from time2decide.backtesting.registry import PAPER_MODELS, make_strategy
from time2decide.core.checkpoints import load_checkpoint
from time2decide.core.validation import InputError
from time2decide.forecasting import TimePFN, TimePFNConfig
from time2decide.markets.oracle import BUDGETS, WINDOW
from time2decide.policy.paper_model import REPAIRED, PaperModel, PaperModelStrategy
from time2decide.policy.readout import ReadoutConfig
from time2decide.policy.repaired_training import (
    REPAIRED_PRESETS,
    TEMPERATURES,
    OwnHistories,
    RepairedExamples,
    best_skip_temperature,
    corrupt_histories,
    draw_repaired_batch,
    prepare_repaired,
    repaired_loss,
    train_repaired,
)
from time2decide.simulation.engine import rollout

TINY = TimePFNConfig(patch_hidden=16, embed=16, layers=1, heads=2, feedforward=16, head_hidden=16, dropout=0.0)
SMOKE = REPAIRED_PRESETS["smoke"]


@pytest.fixture(scope="module")
def backbone():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TimePFN(TINY).eval()


@pytest.fixture(scope="module")
def data():
    return RepairedExamples.of(SMOKE, "train")


def repaired(backbone, **switches):
    model = PaperModel.from_backbone(backbone, **(REPAIRED | switches))
    if model.config.readout:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            torch.nn.init.normal_(model.allocation_head.answer.weight)  # as if it had been trained
    return model


def inputs(batch=2, m=16, seed=0):
    rng = np.random.default_rng(seed)
    returns = 0.01 * rng.standard_normal((batch, WINDOW, m)).cumsum(axis=1) * np.linspace(0.2, 3, m)
    held = rng.dirichlet(np.full(m, 0.5), size=(batch, WINDOW))
    numbers = (returns, held, np.full(batch, 1.0), np.full(batch, 0.1))
    return [torch.from_numpy(one).float() for one in numbers]


@pytest.mark.parametrize(
    "switch",
    [
        {"covariance": False},
        {"moments": False},
        {"conditioned": False},
        {"normalisation": "joint"},
        {"allocation_scale": None},
        {"returns_scale": 1.0},
        {"readout": None},
        {"readout": ReadoutConfig(skip=False)},
        {"readout": ReadoutConfig(temperature=2.0)},
    ],
    ids=str,
)
def test_every_switch_changes_the_decision(backbone, switch):
    seen = inputs()
    with torch.inference_mode():
        one, other = (repaired(backbone, **s)(*seen)[1][:, 0] for s in ({}, switch))
    assert (one - other).abs().max() > 1e-4


@pytest.mark.parametrize("number", range(4))
def test_a_decision_depends_on_returns_history_budget_and_risk(backbone, number):
    model, seen = repaired(backbone), inputs()
    other = list(seen)
    other[number] = seen[number].flip(0) if number < 2 else 1.5 * seen[number]
    with torch.inference_mode():
        assert (model(*other)[1] - model(*seen)[1]).abs().max() > 1e-4


def test_joint_normalisation_keeps_the_sizes_of_the_assets(backbone):
    returns, held, *_ = inputs()
    window = torch.cat([100 * returns, held], dim=-1)
    normal, mean, scale = repaired(backbone, normalisation="joint").normalise(window, 16)
    torch.testing.assert_close(normal * scale + mean, window, atol=1e-4, rtol=1e-4)
    sizes = normal[..., :16].std(dim=1) / window[..., :16].std(dim=1)
    torch.testing.assert_close(sizes, sizes[:, :1].expand_as(sizes))  # one scale for all return channels
    assert normal[..., :16].mean(dim=(1, 2)).abs().max() < 1e-3
    apart = repaired(backbone).normalise(window, 16)[0][..., :16].std(dim=1, correction=0)
    torch.testing.assert_close(apart, torch.ones_like(apart), atol=1e-2, rtol=0)


def test_tokens_in_front_are_removed(backbone, monkeypatch):
    """Where no token sees another, γ, λ and the covariance do not reach the forecast."""
    monkeypatch.setattr(TimePFN, "encode", lambda self, tokens: tokens)
    seen = inputs()
    one, other = (repaired(backbone, covariance=c, conditioned=c)(*seen)[0] for c in (True, False))
    torch.testing.assert_close(one, other)


def test_budgets_and_risk_are_needed(backbone):
    with pytest.raises(InputError, match="gamma, risk"):
        repaired(backbone)(*inputs()[:2])


def test_corrupted_histories_are_allocations_and_not_the_oracles(data):
    path = data.paths(torch.tensor([0, 1, 1]), torch.tensor([0, 3, 6]), torch.tensor([200, 200, 150]), WINDOW, 0)
    found = corrupt_histories(path, np.random.default_rng(0))
    torch.testing.assert_close(found.sum(-1), torch.ones(3, WINDOW))
    assert (found >= 0).all()
    assert ((found - path).abs().amax(dim=(1, 2)) > 1e-2).sum() >= 2


def test_own_histories_are_feasible_and_the_models_own(backbone, data):
    config = replace(SMOKE, episodes=4, episode_steps=5)
    model = repaired(backbone)
    histories = OwnHistories(config, 16)
    histories.refresh(model, data, config.refresh_every)
    series, budget, first = histories.place.unbind(1)
    gamma = torch.tensor(BUDGETS)[budget]
    turnover = histories.own[:, WINDOW - 1 :].diff(dim=1).abs().sum(-1)
    assert (turnover <= gamma[:, None] + 1e-5).all()
    torch.testing.assert_close(histories.own.sum(-1), torch.ones(4, WINDOW + 5), atol=1e-5, rtol=0)
    before = histories.own[:, 2 : 2 + WINDOW]
    with torch.inference_mode():
        raw = model(data.windows(series, first + 2, WINDOW, 0), before, gamma, data.risk[series])[1][:, 0]
    free = (raw - histories.own[:, WINDOW + 1]).abs().sum(-1) <= gamma  # there the projection changes nothing
    assert free.any()
    torch.testing.assert_close(histories.own[free, WINDOW + 2], raw[free], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("shares", "expected"), [((0.0, 0.0), "oracle"), ((1.0, 0.0), "corrupted"), ((0.0, 1.0), "own")]
)
def test_histories_come_from_where_the_recipe_says(backbone, data, shares, expected):
    config = replace(SMOKE, corrupted=shares[0], own=shares[1], batch=6)
    histories = OwnHistories(config, 16)
    histories.refresh(repaired(backbone), data, 2)
    batch = draw_repaired_batch(config, data, histories, config.refresh_every, 96)
    oracle = torch.stack(
        [
            (data.oracle[:, BUDGETS.index(round(float(g), 2))].unfold(1, 96, 1).mT - shown)
            .abs()
            .amax(dim=(-1, -2))
            .min()
            for shown, g in zip(batch.history, batch.gamma, strict=True)
        ]
    )
    pool = histories.own.unfold(1, 96, 1).mT.flatten(0, 1)
    own = torch.stack([(pool - shown).abs().amax(dim=(1, 2)).min() for shown in batch.history])
    assert (oracle.max() < 1e-6) == (expected == "oracle")
    assert (own.max() < 1e-6) == (expected == "own")


def test_the_loss_is_the_papers(backbone, data):
    model = repaired(backbone)
    batch = draw_repaired_batch(SMOKE, data, OwnHistories(SMOKE, 16), 0, 96)
    forecast, decision = model(batch.returns[:, :96], batch.history, batch.gamma, batch.risk)
    plain = replace(SMOKE, return_weight=500.0, first_step=0.0, budget_power=0.0)
    expected = 500 * (forecast - batch.returns[:, 96:]).square().mean()
    expected = expected + (decision[:, 0] - batch.target[:, 0]).square().mean()
    torch.testing.assert_close(repaired_loss(model, batch, plain), expected)


def test_every_series_is_there_once_for_each_risk_aversion():
    both = RepairedExamples.of(replace(SMOKE, risks=(0.1, 100.0)), "train")
    assert both.risk.tolist() == pytest.approx([0.1, 0.1, 100.0, 100.0])
    assert torch.equal(both.returns[:2], both.returns[2:])
    held = (both.oracle[:, -1, WINDOW:] > 1e-6).float().sum(-1).mean(dim=1)
    assert (held[2:] > 1.2 * held[:2]).all()  # who minds risk holds more assets


def test_the_temperature_is_chosen_by_its_error(backbone, data):
    chosen = best_skip_temperature(repaired(backbone), data, every=64)
    assert chosen in TEMPERATURES
    flat = RepairedExamples(data.returns, torch.full_like(data.oracle, 1 / 16), data.risk)
    assert best_skip_temperature(repaired(backbone), flat, every=64) == max(TEMPERATURES)


def test_training_resumes_to_the_bit_and_one_model_serves_all_budgets(backbone, tmp_path):
    def stop(done, total, loss):
        if done == 3:
            raise KeyboardInterrupt

    whole = train_repaired(SMOKE, backbone, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_repaired(SMOKE, backbone, tmp_path / "parts", report=stop)
    parts = train_repaired(SMOKE, backbone, tmp_path / "parts")
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, parts.state_dict()[name]), name
    assert not torch.equal(whole.backbone.norm.weight, backbone.norm.weight)
    loaded = PaperModel.from_pretrained(tmp_path / "whole")
    returns = 0.01 * np.random.default_rng(0).standard_normal((2, 99, 16)).cumsum(axis=1)
    result = rollout(returns, PaperModelStrategy((loaded,)), list(BUDGETS))
    by_folder = rollout(returns, make_strategy(str(tmp_path / "whole")), list(BUDGETS))
    np.testing.assert_array_equal(by_folder.raw, result.raw)
    assert np.abs(np.diff(result.raw[:, :, 96:], axis=1)).max() > 1e-3  # budgets get different answers
    np.testing.assert_allclose(result.raw.sum(-1), 1.0, atol=1e-5)


def test_bundled_models_are_strategies_and_name_their_training():
    returns = 0.01 * np.random.default_rng(0).standard_normal((1, 97, 16)).cumsum(axis=1)
    for name, place in PAPER_MODELS.items():
        result = rollout(returns, make_strategy(name), [1.0])
        np.testing.assert_allclose(result.raw.sum(-1), 1.0, atol=1e-5)
        _, notes = load_checkpoint(place, {"PaperModel": PaperModel}, PaperModel.BUNDLED)
        assert notes["recipe"]["model"]["covariance"] == (place == "repaired")
        assert notes["steps"] == notes["recipe"]["steps"]


def test_the_bundled_models_are_what_the_command_trains():
    recipe = REPAIRED_PRESETS["cpu"]
    for place in PAPER_MODELS.values():
        model, notes = load_checkpoint(place, {"PaperModel": PaperModel}, PaperModel.BUNDLED)
        readout = replace(recipe.model.readout, temperature=model.config.readout.temperature)  # chosen in training
        changes = {"covariance": place == "repaired", "readout": readout, "backbone": model.config.backbone}
        expected = replace(recipe, model=replace(recipe.model, **changes), start=notes["recipe"]["start"])
        assert model.config == expected.model
        made = {name: value for name, value in asdict(expected).items() if name != "model"}
        found = {name: notes["recipe"][name] for name in made}
        assert {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()} == made


def test_a_run_of_another_backbone_is_refused(backbone, tmp_path):
    train_repaired(replace(SMOKE, steps=1), backbone, tmp_path)
    torch.manual_seed(5)
    with pytest.raises(InputError, match="same config"):
        prepare_repaired(replace(SMOKE, steps=1), TimePFN(TINY), tmp_path).resume()


@pytest.mark.parametrize(
    "wrong",
    [
        {"own": 0.9, "corrupted": 0.2},
        {"markets": ("quiet",)},
        {"markets": ()},
        {"risks": (-1.0,)},
        {"lr": 0.0},
        {"own": 1.5},
    ],
)
def test_bad_recipes_are_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        replace(SMOKE, **wrong)
