"""The paper's learned solvers of tokens → x̂: two transformers (softmax and linear attention), an MLP and an LSTM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from time2decide.core.checkpoints import PretrainedModel, load_checkpoint, model_header, save_tensors
from time2decide.core.validation import InputError, expect, validate_choice, validate_fields, validate_positive
from time2decide.neural.datasets import random_rotation, token_shape

ATTENTIONS = ("softmax", "linear")
_LONG = 64  # tokens from which the fused softmax kernel wins on a CPU
_MLP_MULTIPLES = (6, 6, 5, 5, 4, 4)  # widths of the blocks, in units of d_model


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
    orthogonal: bool = False  # content and positions start in subspaces at right angles, with orthonormal columns
    zero_branches: bool = False  # what layers add starts at 0
    answer_scale: float = 1.0  # the last matrix of the head starts at this share of the usual size

    def __post_init__(self) -> None:
        validate_fields(self, count="n d_model layers heads ff_multiple", natural="m", share="dropout")
        validate_choice("attention", self.attention, ATTENTIONS)
        expect(not self.d_model % self.heads, "heads", f"a divisor of d_model = {self.d_model}", self.heads)
        validate_positive("position_std", self.position_std)
        validate_positive("answer_scale", self.answer_scale)
        least = sum(token_shape(self.n, self.m))
        wide = not self.orthogonal or self.d_model >= least
        expect(wide, "d_model", f"at least {least} for orthogonal content and positions", self.d_model)


class Transformer(PretrainedModel):
    """Tokens (batch, n + m + 3, max(n, m)) → x̂ (batch, n).

    Embedding and learned positions, a LayerNorm, pre-norm layers, and a small network that reads the last token.
    Nothing but the last token is read, so the last layer computes keys and values for all tokens but queries and
    feed-forward for the last one only: the same numbers at a fraction of a layer's cost.
    """

    CONFIG = TransformerConfig

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.n, config.m, config.d_model)
        self.norm = nn.LayerNorm(config.d_model)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.layers))
        self.head = _answer_head(config.d_model, config.n)
        if generator is not None:
            initialise_model(self, generator, position_std=config.position_std)
            self._prepare(generator)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.norm(self.embedding(tokens))  # (batch, tokens, width)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            h = layer(h, only_last=index == last)
        answer: Tensor = self.head(h[:, -1])
        return answer

    @torch.no_grad()
    def _prepare(self, generator: torch.Generator) -> None:
        """The named departures from the plain start.

        The sums of linear attention are bounded by nothing: at full size they drive the head to where none of its
        ReLUs fires, and no gradient passes ever after. Shrunk, 2·layers branches add up to the size of one.
        """
        config = self.config
        shrink = 0.0 if config.zero_branches else (2 * config.layers) ** -0.5 if config.scaled_init else 1.0
        for name, weight in self.layers.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                weight.mul_(shrink)
        self.get_parameter("head.4.weight").mul_(config.answer_scale)
        if config.orthogonal:
            count, entries = token_shape(config.n, config.m)
            Q = random_rotation(config.d_model, generator)
            self.embedding.linear.weight.copy_(Q[:, :entries])
            self.get_parameter("embedding.positions").copy_(Q[:, entries : entries + count].T)


class TokenEmbedding(nn.Module):
    """Linear map of every token plus a learned vector per position; shared by transformers and LSTM."""

    def __init__(self, n: int, m: int, width: int, *, positions: bool = True) -> None:
        super().__init__()
        count, entries = token_shape(n, m)
        self.linear = nn.Linear(entries, width)
        self.positions = nn.Parameter(torch.randn(count, width) * 0.02) if positions else None

    def forward(self, tokens: Tensor) -> Tensor:
        entries, shape = self.linear.in_features, tuple(tokens.shape)
        expect(len(shape) == 3 and shape[-1] == entries, "tokens", f"shape (batch, tokens, {entries})", shape)
        h: Tensor = self.linear(tokens)  # (batch, tokens, width)
        return h if self.positions is None else h + self.positions


class TransformerLayer(nn.Module):
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


def _answer_head(width: int, n: int) -> nn.Sequential:
    """width → 2·width → width → n with ReLU: the head that reads x̂ from the last token."""
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, n)
    )


def initialise_model(model: nn.Module, generator: torch.Generator, *, position_std: float = 0.02) -> None:
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


@dataclass(frozen=True)
class MLPConfig:
    """Shape of the MLP; six blocks of widths 6, 6, 5, 5, 4 and 4 times d_model."""

    n: int  # variables
    m: int  # constraints
    d_model: int = 256
    dropout: float = 0.1

    def __post_init__(self) -> None:
        validate_fields(self, count="n d_model", natural="m", share="dropout")


class MLP(PretrainedModel):
    """Tokens in one long vector → blocks x·P + dropout(ReLU(Linear(LayerNorm(x)))) → x̂ (batch, n)."""

    CONFIG = MLPConfig

    def __init__(self, config: MLPConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        count, entries = token_shape(config.n, config.m)
        widths = [count * entries, *(multiple * config.d_model for multiple in _MLP_MULTIPLES)]
        self.blocks = nn.ModuleList(_ResidualBlock(i, o, config.dropout) for i, o in pairwise(widths))
        self.out = nn.Linear(widths[-1], config.n)
        if generator is not None:
            initialise_model(self, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        h = tokens.flatten(1)  # (batch, tokens · entries)
        for block in self.blocks:
            h = block(h)
        answer: Tensor = self.out(h)
        return answer


class _ResidualBlock(nn.Module):
    """LayerNorm, Linear, ReLU, dropout; the skip is projected where the width changes."""

    def __init__(self, entries: int, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(entries)
        self.linear = nn.Linear(entries, width)
        self.skip = nn.Linear(entries, width, bias=False) if entries != width else nn.Identity()
        self.dropout = dropout

    def forward(self, h: Tensor) -> Tensor:
        update = functional.dropout(functional.relu(self.linear(self.norm(h))), self.dropout, self.training)
        skipped: Tensor = self.skip(h)
        return skipped + update


@dataclass(frozen=True)
class LSTMConfig:
    """Shape of the LSTM."""

    n: int  # variables
    m: int  # constraints
    d_model: int = 256  # width of the embedding and of the hidden state
    layers: int = 4
    dropout: float = 0.1  # between the layers

    def __post_init__(self) -> None:
        validate_fields(self, count="n d_model layers", natural="m", share="dropout")


class LSTM(PretrainedModel):
    """The transformer's embedding (without positions) and head around a stacked LSTM read at the last token."""

    CONFIG = LSTMConfig

    def __init__(self, config: LSTMConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        width, between = config.d_model, config.dropout if config.layers > 1 else 0.0
        self.embedding = TokenEmbedding(config.n, config.m, width, positions=False)
        self.lstm = nn.LSTM(width, width, config.layers, batch_first=True, dropout=between)
        self.head = _answer_head(width, config.n)
        if generator is not None:
            initialise_model(self, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))  # (batch, tokens, width)
        answer: Tensor = self.head(states[:, -1])
        return answer


#: name in the paper -> (model, settings that the name implies)
ARCHITECTURES: dict[str, tuple[type[PretrainedModel], dict[str, Any]]] = {
    "LinearTransformer": (Transformer, {"attention": "linear"}),
    "SoftmaxTransformer": (Transformer, {"attention": "softmax"}),
    "MLP": (MLP, {}),
    "LSTM": (LSTM, {}),
}


def build(architecture: str, n: int, m: int, *, seed: int | None = 0, **settings: Any) -> nn.Module:
    """A new model of size (n, m); `settings` are fields of its configuration. `seed` fixes the weights.

    >>> build("LinearTransformer", 5, 3, d_model=32, layers=2, heads=4).config.attention
    'linear'
    """
    validate_choice("architecture", architecture, ARCHITECTURES)
    model, implied = ARCHITECTURES[architecture]
    known = model.CONFIG.__dataclass_fields__  # type: ignore[attr-defined]
    unknown, fields = sorted(set(settings) - set(known)), f"{model.CONFIG.__name__} ({', '.join(known)})"
    expect(not unknown, "settings", f"fields of {fields}", ", ".join(unknown))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # torch's own first draw of the weights must not move the global generator
        return model(model.CONFIG(n=n, m=m, **implied, **settings), generator)


def save_model(model: nn.Module, path: str | Path, notes: Mapping[str, Any] | None = None) -> Path:
    """Write a model with its architecture, its configuration and JSON-able `notes` on how it was made, to one file."""
    for name, (kind, implied) in ARCHITECTURES.items():
        if isinstance(model, kind) and all(getattr(model.config, key) == value for key, value in implied.items()):
            return save_tensors(path, model.state_dict(), model_header(model, name, notes))
    raise InputError(f"model: expected one of {', '.join(ARCHITECTURES)}, found {type(model).__name__}")


def load_model(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model of `save_model` in evaluation mode, and its notes."""
    return load_checkpoint(path, {name: model for name, (model, _) in ARCHITECTURES.items()})


def live_units(model: nn.Module, tokens: Tensor) -> float | None:
    """Share of the units that fire on at least one problem, in that of the head's two ReLUs where it is less.

    At 0 the answer is a constant and no gradient passes: the model is dead. None for a model without a head.
    """
    head = getattr(model, "head", None)
    if head is None:
        return None
    fired: dict[int, Tensor] = {}

    def note(index: int) -> Callable[..., None]:
        def hook(relu: nn.Module, given: object, out: Tensor) -> None:
            fired[index] = fired.get(index, out.new_zeros(out.shape[1], dtype=torch.bool)) | (out > 0).any(0)

        return hook

    hooks = [part.register_forward_hook(note(i)) for i, part in enumerate(head) if isinstance(part, nn.ReLU)]
    with torch.inference_mode():
        for part in torch.split(tokens, 512):
            model(part)
    for hook in hooks:
        hook.remove()
    return min(units.float().mean().item() for units in fired.values())


def count_parameters(model: nn.Module) -> int:
    """Number of trained numbers."""
    return sum(parameter.numel() for parameter in model.parameters())


def matched_width(architecture: str, n: int, m: int, parameters: int, **settings: Any) -> int:
    """The d_model with which `architecture` comes nearest to a number of parameters (it grows with d_model)."""
    low, high = 1, 2
    with torch.device("meta"):  # shapes only: nothing is allocated

        def size(width: int) -> int:
            return count_parameters(build(architecture, n, m, seed=None, d_model=width, **settings))

        while size(high) < parameters:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if size(middle) < parameters else (low, middle)
        return min((low, high), key=lambda width: abs(size(width) - parameters))
