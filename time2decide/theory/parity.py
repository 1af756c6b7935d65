"""The parity barrier: linear attention over data tokens alone is odd in the data, a covariance is even.

Without biases, norms and feed-forward networks a layer maps tokens h to h + Σᵢ ⟨q_j, kᵢ⟩ vᵢ, a polynomial whose terms
have odd degree in the data. The read-out of any stack then satisfies f(−X) = −f(X), and its best guess of an even
target under a distribution that is symmetric about 0 is the guess 0. Whatever adds a term of even degree lifts the
barrier: a constant channel, tokens of second order, a bias. So does a ReLU, even without bias, since
ReLU(y) + ReLU(−y) = |y|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.validation import expect, validate_count, validate_fields
from time2decide.neural.models import initialise_model, linear_attention


@dataclass(frozen=True)
class ParityConfig:
    """One arm of the experiment; the defaults are the paper's LinearTransformer."""

    variables: int = 4
    width: int = 16  # of the residual stream; without a projection the data are padded with zeros to it
    layers: int = 4
    heads: int = 2
    projection: bool = True  # a linear input layer, with a bias if `bias`
    norm: bool = True  # LayerNorm before attention, feed-forward and read-out, with its bias if `bias`
    bias: bool = True  # in every linear map
    feed_forward: bool = True  # ReLU network of four times the width after attention
    constant: bool = False  # a channel that is 1 in every token
    covariance: bool = False  # one token per row of the empirical covariance, beside the data tokens

    def __post_init__(self) -> None:
        validate_fields(self, count="variables width layers heads")
        expect(not self.width % self.heads, "heads", f"a divisor of width = {self.width}", self.heads)
        least = 1 if self.projection else self.channels
        expect(self.width >= least, "width", f"at least {least} without projection", self.width)

    @property
    def channels(self) -> int:
        """Entries of a data token."""
        return self.variables + self.constant


class ParityTransformer(nn.Module):
    """Series (batch, time, n) → covariance (batch, n²), read from the mean of all tokens."""

    def __init__(self, config: ParityConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        n, width = config.variables, config.width
        self.embedding = nn.Linear(config.channels, width, bias=config.bias) if config.projection else None
        self.rows = nn.Linear(n * n, n * width, bias=False) if config.covariance else None
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width, bias=config.bias) if config.norm else nn.Identity()
        self.readout = nn.Linear(width, n * n, bias=config.bias)
        if generator is not None:
            initialise_model(self, generator)

    def forward(self, series: Tensor) -> Tensor:
        n = self.config.variables
        expect(series.dim() == 3 and series.shape[-1] == n, "series", f"shape (batch, time, {n})", tuple(series.shape))
        h = self._tokens(series)  # (batch, tokens, width)
        for layer in self.layers:
            h = layer(h)
        answer: Tensor = self.readout(self.norm(h).mean(dim=1))  # (batch, n²)
        return answer

    def _tokens(self, series: Tensor) -> Tensor:
        data = torch.cat([series, series.new_ones(*series.shape[:2], 1)], dim=-1) if self.config.constant else series
        if self.embedding is None:
            h = nn.functional.pad(data, (0, self.config.width - data.shape[-1]))
        else:
            h = self.embedding(data)
        if self.rows is None:
            return h
        second = self.rows(_covariance(series).flatten(1))  # each row has weights of its own
        return torch.cat([h, second.view(len(h), -1, h.shape[-1])], dim=1)  # (batch, time + n, width)


class _Layer(nn.Module):
    """h + attention(norm(h)), then h + feed-forward(norm(h)); every part but attention is optional."""

    def __init__(self, config: ParityConfig) -> None:
        super().__init__()
        width, hidden = config.width, 4 * config.width
        self.heads, self.feed_forward = config.heads, config.feed_forward
        self.norm1 = nn.LayerNorm(width, bias=config.bias) if config.norm else nn.Identity()
        self.qkv = nn.Linear(width, 3 * width, bias=config.bias)
        self.out = nn.Linear(width, width, bias=config.bias)
        if config.feed_forward:
            self.norm2 = nn.LayerNorm(width, bias=config.bias) if config.norm else nn.Identity()
            self.up, self.down = (nn.Linear(*shape, bias=config.bias) for shape in ((width, hidden), (hidden, width)))

    def forward(self, h: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(h)).chunk(3, dim=-1)
        q, k, v = (part.view(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in parts)
        # each (batch, heads, tokens, width / heads); a mean over tokens instead of a sum keeps the scale of h
        mixed = linear_attention(q / q.shape[-2], k, v).transpose(1, 2).flatten(2)  # (batch, tokens, width)
        h = h + self.out(mixed)
        return h + self.down(torch.relu(self.up(self.norm2(h)))) if self.feed_forward else h


def _covariance(series: Tensor) -> Tensor:
    """Empirical covariance (batch, n, n) of series (batch, time, n), divided by the number of steps."""
    centred = series - series.mean(dim=1, keepdim=True)
    return centred.mT @ centred / series.shape[1]


def covariance_series(count: int, length: int, variables: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Series x_t = G z_t with G and z Gaussian, (count, length, n), and their covariances, (count, n²).

    G has independent entries of variance 1/n, drawn anew for every series: the mean covariance is the identity, and
    the distribution is the same under x → −x.
    """
    for name, value in (("count", count), ("length", length), ("variables", variables)):
        validate_count(name, value)
    mixing = generator.normal(size=(count, variables, variables)) / np.sqrt(variables)
    noise = generator.normal(size=(count, length, variables))
    series = torch.from_numpy(noise @ mixing).float()  # (count, length, n)
    return series, _covariance(series).flatten(1)
