"""Weights in the layout that TimePFN's authors publish: the same numbers as their formulas, other files refused."""

import os
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from time2decide.core.validation import InputError
from time2decide.forecasting import TimePFN
from time2decide.forecasting.backbones import load_backbone

WIDTH, HIDDEN, FEEDFORWARD, LAYERS, HEADS = 256, 1024, 512, 8, 8


@pytest.fixture(scope="module")
def published():
    """Random weights under the published names, with the two parts that the published model does not use."""
    generator = torch.Generator().manual_seed(0)
    weights = {}

    def layer(name, *shape):
        fan = torch.Size(shape[1:]).numel()
        weights[f"{name}.weight"] = torch.randn(*shape, generator=generator) / fan**0.5
        weights[f"{name}.bias"] = 0.1 * torch.randn(shape[0], generator=generator)

    def norm(name):
        weights[f"{name}.weight"] = 1 + 0.1 * torch.randn(WIDTH, generator=generator)
        weights[f"{name}.bias"] = 0.1 * torch.randn(WIDTH, generator=generator)

    for number, kernel in enumerate((5, 9, 15), 1):
        layer(f"enc_embedding.conv{number}", 3, 1, kernel)
    layer("enc_embedding.fc1", HIDDEN, 160)
    layer("enc_embedding.fc2", WIDTH, HIDDEN)
    for i in range(LAYERS):
        place = f"encoder.attn_layers.{i}"
        for part in ("query", "key", "value", "out"):
            layer(f"{place}.attention.{part}_projection", WIDTH, WIDTH)
        layer(f"{place}.conv1", FEEDFORWARD, WIDTH, 1)
        layer(f"{place}.conv2", WIDTH, FEEDFORWARD, 1)
        norm(f"{place}.norm1")
        norm(f"{place}.norm2")
    norm("encoder.norm")
    layer("projector1", HIDDEN, 11 * WIDTH)
    layer("projector_mid", 8, 8)
    layer("projector2", 96, HIDDEN)
    layer("head", 8, 8)
    return weights


def reference(weights, window):
    """TimePFN by its formulas, from the published names: channel by channel, head by head, pooling by a loop."""
    linear = lambda name, x: x @ weights[f"{name}.weight"].squeeze(-1).T + weights[f"{name}.bias"]  # noqa: E731
    norm = lambda name, x: functional.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"])  # noqa: E731
    mean, scale = window.mean(0), (window.var(0, correction=0) + 1e-4).sqrt()
    tokens = []
    for number, channel in enumerate(((window - mean) / scale).T):
        rows = [channel]
        for k, (kernel, pool) in enumerate(((5, 3), (9, 5), (15, 7)), 1):
            past = torch.cat([channel[:1].expand(kernel - 1), channel])
            name = f"enc_embedding.conv{k}"
            filtered = functional.conv1d(past[None, None], weights[f"{name}.weight"], weights[f"{name}.bias"])[0]
            padded = torch.cat([torch.zeros(3, pool - 1), filtered], dim=1).unfold(1, pool, 1)
            rows += padded.gather(2, padded.abs().argmax(2, keepdim=True))[..., 0]
        for patch in range(11):
            seen = torch.stack(rows)[:, 8 * patch : 8 * patch + 16].flatten()
            token = linear("enc_embedding.fc2", functional.gelu(linear("enc_embedding.fc1", seen)))
            tokens.append(token + torch.cat([sinusoids(number), sinusoids(patch)]))
    x = torch.stack(tokens)
    for i in range(LAYERS):
        place = f"encoder.attn_layers.{i}"
        q, k, v = (linear(f"{place}.attention.{part}_projection", x) for part in ("query", "key", "value"))
        heads = []
        for here in torch.arange(WIDTH).split(WIDTH // HEADS):
            scores = q[:, here] @ k[:, here].T / (WIDTH / HEADS) ** 0.5
            heads.append(scores.softmax(1) @ v[:, here])
        x = norm(f"{place}.norm1", x + linear(f"{place}.attention.out_projection", torch.cat(heads, dim=1)))
        x = norm(f"{place}.norm2", x + linear(f"{place}.conv2", functional.gelu(linear(f"{place}.conv1", x))))
    read = norm("encoder.norm", x).view(-1, 11 * WIDTH)
    return linear("projector2", functional.gelu(linear("projector1", read))).T * scale + mean


def sinusoids(index, width=WIDTH // 2):
    angle = index / 10_000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angle.sin(), angle.cos()], dim=1).flatten()


@pytest.mark.parametrize("write", ["torch", "torch, parallel", "safetensors"])
def test_published_weights_give_the_published_forecast(published, tmp_path, write):
    if write == "safetensors":
        path = tmp_path / "weights.safetensors"
        save_file(published, path)
    else:
        path, before = tmp_path / "checkpoint.pth", "module." if "parallel" in write else ""
        torch.save({before + name: one for name, one in published.items()}, path)
    model = TimePFN.from_pretrained(f"official:{path}")
    assert not model.training
    windows = 0.3 * torch.randn(2, 96, 3, generator=torch.Generator().manual_seed(1)).cumsum(1)
    with torch.inference_mode():
        expected = torch.stack([reference(published, window) for window in windows])
        torch.testing.assert_close(model(windows), expected, rtol=1e-4, atol=1e-4)
        again = load_backbone(f"official:{path}")
        torch.testing.assert_close(again.forecast(windows / 100), expected / 100, rtol=1e-4, atol=1e-6)


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def changed(published, **changes):
    return {name: one for name, one in (published | changes).items() if one is not None}


FC1, HUGE = "enc_embedding.fc1.weight", torch.zeros(1).expand(10**7, 10**7)
DAMAGE = {
    "a missing tensor": (lambda p: changed(p, **{FC1: None}), f"with {FC1}, found none"),
    "another shape": (lambda p: changed(p, **{FC1: p[FC1].T}), rf"{FC1} as real numbers of shape \(1024, 160\)"),
    "an absurd shape": (lambda p: changed(p, **{FC1: HUGE}), r"found torch.float32 \(10000000, 10000000\)"),
    "whole numbers": (lambda p: changed(p, **{FC1: p[FC1].long()}), "found torch.int64"),
    "not a number": (lambda p: changed(p, **{FC1: p[FC1] * torch.nan}), f"{FC1}: expected finite numbers"),
    "one tensor more": (lambda p: changed(p, other=torch.ones(1)), "found the tensor 'other' as well"),
    "a foreign model": (lambda p: {"weight": torch.ones(2, 2)}, "found the tensor 'weight' as well"),
    "no dict": (lambda p: [1, 2], r"expected names with tensors, found list \[1, 2\]"),
    "no tensors": (lambda p: {"state_dict": {"a": 1}}, "expected names with tensors"),
    "code": (lambda p: {"a": Harmful()}, "expected tensors that torch.save wrote, found other objects"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_other_weights_are_named_in_one_line(published, tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)
    make, words = DAMAGE[damage]
    torch.save(make(published), "weights.pt")
    with pytest.raises(InputError, match=words) as caught:
        TimePFN.from_official("weights.pt")
    assert str(caught.value).startswith("weights.pt: ")
    assert len(str(caught.value)) < 250
    assert not (tmp_path / "harm").exists()


def test_files_that_hold_no_weights_are_named(published, run, tmp_path):
    few = {name: one for name, one in published.items() if "conv" in name}
    torch.save(few, tmp_path / "whole.pth")
    content = (tmp_path / "whole.pth").read_bytes()
    middle = len(content) // 2
    (tmp_path / "cut.pth").write_bytes(content[:middle])
    (tmp_path / "damaged.pth").write_bytes(content[:100] + bytes(400) + content[500:])
    (tmp_path / "text.pth").write_text("no weights")
    (tmp_path / "text.safetensors").write_text("no weights")
    with ZipFile(tmp_path / "bomb.pth", "w", ZIP_DEFLATED, compresslevel=1) as bomb:
        bomb.writestr("archive/data/0", bytes(260 << 20))
    (tmp_path / "large.pth").touch()
    os.truncate(tmp_path / "large.pth", 1 << 30)
    (tmp_path / "folder.pth").mkdir()
    names = ("cut.pth", "damaged.pth", "text.pth", "text.safetensors", "bomb.pth", "large.pth", "folder.pth", "no.pth")
    for name in names:
        done = run("train", "paper", "--preset", "smoke", "--backbone", f"official:{name}", cwd=tmp_path)
        assert done.returncode == 2
        assert name in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()
