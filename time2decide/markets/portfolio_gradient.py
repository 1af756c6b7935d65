"""The portfolio problem as a differentiable layer: policies train through the exact decision.

Between two changes of the active set the solution is smooth. With T the bought and sold assets and K the matrix of
their equations (`turnover_decision._class_equations`), a loss with gradient v in s has by the implicit function theorem

    K (y, y_ν, y_θ) = (v_T, 0, 0),   ∂μ = y,   ∂c = −σ ∘ y,   ∂γ = y_θ,   ∂λ = −2 yᵀΣ(s−b),
    ∂Σ = −λ (y(s−b)ᵀ + (s−b)yᵀ),

and ∂p = v − Q_{·T}y − y_ν for untouched assets, σ y_θ for traded ones. At a change of the active set it is one-sided.
Where derivatives of these are asked for, they are formed in torch, from the answer as a function of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.validation import ArrayLike, InputError, describe_value, expect
from time2decide.markets.constraints import Constraints
from time2decide.markets.portfolio import FactorCovariance, PortfolioSolution, solve_portfolio, turnover_engine
from time2decide.qp.gradients import outside_graphs, solve_kkt


@outside_graphs
def portfolio_layer(
    mean: Tensor,
    covariance: Tensor | FactorCovariance,
    previous: Tensor,
    risk_aversion: Tensor | float,
    turnover_l1: Tensor | float = 2.0,
    cost: Tensor | float = 0.0,
    *,
    benchmark: ArrayLike | None = None,
    constraints: Constraints | None = None,
) -> Tensor:
    """Weights of `solve_portfolio` with derivatives in μ, Σ, p, λ, γ and c; the batch broadcasts as there.

    Linear limits are not differentiated: constraints may have bounds, cash and an exposure, no limits.
    """
    bounds_only = constraints is None or not constraints.limits
    expect(bounds_only, "constraints", "none with limits (they have no derivatives)", "limits")
    real = isinstance(mean, Tensor) and mean.is_floating_point() and mean.dim()
    expect(real, "mean", "a tensor (..., m) of real numbers", describe_value(mean))
    fixed = not (isinstance(benchmark, Tensor) and benchmark.requires_grad)
    expect(fixed, "benchmark", "no required gradient (it has no derivatives)", "one")
    tensors = [torch.as_tensor(value, dtype=mean.dtype) for value in (mean, previous, risk_aversion, turnover_l1, cost)]
    factors = (covariance.loadings, covariance.specific) if isinstance(covariance, FactorCovariance) else (covariance,)
    sigma: tuple[Any, ...] = tuple(torch.as_tensor(one, dtype=mean.dtype) for one in factors)
    rows = [one.shape[:-1] for one in (tensors[0], tensors[1], tensors[4])] + [sigma[0].shape[:-2]]
    try:
        lead = torch.broadcast_shapes(*rows, tensors[2].shape, tensors[3].shape)  # type: ignore[no-untyped-call]
        shapes = [(*lead, mean.shape[-1]), (*lead, mean.shape[-1]), lead, lead, (*lead, mean.shape[-1])]
        tensors = [one.expand(shape) for one, shape in zip(tensors, shapes, strict=True)]
    except RuntimeError:
        found = ", ".join(str(tuple(one.shape)) for one in (*tensors, *sigma))
        raise InputError(f"mean: expected shapes that fit those of the other arguments, found {found}") from None
    request = _Request(benchmark, constraints)
    weights: Tensor = _Layer.apply(request, *tensors, *sigma)[0]  # type: ignore[no-untyped-call]
    return weights


@dataclass
class _Request:
    benchmark: ArrayLike | None
    constraints: Constraints | None
    solution: PortfolioSolution | None = None  # of the last forward pass


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        request: _Request, mean: Tensor, previous: Tensor, risk: Tensor, gamma: Tensor, cost: Tensor,
        *covariance: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        arrays = [tensor.detach().double().numpy() for tensor in covariance]
        solution = request.solution = solve_portfolio(
            mean, FactorCovariance(*arrays) if len(arrays) == 2 else arrays[0], previous, risk_aversion=risk,
            turnover_l1=gamma, cost=cost, benchmark=request.benchmark, constraints=request.constraints,
        )  # fmt: skip
        weights = torch.from_numpy(solution.weights).to(mean.dtype)
        return weights, torch.from_numpy(solution.classes), torch.as_tensor(solution.turnover_price > 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.request, _, _, risk, *_ = inputs
        ctx.save_for_backward(*output, risk, *inputs[6:])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():  # derivatives of these derivatives are wanted
            grads = _differentiable_gradients(ctx.request, ctx.saved_tensors, grad_outputs[0], any(needs[6:]))
        else:
            solution = ctx.request.solution
            found = _gradients(solution, grad_outputs[0], ctx.saved_tensors[4:], needs)
            grads = [torch.from_numpy(part) for part in found]
        like = ctx.saved_tensors[0]
        return None, *(g.to(like.dtype) if n else None for g, n in zip(grads, needs[1:], strict=True))

    @staticmethod
    def vmap(info: Any, in_dims: Any, request: _Request, *inputs: Tensor) -> Any:
        rank = inputs[0].dim() - (in_dims[1] is not None) - 1  # leading dimensions within

        def batched(value: Tensor, dim: int | None, own: int) -> Tensor:
            """The new dimension first, ones up to the leading dimensions, then the `own` ones."""
            value = value.unsqueeze(0) if dim is None else value.movedim(dim, 0)
            return value.reshape(value.shape[0], *[1] * (rank + own + 1 - value.dim()), *value.shape[1:])

        sizes = [1, 1, 0, 0, 1, *([2] if len(inputs) == 6 else [2, 1])]
        moved = [batched(*each) for each in zip(inputs, in_dims[1:], sizes, strict=True)]
        moved[:5] = [one.expand(info.batch_size, *one.shape[1:]) for one in moved[:5]]
        return _Layer.apply(request, *moved), (0, 0, 0)  # type: ignore[no-untyped-call]


def _gradients(
    solution: PortfolioSolution, upstream: Tensor, covariance: Sequence[Tensor], needs: Sequence[bool]
) -> list[np.ndarray]:
    """The gradients of μ, p, λ, γ, c and the parts of Σ (not formed where not needed)."""
    problem = solution.problem
    v = np.ascontiguousarray(upstream.detach().double().numpy().reshape(problem.mean.shape))
    y, y_theta, previous = _adjoint(solution, v)
    active = solution.weights.reshape(v.shape)
    active = active if problem.benchmark is None else active - problem.benchmark
    lead, shapes = solution.gap.shape, [tensor.shape for tensor in covariance]
    sides = np.sign(solution.classes.reshape(v.shape)) * (np.abs(solution.classes.reshape(v.shape)) == 1)
    risk = -2 * (y * problem.covariance_times(active)).sum(-1) if needs[3] else np.zeros(len(y))
    return [
        y.reshape(*lead, -1),
        previous.reshape(*lead, -1),
        risk.reshape(lead),
        y_theta.reshape(lead),
        (-sides * y).reshape(*lead, -1),
        *(_covariance_gradient(problem, y, active, shapes) if any(needs[6:]) else [np.zeros(0)] * len(shapes)),
    ]


def _differentiable_gradients(
    request: _Request, saved: Sequence[Tensor], upstream: Tensor, with_covariance: bool
) -> list[Tensor]:
    """`_gradients` in torch, with derivatives of their own."""
    weights, classes, binding, risk, *covariance = saved
    v, s, risk, *parts = (tensor.double() for tensor in (upstream, weights, risk, *covariance))
    sigma = parts[0] if len(parts) == 1 else parts[0] @ parts[0].mT + torch.diag_embed(parts[1])
    constraints = request.constraints or Constraints()
    money = constraints.exposure - s.sum(-1)
    free = torch.minimum(money - constraints.cash[0], constraints.cash[1] - money) > 1e-12
    members = classes.abs() == 1
    sides = classes * members
    mixed = sides.sum(-1).abs() < members.sum(-1)
    used = torch.stack([~free & members.any(-1), binding & (free | mixed)], -1)
    rows = torch.stack([torch.ones_like(v), sides.to(v)], -2)
    curvature = (2 * risk[..., None, None] * sigma).expand(*v.shape, v.shape[-1])
    system = [curvature, rows, used, ~members, torch.zeros_like(binding), v, torch.zeros_like(rows[..., 0])]
    own = (2, 2, 1, 1, 0, 1, 1)
    flat = [part.reshape(-1, *part.shape[part.dim() - k :]) for part, k in zip(system, own, strict=True)]
    y, prices = (-part for part in solve_kkt(*flat))
    y, prices = y.reshape(v.shape), prices.reshape(*v.shape[:-1], 2)
    pull = (curvature @ y.unsqueeze(-1)).squeeze(-1) + prices[..., :1]
    previous = torch.where(classes == 0, v - pull, 0.0) + prices[..., 1:] * classes.sign()
    active = s if request.benchmark is None else s - torch.as_tensor(request.benchmark)
    found = [y, previous, -2 * (y * (sigma @ active.unsqueeze(-1)).squeeze(-1)).sum(-1), prices[..., 1], -sides * y]
    if not with_covariance:
        return [*found, *covariance]
    scaled = -risk.unsqueeze(-1) * y
    outer = scaled.unsqueeze(-1) * active.unsqueeze(-2)
    outer = outer + outer.mT
    if len(parts) == 1:
        return [*found, outer.sum_to_size(parts[0].shape)]
    both = 2 * outer @ parts[0], 2 * scaled * active  # of the loadings and the specific variances
    return [*found, *(one.sum_to_size(part.shape) for one, part in zip(both, parts, strict=True))]


def _adjoint(solution: PortfolioSolution, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y (rows, m), y_θ (rows,) and the gradient in p (rows, m)."""
    problem = solution.problem
    rows, m = v.shape
    y, prices, previous = np.empty((rows, m)), np.empty((rows, 2)), np.empty((rows, m))
    theta = solution.turnover_price.reshape(rows)
    money = problem.exposure - solution.weights.reshape(rows, m).sum(-1)
    free = np.minimum(money - problem.cash[:, 0], problem.cash[:, 1] - money) > 1e-12
    turnover_engine(rows, m).adjoint_turnover_rows(
        problem.dense, problem.loadings, problem.specific, problem.which, 2 * problem.risk_aversion,
        solution.classes.reshape(rows, m), theta > 0, free, v, y, prices, previous,
    )  # fmt: skip
    return y, prices[:, 1], previous


def _covariance_gradient(problem: Any, y: np.ndarray, s: np.ndarray, shapes: list[Any]) -> list[np.ndarray]:
    """∂Σ = −λ (ysᵀ + syᵀ), or ∂B and ∂D of Σ = BBᵀ + diag D, summed over the rows that share a covariance."""
    scaled = -problem.risk_aversion[:, None] * y
    count, which = len(problem.dense), problem.which
    own = count == len(which)  # then row i has covariance i
    if len(shapes) == 1:
        if not own and count == 1:
            outer = (scaled.T @ s)[None]
        else:
            outer = scaled[:, :, None] * s[:, None, :]
            outer = outer if own else _sums(outer, which, count)
        return [np.asarray(outer + outer.swapaxes(-1, -2)).reshape(shapes[0])]
    B = problem.loadings[which]
    by_factor = (
        scaled[:, :, None] * np.einsum("rm,rmf->rf", s, B)[:, None]
        + s[:, :, None] * np.einsum("rm,rmf->rf", scaled, B)[:, None]
    )
    return [
        _sums(2 * by_factor, which, count).reshape(shapes[0]),
        _sums(2 * scaled * s, which, count).reshape(shapes[1]),
    ]


def _sums(values: np.ndarray, which: np.ndarray, count: int) -> np.ndarray:
    total = np.zeros((count, *values.shape[1:]))
    np.add.at(total, which, values)
    return total
