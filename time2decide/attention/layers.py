"""The two parts every construction is made of: a linear attention head and a two-layer ReLU network.

Their weights are not trained: each construction writes them down. They are buffers, so that a construction is an
ordinary module that can be moved, inspected and saved.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearAttentionHead(nn.Module):
    """One head without softmax: queries read tokens by (ZW_Q)(ZW_K)ᵀ(ZW_V)W_O.

    Without the softmax the product can be taken in the other order. `forward` forms the scores, as in the proofs;
    `cache` forms what does not depend on the query, as every decoder does, for tokens that no layer changes; `state`
    forms (ZW_K)ᵀ(ZW_V)W_O once, after which a query costs one row-times-matrix product.
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor

    def __init__(self, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        super().__init__()
        for name, weight in {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}.items():
            self.register_buffer(name, weight.clone())  # a weight of its own even where two are equal

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Queries (batch, q, width) read tokens (batch, t, width); returns (batch, q, width)."""
        keys, values = self.cache(tokens)
        return (queries @ self.W_Q) @ keys @ values  # scores (batch, q, t)

    def cache(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (batch, key width, t) and values (batch, t, width) of tokens."""
        return (tokens @ self.W_K).mT, tokens @ self.W_V @ self.W_O

    def state(self, tokens: Tensor) -> Tensor:
        """(batch, key width, width): what all queries read from these tokens."""
        keys, values = self.cache(tokens)
        return keys @ values


class SoftThresholdFFN(nn.Module):
    """S_θ(y) = W₂ ReLU(W₁y − θ) with W₁ = [I; −I] and W₂ = [I, −I]: a ReLU network of width 2n."""

    W_1: Tensor
    W_2: Tensor

    def __init__(self, n: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        eye = torch.eye(n, dtype=dtype)
        self.register_buffer("W_1", torch.cat([eye, -eye]))  # (2n, n)
        self.register_buffer("W_2", torch.cat([eye, -eye], dim=1))  # (n, 2n)

    def forward(self, y: Tensor, theta: Tensor) -> Tensor:
        """Y (..., n) and theta (..., 1)."""
        return torch.relu(y @ self.W_1.mT - theta) @ self.W_2.mT


def slot_selector(rows: int, width: int, start: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The (rows × width) matrix that picks `rows` consecutive slots of a token from `start` on."""
    chosen = torch.zeros(rows, width, dtype=dtype)
    chosen[:, start : start + rows] = torch.eye(rows, dtype=dtype)
    return chosen
