"""The portfolio problem with linear limits: active sets, from a similar decision or from PIQP, and their certificate.

With the prices y of the limits and of the net exposure, θ of the turnover budget and ρ of the gross limit, every asset
is either at a kink of φ(s) = (c + θ)|s − p| + ρ|s| on [l, u] (at l, p, 0 or u) or free between two. The equations of an
active set are solved to rounding; what contradicts itself changes, until nothing does. Every answer is certified by

    gap ≤ Σ_i max_v [(q − Qs − Aᵀy)_i (v − s_i) − φ_i(v) + φ_i(s_i)] + Σ y·(distance to the end that it prices),

which is computed from the data and the answer alone. Where no active set can be read from PIQP's point, as with weights
of the size of its rounding, the feasible point nearest to it is the answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from time2decide.core.validation import InputError
from time2decide.markets.constraints import Constraints, refuse_contradictions
from time2decide.markets.portfolio import CERTIFIED, PortfolioProblem
from time2decide.markets.portfolio_interior import SETTINGS, ScaledDecision, interior_point
from time2decide.markets.turnover_path import (
    AT_LOWER,
    AT_UPPER,
    BOUGHT,
    SOLD,
    UNTOUCHED,
    Curvature,
    curvature_diagonal,
    curvature_product,
)

_ACTIVE = (1e-6, 1e-8, 1e-4)  # distances at which something counts as active, tried in turn
_FINE = (1e-10, 1e-12, 1e-7, 1e-9)  # and where that leaves an answer that is not certified: weights may be as small
_ROUNDING = 1e-13  # a gap that cannot be told from none
_GOOD = 1e-6  # infeasibility up to which an answer of the interior-point method shows that there is one
_NEAR = 1e3  # units of infeasibility within which a feasible point is sought
_UNITS = np.array([1.0, 1e3, 1e6])  # tried in turn, as multiples of the infeasibility
_EXACT = 1e-12  # infeasibility that counts as none
_ROUNDS = 20
_FEW = 40  # assets that come into play at once where Σ has no factors
_PULLED = 1e-9  # by which the prices must pull at an asset that is not in play
_MANY = 1_000  # free assets up to which singular equations are solved by least squares


class Answer(NamedTuple):
    """Weights (m,), the prices of `ScaledDecision.activity` (rows + 2,), and the gap that they prove."""

    s: np.ndarray
    y: np.ndarray
    gap: float = np.inf


class ActiveSet(NamedTuple):
    """For each asset the kink that it is at or, if it is free, the one below; for each row the end that it is at."""

    fixed: np.ndarray  # (m,) bool
    kink: np.ndarray  # (m,) of int
    rows: np.ndarray  # (rows + 2,) of int: 1 at the high end, −1 at the low, 0 at none


def repair_general_rows(
    problem: PortfolioProblem,
    rows: np.ndarray,
    weights: np.ndarray,
    report: np.ndarray,
    classes: np.ndarray,
    eta: np.ndarray,
    guessed: bool = False,
) -> None:
    """Solve the given rows by active sets and interior points, in place; an answer is replaced only by a better one.

    With `guessed`, weights, prices and classes are those of a similar decision, whose active set is tried first; else
    that of the row before, if it starts from the same weights.
    """
    sizes, before = np.array([limit.size for limit in problem.limits]), None
    for row in rows:
        one, scale, shift = scaled_decision(problem, int(row))
        guess = None
        if guessed:
            prices = np.append(eta[row] * sizes / scale, (report[row, 1] - shift) / scale - one.rate)
            guess = weights[row], np.append(prices, [report[row, 0] / scale, 0.0]), classes[row]
        elif before is not None and np.array_equal(before[0], one.p):
            guess = before[1]
        try:
            answer = solve_decision(one, guess)
        except InputError:
            _name_the_conflict(problem, int(row))
            raise
        if report[row, 3] >= 0 and not answer.gap < report[row, 2]:
            continue
        weights[row] = answer.s
        report[row] = answer.y[-2] * scale, (answer.y[-3] + one.rate) * scale + shift, answer.gap, 0
        classes[row] = _classes(one, answer.s, 1e-13)
        eta[row] = answer.y[:-3] * scale / sizes
        before = one.p, (answer.s, answer.y, classes[row].copy())


def _name_the_conflict(problem: PortfolioProblem, i: int) -> None:
    """Raise with the names of the constraints that no portfolio meets together, if the linear programs agree."""
    names = problem.assets or tuple(f"asset {j}" for j in range(problem.mean.shape[1]))
    cash = (float(problem.cash[i, 0]), float(problem.cash[i, 1]))
    bounds = problem.lower[i], problem.upper[i], float(problem.exposure[i])
    constraints = Constraints(*bounds, cash, limits=problem.limits)
    refuse_contradictions(constraints, names)
    refuse_contradictions(constraints, names, problem.previous[i], float(problem.turnover_l1[i]))


def scaled_decision(problem: PortfolioProblem, i: int) -> tuple[ScaledDecision, float, float]:
    """Decision i in units of size 1, and what brings its prices back: the unit of slopes, and what is added to ν."""
    m, which = problem.mean.shape[1], problem.which[i]
    Q = Curvature(problem.dense[which], problem.loadings[which], problem.specific[which], 2 * problem.risk_aversion[i])
    q, p, budget = problem.linear[i], problem.start[0][i], min(float(problem.start[1][i]), _most_turnover(problem, i))
    slope = q - curvature_product(Q, p)  # type: ignore[no-untyped-call]
    shift, top = slope.max(), curvature_diagonal(Q, m).max()  # type: ignore[no-untyped-call]
    scale = max(float(np.ptp(slope)), float(top), float(problem.cost[i].max()), 1e-300)
    least, most, rate = map(float, problem.relative_cash[i])
    if most > least:
        scale = max(scale, abs(rate - float(shift)))
    rate = (rate - float(shift)) / scale if most > least else 0.0
    # An end that no trade within the budget comes near is none: numbers of its size would spoil the scaling.
    lower, upper = np.maximum(problem.lower[i], p - budget - 1), np.minimum(problem.upper[i], p + budget + 1)
    A, low, high = problem.limit_rows
    reach = _reach(A, lower, upper)
    low, high = np.where(low < reach[0] - 1, -np.inf, low), np.where(high > reach[1] + 1, np.inf, high)
    exposure = float(problem.exposure[i])
    one = ScaledDecision(
        Q._replace(factor=Q.factor / scale), (q - shift) / scale - rate, p, lower, upper, problem.cost[i] / scale,
        np.vstack([A, np.ones(m)]), np.append(low, exposure - most), np.append(high, exposure - least), budget,
        rate=rate,
    )  # fmt: skip
    return one, scale, float(shift)


def _most_turnover(problem: PortfolioProblem, i: int) -> float:
    """More than any portfolio trades: what is sold and bought again above the lower bounds."""
    lower, p = problem.lower[i], problem.start[0][i]
    held = float(problem.exposure[i] - problem.cash[i, 0] - lower.sum())  # above the lower bounds, at most
    return max(held, 0.0) + float((p - lower).sum()) + 1.0


def _reach(A: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and most of A @ s over lower ≤ s ≤ upper, one of each limit."""
    up, down = np.maximum(A, 0.0), np.minimum(A, 0.0)
    return up @ lower + down @ upper, up @ upper + down @ lower


Guess = tuple[np.ndarray, np.ndarray, np.ndarray]  # weights, prices and classes of a similar decision


@np.errstate(all="ignore")  # the gap judges what comes of numbers at the ends of what floats hold
def solve_decision(one: ScaledDecision, guess: Guess | None = None) -> Answer:
    """The best answer of the active set of `guess` and those near PIQP's points, until one is certified."""
    if guess is not None:
        found = _follow(one, _similar_set(one, *guess), Answer(*guess[:2]))
        if found is not None and found.gap <= CERTIFIED:
            return found
    best: Answer | None = None
    for settings in SETTINGS:
        some = guess is not None and best is None and one.Q.S.shape[0] > 2 * _FEW
        point = _by_columns(one, guess, settings) if guess and some else interior_point(one, settings)
        answer = None if point is None else _finished(one, Answer(*point))
        if answer is not None and (best is None or answer.gap < best.gap):
            best = answer
        if best is not None and best.gap <= CERTIFIED:
            break
    if best is None:
        raise InputError("constraints: expected constraints that some portfolio meets, found a contradiction")
    return best


def _by_columns(one: ScaledDecision, guess: Guess, settings: dict[str, float]) -> tuple[np.ndarray, np.ndarray] | None:
    """PIQP's point from the assets that prices bring into play, the others where a guess has them.

    Without factors of Σ the work of one step grows with the cube of the number of assets.
    """
    kinks, active, y = _kinks(one), _similar_set(one, *guess), guess[1]
    at = np.take_along_axis(kinks, active.kink[None], 0)[0]
    s, played, most = np.where(active.fixed, at, np.clip(guess[0], one.lower, one.upper)), ~active.fixed, _FEW
    a, left, right = _slopes(one, s, s, y)
    while int(played.sum()) + most < len(s):
        lazy = np.where(played, np.inf, np.minimum(right - a, a - left))  # how far the prices are from moving it
        played[np.argpartition(lazy, most)[:most]] = True
        low, high = np.where(played, one.lower, s), np.where(played, one.upper, s)
        point = interior_point(one._replace(lower=low, upper=high), settings)
        if point is None:
            most *= 4
            continue
        s, y = point
        a, left, right = _slopes(one, s, s, y)
        missing = ~played & ((a > right + _PULLED) | (a < left - _PULLED))
        if not missing.any():
            return point
        most = min(int(missing.sum()), _FEW)
    return interior_point(one, settings)


def _slopes(
    one: ScaledDecision, s: np.ndarray, at: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What pulls at each asset, and the slopes of φ to the left and the right of `at`, infinite at bounds."""
    a = one.q - curvature_product(one.Q, s) - y[:-2] @ one.A  # type: ignore[no-untyped-call]
    price, gross = one.cost + max(y[-2], 0.0), max(y[-1], 0.0)
    left = np.where(at > one.p, price, -price) + np.where(at > 0, gross, -gross)
    right = np.where(at >= one.p, price, -price) + np.where(at >= 0, gross, -gross)
    return a, np.where(at > one.lower, left, -np.inf), np.where(at < one.upper, right, np.inf)


def _finished(one: ScaledDecision, found: Answer) -> Answer | None:
    """The best certified answer near one of the interior-point method; None if nothing near it is feasible."""
    given = _certified(one, found.s, found.y)
    met = _feasible(one, given.s)
    best = _polished(one, given if met else given._replace(gap=np.inf), given, _ACTIVE)
    if not best.gap <= CERTIFIED:
        best = _polished(one, best, given, _FINE)
    if best.gap <= CERTIFIED or met:
        return best
    near = _nearest_feasible(one, found.s) if _feasible(one, found.s, _GOOD) else None
    if near is not None:
        given = _certified(one, near, found.y)
        best = _polished(one, min(best, given, key=lambda one: one.gap), given, (*_ACTIVE, *_FINE))
    return best if best.gap < np.inf else None


def _polished(one: ScaledDecision, best: Answer, given: Answer, tolerances: tuple[float, ...]) -> Answer:
    """The best of an answer and of those that the active sets near another lead to."""
    for tolerance in tolerances:
        answer = _follow(one, _nearby_set(one, given, tolerance), given)
        if answer is not None and answer.gap < max(best.gap, _ROUNDING):  # as good, and to the bit at its bounds
            best = answer
        if best.gap <= _ROUNDING:
            break
    return best


def _nearest_feasible(one: ScaledDecision, s: np.ndarray) -> np.ndarray | None:
    """The feasible point nearest to one that is infeasible by little, or None if a linear program finds none.

    The program is over steps δ, |δ| and τ ≥ |s + δ − p| − |s − p| in units of the infeasibility: in units of the
    weights its tolerance would be larger than what there is to repair.
    """
    from scipy import sparse
    from scipy.optimize import linprog

    s, m = np.clip(s, one.lower, one.upper), len(s)
    far, side, eye = np.abs(s - one.p), np.where(s >= one.p, 1.0, -1.0), sparse.identity(m)
    over, under = np.isfinite(one.high), np.isfinite(one.low)
    rows = np.vstack([one.A[over], -one.A[under]])
    room = np.append(np.append(one.high[over], -one.low[under]) - rows @ s, one.budget - far.sum())
    sides, size = sparse.diags(side), [[eye, -eye, None], [-eye, -eye, None]]
    parts = [[rows, None, None], [None, None, np.ones((1, m))], [sides, None, -eye], [-sides, None, -eye], *size]
    matrix = sparse.bmat(parts, format="csc")
    cost = np.repeat([0.0, 1.0, 0.0], m)
    for unit in max(-room.min(), _EXACT) * _UNITS:
        right = np.concatenate([(room + _EXACT / 2) / unit, np.zeros(m), 2 * far / unit, np.zeros(2 * m)])
        ends = np.maximum((one.lower - s) / unit, -_NEAR), np.minimum((one.upper - s) / unit, _NEAR)
        bounds = [*zip(*ends, strict=True), *[(-_NEAR, _NEAR)] * (2 * m)]
        found = linprog(cost, matrix, np.minimum(right, 2 * m * _NEAR), bounds=bounds)
        if found.status == 0 and _feasible(one, near := np.clip(s + unit * found.x[:m], one.lower, one.upper)):
            return np.asarray(near)
    return None


def _classes(one: ScaledDecision, s: np.ndarray, tolerance: float) -> np.ndarray:
    state = np.where(s > one.p, BOUGHT, SOLD)
    state[s >= one.upper - tolerance] = AT_UPPER
    state[s <= one.lower + tolerance] = AT_LOWER
    state[np.abs(s - one.p) <= tolerance] = UNTOUCHED
    return state


def _kinks(one: ScaledDecision) -> np.ndarray:
    """Where φ of each asset has a kink, in order, (kinks, m)."""
    inner = [one.p]
    if one.gross < np.inf:
        zero = np.clip(0.0, one.lower, one.upper)
        inner = [np.minimum(one.p, zero), np.maximum(one.p, zero)]
    return np.stack([one.lower, *inner, one.upper])


def _active_rows(one: ScaledDecision, s: np.ndarray, tolerance: float) -> np.ndarray:
    """At which end each row is; an equation always is."""
    value, (low, high) = one.activity(s), one.ends
    return np.where((value >= high - tolerance) | (low == high), 1, np.where(value <= low + tolerance, -1, 0))


def _nearby_set(one: ScaledDecision, given: Answer, tolerance: float) -> ActiveSet:
    """What is active at a point within a tolerance, p before any other kink; what has a price is spent."""
    kinks, s = _kinks(one), given.s
    away = np.abs(kinks - s)
    away[(kinks == one.p) & (away <= tolerance)] = 0.0
    nearest = away.argmin(axis=0)
    fixed = np.take_along_axis(away, nearest[None], 0)[0] <= tolerance
    below = np.clip((kinks <= s).sum(axis=0) - 1, 0, len(kinks) - 2)
    rows = _active_rows(one, s, tolerance)
    rows[-2:] = np.where(given.y[-2:] > 1e-9, 1, rows[-2:])
    return ActiveSet(fixed, np.where(fixed, nearest, below), rows)


def _similar_set(one: ScaledDecision, s: np.ndarray, y: np.ndarray, classes: np.ndarray) -> ActiveSet:
    """The active set that the classes and prices of a similar decision have in this one."""
    kinks, bought, sold = _kinks(one), classes == BOUGHT, classes == SOLD
    s = np.where(bought, np.clip(s, one.p, one.upper), np.where(sold, np.clip(s, one.lower, one.p), one.p))
    s = np.where(classes == AT_UPPER, one.upper, np.where(classes == AT_LOWER, one.lower, s))
    fixed = ~(bought | sold)
    kink = np.where(sold, (kinks < s).sum(axis=0), (kinks <= s).sum(axis=0)) - 1
    kink = np.where(fixed, kink, np.clip(kink, 0, len(kinks) - 2))
    low, high = one.ends
    rows = np.where(np.abs(y) > 1e-9, np.sign(y), 0).astype(int)
    return ActiveSet(fixed, kink, np.where(low == high, 1, rows))


def _follow(one: ScaledDecision, active: ActiveSet, guess: Answer) -> Answer | None:
    """Solve the equations of an active set, changing it where it contradicts itself; the best answer on the way."""
    best, kinks = None, _kinks(one)
    for _ in range(_ROUNDS):
        guess = _equations(one, kinks, active, guess)
        if not np.isfinite(guess.s).all():
            return best
        answer = _certified(one, guess.s, guess.y)
        if (best is None or answer.gap < best.gap) and _feasible(one, guess.s):
            best = answer
        before, active = active, _revised(one, kinks, active, answer, guess.s)
        if all(map(np.array_equal, before, active)):
            break
    return best


def _equations(one: ScaledDecision, kinks: np.ndarray, active: ActiveSet, guess: Answer) -> Answer:
    """s and y of an active set, by least squares of least distance from `guess` where it is not unique.

    Where nothing is free the equations say nothing of the prices, and those of the guess are the proof.
    """
    at = np.take_along_axis(kinks, active.kink[None], 0)[0]
    T, s = np.flatnonzero(~active.fixed), np.where(active.fixed, at, 0.0)
    trade, size = np.where(at[T] >= one.p[T], 1.0, -1.0), np.where(at[T] >= 0.0, 1.0, -1.0)
    chosen, (low, high), rows = np.flatnonzero(active.rows), one.ends, len(one.A)
    known = np.append(one.A @ s, [np.abs(s - one.p)[active.fixed].sum() - trade @ one.p[T], np.abs(s).sum()])
    C = np.vstack([one.A[:, T], trade, size])[chosen]
    right = (np.where(active.rows > 0, high, low) - known)[chosen]
    slope = (one.q - curvature_product(one.Q, s))[T] - trade * one.cost[T]  # type: ignore[no-untyped-call]
    x, prices = _solve_kkt(one.Q, T, C, slope, right, np.append(guess.s[T], guess.y[chosen]))
    s[T], y = x, np.zeros(rows + 2)
    y[chosen] = prices
    return Answer(s, y)


def _solve_kkt(
    Q: Curvature, T: np.ndarray, C: np.ndarray, slope: np.ndarray, right: np.ndarray, guess: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """x and y of Q_TT x + Cᵀy = slope, Cx = right; nearest to `guess` by least squares where they are singular."""
    k, n = C.shape[1], len(C)
    if not Q.S.size and k > 2 * (Q.B.shape[1] + n) and Q.D[T].min() > 0:
        found = _by_factors(np.sqrt(Q.factor) * Q.B[T], Q.factor * Q.D[T], C, slope, right)
        if found is not None or k > _MANY:
            return found or (guess[:k], guess[k:])
    block = Q.S[np.ix_(T, T)] if Q.S.size else Q.B[T] @ Q.B[T].T + np.diag(Q.D[T])
    matrix = np.block([[Q.factor * block, C.T], [C, np.zeros((n, n))]])
    both = np.append(slope, right)
    try:
        x = np.linalg.solve(matrix, both)
        x = x + np.linalg.solve(matrix, both - matrix @ x)
        if np.abs(x).max(initial=0.0) < 1e6 and np.abs(matrix @ x - both).max(initial=0.0) < 1e-14:
            return x[:k], x[k:]
    except np.linalg.LinAlgError:
        pass
    x = guess
    for _ in range(2):  # the second removes the rounding of the first
        x = x + np.linalg.lstsq(matrix, both - matrix @ x, rcond=1e-13)[0]
    return x[:k], x[k:]


def _by_factors(
    B: np.ndarray, D: np.ndarray, C: np.ndarray, slope: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """The same for Q_TT = BBᵀ + diag D by equations in the factors and prices alone; None where they are singular."""
    factors, W = B.shape[1], np.hstack([B, C.T])
    scaled = W / D[:, None]
    small = W.T @ scaled
    small[:factors, :factors] += np.eye(factors)
    x, y = np.zeros(len(D)), np.zeros(len(C))
    left, off = slope, right
    try:
        for _ in range(3):  # the others remove the rounding of the first
            z = np.linalg.solve(small, scaled.T @ left - np.append(np.zeros(factors), off))
            x, y = x + left / D - scaled @ z, y + z[factors:]
            left, off = slope - B @ (B.T @ x) - D * x - C.T @ y, right - C @ x
    except np.linalg.LinAlgError:
        return None
    missed = max(np.abs(left).max(initial=0.0), np.abs(off).max(initial=0.0))
    return (x, y) if missed < 1e-13 and np.abs(x).max(initial=0.0) < 1e6 else None


def _revised(one: ScaledDecision, kinks: np.ndarray, active: ActiveSet, answer: Answer, s: np.ndarray) -> ActiveSet:
    """The active set with what contradicts itself at the answer changed; `s` are its weights, not clipped."""
    fixed, kink, rows = active.fixed.copy(), active.kink.copy(), active.rows.copy()
    y, slack, last = answer.y, 1e-12, len(kinks) - 1
    at = np.take_along_axis(kinks, kink[None], 0)[0]
    a, left, right = _slopes(one, answer.s, at, y)
    rise, fall = active.fixed & (a > right + slack), active.fixed & (a < left - slack)
    kink[rise] = ((kinks <= at).sum(axis=0) - 1)[rise]
    kink[fall] = ((kinks < at).sum(axis=0) - 1)[fall]
    above = np.take_along_axis(kinks, np.minimum(active.kink + 1, last)[None], 0)[0]
    over, under = ~active.fixed & (s > above + 1e-14), ~active.fixed & (s < at - 1e-14)
    kink[over] += 1
    fixed = (active.fixed & ~rise & ~fall) | over | under
    value, (low, high) = one.activity(answer.s), one.ends
    value[:-2] = one.A @ s
    loose = low < high
    rows[loose & (rows * y < -slack)] = 0
    rows[(active.rows == 0) & (value > high + 1e-13)] = 1
    rows[(active.rows == 0) & (value < low - 1e-13)] = -1
    return ActiveSet(fixed, kink, rows)


def _feasible(one: ScaledDecision, s: np.ndarray, tolerance: float = _EXACT) -> bool:
    value, (low, high) = one.activity(s), one.ends
    inside = (s >= one.lower - tolerance).all() and (s <= one.upper + tolerance).all()
    return bool(inside and (value <= high + tolerance).all() and (value >= low - tolerance).all())


def _certified(one: ScaledDecision, s: np.ndarray, y: np.ndarray) -> Answer:
    """The answer with its gap; s is put inside its bounds first."""
    s, (low, high) = np.clip(s, one.lower, one.upper), one.ends
    up, down = np.where(high < np.inf, np.maximum(y, 0.0), 0.0), np.where(low > -np.inf, np.maximum(-y, 0.0), 0.0)
    y, value = up - down, one.activity(s)
    a = one.q - curvature_product(one.Q, s) - y[:-2] @ one.A  # type: ignore[no-untyped-call]
    far, size, most = np.abs(s - one.p), np.abs(s), np.zeros(len(s))
    for v in _kinks(one):
        gain = a * (v - s) - (one.cost + y[-2]) * (np.abs(v - one.p) - far) - y[-1] * (np.abs(v) - size)
        most = np.maximum(most, np.where(v != s, gain, 0.0))
    slack = up @ np.where(up > 0, np.maximum(high - value, 0.0), 0.0)
    slack += down @ np.where(down > 0, np.maximum(value - low, 0.0), 0.0)
    return Answer(s, y, float(most.sum() + slack))
