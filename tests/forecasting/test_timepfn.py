"""The backbone: sizes, causality, pooling against a naive reference, checkpoints, the forecaster."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from time2decide.core.validation import InputError
from time2decide.forecasting import TimePFN, TimePFNConfig, TimePFNForecaster
from time2decide.forecasting.timepfn import CausalFilters, normalise_channels, patch_positions, signed_magnitude_pool

TINY = TimePFNConfig(patch_hidden=16, embed=16, layers=2, heads=2, feedforward=16, head_hidden=16, dropout=0.0)


def tiny(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TimePFN(TINY).eval()


def test_the_paper_configuration_has_its_size():
    config = TimePFNConfig()
    assert (config.features, config.patches) == (10, 11)
    assert sum(weight.numel() for weight in TimePFN(config).parameters()) == 7_627_712


@pytest.mark.parametrize("channels", [1, 5, 32])
def test_any_number_of_channels(channels):
    window = torch.randn(3, 96, channels, generator=torch.Generator().manual_seed(0))
    model = tiny()
    assert model(window).shape == (3, 96, channels)
    assert model.tokens(window).shape == (3, channels, 11, 16)


@given(
    values=st.lists(st.floats(-3, 3, allow_nan=False, width=32), min_size=1, max_size=20),
    width=st.integers(1, 7),
)
def test_signed_magnitude_pooling_equals_a_loop(values, width):
    padded = [0.0] * (width - 1) + values
    naive = []
    for t in range(len(values)):
        part = padded[t : t + width]
        largest = max(abs(v) for v in part)
        naive.append(largest if largest in part else -largest)
    found = signed_magnitude_pool(torch.tensor(values, dtype=torch.float64).view(1, 1, -1), width)
    assert found.flatten().tolist() == pytest.approx(naive, abs=0)


def test_filters_look_back_only():
    filters = CausalFilters(TINY)
    generator = torch.Generator().manual_seed(1)
    series = torch.randn(2, 1, 96, generator=generator)
    changed = series.clone()
    changed[..., 50:] += torch.randn(2, 1, 46, generator=generator)
    before, after = filters(series), filters(changed)
    assert before.shape == (2, 10, 96)
    torch.testing.assert_close(before[..., :50], after[..., :50], rtol=0, atol=0)
    assert not torch.equal(before[..., 50:], after[..., 50:])


def test_a_convolution_with_replicate_padding_equals_a_loop():
    filters = CausalFilters(TINY)
    series = torch.randn(1, 1, 96, generator=torch.Generator().manual_seed(2))
    convolution, width = filters.convolutions[0], 5
    padded = torch.cat([series[..., :1].expand(1, 1, width - 1), series], dim=-1)[0, 0]
    rows = [(convolution.weight[:, 0] * padded[t : t + width]).sum(1) + convolution.bias for t in range(96)]
    expected = signed_magnitude_pool(torch.stack(rows, dim=1)[None], 3)
    torch.testing.assert_close(filters(series)[:, 1:4], expected)


def test_forecasts_follow_the_units_of_the_window():
    model = TimePFN(TimePFNConfig(**{**TINY.__dict__, "eps": 1e-12})).eval()
    window = torch.randn(2, 96, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    model = model.double()
    shifted = model(100 * window + 7)
    torch.testing.assert_close(shifted, 100 * model(window) + 7)


def test_normalisation_and_positions():
    window = torch.randn(2, 96, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    normal, mean, scale = normalise_channels(window, 1e-4)
    torch.testing.assert_close(scale**2, window.var(1, keepdim=True, correction=0) + 1e-4)
    torch.testing.assert_close(normal * scale + mean, window)
    grid = patch_positions(torch.arange(32), torch.arange(12), 16)
    assert grid.shape == (32, 12, 16)
    assert len(torch.unique(grid.flatten(0, 1), dim=0)) == 32 * 12
    torch.testing.assert_close(grid[3, :, :8], grid[3, :1, :8].expand(12, 8))  # first half: the channel alone


def test_channel_positions_are_the_only_order_of_channels():
    model = tiny().double()
    window = torch.randn(2, 96, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(model(window[..., order], order), model(window)[..., order])


def test_a_checkpoint_comes_back(tmp_path):
    model = tiny(6)
    model.save_pretrained(tmp_path, {"why": "test"})
    again = TimePFN.from_pretrained(tmp_path)
    window = torch.randn(2, 96, 3, generator=torch.Generator().manual_seed(6))
    assert torch.equal(model(window), again(window))
    assert again.config == TINY


def test_bad_checkpoints_and_windows_are_named(tmp_path):
    with pytest.raises(InputError, match=r"checkpoint: expected .*small.* or a folder"):
        TimePFN.from_pretrained(tmp_path / "none")
    tiny().save_pretrained(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    facts["config"]["colour"] = 1
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match="of one model, found two"):
        TimePFN.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="window: expected shape"):
        tiny()(torch.zeros(2, 95, 3))


@pytest.mark.parametrize(
    ("field", "value"), [("embed", 15), ("layers", 0), ("patch", 97), ("dropout", 1.0), ("pools", (3,))]
)
def test_bad_sizes_are_named(field, value):
    with pytest.raises(InputError, match=field):
        TimePFNConfig(**{field: value})


def test_the_forecaster_is_the_first_step_and_batches_do_not_matter():
    model = tiny(7)
    returns = 0.005 * np.random.default_rng(7).standard_normal((5, 96, 4))
    path = TimePFNForecaster(model, batch=5).path(returns)
    assert path.shape == (5, 96, 4)
    one_by_one = TimePFNForecaster(model, batch=1)(returns)
    np.testing.assert_allclose(one_by_one, path[:, 0], atol=1e-6)
    with torch.inference_mode():
        expected = model(torch.from_numpy(100 * returns).float()).numpy() / 100
    np.testing.assert_allclose(path, expected, atol=1e-7)
