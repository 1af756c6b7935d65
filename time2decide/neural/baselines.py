"""The paper's two baselines without attention on the same tokens: a deep residual MLP and an LSTM."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from time2decide.core.validation import validate_count
from time2decide.neural.tokens import token_shape
from time2decide.neural.transformers import TokenEmbedding, answer_head, check_dropout, initialise

_MLP_MULTIPLES = (6, 6, 5, 5, 4, 4)  # widths of the blocks, in units of d_model


@dataclass(frozen=True)
class MLPConfig:
    """Shape of the MLP; six blocks of widths 6, 6, 5, 5, 4 and 4 times d_model."""

    n: int  # variables
    m: int  # constraints
    d_model: int = 256
    dropout: float = 0.1

    def __post_init__(self) -> None:
        validate_count("n", self.n)
        validate_count("m", self.m, least=0)
        validate_count("d_model", self.d_model)
        check_dropout(self.dropout)


class MLP(nn.Module):
    """Tokens in one long vector → blocks x·P + dropout(ReLU(Linear(LayerNorm(x)))) → x̂ (batch, n)."""

    def __init__(self, config: MLPConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        count, entries = token_shape(config.n, config.m)
        widths = [count * entries, *(multiple * config.d_model for multiple in _MLP_MULTIPLES)]
        self.blocks = nn.ModuleList(_ResidualBlock(i, o, config.dropout) for i, o in pairwise(widths))
        self.out = nn.Linear(widths[-1], config.n)
        if generator is not None:
            initialise(self, generator)

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
        validate_count("n", self.n)
        validate_count("m", self.m, least=0)
        validate_count("d_model", self.d_model)
        validate_count("layers", self.layers)
        check_dropout(self.dropout)


class LSTM(nn.Module):
    """The transformer's embedding (without positions) and head around a stacked LSTM read at the last token."""

    def __init__(self, config: LSTMConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        width, between = config.d_model, config.dropout if config.layers > 1 else 0.0
        self.embedding = TokenEmbedding(config.n, config.m, width, positions=False)
        self.lstm = nn.LSTM(width, width, config.layers, batch_first=True, dropout=between)
        self.head = answer_head(width, config.n)
        if generator is not None:
            initialise(self, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))  # (batch, tokens, width)
        answer: Tensor = self.head(states[:, -1])
        return answer
