"""Exact Euclidean projections: ℓ1 ball, simplex, and the portfolio set. Batched, differentiable, any device.

Each projection finds a scalar threshold (or two) by sorting, without gradient, and then writes the answer as a
closed form on the active set that the threshold selects. Autograd through that closed form is the exact
derivative wherever the projection is differentiable.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from time2decide.core.validation import (
    ArrayLike,
    InputError,
    as_tensor,
    expect,
    per_instance,
    validate_finite,
    validate_positive,
    validate_simplex,
)


def soft_threshold(y: Tensor, level: Tensor | float) -> Tensor:
    """S_θ(y) = sign(y)·max(|y| − θ, 0), elementwise; `level` broadcasts against y."""
    return y - torch.clamp(y, -level, level)  # type: ignore[arg-type]


def simplex_threshold(y: Tensor, total: Tensor) -> Tensor:
    """θ with Σᵢ (yᵢ − θ)₊ = total > 0, for y (..., n) and total (..., 1); returns (..., 1).

    The sum of the k largest entries minus `total`, over k, is largest at the true support:
    θ = max_k (y₍₁₎ + … + y₍ₖ₎ − total) / k.
    """
    if is_single_vector(y):
        return torch.full_like(y[..., :1], _sorted_threshold_of_one(y.numpy().ravel(), total.item()))
    partial = torch.sort(y, dim=-1, descending=True).values.cumsum(-1)
    counts = torch.arange(1, y.shape[-1] + 1, dtype=y.dtype, device=y.device)
    return ((partial - total) / counts).amax(-1, keepdim=True)


def is_single_vector(y: Tensor) -> bool:
    """One vector on the CPU without gradient, for which numpy's calls cost less than torch's."""
    return y.shape[-1] == y.numel() and y.device.type == "cpu" and not y.requires_grad


def _sorted_threshold_of_one(y: np.ndarray, total: float) -> float:
    descending = np.sort(y)[::-1]
    return float(((np.add.accumulate(descending) - total) / np.arange(1, len(y) + 1)).max())


def _refine(y: Tensor, total: Tensor, theta: Tensor) -> Tensor:
    """θ again, as a differentiable function of y and total on the support {y > θ}; θ itself where that is empty."""
    support = (y > theta).to(y.dtype)
    count = support.sum(-1, keepdim=True)
    return torch.where(count > 0, ((y * support).sum(-1, keepdim=True) - total) / count.clamp_min(1), theta)


def project_simplex(y: ArrayLike, total: float = 1.0) -> ArrayLike:
    """Project y (..., n) onto {x ≥ 0, 1ᵀx = total}; numpy in, numpy out."""
    return _like(y, _onto_simplex(_vectors("y", y), validate_positive("total", total)))


def _onto_simplex(y: Tensor, total: float = 1.0) -> Tensor:
    amount = torch.as_tensor(total, dtype=y.dtype, device=y.device)
    with torch.no_grad():
        theta = simplex_threshold(y, amount)
    return (y - _refine(y, amount, theta)).clamp_min(0)


def project_l1_ball(y: ArrayLike, radius: ArrayLike) -> ArrayLike:
    """Project y (..., n) onto {‖x‖₁ ≤ radius}; numpy in, numpy out.

    `radius` is a number or has the shape of y without its last dimension.
    """
    vectors = _vectors("y", y)
    bound = per_instance("radius", radius, vectors, tuple(vectors.shape[:-1]))
    return _like(y, _onto_l1_ball(vectors, bound.unsqueeze(-1) if bound.dim() else bound))


def _onto_l1_ball(y: Tensor, bound: Tensor) -> Tensor:
    size = y.abs()
    inside = size.sum(-1, keepdim=True) <= bound
    with torch.no_grad():
        theta = simplex_threshold(size, bound)
    return torch.where(inside, y, soft_threshold(y, _refine(size, bound, theta).clamp_min(0)))


def project_portfolio(y: ArrayLike, previous: ArrayLike, turnover_l1: ArrayLike) -> ArrayLike:
    """Project y (..., m) onto {x ≥ 0, 1ᵀx = 1, ‖x − previous‖₁ ≤ turnover_l1}.

    `turnover_l1` is the full ℓ1 distance: 2 allows any move, and half of it is what is bought and what is sold.
    It is a number or has the shape of y without its last dimension. `previous` must be a point of the simplex.
    Numpy in, numpy out.
    """
    return _like(y, portfolio_prox(*_portfolio_arguments(y, previous, turnover_l1))[0])


def portfolio_prox(
    y: Tensor,
    p: Tensor,
    gamma: Tensor,
    cost: Tensor | float = 0.0,
    lower: Tensor | float = 0.0,
    upper: Tensor | float = 1.0,
    missing: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """argmin ½‖x − y‖² + Σ kᵢ|xᵢ − pᵢ| over {l ≤ x ≤ u, 1ᵀ(x − p) = missing, ‖x − p‖₁ ≤ γ}, and its thresholds a, c.

    With the cost k and v = y − p an asset is bought above the threshold a + k, and sold below c − k:

        x = p + min(u − p, (v − k − a)₊) − min(p − l, (c − v − k)₊).

    Where the turnover does not bind, a = c is the price of the budget 1ᵀx. Where it does, a > c, bought and sold
    amounts are (γ ± missing)/2, and the two sides separate. Each threshold solves one monotone piecewise linear
    equation. y and p are (..., m) with l ≤ p ≤ u, the others numbers or broadcast to them; a and c are (..., 1).
    """
    up, down = upper - p, p - lower
    spare = up.sum(-1, keepdim=True) - missing
    if isinstance(cost, float) and cost == 0:  # bought or sold makes no difference: half as many breaks
        left, price = _fill(y, torch.zeros_like(p) - upper, up + down, spare)
        trade = up - left
    else:
        sides = torch.cat([torch.zeros_like(p) - cost - upper, cost - p], -1)
        filled, price = _fill(torch.cat([y, y], -1), sides, torch.cat([up, down], -1), spare)
        left, sold = filled.tensor_split(2, -1)
        trade = up - left - sold
    # Trades below rounding are no trades: where γ is (almost) zero the answer is p itself.
    binds = trade.abs().sum(-1, keepdim=True) > gamma
    if not bool(binds.any()):
        return (p + trade).clamp(lower, upper), price, price  # type: ignore[arg-type]
    bought, a = _fill(-y, p + cost, up, (gamma + missing) / 2)
    sold, c = _fill(y, cost - p, down, (gamma - missing) / 2)
    trade = torch.where(binds, bought - sold, trade)
    x = (p + trade).clamp(lower, upper)  # type: ignore[arg-type]
    return x, torch.where(binds, -a, price), torch.where(binds, c, price)


_LARGE_SCORE = 1e4  # from here on weights would lose digits beside the scores


def _fill(score: Tensor, offset: Tensor, size: Tensor, amount: Tensor) -> tuple[Tensor, Tensor]:
    """min(size, (t − score − offset)₊) with the level t at which it sums to `amount`; (..., n), and t (..., 1).

    The level is found without gradient, then written in closed form on the entries that it cuts.
    """
    with torch.no_grad():
        level = _level(score + offset, size, amount)
        large = bool(score.abs().amax() > _LARGE_SCORE)
    pivot = level if large else torch.zeros_like(level)
    if large:  # once more from the level, where the differences of scores that matter are of the size of weights
        score = score - pivot
        with torch.no_grad():
            level = _level(score + offset, size, amount)
    empty = score + offset
    with torch.no_grad():
        full = level >= empty + size
        partly = (level > empty) & ~full
    cut = partly.to(empty.dtype)
    rest = amount - (size * full).sum(-1, keepdim=True) + (empty * cut).sum(-1, keepdim=True)
    count = cut.sum(-1, keepdim=True)
    exact = torch.where(count > 0, rest / count.clamp_min(1), level)
    return torch.where(full, size, torch.where(partly, exact - empty, torch.zeros_like(empty))), exact + pivot


def _level(v: Tensor, size: Tensor, amount: Tensor) -> Tensor:
    """t with Σᵢ min(sizeᵢ, (t − vᵢ)₊) = amount, for 0 ≤ amount ≤ Σ sizeᵢ; returns (..., 1).

    The left side is piecewise linear in t: its slope rises by one at vᵢ and falls by one at vᵢ + sizeᵢ.
    """
    breaks = torch.cat([v, v + size], dim=-1)  # (..., 2m)
    slope_change = torch.cat([torch.ones_like(v), -torch.ones_like(v)], dim=-1)
    breaks, order = torch.sort(breaks, dim=-1, stable=True)
    slopes = slope_change.gather(-1, order).cumsum(-1)  # slope to the right of each break
    steps = slopes[..., :-1] * breaks.diff(dim=-1)
    values = torch.cat([torch.zeros_like(steps[..., :1]), steps.cumsum(-1)], dim=-1)  # left side at each break
    index = (values <= amount).sum(-1, keepdim=True) - 1  # last break at or below the amount
    index = index.clamp(0, breaks.shape[-1] - 1)
    slope = slopes.gather(-1, index)
    rest = (amount - values.gather(-1, index)) / slope.clamp_min(1)
    return breaks.gather(-1, index) + torch.where(slope > 0, rest, torch.zeros_like(rest))


def _portfolio_arguments(y: ArrayLike, previous: ArrayLike, turnover_l1: ArrayLike) -> tuple[Tensor, Tensor, Tensor]:
    y = _vectors("y", y)
    p = _vectors("previous", previous).to(dtype=y.dtype, device=y.device)
    expect(p.shape[-1] == y.shape[-1], "previous", f"{y.shape[-1]} weights as in y", p.shape[-1])
    p = validate_simplex("previous", p, 1e-6 if y.dtype == torch.float64 else 1e-4)
    try:
        y, p = torch.broadcast_tensors(y, p)  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise InputError(f"previous: expected shape {tuple(y.shape)} as y, found {tuple(p.shape)}") from None
    gamma = per_instance("turnover_l1", turnover_l1, y, tuple(y.shape[:-1]))
    if gamma.dim():
        gamma = gamma.unsqueeze(-1)
    distance = (y.amax(-1) - y.amin(-1)).max().item()
    limit = 1e9 if y.dtype == torch.float64 else 1e3
    # weights are at most 1: beyond this they drown in the rounding of y
    expect(distance <= limit, "y", f"entries within {limit:g} of each other", f"a distance of {distance:.3g}")
    y = y - y.amax(-1, keepdim=True).detach()  # the projection does not see a common shift
    return y, p, gamma.clamp_max(2.0)


def _vectors(name: str, value: ArrayLike) -> Tensor:
    """Finite vectors (..., n), at least one and none of them empty."""
    tensor = as_tensor(name, value)
    some = tensor.dim() and tensor.numel()
    expect(some, name, "shape (..., n) with at least one entry", tuple(tensor.shape))
    validate_finite(name, tensor)
    return tensor


def _like(y: ArrayLike, result: Tensor) -> ArrayLike:
    """A tensor for a tensor, a numpy array for anything else."""
    return result if isinstance(y, Tensor) else result.detach().numpy()
