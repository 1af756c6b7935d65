"""The constructions by name: which problems each one solves, and how it is set up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from time2decide.attention import (
    acceleration,
    admm,
    arrow_hurwicz,
    classical,
    gradient,
    ista,
    newton_schulz,
    projected_gradient,
)
from time2decide.attention.loop import Algorithm
from time2decide.attention.step_sizes import dual_step, momentum, primal_step, spectrum
from time2decide.core.validation import InputError, expect, validate_choice
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
        return (primal_step(qp, options.get("step_size"), spectrum(qp), limit=limit),)

    return arguments


def _primal_dual_arguments(qp: QP, options: dict[str, Any]) -> tuple[Any, ...]:
    spec = spectrum(qp)
    step = primal_step(qp, options.get("step_size"), spec, limit=2)
    return step, dual_step(qp, options.get("dual_step"), step, spec)


def _momentum_arguments(qp: QP, options: dict[str, Any]) -> tuple[Any, ...]:
    spec = spectrum(qp)
    step = primal_step(qp, options.get("step_size"), spec, limit=1)
    return step, momentum(step, spec)


def _splitting_arguments(qp: QP, options: dict[str, Any]) -> tuple[Any, ...]:
    spectrum(qp)  # checks that A is positive definite
    return (admm.split(qp, **options),)


def _inverse_arguments(qp: QP, options: dict[str, Any]) -> tuple[Any, ...]:
    spec = spectrum(qp)
    return (2 / (spec.largest + spec.smallest),)


def _forms(module: Any, reference: Builder | None) -> dict[str, Builder]:
    forms = {"state": module.state_form, "literal": module.literal}
    return forms | {"classical": reference} if reference else forms


_ADMM_OPTIONS = ("rho", "alpha", "inverse_by")
METHODS: dict[str, Method] = {
    "gradient": Method(("U",), _gradient_arguments(2), _forms(gradient, classical.gradient)),
    "arrow_hurwicz": Method(
        ("LC",),
        _primal_dual_arguments,
        _forms(arrow_hurwicz, classical.arrow_hurwicz),
        ("step_size", "dual_step"),
    ),
    "ista": Method(("R",), _gradient_arguments(1), _forms(ista, classical.ista)),
    "projected_gradient": Method(
        ("C",), _gradient_arguments(1), _forms(projected_gradient, classical.projected_gradient)
    ),
    "nesterov": Method(("U",), _momentum_arguments, _forms(acceleration, classical.accelerated)),
    "fista": Method(("R", "C"), _momentum_arguments, _forms(acceleration, classical.accelerated)),
    "admm": Method(("LC", "R", "C"), _splitting_arguments, _forms(admm, classical.admm), _ADMM_OPTIONS),
    "newton_schulz": Method(("U",), _inverse_arguments, _forms(newton_schulz, classical.newton_schulz), ()),
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
    unknown = set(options) - set(chosen.options)
    if unknown:
        allowed = ", ".join(chosen.options) or "no options"
        raise InputError(f"{sorted(unknown)[0]}: expected {allowed} for method {method!r}, found an unknown option")
    return chosen.forms[form](qp, *chosen.arguments(qp, options))
