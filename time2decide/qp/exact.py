"""Exact answers: every one is certified against the data of its problem before it is called optimal.

Attempts in order of cost, until the certificate holds: DAQP first, PIQP first where DAQP has much to set up (sparse
factorisations where few entries are in use), both again after scaling; HiGHS first for linear programs. What an attempt
returns is made exact by the linear system of its active set. Where all fail, a linear program looks for a proof that
the problem is infeasible or unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch

from time2decide.core.validation import validate_count
from time2decide.qp import engines
from time2decide.qp.certificate import Arrays, Form, Point, Rule, is_optimal, proves_infeasible, proves_unbounded, times
from time2decide.qp.problem import QP
from time2decide.qp.solution import Solution, Status

_OPTIMAL = np.array([Status.OPTIMAL], dtype="<U16")
_SNAP = (1e-14, 1e-12, 1e-10, 1e-8)  # entries below these shares of the largest may be rounding
_BULK_FROM = 32  # problems from which on the compiled kernel is used
_SMALL = 40  # variables up to which every attempt costs next to nothing
_WORK = 2e7  # operations of the set-up of DAQP from which on PIQP goes first
_ENOUGH = 2  # attempts before an answer that is within the tolerance, but not sharp, is taken
_HOPELESS = 1e-2  # residual that no rounding excuses
_NEARLY = 1e-10  # tolerance at which no other engine is asked
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
    if initial is None and len(qp) == 1 and qp.m and qp.kind == "LC" and qp.plain and qp.in_numpy:
        short = _only_rows(qp, tol)
        if short is not None and qp.single:
            return Solution(qp, short[0], short[1], None, None, str(Status.OPTIMAL), "exact")
        if short is not None:
            return Solution.build(qp, short[0][None], short[1][None], None, None, _OPTIMAL, "exact")
    p = Arrays.of(qp)
    point, solved, tried = _quickly(p, tol, workers, initial)
    status = np.full(len(qp), Status.OPTIMAL, dtype="<U16")
    for i in map(int, np.flatnonzero(~solved)):
        one = slice(i, i + 1)
        found, status[i] = solve_one(p.at(one), tol, point.at(one) if tried else None)
        for into, part in zip(point, found, strict=True):
            into[i] = part[0]
    x, dual, dual_eq, dual_box = (part if qp.in_numpy else torch.from_numpy(part).to(qp.A) for part in point)
    return Solution.build(qp, x, dual, dual_eq, dual_box, status, "exact")


def _only_rows(qp: QP, tol: float) -> tuple[np.ndarray, np.ndarray] | None:
    """x and dual, (n,) and (m,), of one problem with Cx ≤ d, or None: DAQP, and the certificate in few steps.

    What is checked here is stricter than the rule of `certificate` and needs no |A| and |C|: residuals are compared
    with |Ax| + |b|, and |A||x| is bounded by aᵀ|x|·a for semidefinite A with diagonal a².
    """
    A, b, C, d = (t.numpy()[0] for t in (qp.A, qp.b, qp.C, qp.d))
    answer = engines.rows_by_daqp(A, b, C, d)
    if answer is None:
        return None
    x, dual = answer.x, np.maximum(answer.y, 0.0)
    if not d.all():  # where a bound is zero, rounding is all there is to compare with
        x = engines.put_on_rows(x, dual, C, d)
    size, product, sharp = np.abs(x), A @ x, min(tol, _SHARP)
    force, left = np.abs(product) + np.abs(b), np.abs(product + b + dual @ C)
    slack = d - C @ x
    root = np.sqrt(A.diagonal())
    if not (left <= sharp * force).all() or not (force > (1e-12 * (root @ size)) * root).all():
        return None
    if not size @ left + dual @ np.abs(slack) <= sharp * (size @ force):
        return None
    if slack.min() < 0:
        out = slack < 0
        if (-slack[out] > sharp * (np.abs(d[out]) + np.abs(C[out]) @ size)).any():
            return None
    return x, dual


def _quickly(
    p: Arrays, tol: float, workers: int | None, initial: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[Point, np.ndarray, bool]:
    """Answers of the many problems that need no care, which those are, and whether the others are what DAQP says."""
    batch, n = p.b.shape
    if p.sparse and (batch < _BULK_FROM or p.d.shape[1] + p.f.shape[1] or np.isfinite(p.radius).any()):
        return _empty(p), np.zeros(batch, dtype=bool), False
    if batch >= _BULK_FROM and initial is None:
        try:
            from time2decide.qp.bulk import solve_bulk  # compiled: not loaded for a few problems
        except ImportError:
            pass
        else:
            return (*(_penalised(p, tol, workers) if p.sparse else solve_bulk(p, tol, workers)), False)
    point = _empty(p)
    if p.sparse:
        return point, np.zeros(batch, dtype=bool), False
    if initial is None and n > _SMALL:
        return point, np.zeros(batch, dtype=bool), False
    for i in range(batch):
        start = None if initial is None else engines.Answer(initial[0][i].numpy(), initial[1][i].numpy())
        answer = engines.by_daqp(engines.lift(p, i), start)
        if answer is not None:
            x, y, _ = answer
            point.x[i], point.box[i] = x, y[:n]
            point.rows[i], point.equal[i] = y[n : n + p.d.shape[1]], y[n + p.d.shape[1] :]
    solved = is_optimal(p, point, min(tol, _SHARP))
    for i in map(int, np.flatnonzero(solved)):
        solved[i] = not _hangs_by_rounding(p.at(slice(i, i + 1)), point.at(slice(i, i + 1)))
    return point, solved, True


def _empty(p: Arrays) -> Point:
    return Point(*(np.full(part.shape, np.nan) for part in (p.b, p.d, p.f, p.b)))


def _penalised(p: Arrays, tol: float, workers: int | None) -> tuple[Point, np.ndarray]:
    """λ‖x‖₁ by its dual, min ½(b + w)ᵀA⁻¹(b + w) with |w| ≤ λ, whose multipliers are x: zeros are exact zeros."""
    from time2decide.qp.bulk import solve_bulk

    if np.isfinite(p.lb).any() or np.isfinite(p.ub).any():
        return _empty(p), np.zeros(len(p.b), dtype=bool)
    spectrum = np.linalg.eigvalsh(p.A)
    definite = spectrum[:, 0] > 1e-10 * spectrum[:, -1]
    inverse = np.zeros_like(p.A)
    inverse[definite] = np.linalg.inv(p.A[definite])
    inverse = (inverse + inverse.transpose(0, 2, 1)) / 2
    level = np.broadcast_to(p.penalty[:, None], p.b.shape)
    dual = p._replace(A=inverse, b=times(inverse, p.b), lb=-level, ub=level, penalty=np.zeros(len(p.b)))
    found, solved = solve_bulk(dual, tol, workers)
    point = Point(found.box, found.rows, found.equal, np.zeros_like(found.box))
    return point, solved & definite & is_optimal(p, point, _SHARP)


def solve_one(p: Arrays, tol: float, first: Point | None = None) -> tuple[Point, str]:
    """The point (batch of one) and status of one problem; NaN where there is no answer.

    `first` is what DAQP has found for the problem as it is given, NaN where it has found nothing.
    """
    one = _One(p)
    none = Point(*(np.full_like(np.asarray(part, dtype=float), np.nan) for part in (p.b, p.d, p.f, p.b)))
    form = one.form
    if (form.low > form.high).any() or (form.low == np.inf).any() or (form.high == -np.inf).any():
        return none, Status.INFEASIBLE
    best, reached, sharp = none, np.inf, min(tol, _SHARP)
    verdict, asked, failures = None, False, 0
    for turn, candidates in enumerate(_attempts(one, first)):
        if candidates is None:  # an engine found no answer: is there any?
            failures += 1
            if not asked and (failures > 1 or len(form.g) <= _SMALL):
                verdict, asked = diagnose(form), True
            if verdict is not None:
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
        verdict = verdict if asked else diagnose(form)
        if verdict is not None:
            return none, verdict
    return best, Status.OPTIMAL if reached <= tol else Status.NOT_CONVERGED


class _One:
    """One problem with what all attempts share, formed when it is first needed."""

    def __init__(self, p: Arrays) -> None:
        self.p, self.form, self.rule = p, engines.lift(p, 0), Rule(p)

    @cached_property
    def scaled(self) -> tuple[Form, engines.Units]:
        """The problem in units of size one."""
        return engines.scaled(self.form)

    @property
    def suits_interior(self) -> bool:
        """Whether PIQP goes before DAQP, which has to form LLᵀ of A and L⁻¹ times all rows."""
        rows, n = self.form.G.shape
        return n**3 / 3 + rows * n**2 > _WORK

    @cached_property
    def parts(self) -> np.ndarray:
        """The part of the problem that each variable belongs to."""
        return engines.connected_parts(self.p)

    def level(self, point: Point, tol: float) -> float:
        """The tolerance at which a point is optimal, residuals of the size of rounding left aside."""
        measured = self.rule.measure(point)
        level = float(measured.level()[0])
        if level <= _SHARP or tol < _SHARP or measured.worst[0] > _HOPELESS:
            return level
        return float(measured.level(engines.rounding_floor(self.p, point, self.scaled[1], self.parts))[0])


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
    attempts: list[tuple[Callable[..., engines.Answer | None], bool]]
    active_set, interior = (
        [(engines.by_daqp, scale) for scale in (False, True)],
        [(engines.by_piqp, scale) for scale in (False, True)],
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
    zero = _at_zero(p)
    if (p.sparse or not form.g.any()) and one.rule.residual(zero)[0] <= _SHARP:
        yield iter([zero])
    doubtful = []
    for engine, rescale in attempts:
        if engine is engines.by_daqp and not rescale and first is not None:
            yield _refined(one, _inside(p, first)) if np.isfinite(first.x).all() else None
            continue
        answer = engine(one.scaled[0] if rescale else form)
        if answer is None:
            yield None
            continue
        x, y, sure = one.scaled[1].back(answer) if rescale else answer
        point = _inside(p, engines.unlift(p, x, y))
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
        yield engines.separated(one.p, point, one.scaled[1])
    same, units = one.scaled
    for nearest in engines.crossover(same, x / units.unit):
        corner = _inside(one.p, engines.unlift(one.p, *units.back(nearest)[:2]))
        yield from _polished(one, corner)
        yield corner


def _at_zero(p: Arrays) -> Point:
    return Point(*(np.zeros_like(np.asarray(part, dtype=float)) for part in (p.b, p.d, p.f, p.b)))


def _refined(one: _One, point: Point) -> Candidates:
    """An engine's point, what its active set makes of it, and both without entries that are nothing but rounding."""
    if not one.p.sparse:
        yield point
    polished = point
    for polished in _polished(one, point):
        yield polished
    p, units = one.p, one.scaled[1]
    for level in _SNAP:
        for base in (point, polished):
            rounded = _inside(p, engines.snapped(p, base, units, level))
            yield rounded
            yield _inside(p, engines.polish(p, rounded, units))
    if p.sparse:
        yield point


def _polished(one: _One, point: Point, rounds: int = 2) -> Candidates:
    """The answers on the active set that a point shows, and on the one that this answer shows."""
    for _ in range(rounds):
        point = _inside(one.p, engines.polish(one.p, point, one.scaled[1]))
        yield point


def _inside(p: Arrays, point: Point) -> Point:
    """Within the bounds, and no multiplier where there is no bound."""
    box = np.where(np.isfinite(p.ub) | (point.box < 0), point.box, 0.0)
    box = np.where(np.isfinite(p.lb) | (box > 0), box, 0.0)
    return point._replace(x=np.clip(point.x, p.lb, p.ub), rows=np.maximum(point.rows, 0), box=box)


def diagnose(form: Form) -> str | None:
    """Infeasible or unbounded where that can be proved, None otherwise."""
    same, units = engines.scaled(form)
    back = units.slope * units.stretch
    deficit, y = _least_violation(same)
    if deficit > 0 and y is not None:
        for candidate in (y, _cleaned_proof(same, y)):
            if proves_infeasible(same, candidate) and proves_infeasible(form, candidate * back):
                return Status.INFEASIBLE
    if deficit > 1e-9:
        return None
    v = _falling_direction(same)
    if v is not None and proves_unbounded(form, v * units.unit):
        return Status.UNBOUNDED
    return None


def _least_violation(form: Form) -> tuple[float, np.ndarray | None]:
    """min t with every row within t of its bounds, and the multipliers of the constraints at that point."""
    k, r = len(form.g), len(form.G)
    if not r:
        return 0.0, None
    low, high = form.low[k:], form.high[k:]
    above, below = high < np.inf, low > -np.inf
    G = np.vstack([form.G[above], -form.G[below]])
    widened = Form(
        np.zeros((k + 1, k + 1)),
        np.append(np.zeros(k), 1.0),
        np.hstack([G, -np.ones((len(G), 1))]),
        np.concatenate([form.low[:k], [0.0], np.full(len(G), -np.inf)]),
        np.concatenate([form.high[:k], [np.inf], high[above], -low[below]]),
    )
    answer = engines.by_highs(widened)
    if answer is None:
        return np.inf, None
    pulls = answer[1][k + 1 :]
    rows = np.zeros(r)
    rows[above] += pulls[: above.sum()]
    rows[below] -= pulls[above.sum() :]
    return float(answer[0][-1]), _with_bounds(form, rows)


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
