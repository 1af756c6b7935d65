"""Measures of predicted solutions: distance to the answer, feasibility, objective, optimality conditions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from time2decide.core.validation import expect
from time2decide.neural.datasets import LabelledQPs
from time2decide.qp import QP, kkt, solve_exact

#: Edges of the histograms: logarithmic, since the errors span many orders. Values outside go to the end bins.
HISTOGRAM_EDGES = {
    "nmse": np.geomspace(1e-5, 1e2, 57),
    "violation": np.geomspace(1e-5, 1e1, 49),
    "objective_error": np.geomspace(1e-6, 1e2, 65),
}


def r2_score(predicted: Tensor, truth: Tensor) -> float:
    """1 − Σ‖x̂ − x*‖² / Σ‖x̄ − x*‖², pooled over instances and coordinates; x̄ is the mean of each coordinate."""
    _same_shape(predicted, truth)
    total = (truth - truth.mean(0)).square().sum().item()
    missed = (predicted - truth).square().sum().item()
    return 1 - missed / total if total > 0 else float("nan")


def normalised_mse(predicted: Tensor, truth: Tensor) -> Tensor:
    """‖x̂ − x*‖² / ‖x*‖² per instance, (batch,)."""
    _same_shape(predicted, truth)
    return (predicted - truth).square().sum(-1) / truth.square().sum(-1)


def constraint_violation(qp: QP, x: Tensor) -> Tensor:
    """Mean over the constraints of max(0, Cx − d) per instance, (batch,); zero without constraints."""
    excess = (torch.einsum("bmn,bn->bm", qp.C, x) - qp.d).clamp_min(0)
    return excess.sum(-1) / max(qp.m, 1)


def objective_gap(qp: QP, x: Tensor, truth: Tensor) -> Tensor:
    """f(x̂) − f(x*) per instance, (batch,): below zero only where x̂ is infeasible."""
    return qp.objective(x) - qp.objective(truth)


def estimated_dual(qp: QP, x: Tensor) -> Tensor:
    """Multipliers that suit x best, (batch, m), for models that predict x only.

    Non-negative least squares over stationarity and complementarity together,

        min ‖Ax + b + Cᵀλ‖² + Σᵢ (λᵢ·(Cx − d)ᵢ)²   s.t.  λ ≥ 0,

    a small QP per instance, solved exactly. At x* it gives residual 0; no guess of the active rows is needed.
    """
    if not qp.m:
        return x.new_zeros(len(x), 0)
    gradient = torch.einsum("bij,bj->bi", qp.A, x) + qp.b
    slack = torch.einsum("bmn,bn->bm", qp.C, x) - qp.d
    # C may have dependent rows that are all active: a little of the identity keeps the small QP definite.
    H = qp.C @ qp.C.mT + torch.diag_embed(slack.square() + 1e-10)
    f = torch.einsum("bmn,bn->bm", qp.C, gradient)
    signs, zero = -torch.eye(qp.m).to(H), torch.zeros(qp.m).to(H)
    dual: Tensor = solve_exact(QP(H, f, signs, zero, check=False)).x
    return dual.clamp_min(0)


def evaluate(data: LabelledQPs, x: Tensor, dual: Tensor | None = None) -> dict[str, float]:
    """All measures of predictions x (batch, n), computed in float64.

    Multipliers that the model does not give are those of `estimated_dual`. Keys that end in ``_active`` are for
    the instances with an active constraint, those in ``_inactive`` for the others; their R² is taken
    around the mean of that part.
    """
    qp, truth, x = data.qp.to(torch.float64), data.x.double(), x.double().cpu()
    _same_shape(x, truth)
    active = data.constrained
    errors, excess, gap = normalised_mse(x, truth), constraint_violation(qp, x), objective_gap(qp, x, truth)
    residual = kkt(qp, x, estimated_dual(qp, x) if dual is None else dual.double().cpu()).worst
    row = {"r2": r2_score(x, truth), "mse": (x - truth).square().mean().item(), "active_share": _mean(active.double())}
    for part, chosen in (("", torch.ones_like(active)), ("_active", active), ("_inactive", ~active)):
        if part and bool(chosen.any()):
            row["r2" + part] = r2_score(x[chosen], truth[chosen])
        if bool(chosen.any()):
            row |= {
                "nmse_mean" + part: _mean(errors[chosen]),
                "nmse_median" + part: errors[chosen].quantile(0.5).item(),
                "nmse_p95" + part: errors[chosen].quantile(0.95).item(),
                "violation" + part: _mean(excess[chosen]),
                "gap_signed" + part: _mean(gap[chosen]),
                "gap_absolute" + part: _mean(gap[chosen].abs()),
                "kkt_median" + part: residual[chosen].quantile(0.5).item(),
                "kkt_p95" + part: residual[chosen].quantile(0.95).item(),
            }
    return row


def histograms(data: LabelledQPs, x: Tensor) -> dict[str, list[int]]:
    """Counts of NMSE, violation and |objective gap| between the edges of `HISTOGRAM_EDGES`.

    Each list has one entry more than there are edges: the first counts what lies below the first edge (a violation
    of exactly zero does), the last what lies at or above the last.
    """
    qp, truth, x = data.qp.to(torch.float64), data.x.double(), x.double().cpu()
    values = {
        "nmse": normalised_mse(x, truth),
        "violation": constraint_violation(qp, x),
        "objective_error": objective_gap(qp, x, truth).abs(),
    }
    return {
        name: np.bincount(np.digitize(values[name].numpy(), edges), minlength=len(edges) + 1).tolist()
        for name, edges in HISTOGRAM_EDGES.items()
    }


def _mean(values: Tensor) -> float:
    return values.mean().item()


def _same_shape(predicted: Tensor, truth: Tensor) -> None:
    expect(predicted.shape == truth.shape, "x", f"shape {tuple(truth.shape)}", tuple(predicted.shape))
