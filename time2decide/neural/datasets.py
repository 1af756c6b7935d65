"""Problems as tokens, as in the paper, and sets of them with exact answers, drawn once and kept on disk.

===================== ======= ============================
position              tokens  content
===================== ======= ============================
0 … n−1               n       rows of A
n                     1       b
n+1 … n+m             m       rows of C
n+m+1                 1       d
n+m+2                 1       x_init, where x̂ is read
===================== ======= ============================

A token has max(n, m) entries: with m ≤ n that is the paper's layout (n entries, d padded with zeros); with more
constraints than variables d fills its token and all the others are padded with zeros. What a token means is known
only by its position, so a model belongs to one (n, m).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from time2decide.core.cache import cached_tensors
from time2decide.core.validation import expect, validate_count
from time2decide.qp import QP, random_qp, solve_exact

#: The paper's seeds of the training, validation and test sets.
PAPER_SEEDS = {"train": 42, "validation": 43, "test": 44}
_FORMAT = 1  # part of the key: raise it when the meaning of a stored set changes


@dataclass(frozen=True)
class LabelledQPs:
    """Problems, their exact answers and a feasible start for each; float32.

    The problems are rounded to float32 before they are solved (in float64), so the answers are those of the data
    a model sees.
    """

    qp: QP
    x: Tensor  # (batch, n) exact solutions
    dual: Tensor  # (batch, m) exact multipliers
    x_init: Tensor  # (batch, n) random feasible points

    def __len__(self) -> int:
        return len(self.qp)

    def tokens(self, *, scaled: bool = False) -> Tensor:
        """The paper's tokens, (batch, n + m + 3, max(n, m)); `scaled`: with x_init 0 and all entries of one order.

        The factors are constants: 1/n for A, 1/√n for b and C, 1/(1.5·√m) for d.
        """
        if not scaled:
            return tokenise(self.qp, self.x_init)
        n, m = self.qp.n, self.qp.m
        tokens = tokenise(self.qp, torch.zeros_like(self.x_init)) * n**-0.5
        tokens[:, :n] *= n**-0.5
        tokens[:, -2] *= (n / max(m, 1)) ** 0.5 / 1.5
        return tokens

    @property
    def constrained(self) -> Tensor:
        """Where at least one constraint is active, (batch,) of bool: a multiplier is positive."""
        return (self.dual > 1e-6).any(-1)


def paper_counts(n: int) -> dict[str, int]:
    """The paper's numbers of instances: 50,000/10,000/10,000 up to ten variables and twice that above."""
    factor = 1 if n <= 10 else 2
    return {"train": 50_000 * factor, "validation": 10_000 * factor, "test": 10_000 * factor}


def labelled_qps(
    count: int, n: int, m: int, *, seed: int, kappa: tuple[float, float] | None = None, cache: bool = True
) -> LabelledQPs:
    """`count` problems of the paper's distribution with exact answers, from the disk where they are there already.

    Parameters
    ----------
    seed : int
        Fixes problems and starts; take a different one for each split.
    kappa : (low, high), optional
        Shift of the condition number, as in `random_qp`.
    cache : bool
        Keep the set on disk under a hash of all parameters.
    """
    validate_count("count", count)
    validate_count("seed", seed, least=0)
    key = {"kind": f"qps-n{n}-m{m}", "count": count, "n": n, "m": m, "seed": seed, "kappa": kappa, "format": _FORMAT}
    tensors = cached_tensors(key, lambda: _draw(count, n, m, seed, kappa), enabled=cache)
    qp = QP(**{name: tensors[name] for name in ("A", "b", "C", "d")}, check=False)
    return LabelledQPs(qp, tensors["x"], tensors["dual"], tensors["x_init"])


def _draw(count: int, n: int, m: int, seed: int, kappa: tuple[float, float] | None) -> dict[str, Tensor]:
    qp = random_qp(count, n, m, kappa=kappa, seed=seed).to(torch.float32)
    answer = solve_exact(qp)
    unsolved = int((answer.status != "optimal").sum())
    expect(not unsolved, "seed", "problems that all have an answer", f"{unsolved} without one")
    start = feasible_start(qp, torch.Generator().manual_seed(seed))
    return {"A": qp.A, "b": qp.b, "C": qp.C, "d": qp.d, "x": answer.x, "dual": answer.dual, "x_init": start}


def token_shape(n: int, m: int) -> tuple[int, int]:
    """Number of tokens and entries per token of a problem of size (n, m)."""
    return n + m + 3, max(n, m)


def tokenise(qp: QP, x_init: Tensor) -> Tensor:
    """The tokens of every problem, (batch, n + m + 3, max(n, m)), in the precision of `qp`; x_init is (batch, n)."""
    linear = qp.l1_penalty is None and qp.l1_radius is None
    expect(linear, "qp", "linear constraints only (class LC or U)", f"class {qp.kind}")
    n, m = qp.n, qp.m
    expect(x_init.shape == (len(qp), n), "x_init", f"shape ({len(qp)}, {n})", tuple(x_init.shape))
    count, width = token_shape(n, m)
    tokens = qp.A.new_zeros(len(qp), count, width)
    tokens[:, :n, :n] = qp.A
    tokens[:, n, :n] = qp.b
    tokens[:, n + 1 : n + 1 + m, :n] = qp.C
    tokens[:, n + 1 + m, :m] = qp.d
    tokens[:, n + 2 + m, :n] = x_init
    return tokens


def feasible_start(qp: QP, generator: torch.Generator, *, tries: int = 8) -> Tensor:
    """A random feasible point of every problem, (batch, n), for the token x_init.

    Gaussian points are drawn until one satisfies Cx ≤ d, at most `tries` times; what is left over is scaled
    towards 0, x = t·y with t = min_i d_i / (Cy)_i, until it does. Rejection per point leaves the problems alone
    (rejecting whole problems would bias C and d), and the bound keeps it cheap where feasible Gaussian points are
    rare. Needs d ≥ 0, so that 0 is feasible.
    """
    validate_count("tries", tries)
    if qp.m:
        least = qp.d.min().item()
        expect(least >= 0, "qp", "d >= 0, so that x = 0 is feasible", f"{least:.6g}")
    point = torch.randn(len(qp), qp.n, generator=generator, dtype=qp.A.dtype, device=qp.A.device)
    for _ in range(tries - 1):
        outside = ~_inside(qp, point)
        if not bool(outside.any()):
            return point
        # A whole batch is drawn every time: the numbers do not depend on which points were refused before.
        other = torch.randn(point.shape, generator=generator, dtype=point.dtype, device=point.device)
        point = torch.where(outside.unsqueeze(-1), other, point)
    reach = torch.einsum("bmn,bn->bm", qp.C, point)
    ratio = torch.where(reach > 0, qp.d / reach.clamp_min(torch.finfo(reach.dtype).tiny), torch.inf)
    step = torch.cat([ratio, torch.ones_like(point[:, :1])], dim=1).amin(1, keepdim=True)  # (batch, 1), at most 1
    inward = 1 - 8 * torch.finfo(point.dtype).eps  # rounding must not put the point outside
    return torch.where(step < 1, point * (step * inward), point)


def rotate_qp_tokens(tokens: Tensor, n: int, R: Tensor) -> Tensor:
    """The tokens of the problems in the variables Rx: A → RARᵀ, b → Rb, C → CRᵀ, x_init → R·x_init, d unchanged.

    `R` is an orthogonal matrix (n, n) for all, or one per problem (batch, n, n). The paper's distribution is
    invariant under it and the answer turns into R·x*.
    """
    rotated = tokens.clone()
    rotated[:, :, :n] = tokens[:, :, :n] @ R.mT
    rotated[:, :n, :n] = R @ rotated[:, :n, :n]
    rotated[:, -2] = tokens[:, -2]  # the token of d
    return rotated


def random_rotation(n: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """An orthogonal matrix (n, n) from the Haar measure: QR of a Gaussian matrix with the signs of R made positive."""
    Q, triangle = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    rotation: Tensor = Q * torch.sign(torch.diagonal(triangle))
    return rotation.to(dtype)


def _inside(qp: QP, x: Tensor) -> Tensor:
    return (torch.einsum("bmn,bn->bm", qp.C, x) <= qp.d).all(-1)
