"""Newton–Schulz: data tokens that attend to each other until they hold the inverse, X ← X + (I − XH)X.

Proof sketch. With R = I − XH one layer gives R ← R², so from X = sI with s = 2/(L + μ) the residual after k layers
is at most ((κ − 1)/(κ + 1))^(2^k): depth grows with log₂ κ, where gradient descent needs depth proportional to κ.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from time2decide.attention.layers import LinearAttentionHead, slot_selector
from time2decide.attention.loop import Algorithm, State
from time2decide.qp.problem import QP

_MOST_LAYERS = 100  # of `newton_schulz_inverse`


class NewtonSchulz(nn.Module):
    """Two attention blocks over 2n tokens of width 3n, in slots (content, identity, residual).

        row i of H: [hᵢ, eᵢ, 0]      row i of X: [xᵢ, eᵢ, 0]

    First block, from the rows of X to those of H: query the content xᵢ, key the identity eⱼ, value the content hⱼ,
    which gives xᵢH; with W_O = −1 into the residual slots and the token's own identity copied there by the
    feed-forward path, they hold rᵢ = eᵢ − xᵢH. Second block, from the rows of X to themselves: query the residual
    rᵢ, key the identity eⱼ, value the content xⱼ, which gives (RX)ᵢ and is added to the content.
    """

    def __init__(self, n: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.n, self.width = n, 3 * n
        content, identity, residual = (slot_selector(n, self.width, k * n, dtype) for k in range(3))
        self.residual_head = LinearAttentionHead(W_Q=content.mT, W_K=identity.mT, W_V=content.mT, W_O=-residual)
        self.update_head = LinearAttentionHead(W_Q=residual.mT, W_K=identity.mT, W_V=content.mT, W_O=content)
        self.register_buffer("copy_identity", identity.mT @ residual)  # (3n, 3n), the feed-forward path

    copy_identity: Tensor

    def tokens(self, rows: Tensor) -> Tensor:
        """Rows (batch, n, n) as tokens (batch, n, 3n)."""
        eye = torch.eye(self.n, dtype=rows.dtype, device=rows.device).expand_as(rows)
        return torch.cat([rows, eye, torch.zeros_like(rows)], dim=-1)

    def forward(self, X: Tensor, H: Tensor) -> Tensor:
        """One layer: the tokens of X (batch, n, 3n) after reading those of H and each other."""
        with_residual = X + X @ self.copy_identity + self.residual_head(X, H)
        updated = with_residual + self.update_head(with_residual, with_residual)
        return torch.cat([updated[..., : 2 * self.n], torch.zeros_like(X[..., : self.n])], dim=-1)


def newton_schulz_inverse(H: Tensor, scale: Tensor) -> Tensor:
    """H⁻¹ (batch, n, n) by attention layers from X = scale·I.

    The state form: queries, keys and values are the rows themselves, so a layer is two products. It stops when
    I − XH no longer shrinks or is at the level of rounding.
    """
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    X = scale.view(-1, 1, 1) * eye
    last = torch.inf
    for _ in range(_MOST_LAYERS):
        R = eye - X @ H
        size = R.abs().amax().item()
        if size <= 1e-13 or (size < 1e-6 and size >= last / 2):
            break
        X, last = torch.baddbmm(X, R, X), size
    return X


def newton_schulz_form(qp: QP, scale: Tensor, form: str) -> Algorithm:
    """Newton–Schulz by attention, token by token ("literal") or on rows as they are ("state")."""
    return (_tokens if form == "literal" else _rows)(qp, scale)


def _tokens(qp: QP, scale: Tensor) -> Algorithm:
    """Tokens of X and of A, scores and all; x = −Xb is read by one more head."""
    model = NewtonSchulz(qp.n, qp.A.dtype).to(qp.A.device)
    H = model.tokens(qp.A)
    eye = torch.eye(qp.n, dtype=qp.A.dtype, device=qp.A.device)
    return Algorithm(
        start=lambda x, dual: (model.tokens(scale.view(-1, 1, 1) * eye.expand_as(qp.A)),),
        step=lambda state: (model(state[0], H),),
        read=lambda state: (_read_out(qp, state[0][..., : qp.n]), qp.d[:, :0]),
    )


def _rows(qp: QP, scale: Tensor) -> Algorithm:
    """Rows of X as they are: X ← X + (I − XA)X."""
    eye = torch.eye(qp.n, dtype=qp.A.dtype, device=qp.A.device)

    def layer(state: State) -> State:
        X = state[0]
        return (torch.baddbmm(X, eye - X @ qp.A, X),)

    return Algorithm(
        start=lambda x, dual: ((scale.view(-1, 1, 1) * eye).contiguous(),),
        step=layer,
        read=lambda state: (_read_out(qp, state[0]), qp.d[:, :0]),
    )


def _read_out(qp: QP, X: Tensor) -> Tensor:
    """x = −Xb: a query b that reads the rows of X by their identity."""
    return -(X @ qp.b.unsqueeze(-1)).squeeze(-1)
