"""Backbones of other packages: promised shapes, weights that are read back, known names."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from time2decide.backtesting.registry import make_strategy
from time2decide.core.validation import InputError
from time2decide.forecasting.backbones import BackboneForecaster, TimePFNBackbone, load_backbone
from time2decide.forecasting.timepfn import TimePFN, TimePFNForecaster
from time2decide.simulation.engine import rollout


def windows(batch=2, m=3, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(0.01 * rng.standard_normal((batch, 96, m)).cumsum(axis=1)).float()


def check(backbone):
    """What the protocol promises, of any backbone."""
    window = windows()
    with torch.inference_mode():
        found = backbone.encode(window)
        scaled = backbone.encode(5 * window)
    assert found.tokens.shape == (2, 3, backbone.tokens, backbone.width)
    assert found.forecast.shape == (2, backbone.horizon, 3)
    if backbone.levels:
        assert found.quantiles.shape == (2, len(backbone.levels), backbone.horizon, 3)
    torch.testing.assert_close(scaled.forecast, 5 * found.forecast, rtol=2e-2, atol=1e-3)  # in the unit of the window
    np.testing.assert_allclose(
        BackboneForecaster(backbone, batch=1)(window.numpy()), found.forecast[:, 0], atol=1e-6, rtol=1e-4
    )


def test_timepfn_keeps_the_protocol():
    backbone = TimePFNBackbone(TimePFN.from_pretrained()).eval()
    check(backbone)
    direct = TimePFNForecaster(backbone.model)(windows().numpy())
    np.testing.assert_allclose(BackboneForecaster(backbone)(windows().numpy()), direct, atol=1e-7)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["bolt", "2"])
def test_chronos_keeps_the_protocol_and_is_read_back(kind, tmp_path):
    pytest.importorskip("chronos")
    from time2decide.forecasting.chronos import TinyChronos, tiny_chronos

    backbone = tiny_chronos(TinyChronos(kind, width=16, layers=1, heads=2, feedforward=16))
    check(backbone)
    backbone.model.save_pretrained(tmp_path)
    again = load_backbone(f"chronos:{tmp_path}")
    with torch.inference_mode():
        assert torch.equal(again.encode(windows()).forecast, backbone.encode(windows()).forecast)
    strategy = make_strategy(f"pto:chronos:{tmp_path}")
    result = rollout(windows(1, 3).numpy().repeat(2, axis=1)[:, :99], strategy, [1.0])
    np.testing.assert_allclose(result.allocations.sum(-1), 1.0, atol=1e-9)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["bolt", "2"])
def test_channels_of_chronos_2_see_each_other_and_those_of_bolt_do_not(kind):
    pytest.importorskip("chronos")
    from time2decide.forecasting.chronos import TinyChronos, tiny_chronos

    backbone = tiny_chronos(TinyChronos(kind, width=16, layers=1, heads=2, feedforward=16))
    window = windows(1)
    other = window.clone()
    other[..., 2] = window[..., 2].flip(1)
    with torch.inference_mode():
        apart = (backbone.encode(window).tokens[:, 0] - backbone.encode(other).tokens[:, 0]).abs().max()
    assert (apart > 1e-6) == (kind == "2")


@pytest.mark.filterwarnings("default")
def test_a_tiny_chronos_learns():
    pytest.importorskip("chronos")
    from time2decide.forecasting.chronos import TinyChronos, tiny_chronos

    backbone = tiny_chronos(TinyChronos(width=16, layers=1, heads=2, feedforward=16))
    window = windows(8)
    before = backbone.loss(window[:, :80], window[:, 80:])
    before.backward()
    with torch.no_grad():
        for weight in backbone.parameters():
            if weight.grad is not None:
                weight -= 1e-3 * weight.grad
        assert backbone.loss(window[:, :80], window[:, 80:]) < before


def test_timesfm_keeps_the_protocol():
    package = pytest.importorskip("timesfm.timesfm_2p5.timesfm_2p5_torch")
    from time2decide.forecasting.backbones import TimesFMBackbone

    full = package.TimesFM_2p5_200M_torch_module.config
    layer = replace(full.stacked_transformers.transformer, model_dims=16, hidden_dims=16, num_heads=2)
    sizes = {"hidden_dims": 16, "output_dims": 16}
    small = replace(
        full,
        tokenizer=replace(full.tokenizer, **sizes),
        stacked_transformers=replace(full.stacked_transformers, num_layers=2, transformer=layer),
        output_projection_point=replace(full.output_projection_point, input_dims=16, hidden_dims=16),
        output_projection_quantiles=replace(full.output_projection_quantiles, input_dims=16, hidden_dims=16),
    )

    class Small(package.TimesFM_2p5_200M_torch_module):
        config = small

    torch.manual_seed(0)
    check(TimesFMBackbone(Small()).eval())


@pytest.mark.parametrize("name", ["chronos", "chronos:", "gpt:folder", "chronos:no-such-folder", "timesfm:nowhere"])
def test_unknown_backbones_are_named(name):
    with pytest.raises(InputError, match="backbone"):
        load_backbone(name)
