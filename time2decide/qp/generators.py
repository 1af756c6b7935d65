"""Random problems of the paper's distribution, the same with a shifted condition number, and textbook problems."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from time2decide.core.validation import expect, validate_choice, validate_count, validate_positive
from time2decide.qp.problem import QP

#: The paper's nine sizes (n, m).
PAPER_SIZES = ((5, 3), (7, 3), (7, 6), (10, 3), (10, 6), (10, 9), (15, 10), (20, 8), (20, 16))
#: The paper's four shifted ranges of κ.
KAPPA_RANGES = ((1.2, 2.0), (2.0, 5.0), (5.0, 10.0), (10.0, 20.0))
_KINDS = ("U", "LC", "R", "C")


def random_qp(
    batch: int,
    n: int,
    m: int = 0,
    *,
    kind: str | None = None,
    kappa: tuple[float, float] | None = None,
    seed: int | np.random.Generator = 0,
) -> QP:
    """`batch` problems of the paper's distribution, float64.

    A = GGᵀ + 0.1·I with Gaussian G (n × n), b and C Gaussian, d uniform on [1, 2], so that x = 0 is feasible.
    The ℓ1 weight of class R is uniform on [0.1, 1] and the ℓ1 radius of class C uniform on [0.5, 2]; the paper
    does not give its own.

    Parameters
    ----------
    kind : {"U", "LC", "R", "C"}
        By default LC when there are constraints and U when there are none.
    kappa : (low, high), optional
        Shift of the condition number: column j of G is multiplied by κ^((j−1)/(n−1)) with log κ uniform on the
        range, and GGᵀ is rescaled to the Frobenius norm it had, before 0.1·I is added.
    seed : int or numpy Generator
    """
    validate_count("batch", batch)
    validate_count("n", n)
    validate_count("m", m, least=0)
    kind = ("LC" if m else "U") if kind is None else kind
    validate_choice("kind", kind, _KINDS)
    expect((kind == "LC") == (m > 0), "m", f"{'at least 1' if kind == 'LC' else '0'} for kind {kind}", m)
    rng = (
        seed if isinstance(seed, np.random.Generator) else np.random.default_rng(validate_count("seed", seed, least=0))
    )
    G = rng.standard_normal((batch, n, n))
    gram = G @ G.transpose(0, 2, 1)
    if kappa is not None:
        gram = _shift_condition(G, gram, kappa, rng)
    fields = {"A": gram + 0.1 * np.eye(n), "b": rng.standard_normal((batch, n))}
    if kind == "LC":
        fields |= {"C": rng.standard_normal((batch, m, n)), "d": rng.uniform(1.0, 2.0, (batch, m))}
    elif kind == "R":
        fields["l1_penalty"] = rng.uniform(0.1, 1.0, batch)
    elif kind == "C":
        fields["l1_radius"] = rng.uniform(0.5, 2.0, batch)
    return QP(**{name: torch.from_numpy(value) for name, value in fields.items()}, check=False)


def _shift_condition(
    G: np.ndarray, gram: np.ndarray, kappa: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
    expect(isinstance(kappa, (tuple, list)) and len(kappa) == 2, "kappa", "a pair (low, high)", f"{kappa!r}")
    low, high = (validate_positive("kappa", bound) for bound in kappa)
    expect(1 <= low <= high, "kappa", "a range 1 <= low <= high", kappa)
    batch, n, _ = G.shape
    factor = np.exp(rng.uniform(np.log(low), np.log(high), (batch, 1)))
    scaled = G * (factor ** (np.arange(n) / max(n - 1, 1)))[:, None, :]  # (batch, n, n), column j scaled
    shifted = scaled @ scaled.transpose(0, 2, 1)
    norms = np.linalg.norm(gram, axis=(1, 2)) / np.linalg.norm(shifted, axis=(1, 2))
    return shifted * norms[:, None, None]


class Reference(NamedTuple):
    """A problem whose answer is known on paper."""

    name: str
    qp: QP
    x: np.ndarray
    dual: np.ndarray


def reference_problems() -> list[Reference]:
    """Small problems with answers worked out by hand, one or more for each class."""
    eye, none = np.eye(2), np.zeros(0)
    return [
        # Ax = -b with A = [[2, 1], [1, 2]]
        Reference("unconstrained", QP([[2.0, 1.0], [1.0, 2.0]], [-3.0, -3.0]), np.array([1.0, 1.0]), none),
        # nearest point of the half plane x1 + x2 <= 1 to (1, 1)
        Reference("half-plane", QP(eye, [-1.0, -1.0], [[1.0, 1.0]], [1.0]), np.array([0.5, 0.5]), np.array([0.5])),
        # a corner: both x1 <= 1 and x2 <= 2 are active at the nearest point to (3, 5)
        Reference("corner", QP(eye, [-3.0, -5.0], eye, [1.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, 3.0])),
        # a constraint that does not matter
        Reference("inactive", QP(eye, [-1.0, 0.0], [[1.0, 0.0]], [7.0]), np.array([1.0, 0.0]), np.array([0.0])),
        # with A = I the l1 penalty is soft-thresholding of -b
        Reference("lasso", QP(eye, [-3.0, 0.5], l1_penalty=1.0), np.array([2.0, 0.0]), none),
        # and the l1 radius is projection of -b onto the ball: (3, 1) -> (2, 0)
        Reference("l1-ball", QP(eye, [-3.0, -1.0], l1_radius=2.0), np.array([2.0, 0.0]), none),
    ]
