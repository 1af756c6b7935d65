"""The portfolio problem, and its exact and certified solution in bulk.

    maximise  μᵀs − λ (s−b)ᵀΣ(s−b) − Σ c_i |s_i − p_i|
    subject to  l ≤ s ≤ u,  1ᵀs + cash = e,  ‖s − p‖₁ ≤ γ,  and the linear limits of the constraints.

Bounds, cash, costs and the turnover budget are the common core: `turnover_path.py` solves it without lifting. Linear
limits, and current weights from which the net exposure has to change, go to `portfolio_general.py`. Every answer is
certified by one duality gap, which is computed from the data and the answer alone.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import lapack

from time2decide.core.validation import (
    ArrayLike,
    InputError,
    expect,
    labels_of,
    refuse_masked,
    validate_count,
    validate_labels,
)
from time2decide.markets import turnover_decision
from time2decide.markets.constraints import LONG_ONLY, Constraints, Limit

CERTIFIED = 1e-12  # gap relative to the data (differences of slopes, curvature, costs) that counts as exact
_REFUSED = 1e-8  # an answer whose relative gap is above this is no answer
_LOAD_FROM = 20_000  # decisions · assets of this process from which compiled code is loaded: about a second in numpy
_COMPILE_FROM = 1_000_000  # and from which it is compiled where it never was: most of a minute, as long as in numpy
_KERNELS = "time2decide.markets.turnover_kernels"
_UNLIMITED = 1e6  # a turnover budget that never binds
_LARGE = 1_000  # assets from which Σ is looked at in single precision first
_SINGLE = 2e-7  # times m: rounding errors of a Cholesky factor of entries of at most 1 in single precision
_THREADS_FROM = 5e5  # rows · assets² of one thread


class FactorCovariance(NamedTuple):
    """Σ = BBᵀ + diag D with loadings B (..., m, factors) and specific variances D (..., m); N × N is never formed."""

    loadings: np.ndarray
    specific: np.ndarray

    def dense(self) -> np.ndarray:
        """Σ, (..., m, m)."""
        B, D = np.asarray(self.loadings), np.asarray(self.specific)
        return np.asarray(B @ B.swapaxes(-1, -2) + D[..., None] * np.eye(D.shape[-1]))

    def times(self, x: np.ndarray) -> np.ndarray:
        """Σx for vectors (..., m)."""
        inner = np.einsum("...mf,...m->...f", self.loadings, x)
        return np.asarray(np.einsum("...mf,...f->...m", self.loadings, inner) + self.specific * x)


@dataclass(frozen=True)
class PortfolioProblem:
    """Decisions that are solved together; arrays are (rows, m) or (rows,) and float64.

    Attributes
    ----------
    mean, previous, lower, upper, cost : (rows, m)
        μ, p, l, u (finite), c.
    dense, loadings, specific : (covariances, m, m), (covariances, m, f), (covariances, m)
        Σ, or B and D where `dense` is empty; `which` (rows,) says which one a row uses.
    benchmark : (rows, m), or None for b = 0
    risk_aversion, turnover_l1, exposure : (rows,)
        λ, γ, e.
    cash : (rows, 3)
        Least and most cash, and its return.
    """

    mean: np.ndarray
    dense: np.ndarray = field(repr=False)
    loadings: np.ndarray = field(repr=False)
    specific: np.ndarray = field(repr=False)
    which: np.ndarray
    previous: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    cost: np.ndarray
    benchmark: np.ndarray | None
    risk_aversion: np.ndarray
    turnover_l1: np.ndarray
    exposure: np.ndarray
    cash: np.ndarray
    limits: tuple[Limit, ...] = ()
    assets: tuple[str, ...] = ()

    def covariance_times(self, x: np.ndarray) -> np.ndarray:
        """Σx row by row, (rows, m)."""
        if self.dense.size == 0:
            return FactorCovariance(self.loadings[self.which], self.specific[self.which]).times(x)
        if len(self.dense) == 1:
            return np.asarray(x @ self.dense[0])
        return np.asarray(np.einsum("rmn,rn->rm", self.dense[self.which], x))

    @cached_property
    def level(self) -> np.ndarray:
        """max μ, (rows,): what every asset shares does not matter, and its rounding does."""
        return np.asarray(self.mean.max(-1))

    @cached_property
    def linear(self) -> np.ndarray:
        """q = μ − max μ + 2λΣb, so that the gradient of the utility is q − 2λΣs up to a constant."""
        relative = self.mean - self.level[:, None]
        if self.benchmark is None:
            return np.asarray(relative)
        return np.asarray(relative + 2 * self.risk_aversion[:, None] * self.covariance_times(self.benchmark))

    @cached_property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Current weights at the nearest point of their bounds, and what is left of γ: |s − p| = |s − start| + rest."""
        middle = np.clip(self.previous, self.lower, self.upper)
        spent = np.abs(self.previous - middle).sum(-1)
        if (spent > self.turnover_l1 + 1e-12).any():
            reason = f"at least {spent.max():g} to bring the current weights within their bounds"
            raise InputError(f"turnover_l1: expected {reason}, found {self.turnover_l1[spent.argmax()]:g}")
        return middle, np.maximum(self.turnover_l1 - spent, 0.0)

    @cached_property
    def limit_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Coefficients (limits, m), of at most 1, and ends (limits,) of the limits."""
        limits = [limit.scaled() for limit in self.limits]
        rows = [limit.coefficients for limit in limits]
        low, high = np.array([limit.low for limit in limits]), np.array([limit.high for limit in limits])
        return np.array(rows).reshape(len(limits), self.mean.shape[1]), low, high

    @cached_property
    def relative_cash(self) -> np.ndarray:
        """`cash` with its return relative to max μ, (rows, 3)."""
        return np.column_stack([self.cash[:, :2], self.cash[:, 2] - self.level])

    def utility(self, weights: np.ndarray) -> np.ndarray:
        """μᵀs − λ (s−b)ᵀΣ(s−b) − Σ c_i |s_i − p_i| + cash · its return, (rows,)."""
        active = weights if self.benchmark is None else weights - self.benchmark
        risk = np.einsum("rm,rm->r", active, self.covariance_times(active))
        trade = (self.cost * np.abs(weights - self.previous)).sum(-1)
        money = self.cash[:, 2] * (self.exposure - weights.sum(-1))
        return np.asarray((self.mean * weights).sum(-1) - self.risk_aversion * risk - trade + money)


@dataclass(frozen=True)
class PortfolioSolution:
    """Exact weights and what proves it.

    Attributes
    ----------
    weights : (..., m)
    turnover_price : (...)
        θ, the shadow price of the turnover budget: what one more unit of γ is worth, net of cost.
    budget_price : (...)
        ν, the shadow price of the net exposure.
    gap : (...)
        A bound on the utility that any feasible portfolio has above this one, relative to the size of the data.
    classes : (..., m)
        0 untouched, 1 bought, −1 sold, 2 at the upper, −2 at the lower bound: the start of a later solve.
    limit_prices : (..., limits)
        η, the shadow price of each limit: positive at its upper end, negative at its lower.
    status : (...) of text
        "solved" (gap at most 1e-12) or "inaccurate" (at most 1e-8); what is worse raises.
    """

    weights: np.ndarray
    turnover_price: np.ndarray
    budget_price: np.ndarray
    gap: np.ndarray
    classes: np.ndarray = field(repr=False)
    build: Callable[[], PortfolioProblem] = field(repr=False)
    limit_prices: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)

    @cached_property
    def problem(self) -> PortfolioProblem:
        """The problem that was solved."""
        return self.build()

    @cached_property
    def utility(self) -> np.ndarray:
        """Utility of the weights, (...)."""
        flat = self.weights.reshape(-1, self.weights.shape[-1])
        return self.problem.utility(flat).reshape(self.gap.shape)

    @property
    def status(self) -> np.ndarray:
        return np.where(self.gap <= CERTIFIED, "solved", "inaccurate")

    @property
    def turnover(self) -> np.ndarray:
        """‖s − p‖₁, (...)."""
        flat = self.weights.reshape(-1, self.weights.shape[-1])
        return np.abs(flat - self.problem.previous).sum(-1).reshape(self.gap.shape)


def solve_portfolio(
    mean: ArrayLike,
    covariance: ArrayLike | FactorCovariance,
    previous: ArrayLike,
    *,
    risk_aversion: ArrayLike,
    turnover_l1: ArrayLike = 2.0,
    cost: ArrayLike = 0.0,
    benchmark: ArrayLike | None = None,
    constraints: Constraints | None = None,
    start: PortfolioSolution | None = None,
    threads: int | None = None,
) -> PortfolioSolution:
    """argmax μᵀs − λ (s−b)ᵀΣ(s−b) − Σ c_i |s_i − p_i| over the constraints, for a batch of decisions.

    Parameters
    ----------
    mean : (..., m)
        Expected returns μ.
    covariance : (..., m, m), or FactorCovariance
        Σ, symmetric and positive semidefinite.
    previous : (..., m)
        Current weights p.
    risk_aversion, turnover_l1 : number or (...)
        λ ≥ 0 and γ ≥ 0, the full ℓ1 distance that may be traded.
    cost : number or (..., m)
        c ≥ 0, cost of trading one unit of an asset.
    benchmark : (..., m), optional
        b; 0 unless given.
    constraints : Constraints, optional
        Long-only and fully invested unless given.
    start : PortfolioSolution, optional
        A solution of a similar problem of the same shape, whose classes are tried first.
    threads : int, optional
        At most so many; all cores for large batches unless given.

    Notes
    -----
    Arguments of pandas must name the same assets in the same order.
    Current weights outside the bounds are allowed: the trades to the nearest bounds count towards turnover and cost.
    Batches broadcast along the leading dimensions. Where the maximiser is not unique, one of them is returned.
    """
    if threads is not None:
        validate_count("threads", threads)
    arguments = mean, covariance, previous, risk_aversion, turnover_l1, cost
    if benchmark is None and constraints is None and start is None:
        found = _solve_single(*arguments)
        if found is not None:
            return found
    problem, lead = build_portfolio_problem(*arguments, benchmark, constraints or LONG_ONLY)
    rows, m = problem.mean.shape
    if start is not None:
        expect(isinstance(start, PortfolioSolution), "start", "a PortfolioSolution", type(start).__name__)
        expect(start.classes.shape == (*lead, m), "start", f"a solution of shape {(*lead, m)}", start.classes.shape)
    classes = np.zeros((rows, m), np.int64) if start is None else start.classes.reshape(rows, m).copy()
    weights, report, eta = solve_portfolio_rows(problem, classes, start, threads)
    theta, nu, gap = (report[:, i].reshape(lead) for i in range(3))
    weights, classes, eta = (array.reshape(*lead, array.shape[-1]) for array in (weights, classes, eta))
    return PortfolioSolution(weights, theta, nu, np.maximum(gap, 0.0), classes, lambda: problem, eta)


def _solve_single(
    mean: Any, covariance: Any, previous: Any, risk_aversion: Any, turnover_l1: Any, cost: Any
) -> PortfolioSolution | None:
    """One long-only decision by the shortest way, or None where it is not one, is not valid or not certified.

    A small decision takes twenty microseconds: the checks of `build_portfolio_problem` would take ten times that.
    """
    kernel = sys.modules.get(_KERNELS)
    numbers = (type(risk_aversion), type(turnover_l1), type(cost)) == (float, float, float)
    if kernel is None or not numbers or not min(risk_aversion, turnover_l1, cost) >= 0 or turnover_l1 > _UNLIMITED:
        return None
    for array, dimensions in ((mean, 1), (covariance, 2), (previous, 1)):
        if type(array) is not np.ndarray or array.dtype != np.float64 or array.ndim != dimensions:
            return None
        if len(array) >= _LARGE or not (
            array.flags.c_contiguous and array.flags.writeable
        ):  # compiled code is made for one kind of array
            return None
    if not risk_aversion < np.inf or not cost < np.inf:
        return None
    try:
        weights, classes, theta, nu, gap, count = kernel.solve_turnover_single(
            mean, covariance, previous, risk_aversion, turnover_l1, cost
        )
    except np.linalg.LinAlgError:
        return None
    if not (count >= 0 and gap <= CERTIFIED):
        return None
    arguments = mean, covariance, previous, risk_aversion, turnover_l1, cost

    def build() -> PortfolioProblem:
        return build_portfolio_problem(*arguments, None, LONG_ONLY)[0]

    scalar: Any = np.float64
    return PortfolioSolution(weights, scalar(theta), scalar(nu), scalar(max(gap, 0.0)), classes, build)


def nearest_portfolio(
    target: np.ndarray, previous: np.ndarray, turnover_l1: np.ndarray, constraints: Constraints
) -> np.ndarray:
    """argmin ‖s − target‖₂ over the constraints and ‖s − previous‖₁ ≤ γ, (rows, m), with γ (rows,).

    Where the budget does not reach the constraints (they, or the drift of the weights, have moved too far), the
    weights go straight towards the nearest portfolio that meets them, as far as γ allows.
    """
    m = target.shape[-1]
    identity = FactorCovariance(np.zeros((m, 0)), np.ones(m))

    def solve(rows: slice, gamma: Any) -> np.ndarray:
        options: dict[str, Any] = {"risk_aversion": 0.5, "turnover_l1": gamma, "constraints": constraints}
        return solve_portfolio(target[rows], identity, previous[rows], **options).weights

    try:
        return solve(slice(None), turnover_l1)
    except InputError:
        pass
    answer = np.empty_like(target)
    for i in range(len(target)):
        row = slice(i, i + 1)
        try:
            answer[row] = solve(row, turnover_l1[row])
        except InputError:
            whole = solve(row, _UNLIMITED) - previous[row]
            answer[row] = previous[row] + whole * min(1.0, turnover_l1[i] / np.abs(whole).sum())
    return answer


def solve_portfolio_rows(
    problem: PortfolioProblem, classes: np.ndarray, start: PortfolioSolution | None = None, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (rows, m), report (rows, 4: θ, ν, gap, breakpoints) and η (rows, limits) of validated problems.

    `classes` are filled in.
    """
    rows, m = problem.mean.shape
    weights, report, eta = np.empty((rows, m)), np.full((rows, 4), -1.0), np.zeros((rows, len(problem.limits)))
    factor, limited = 2 * problem.risk_aversion, bool(problem.limits)
    columns = (problem.which, factor, problem.linear, problem.start[0], problem.lower, problem.upper, problem.cost,
               problem.start[1], problem.relative_cash, problem.exposure, classes)  # fmt: skip
    engine = turnover_engine(rows, m).solve_turnover_rows

    def run(part: slice) -> None:
        arrays = [array[part] for array in columns]
        with np.errstate(all="ignore"):
            engine(
                problem.dense,
                problem.loadings,
                problem.specific,
                *arrays,
                start is not None,
                weights[part],
                report[part],
            )

    guessed = limited and start is not None
    if limited and start is not None:
        weights[:], eta[:] = start.weights.reshape(rows, m), start.limit_prices.reshape(rows, -1)
        report[:, 0] = start.turnover_price.reshape(rows)
        report[:, 1] = start.budget_price.reshape(rows) - problem.level
    elif not limited or problem.dense.size:  # with limits, where they are left out: a guess
        _in_threads(run, rows, m, threads)
        guessed = limited
    if limited:
        report[:, 3] = -1
    failed = np.flatnonzero((report[:, 3] < 0) | ~(report[:, 2] <= CERTIFIED))
    if failed.size:
        from time2decide.markets.portfolio_general import repair_general_rows

        repair_general_rows(problem, failed, weights, report, classes, eta, guessed)
    worst = report[:, 2].max(initial=0.0)
    if not worst <= _REFUSED:
        raise ArithmeticError(f"portfolio: no answer was found (relative gap {worst:.3g})")
    report[:, 1] += problem.level
    return weights, report, eta


def attend_portfolio_rows(problem: PortfolioProblem, layers: int | None = None) -> np.ndarray:
    """Weights (rows, m) of validated problems by attention layers: near optimal, and not certified."""
    from time2decide.attention.decision_head import LAYERS, attention_decision

    core = not problem.limits and not problem.cash[:, :2].any()
    expect(core, "solver", "'exact' under linear limits, groups or cash", "'attention', which takes bounds and costs")
    dense = problem.dense if problem.dense.size else FactorCovariance(problem.loadings, problem.specific).dense()
    weights = attention_decision(
        problem.mean, dense if len(dense) == 1 else dense[problem.which], problem.previous, cost=problem.cost,
        risk_aversion=problem.risk_aversion, turnover_l1=problem.turnover_l1, benchmark=problem.benchmark,
        lower=problem.lower, upper=problem.upper, exposure=problem.exposure, layers=layers or LAYERS,
    )  # fmt: skip
    return np.asarray(weights)


_COMPILED_SOURCES = ("turnover_path", "turnover_decision", "turnover_kernels")
_ENTRIES = ("solve_turnover_rows", "solve_turnover_single", "validate_turnover_matrices")  # each compiled by itself
_done = 0  # decisions · assets that this process has solved in numpy


def turnover_engine(rows: int, m: int) -> Any:
    """The compiled module where it is loaded already or pays, else the numpy form.

    A single decision shall not pay half a second of import, nor a first backtest the compilation.
    """
    global _done
    _done += rows * m
    if _KERNELS in sys.modules or (_done >= _LOAD_FROM and (_done >= _COMPILE_FROM or compiled_before())):
        return import_module(_KERNELS)
    return turnover_decision


@cache
def compiled_before() -> bool:
    """Whether an earlier process left the compiled code in one of the folders that numba uses."""
    sources = Path(turnover_decision.__file__).parent
    written = max((sources / f"{name}.py").stat().st_mtime for name in _COMPILED_SOURCES)
    own, users = os.environ.get("NUMBA_CACHE_DIR"), Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    for folder in [Path(own)] if own else [sources / "__pycache__", users / "numba"]:
        found = {path.name.split(".")[1].rpartition("_")[0]: path for path in folder.glob("**/turnover_decision.*.nbi")}
        if all(name in found and found[name].stat().st_mtime >= written for name in _ENTRIES):
            return True
    return False


def _in_threads(run: Callable[[slice], None], rows: int, m: int, threads: int | None) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = max(1, min(cores if threads is None else threads, rows, int(rows * m**2 / _THREADS_FROM)))
    if count == 1:
        return run(slice(0, rows))
    bounds = np.linspace(0, rows, 4 * count + 1).astype(int)  # more parts than threads: rows differ in work
    with ThreadPoolExecutor(count) as pool:
        for _ in pool.map(run, [slice(a, b) for a, b in itertools.pairwise(bounds) if b > a]):
            pass
    return None


def build_portfolio_problem(
    mean: ArrayLike,
    covariance: ArrayLike | FactorCovariance,
    previous: ArrayLike,
    risk_aversion: ArrayLike,
    turnover_l1: ArrayLike,
    cost: ArrayLike,
    benchmark: ArrayLike | None,
    constraints: Constraints,
) -> tuple[PortfolioProblem, tuple[int, ...]]:
    """Validate everything and bring it to rows; also the batch shape."""
    expect(isinstance(constraints, Constraints), "constraints", "Constraints", type(constraints).__name__)
    named = {"mean": mean, "covariance": covariance, "previous": previous, "cost": cost, "benchmark": benchmark}
    labels = {name: labels_of(value) for name, value in named.items()}
    if hasattr(covariance, "columns"):
        labels["covariance's rows"] = labels_of(covariance, 0)
    validate_labels(labels, "assets")
    constraints = constraints.aligned(next((names for names in labels.values() if names is not None), None))
    mu, p = finite_numbers("mean", mean), finite_numbers("previous", previous)
    m = mu.shape[-1] if mu.ndim else 0
    fits = m and p.shape[-1:] == (m,)
    expect(fits, "mean", "shape (..., m) as in previous", f"{mu.shape} and {p.shape}")
    dense, loadings, specific, covariance_lead = _covariances(covariance, m)
    risk, gamma = _not_negative("risk_aversion", risk_aversion), _not_negative("turnover_l1", turnover_l1)
    c = _not_negative("cost", cost)
    c = c[None] if c.ndim == 0 else c
    b = None if benchmark is None else finite_numbers("benchmark", benchmark)
    if b is not None:
        expect(b.shape[-1:] == (m,), "benchmark", f"{m} assets as in mean", f"shape {b.shape}")
    vectors = {"mean": mu, "previous": p, "cost": c} | ({} if b is None else {"benchmark": b})
    shapes = {name: array.shape[:-1] for name, array in vectors.items()}
    shapes |= {"risk_aversion": risk.shape, "turnover_l1": gamma.shape, "covariance": covariance_lead}
    try:
        lead = np.broadcast_shapes(*shapes.values())
        rows = int(np.prod(lead, dtype=int))
        flat = {name: _rows(array, lead, rows, m) for name, array in vectors.items()}
    except ValueError:
        found = {name: array.shape for name, array in vectors.items()} | {
            name: shape for name, shape in shapes.items() if name not in vectors
        }
        wrong = next((name for name, shape in found.items() if name in vectors and shape[-1] not in (1, m)), None)
        if wrong is not None:
            raise InputError(f"{wrong}: expected {m} assets as in mean, found shape {found[wrong]}") from None
        raise InputError(f"mean: expected one batch shape in all arguments, found {found}") from None
    count = int(np.prod(covariance_lead, dtype=int))
    which = np.broadcast_to(np.arange(count).reshape(covariance_lead), lead).reshape(rows)
    lower, upper = constraints.bounds(m)
    exposure = constraints.exposure
    p_rows = flat["previous"]
    inside = constraints.inside(p_rows, lower, upper)
    gamma_rows = _own(np.broadcast_to(gamma, lead).reshape(rows))
    reach = np.minimum(gamma_rows, _UNLIMITED)[:, None] + 1.0  # ‖s − p‖₁ ≤ γ bounds every weight
    low = np.maximum(lower, inside - 2 * reach)
    high = np.minimum(upper, inside + 2 * reach)
    cash = np.broadcast_to(np.array([*constraints.cash, constraints.cash_return]), (rows, 3))
    problem = PortfolioProblem(
        flat["mean"], dense, loadings, specific, _own(which), inside, low, high, flat["cost"],
        flat.get("benchmark"), _own(np.broadcast_to(risk, lead).reshape(rows)), gamma_rows,
        np.full(rows, exposure), _own(cash), constraints.limits_for(m), constraints.assets,
    )  # fmt: skip
    return problem, lead


def _rows(array: np.ndarray, lead: tuple[int, ...], rows: int, m: int) -> np.ndarray:
    return _own(np.broadcast_to(array, (*lead, m)).reshape(rows, m))


def _own(array: np.ndarray) -> np.ndarray:
    """Contiguous and writeable, copied only if it is not: compiled code is made for one kind of array."""
    return np.require(array, requirements=["C", "W"])


def finite_numbers(name: str, value: ArrayLike) -> np.ndarray:
    """A float64 array of finite numbers."""
    if type(value) is not np.ndarray or value.dtype != np.float64:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = (value.double() if value.is_floating_point() else value).numpy()  # numpy has no bfloat16
        refuse_masked(name, value)
        try:
            found = np.asarray(value)
        except (TypeError, ValueError):
            raise InputError(f"{name}: expected real numbers, found {type(value).__name__}") from None
        if found.dtype.kind not in "fiu":
            kind = f" of {found.dtype}" if found.ndim else ""
            raise InputError(f"{name}: expected real numbers, found {type(value).__name__}{kind}")
        value = found.astype(np.float64)
    if not np.isfinite(value).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
        raise InputError(f"{name}: expected finite numbers, found {value[place]} at index {place}")
    return value


def _not_negative(name: str, value: ArrayLike) -> np.ndarray:
    array = finite_numbers(name, value)
    if array.size and array.min() < 0:
        raise InputError(f"{name}: expected non-negative numbers, found {array.min():g}")
    return array


def _covariances(
    covariance: ArrayLike | FactorCovariance, m: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, ...]]:
    """Dense matrices, loadings, specific variances (one kind is empty) and their batch shape."""
    if isinstance(covariance, FactorCovariance):
        B, D = (
            finite_numbers("covariance", covariance.loadings),
            _not_negative("covariance", covariance.specific),
        )
        fits = B.ndim >= 2 and B.shape[-2] == m and D.shape == B.shape[:-1]
        expected = f"loadings (..., {m}, factors) and specific variances (..., {m})"
        expect(fits, "covariance", expected, f"{B.shape} and {D.shape}")
        count = int(np.prod(B.shape[:-2], dtype=int))
        flat = _own(B.reshape(count, m, -1)), _own(D.reshape(count, m))
        return np.zeros((count, 0, 0)), *flat, B.shape[:-2]
    S = finite_numbers("covariance", covariance)
    expect(S.shape[-2:] == (m, m), "covariance", f"shape (..., {m}, {m})", S.shape)
    count = int(np.prod(S.shape[:-2], dtype=int))
    matrices = _own(S.reshape(count, m, m))
    if not _valid_in_bulk(matrices):
        validate_covariance(S)
        matrices = (matrices + matrices.swapaxes(-1, -2)) / 2  # xᵀΣx is that of the symmetric part: rounding goes
    return matrices, np.zeros((count, 0, 0)), np.zeros((count, 0)), S.shape[:-2]


def _valid_in_bulk(S: np.ndarray) -> bool:
    """Whether a quick check passes matrices (n, m, m); otherwise the slower one says what is wrong."""
    if S.shape[-1] >= _LARGE and all(map(_is_clearly_definite, S)):
        return True
    kernel = sys.modules.get(_KERNELS)
    if kernel is None:
        return False
    good = []

    def run(part: slice) -> None:
        good.append(kernel.validate_turnover_matrices(S[part]))

    try:
        _in_threads(run, len(S), S.shape[-1], None)
    except np.linalg.LinAlgError:
        return False
    return all(good)


def _is_clearly_definite(S: np.ndarray) -> bool:
    """Whether S (m, m) is symmetric and definite by more than single precision adds up to: in half the time."""
    top, m = float(S.diagonal().max()), len(S)
    if not 0 < top < np.inf or not np.array_equal(S, S.T):  # NaN is not equal either
        return False
    unit = np.asfortranarray(S / top, dtype=np.float32)
    unit[np.diag_indices(m)] -= _SINGLE * m
    return int(lapack.spotrf(unit, overwrite_a=1)[1]) == 0


def validate_covariance(covariance: np.ndarray) -> None:
    """Raise unless matrices (..., m, m) are symmetric and positive semidefinite up to rounding.

    Otherwise the utility is not concave and no certificate holds.
    """
    size = np.abs(covariance).max((-2, -1), keepdims=True, initial=0.0)
    unit = covariance / np.where(size > 0, size, 1.0)
    skewed = (np.abs(unit - unit.swapaxes(-1, -2)) > 1e-6).any()
    expect(not skewed, "covariance", "symmetric matrices", "one that is not")
    try:
        np.linalg.cholesky(unit + 1e-6 * np.eye(unit.shape[-1]))
    except np.linalg.LinAlgError:
        raise InputError("covariance: expected positive semidefinite, found a negative eigenvalue") from None
