"""Hard problems whose answer is known by construction, and a count of what each method says wrongly of them.

A problem is made around its answer: x*, an active set and multipliers are drawn, and b follows from stationarity, so
that the optimal value is known even where x* is not unique. Infeasible problems contain a combination of their own rows
that contradicts itself, unbounded ones a direction of descent that nothing blocks. Then rows, columns and objective are
scaled by powers of ten. The last six families are those of small numbers: the apex of a cone, the same with bounds that
rounding tells from zero, more active rows than variables, curvature down to 1e-12, control at rest, and contradictions
of 1e-9 to 1e-6 of their terms (an answer that meets every row to 1e-8 of its terms is right, too). Wrong is: "optimal"
for a problem without an answer, or with a value or a violation off by more than 1e-6 of its terms; "infeasible" or
"unbounded" for any other problem. In a *mixed* batch problems of several families are solved in one call.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from time2decide.qp import QP
from time2decide.qpsolvers_api import Problem, ProblemError, solve_problem
from time2decide.solving import METHODS, solve

_OFF = 1e-6  # relative error from which on an answer is wrong
FAMILIES = (
    *("plain", "singular", "linear", "degenerate", "equations", "bounds", "infeasible", "unbounded"),
    *("rows", "columns", "wide", "objective", "all", "far", "tiny", "one", "free", "many"),
    *("penalty", "radius", "float32"),
    *("apex", "noise", "vertex", "curvature", "rest", "near"),
)
#: Families of a mixed batch: all with Cx ≤ d alone.
MIXED = ("plain", "singular", "degenerate", "infeasible", "unbounded", "rows", "columns", "wide", "objective", "tiny")
_FLOOR = {"noise": 1e-12, "rest": 1e-12}  # families whose answers are zero but for rounding in the data
_BATCH = 50
_MAX_STEPS = 500  # of iterative methods: what does not converge by then is open, not wrong


class HardProblem(NamedTuple):
    """A problem, what it is (optimal, infeasible or unbounded) and its optimal value."""

    family: str
    fields: dict[str, Any]
    truth: str
    value: float


def draw_hard_problem(family: str, seed: int, size: tuple[int, int] | None = None) -> HardProblem:
    """One problem of a family, of n variables and m rows if `size` says so; the same seed gives the same problem."""
    rng = np.random.default_rng([FAMILIES.index(family), seed])
    if family in ("penalty", "radius"):
        return _sparse(family, rng)
    if family in ("apex", "noise", "rest"):
        return _at_zero(family, rng)
    n, m = int(rng.integers(2, 12)), int(rng.integers(1, 14))
    if size is not None:
        n, m = size[0], size[1] - (family == "infeasible")  # the row that contradicts comes on top
    n = 1 if family == "one" else n
    m = {"free": 0, "many": 8 * n, "vertex": 3 * n}.get(family, m)
    ranks = {"singular": n // 2, "linear": 0, "infeasible": int(rng.integers(0, n + 1)), "unbounded": n - 1}
    rank = ranks.get(family, n)
    fields, value = _around_an_answer(rng, n, m, rank, family)
    truth = "optimal"
    if family == "infeasible":
        truth, fields = "infeasible", _contradict(fields, rng)
    elif family == "near":
        truth, fields = "infeasible", _contradict(fields, rng, by=10.0 ** rng.uniform(-9, -6))
    elif family == "unbounded":
        truth, fields = "unbounded", _open(fields, rng)
    fields, value = _rescaled(fields, value, family, rng)
    if family == "far":
        far = rng.choice([1e11, 1e15, 1e20, 1e30, np.inf])
        fields["C"] = np.vstack([fields["C"], rng.normal(size=(1, n))])
        fields["d"] = np.append(fields["d"], far)
    if family == "float32":
        fields["d"] = fields["d"] + 1e-5 * (1 + np.abs(fields["d"]))  # rounding must not make it infeasible
        fields = {name: array.astype(np.float32) for name, array in fields.items()}
        value = np.nan  # of the rounded problem: only its optimality conditions can be judged
    return HardProblem(family, fields, truth, value)


def _around_an_answer(rng: np.random.Generator, n: int, m: int, rank: int, family: str) -> tuple[dict[str, Any], float]:
    x = rng.normal(size=n) * rng.integers(0, 2, n) if family == "degenerate" else rng.normal(size=n)
    M = rng.normal(size=(n, rank))
    if family == "curvature":
        M = np.linalg.qr(M)[0] * 10.0 ** rng.uniform(-6, 0, n)
    A = M @ M.T
    C = rng.normal(size=(m, n))
    active = rng.random(m) < min(1.0, n / (2 * m) if m else 0) if family != "linear" else np.arange(m) < n
    dual = np.where(active, rng.exponential(size=m), 0.0)
    if family == "vertex":
        active[:] = True
    if family == "degenerate":
        active |= rng.random(m) < 0.5  # rows that hold with equality and a multiplier of zero
        C[m // 2 :] = C[: m - m // 2]  # and rows twice
    d = C @ x + np.where(active, 0.0, rng.exponential(size=m))
    b = -A @ x - C.T @ dual
    fields: dict[str, Any] = {"A": A, "b": b, "C": C, "d": d}
    if family in ("equations", "all", "linear"):
        E = rng.normal(size=(max(1, n // 3), n))
        fields |= {"E": E, "f": E @ x, "b": b - E.T @ rng.normal(size=len(E))}
    if family in ("bounds", "all", "linear"):
        at = rng.random(n) < 0.4
        fields |= {"lb": np.where(at, x, x - rng.exponential(size=n)), "ub": np.full(n, np.inf)}
        fields["b"] = fields["b"] + np.where(at, rng.exponential(size=n), 0.0)
    if not m:
        del fields["C"], fields["d"]
    return fields, float(x @ A @ x / 2 + fields["b"] @ x)


def _at_zero(family: str, rng: np.random.Generator) -> HardProblem:
    """min ½xᵀAx + bᵀx over a cone with the answer 0, with noise in its bounds, or control of a system at rest."""
    n = int(rng.integers(2, 12))
    M = rng.normal(size=(n, n))
    A, fields = M @ M.T if rng.random() < 0.5 else np.eye(n), {}
    C = rng.normal(size=(int(rng.integers(1, 3 * n)), n))
    b = -C.T @ np.where(rng.random(len(C)) < 0.7, rng.exponential(size=len(C)), 0.0)
    d = np.zeros(len(C))
    if family != "apex":
        d = 1e-17 * rng.normal(size=len(C)) * rng.integers(0, 2, len(C))
    if family == "rest":  # states follow inputs by equations, both are bounded
        E = np.hstack([np.eye(n), -rng.normal(size=(n, n))])
        A, b, C = np.diag(rng.exponential(size=2 * n) + 0.1), np.zeros(2 * n), np.hstack([C, np.zeros_like(C)])
        fields = {"E": E, "f": 1e-17 * rng.normal(size=n), "lb": np.full(2 * n, -1.0), "ub": np.full(2 * n, 1.0)}
    return HardProblem(family, {"A": (A + A.T) / 2, "b": b, "C": C, "d": d, **fields}, "optimal", 0.0)


def _contradict(fields: dict[str, Any], rng: np.random.Generator, by: float | None = None) -> dict[str, Any]:
    """With a row that contradicts the others, by a share of its terms or by an amount."""
    C, d = fields["C"], fields["d"]
    y = rng.exponential(size=len(d))
    amount = float(10.0 ** rng.uniform(-3, 1)) if by is None else by * float(y @ np.abs(d))
    row, bound = -(y @ C), -(y @ d) - amount
    return fields | {"C": np.vstack([C, row]), "d": np.append(d, bound)}


def _open(fields: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    A = fields["A"]
    v = np.linalg.eigh(A)[1][:, 0]
    v = v - np.linalg.pinv(A) @ (A @ v)
    C = fields["C"] * -np.where(fields["C"] @ v > 0, 1.0, -1.0)[:, None]
    d = C @ rng.normal(size=len(v)) + rng.exponential(size=len(C))
    b = A @ rng.normal(size=len(v)) - v * rng.exponential() * 3
    return fields | {"C": C, "d": d, "b": b}


def _rescaled(
    fields: dict[str, Any], value: float, family: str, rng: np.random.Generator
) -> tuple[dict[str, Any], float]:
    n = len(fields["b"])
    m = len(fields.get("d", ()))
    every = family == "all"
    column = 10.0 ** rng.uniform(-4, 4, n) if family == "columns" or every else np.ones(n)
    column = 10.0 ** rng.uniform(-8, 8, n) if family == "wide" else column
    row = 10.0 ** rng.uniform(-8, 8, m) if family == "rows" or every else np.ones(m)
    if family == "rows" and rng.random() < 0.3 and m:
        row[0] = 1e30
    whole = 10.0 ** rng.uniform(-8, 8) if family == "objective" or every else 1.0
    whole = 1e-12 if family == "tiny" else whole
    out = dict(fields)
    out["A"], out["b"] = whole * fields["A"] * column * column[:, None], whole * fields["b"] * column
    out["A"] = (out["A"] + out["A"].T) / 2
    if m:
        out["C"], out["d"] = row[:, None] * fields["C"] * column, row * fields["d"]
    if "E" in fields:
        out["E"] = fields["E"] * column
    for name in ("lb", "ub"):
        if name in fields:
            out[name] = fields[name] / column
    return out, whole * value


def _sparse(family: str, rng: np.random.Generator) -> HardProblem:
    """λ‖x‖₁ or ‖x‖₁ ≤ B around an answer with zeros, A singular at times."""
    n = int(rng.integers(2, 10))
    M = rng.normal(size=(n, n if rng.random() < 0.7 else max(1, n // 2)))
    A, x = M @ M.T, rng.normal(size=n) * rng.integers(0, 2, n)
    level = float(rng.exponential()) + 0.1
    pull = np.where(x != 0, level * np.sign(x), level * rng.uniform(-0.9, 0.9, n))
    b, norm = -A @ x - pull, float(np.abs(x).sum())
    value = float(x @ A @ x / 2 + b @ x)
    if family == "radius":
        return HardProblem(family, {"A": A, "b": b, "l1_radius": norm}, "optimal", value)
    return HardProblem(family, {"A": A, "b": b, "l1_penalty": level}, "optimal", value + level * norm)


def judge_hard_answer(hard: HardProblem, status: str, x: np.ndarray, off: float = _OFF) -> str:
    """``right``, ``wrong`` or ``open`` (not converged)."""
    if status == "not_converged":
        return "open"
    if hard.family in _FLOOR and status.startswith("infeasible"):
        return "right"  # noise may contradict itself
    within = hard.family == "near"  # infeasible by less than the tolerance, at times
    if status != "optimal" or (hard.truth != "optimal" and not within):
        return "right" if status.removesuffix(" within rounding") == hard.truth else "wrong"
    f = {name: np.asarray(value, dtype=float) for name, value in hard.fields.items()}
    x = np.asarray(x, dtype=float)
    off = 1e-8 if within else off
    off = max(off, 1e-4) if hard.family == "float32" else off
    size = np.abs(x)
    misses: list[tuple[Any, Any]] = []  # of each constraint, and what they are relative to
    if "C" in f:
        misses.append((f["C"] @ x - f["d"], np.abs(f["d"]) + np.abs(f["C"]) @ size))
    if "E" in f:
        misses.append((np.abs(f["E"] @ x - f["f"]), np.abs(f["f"]) + np.abs(f["E"]) @ size))
    if "lb" in f:
        misses.append((f["lb"] - x, np.abs(f["lb"]) + size))
    if "l1_radius" in f:
        misses.append((size.sum() - f["l1_radius"], f["l1_radius"]))
    floor = _FLOOR.get(hard.family, 1e-300)
    if "ub" in f:
        misses.append((x - f["ub"], np.abs(f["ub"]) + size))
    with np.errstate(invalid="ignore"):
        if any((miss > off * scale + floor).any() for miss, scale in misses):
            return "wrong"
    if np.isnan(hard.value) or within:
        return "right"
    found = x @ f["A"] @ x / 2 + f["b"] @ x + f.get("l1_penalty", 0.0) * size.sum()
    scale = abs(hard.value) + np.abs(x * (f["A"] @ x)).sum() + np.abs(f["b"] * x).sum()
    return "right" if abs(found - hard.value) <= off * scale + floor else "wrong"


def hard_rows(quick: bool = False) -> list[dict[str, Any]]:
    """Verdicts on hard problems by method and family: right, wrong and open (not converged)."""
    rows = []
    for method in ("exact", "solve_qp", *(name for name in METHODS if name != "exact")):
        problems = len(FAMILIES) * 2 if quick else 20_000 if method == "exact" else 2_000
        for family, found in _count(method, problems).items():
            verdicts = {name: found[name] for name in ("right", "wrong", "open")}
            rows.append({"method": method, "family": family, **verdicts})
    return rows


def _count(method: str, problems: int, first: int = 0) -> dict[str, Counter[str]]:
    """Verdicts by family over `problems` drawn in turn; a family that the method does not take is left out.

    A method of `solve`, or ``solve_qp`` for the interface of qpsolvers. One problem in twenty is part of a mixed batch.
    """
    verdicts: dict[str, Counter[str]] = {}
    alone = problems - problems // 20
    for i in range(alone):
        family = FAMILIES[i % len(FAMILIES)]
        hard = draw_hard_problem(family, first + i // len(FAMILIES))
        try:
            status, x = _answer(method, hard)
        except ValueError:
            continue
        verdicts.setdefault(family, Counter())[judge_hard_answer(hard, status, x, _off(method))] += 1
    for seed in range((problems - alone) // _BATCH):
        for verdict in _mixed(method, first + seed):
            verdicts.setdefault("mixed", Counter())[verdict] += 1
    return verdicts


def _answer(method: str, hard: HardProblem) -> tuple[str, np.ndarray]:
    if method == "solve_qp":
        if {"l1_penalty", "l1_radius"} & set(hard.fields):
            raise ValueError("qpsolvers has no l1 terms")
        theirs = {"A": "P", "b": "q", "C": "G", "d": "h", "E": "A", "f": "b", "lb": "lb", "ub": "ub"}
        try:
            found = solve_problem(Problem(**{theirs[name]: value for name, value in hard.fields.items()}))
        except ProblemError as error:
            if "unbounded" not in str(error):
                raise
            return "unbounded", np.full(len(hard.fields["b"]), np.nan)
        return found.extras["status"], found.x
    answer = solve(QP(**hard.fields), method, **_options(method))
    return str(answer.status), answer.x


def _options(method: str) -> dict[str, Any]:
    return {} if method == "exact" or method.startswith("neural") else {"max_steps": _MAX_STEPS}


def _off(method: str) -> float:
    """The learned solver alone computes in float32 and is judged by its own tolerance."""
    return 1e-3 if method == "neural" else _OFF


def _mixed(method: str, seed: int) -> list[str]:
    """Verdicts on one batch of problems of several families, in one call."""
    rng = np.random.default_rng([len(FAMILIES), seed])
    size = int(rng.integers(2, 10)), int(rng.integers(2, 12))
    problems = [
        draw_hard_problem(MIXED[int(rng.integers(len(MIXED)))], 10**6 + _BATCH * seed + i, size) for i in range(_BATCH)
    ]
    arrays = [np.stack([hard.fields[name] for hard in problems]) for name in ("A", "b", "C", "d")]
    try:
        answer = solve(QP(*arrays), "exact" if method == "solve_qp" else method, **_options(method))
    except ValueError:
        return []
    return [
        judge_hard_answer(hard, str(status), x, _off(method))
        for hard, status, x in zip(problems, answer.status, answer.x, strict=True)
    ]
