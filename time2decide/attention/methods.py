"""The constructions by name: which problems each one solves, its step sizes, and when it converges.

One condition differs from the paper's. For Arrow–Hurwicz the paper asks 0 < γ < 2/L and ηγ‖C‖² < 1. That is not
enough: with one variable and one active constraint the iteration has determinant 1 − γa and trace
2 − γa − ηγc², which is stable only while ηγc² < 4 − 2γa. At γa = 1.9, ηγc² = 0.9 both of the paper's conditions
hold and the iterates diverge. We ask for ηγ‖C‖² < min(1, 4 − 2γL).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from time2decide.attention import classical
from time2decide.attention.acceleration import accelerated_form
from time2decide.attention.admm import admm_form, admm_splitting
from time2decide.attention.arrow_hurwicz import arrow_hurwicz_form
from time2decide.attention.gradient import gradient_form
from time2decide.attention.ista import ista_form
from time2decide.attention.loop import Algorithm
from time2decide.attention.newton_schulz import newton_schulz_form
from time2decide.attention.projected_gradient import projected_gradient_form
from time2decide.core.validation import ArrayLike, InputError, expect, per_instance, refuse, validate_choice
from time2decide.qp.problem import QP

FORMS = ("state", "literal", "classical")
Builder = Callable[..., Algorithm]


@dataclass(frozen=True)
class Method:
    """A named construction: the problem classes it takes and its set-up."""

    kinds: tuple[str, ...]
    arguments: Callable[[QP, dict[str, Any]], tuple[Any, ...]]  # what each form is built from
    forms: dict[str, Builder]
    options: tuple[str, ...] = field(default=("step_size",))


def _gradient_arguments(limit: float) -> Callable[[QP, dict[str, Any]], tuple[Any, ...]]:
    def arguments(qp: QP, options: dict[str, Any]) -> tuple[Any, ...]:
        return (_primal_step(qp, options.get("step_size"), _spectrum(qp), limit=limit),)

    return arguments


def _primal_dual_arguments(qp: QP, options: dict[str, Any]) -> tuple[Any, ...]:
    spec = _spectrum(qp)
    step = _primal_step(qp, options.get("step_size"), spec, limit=2)
    return step, _dual_step(qp, options.get("dual_step"), step, spec)


def _momentum_arguments(qp: QP, options: dict[str, Any]) -> tuple[Any, ...]:
    spec = _spectrum(qp)
    step = _primal_step(qp, options.get("step_size"), spec, limit=1)
    return step, _momentum(step, spec)


def _splitting_arguments(qp: QP, options: dict[str, Any]) -> tuple[Any, ...]:
    _spectrum(qp)  # checks that A is positive definite
    return (admm_splitting(qp, **options),)


def _inverse_arguments(qp: QP, options: dict[str, Any]) -> tuple[Any, ...]:
    spec = _spectrum(qp)
    return (2 / (spec.largest + spec.smallest),)


def _forms(attention: Builder, reference: Builder) -> dict[str, Builder]:
    return {form: partial(attention, form=form) for form in ("state", "literal")} | {"classical": reference}


_ADMM_OPTIONS = ("rho", "alpha", "inverse_by")
_ACCELERATED = _forms(accelerated_form, classical.classical_accelerated)
METHODS: dict[str, Method] = {
    "gradient": Method(("U",), _gradient_arguments(2), _forms(gradient_form, classical.classical_gradient)),
    "arrow_hurwicz": Method(
        ("LC",),
        _primal_dual_arguments,
        _forms(arrow_hurwicz_form, classical.classical_arrow_hurwicz),
        ("step_size", "dual_step"),
    ),
    "ista": Method(("R",), _gradient_arguments(1), _forms(ista_form, classical.classical_ista)),
    "projected_gradient": Method(
        ("C",),
        _gradient_arguments(1),
        _forms(projected_gradient_form, classical.classical_projected_gradient),
    ),
    "nesterov": Method(("U",), _momentum_arguments, _ACCELERATED),
    "fista": Method(("R", "C"), _momentum_arguments, _ACCELERATED),
    "admm": Method(
        ("U", "LC", "R", "C"),
        _splitting_arguments,
        _forms(admm_form, classical.classical_admm),
        _ADMM_OPTIONS,
    ),
    "newton_schulz": Method(
        ("U",),
        _inverse_arguments,
        _forms(newton_schulz_form, classical.classical_newton_schulz),
        (),
    ),
}


def build(qp: QP, method: str, form: str = "state", **options: Any) -> Algorithm:
    """The algorithm of a construction on a batch of problems, ready for `run`.

    `newton_schulz` on a constrained problem is ADMM whose inverse comes from Newton–Schulz layers.
    """
    expect(isinstance(qp, QP), "qp", "a QP", type(qp).__name__)
    validate_choice("method", method, METHODS)
    validate_choice("form", form, FORMS)
    if method == "newton_schulz" and qp.kind != "U":
        method, options = "admm", {**options, "inverse_by": "newton_schulz"}
    chosen = METHODS[method]
    if qp.kind not in chosen.kinds:
        able = ["exact", *(name for name, other in METHODS.items() if qp.kind in other.kinds)]
        raise InputError(
            f"method: expected one of {', '.join(able)} for a problem of class {qp.kind}, found {method!r}, "
            f"which solves {' and '.join(chosen.kinds)}"
        )
    allowed = f"expected {', '.join(chosen.options) or 'no options'} for method {method!r}"
    refuse(f"{name}: {allowed}, found an unknown option" for name in sorted(set(options) - set(chosen.options)))
    return chosen.forms[form](qp, *chosen.arguments(qp, options))


@dataclass(frozen=True)
class _Spectrum:
    """Extreme eigenvalues of A and the spectral norm of C, each (batch,)."""

    largest: Tensor
    smallest: Tensor
    constraint_norm: Tensor


def has_definite_curvature(qp: QP) -> Tensor:
    """Whether each A is positive definite beyond rounding, (batch,)."""
    values = torch.linalg.eigvalsh(qp.A)
    return values[:, 0] > values[:, -1] * 10 * torch.finfo(values.dtype).eps


def _spectrum(qp: QP) -> _Spectrum:
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
    return _Spectrum(largest, smallest, norm)


def _primal_step(qp: QP, chosen: ArrayLike, spec: _Spectrum, *, limit: float) -> Tensor:
    """γ (batch,): 1/L by default; chosen ones must satisfy 0 < γ < 2/L (limit 2) or 0 < γ ≤ 1/L (limit 1)."""
    if chosen is None:
        return 1 / spec.largest
    step = per_instance("step_size", chosen, qp.b, (len(qp),), allow_negative=True).expand(len(qp))
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


def _dual_step(qp: QP, chosen: ArrayLike, step: Tensor, spec: _Spectrum) -> Tensor:
    """η (batch,): 0.9 of the largest safe value by default; chosen ones must satisfy both conditions."""
    gap = step * spec.constraint_norm.square()
    bound = torch.clamp(4 - 2 * step * spec.largest, max=1.0)  # on ηγ‖C‖²
    if chosen is None:
        return torch.where(gap > 0, 0.9 * bound / gap.clamp_min(torch.finfo(gap.dtype).tiny), torch.ones_like(gap))
    eta = per_instance("dual_step", chosen, qp.b, (len(qp),), allow_negative=True).expand(len(qp))
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


def _momentum(step: Tensor, spec: _Spectrum) -> Tensor:
    """β = (1 − √(γμ)) / (1 + √(γμ)), the constant momentum for a strongly convex objective, (batch,)."""
    root = (step * spec.smallest).sqrt()
    return (1 - root) / (1 + root)
