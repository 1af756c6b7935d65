"""The paper's literal models: shapes, tokens, read-outs, training, strategies; one step of the paper preset."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from time2decide.backtesting.baselines import backbone_pto
from time2decide.core.validation import InputError
from time2decide.forecasting import TimePFN, TimePFNConfig
from time2decide.forecasting.timepfn import normalise_channels, patch_positions
from time2decide.policy.paper_model import PaperModel, PaperModelStrategy, pretrained_paper_model
from time2decide.policy.paper_training import (
    PAPER_MODEL_PRESETS,
    RETURN_WEIGHTS,
    fine_tune_forecaster,
    paper_decision_loss,
    paper_training_windows,
    train_paper_model,
    train_paper_model_to,
)
from time2decide.simulation.engine import Observation, rollout

TINY = TimePFNConfig(patch_hidden=16, embed=16, layers=1, heads=2, feedforward=16, head_hidden=16, dropout=0.0)
SMOKE = PAPER_MODEL_PRESETS["smoke"]


@pytest.fixture(scope="module")
def backbone():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TimePFN(TINY).eval()


def windows(batch=2, m=16, seed=0):
    rng = np.random.default_rng(seed)
    returns = 0.01 * rng.standard_normal((batch, 96, m)).cumsum(axis=1)
    held = rng.dirichlet(np.full(m, 0.5), size=(batch, 96))
    return torch.from_numpy(returns).float(), torch.from_numpy(held).float()


def test_without_covariance_and_training_it_is_the_backbone(backbone):
    returns, held = windows()
    model = PaperModel.from_backbone(backbone, covariance=False, returns_scale=100.0)
    forecast, decision = model(returns, held)
    both = backbone(torch.cat([100 * returns, held], dim=-1))
    torch.testing.assert_close(forecast, both[..., :16] / 100)
    torch.testing.assert_close(decision, both[..., 16:])


def test_covariance_tokens_are_read_and_removed(backbone):
    returns, held = windows()
    model = PaperModel.from_backbone(backbone, covariance=True)
    assert model(returns, held)[0].shape == model(returns, held)[1].shape == (2, 96, 16)
    normal = normalise_channels(returns, 1e-4)[0]
    tokens = model.covariance_tokens(normal)
    assert tokens.shape == (2, 16, 16)
    expected = torch.stack([torch.cov(one.T) for one in normal])
    seen = []
    handle = model.covariance[0].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model.covariance_tokens(normal)
    handle.remove()
    torch.testing.assert_close(seen[0], expected, rtol=1e-4, atol=1e-5)
    without = PaperModel.from_backbone(backbone, covariance=False)
    assert not torch.allclose(model(returns, held)[1], without(returns, held)[1])


def test_covariance_tokens_act_through_the_encoder_alone(backbone, monkeypatch):
    """Where no token sees another, the read-outs are those of the model without covariance tokens."""
    returns, held = windows()
    monkeypatch.setattr(TimePFN, "encode", lambda self, tokens: tokens)
    with_tokens, without = (PaperModel.from_backbone(backbone, covariance=c)(returns, held) for c in (True, False))
    for one, other in zip(with_tokens, without, strict=True):
        torch.testing.assert_close(one, other)


def test_equal_rows_of_the_covariance_are_told_apart_by_their_position(backbone):
    normal = normalise_channels(windows()[0][..., :1].expand(-1, -1, 16), 1e-4)[0]
    tokens = PaperModel.from_backbone(backbone).covariance_tokens(normal)
    grid = patch_positions(torch.arange(16), torch.tensor([TINY.patches]), TINY.embed)[:, 0]  # after the last patch
    torch.testing.assert_close(tokens - tokens[:, :1], (grid - grid[:1]).expand_as(tokens), rtol=0, atol=1e-5)
    assert torch.cdist(grid, grid).fill_diagonal_(1.0).min() > 0


def test_the_loss_is_the_papers(backbone):
    returns, held = windows(batch=3)
    model = PaperModel.from_backbone(backbone)
    r, s = torch.cat([returns, returns], dim=1), torch.cat([held, held], dim=1)
    forecast, decision = model(returns, held)
    expected = 500 * ((forecast - returns) ** 2).mean() + ((decision - held) ** 2).mean()
    recipe = replace(SMOKE, return_weight=500.0, first_step=0.0)
    torch.testing.assert_close(paper_decision_loss(model, r, s, recipe), expected)


def test_windows_are_the_series_they_say(backbone):
    found = paper_training_windows(SMOKE, "train", backbone)
    assert found.per_series == 256 - 192 + 1
    assert found.count == 2 * found.per_series
    returns, held = found[np.array([0, found.per_series + 3])]
    assert torch.equal(returns[1], found.returns[1, 3:195])
    assert torch.equal(held[0, :96], torch.full((96, 16), 1 / 16))  # nothing is held before the first decision
    assert held[0, 96:].max() > 1 / 16


def test_training_is_deterministic_resumable_and_leaves_the_backbone(backbone, tmp_path):
    before = {name: weight.clone() for name, weight in backbone.state_dict().items()}
    model, progress = train_paper_model(SMOKE, backbone)

    def stop(done, total, loss):
        if done == 1:
            raise KeyboardInterrupt

    state = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_paper_model(SMOKE, backbone, state=state, report=stop)
    again, _ = train_paper_model(SMOKE, backbone, state=state)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert progress.step == 4
    assert len(progress.history) == 2
    assert all(torch.equal(before[name], weight) for name, weight in backbone.state_dict().items())
    assert not torch.equal(model.backbone.norm.weight, backbone.norm.weight)
    train_paper_model_to(SMOKE, backbone, tmp_path / "model")
    loaded = PaperModel.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded(*windows())[1], model(*windows())[1])


def test_what_stops_the_training_is_the_error_of_decisions(backbone):
    """While the weights stand still the figure does not depend on λ_r, and it is the loss of the held-out windows."""
    still = replace(SMOKE, lr=1e-30, epochs=1, first_step=0.0, validation_windows=10_000)
    figures = []
    for weight in (0.0, 1e5):
        model, progress = train_paper_model(replace(still, return_weight=weight), backbone)
        figures.append(progress.history[0]["validation"])
    held_out = paper_training_windows(still, "validation", backbone)
    returns, allocations = held_out[np.arange(held_out.count)]
    decisions = model(returns[:, :96], allocations[:, :96])[1]
    expected = (decisions - allocations[:, 96:]).square().mean().item()
    assert figures == pytest.approx([expected, expected], rel=1e-4)


def test_fine_tuning_changes_a_copy_of_the_forecaster(backbone):
    tuned, progress = fine_tune_forecaster(SMOKE, backbone)
    assert progress.step == 4
    assert not torch.equal(tuned.head[0].weight, backbone.head[0].weight)


def test_strategies_roll_out(backbone):
    returns = 0.01 * np.random.default_rng(0).standard_normal((2, 100, 16))
    model = PaperModel.from_backbone(backbone, returns_scale=100.0)
    one = rollout(returns, PaperModelStrategy((model,)), [0.5, 2.0])
    two = rollout(returns, PaperModelStrategy((model, model)), [0.5, 2.0])
    np.testing.assert_allclose(one.raw, two.raw, atol=1e-5)
    assert np.abs(one.allocations[:, :, 96:] - 1 / 16).max() > 0
    for strategy in (pretrained_paper_model(backbone, 100.0), backbone_pto(backbone, 100.0, shrinkage=(1.0, 0.5))):
        result = rollout(returns, strategy, [0.5, 2.0])
        assert np.isfinite(result.raw).all()
        np.testing.assert_allclose(result.allocations.sum(-1), 1.0, atol=1e-9)


def test_a_decision_depends_on_the_past_it_is_shown(backbone):
    rng = np.random.default_rng(1)
    returns, held = 0.01 * rng.standard_normal((1, 96, 16)), rng.dirichlet(np.ones(16), size=(1, 1, 96))
    strategy = PaperModelStrategy((PaperModel.from_backbone(backbone),))
    first = strategy.decide(Observation(returns, held, None, np.array([1.0]), 0.1))
    other = strategy.decide(Observation(returns, held[:, :, ::-1].copy(), None, np.array([1.0]), 0.1))
    assert first.shape == (1, 1, 16)
    assert np.abs(first - other).max() > 1e-6


def test_the_paper_preset_takes_a_real_step():
    """The full 7.6 M backbone with covariance tokens over 2 × 16 channels, on two windows of one series."""
    paper = PAPER_MODEL_PRESETS["paper"]
    assert (paper.batch, paper.patience, paper.epochs, paper.lr) == (32, 5, 50, 1e-4)
    assert len(RETURN_WEIGHTS) == 16
    small = replace(paper, series=1, validation=1, validation_windows=1, epochs=1, windows=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = TimePFN()
    model, progress = train_paper_model(small, backbone)
    assert progress.step == 1
    assert np.isfinite(progress.history[0]["validation"])
    assert not torch.equal(model.allocation_head[2].weight, backbone.head[2].weight)
    assert not torch.equal(model.backbone.filters.convolutions[0].weight, backbone.filters.convolutions[0].weight)


def test_a_history_can_begin_with_the_oracles(backbone):
    """Up to step 2·window it is shown the oracle's allocations, from there on its own."""
    seen = []

    class Spy(PaperModelStrategy):
        def _started(self, past):
            shown = super()._started(past)
            seen.append((past.step, past, shown.allocations))
            return shown

    rng = np.random.default_rng(0)
    returns = 0.01 * rng.standard_normal((1, 196, 16))
    oracle = rng.dirichlet(np.ones(16), size=(1, 1, 196))
    model = PaperModel.from_backbone(backbone, returns_scale=100.0)
    rollout(returns, Spy((model,), start="oracle"), [1.0], oracle=oracle)
    for step, past, shown in seen:
        expected = oracle[:, :, step - 96 : step].copy()
        late = np.arange(step - 96, step) >= 192
        expected[:, :, late] = past.allocations[:, :, late]
        np.testing.assert_array_equal(shown, expected)
    assert not PaperModelStrategy((model,)).wants_hindsight
    with pytest.raises(InputError, match="start"):
        PaperModelStrategy((model,), start="elsewhere")


def test_bad_input_is_named(backbone):
    returns, held = windows(m=8)
    with pytest.raises(InputError, match="returns, allocations"):
        PaperModel.from_backbone(backbone)(returns, held)
    with pytest.raises(InputError, match="turnover_l1"):
        replace(SMOKE, turnover_l1=0.6)
    model = PaperModel.from_backbone(backbone)
    with pytest.raises(InputError, match="models"):
        rollout(np.zeros((1, 97, 16)), PaperModelStrategy((model, model)), [0.5, 1.0, 2.0])
