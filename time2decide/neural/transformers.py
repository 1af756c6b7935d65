"""The paper's two transformers: one encoder, with softmax or with linear attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from time2decide.core.validation import InputError, validate_count, validate_positive
from time2decide.neural.tokens import token_shape

ATTENTIONS = ("softmax", "linear")
_LONG = 64  # tokens from which the fused softmax kernel wins on a CPU


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a transformer; the defaults are the paper's best linear one."""

    n: int  # variables
    m: int  # constraints
    attention: str = "linear"  # "softmax" or "linear"
    d_model: int = 256  # width of the residual stream
    layers: int = 8
    heads: int = 2  # must divide d_model
    dropout: float = 0.1
    ff_multiple: int = 4  # hidden width of the feed-forward blocks, in units of d_model
    scaled_init: bool = False  # start what layers add at 1/√(2·layers) of the usual size: deep stacks learn sooner
    position_std: float = 0.02  # of the learned positions at the start; 1 tells tokens apart from the first step on

    def __post_init__(self) -> None:
        validate_count("n", self.n)
        validate_count("m", self.m, least=0)
        for name in ("d_model", "layers", "heads", "ff_multiple"):
            validate_count(name, getattr(self, name))
        if self.attention not in ATTENTIONS:
            raise InputError(f"attention: expected one of {', '.join(ATTENTIONS)}, found {self.attention!r}")
        if self.d_model % self.heads:
            raise InputError(f"heads: expected a divisor of d_model = {self.d_model}, found {self.heads}")
        check_dropout(self.dropout)
        validate_positive("position_std", self.position_std)


class Transformer(nn.Module):
    """Tokens (batch, n + m + 3, max(n, m)) → x̂ (batch, n).

    Embedding and learned positions, a LayerNorm, pre-norm layers, and a small network that reads the last token.
    Nothing but the last token is read, so the last layer computes keys and values for all tokens but queries and
    feed-forward for the last one only: the same numbers at a fraction of a layer's cost.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.n, config.m, config.d_model)
        self.norm = nn.LayerNorm(config.d_model)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.head = answer_head(config.d_model, config.n)
        if generator is not None:
            initialise(self, generator, position_std=config.position_std)
            if config.scaled_init:
                self._shrink_branches()

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.norm(self.embedding(tokens))  # (batch, tokens, width)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            h = layer(h, only_last=index == last)
        answer: Tensor = self.head(h[:, -1])
        return answer

    def _shrink_branches(self) -> None:
        """2·layers branches add up to the size of one. Linear attention needs it most: nothing bounds its output."""
        with torch.no_grad():
            for name, weight in self.layers.named_parameters():
                if name.endswith(("out.weight", "down.weight")):
                    weight.mul_((2 * self.config.layers) ** -0.5)


class TokenEmbedding(nn.Module):
    """Linear map of every token plus a learned vector per position; shared by transformers and LSTM."""

    def __init__(self, n: int, m: int, width: int, *, positions: bool = True) -> None:
        super().__init__()
        count, entries = token_shape(n, m)
        self.linear = nn.Linear(entries, width)
        self.positions = nn.Parameter(torch.randn(count, width) * 0.02) if positions else None

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.dim() != 3 or tokens.shape[-1] != self.linear.in_features:
            expected = f"(batch, tokens, {self.linear.in_features})"
            raise InputError(f"tokens: expected shape {expected}, found {tuple(tokens.shape)}")
        h: Tensor = self.linear(tokens)  # (batch, tokens, width)
        return h if self.positions is None else h + self.positions


class Layer(nn.Module):
    """h + attention(norm(h)), then h + feed-forward(norm(h))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, hidden = config.d_model, config.d_model * config.ff_multiple
        self.heads, self.linear_attention, self.dropout = config.heads, config.attention == "linear", config.dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, h: Tensor, *, only_last: bool = False) -> Tensor:
        """`h` is (batch, tokens, width); with `only_last` the result is that of the last token, (batch, 1, width)."""
        normed = self.norm1(h)
        if only_last:
            width = h.shape[-1]
            q = functional.linear(normed[:, -1:], self.qkv.weight[:width], self.qkv.bias[:width])
            k, v = functional.linear(normed, self.qkv.weight[width:], self.qkv.bias[width:]).chunk(2, dim=-1)
            h = h[:, -1:]
        else:
            q, k, v = self.qkv(normed).chunk(3, dim=-1)
        drop = self.dropout if self.training else 0.0
        h = h + functional.dropout(self.out(self._attend(q, k, v, drop)), drop)
        hidden = functional.dropout(functional.relu(self.up(self.norm2(h))), drop)
        return h + functional.dropout(self.down(hidden), drop)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, drop: float) -> Tensor:
        q, k, v = (part.view(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in (q, k, v))
        # each (batch, heads, tokens, width / heads)
        if self.linear_attention:
            mixed = linear_attention(q, k, v, dropout=drop)
        else:
            mixed = softmax_attention(q, k, v, dropout=drop)
        return mixed.transpose(1, 2).flatten(2)  # (batch, tokens, width)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0) -> Tensor:
    """(QKᵀ/√d_h)V without softmax, feature map or division by the length; all (..., tokens, d_h).

    Matrix products associate: Q(KᵀV) costs 2·k·d_h² multiplications for k keys and queries, (QKᵀ)V costs 2·k²·d_h,
    and the cheaper is taken. Dropout acts on the scores and so needs the second form.
    """
    queries, keys, width = q.shape[-2], k.shape[-2], q.shape[-1]
    q = q * width**-0.5
    if dropout == 0 and (keys + queries) * width**2 < 2 * queries * keys * width:
        return q @ (k.mT @ v)
    return functional.dropout(q @ k.mT, dropout) @ v


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0) -> Tensor:
    """softmax(QKᵀ/√d_h)V; all (..., tokens, d_h).

    The fused kernel is made for long sequences. For the few tokens of a QP, forward and backward of the plain form
    are 1.1 to 2 times as fast on a CPU.
    """
    if q.device.type != "cpu" or k.shape[-2] > _LONG:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    scores = (q * q.shape[-1] ** -0.5) @ k.mT  # (..., queries, keys)
    return functional.dropout(torch.softmax(scores, dim=-1), dropout) @ v


def answer_head(width: int, n: int) -> nn.Sequential:
    """width → 2·width → width → n with ReLU: the head that reads x̂ from the last token."""
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, n)
    )


def initialise(model: nn.Module, generator: torch.Generator, *, position_std: float = 0.02) -> None:
    """Draw all weights from `generator`: matrices uniform with variance 1/(3·fan_in), positions normal, biases zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("positions"):
                parameter.normal_(0.0, position_std, generator=generator)
            elif parameter.dim() == 2:
                bound = parameter.shape[1] ** -0.5
                parameter.uniform_(-bound, bound, generator=generator)
            elif "bias" in name:
                parameter.zero_()


def check_dropout(value: float) -> None:
    """Raise unless `value` is a probability below one."""
    if not 0 <= value < 1:
        raise InputError(f"dropout: expected a number in [0, 1), found {value!r}")
