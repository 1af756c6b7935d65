"""The portfolio problem with general linear limits: Clarabel on the lifted problem, then an active-set polish.

Clarabel's answer says which bounds, trades and limits are active; the equations of that active set are solved to
rounding, and the result is certified by the same duality gap as every other answer. Where no active set can be read
from it, as with weights of the size of its rounding, the feasible point nearest to it is the answer.

    gap ≤ Σ_i max_v [(g_i − ν − (Aᵀη)_i)(v − s_i) − (c_i + θ)(|v − p_i| − |s_i − p_i|)] + θ(γ − ‖s−p‖₁) + limits + cash.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from time2decide.core.validation import InputError
from time2decide.markets.constraints import Constraints, refuse_contradictions
from time2decide.markets.portfolio import CERTIFIED, PortfolioProblem
from time2decide.markets.turnover_decision import turnover_duality_gap
from time2decide.markets.turnover_path import AT_LOWER, AT_UPPER, BOUGHT, SOLD, UNTOUCHED

_SETTINGS = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13, "verbose": False}
_REGULARISED = (1e-12, 1e-8)  # in turn: the first is exact more often, the second is the sturdier one
_ACTIVE = (1e-6, 1e-8, 1e-4)  # distances at which something counts as active, tried in turn
_FINE = (1e-10, 1e-12, 1e-7, 1e-9)  # and where that leaves an answer that is not certified: weights may be as small
_ROUNDING = 1e-13  # a gap that cannot be told from none
_GOOD = 1e-6  # infeasibility up to which an answer of the interior-point method shows that there is one
_NEAR = 1e3  # units of infeasibility within which a feasible point is sought
_UNITS = np.array([1.0, 1e3, 1e6])  # tried in turn, as multiples of the infeasibility
_EXACT = 1e-12  # infeasibility that counts as none
_ROUNDS = 20


class _Row(NamedTuple):
    """One decision from a start within its bounds, scaled so that slopes and curvature are of size 1."""

    Q: np.ndarray
    q: np.ndarray
    p: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    cost: np.ndarray
    budget: float
    exposure: float
    cash: np.ndarray
    A: np.ndarray
    low: np.ndarray
    high: np.ndarray


class _Answer(NamedTuple):
    s: np.ndarray
    theta: float
    nu: float
    eta: np.ndarray
    gap: float


def repair_general_rows(
    problem: PortfolioProblem,
    rows: np.ndarray,
    weights: np.ndarray,
    report: np.ndarray,
    classes: np.ndarray,
    eta: np.ndarray,
) -> None:
    """Solve the given rows by the second family of solvers, in place; an answer is replaced only by a better one."""
    sizes = np.array([limit.size for limit in problem.limits])
    for row in rows:
        one, scale, shift = scaled_general_row(problem, int(row))
        try:
            answer = solve_general_row(one)
        except InputError:
            _name_the_conflict(problem, int(row))
            raise
        if report[row, 3] >= 0 and not answer.gap < report[row, 2]:
            continue
        weights[row] = answer.s
        report[row] = answer.theta * scale, answer.nu * scale + shift, answer.gap, 0
        classes[row] = _classes(one, answer.s, 1e-13)
        eta[row] = answer.eta * scale / sizes


def _name_the_conflict(problem: PortfolioProblem, i: int) -> None:
    """Raise with the names of the constraints that no portfolio meets together, if the linear programs agree."""
    names = problem.assets or tuple(f"asset {j}" for j in range(problem.mean.shape[1]))
    cash = (float(problem.cash[i, 0]), float(problem.cash[i, 1]))
    bounds = problem.lower[i], problem.upper[i], float(problem.exposure[i])
    constraints = Constraints(*bounds, cash, limits=problem.limits)
    refuse_contradictions(constraints, names)
    refuse_contradictions(constraints, names, problem.previous[i], float(problem.turnover_l1[i]))


def scaled_general_row(problem: PortfolioProblem, i: int) -> tuple[_Row, float, float]:
    m = problem.mean.shape[1]
    which = problem.which[i]
    if problem.dense.size:
        Q = 2 * problem.risk_aversion[i] * problem.dense[which]
    else:
        B, D = problem.loadings[which], problem.specific[which]
        Q = 2 * problem.risk_aversion[i] * (B @ B.T + np.diag(D))
    q, p, budget = problem.linear[i], problem.start[0][i], min(float(problem.start[1][i]), _most_turnover(problem, i))
    slope = q - Q @ p
    shift = slope.max()
    scale = max(float(np.ptp(slope)), float(Q.diagonal().max()), float(problem.cost[i].max()), 1e-300)
    if problem.cash[i, 1] > problem.cash[i, 0]:
        scale = max(scale, abs(float(problem.relative_cash[i, 2] - shift)))
    money = problem.relative_cash[i].copy()
    money[2] = (money[2] - shift) / scale
    limits = [limit.scaled() for limit in problem.limits]
    A = np.stack([limit.coefficients for limit in limits]) if limits else np.zeros((0, m))
    low, high = np.array([limit.low for limit in limits]), np.array([limit.high for limit in limits])
    # An end that no trade within the budget comes near is none: numbers of its size would spoil the scaling.
    lower, upper = np.maximum(problem.lower[i], p - budget - 1), np.minimum(problem.upper[i], p + budget + 1)
    least, most = _reach(A, lower, upper)
    low, high = np.where(low < least - 1, -np.inf, low), np.where(high > most + 1, np.inf, high)
    row = _Row(
        Q / scale, (q - shift) / scale, p, lower, upper, problem.cost[i] / scale, budget, float(problem.exposure[i]),
        money, A, low, high,
    )  # fmt: skip
    return row, scale, float(shift)


def _most_turnover(problem: PortfolioProblem, i: int) -> float:
    """More than any portfolio trades: what is sold and bought again above the lower bounds."""
    lower, p = problem.lower[i], problem.start[0][i]
    held = float(problem.exposure[i] - problem.cash[i, 0] - lower.sum())  # above the lower bounds, at most
    return max(held, 0.0) + float((p - lower).sum()) + 1.0


def _reach(A: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and most of A @ s over lower ≤ s ≤ upper, one of each limit."""
    with np.errstate(invalid="ignore"):  # 0 · ∞
        ends = np.stack([A * lower, A * upper])  # (2, limits, m)
    ends[np.isnan(ends)] = 0.0
    return ends.min(axis=0).sum(axis=1), ends.max(axis=0).sum(axis=1)


@np.errstate(all="ignore")  # the gap judges what comes of numbers at the ends of what floats hold
def solve_general_row(row: _Row) -> _Answer:
    best: _Answer | None = None
    for regularised in _REGULARISED:
        found = _clarabel(row, regularised)
        answer = None if found is None else _finished(row, found)
        if answer is not None and (best is None or answer.gap < best.gap):
            best = answer
        if best is not None and best.gap <= CERTIFIED:
            break
    if best is None:
        raise InputError("constraints: expected constraints that some portfolio meets, found a contradiction")
    return best


def _finished(row: _Row, found: _Answer) -> _Answer | None:
    """The best certified answer near one of the interior-point method; None if nothing near it is feasible."""
    given = _certified(row, *found[:4])
    met = _feasible(row, given.s)
    best = _polished(row, given if met else given._replace(gap=np.inf), given, _ACTIVE)
    if not best.gap <= CERTIFIED:
        best = _polished(row, best, given, _FINE)
    if best.gap <= CERTIFIED or met:
        return best
    near = _nearest_feasible(row, found.s) if _feasible(row, found.s, _GOOD) else None
    if near is not None:
        given = _certified(row, near, *found[1:4])
        best = _polished(row, min(best, given, key=lambda one: one.gap), given, (*_ACTIVE, *_FINE))
    return best if best.gap < np.inf else None


def _polished(row: _Row, best: _Answer, given: _Answer, tolerances: tuple[float, ...]) -> _Answer:
    """The best of an answer and of those that the active sets near another lead to."""
    for tolerance in tolerances:
        answer = _polish(row, *given[:4], tolerance)
        if answer is not None and answer.gap < max(best.gap, _ROUNDING):  # as good, and to the bit at its bounds
            best = answer
        if best.gap <= _ROUNDING:
            break
    return best


def _nearest_feasible(row: _Row, s: np.ndarray) -> np.ndarray | None:
    """The feasible point nearest to one that is infeasible by little, or None if a linear program finds none.

    The program is over steps δ, |δ| and τ ≥ |s + δ − p| − |s − p| in units of the infeasibility: in units of the
    weights its tolerance would be larger than what there is to repair.
    """
    from scipy import sparse
    from scipy.optimize import linprog

    s, m = np.clip(s, row.lower, row.upper), len(s)
    far, side, eye = np.abs(s - row.p), np.where(s >= row.p, 1.0, -1.0), sparse.identity(m)
    over, under = np.isfinite(row.high), np.isfinite(row.low)
    rows = np.vstack([row.A[over], -row.A[under], np.ones(m), -np.ones(m)])
    most = np.array([*row.high[over], *-row.low[under], row.exposure - row.cash[0], row.cash[1] - row.exposure])
    room = np.append(most - rows @ s, row.budget - far.sum())
    sides, size = sparse.diags(side), [[eye, -eye, None], [-eye, -eye, None]]
    parts = [[rows, None, None], [None, None, np.ones((1, m))], [sides, None, -eye], [-sides, None, -eye], *size]
    matrix = sparse.bmat(parts, format="csc")
    cost = np.repeat([0.0, 1.0, 0.0], m)
    for unit in max(-room.min(), _EXACT) * _UNITS:
        right = np.concatenate([(room + _EXACT / 2) / unit, np.zeros(m), 2 * far / unit, np.zeros(2 * m)])
        ends = np.maximum((row.lower - s) / unit, -_NEAR), np.minimum((row.upper - s) / unit, _NEAR)
        bounds = [*zip(*ends, strict=True), *[(-_NEAR, _NEAR)] * (2 * m)]
        found = linprog(cost, matrix, np.minimum(right, 2 * m * _NEAR), bounds=bounds)
        if found.status == 0 and _feasible(row, near := np.clip(s + unit * found.x[:m], row.lower, row.upper)):
            return np.asarray(near)
    return None


def _clarabel(row: _Row, regularised: float) -> _Answer | None:
    """s, θ, ν, η of the lifted problem in (s, t), t ≥ |s − p|; None if no point is feasible."""
    try:
        import clarabel
        from scipy import sparse
    except ImportError:
        raise InputError(
            "constraints: expected the package clarabel for linear limits (pip install clarabel)"
        ) from None
    m, k = len(row.p), len(row.A)
    eye, none, one = sparse.identity(m, format="csr"), sparse.csc_matrix((m, m)), np.ones((1, m))
    fixed = row.lower == row.upper  # equations: two inequalities would leave no interior, and few right digits
    free = sparse.hstack([eye, none], format="csr")[~fixed]
    finite_low, finite_high = np.isfinite(row.low), np.isfinite(row.high)
    equal = row.cash[0] == row.cash[1]
    parts = [
        (sparse.hstack([sparse.csc_matrix(one), sparse.csc_matrix((1, m))]), [row.exposure - row.cash[0]]),
        (sparse.hstack([eye, -eye]), row.p),
        (sparse.hstack([-eye, -eye]), -row.p),
        (free, row.upper[~fixed]),
        (-free, -row.lower[~fixed]),
        (sparse.hstack([sparse.csc_matrix((1, m)), sparse.csc_matrix(one)]), [row.budget]),
        (sparse.csc_matrix(np.hstack([row.A[finite_high], np.zeros((finite_high.sum(), m))])), row.high[finite_high]),
        (sparse.csc_matrix(np.hstack([-row.A[finite_low], np.zeros((finite_low.sum(), m))])), -row.low[finite_low]),
    ]
    if not equal:
        parts.append((-parts[0][0], [-(row.exposure - row.cash[1])]))
    parts.append((sparse.hstack([eye, none], format="csr")[fixed], row.lower[fixed]))
    A = sparse.vstack([matrix for matrix, _ in parts], format="csc")
    b = np.concatenate([np.asarray(right, dtype=float) for _, right in parts])
    count = int(fixed.sum())
    cones = [clarabel.ZeroConeT(1) if equal else clarabel.NonnegativeConeT(1)]
    cones += [clarabel.NonnegativeConeT(len(b) - 1 - count), *([clarabel.ZeroConeT(count)] if count else [])]
    P = sparse.block_diag([sparse.triu(sparse.csc_matrix(row.Q)), none], format="csc")
    settings = clarabel.DefaultSettings()
    for name, value in _SETTINGS.items():
        setattr(settings, name, value)
    settings.static_regularization_constant = regularised
    found = clarabel.DefaultSolver(
        P, np.concatenate([-row.q if equal else row.cash[2] - row.q, row.cost]), A, b, cones, settings
    ).solve()
    if "Infeasible" in str(found.status) and "Dual" not in str(found.status):
        return None
    s, z = np.array(found.x[:m]), np.array(found.z)
    place = np.cumsum([0, *(len(np.atleast_1d(right)) for _, right in parts)])
    eta = np.zeros(k)
    eta[finite_high] += z[place[6] : place[7]]
    eta[finite_low] -= z[place[7] : place[8]]
    nu = z[0] if equal else row.cash[2] + z[0] - z[place[8]]
    return _Answer(s, max(float(z[place[5]]), 0.0), float(nu), eta, np.inf)


def _classes(row: _Row, s: np.ndarray, tolerance: float) -> np.ndarray:
    state = np.where(s > row.p, BOUGHT, SOLD)
    state[s >= row.upper - tolerance] = AT_UPPER
    state[s <= row.lower + tolerance] = AT_LOWER
    state[np.abs(s - row.p) <= tolerance] = UNTOUCHED
    return state


def _polish(row: _Row, s: np.ndarray, theta: float, nu: float, eta: np.ndarray, tolerance: float) -> _Answer | None:
    """Solve the equations of the active set, changing it where it contradicts itself; the best answer on the way."""
    state = _classes(row, s, tolerance)
    binding = theta > 1e-9 or np.abs(s - row.p).sum() > row.budget - tolerance
    activity = row.A @ s
    active = np.where(activity >= row.high - tolerance, 1, np.where(activity <= row.low + tolerance, -1, 0))
    z = row.exposure - s.sum()
    cash_at = next((b for b in row.cash[:2] if abs(z - b) <= tolerance), None)
    best: _Answer | None = None
    for _ in range(_ROUNDS):
        s, theta, nu, eta = _equations(row, state, binding, active, cash_at, _Answer(s, theta, nu, eta, np.inf))
        if not np.isfinite(s).all():
            return best
        answer = _certified(row, s, theta, nu, eta)
        if _feasible(row, s) and (best is None or answer.gap < best.gap):
            best = answer
        changed, binding, cash_at = _revise(row, answer, state, active, binding, cash_at)
        if not changed:
            break
    return best


def _equations(
    row: _Row, state: np.ndarray, binding: bool, active: np.ndarray, cash_at: float | None, guess: _Answer
) -> tuple[np.ndarray, float, float, np.ndarray]:
    """s, θ, ν, η of an active set, by least squares of least distance from `guess` where it is not unique.

    Where nothing is traded the equations say nothing of θ, ν and η, and those of the guess are the proof.
    """
    s = np.where(state == AT_UPPER, row.upper, np.where(state == AT_LOWER, row.lower, row.p))
    T, chosen = np.flatnonzero(np.abs(state) == 1), np.flatnonzero(active)
    sides, fixed = np.sign(state[T]).astype(float), np.delete(np.arange(len(s)), T)
    rows, right = (
        [row.A[i, T] for i in chosen],
        [(row.high[i] if active[i] > 0 else row.low[i]) - row.A[i, fixed] @ s[fixed] for i in chosen],
    )
    price = 0.0 if cash_at is not None else float(row.cash[2])
    if cash_at is not None:
        rows.append(np.ones(len(T)))
        right.append(row.exposure - cash_at - s[fixed].sum())
    if binding:
        rows.append(sides)
        right.append(row.budget - np.abs(s - row.p)[fixed].sum() + sides @ row.p[T])
    C = np.array(rows).reshape(len(rows), len(T))
    k, n = len(T), len(C)
    matrix = np.block([[row.Q[np.ix_(T, T)], C.T], [C, np.zeros((n, n))]])
    slope = row.q[T] - row.Q[np.ix_(T, fixed)] @ s[fixed] - sides * row.cost[T] - price
    prices = [*guess.eta[chosen], *([guess.nu] if cash_at is not None else []), *([guess.theta] if binding else [])]
    x = _solve_kkt(matrix, np.concatenate([slope, right]), np.concatenate([guess.s[T], prices]))
    s[T] = x[:k]
    eta = np.zeros(len(row.A))
    eta[chosen] = x[k : k + len(chosen)]
    nu = x[k + len(chosen)] if cash_at is not None else price
    return s, float(x[-1]) if binding else 0.0, float(nu), eta


def _solve_kkt(matrix: np.ndarray, right: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Solve the equations of an active set; nearest to `guess` by least squares where they are singular."""
    try:
        x = np.linalg.solve(matrix, right)
        x = x + np.linalg.solve(matrix, right - matrix @ x)
        if np.abs(x).max(initial=0.0) < 1e6 and np.abs(matrix @ x - right).max(initial=0.0) < 1e-14:
            return np.asarray(x)
    except np.linalg.LinAlgError:
        pass
    x = guess
    for _ in range(2):  # the second removes the rounding of the first
        x = x + np.linalg.lstsq(matrix, right - matrix @ x, rcond=1e-13)[0]
    return np.asarray(x)


def _revise(
    row: _Row, answer: _Answer, state: np.ndarray, active: np.ndarray, binding: bool, cash_at: float | None
) -> tuple[bool, bool, float | None]:
    """Change in place what contradicts itself; whether anything did, and the new state of budget and cash."""
    s, theta, nu, eta, _ = answer
    before = state.copy(), active.copy(), binding, cash_at
    a = row.q - row.Q @ s - nu - row.A.T @ eta
    price, slack = row.cost + max(theta, 0.0), 1e-12
    state[(before[0] == BOUGHT) & (s < row.p - 1e-14) | (before[0] == SOLD) & (s > row.p + 1e-14)] = UNTOUCHED
    state[(before[0] == BOUGHT) & (s > row.upper + 1e-14)] = AT_UPPER
    state[(before[0] == SOLD) & (s < row.lower - 1e-14)] = AT_LOWER
    state[(before[0] == UNTOUCHED) & (a > price + slack) & (row.p < row.upper)] = BOUGHT
    state[(before[0] == UNTOUCHED) & (a < -price - slack) & (row.p > row.lower)] = SOLD
    state[(before[0] == AT_UPPER) & (a < price - slack)] = BOUGHT
    state[(before[0] == AT_LOWER) & (a > -price + slack)] = SOLD
    activity = row.A @ s
    active[(before[1] != 0) & (eta * before[1] < -slack)] = 0
    active[(before[1] == 0) & (activity > row.high + 1e-13)] = 1
    active[(before[1] == 0) & (activity < row.low - 1e-13)] = -1
    binding = theta > -slack if binding else bool(np.abs(s - row.p).sum() > row.budget + 1e-13)
    z = row.exposure - s.sum()
    if cash_at is None:
        cash_at = row.cash[0] if z < row.cash[0] - 1e-14 else row.cash[1] if z > row.cash[1] + 1e-14 else None
    elif row.cash[0] < row.cash[1]:
        released = (cash_at == row.cash[0] and nu < row.cash[2] - slack) or (
            cash_at == row.cash[1] and nu > row.cash[2] + slack
        )
        cash_at = None if released else cash_at
    same = (before[0] == state).all() and (before[1] == active).all() and before[2:] == (binding, cash_at)
    return not same, binding, cash_at


def _feasible(row: _Row, s: np.ndarray, tolerance: float = _EXACT) -> bool:
    z, activity = row.exposure - s.sum(), row.A @ s
    return bool(
        (s >= row.lower - tolerance).all()
        and (s <= row.upper + tolerance).all()
        and row.cash[0] - tolerance <= z <= row.cash[1] + tolerance
        and np.abs(s - row.p).sum() <= row.budget + tolerance
        and (activity <= row.high + tolerance).all()
        and (activity >= row.low - tolerance).all()
    )


def _certified(row: _Row, s: np.ndarray, theta: float, nu: float, eta: np.ndarray) -> _Answer:
    """The answer with its gap; s is put inside its bounds first."""
    s, theta = np.clip(s, row.lower, row.upper), max(theta, 0.0)
    up, down = (
        np.where(np.isfinite(row.high), np.maximum(eta, 0.0), 0.0),
        np.where(np.isfinite(row.low), np.maximum(-eta, 0.0), 0.0),
    )
    gradient = row.q - row.Q @ s - row.A.T @ (up - down)
    data = row.p, row.lower, row.upper, row.cost, row.budget, row.cash, row.exposure
    gap = turnover_duality_gap(gradient, *data, s, theta, nu)  # type: ignore[no-untyped-call]
    slack = up @ np.where(up > 0, np.maximum(row.high - row.A @ s, 0.0), 0.0)
    slack += down @ np.where(down > 0, np.maximum(row.A @ s - row.low, 0.0), 0.0)
    return _Answer(s, theta, nu, up - down, float(gap + slack))
