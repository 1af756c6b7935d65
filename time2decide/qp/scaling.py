"""Units: variables and constraints of very different sizes are made of one size before anything is solved."""

from __future__ import annotations

import numpy as np
import torch

from time2decide.qp.problem import QP

_UNEVEN = 1e8  # ratio of the diagonal entries of A from which on variables count as of different sizes


def variable_units(diagonal: np.ndarray) -> np.ndarray:
    """Factors r (batch, n) for x̂ = r·x: square roots of the diagonal of A where its entries are uneven, 1 elsewhere."""
    if diagonal.max() <= _UNEVEN * diagonal.min():  # all of them at once: the usual case
        return np.ones(diagonal.shape)
    used = diagonal > 0
    low = np.where(used, diagonal, np.inf).min(axis=1, keepdims=True)
    uneven = used & (diagonal.max(axis=1, keepdims=True) > _UNEVEN * low)
    return np.sqrt(np.where(uneven, diagonal, 1.0))


def evened(qp: QP) -> tuple[QP, tuple[np.ndarray, np.ndarray]]:
    """The same problem in x̂ = r·x and with rows of C of length one where its variables are uneven; r and the lengths.

    Tolerances, which are relative to the whole problem, would not see the small ones. dual = dual̂ / lengths. Even
    problems stay as they are to the last bit, and so do those with ℓ1 terms, which tie the variables' units together.
    """
    r = variable_units(qp.A.diagonal(dim1=1, dim2=2).numpy())
    w = np.ones(tuple(qp.d.shape))
    if qp.l1_penalty is not None or qp.l1_radius is not None or (r == 1).all():
        return qp, (np.ones_like(r), w)
    units = torch.from_numpy(r)
    C = qp.C / units.unsqueeze(1)
    length = C.norm(dim=-1).numpy()
    w = np.where((r != 1).any(axis=1, keepdims=True) & (length > 0), length, w)
    lengths = torch.from_numpy(w)
    A = qp.A / (units.unsqueeze(1) * units.unsqueeze(2))
    return QP(A, qp.b / units, C / lengths.unsqueeze(-1), qp.d / lengths, check=False), (r, w)


def settle_trivial(qp: QP, x: np.ndarray, dual: np.ndarray) -> bool:
    """Where rounding is all there is: a radius of 0 leaves only x = 0, and without an objective nothing pulls.

    Returns whether there was any.
    """
    point = np.zeros(len(qp), dtype=bool) if qp.l1_radius is None else qp.l1_radius.numpy() == 0
    flat = ~qp.b.any(1).numpy() if qp.l1_penalty is None else np.zeros_like(point)
    flat[flat] = ~qp.A[torch.from_numpy(flat)].flatten(1).any(1).numpy()
    x[point], dual[flat] = 0.0, 0.0
    return bool(point.any() or flat.any())
