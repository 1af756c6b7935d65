"""Backbones of other packages: promised shapes, weights that are read back, known names."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.forecasting.tiny_chronos import tiny_chronos
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
        found, scaled = backbone.forecast(window), backbone.forecast(5 * window)
    assert found.shape == (2, backbone.horizon, 3)
    torch.testing.assert_close(scaled, 5 * found, rtol=2e-2, atol=1e-3)  # in the unit of the window
    one_by_one = BackboneForecaster(backbone, batch=1)
    np.testing.assert_allclose(one_by_one(window.numpy()), found[:, 0], atol=1e-6, rtol=1e-4)
    np.testing.assert_allclose(one_by_one.path(window.numpy()), found, atol=1e-6, rtol=1e-4)


def test_timepfn_keeps_the_protocol():
    backbone = TimePFNBackbone(TimePFN.from_pretrained()).eval()
    check(backbone)
    direct = TimePFNForecaster(backbone.model)(windows().numpy())
    np.testing.assert_allclose(BackboneForecaster(backbone)(windows().numpy()), direct, atol=1e-7)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["bolt", "2"])
def test_chronos_keeps_the_protocol_and_is_read_back(kind, tmp_path):
    pytest.importorskip("chronos")
    backbone = tiny_chronos(kind)
    check(backbone)
    backbone.model.save_pretrained(tmp_path)
    again = load_backbone(f"chronos:{tmp_path}")
    with torch.inference_mode():
        assert torch.equal(again.forecast(windows()), backbone.forecast(windows()))
    strategy = make_strategy(f"pto:chronos:{tmp_path}")
    result = rollout(windows(1, 3).numpy().repeat(2, axis=1)[:, :99], strategy, [1.0])
    np.testing.assert_allclose(result.allocations.sum(-1), 1.0, atol=1e-9)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["bolt", "2"])
def test_channels_of_chronos_2_see_each_other_and_those_of_bolt_do_not(kind):
    pytest.importorskip("chronos")
    backbone = tiny_chronos(kind)
    window = windows(1)
    other = window.clone()
    other[..., 2] = window[..., 2].flip(1)
    with torch.inference_mode():
        apart = (backbone.forecast(window)[..., 0] - backbone.forecast(other)[..., 0]).abs().max()
    assert (apart > 1e-7) == (kind == "2")


def test_the_kernel_bank_keeps_the_protocol_and_what_stands_still_stays():
    check(load_backbone("kernel-bank:"))
    window = windows()
    window[:, :, 1] = 0.001
    np.testing.assert_allclose(load_backbone("kernel-bank:").forecast(window)[:, 0, 1], 0.001, atol=1e-8)


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
