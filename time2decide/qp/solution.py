"""The one answer type, and the optimality conditions that judge it whatever solver produced it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.validation import ArrayLike, as_tensor, expect
from time2decide.qp.problem import QP
from time2decide.qp.projections import project_l1_ball, soft_threshold


class Status(StrEnum):
    """Outcome of one instance."""

    OPTIMAL = "optimal"  # the KKT residual is within tolerance
    NOT_CONVERGED = "not_converged"  # the best point found, its KKT residual above tolerance
    INFEASIBLE = "infeasible"  # no x with Cx <= d (and the l1 radius); x is NaN
    NEARLY_INFEASIBLE = "infeasible within rounding"  # by too little for a proof; x is the best point found
    UNBOUNDED = "unbounded"  # the objective has no lower bound; x is NaN


#: numpy's type of an array of statuses.
STATUS_TEXT = f"<U{max(map(len, Status))}"


@dataclass(frozen=True)
class KKT:
    """The four parts of the optimality conditions, each the largest violation per instance, shape (batch,).

    stationarity : ‖x − prox(x − (Ax + b + Cᵀλ + Eᵀμ + z))‖∞ with prox that of the ℓ1 terms (the identity without
        them, so that this is the gradient of the Lagrangian)
    primal : max(Cx − d, |Ex − f|, x − ub, lb − x, ‖x‖₁ − B, 0)
    dual : max(−λ, 0)
    complementarity : max |λᵢ (Cx − d)ᵢ| and |zⱼ| times the distance from the bound that it pulls to
    """

    stationarity: Tensor
    primal: Tensor
    dual: Tensor
    complementarity: Tensor

    @property
    def worst(self) -> Tensor:
        """The largest of the four, (batch,); infinite where x is not a number."""
        parts = torch.stack([self.stationarity, self.primal, self.dual, self.complementarity])
        return torch.nan_to_num(parts, nan=torch.inf).amax(0)


def proximal_map(qp: QP, y: Tensor, step: Tensor | float = 1.0) -> Tensor:
    """prox of step·(λ‖·‖₁ + indicator of ‖·‖₁ ≤ B): soft threshold, then projection; y is (batch, n)."""
    if qp.l1_penalty is not None:
        y = soft_threshold(y, (step * qp.l1_penalty).unsqueeze(-1))
    if qp.l1_radius is not None:
        y = project_l1_ball(y, qp.l1_radius)
    return y


def kkt(qp: QP, x: ArrayLike, dual: ArrayLike, dual_eq: ArrayLike = None, dual_box: ArrayLike = None) -> KKT:
    """The optimality conditions at x (batch, n) and dual (batch, m), from the problem data alone.

    `dual_eq` (batch, p) belongs to Ex = f and `dual_box` (batch, n) to the bounds, positive at ub and negative at lb;
    zeros by default.
    """
    x, dual = _of_shape("x", x, qp.b), _of_shape("dual", dual, qp.d)
    gradient = torch.einsum("bij,bj->bi", qp.A, x) + qp.b + torch.einsum("bij,bi->bj", qp.C, dual)
    slack = torch.einsum("bij,bj->bi", qp.C, x) - qp.d
    excess, products = [slack.clamp_min(0)], [(dual * slack).abs()]
    if qp.E is not None and qp.f is not None:
        if dual_eq is not None:
            gradient = gradient + torch.einsum("bij,bi->bj", qp.E, _of_shape("dual_eq", dual_eq, qp.f))
        excess.append((torch.einsum("bij,bj->bi", qp.E, x) - qp.f).abs())
    if dual_box is not None and not (qp.lb is None and qp.ub is None):
        gradient = gradient + _of_shape("dual_box", dual_box, qp.b)
    for bound, sign in ((qp.ub, 1.0), (qp.lb, -1.0)):
        if bound is not None:
            over = sign * (x - bound)
            excess.append(over.clamp_min(0))
            if dual_box is not None:
                pull = (sign * _of_shape("dual_box", dual_box, qp.b)).clamp_min(0)
                products.append(torch.where(pull > 0, pull * over.abs(), 0.0))
    if qp.l1_radius is not None:
        excess.append((x.abs().sum(-1) - qp.l1_radius).clamp_min(0).unsqueeze(-1))
    if qp.l1_penalty is None and qp.l1_radius is None:
        stationarity = gradient.abs().amax(-1)
    else:
        safe = torch.nan_to_num(x - gradient)  # x NaN: infeasible, the other parts say so
        stationarity = (x - proximal_map(qp, safe)).abs().amax(-1)
    primal, complementarity = _most(torch.cat(excess, -1)), _most(torch.cat(products, -1))
    return KKT(stationarity, primal, _most((-dual).clamp_min(0)), complementarity)


def _of_shape(name: str, value: ArrayLike, like: Tensor) -> Tensor:
    """`value` in the shape and dtype of `like`; a single point may come without its batch dimension."""
    tensor = as_tensor(name, value)
    if tensor.dim() == 1 and len(like) == 1:
        tensor = tensor.unsqueeze(0)  # (1, n) or (1, m)
    expect(tensor.shape == like.shape, name, f"shape {tuple(like.shape)}", tuple(tensor.shape))
    return tensor.to(like)


def _most(violation: Tensor) -> Tensor:
    """Largest entry per instance of (batch, k); zero when there are none."""
    return violation.amax(-1) if violation.shape[-1] else violation.new_zeros(len(violation))


@dataclass(frozen=True)
class Solution:
    """The answers to a `QP` or `SparseQP`, in the shape and array type of the problem.

    Attributes
    ----------
    x : (batch, n)
        NaN where there is no answer.
    dual : (batch, m)
        Multipliers of Cx ≤ d.
    dual_eq, dual_box : (batch, p), (batch, n), or None
        Multipliers of Ex = f and of the bounds (positive at ub, negative at lb), where the problem has such.
    status : (batch,) of str
        One of the values of `Status`, per instance.
    method : str
        The method that was asked for.
    steps : (batch,) of int, or None
        Layers used by an iterative method until its residual was within tolerance.
    how : (batch,) of str, or None
        How each answer was obtained, where a method has more than one way.
    history : (steps + 1, batch), or None
        KKT residual after every layer, when asked for.
    """

    qp: Any = field(repr=False)
    x: ArrayLike
    dual: ArrayLike
    dual_eq: ArrayLike
    dual_box: ArrayLike
    status: ArrayLike
    method: str
    steps: ArrayLike = None
    how: ArrayLike = None
    history: ArrayLike = None

    @classmethod
    def build(
        cls,
        qp: QP,
        x: ArrayLike,
        dual: ArrayLike,
        dual_eq: ArrayLike,
        dual_box: ArrayLike,
        status: ArrayLike,
        method: str,
        **extra: ArrayLike,
    ) -> Solution:
        """Wrap batched tensors, or arrays where `qp` has such, into the shape and array type of `qp`."""
        values = {key: _present(qp, value, along=1 if key == "history" else 0) for key, value in extra.items()}
        dual_eq = None if qp.E is None else dual_eq
        dual_box = None if qp.lb is None and qp.ub is None else dual_box
        x, dual, dual_eq, dual_box = (_present(qp, part) for part in (x, dual, dual_eq, dual_box))
        return cls(qp, x, dual, dual_eq, dual_box, _present(qp, np.asarray(status)), method, **values)

    @cached_property
    def kkt(self) -> KKT:
        """The four optimality conditions, per instance, always as batched tensors."""
        values = (self.x, self.dual, self.dual_eq, self.dual_box)
        if not isinstance(self.qp, QP):  # a `SparseQP`
            found: KKT = self.qp.kkt(*values)
            return found
        parts = (None if v is None else torch.as_tensor(v).detach().reshape(len(self.qp), -1) for v in values)
        return kkt(self.qp.detached(), *parts)

    @property
    def kkt_residual(self) -> ArrayLike:
        """The largest violation of the optimality conditions, per instance."""
        return _present(self.qp, self.kkt.worst)

    @property
    def objective(self) -> ArrayLike:
        """The objective at x, per instance."""
        if not isinstance(self.qp, QP):
            return self.qp.objective(self.x)
        x = torch.as_tensor(self.x).reshape(len(self.qp), -1)
        return _present(self.qp, self.qp.objective(x))


def _present(qp: QP, value: ArrayLike, along: int = 0) -> ArrayLike:
    """Batched array -> the shape and array type in which the problem was given."""
    if value is None:
        return None
    if isinstance(value, Tensor) and qp.numpy:
        value = value.detach().cpu().numpy()
    if not qp.single:
        return value
    value = value[0] if along == 0 else value[:, 0]
    return (
        value.item() if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim) else value
    )
