"""Exact answers: every one is certified against the data of its problem before it is called optimal.

Attempts in order of cost, until the certificate holds: DAQP first, PIQP first where DAQP has much to set up (sparse
factorisations where few entries are in use), both again after scaling; HiGHS first for linear programs. What an attempt
returns is made exact by the linear system of its active set. Where all fail, a linear program looks for a proof that
the problem is infeasible or unbounded. Where data differ by rounding alone (x ≤ 2.8e-17 where 0 is meant, lb > ub by a
unit in the last place) and the problem as given has no certified answer, the one that is meant is solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch

from time2decide.core.validation import validate_count
from time2decide.qp import engines
from time2decide.qp.certificate import (
    Arrays,
    Form,
    OptimalityRule,
    Point,
    distinct_entries,
    is_surely_optimal,
    proves_infeasible,
    proves_unbounded,
)
from time2decide.qp.plain_arrays import is_plain_array, solve_plain_arrays
from time2decide.qp.problem import BATCH, QP, CholeskyFactor
from time2decide.qp.solution import STATUS_TEXT, Solution, Status

_NOTHING = np.zeros(0)
_SNAP = (1e-14, 1e-12, 1e-10, 1e-8)  # entries below these shares of the largest may be rounding
_SMALL = 40  # variables up to which every attempt costs next to nothing
_WORK = 2e7  # operations of the set-up of DAQP from which on PIQP goes first
_CROWDED = 160  # variables from which PIQP goes first where many bounds will be active
_ENOUGH = 2  # attempts before an answer that is within the tolerance, but not sharp, is taken
_HOPELESS = 1e-2  # residual that no rounding excuses
_NEARLY = 1e-10  # tolerance at which no other engine is asked
_NOISE = 1e-13  # share of the size of x that is rounding in a bound
_NATURAL = 1e4  # size of x, where rows are of size one, from which on a small curvature says nothing of rounding
_TINY, _HIDDEN = 1e-14, 1e-6  # violations in units of size one: rounding; nothing that a proof should miss
_CLEAR, _NEAR = 1e-5, 1e6  # least violation that a linear program is believed, and how far it looks in tiny units
_SHARP = 1e-12  # tolerance at which no better answer is looked for


def solve_exact(
    qp: QP,
    *,
    tol: float = 1e-8,
    workers: int | None = None,
    initial: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Solution:
    """Solve every instance to machine precision.

    Infeasible and unbounded instances are reported in `status` with x = NaN, with a proof; the others are unaffected.
    An answer is optimal if the rule of `certificate` holds for `tol`.

    Parameters
    ----------
    workers : int, optional
        Threads for large batches; by default all cores where there is work for them.
    initial : (x, multipliers of ``qp.as_inequalities()``), optional
        Start from the constraints that are active there.
    """
    if workers is not None:
        validate_count("workers", workers)
    if initial is None and len(qp) == 1 and qp.in_numpy and qp.l1_penalty is None and qp.l1_radius is None:
        return _solve_single(qp, tol)
    p = Arrays.of(qp)
    point, solved, tried = _quickly(p, tol, workers, initial)
    status = np.full(len(qp), Status.OPTIMAL, dtype=STATUS_TEXT)
    for i in () if solved.all() else map(int, np.flatnonzero(~solved)):
        one = slice(i, i + 1)
        found, status[i] = solve_exact_one(p.at(one), tol, point.at(one) if tried else None)
        for into, part in zip(point, found, strict=True):
            into[i] = part[0]
    x, dual, dual_eq, dual_box = (part if qp.in_numpy else torch.from_numpy(part).to(qp.A) for part in point)
    return Solution.build(qp, x, dual, dual_eq, dual_box, status, "exact")


def solve_warm(qp: QP, initial: Any, tol: float) -> Solution | None:
    """One definite problem given as arrays, from (x, multipliers) of a similar one; None where that takes more care."""
    simple = qp.in_numpy and len(qp) == 1 and qp.factor is not None and not qp.factor.singular
    if not simple or not isinstance(initial, (tuple, list)) or len(initial) != 2:
        return None
    near, dual = initial
    n, m, p = qp.n, qp.m, 0 if qp.E is None else qp.E.shape[1]
    if not is_plain_array(near, (n,)) or not is_plain_array(dual, (m,)) or not near @ near + dual @ dual < np.inf:
        return None
    A, b, C, d, E, f, lb, ub = _plain_fields(qp)
    start = np.zeros(m + p + n)
    start[:m] = dual
    for side, bound in ((-1.0, lb), (1.0, ub)):
        if bound is not None:
            start[m + p :][near == bound] = side
    found = solve_plain_arrays(A, b, C, d, E, f, lb, ub, min(tol, _SHARP), start)
    if found is None:  # the answer is the same from anywhere
        return _solve_single(qp, tol)
    x, duals = found
    return _present(qp, Point(x, duals[:m], duals[m : m + p], duals[m + p :]), Status.OPTIMAL)


def _plain_fields(qp: QP) -> Iterator[np.ndarray | None]:
    """A, b, C, d, E, f, lb, ub of one problem given as arrays."""
    return (None if v is None else v.numpy()[0] for v in (qp.A, qp.b, qp.C, qp.d, qp.E, qp.f, qp.lb, qp.ub))


def _solve_single(qp: QP, tol: float) -> Solution:
    """One problem given as arrays: the kernel, or DAQP and a quick test, then the careful way."""
    n, m = qp.n, qp.m
    A, b, C, d, E, f, lb, ub = _plain_fields(qp)
    quick = solve_plain_arrays(A, b, C, d, E, f, lb, ub, min(tol, _SHARP))
    if quick is not None:
        x, duals = quick
        end = len(duals) - n
        return _present(qp, Point(x, duals[:m], duals[m:end], duals[end:]), Status.OPTIMAL)
    if qp.plain and qp.m and qp.factor is not None and not qp.factor.singular:
        short = _only_rows(qp, qp.factor, min(tol, _SHARP))
        if short is not None:
            return _present(qp, short, Status.OPTIMAL)
    one, first = _One(None, _form_of(qp)), None
    form = one.form
    if not one.suits_interior and (n <= _SMALL or form.H.any()):
        first = engines.by_daqp(form, factor=qp.factor)
        if first is not None and one.is_surely_optimal(first, tol):
            return _present(qp, Point(first.x, first.y[n : n + m], first.y[n + m :], first.y[:n]), Status.OPTIMAL)
        first = first or engines.EngineAnswer(np.full(n, np.nan), np.zeros(len(form.low)))
    one.p = Arrays.of(qp)
    found, status = _solve_carefully(one, tol, None if first is None else engines.unlift_l1(one.p, first.x, first.y))
    return _present(qp, Point(*(part[0] for part in found)), status)


def _only_rows(qp: QP, factor: CholeskyFactor, tol: float) -> Point | None:
    """The answer of one definite problem with Cx ≤ d alone, or None: DAQP, and `is_surely_optimal` in fewer steps."""
    A, b, C, d = (tensor.numpy()[0] for tensor in (qp.A, qp.b, qp.C, qp.d))
    answer = engines.rows_by_daqp(A, b, C, d, factor)
    if answer is None:
        return None
    x, dual, _ = answer
    product, slack, size = A @ x, d - C @ x, np.abs(x)
    force, left = np.abs(product) + np.abs(b), np.abs(product + b + dual @ C)
    root = np.sqrt(A.diagonal())
    if not (left <= tol * force).all() or not (force > (1e-12 * (root @ size)) * root).all():
        return None
    if not size @ left + dual @ np.abs(slack) <= tol * (size @ force):
        return None
    if not (slack >= -tol * np.abs(d)).all() and not (slack >= -tol * (np.abs(d) + np.abs(C) @ size)).all():
        return None
    return Point(x, dual, _NOTHING, _NOTHING)


def _form_of(qp: QP) -> Form:
    """One problem without ℓ1 terms."""
    A, b, G, d = (tensor.numpy()[0] for tensor in (qp.A, qp.b, qp.C, qp.d))
    n, m = len(b), len(d)
    low, high = [np.full(n + m, -np.inf)], [np.full(n, np.inf), d]
    if qp.lb is not None:
        low[0][:n] = qp.lb.numpy()[0]
    if qp.ub is not None:
        high[0] = qp.ub.numpy()[0]
    if qp.E is not None and qp.f is not None:
        f = qp.f.numpy()[0]
        G = np.concatenate([G, qp.E.numpy()[0]])
        low, high = [*low, f], [*high, f]
    return Form(A, b, G, np.concatenate(low), np.concatenate(high))


def _present(qp: QP, point: Point, status: str) -> Solution:
    """The solution of one problem given as arrays, from the parts of a point without a batch dimension."""
    x, rows, equal, box = point if qp.single else (part[None] for part in point)
    shown = str(status) if qp.single else np.array([status], dtype=STATUS_TEXT)
    boxed = qp.lb is not None or qp.ub is not None
    return Solution(qp, x, rows, None if qp.E is None else equal, box if boxed else None, shown, "exact")


def _quickly(
    p: Arrays, tol: float, workers: int | None, initial: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[Point, np.ndarray, bool]:
    """Answers of the many problems that need no care, which those are, and whether the others are what DAQP says."""
    batch, n = p.b.shape
    bare = not p.d.shape[1] + p.f.shape[1] and not any(
        np.isfinite(distinct_entries(side)).any() for side in (p.lb, p.ub)
    )
    if batch >= BATCH and initial is None and (bare or not p.sparse):
        try:
            from time2decide.qp.bulk import solve_bulk  # compiled: not loaded for a few problems
            from time2decide.qp.l1_path import solve_l1
        except ImportError:
            pass
        else:
            sharp = min(tol, _SHARP)
            return (*(solve_l1(p, sharp, workers) if p.sparse else solve_bulk(p, tol, workers)), False)
    point, solved, m = _filled(p, np.nan), np.zeros(batch, dtype=bool), p.d.shape[1]
    if p.sparse or (initial is None and n > _SMALL):
        return point, solved, False
    for i in range(batch):
        start = None if initial is None else engines.EngineAnswer(initial[0][i].numpy(), initial[1][i].numpy())
        one = _One(None, engines.lift_l1(p, i))
        answer = engines.by_daqp(one.form, start)
        if answer is not None:
            x, y, _ = answer
            point.x[i], point.box[i], point.rows[i], point.equal[i] = x, y[:n], y[n : n + m], y[n + m :]
            solved[i] = one.is_surely_optimal(answer, tol)
    return point, solved, True


def _filled(p: Arrays, value: float) -> Point:
    return Point(*(np.full(part.shape, value) for part in (p.b, p.d, p.f, p.b)))


@np.errstate(all="ignore")  # of numbers at the ends of what floats hold; the certificate judges what comes of them
def solve_exact_one(p: Arrays, tol: float, first: Point | None = None) -> tuple[Point, str]:
    """The point (batch of one) and status of one problem; NaN where there is no answer.

    `first` is what DAQP has found for the problem as it is given, NaN where it has found nothing.
    """
    return _solve_carefully(_One(p, engines.lift_l1(p, 0)), tol, first)


@np.errstate(all="ignore")
def _solve_carefully(one: _One, tol: float, first: Point | None) -> tuple[Point, str]:
    """The answer to the problem as it is given, or where there is none, to the one that it is but for rounding."""
    point, status = _solve_as_given(one, tol, first)
    if status in (Status.OPTIMAL, Status.UNBOUNDED) or tol < _SHARP:
        return point, status
    clean = _without_noise(one)
    if clean is None:
        return point, status
    meant, found = _solve_as_given(_One(clean, engines.lift_l1(clean, 0)), tol, None)
    return (meant, found) if found == Status.OPTIMAL else (point, status)


def _without_noise(one: _One) -> Arrays | None:
    """The problem with bounds and slopes that rounding tells from 0, or from each other, made equal; None without such.

    Rounding is `_NOISE` times the size of x: that of the bounds (the median), or of what curvature and slope suggest.
    """
    p, n = one.p, one.p.b.shape[1]
    if p.sparse:
        return None
    units, rows, columns = one.units, one.factors[n:], one.factors[:n]
    noise = _NOISE * max(units.length, one.natural if one.natural < _NATURAL else 0.0)

    def rounded(bound: np.ndarray, unit: np.ndarray) -> np.ndarray:
        return np.where(np.abs(bound) <= noise * unit, 0.0, bound)

    m = p.d.shape[1]
    d, f = rounded(p.d, 1 / rows[:m]), rounded(p.f, 1 / rows[m:])
    lb, ub = rounded(p.lb, columns), rounded(p.ub, columns)
    crossed = (lb > ub) & (lb - ub <= np.maximum(noise * columns, _NOISE * np.abs(ub)))
    b = rounded(p.b, np.abs(p.A[0]) @ columns)
    clean = p._replace(b=b, d=d, f=f, lb=np.where(crossed, ub, lb), ub=ub)
    same = all(np.array_equal(one, other) for one, other in zip(clean, p, strict=True))
    return None if same else clean


def _solve_as_given(one: _One, tol: float, first: Point | None) -> tuple[Point, str]:
    """Attempts until the certificate holds, or a proof that there is no answer."""
    p, form = one.p, one.form
    none = _filled(p, np.nan)
    if (form.low > form.high).any() or (form.low == np.inf).any() or (form.high == -np.inf).any():
        return none, Status.INFEASIBLE
    best, reached, sharp = none, np.inf, min(tol, _SHARP)
    verdict, asked, failures = None, False, 0
    for turn, candidates in enumerate(_attempts(one, first)):
        if candidates is None:  # an engine found no answer: is there any?
            failures += 1
            if not asked and (failures > 1 or len(form.g) <= _SMALL):
                verdict, asked = _diagnose(form), True
            if verdict in (Status.INFEASIBLE, Status.UNBOUNDED):
                return none, verdict
            continue
        for candidate in candidates:
            level = one.level(candidate, tol)
            if level < reached or best is none:
                best, reached = candidate, level
            if reached <= sharp:
                break
        if reached <= min(tol, _NEARLY) or (turn >= _ENOUGH and reached <= tol):
            break
    if reached > tol or _hangs_by_rounding(p, best):
        verdict = verdict if asked else _diagnose(form)
        if verdict in (Status.INFEASIBLE, Status.UNBOUNDED):
            return none, verdict
    return best, Status.OPTIMAL if reached <= tol else verdict or Status.NOT_CONVERGED


class _One:
    """One problem with what all attempts share, formed when it is first needed."""

    p: Arrays  # a batch of one

    def __init__(self, p: Arrays | None, form: Form) -> None:
        self.form = form
        if p is not None:
            self.p = p

    @cached_property
    def rule(self) -> OptimalityRule:
        """The rule by which a point is optimal."""
        return OptimalityRule(self.p)

    @cached_property
    def entries(self) -> engines.Entries:
        """The entries of its matrices that are in use."""
        return engines.entries_of(self.form.H, self.form.G)

    @cached_property
    def factors(self) -> np.ndarray:
        """Factors that make columns and rows of size one."""
        return engines.equilibration(self.entries, len(self.form.low))

    @cached_property
    def units(self) -> engines.Units:
        """Units in which the problem is of size one."""
        return engines.units_of(self.form, self.entries, self.factors)

    @cached_property
    def natural(self) -> float:
        """The size that curvature and slope suggest for x, where rows and columns are of size one; 0: none."""
        k, (row, column, size) = len(self.form.g), self.entries
        steepest = float((size * self.factors[row] * self.factors[column])[row < k].max(initial=0))
        return float(np.abs(self.form.g * self.factors[:k]).max(initial=0)) / steepest if steepest > 0 else 0.0

    @cached_property
    def scaled(self) -> Form:
        """The problem in these units."""
        return engines.scaled_form(self.form, self.units)

    @property
    def suits_interior(self) -> bool:
        """Whether PIQP goes before DAQP, which forms LLᵀ of A and L⁻¹ times all rows, and takes one bound a step.

        How many bounds will be active is seen from −b/diag A.
        """
        form, (rows, n) = self.form, self.form.G.shape
        if n**3 / 3 + rows * n**2 > _WORK:
            return True
        if n < _CROWDED:
            return False
        away = -form.g / np.maximum(form.H.diagonal(), _TINY)
        return bool(((away < form.low[:n]) | (away > form.high[:n])).sum() > n / 4)

    @cached_property
    def parts(self) -> np.ndarray:
        """The part of the problem that each variable belongs to; ℓ1 terms couple none."""
        if hasattr(self, "p") and self.p.sparse:
            entries = engines.entries_of(self.p.A[0], self.p.C[0], self.p.E[0])
            return engines.connected_parts(self.p.b.shape[1], entries)
        return engines.connected_parts(len(self.form.g), self.entries)

    def level(self, point: Point, tol: float) -> float:
        """The tolerance at which a point is optimal, residuals of the size of rounding left aside."""
        measured = self.rule.measure(point)
        level = float(measured.level()[0])
        if level <= _SHARP or tol < _SHARP or measured.worst[0] > _HOPELESS:
            return level
        unit = self.factors[: point.x.shape[1]]
        return float(measured.level(engines.rounding_floor(self.rule, point, unit, self.parts))[0])

    def is_surely_optimal(self, answer: engines.EngineAnswer, tol: float) -> bool:
        """Whether an answer needs no further look: quick, for problems without ℓ1 terms."""
        form, x = self.form, answer.x

        def rounding() -> tuple[np.ndarray, np.ndarray]:
            return engines.inexactness(form.H, form.g, x, self.factors[: len(x)], self.parts)

        return is_surely_optimal(form, x, answer.y, min(tol, _SHARP), None if tol < _SHARP else rounding)


def _hangs_by_rounding(p: Arrays, point: Point) -> bool:
    """Whether Ax is nothing but the rounding of A, so that the answer is as far away as an eigenvalue is small.

    Looked at where b pulls: along a direction without end the objective falls, so that b has entries there.
    """
    A, b, x = p.A[0], p.b[0], point.x[0]
    return bool(((np.abs(A @ x) + np.abs(b) <= 1e-12 * (np.abs(A) @ np.abs(x))) & (b != 0)).any())


Candidates = Iterator[Point]


def _attempts(one: _One, first: Point | None) -> Iterator[Candidates | None]:
    """One engine after the other, the cheap ones first; each gives points that may be optimal, or None."""
    p, form = one.p, one.form
    attempts: list[tuple[Callable[..., engines.EngineAnswer | None], bool]]
    active_set, interior = (
        [(engine, scale) for scale in (False, True)] for engine in (engines.by_daqp, engines.by_piqp)
    )
    if not form.H.any():
        attempts = [(engines.by_highs, True), *active_set, *interior]
    elif p.sparse:
        attempts = [interior[0], *active_set, *interior]
    elif one.suits_interior:
        attempts = [interior[0], active_set[0], interior[1], active_set[1]]
    elif len(form.g) > _SMALL:
        attempts = [active_set[0], interior[0], active_set[1], interior[1]]
    else:
        attempts = [*active_set, *interior]
    zero = _filled(p, 0.0)
    if (p.sparse or not form.g.any()) and one.rule.residual(zero)[0] <= _SHARP:
        yield iter([zero])
    doubtful = []
    for engine, rescale in attempts:
        if engine is engines.by_daqp and not rescale and first is not None:
            yield _refined(one, _inside(p, first)) if np.isfinite(first.x).all() else None
            continue
        answer = engine(one.scaled if rescale else form)
        if answer is None:
            yield None
            continue
        x, y, sure = one.units.back(answer) if rescale else answer
        point = _inside(p, engines.unlift_l1(p, x, y))
        if engine is engines.by_piqp:
            doubtful.append(point)
            if sure:
                yield _from_interior(one, point, x)
        else:
            yield _refined(one, point)
    for point in doubtful:
        yield _refined(one, point)


def _from_interior(one: _One, point: Point, x: np.ndarray) -> Candidates:
    """The answer on the active set that an interior point shows, or that set alone, or the active set nearest to it."""
    yield from _polished(one, point)
    if not one.p.sparse:
        yield engines.separated_answer(one.p, point, one.units)
    same, units = one.scaled, one.units
    for nearest in engines.crossover(same, x / units.unit):
        corner = _inside(one.p, engines.unlift_l1(one.p, *units.back(nearest)[:2]))
        yield from _polished(one, corner)
        yield corner


def _refined(one: _One, point: Point) -> Candidates:
    """An engine's point, what its active set makes of it, and both without entries that are nothing but rounding."""
    if not one.p.sparse:
        yield point
    polished = point
    for polished in _polished(one, point):
        yield polished
    p, units = one.p, one.units
    natural = one.natural / units.length
    at_apex = np.abs(point.x / units.unit[: point.x.shape[1]]).max() < _SNAP[-1] * natural
    scales = [(0.0, _SNAP), (natural, _SNAP[:2])]
    for least, levels in reversed(scales) if at_apex else scales:
        for level in levels:
            for base in (point, polished):
                rounded = _inside(p, engines.snapped_answer(p, base, units, level, least))
                yield rounded
                yield _inside(p, engines.polish_active(p, rounded, units))
    if p.sparse:
        yield point


def _polished(one: _One, point: Point, rounds: int = 2) -> Candidates:
    """The answers on the active set that a point shows, and on the one that this answer shows."""
    for _ in range(rounds):
        point = _inside(one.p, engines.polish_active(one.p, point, one.units))
        yield point


def _inside(p: Arrays, point: Point) -> Point:
    """Within the bounds, and no multiplier where there is no bound."""
    box = np.where(np.isfinite(p.ub) | (point.box < 0), point.box, 0.0)
    box = np.where(np.isfinite(p.lb) | (box > 0), box, 0.0)
    return point._replace(x=np.clip(point.x, p.lb, p.ub), rows=np.maximum(point.rows, 0), box=box)


def _diagnose(form: Form) -> str | None:
    """Infeasible or unbounded where that can be proved, infeasible within rounding where it is likely, else None."""
    one = _One(None, form)
    same, units = one.scaled, one.units
    back = units.slope * units.stretch
    deficit, y = _least_violation(same)
    if deficit > 0 and y is not None:
        for candidate in (y, _cleaned_proof(same, y)):
            if proves_infeasible(same, candidate) and proves_infeasible(form, candidate * back):
                return Status.INFEASIBLE
    if deficit > _TINY:
        return Status.NEARLY_INFEASIBLE if deficit < _HIDDEN else None
    v = _falling_direction(same)
    if v is not None and proves_unbounded(form, v * units.unit):
        return Status.UNBOUNDED
    return None


def _least_violation(form: Form) -> tuple[float, np.ndarray | None]:
    """min t with every row within t of its bounds, and the multipliers of the constraints at that point.

    HiGHS sees no violation below 1e-7: what is left is looked at again, from where it stopped, in units of its size.
    """
    k, r = len(form.g), len(form.G)
    if not r:
        return 0.0, None
    x, unit, found = np.zeros(k), 1.0, None
    for _ in range(3):
        value = np.append(x, form.G @ x)
        moved = form._replace(low=(form.low - value) / unit, high=(form.high - value) / unit)
        found = _least_violation_near(moved, np.inf if unit == 1 else _NEAR)
        if found is None:
            return (np.inf, None) if unit == 1 else (0.0, None)
        step, t, y = found
        if t > _CLEAR:
            return t * unit, y
        x = np.clip(x + unit * step, form.low[:k], form.high[:k])
        across = form.G @ x
        unit = float(np.maximum(across - form.high[k:], form.low[k:] - across).max())
        if unit <= _TINY:
            break
    return 0.0, None


def _least_violation_near(form: Form, near: float) -> tuple[np.ndarray, float, np.ndarray] | None:
    """x, t and multipliers of the linear program of `_least_violation` with |x| ≤ near; bounds beyond are none."""
    k, r = len(form.g), len(form.G)
    low, high = np.where(form.low < -near, -np.inf, form.low), np.where(form.high > near, np.inf, form.high)
    box = np.maximum(low[:k], -near), np.minimum(high[:k], near)
    low, high = low[k:], high[k:]
    above, below = high < np.inf, low > -np.inf
    G = np.vstack([form.G[above], -form.G[below]])
    widened = Form(
        np.zeros((k + 1, k + 1)),
        np.append(np.zeros(k), 1.0),
        np.hstack([G, -np.ones((len(G), 1))]),
        np.concatenate([box[0], [0.0], np.full(len(G), -np.inf)]),
        np.concatenate([box[1], [np.inf], high[above], -low[below]]),
    )
    answer = engines.by_highs(widened)
    if answer is None:
        return None
    pulls, rows = answer[1][k + 1 :], np.zeros(r)
    rows[above] += pulls[: above.sum()]
    rows[below] -= pulls[above.sum() :]
    return answer[0][:k], float(answer[0][-1]), _with_bounds(form, rows)


def _with_bounds(form: Form, rows: np.ndarray) -> np.ndarray:
    """The multipliers of the bounds that balance those of the rows, where there is a bound to pull."""
    box = -(form.G.T @ rows)
    k = len(box)
    able = np.where(box > 0, form.high[:k] < np.inf, form.low[:k] > -np.inf)
    return np.append(np.where(able, box, 0.0), rows)


def _cleaned_proof(form: Form, y: np.ndarray) -> np.ndarray:
    """A proof up to a solver's tolerance made one up to rounding: what should cancel is projected out."""
    k = len(form.g)
    rows = y[k:] * (np.abs(y[k:]) > 1e-9 * np.abs(y[k:]).max(initial=0))
    used, loose = np.flatnonzero(rows), y[:k] == 0
    M = form.G[np.ix_(used, loose)].T  # (loose columns, used rows)
    for _ in range(3):
        rows[used] -= np.linalg.lstsq(M, M @ rows[used], rcond=1e-11)[0]
    return _with_bounds(form, rows)


def _falling_direction(form: Form) -> np.ndarray | None:
    """v in [−1, 1] with Hv = 0 that no constraint blocks and along which the objective falls fastest."""
    k = len(form.g)
    if not form.g.any():
        return None

    def way(bound: np.ndarray, free: float) -> np.ndarray:
        return np.where(np.isfinite(bound), 0.0, free)

    low, high = way(form.low[:k], -1.0), way(form.high[:k], 1.0)
    flat = np.abs(form.H).max(axis=1, initial=0) > 0
    H = form.H[flat]
    G = np.vstack([form.G, H])
    cone = Form(
        np.zeros((k, k)),
        form.g,
        G,
        np.concatenate([low, way(form.low[k:], -np.inf), np.zeros(len(H))]),
        np.concatenate([high, way(form.high[k:], np.inf), np.zeros(len(H))]),
    )
    answer = engines.by_highs(cone)
    if answer is None or not form.g @ answer[0] < 0:
        return None
    v = answer[0]
    still, tight = np.abs(v) <= 1e-9, np.abs(G @ v) <= 1e-7
    v = np.where(still, 0.0, v)
    M = G[np.ix_(tight, ~still)]
    for _ in range(3):
        v[~still] -= np.linalg.lstsq(M, M @ v[~still], rcond=1e-11)[0]
    return v
