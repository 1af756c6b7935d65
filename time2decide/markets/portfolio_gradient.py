"""The portfolio problem as a differentiable layer: policies train through the exact decision.

Between two changes of the active set the solution is smooth. With T the bought and sold assets and K the matrix of
their equations (`turnover_decision._class_equations`), a loss with gradient v in s has by the implicit function theorem

    K (y, y_ν, y_θ) = (v_T, 0, 0),   ∂μ = y,   ∂c = −σ ∘ y,   ∂γ = y_θ,   ∂λ = −2 yᵀΣ(s−b),
    ∂Σ = −λ (y(s−b)ᵀ + (s−b)yᵀ),

and ∂p = v − Q_{·T}y − y_ν for untouched assets, σ y_θ for traded ones. At a change of the active set it is one-sided.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.validation import ArrayLike, InputError, describe_value, expect
from time2decide.markets.constraints import Constraints
from time2decide.markets.portfolio import FactorCovariance, PortfolioSolution, solve_portfolio, turnover_engine


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
    options = {"benchmark": benchmark, "constraints": constraints}
    weights: Tensor = _Layer.apply(options, *tensors, *sigma)  # type: ignore[no-untyped-call]
    return weights


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, options: dict[str, Any], mean: Tensor, previous: Tensor, risk: Tensor, gamma: Tensor, cost: Tensor,
        *covariance: Tensor,
    ) -> Tensor:  # fmt: skip
        arrays = [tensor.detach().double().numpy() for tensor in covariance]
        solution = solve_portfolio(
            mean, FactorCovariance(*arrays) if len(arrays) == 2 else arrays[0], previous, risk_aversion=risk,
            turnover_l1=gamma, cost=cost, **options,
        )  # fmt: skip
        ctx.solution, ctx.shapes, ctx.dtype = solution, [tensor.shape for tensor in covariance], mean.dtype
        return torch.from_numpy(solution.weights).to(mean.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        solution: PortfolioSolution = ctx.solution
        problem = solution.problem
        v = np.ascontiguousarray(grad_outputs[0].detach().double().numpy().reshape(problem.mean.shape))
        y, y_theta, previous = _adjoint(solution, v)
        active = solution.weights.reshape(v.shape)
        active = active if problem.benchmark is None else active - problem.benchmark
        lead, needs = solution.gap.shape, ctx.needs_input_grad
        sides = np.sign(solution.classes.reshape(v.shape)) * (np.abs(solution.classes.reshape(v.shape)) == 1)
        risk = -2 * (y * problem.covariance_times(active)).sum(-1) if needs[3] else None
        grads = [
            y.reshape(*lead, -1),
            previous.reshape(*lead, -1),
            None if risk is None else risk.reshape(lead),
            y_theta.reshape(lead),
            (-sides * y).reshape(*lead, -1),
            *(_covariance_gradient(problem, y, active, ctx.shapes) if any(needs[6:]) else [None] * len(ctx.shapes)),
        ]
        kept = [
            torch.from_numpy(g).to(ctx.dtype) if g is not None and n else None
            for g, n in zip(grads, needs[1:], strict=True)
        ]
        return None, *kept


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
