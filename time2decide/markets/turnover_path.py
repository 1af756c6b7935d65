"""The exact portfolio decision as a path in the price of trading, without lifting to bought and sold amounts.

    maximise  qᵀs − ½ sᵀQs − Σ c_i |s_i − p_i|   subject to   l ≤ s ≤ u,  1ᵀs + cash = e,  ‖s − p‖₁ ≤ γ

With θ the price of the turnover budget, ν that of the net exposure and a = q − Qs − ν, every asset has one class:

    untouched  s = p        |a_i| ≤ c_i + θ
    bought     p < s < u    a_i = c_i + θ          sold       l < s < p    a_i = −(c_i + θ)
    at upper   s = u > p    a_i ≥ c_i + θ          at lower   s = l < p    a_i ≤ −(c_i + θ)

At the largest θ nothing is traded. As θ falls the solution moves along a piecewise linear path: between two events
the bought and sold assets T move by ds = (Q_TT)⁻¹(σ − dν), and an event changes the class of one asset, which is a
rank-one update of the inverse. The path ends where the budget is spent or θ = 0. `polish` then solves the equations of
the final classes afresh, so that nothing of the accumulated rounding stays, and repairs classes that are not right.

This is the numpy form. `turnover_kernels.py` compiles the same functions, with loops in place of the few that take the
time, and the tests compare the two.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

UNTOUCHED, BOUGHT, SOLD, AT_LOWER, AT_UPPER = 0, 1, -1, -2, 2
END, BUY, SELL, LEAVE, CASH_BOUND, CASH_FREE = 0, 1, 2, 3, 4, 5  # what ends a segment of the path
_REFACTOR = 48  # events between two fresh inverses: the rounding of rank-one updates stays below 1e-12
_RIDGES = (0.0, 1e-6, 1e-9)  # added to data of size 1 where Q_TT is singular, in turn; `polish` removes them again
_LEAST_PIVOT = 1e-6  # relative, below which Q_TT counts as singular
_STILL = 1e-13  # relative change of θ that counts as none
_POLISH_ROUNDS, _PROXIMAL_ROUNDS = 15, 5
_SLACK, _PRICE_SLACK = 1e-15, 1e-13  # of a trade and of a price (data of size 1) before a class is called wrong


class Curvature(NamedTuple):
    """Q = factor · S, or factor · (BBᵀ + diag D) where S is empty."""

    S: np.ndarray
    B: np.ndarray
    D: np.ndarray
    factor: float


class Box(NamedTuple):
    """What may be traded: low = l − p ≤ 0, high = u − p ≥ 0, the cost of a unit, and the budget γ."""

    low: np.ndarray
    high: np.ndarray
    cost: np.ndarray
    budget: float


class Cash(NamedTuple):
    """Cash now, its bounds and its return; fully invested is 0 in [0, 0]."""

    now: float
    low: float
    high: float
    rate: float


def curvature_row(Q, i):
    """Row i of Q."""
    if Q.S.shape[0] > 0:
        return Q.factor * Q.S[i]
    row = Q.factor * (Q.B @ Q.B[i])
    row[i] += Q.factor * Q.D[i]
    return row


def curvature_product(Q, x):
    """Q x."""
    if Q.S.shape[0] > 0:
        return Q.factor * (Q.S @ x)
    return Q.factor * (Q.B @ (x @ Q.B) + Q.D * x)


def curvature_diagonal(Q, m):
    """The diagonal of Q, (m,)."""
    if Q.S.shape[0] > 0:
        return Q.factor * np.diag(Q.S)
    return Q.factor * ((Q.B**2).sum(axis=1) + Q.D)


def enter(inverse, k, column, pivot):
    """Add a row and column to the inverse in the leading k × k block; returns the pivot of the elimination."""
    b = inverse[:k, :k] @ column
    d = pivot - column @ b
    inverse[:k, :k] += np.outer(b, b / d)
    inverse[:k, k] = -b / d
    inverse[k, :k] = -b / d
    inverse[k, k] = 1 / d
    return d


def leave(inverse, k, i):
    """Remove row and column i from the inverse in the leading k × k block; the last ones take its place."""
    column = inverse[:k, i].copy()
    inverse[:k, :k] -= np.outer(column, column / column[i])
    inverse[i, :k] = inverse[k - 1, :k]
    inverse[:k, i] = inverse[:k, k - 1]


def direction(inverse, rows, sides, k, free, ds, da):
    """Fill ds and da for θ falling by 1; returns dν and the growth of the turnover."""
    block = inverse[:k, :k]
    ds[:k] = block @ sides[:k]
    dnu = 0.0
    if not free:
        ones = block.sum(axis=1)
        dnu = ds[:k].sum() / ones.sum()
        ds[:k] -= dnu * ones
    da[:] = -(ds[:k] @ rows[:k]) - dnu
    return dnu, sides[:k] @ ds[:k]


def next_entry(a, da, cost, theta, up, down, most):
    """The first asset outside T whose price reaches c + θ: how far θ falls until then, BUY or SELL, and the asset.

    up and down say whether an asset waits to be bought or sold from p (1), or to come back from a bound (−1).
    """
    y = da + 1.0
    times = np.where(up * y > _PRICE_SLACK, (cost + theta - a) / y, np.inf)
    y = 1.0 - da
    others = np.where(down * y > _PRICE_SLACK, (cost + theta + a) / y, np.inf)
    i, j = int(np.argmin(times)), int(np.argmin(others))
    if min(times[i], others[j]) >= most:
        return most, END, -1
    return (max(times[i], 0.0), BUY, i) if times[i] <= others[j] else (max(others[j], 0.0), SELL, j)


def next_exit(d, ds, members, sides, k, low, high, most):
    """The first of T to reach p or a bound: how far θ falls until then, LEAVE or END, and its place in T."""
    T, step = members[:k], ds[:k]
    floor, ceiling = np.where(sides[:k] > 0, 0.0, low[T]), np.where(sides[:k] > 0, high[T], 0.0)
    times = np.where(step < 0, (floor - d[T]) / step, np.where(step > 0, (ceiling - d[T]) / step, np.inf))
    i = int(np.argmin(times))
    return (max(times[i], 0.0), LEAVE, i) if times[i] < most else (most, END, -1)


def advance(d, g, ds, da, dnu, members, k, h):
    """Move along the segment by h."""
    d[members[:k]] += h * ds[:k]
    g += h * (da + dnu)


def refactor(inverse, rows, members, k):
    """The inverse of Q_TT anew."""
    for i in range(k):
        enter(inverse, i, rows[i][members[:i]], rows[i, members[i]])


def first_trade(g, box, cash):
    """θ and ν at which trading starts, and the assets to buy and to sell (−1 where cash takes that side)."""
    bid = np.where(box.high > 0, g - box.cost, -np.inf)
    ask = np.where(box.low < 0, g + box.cost, np.inf)
    i, j = int(np.argmax(bid)), int(np.argmin(ask))
    best, worst = bid[i], ask[j]
    if cash.now > cash.low and cash.now < cash.high:  # cash is free: one asset trades against it
        if best - cash.rate >= cash.rate - worst:
            return best - cash.rate, cash.rate, i, -1
        return cash.rate - worst, cash.rate, -1, j
    theta, nu = (best - worst) / 2, (best + worst) / 2
    if cash.now > cash.low and best - cash.rate > theta:
        theta, nu, j = best - cash.rate, cash.rate, -1
    elif cash.now < cash.high and cash.rate - worst > theta:
        theta, nu, i = cash.rate - worst, cash.rate, -1
    return theta, nu, i, j


def next_cash_event(z, dz, nu, dnu, free, cash, most):
    """When cash reaches a bound, or leaves one because its price changes sign."""
    if free and dz != 0:
        bound = cash.low if dz < 0 else cash.high
        if (bound - z) / dz < most:
            return max((bound - z) / dz, 0.0), CASH_BOUND
    elif not free and cash.high > cash.low and dnu != 0:
        waits = (z <= cash.low and dnu < 0) or (z >= cash.high and dnu > 0)
        if waits and (cash.rate - nu) / dnu < most:
            return max((cash.rate - nu) / dnu, 0.0), CASH_FREE
    return most, END


def follow(Q, g, box, cash, ridge, most, keep):
    """Follow the path from no trade until the budget is spent or θ = 0, or give up after `most` events.

    Parameters
    ----------
    Q : Curvature; g : q − Qp (m,); box : Box; cash : Cash
    ridge : added to the diagonal of Q; with none the path is given up where Q_TT is singular
    keep : number of breakpoints to record

    Returns
    -------
    d = s − p, the classes, (θ, ν, cash), whether cash is free, the number of breakpoints (negative: given up) and
    the recorded breakpoints as (turnover, θ, ν, cash) and d.
    """
    m, g = len(g), g.copy()
    d, state = np.zeros(m), np.zeros(m, np.int64)
    points, trades = np.empty((keep, 4)), np.empty((keep, m))
    up, down = np.where(box.high > 0, 1.0, 0.0), np.where(box.low < 0, 1.0, 0.0)
    theta, nu, entering, second = first_trade(g, box, cash)
    free, z, side = entering < 0 or second < 0, cash.now, 1
    if entering < 0:
        entering, second, side = second, -1, -1
    tau, count, stalled, k = 0.0, 0, 0, 0
    if theta <= 0 or box.budget <= 0:
        if keep:
            points[0, 0], points[0, 1], points[0, 2], points[0, 3], trades[0] = 0.0, max(theta, 0.0), nu, z, 0.0
        return d, state, (max(theta, 0.0), nu, z), free, 1, points, trades
    room = min(m, 32)
    members, sides, ds, da = np.empty(m, np.int64), np.empty(m), np.empty(m), np.empty(m)
    rows, inverse = np.empty((room, m)), np.empty((room, room))
    for _ in range(most):
        if entering >= 0:
            if k == room:
                room = min(m, 2 * room)
                old_rows, old = rows, inverse
                rows, inverse = np.empty((room, m)), np.empty((room, room))
                rows[:k], inverse[:k, :k] = old_rows, old
            row = curvature_row(Q, entering)
            row[entering] += ridge
            pivot = enter(inverse, k, row[members[:k]], row[entering])
            rows[k], members[k], sides[k] = row, entering, side
            state[entering], up[entering], down[entering], k = side, 0.0, 0.0, k + 1
            entering, second, side = second, -1, -1
            if not pivot > (_LEAST_PIVOT * row[members[k - 1]] if ridge == 0 else 0.0):
                break
            if entering >= 0:
                continue
        if count < keep:
            points[count, 0], points[count, 1], points[count, 2], points[count, 3] = tau, theta, nu, z
            trades[count] = d
        count += 1
        if (count % _REFACTOR == 0 or ridge > 0) and k:
            refactor(inverse, rows, members, k)
        if k == 0 and not free:
            break
        dnu, growth = direction(inverse, rows, sides, k, free, ds, da)
        h = theta if not growth * theta > box.budget - tau else (box.budget - tau) / growth
        h, kind, who = next_entry(g - nu, da, box.cost, theta, up, down, h)
        if k:
            h, exit_kind, place = next_exit(d, ds, members, sides, k, box.low, box.high, h)
            kind, who = (kind, who) if exit_kind == END else (exit_kind, place)
        dz = -ds[:k].sum() if free else 0.0
        h, cash_kind = next_cash_event(z, dz, nu, dnu, free, cash, h)
        kind = kind if cash_kind == END else cash_kind
        advance(d, g, ds, da, dnu, members, k, h)
        stalled = stalled + 1 if h <= _STILL * theta else 0
        theta, nu, tau, z = theta - h, nu + h * dnu, tau + h * growth, z + h * dz
        if kind == END:
            if count < keep:
                points[count, 0], points[count, 1], points[count, 2], points[count, 3] = tau, theta, nu, z
                trades[count] = d
            return d, state, (theta, nu, z), free, count + 1, points, trades
        if stalled > 3 * m + 20:
            break
        if kind == LEAVE:
            settle(members[who], ds[who] > 0, d, state, up, down, box.low, box.high)
            leave(inverse, k, who)
            k -= 1
            members[who], sides[who], rows[who] = members[k], sides[k], rows[k]
        elif kind in (BUY, SELL):
            entering, side = who, (1 if kind == BUY else -1)
        else:
            free = kind == CASH_FREE
            if kind == CASH_BOUND:
                z = cash.low if dz < 0 else cash.high
    return d, state, (theta, nu, z), free, -1, points, trades


def settle(asset, rising, d, state, up, down, low, high):
    """An asset that leaves T is at a bound if it moved away from p, else untouched."""
    if rising == (state[asset] > 0):
        state[asset] = 2 * state[asset]
        d[asset] = high[asset] if rising else low[asset]
        up[asset], down[asset] = (-1.0 if rising else 0.0), (0.0 if rising else -1.0)
    else:
        state[asset], d[asset] = UNTOUCHED, 0.0
        up[asset] = 1.0 if high[asset] > 0 else 0.0
        down[asset] = 1.0 if low[asset] < 0 else 0.0


def class_equations(Q, g0, box, cash, d, state, members, theta, free, z, binding, ridge):
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


def polish(Q, g0, box, cash, d, state, prices, free, ridge):
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
            matrix, right = class_equations(Q, g0, box, cash, d, state, members, theta, free, z, binding, ridge)
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
        changed += reclassify(a, box.cost + theta, d, box.low, box.high, state)
        if binding and not changed and not free:
            changed += release(a, box, d, state, theta)
        moved = np.max(np.abs(d[members] - before)) if k > 0 else 0.0
        settled = 0 if changed else settled + 1
        if settled and (not singular or moved < 1e-12 or settled > _PROXIMAL_ROUNDS):
            break
    return np.minimum(np.maximum(d, box.low), box.high), theta, nu, free


def release(a, box, d, state, theta):
    """Free one asset where all of T trade to one side but the turnover is not γ: the one that minds least, in place.

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
        if waits and room and abs(side * a[i] - box.cost[i] - theta) < best:
            best, who = abs(side * a[i] - box.cost[i] - theta), i
    if who < 0:
        return 0
    state[who] = side
    return 1


def reclassify(a, price, d, low, high, state):
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


def duality_gap(gradient, previous, lower, upper, cost, budget, cash, exposure, s, theta, nu):
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


def solve_one(Q, q, p, lower, upper, cost, budget, cash, exposure, state, warm):
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
    box = Box(lower - p, upper - p, cost / scale, budget)
    g0, top, gap, count, attempt = (slope - shift) / scale, top / scale, np.inf, -1, (0 if warm else 1)
    d, prices, free = np.zeros(m), (1e-3, 0.0, money.now), cash[1] > cash[0]
    s, theta, nu = p, 0.0, 0.0
    while reachable and attempt < 4 and not (count >= 0 and gap <= 1e-13):
        ridge = _RIDGES[max(attempt - 1, 0)] * max(top, 1e-2)
        if attempt > 0:
            d, classes, prices, free, count, _, _ = follow(unit, g0, box, money, ridge, 30 * m + 200, 0)
            state[:] = classes
        if attempt != 1 or count >= 0:
            d, theta, nu, free = polish(unit, g0, box, money, d, state, prices, free, ridge)
            s = np.where(state == AT_LOWER, lower, np.where(state == AT_UPPER, upper, p + d))
            gradient = (q - shift) - curvature_product(Q, s)
            relative = np.array([cash[0], cash[1], cash[2] - shift])
            gap = duality_gap(gradient, p, lower, upper, cost, budget, relative, exposure, s, theta * scale, nu * scale)
            gap, count = gap / scale, max(count, 0)
            held = s.sum() + (cash[0] if cash[1] <= cash[0] else exposure - s.sum())
            if not (abs(held - exposure) < 1e-13 and np.abs(s - p).sum() < budget + 1e-13):
                count = -1
        attempt += 1
    return s, theta * scale, nu * scale + shift, gap, count


def solve_rows(
    S, B, D, which, factor, q, p, lower, upper, cost, budget, cash, exposure, classes, warm, weights, report
):
    """Solve decisions row by row into `weights` (rows, m) and `report` (rows, 4): θ, ν, gap, breakpoints.

    which : (rows,) the covariance of each row; factor : (rows,) 2λ; cash : (rows, 3) least, most, and its return;
    classes : (rows, m), filled with the classes at the solution, and used as a first guess if `warm`.
    """
    for row in range(len(q)):
        Q = Curvature(S[which[row]], B[which[row]], D[which[row]], factor[row])
        s, theta, nu, gap, count = solve_one(
            Q,
            q[row],
            p[row],
            lower[row],
            upper[row],
            cost[row],
            budget[row],
            cash[row],
            exposure[row],
            classes[row],
            warm,
        )
        weights[row], report[row, 0], report[row, 1], report[row, 2], report[row, 3] = s, theta, nu, gap, count


def adjoint_rows(S, B, D, which, factor, classes, binding, free, v, y, prices, previous):
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


def prepare(mean, S, previous):
    """Check one long-only decision and bring it to rows: μ − max μ and p without rounding, (1, m) each, max μ, if well.

    Anything unusual (not finite, not symmetric, off the simplex by more than rounding) is left to the careful checks of
    `build_problem`, which say what is wrong; a covariance that is not semidefinite raises.
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
    good = good and abs(total - 1.0) <= 1e-6 and size > 0 and np.isfinite(size) and off <= 1e-6 * size
    linear, start = np.zeros((1, m)), np.zeros((1, m))
    if good:
        unit = S / size
        for i in range(m):
            linear[0, i], start[0, i] = mean[i] - level, max(previous[i], 0.0) / total
            unit[i, i] += 1e-6
        np.linalg.cholesky(unit)
    return linear, start, level, good


def validate_matrices(S):
    """Whether matrices (n, m, m) are finite and symmetric up to rounding; one that is not semidefinite raises."""
    m = S.shape[1]
    for row in range(len(S)):
        size, off = 0.0, 0.0
        for i in range(m):
            for j in range(i + 1):
                size = max(size, abs(S[row, i, j]))
                off = max(off, abs(S[row, i, j] - S[row, j, i]))
        if not (np.isfinite(size) and np.isfinite(off) and off <= 1e-6 * size):
            return False
        if size > 0:
            unit = S[row] / size
            for i in range(m):
                unit[i, i] += 1e-6
            np.linalg.cholesky(unit)
    return True
