"""TimePFN: filters, overlapping patches and one transformer over all patches of all channels.

    window (batch, 96, N) → per-channel normalisation → 10 feature rows per channel (the series and 9 filtered ones)
    → 11 patches of 16, stride 8 → MLP → + 2-D positions → post-norm softmax encoder over N·11 tokens
    → per-channel MLP of its 11 tokens → (batch, 96, N) in the units of the window

The weights do not depend on N: a model forecasts any number of channels. `TimePFNForecaster` makes it a forecaster of
returns, a plain function of a window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from time2decide.core.checkpoints import PretrainedModel, load_foreign
from time2decide.core.validation import expect, validate_fields, validate_finite

#: Bundled checkpoints.
PRETRAINED = {name: Path(__file__).parent / "pretrained" / name for name in ("small", "medium")}
OFFICIAL = "official:"  # before the path of a file in the layout of the published weights
_UNUSED = ("head.", "projector_mid.")  # parts of the published file that its model does not use


@dataclass(frozen=True)
class TimePFNConfig:
    """Sizes; the defaults are the paper's, 7.63 M parameters."""

    window: int = 96  # steps seen
    horizon: int = 96  # steps forecast
    kernels: tuple[int, ...] = (5, 9, 15)  # widths of the causal convolutions
    pools: tuple[int, ...] = (3, 5, 7)  # widths of the signed magnitude pooling after each
    filters: int = 3  # of each convolution
    patch: int = 16
    stride: int = 8
    patch_hidden: int = 1024  # of the MLP patch → token
    embed: int = 256
    layers: int = 8
    heads: int = 8
    feedforward: int = 512
    head_hidden: int = 1024  # of the MLP tokens of a channel → forecast
    dropout: float = 0.1
    eps: float = 1e-4  # added to the variance of a window; it shrinks windows of small returns, so scale those first

    def __post_init__(self) -> None:
        validate_fields(self, count="window horizon filters patch stride patch_hidden embed layers heads")
        validate_fields(self, count="feedforward head_hidden", positive="eps", share="dropout")
        kernels, pools, heads = len(self.kernels), len(self.pools), self.heads
        expect(kernels == pools, "pools", "one per kernel", f"{pools} for {kernels}")
        fits = not self.embed % heads and not self.embed % 4
        expect(fits, "embed", f"a multiple of heads ({heads}) and of 4", self.embed)
        expect(self.patch <= self.window, "patch", f"at most the window ({self.window})", self.patch)

    @property
    def features(self) -> int:
        """Rows per channel: the series itself and its filtered versions."""
        return 1 + self.filters * len(self.kernels)

    @property
    def patches(self) -> int:
        """Patches per channel."""
        return (self.window - self.patch) // self.stride + 1


class CausalFilters(nn.Module):
    """Convolutions that look back only, each followed by signed magnitude pooling; shared by all channels."""

    def __init__(self, config: TimePFNConfig) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv1d(1, config.filters, kernel) for kernel in config.kernels])
        self.kernels, self.pools = config.kernels, config.pools

    def forward(self, series: Tensor) -> Tensor:
        """(rows, 1, time) -> (rows, features, time), the series itself first."""
        rows = [series]
        for convolution, width, pool in zip(self.convolutions, self.kernels, self.pools, strict=True):
            past = functional.pad(series, (width - 1, 0), mode="replicate")
            rows.append(signed_magnitude_pool(convolution(past), pool))
        return torch.cat(rows, dim=1)


def signed_magnitude_pool(x: Tensor, width: int) -> Tensor:
    """The value of largest magnitude among x_{t−width+1} … x_t, with its sign; zeros before the start; (..., time).

    Of two values of equal magnitude the positive one is taken.
    """
    padded = functional.pad(x, (width - 1, 0))
    high = functional.max_pool1d(padded, width, stride=1)
    low = -functional.max_pool1d(-padded, width, stride=1)
    return torch.where(high >= -low, high, low)


class TimePFNLayer(nn.Module):
    """x ← LN(x + attention(x)), x ← LN(x + W₂ GELU(W₁x)): softmax attention, post-norm."""

    def __init__(self, config: TimePFNConfig) -> None:
        super().__init__()
        d = config.embed
        self.heads, self.dropout = config.heads, config.dropout
        self.query_key_value, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.feedforward = nn.Sequential(
            nn.Linear(d, config.feedforward),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feedforward, d),
        )
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, embed) -> the same."""
        batch, tokens, d = x.shape
        split = self.query_key_value(x).view(batch, tokens, 3, self.heads, d // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each (batch, heads, tokens, embed / heads)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, tokens, d))
        x = self.norms[0](x + functional.dropout(mixed, dropout))
        answer: Tensor = self.norms[1](x + functional.dropout(self.feedforward(x), dropout))
        return answer


class TimePFN(PretrainedModel):
    """The model. Its parts are public, because Time2Decide puts more tokens between them."""

    CONFIG = TimePFNConfig
    BUNDLED = PRETRAINED

    def __init__(self, config: TimePFNConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or TimePFNConfig()
        self.filters = CausalFilters(config)
        self.patch = gelu_mlp(config.features * config.patch, config.patch_hidden, config.embed)
        self.layers = nn.ModuleList([TimePFNLayer(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.embed)
        self.head = timepfn_head(config)

    @classmethod
    def from_pretrained(cls, name_or_dir: str | Path | None = None) -> Self:
        """The model of a bundled name, a folder, the hub, or ``official:PATH``, in evaluation mode."""
        if isinstance(name_or_dir, str) and name_or_dir.startswith(OFFICIAL):
            return cls.from_official(name_or_dir.removeprefix(OFFICIAL))
        return super().from_pretrained(name_or_dir)

    @classmethod
    def from_official(cls, path: str | Path) -> Self:
        """The model with the weights that TimePFN's authors publish, in evaluation mode.

        `path` is a file of `torch.save` (``.pth``, ``.pt``) or ``.safetensors`` with the state dict of their model of
        the paper's size, `TimePFNConfig()`. Files with other names, shapes or numbers that are not finite raise.
        """
        with torch.random.fork_rng(devices=[]):  # the first weights are drawn in vain
            model = cls()
        found = {name.removeprefix("module."): one for name, one in load_foreign(path).items()}
        names, weights = _official_names(model.config), model.state_dict()
        known = {name for parts in names.values() for name in parts}
        foreign = next((name for name in found if name not in known and not name.startswith(_UNUSED)), None)
        expect(foreign is None, path, "the published weights of TimePFN", f"the tensor {foreign!r} as well")
        for name, parts in names.items():
            own = weights[name].chunk(len(parts))  # queries, keys and values are one matrix here
            for target, part in zip(own, parts, strict=True):
                pointwise = ".feedforward." in name and target.dim() == 2  # a convolution of width 1 there
                shape = (*target.shape, 1) if pointwise else tuple(target.shape)
                expect(part in found, path, f"the published weights of TimePFN with {part}", "none")
                one = found[part]
                plain = one.is_floating_point() and one.layout == torch.strided and not one.is_meta
                right = tuple(one.shape) == shape and plain
                expect(right, path, f"{part} as real numbers of shape {shape}", f"{one.dtype} {tuple(one.shape)}")
                validate_finite(f"{path}: {part}", one)
                target.copy_(one.detach().reshape(target.shape))  # `own` are views of the model's weights
        return model.eval()

    def forward(self, window: Tensor, channels: Tensor | None = None) -> Tensor:
        """Forecast (batch, horizon, N) of windows (batch, window, N), in their units.

        `channels` (N,) are the indices of the channels in the position encoding, 0 … N − 1 by default.
        """
        fits = window.dim() == 3 and window.shape[1] == self.config.window
        expect(fits, "window", f"shape (batch, {self.config.window}, channels)", tuple(window.shape))
        normal, mean, scale = normalise_channels(window, self.config.eps)
        tokens = self.tokens(normal, channels)
        encoded = self.encode(tokens.flatten(1, 2)).view_as(tokens)
        found: Tensor = self.head(encoded.flatten(2)).mT * scale + mean
        return found

    def tokens(self, normal: Tensor, channels: Tensor | None = None) -> Tensor:
        """Patch tokens with their positions, (batch, N, patches, embed), of a normalised window."""
        config = self.config
        batch, time, count = normal.shape
        rows = self.filters(normal.mT.reshape(batch * count, 1, time))  # (batch·N, features, time)
        patches = rows.unfold(-1, config.patch, config.stride)  # (batch·N, features, patches, patch)
        flat = patches.transpose(1, 2).reshape(batch, count, config.patches, config.features * config.patch)
        index = torch.arange(count, device=normal.device) if channels is None else channels
        steps = torch.arange(config.patches, device=normal.device)
        tokens: Tensor = self.patch(flat) + patch_positions(index, steps, config.embed).to(normal.dtype)
        return tokens

    def encode(self, tokens: Tensor) -> Tensor:
        """The joint encoder over any sequence of tokens, (batch, tokens, embed)."""
        for layer in self.layers:
            tokens = layer(tokens)
        encoded: Tensor = self.norm(tokens)
        return encoded


@dataclass(frozen=True)
class TimePFNForecaster:
    """(series, window, m) -> (series, m), the first step of the forecast.

    `scale` multiplies returns on the way in and divides forecasts on the way out: the model adds eps to variances,
    and returns of a per cent have variances below it. 1 is the literal reading, 100 gives back LMC amplitudes.
    """

    model: TimePFN
    scale: float = 100.0
    batch: int = 64  # windows at a time

    def __call__(self, returns: np.ndarray) -> np.ndarray:
        return self.path(returns)[:, 0]

    def path(self, returns: np.ndarray) -> np.ndarray:
        """The whole forecast, (series, horizon, m)."""
        window = torch.from_numpy(np.ascontiguousarray(returns)).float() * self.scale
        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode():
            parts = [self.model(part) for part in torch.split(window, self.batch)]
        self.model.train(was_training)
        return np.asarray(torch.cat(parts).double().numpy()) / self.scale


def _official_names(config: TimePFNConfig) -> dict[str, tuple[str, ...]]:
    """Our name of a weight -> its name in the published file, or the names of what is one matrix here."""
    names: dict[str, tuple[str, ...]] = {"head.0": ("projector1",), "head.2": ("projector2",)}
    names |= {"patch.0": ("enc_embedding.fc1",), "patch.2": ("enc_embedding.fc2",), "norm": ("encoder.norm",)}
    names |= {f"filters.convolutions.{i}": (f"enc_embedding.conv{i + 1}",) for i in range(len(config.kernels))}
    for i in range(config.layers):
        ours, theirs = f"layers.{i}", f"encoder.attn_layers.{i}"
        attention = (f"{theirs}.attention.{part}_projection" for part in ("query", "key", "value"))
        names |= {f"{ours}.query_key_value": tuple(attention), f"{ours}.out": (f"{theirs}.attention.out_projection",)}
        names |= {f"{ours}.feedforward.{3 * j}": (f"{theirs}.conv{j + 1}",) for j in range(2)}
        names |= {f"{ours}.norms.{j}": (f"{theirs}.norm{j + 1}",) for j in range(2)}
    return {
        f"{ours}.{kind}": tuple(f"{one}.{kind}" for one in theirs)
        for ours, theirs in names.items()
        for kind in ("weight", "bias")
    }


def timepfn_head(config: TimePFNConfig) -> nn.Sequential:
    """The read-out of one channel: its patches' tokens, side by side -> its next `horizon` steps, normalised."""
    return gelu_mlp(config.patches * config.embed, config.head_hidden, config.horizon)


def normalise_channels(window: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean)/√(var + eps) per channel over time, with the mean and the root, each (batch, 1, N)."""
    mean = window.mean(dim=1, keepdim=True)
    scale = (window.var(dim=1, keepdim=True, correction=0) + eps).sqrt()
    return (window - mean) / scale, mean, scale


def patch_positions(channels: Tensor, patches: Tensor, embed: int) -> Tensor:
    """Fixed 2-D positions, (channels, patches, embed): sinusoids of the channel, then of the patch, half each."""
    half = embed // 2
    rows, columns = _sinusoids(channels, half), _sinusoids(patches, half)
    shape = (len(channels), len(patches), half)
    return torch.cat([rows[:, None].expand(shape), columns[None].expand(shape)], dim=-1)


def _sinusoids(index: Tensor, width: int) -> Tensor:
    """sin and cos of index / 10000^(2i/width), interleaved, (len(index), width)."""
    rates = torch.exp(torch.arange(0, width, 2, device=index.device) * (-math.log(10_000.0) / width))
    angle = index[:, None].float() * rates
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def gelu_mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two linear layers with GELU between them."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
