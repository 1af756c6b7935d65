"""The paper's runtime tables: one attention layer, in its state form and in its literal form, and one classical step.

All run through the same loop body on the same problems, one thread, interleaved. The classical step is the best we can
write: everything constant is formed once, and the projection sorts. The state form (`attention_us`, `overhead`) applies
KᵀV, formed once per problem; for U and R that is the same operation as the classical step. The literal form
(`literal_us`, `literal_overhead`) computes token matrices, scores and feed-forward networks in every layer, as in the
proofs. `paper` is the overhead the paper prints for its own pair of implementations.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from time2decide.attention import Algorithm, build
from time2decide.bench.timing import interleaved, one_thread, ratio
from time2decide.qp import QP, random_qp

_METHODS = {"U": "gradient", "R": "ista", "C": "projected_gradient", "LC": "arrow_hurwicz"}
_PLACEMENTS = 8
_PAPER = {
    "U": {16: 1.25, 32: 1.08, 64: 1.04, 128: 1.08},
    "R": {16: 1.35, 32: 1.12, 64: 1.09, 128: 1.09},
    "C": {16: 3.37, 32: 1.67, 64: 1.39, 128: 1.14},
}
_PAPER_LC = {
    (16, 8): 1.25,
    (16, 16): 1.18,
    (32, 8): 1.07,
    (32, 16): 1.02,
    (32, 32): 1.02,
    (64, 16): 1.04,
    (64, 32): 0.99,
    (64, 64): 1.05,
    (128, 32): 1.19,
    (128, 64): 1.20,
}


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per class, size and batch."""
    cases = [(kind, n, 0, value) for kind, sizes in _PAPER.items() for n, value in sizes.items()]
    cases += [("LC", n, m, value) for (n, m), value in _PAPER_LC.items()]
    if quick:
        cases = [case for case in cases if case[1] == 16]
    with one_thread(), torch.no_grad():
        return [
            {**measure(kind, n, m, batch, rounds=5 if quick else 101), "paper": paper}
            for kind, n, m, paper in cases
            for batch in (1, 256)
        ]


def measure(kind: str, n: int, m: int, batch: int, *, rounds: int) -> dict[str, Any]:
    """Time per step of the classical iteration and of both forms of the layer, on one thread of the caller's choice."""
    qp = random_qp(batch, n, m, kind=kind, seed=n + m)
    state = _side_by_side(qp, kind, "state", _PLACEMENTS, max(1, rounds // _PLACEMENTS))
    literal = _side_by_side(qp, kind, "literal", 2, max(1, rounds // 32))  # far slower: fewer rounds settle it
    return {
        "problem": kind,
        "n": n,
        "m": m,
        "batch": batch,
        "classical_us": 1e6 * median(state["classical"]),
        "attention_us": 1e6 * median(state["state"]),
        "overhead": ratio(state, "state", "classical"),
        "literal_us": 1e6 * median(literal["literal"]),
        "literal_overhead": ratio(literal, "literal", "classical"),
    }


def _side_by_side(qp: QP, kind: str, form: str, placements: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of the classical iteration and of a form of the layer, interleaved."""
    times: dict[str, list[float]] = {"classical": [], form: []}
    for placement in range(placements):
        # where the arrays happen to lie in memory moves a ratio by 5%: build both anew, in alternating order
        order = list(times) if placement % 2 == 0 else list(times)[::-1]
        warm_up = 3 if form == "literal" else 100
        peers = {name: _steps(build(qp, _METHODS[kind], name), qp, warm_up) for name in order}
        probe = interleaved(peers, rounds=2 if form == "literal" else 5)
        repeat = {name: max(1, int(1e-3 / median(found))) for name, found in probe.items()}  # about 1 ms each
        for name, values in interleaved(peers, rounds=rounds, repeat=repeat).items():
            times[name] += values
    return times


def _steps(algorithm: Algorithm, qp: QP, warm_up: int) -> Callable[[], None]:
    """A call that takes one more step from where the last one ended, after `warm_up` steps from zero."""
    state = algorithm.start(qp.b.new_zeros(len(qp), qp.n), qp.b.new_zeros(len(qp), qp.m))
    for _ in range(warm_up):
        state = algorithm.step(state)

    def one() -> None:
        nonlocal state
        state = algorithm.step(state)

    return one
