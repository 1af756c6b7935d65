"""The exact portfolio decision as a path in the price of trading, without lifting to bought and sold amounts.

    maximise  qᵀs − ½ sᵀQs − Σ c_i |s_i − p_i|   subject to   l ≤ s ≤ u,  1ᵀs + cash = e,  ‖s − p‖₁ ≤ γ

With θ the price of the turnover budget, ν that of the net exposure and a = q − Qs − ν, every asset has one class:

    untouched  s = p        |a_i| ≤ c_i + θ
    bought     p < s < u    a_i = c_i + θ          sold       l < s < p    a_i = −(c_i + θ)
    at upper   s = u > p    a_i ≥ c_i + θ          at lower   s = l < p    a_i ≤ −(c_i + θ)

At the largest θ nothing is traded. As θ falls the solution moves along a piecewise linear path: between two events
the bought and sold assets T move by ds = (Q_TT)⁻¹(σ − dν), and an event changes the class of one asset, which is a
rank-one update of the inverse. Fully invested, 1ᵀd = 0, so Q + κ11ᵀ has the same solutions as Q and is definite on T
wherever the solution is unique. Where it is not (duplicates, singular Σ, λ = 0) the entering asset j is a combination
of T: Q z = 0 for z = (−Q_TT⁻¹Q_Tj, 1). Along z nothing but the turnover changes: the path moves there at a constant
price until a member of T leaves in exchange for j (`_exchange`), or j waits where even the turnover stays (a tie). The
path ends where the budget is spent or θ = 0; `turnover_decision.py` makes an exact and certified decision of its end.

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
_NO_PRICE = 1e-15  # θ of data of size 1 that counts as 0
_CORRECT = 8  # events between two corrections of recorded breakpoints
_PER = 100  # assets that allow one event more: a fresh gradient costs the square of their number
_LEAST_PIVOT, _ROUNDED_PIVOT = 1e-9, 1e-13  # relative to Q_jj and to κ, below which an asset depends on T
_GROWS = 1e-9  # turnover per unit of an exchange from which it is one, not a tie
_STILL = 1e-13  # relative change of θ that counts as none
_PRICE_SLACK = 1e-13  # rate at which the price of an asset (data of size 1) must near that of trading


class Curvature(NamedTuple):
    """Q = factor · S, or factor · (BBᵀ + diag D) where S is empty."""

    S: np.ndarray
    B: np.ndarray
    D: np.ndarray
    factor: float


class TradeLimits(NamedTuple):
    """Limits of each trade: low = l − p ≤ 0, high = u − p ≥ 0, the cost of a unit, and the budget γ."""

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


def enter_inverse(inverse, k, column, pivot, least):
    """Add a row and column to the inverse in the leading k × k block if the pivot, which is returned, exceeds least."""
    b = inverse[:k, :k] @ column
    d = pivot - column @ b
    if not d > least:
        return d
    inverse[:k, :k] += np.outer(b, b / d)
    inverse[:k, k] = -b / d
    inverse[k, :k] = -b / d
    inverse[k, k] = 1 / d
    return d


def leave_inverse(inverse, k, i):
    """Remove row and column i from the inverse in the leading k × k block; the last ones take its place."""
    column = inverse[:k, i].copy()
    inverse[:k, :k] -= np.outer(column, column / column[i])
    inverse[i, :k] = inverse[k - 1, :k]
    inverse[:k, i] = inverse[:k, k - 1]


def _direction(inverse, rows, sides, k, free, ds, da):
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


def _next_entry(a, da, cost, theta, up, down, most):
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


def _next_exit(d, ds, members, sides, k, low, high, most):
    """The first of T to reach p or a bound: how far θ falls until then, LEAVE or END, and its place in T."""
    T, step = members[:k], ds[:k]
    floor, ceiling = np.where(sides[:k] > 0, 0.0, low[T]), np.where(sides[:k] > 0, high[T], 0.0)
    times = np.where(step < 0, (floor - d[T]) / step, np.where(step > 0, (ceiling - d[T]) / step, np.inf))
    i = int(np.argmin(times))
    return (max(times[i], 0.0), LEAVE, i) if times[i] < most else (most, END, -1)


def _advance(d, g, ds, da, dnu, members, k, h):
    """Move along the segment by h."""
    d[members[:k]] += h * ds[:k]
    g += h * (da + dnu)


def _refactor(inverse, rows, members, k, lift):
    """The inverse of Q_TT + κ11ᵀ anew; whether there is one."""
    good = True
    for i in range(k):
        own = rows[i, members[i]] + lift
        good = good and enter_inverse(inverse, i, rows[i][members[:i]] + lift, own, -np.inf) > _LEAST_PIVOT * own
    return good


def _exchange(inverse, column, members, sides, k, d, box, entering, side, left, below, above):
    """Move an asset that depends on T in at a constant price, changing d: the turnover it took, and who stopped it.

    The trades change by t·z, z = ±(−Q_TT⁻¹Q_Tj, 1) with the sign that adds turnover, until a member of T reaches p or a
    bound (its place in T is returned, and whether it rose), the asset itself does (k), the turnover has taken what is
    `left` of the budget (−1), or free cash has fallen by `below` or risen by `above` (−3). A tie, which does not change
    even the turnover, stays (−2).
    """
    z, growth = np.zeros(k + 1), float(side)
    for i in range(k):
        for j in range(k):
            z[j] -= column[i] * inverse[i, j]
    z[k] = 1.0
    for i in range(k):
        growth += sides[i] * z[i]
    if growth < 0:
        z, growth = -z, -growth
    spent = z.sum()
    if not growth > _GROWS:
        return 0.0, -2, False
    most, who, rose = left / growth, -1, False
    for i in range(k + 1):
        asset, bought = (members[i], sides[i] > 0) if i < k else (entering, side > 0)
        rising = z[i] > 0
        limit = (box.high[asset] if bought else 0.0) if rising else (0.0 if bought else box.low[asset])
        if abs(z[i]) > _GROWS and (limit - d[asset]) / z[i] < most:
            most, who, rose = max((limit - d[asset]) / z[i], 0.0), i, rising
    room = below if spent > 0 else above
    if abs(spent) > _GROWS and most * abs(spent) > room:
        most, who, rose = room / abs(spent), -3, spent < 0
    for i in range(k):
        d[members[i]] += most * z[i]
    d[entering] += most * z[k]
    return most * growth, who, rose


def correct_path(Q, g0, g, d, inverse, members, sides, k, price, nu, free, lift, total):
    """Remove the rounding of many events at the current θ from d, g and ν: one step of refinement with fresh slopes.

    price : c + θ; total : what the trades must sum to.
    """
    g[:] = g0 - curvature_product(Q, d)
    step, ones, change, excess = np.zeros(k), np.zeros(k), 0.0, 0.0
    for i in range(k):
        residual = g[members[i]] - nu - sides[i] * price[members[i]]
        step += residual * inverse[i, :k]
        ones += inverse[i, :k]
    if not free:
        excess = total - d.sum()
        change = (step.sum() - excess) / ones.sum()
        step -= change * ones
    moved = np.zeros(len(d))
    for i in range(k):
        moved[members[i]] = step[i]
        d[members[i]] += step[i]
    g -= curvature_product(Q, moved)
    return nu + change + lift * excess


def _first_trade(g, box, cash):
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


def _next_cash_event(z, dz, nu, dnu, free, cash, most):
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


def follow_turnover_path(Q, g0, box, cash, ridge, most, keep):
    """Follow the path from no trade until the budget is spent or θ = 0, or give up after `most` events.

    Parameters
    ----------
    Q : Curvature; g0 : q − Qp (m,); box : TradeLimits; cash : Cash
    ridge : added to the diagonal of Q
    keep : number of breakpoints to record

    Returns
    -------
    d = s − p, the classes, (θ, ν, cash), whether cash is free, the number of breakpoints (negative: given up) and
    the recorded breakpoints as (turnover, θ, ν, cash) and d.
    """
    m, g = len(g0), g0.copy()
    d, state = np.zeros(m), np.zeros(m, np.int64)
    points, trades = np.empty((keep, 4)), np.empty((keep, m))
    up, down = np.where(box.high > 0, 1.0, 0.0), np.where(box.low < 0, 1.0, 0.0)
    theta, nu, entering, second = _first_trade(g, box, cash)
    free, z, side = entering < 0 or second < 0, cash.now, 1
    if entering < 0:
        entering, second, side = second, -1, -1
    tau, count, stalled, k, tied = 0.0, 0, 0, 0, False
    if theta <= 0 or box.budget <= 0:
        _record(points, trades, 0, 0.0, max(theta, 0.0), nu, z, d)
        return d, state, (max(theta, 0.0), nu, z), free, 1, points, trades
    room, kappa = min(m, 32), np.max(curvature_diagonal(Q, m)) / m
    kappa = kappa if kappa > 0 else 1.0
    lift = 0.0 if free else kappa  # while cash is free the trades need not sum to 0
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
            least = max(_LEAST_PIVOT * row[entering], _ROUNDED_PIVOT * lift)
            row[entering] += ridge
            column = row[members[:k]] + lift
            if enter_inverse(inverse, k, column, row[entering] + lift, least) > least:
                rows[k], members[k], sides[k] = row, entering, side
                state[entering], up[entering], down[entering], k = side, 0.0, 0.0, k + 1
                entering, second, side = second, -1, -1
                if entering >= 0:
                    continue
            else:
                _record(points, trades, count, tau, theta, nu, z, d)
                below, above = (z - cash.low, cash.high - z) if free else (np.inf, np.inf)
                h, who, rose = _exchange(
                    inverse, column, members, sides, k, d, box, entering, side, box.budget - tau, below, above
                )
                if free:
                    z = cash.now - d.sum()
                tau, count, stalled = tau + h, count + (who > -2), (stalled + 1 if h <= _STILL else 0)
                up[entering], down[entering], tied = 0.0, 0.0, tied or who == -2
                if who == -1 or theta <= _NO_PRICE:
                    state[entering] = side if d[entering] != 0.0 else state[entering]
                    _record(points, trades, count, tau, theta, nu, z, d)
                    return d, state, (theta, nu, z), free, count + 1, points, trades
                if who == -3:
                    free, z, lift = False, (cash.high if rose else cash.low), kappa
                    _refactor(inverse, rows, members, k, lift)
                elif who >= 0 and who < k:
                    k = _drop(who, rose, inverse, rows, members, sides, k, d, state, up, down, box)
                else:
                    if who == k:
                        state[entering] = side
                        settle_on_path(entering, rose, d, state, up, down, box.low, box.high)
                    entering, second, side = second, -1, -1
                if who >= 0 and tied:
                    tied = wait_again_on_path(state, up, down, box.low, box.high)
                if stalled > 3 * m + 20:
                    break
                continue
        _record(points, trades, count, tau, theta, nu, z, d)
        count += 1
        if (count % _REFACTOR == 0 or ridge > 0) and k:
            _refactor(inverse, rows, members, k, lift)
        if keep and ridge == 0 and k and count % max(_CORRECT, m // _PER) == 0:
            nu = correct_path(Q, g0, g, d, inverse, members, sides, k, box.cost + theta, nu, free, lift, cash.now - z)
            tau = np.abs(d).sum()
        if k == 0 and not free:
            break
        dnu, growth = _direction(inverse, rows, sides, k, free, ds, da)
        h = theta if not growth * theta > box.budget - tau else (box.budget - tau) / growth
        h, kind, who = _next_entry(g - nu, da, box.cost, theta, up, down, h)
        if k:
            h, exit_kind, place = _next_exit(d, ds, members, sides, k, box.low, box.high, h)
            kind, who = (kind, who) if exit_kind == END else (exit_kind, place)
        dz = -ds[:k].sum() if free else 0.0
        h, cash_kind = _next_cash_event(z, dz, nu, dnu, free, cash, h)
        kind = kind if cash_kind == END else cash_kind
        _advance(d, g, ds, da, dnu, members, k, h)
        stalled = stalled + 1 if h <= _STILL * theta else 0
        theta, nu, tau, z = theta - h, nu + h * dnu, tau + h * growth, z + h * dz
        if kind == END or theta <= _NO_PRICE:
            theta = theta if theta > _NO_PRICE else 0.0
            _record(points, trades, count, tau, theta, nu, z, d)
            return d, state, (theta, nu, z), free, count + 1, points, trades
        if stalled > 3 * m + 20:
            break
        if kind == LEAVE:
            k = _drop(who, ds[who] > 0, inverse, rows, members, sides, k, d, state, up, down, box)
            if tied:
                tied = wait_again_on_path(state, up, down, box.low, box.high)
        elif kind in (BUY, SELL):
            entering, side = who, (1 if kind == BUY else -1)
        else:
            free = kind == CASH_FREE
            if kind == CASH_BOUND:
                z = cash.low if dz < 0 else cash.high
            lift = 0.0 if free else kappa
            if not _refactor(inverse, rows, members, k, lift):
                break
    return d, state, (theta, nu, z), free, -1, points, trades


def _record(points, trades, count, tau, theta, nu, z, d):
    """Keep a breakpoint, if there is room."""
    if count < len(points):
        points[count, 0], points[count, 1], points[count, 2], points[count, 3] = tau, theta, nu, z
        trades[count] = d


def wait_again_on_path(state, up, down, low, high):
    """Let assets that were tied with T, which has changed, wait to be traded again; none is tied any more."""
    for i in range(len(state)):
        if state[i] == UNTOUCHED:
            up[i], down[i] = (1.0 if high[i] > 0 else 0.0), (1.0 if low[i] < 0 else 0.0)
        elif state[i] == AT_UPPER:
            up[i] = -1.0
        elif state[i] == AT_LOWER:
            down[i] = -1.0
    return False


def _drop(who, rising, inverse, rows, members, sides, k, d, state, up, down, box):
    """Take place `who` out of T; returns the size of T."""
    settle_on_path(members[who], rising, d, state, up, down, box.low, box.high)
    leave_inverse(inverse, k, who)
    k -= 1
    members[who], sides[who], rows[who] = members[k], sides[k], rows[k]
    return k


def settle_on_path(asset, rising, d, state, up, down, low, high):
    """An asset that leaves T is at a bound if it moved away from p, else untouched."""
    if rising == (state[asset] > 0):
        state[asset] = 2 * state[asset]
        d[asset] = high[asset] if rising else low[asset]
        up[asset], down[asset] = (-1.0 if rising else 0.0), (0.0 if rising else -1.0)
    else:
        state[asset], d[asset] = UNTOUCHED, 0.0
        up[asset] = 1.0 if high[asset] > 0 else 0.0
        down[asset] = 1.0 if low[asset] < 0 else 0.0
