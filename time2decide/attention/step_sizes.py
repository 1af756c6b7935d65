"""Step sizes from the spectrum, and the conditions under which each method converges.

One condition differs from the paper's. For Arrow–Hurwicz the paper asks 0 < γ < 2/L and ηγ‖C‖² < 1. That is not
enough: with one variable and one active constraint the iteration has determinant 1 − γa and trace
2 − γa − ηγc², which is stable only while ηγc² < 4 − 2γa. At γa = 1.9, ηγc² = 0.9 both of the paper's conditions
hold and the iterates diverge. We ask for ηγ‖C‖² < min(1, 4 − 2γL).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from time2decide.core.validation import ArrayLike, InputError, per_instance
from time2decide.qp.problem import QP


@dataclass(frozen=True)
class Spectrum:
    """Extreme eigenvalues of A and the spectral norm of C, each (batch,)."""

    largest: Tensor
    smallest: Tensor
    constraint_norm: Tensor


def spectrum(qp: QP) -> Spectrum:
    """Compute the spectrum that step sizes depend on; A must be positive definite, as the paper assumes."""
    values = torch.linalg.eigvalsh(qp.A)
    smallest, largest = values[:, 0], values[:, -1]
    floor = largest * 10 * torch.finfo(largest.dtype).eps
    if bool((smallest <= floor).any()):
        bad = int((smallest <= floor).nonzero()[0])
        raise InputError(
            f"A: expected positive definite for an iterative method, found smallest eigenvalue "
            f"{smallest[bad]:.3g} in problem {bad}; method='exact' takes semidefinite A"
        )
    norm = torch.linalg.matrix_norm(qp.C, ord=2) if qp.m else torch.zeros_like(largest)
    return Spectrum(largest, smallest, norm)


def primal_step(qp: QP, given: ArrayLike, spec: Spectrum, *, limit: float) -> Tensor:
    """γ (batch,): 1/L by default; given values must satisfy 0 < γ < 2/L (limit 2) or 0 < γ ≤ 1/L (limit 1)."""
    if given is None:
        return 1 / spec.largest
    step = per_instance("step_size", given, qp.b, (len(qp),), allow_negative=True).expand(len(qp))
    bound = limit / spec.largest
    slack = 1 + 1e-12 if limit == 1 else 1 - 1e-12
    wrong = (step <= 0) | (step > bound * slack)
    if bool(wrong.any()):
        i = int(wrong.nonzero()[0])
        sign = "<=" if limit == 1 else "<"
        raise InputError(
            f"step_size: expected 0 < step_size {sign} {limit:g}/L = {bound[i]:.6g} with L the largest eigenvalue "
            f"of A, found {step[i]:.6g} in problem {i}"
        )
    return step


def dual_step(qp: QP, given: ArrayLike, step: Tensor, spec: Spectrum) -> Tensor:
    """η (batch,): 0.9 of the largest safe value by default; given values must satisfy both conditions."""
    gap = step * spec.constraint_norm.square()
    bound = torch.clamp(4 - 2 * step * spec.largest, max=1.0)  # on ηγ‖C‖²
    if given is None:
        return torch.where(gap > 0, 0.9 * bound / gap.clamp_min(torch.finfo(gap.dtype).tiny), torch.ones_like(gap))
    eta = per_instance("dual_step", given, qp.b, (len(qp),), allow_negative=True).expand(len(qp))
    product = eta * gap
    for limit, text in ((torch.ones_like(bound), "1"), (bound, "4 - 2*step_size*L")):
        wrong = (eta <= 0) | (product >= limit)
        if bool(wrong.any()):
            i = int(wrong.nonzero()[0])
            raise InputError(
                f"dual_step: expected dual_step > 0 and dual_step*step_size*|C|^2 < {text} = {limit[i]:.6g}, "
                f"found {product[i]:.6g} (dual_step {eta[i]:.6g}) in problem {i}"
            )
    return eta


def momentum(step: Tensor, spec: Spectrum) -> Tensor:
    """β = (1 − √(γμ)) / (1 + √(γμ)), the constant momentum for a strongly convex objective, (batch,)."""
    root = (step * spec.smallest).sqrt()
    return (1 - root) / (1 + root)
