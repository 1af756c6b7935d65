"""One decision with linear limits, in units of size 1, and PIQP's answer to it: sparse, and linear in the factors of Σ.

    minimise  ½ sᵀQs − qᵀs + Σ c_i t_i   over   l ≤ s ≤ u,  low ≤ As ≤ high,  Σ t_i ≤ γ,  t_i ≥ |s_i − p_i|

A factor covariance enters as Q = BBᵀ + diag D with ‖y‖² for y = Bᵀs, so that nothing of size N × N is formed. An asset
with p between its bounds is bought or sold: t = 2v − (s − p) with v ≥ 0 and v ≥ s − p. Others can only be bought or
only be sold, t = ±(s − p), and need no v; an asset whose bounds meet is a constant. The sum of the absolute weights
has the same form, with 0 in the place of p.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from time2decide.markets.turnover_path import Curvature, curvature_product

_FIRST = {"eps_abs": 1e-10, "eps_rel": 1e-10, "eps_duality_gap_abs": 1e-10, "eps_duality_gap_rel": 1e-10}
_CAREFUL = {
    "eps_abs": 1e-12,
    "eps_rel": 1e-13,
    "eps_duality_gap_abs": 1e-12,
    "eps_duality_gap_rel": 1e-13,
}
SETTINGS = (_FIRST, _CAREFUL, _CAREFUL | {"preconditioner_iter": 0})  # tried in turn


class ScaledDecision(NamedTuple):
    """One decision from a start within its bounds, scaled so that slopes and curvature are of size 1.

    The rows of A are the limits and, last, the net exposure; `rate` is what cash earns, and is taken off q.
    """

    Q: Curvature
    q: np.ndarray  # (m,)
    p: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    cost: np.ndarray
    A: np.ndarray  # (rows, m)
    low: np.ndarray  # (rows,)
    high: np.ndarray
    budget: float  # γ of ‖s − p‖₁ ≤ γ
    gross: float = np.inf  # of ‖s‖₁
    rate: float = 0.0

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and most of what `activity` counts, (rows + 2,)."""
        return np.append(self.low, [-np.inf, -np.inf]), np.append(self.high, [self.budget, self.gross])

    def activity(self, s: np.ndarray) -> np.ndarray:
        """As, ‖s − p‖₁ and ‖s‖₁, (rows + 2,)."""
        return np.append(self.A @ s, [np.abs(s - self.p).sum(), np.abs(s).sum()])


class _Absolute(NamedTuple):
    """|s − centre| of the free assets as sign·(s − centre) + 2v: the signs, and the assets that have a v."""

    sign: np.ndarray  # (k,)
    both: np.ndarray  # of int, places of the assets on both sides of the centre
    centre: np.ndarray  # (k,)

    @classmethod
    def of(cls, centre: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> _Absolute:
        return cls(np.where(centre > lower, -1.0, 1.0), np.flatnonzero((centre > lower) & (centre < upper)), centre)

    def add_rows(self, G: _Entries, row: int, v: int, most: float) -> np.ndarray:
        """The rows s − v ≤ centre and Σ|s − centre| ≤ most from `row` on, and their right-hand sides."""
        place = np.arange(len(self.both))
        G.single(1.0, row + place, self.both)
        G.single(-1.0, row + place, v + place)
        G.dense(self.sign[None], row + len(place))
        G.single(2.0, np.full(len(place), row + len(place)), v + place)
        return np.append(self.centre[self.both], most + self.sign @ self.centre)


class _Entries:
    """A sparse matrix, block by block."""

    def __init__(self) -> None:
        self.parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def dense(self, block: np.ndarray, row: int, column: int = 0) -> None:
        """A block whose first entry is at (row, column)."""
        i, j = block.nonzero()
        self.parts.append((block[i, j], i + row, j + column))

    def single(self, values: Any, rows: np.ndarray, columns: np.ndarray) -> None:
        """One entry a row."""
        self.parts.append((np.broadcast_to(values, rows.shape), rows, columns))

    def matrix(self, rows: int, columns: int) -> Any:
        """In columns, as PIQP wants it."""
        from scipy.sparse import csc_matrix

        if not self.parts:
            return csc_matrix((rows, columns))
        values, i, j = (np.concatenate(part) for part in zip(*self.parts, strict=True))
        order = np.argsort(j * rows + i, kind="stable")
        starts = np.concatenate([[0], np.bincount(j, minlength=columns).cumsum()])
        return csc_matrix((values[order], i[order].astype(np.int32), starts.astype(np.int32)), shape=(rows, columns))


class Lifted(NamedTuple):
    """The arguments of PIQP's `setup`, and where the answer has the weights and the prices."""

    arguments: tuple[Any, ...]  # P, q, E, e, G, low, high, lb, ub
    fixed: np.ndarray  # (m,) the weights whose bounds meet, 0 for the others
    free: np.ndarray  # of int
    equal: np.ndarray  # (rows,) of bool
    spent: int  # the row of G that has the turnover budget
    last: int  # and the one that has the sum of absolute weights, the same if there is no limit on it


def lift_decision(one: ScaledDecision) -> Lifted:
    """The decision as a sparse quadratic program."""
    movable, equal = one.lower < one.upper, one.low == one.high
    free, s = movable.nonzero()[0], np.where(movable, 0.0, one.lower)
    k, base, with_size = len(free), one.A @ s, one.gross < np.inf
    trade = _Absolute.of(one.p[free], one.lower[free], one.upper[free])
    G, already = _Entries(), float(np.abs(s - one.p)[~movable].sum())
    high, width = [trade.add_rows(G, 0, k, one.budget - already)], k + len(trade.both)
    spent = last = len(trade.both)
    if with_size:
        size = _Absolute.of(np.zeros(k), one.lower[free], one.upper[free])
        high.append(size.add_rows(G, spent + 1, width, one.gross - np.abs(s).sum()))
        width, last = width + len(size.both), spent + 1 + len(size.both)
    G.dense(one.A[np.ix_(~equal, free)], last + 1)
    high.append((one.high - base)[~equal])
    P, q, E, e = _objective(one, free, s, trade, width)
    E.dense(one.A[np.ix_(equal, free)], len(e))
    n, e, h = len(q), np.append(e, (one.high - base)[equal]), np.concatenate(high)
    low = np.append(np.full(last + 1, -np.inf), (one.low - base)[~equal])
    lb, ub = np.full(n, -np.inf), np.full(n, np.inf)
    lb[:k], lb[k:width], ub[:k] = one.lower[free], 0.0, one.upper[free]
    arguments = P.matrix(n, n), q, E.matrix(len(e), n), e, G.matrix(len(h), n), low, h, lb, ub
    return Lifted(arguments, s, free, equal, spent, last)


def interior_point(one: ScaledDecision, settings: dict[str, float]) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights (m,) and the prices of `activity` (rows + 2,) by PIQP; None if it sees no feasible point."""
    import piqp

    lifted = lift_decision(one)
    solver = piqp.SparseSolver()
    for key, value in settings.items():
        setattr(solver.settings, key, value)
    solver.setup(*lifted.arguments)
    if solver.solve() == piqp.PIQP_PRIMAL_INFEASIBLE:
        return None
    found, s, equal, prices = solver.result, lifted.fixed, lifted.equal, np.zeros(len(one.A) + 2)
    s[lifted.free] = found.x[: len(lifted.free)]
    pull, equations = np.array(found.z_u) - np.array(found.z_l), np.array(found.y)
    prices[:-2][~equal], prices[:-2][equal] = pull[lifted.last + 1 :], equations[len(equations) - equal.sum() :]
    prices[-2] = max(pull[lifted.spent], 0.0)
    prices[-1] = max(pull[lifted.last], 0.0) if one.gross < np.inf else 0.0
    return s, prices


def _objective(
    one: ScaledDecision, free: np.ndarray, fixed: np.ndarray, trade: _Absolute, width: int
) -> tuple[_Entries, np.ndarray, _Entries, np.ndarray]:
    """P and q of all variables, of which the first `width` are not factors, and the equations of the factors."""
    Q, P, E = one.Q, _Entries(), _Entries()
    slope = one.cost[free] * trade.sign - one.q[free]
    q = np.zeros(width if Q.S.size else width + Q.B.shape[1])
    if Q.S.size:
        P.dense(Q.factor * Q.S[np.ix_(free, free)], 0)
        slope = slope + curvature_product(Q, fixed)[free]  # type: ignore[no-untyped-call]
        e = np.zeros(0)
    else:
        root, factors, place = np.sqrt(Q.factor), np.arange(Q.B.shape[1]), np.arange(len(free))
        P.single(Q.factor * Q.D[free], place, place)
        P.single(1.0, width + factors, width + factors)
        E.dense(root * Q.B[free].T, 0)
        E.single(-1.0, factors, width + factors)
        e = -root * (fixed @ Q.B)
    q[: len(free)] = slope
    q[len(free) : len(free) + len(trade.both)] = 2 * one.cost[free][trade.both]
    return P, q, E, e
