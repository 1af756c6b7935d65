"""One portfolio decision in numpy: the end of its path, solved afresh, and its certificate; rows, gradients, checks.

`polish_turnover_decision` solves the equations of the classes in which the path ends, so that nothing of its rounding
stays, and repairs classes that are not right. `turnover_duality_gap` then bounds what any feasible portfolio has more.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from time2decide.markets.turnover_path import (
    AT_LOWER,
    AT_UPPER,
    BOUGHT,
    SOLD,
    UNTOUCHED,
    Cash,
    Curvature,
    TradeLimits,
    curvature_diagonal,
    curvature_product,
    curvature_row,
    follow_turnover_path,
)

_RIDGES = (
    0.0,
    1e-6,
    1e-9,
)  # added to data of size 1 where the path is lost without, in turn; `polish_turnover_decision` removes them
_POLISH_ROUNDS, _PROXIMAL_ROUNDS = 15, 5
_SLACK, _PRICE_SLACK = 1e-15, 1e-13  # of a trade and of a price (data of size 1) before a class is called wrong


def _class_equations(Q, g0, box, cash, d, state, members, theta, free, z, binding, ridge):
    """The bordered equations of the classes: unknowns d_T, ν and θ. d has the trades of all other assets, 0 in T.

    With a ridge they are those of a proximal step around the trades in `state`'s T that the caller adds to the right.
    """
    k = len(members)
    sides = state[members].astype(np.float64)
    matrix, right = np.zeros((k + 2, k + 2)), np.zeros(k + 2)
    for i in range(k):
        row = curvature_row(Q, members[i])
        matrix[i, :k] = row[members]
        matrix[i, i] += ridge
        right[i] = g0[members[i]] - row @ d - sides[i] * box.cost[members[i]]
    matrix[:k, k], matrix[:k, k + 1] = 1.0, sides
    if free:
        matrix[k, k], right[k] = 1.0, cash.rate
    else:
        matrix[k, :k], right[k] = 1.0, cash.now - z - d.sum()
    if binding and (free or np.abs(sides.sum()) < k):
        matrix[k + 1, :k], right[k + 1] = sides, box.budget - np.abs(d).sum()
    else:  # the budget does not bind, or the net exposure fixes the turnover
        matrix[k + 1, k + 1], right[k + 1] = 1.0, (theta if binding else 0.0)
    return matrix, right


def polish_turnover_decision(Q, g0, box, cash, d, state, prices, free, ridge):
    """Solve the equations of the classes afresh and change the classes that are not right, until all are.

    Every round is a proximal step around the last d with weight `ridge`, whose bias vanishes as rounds go on. The
    classes are changed in place. Returns d, θ, ν, and if cash is free.
    """
    theta, nu, z = prices
    singular = ridge > 0
    ridge = max(ridge, 1e-13 * np.max(curvature_diagonal(Q, len(d))))
    binding, settled = theta > 0, 0
    for _ in range(2 * _POLISH_ROUNDS if singular else _POLISH_ROUNDS):
        members = np.nonzero(np.abs(state) == 1)[0]
        k = len(members)
        before = d[members]
        d = np.where(state == AT_LOWER, box.low, np.where(state == AT_UPPER, box.high, 0.0))
        if k > 0:
            matrix, right = _class_equations(Q, g0, box, cash, d, state, members, theta, free, z, binding, ridge)
            right[:k] += ridge * before
            solution = np.linalg.solve(matrix, right)
            d[members] = solution[:k]
            nu, theta = solution[k], solution[k + 1]
        if not np.isfinite(d.sum() + nu + theta):
            return np.zeros(len(d)), 0.0, 0.0, free
        changed = 0
        if binding and theta < -_SLACK:
            binding, theta, changed = False, 0.0, 1
        elif not binding and np.abs(d).sum() > box.budget + 10 * _SLACK:
            binding, changed = True, 1
        if free:
            z = cash.now - d.sum()
            if z < cash.low - _SLACK or z > cash.high + _SLACK:
                free, z, changed = False, (cash.low if z < cash.low else cash.high), 1
        elif cash.high > cash.low:
            off = nu - cash.rate
            if (z <= cash.low and off < -_PRICE_SLACK) or (z >= cash.high and off > _PRICE_SLACK):
                free, changed = True, 1
        theta = max(theta, 0.0)
        a = g0 - curvature_product(Q, d) - nu
        changed += reclassify_assets(a, box.cost + theta, d, box.low, box.high, state)
        if binding and not changed and not free:
            changed += release_asset(a, box, d, state, theta)
        moved = np.max(np.abs(d[members] - before)) if k > 0 else 0.0
        settled = 0 if changed else settled + 1
        if settled and (not singular or moved < 1e-12 or settled > _PROXIMAL_ROUNDS):
            break
    return np.minimum(np.maximum(d, box.low), box.high), theta, nu, free


def release_asset(a, box, d, state, theta):
    """Free one asset where all of T trade to one side but the turnover is not γ: the one nearest to trading, in place.

    The net exposure alone then fixes T, so that the budget needs an asset of the other side. Returns how many changed.
    """
    off = np.abs(d).sum() - box.budget
    total = 0
    for i in range(len(state)):
        total += state[i] if abs(state[i]) == 1 else 0
    count = np.sum(np.abs(state) == 1)
    if count == 0 or abs(total) < count or abs(off) <= 10 * _SLACK:
        return 0
    side, best, who = (-1 if total > 0 else 1), np.inf, -1
    for i in range(len(state)):
        waits = state[i] == 2 * side if off > 0 else state[i] == UNTOUCHED
        room = box.high[i] > 0 if side > 0 else box.low[i] < 0
        away = abs(side * a[i] - box.cost[i] - theta)
        if waits and room and away < best:
            best, who = away, i
    if who < 0:
        return 0
    state[who] = side
    return 1


def reclassify_assets(a, price, d, low, high, state):
    """Give every asset that contradicts its class the neighbouring one, in place; returns how many there were."""
    changed = 0
    for i in range(len(a)):
        old, new = state[i], state[i]
        if old == BOUGHT:
            new = UNTOUCHED if d[i] < -_SLACK else AT_UPPER if d[i] > high[i] + _SLACK else old
        elif old == SOLD:
            new = UNTOUCHED if d[i] > _SLACK else AT_LOWER if d[i] < low[i] - _SLACK else old
        elif old == UNTOUCHED:
            if a[i] > price[i] + _PRICE_SLACK and high[i] > 0:
                new = BOUGHT
            elif a[i] < -price[i] - _PRICE_SLACK and low[i] < 0:
                new = SOLD
        elif old == AT_LOWER:
            new = SOLD if a[i] > -price[i] + _PRICE_SLACK else old
        else:
            new = BOUGHT if a[i] < price[i] - _PRICE_SLACK else old
        if new != old:
            state[i] = new
            changed += 1
    return changed


def turnover_duality_gap(gradient, previous, lower, upper, cost, budget, cash, exposure, s, theta, nu):
    """An upper bound on how much better any feasible portfolio is than s, from the prices θ ≥ 0 and ν.

    f(s*) − f(s) ≤ Σ_i max_v [(g_i − ν)(v − s_i) − (c_i + θ)(|v − p_i| − |s_i − p_i|)] + θ(γ − ‖s − p‖₁) + cash, with v
    in [l_i, u_i] and g the gradient at s. Every term is non-negative for a feasible s, so nothing cancels.
    """
    total, traded = 0.0, 0.0
    for i in range(len(s)):
        a, price, now, most = gradient[i] - nu, cost[i] + theta, abs(s[i] - previous[i]), 0.0
        middle = min(max(previous[i], lower[i]), upper[i])
        for v in (lower[i], middle, upper[i]):
            if v - s[i] != 0.0:
                most = max(most, a * (v - s[i]) - price * (abs(v - previous[i]) - now))
        total += most
        traded += now
    z = exposure - s.sum()
    free = max((cash[2] - nu) * (cash[0] - z), (cash[2] - nu) * (cash[1] - z)) if cash[1] > cash[0] else 0.0
    return total + theta * max(budget - traded, 0.0) + free


def turnover_duality_gaps(gradient, previous, lower, upper, cost, budget, cash, exposure, s, theta, nu):
    """`turnover_duality_gap` of portfolios (points, m) of one decision, each with its budget and prices (points,)."""
    a, price, now = gradient - nu[:, None], cost + theta[:, None], np.abs(s - previous)
    most = np.zeros(s.shape)
    for v in (lower, np.clip(previous, lower, upper), upper):
        np.maximum(most, a * (v - s) - price * (np.abs(v - previous) - now), out=most)
    z, rate = exposure - s.sum(-1), cash[2] - nu
    free = np.maximum(rate * (cash[0] - z), rate * (cash[1] - z)) if cash[1] > cash[0] else 0.0
    return most.sum(-1) + theta * np.maximum(budget - now.sum(-1), 0.0) + free


def _solve_one(Q, q, p, lower, upper, cost, budget, cash, exposure, state, warm):
    """Solve one decision; `state` is filled with its classes and, if `warm`, says which ones to try first.

    The path is followed without a ridge, and again with one where that fails. Returns s, θ, ν, the gap relative to the
    size of the data, and the number of breakpoints (negative: no answer).
    """
    m = len(p)
    slope = q - curvature_product(Q, p)
    shift, top, now = np.max(slope), np.max(curvature_diagonal(Q, m)), exposure - p.sum()
    scale = max(shift - np.min(slope), top, np.max(cost), 1e-300)
    money, reachable = Cash(0.0, 0.0, 0.0, 0.0), abs(now - cash[0]) < 1e-12  # fully invested
    if cash[1] > cash[0]:
        scale = max(scale, abs(cash[2] - shift))
        now = cash[0] if abs(now - cash[0]) < 1e-12 else cash[1] if abs(now - cash[1]) < 1e-12 else now
        money, reachable = Cash(now, cash[0], cash[1], (cash[2] - shift) / scale), cash[0] <= now and now <= cash[1]
    unit = Curvature(Q.S, Q.B, Q.D, Q.factor / scale)
    box = TradeLimits(lower - p, upper - p, cost / scale, budget)
    g0, top, gap, count, attempt = (slope - shift) / scale, top / scale, np.inf, -1, (0 if warm else 1)
    d, prices, free = np.zeros(m), (1e-3, 0.0, money.now), cash[1] > cash[0]
    s, theta, nu = p, 0.0, 0.0
    while reachable and attempt < 4 and not (count >= 0 and gap <= 1e-13):
        ridge = _RIDGES[max(attempt - 1, 0)] * max(top, 1e-2)
        if attempt > 0:
            d, classes, prices, free, count, _, _ = follow_turnover_path(unit, g0, box, money, ridge, 30 * m + 200, 0)
            state[:] = classes
        if attempt != 1 or count >= 0:
            d, theta, nu, free = polish_turnover_decision(unit, g0, box, money, d, state, prices, free, ridge)
            s = np.where(state == AT_LOWER, lower, np.where(state == AT_UPPER, upper, p + d))
            gradient = (q - shift) - curvature_product(Q, s)
            relative = np.array([cash[0], cash[1], cash[2] - shift])
            gap = turnover_duality_gap(
                gradient, p, lower, upper, cost, budget, relative, exposure, s, theta * scale, nu * scale
            )
            gap, count = gap / scale, max(count, 0)
            held = s.sum() + (cash[0] if cash[1] <= cash[0] else exposure - s.sum())
            if not (abs(held - exposure) < 1e-13 and np.abs(s - p).sum() < budget + 1e-13):
                count = -1
        attempt += 1
    return s, theta * scale, nu * scale + shift, gap, count


def solve_turnover_rows(
    S, B, D, which, factor, q, p, lower, upper, cost, budget, cash, exposure, classes, warm, weights, report
):
    """Solve decisions row by row into `weights` (rows, m) and `report` (rows, 4): θ, ν, gap, breakpoints.

    which : (rows,) the covariance of each row; factor : (rows,) 2λ; cash : (rows, 3) least, most, and its return;
    classes : (rows, m), filled with the classes at the solution, and used as a first guess if `warm`.
    """
    for row in range(len(q)):
        Q = Curvature(S[which[row]], B[which[row]], D[which[row]], factor[row])
        s, theta, nu, gap, count = _solve_one(
            Q, q[row], p[row], lower[row], upper[row], cost[row], budget[row], cash[row], exposure[row],
            classes[row], warm,
        )  # fmt: skip
        weights[row], report[row, 0], report[row, 1], report[row, 2], report[row, 3] = s, theta, nu, gap, count


def adjoint_turnover_rows(S, B, D, which, factor, classes, binding, free, v, y, prices, previous):
    """The adjoint of the equations of the classes: K (y, y_ν, y_θ) = (v_T, 0, 0), row by row.

    v : (rows, m) the gradient of a loss in s. Filled in: y (rows, m), which is 0 outside T, `prices` (rows, 2) with
    y_ν and y_θ, and `previous` (rows, m), the gradient of the loss in p.
    """
    for row in range(len(v)):
        Q = Curvature(S[which[row]], B[which[row]], D[which[row]], factor[row])
        state, m = classes[row], v.shape[1]
        members = np.nonzero(np.abs(state) == 1)[0]
        k = len(members)
        y[row], prices[row], previous[row] = 0.0, 0.0, np.where(state == UNTOUCHED, v[row], 0.0)
        if k == 0:
            continue
        sides = state[members].astype(np.float64)
        matrix, right, rows = np.zeros((k + 2, k + 2)), np.zeros(k + 2), np.zeros((k, m))
        for i in range(k):
            rows[i] = curvature_row(Q, members[i])
            matrix[i, :k] = rows[i][members]
        top = max(np.max(curvature_diagonal(Q, m)), 1e-300)
        for i in range(k):
            matrix[i, i] += 1e-12 * top
        right[:k] = v[row][members]
        with_theta = binding[row] and (free[row] or np.abs(sides.sum()) < k)
        matrix[k, k] = matrix[k + 1, k + 1] = 1.0
        if not free[row]:
            matrix[:k, k], matrix[k, :k], matrix[k, k] = top, top, 0.0
        if with_theta:
            matrix[:k, k + 1], matrix[k + 1, :k], matrix[k + 1, k + 1] = top * sides, top * sides, 0.0
        solution = np.linalg.solve(matrix / top, right / top)
        answer, y_nu, y_theta = solution[:k], top * solution[k], top * solution[k + 1]
        y[row][members] = answer
        prices[row, 0], prices[row, 1] = y_nu, y_theta
        pull = answer @ rows + y_nu
        sign = np.sign(state).astype(np.float64)
        previous[row] += y_theta * sign - np.where(state == UNTOUCHED, pull, 0.0)


def solve_turnover_single(mean, S, previous, risk_aversion, budget, cost):
    """One long-only decision from its data, checked: s, the classes, θ, ν, the gap, breakpoints (negative: no answer).

    Anything unusual (not finite, not symmetric, off the simplex by more than rounding) has no answer and is left to the
    careful checks of `build_problem`, which say what is wrong; a covariance that is not semidefinite raises.
    """
    m = len(mean)
    size, off, level, total, good = 0.0, 0.0, -np.inf, 0.0, S.shape[0] == m and S.shape[1] == m and len(previous) == m
    if good:
        for i in range(m):
            for j in range(i + 1):
                size = max(size, abs(S[i, j]))
                off = max(off, abs(S[i, j] - S[j, i]))
            level = max(level, mean[i])
            total += max(previous[i], 0.0)
            good = good and np.isfinite(mean[i]) and previous[i] >= -1e-6
    good = good and abs(total - 1.0) <= 1e-6 and size > 0 and np.isfinite(size) and off == 0
    state, zero = np.zeros(m, np.int64), np.zeros(m)
    if not good:
        return zero, state, 0.0, 0.0, np.inf, -1
    unit = S / size
    for i in range(m):
        unit[i, i] += 1e-6
    np.linalg.cholesky(unit)
    Q = Curvature(S, np.zeros((0, 0)), np.zeros(0), 2 * risk_aversion)
    start = np.maximum(previous, 0.0) / total
    s, theta, nu, gap, count = _solve_one(
        Q, mean - level, start, zero, np.ones(m), np.full(m, cost), budget, np.zeros(3), 1.0, state, False
    )
    return s, state, theta, nu + level, gap, count


def validate_turnover_matrices(S):
    """Whether matrices (n, m, m) are finite and exactly symmetric; one that is not semidefinite raises."""
    m = S.shape[1]
    for row in range(len(S)):
        size, off = 0.0, 0.0
        for i in range(m):
            for j in range(i + 1):
                size = max(size, abs(S[row, i, j]))
                off = max(off, abs(S[row, i, j] - S[row, j, i]))
        if not (np.isfinite(size) and off == 0):
            return False
        if size > 0:
            unit = S[row] / size
            for i in range(m):
                unit[i, i] += 1e-6
            np.linalg.cholesky(unit)
    return True
