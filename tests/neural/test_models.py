"""The architectures against plain references, their parameter counts, gradients and sizes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from time2decide.core.checkpoints import save_tensors
from time2decide.core.validation import InputError
from time2decide.neural import (
    ARCHITECTURES,
    Transformer,
    TransformerConfig,
    build,
    count_parameters,
    labelled_qps,
    load_model,
    matched_width,
    save_model,
)
from time2decide.neural.models import TransformerLayer, linear_attention, live_units, softmax_attention


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_softmax_layer_equals_torchs_encoder_layer(heads: int) -> None:
    layer = TransformerLayer(TransformerConfig(5, 3, "softmax", d_model=16, heads=heads, dropout=0.0)).double()
    reference = nn.TransformerEncoderLayer(16, heads, 64, 0.0, batch_first=True, norm_first=True).double()
    renamed = {
        "norm1": "norm1",
        "norm2": "norm2",
        "qkv": "self_attn.in_proj_",
        "out": "self_attn.out_proj",
        "up": "linear1",
        "down": "linear2",
    }
    weights = {}
    for ours, theirs in renamed.items():
        for part in ("weight", "bias"):
            weights[f"{ours}.{part}"] = reference.state_dict()[f"{theirs}{'' if theirs.endswith('_') else '.'}{part}"]
    layer.load_state_dict(weights)
    h = gaussian(3, 11, 16)
    torch.testing.assert_close(layer(h), reference(h))
    torch.testing.assert_close(layer(h, only_last=True), reference(h)[:, -1:])


@pytest.mark.parametrize(("tokens", "width"), [(3, 8), (8, 3), (11, 4)])
def test_linear_attention_equals_its_formula_in_both_orders(tokens: int, width: int) -> None:
    q, k, v = (gaussian(2, 4, tokens, width, seed=s) for s in range(3))
    expected = torch.zeros_like(v)
    for i in range(tokens):
        for j in range(tokens):
            score = (q[:, :, i] * k[:, :, j]).sum(-1, keepdim=True) / width**0.5
            expected[:, :, i] += score * v[:, :, j]
    torch.testing.assert_close(linear_attention(q, k, v), expected)
    torch.testing.assert_close(linear_attention(q[:, :, -1:], k, v), expected[:, :, -1:])


def test_linear_attention_drops_scores_without_bias() -> None:
    q, k, v = (gaussian(1, 1, 40, 4, seed=s) for s in range(3))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = torch.stack([linear_attention(q, k, v, dropout=0.5) for _ in range(4000)])
    exact = linear_attention(q, k, v)
    assert bool((dropped[0] != exact).all())
    assert (dropped.mean(0) - exact).abs().max() < 5 * dropped.std(0).max() / 4000**0.5


@pytest.mark.parametrize("tokens", [11, 65])
def test_softmax_attention_equals_torchs(tokens: int) -> None:
    q, k, v = (gaussian(2, 4, tokens, 8, seed=s) for s in range(3))
    torch.testing.assert_close(softmax_attention(q, k, v), nn.functional.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_reading_only_the_last_token_changes_nothing(attention: str) -> None:
    model = build_double("LinearTransformer" if attention == "linear" else "SoftmaxTransformer", layers=3)
    tokens = gaussian(4, 11, 5)
    h = model.norm(model.embedding(tokens))
    for layer in model.layers:
        h = layer(h)
    torch.testing.assert_close(model(tokens), model.head(h[:, -1]))


def build_double(name: str, n: int = 5, m: int = 3, **settings: int) -> nn.Module:
    return build(name, n, m, d_model=16, **settings).double().eval()


@pytest.mark.parametrize("name", list(ARCHITECTURES))
@pytest.mark.parametrize(("n", "m"), [(5, 3), (2, 6), (3, 0), (1, 1)])
def test_every_architecture_takes_every_size_and_trains_all_its_weights(name: str, n: int, m: int) -> None:
    model = build_double(name, n, m)
    answer = model(gaussian(4, n + m + 3, max(n, m)))
    assert answer.shape == (4, n)
    answer.square().sum().backward()
    still = [key for key, weight in model.named_parameters() if weight.grad is None or not bool(weight.grad.any())]
    assert not [key for key in still if "lstm.bias" not in key and "norm" not in key], still


def test_parameters_of_the_papers_models() -> None:
    """Counts by hand at width 256 and (5, 3): 12.9 million for the paper's largest, 2.4 million for its LSTM."""
    embedding, head = 5 * 256 + 256, (256 * 512 + 512) + (512 * 256 + 256) + (256 * 5 + 5)
    layer = 4 * (256 * 256 + 256) + 2 * 256 * 1024 + 1024 + 256 + 4 * 256
    transformer = embedding + 11 * 256 + 2 * 256 + 8 * layer + head
    assert count_parameters(build("LinearTransformer", 5, 3)) == transformer
    assert count_parameters(build("SoftmaxTransformer", 5, 3)) == transformer
    assert count_parameters(build("LSTM", 5, 3)) == embedding + 4 * (8 * 256 * 256 + 8 * 256) + head
    assert round(count_parameters(build("LSTM", 5, 3)) / 1e6, 1) == 2.4
    assert round(count_parameters(build("LinearTransformer", 5, 3, layers=16)) / 1e6, 1) == 12.9
    widths = [55, 1536, 1536, 1280, 1280, 1024, 1024]
    mlp = sum(2 * i + i * o + o + (i * o if i != o else 0) for i, o in pairwise(widths))
    assert count_parameters(build("MLP", 5, 3)) == mlp + 1024 * 5 + 5


@pytest.mark.parametrize("name", ["MLP", "LSTM"])
def test_matched_width_is_the_nearest(name: str) -> None:
    target = count_parameters(build("LinearTransformer", 5, 3, d_model=32))
    width = matched_width(name, 5, 3, target)
    sizes = {w: abs(count_parameters(build(name, 5, 3, d_model=w)) - target) for w in (width - 1, width, width + 1)}
    assert min(sizes, key=lambda w: sizes[w]) == width


def test_weights_are_those_of_the_seed_and_leave_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (build("LSTM", 3, 2, seed=s, d_model=8).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)
    assert torch.equal(before, torch.random.get_rng_state())


def test_scaled_start_shrinks_what_layers_add_and_nothing_else() -> None:
    plain, scaled = (build("LinearTransformer", 3, 2, d_model=8, layers=8, scaled_init=on) for on in (False, True))
    for key, weight in plain.state_dict().items():
        factor = 0.25 if key.endswith(("out.weight", "down.weight")) else 1.0
        assert torch.equal(scaled.state_dict()[key], factor * weight), key


def test_positions_start_as_large_as_asked_for_and_nothing_else_changes() -> None:
    small, large = (build("SoftmaxTransformer", 30, 30, d_model=32, layers=1, position_std=s) for s in (0.02, 1.0))
    for key, weight in small.state_dict().items():
        factor = 50.0 if key == "embedding.positions" else 1.0
        assert torch.allclose(large.state_dict()[key], factor * weight), key
    assert large.embedding.positions.detach().std() == pytest.approx(1.0, abs=0.05)
    with pytest.raises(InputError, match="position_std"):
        build("LinearTransformer", 3, 2, position_std=0.0)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_stored_model_is_the_same_model(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = build(name, 4, 6, d_model=16).eval()
    path = save_model(model, tmp_path / "deep" / "model.safetensors", {"seconds": 1.5})
    again, notes = load_model(path)
    tokens = gaussian(3, 13, 6).float()
    assert notes == {"seconds": 1.5}
    assert type(again) is type(model)
    assert again.config == model.config
    assert torch.equal(again(tokens), model(tokens))
    assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]


def test_bad_input_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="heads: expected a divisor of d_model = 10, found 4"):
        build("LinearTransformer", 5, 3, d_model=10, heads=4)
    with pytest.raises(InputError, match=r"architecture: expected one of .* found 'GRU'"):
        build("GRU", 5, 3)
    with pytest.raises(InputError, match=r"settings: expected fields of MLPConfig .* found heads"):
        build("MLP", 5, 3, heads=2)
    with pytest.raises(InputError, match="dropout: expected a number in"):
        TransformerConfig(5, 3, dropout=1.0)
    with pytest.raises(InputError, match="attention: expected one of softmax, linear, found 'flash'"):
        TransformerConfig(5, 3, attention="flash")
    with pytest.raises(InputError, match=r"tokens: expected shape \(batch, tokens, 5\)"):
        Transformer(TransformerConfig(5, 3, d_model=8))(torch.zeros(2, 11, 6))
    with pytest.raises(InputError, match=r"checkpoint: expected a folder with model\.safetensors"):
        load_model(tmp_path / "nothing")
    bare = save_tensors(tmp_path / "bare", {"x": torch.zeros(1)}, {})
    with pytest.raises(InputError, match=r"checkpoint: expected a LinearTransformer or .* found None"):
        load_model(bare)


def test_departures_of_the_start_are_what_their_names_say() -> None:
    plain, best = (
        build("LinearTransformer", 5, 3, d_model=16, layers=2, heads=1, **options)
        for options in ({}, {"orthogonal": True, "zero_branches": True, "answer_scale": 0.1})
    )
    directions = torch.cat([best.embedding.linear.weight.T, best.embedding.positions])
    torch.testing.assert_close(directions @ directions.T, torch.eye(16), atol=1e-5, rtol=0)
    assert torch.equal(best.head[4].weight, plain.head[4].weight * 0.1)
    tokens = labelled_qps(4, 5, 3, seed=1, cache=False).tokens(scaled=True)
    h = torch.randn(4, 11, 16)
    assert torch.equal(best.layers[1](h), h)
    assert plain(tokens).shape == best(tokens).shape
    with pytest.raises(InputError, match="d_model: expected at least 16"):
        build("LinearTransformer", 5, 3, d_model=15, heads=1, orthogonal=True)


def test_live_units() -> None:
    tokens = labelled_qps(20, 3, 2, seed=1, cache=False).tokens()
    model = build("LinearTransformer", 3, 2, d_model=8, layers=1, heads=1)
    assert 0.5 < live_units(model, tokens) <= 1
    with torch.no_grad():
        model.head[2].bias.fill_(-1e3)
    assert live_units(model, tokens) == 0
    assert live_units(build("MLP", 3, 2, d_model=8), tokens) is None
