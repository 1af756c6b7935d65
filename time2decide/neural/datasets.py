"""Problems with their exact answers, drawn once per set of parameters and kept on disk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from time2decide.core.cache import cached_tensors
from time2decide.core.validation import expect, validate_count
from time2decide.neural.tokens import feasible_start, tokenise
from time2decide.qp import QP, random_qp, solve_exact

#: The paper's seeds of the training, validation and test sets.
PAPER_SEEDS = {"train": 42, "validation": 43, "test": 44}
_FORMAT = 1  # part of the key: raise it when the meaning of a stored set changes


@dataclass(frozen=True)
class LabelledQPs:
    """Problems, their exact answers and a feasible start for each; float32.

    The problems are rounded to float32 before they are solved (in float64), so the answers are those of the data
    a model sees.
    """

    qp: QP
    x: Tensor  # (batch, n) exact solutions
    dual: Tensor  # (batch, m) exact multipliers
    x_init: Tensor  # (batch, n) random feasible points

    def __len__(self) -> int:
        return len(self.qp)

    def tokens(self) -> Tensor:
        """The paper's tokens, (batch, n + m + 3, max(n, m))."""
        return tokenise(self.qp, self.x_init)

    @property
    def constrained(self) -> Tensor:
        """Where at least one constraint holds the solution, (batch,) of bool: a multiplier is positive."""
        return (self.dual > 1e-6).any(-1)


def paper_counts(n: int) -> dict[str, int]:
    """The paper's numbers of instances: 50,000/10,000/10,000 up to ten variables and twice that above."""
    factor = 1 if n <= 10 else 2
    return {"train": 50_000 * factor, "validation": 10_000 * factor, "test": 10_000 * factor}


def labelled_qps(
    count: int,
    n: int,
    m: int,
    *,
    seed: int,
    kappa: tuple[float, float] | None = None,
    cache: bool = True,
    workers: int | None = None,
) -> LabelledQPs:
    """`count` problems of the paper's distribution with exact answers, from the disk where they are there already.

    Parameters
    ----------
    seed : int
        Fixes problems and starts; take a different one for each split.
    kappa : (low, high), optional
        Shift of the condition number, as in `random_qp`.
    cache : bool
        Keep the set on disk under a hash of all parameters.
    workers : int, optional
        Processes of the exact solver.
    """
    validate_count("count", count)
    validate_count("seed", seed, least=0)
    key = {"kind": f"qps-n{n}-m{m}", "count": count, "n": n, "m": m, "seed": seed, "kappa": kappa, "format": _FORMAT}
    return _assemble(cached_tensors(key, lambda: _draw(count, n, m, seed, kappa, workers), enabled=cache))


def _draw(
    count: int, n: int, m: int, seed: int, kappa: tuple[float, float] | None, workers: int | None
) -> dict[str, Tensor]:
    qp = random_qp(count, n, m, kappa=kappa, seed=seed).to(torch.float32)
    answer = solve_exact(qp, workers=workers)
    unsolved = int((answer.status != "optimal").sum())
    expect(not unsolved, "seed", "problems that all have an answer", f"{unsolved} without one")
    start = feasible_start(qp, torch.Generator().manual_seed(seed))
    return {"A": qp.A, "b": qp.b, "C": qp.C, "d": qp.d, "x": answer.x, "dual": answer.dual, "x_init": start}


def _assemble(tensors: dict[str, Tensor]) -> LabelledQPs:
    fields = {name: tensors[name] for name in ("A", "b", "C", "d")}
    return LabelledQPs(QP(**fields, check=False), tensors["x"], tensors["dual"], tensors["x_init"])
