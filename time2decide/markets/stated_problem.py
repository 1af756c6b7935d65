"""One portfolio problem written down in full, and the proof that weights solve it; nothing here solves anything.

    maximise  μᵀs − λ (s−b)ᵀΣ(s−b) − c ‖s − p‖₁ + cash · its return
    subject to  l ≤ s ≤ u,  1ᵀs + cash = e,  least ≤ cash ≤ most,  ‖s − p‖₁ ≤ γ,  low ≤ Aᵀs ≤ high.

The proof is weak duality: prices θ ≥ 0 of the turnover budget, ν of the net exposure and η of the limits bound what any
feasible portfolio has more than s, whoever found them. What a negative eigenvalue of Σ could be worth is added.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from time2decide.core.validation import InputError, expect
from time2decide.markets.constraints import Constraints, Limit

_FORM = "upper triangle row by row, float64, little endian, base64"
FEASIBLE = 1e-9  # by which weights may break a constraint, in the size of its terms
OPTIMAL = 1e-9  # gap that counts as optimal, relative to the size of the data
MOST_GAP = 1e-9  # and at most this much utility a period, whatever size the data state
_TINY = 1e-9  # by which a weight must be away from its bounds to be free
_MOST_ASSETS = 20_000  # of a file; its Σ is 3 GB


class Prices(NamedTuple):
    """Shadow prices: θ of the turnover budget, ν of the net exposure, η of each limit (positive at its upper end)."""

    turnover: float
    exposure: float
    limits: np.ndarray


class ConstraintRow(NamedTuple):
    """One constraint and where the weights stand in it."""

    name: str
    value: float
    low: float
    high: float
    size: float = 1.0  # in which a tolerance is measured

    @property
    def slack(self) -> float:
        """Distance to the nearer end; negative outside."""
        return min(self.value - self.low, self.high - self.value)


@dataclass(frozen=True, eq=False)
class StatedProblem:
    """The data of the problem above; arrays are (m,), Σ is (m, m)."""

    mean: np.ndarray
    covariance: np.ndarray = field(repr=False)
    start: np.ndarray  # p
    risk_aversion: float
    turnover_l1: float
    cost: float  # of one unit of turnover, per period
    benchmark: np.ndarray | None
    constraints: Constraints

    @property
    def level(self) -> float:
        """max μ: what every asset shares does not matter, and its rounding would hide what does."""
        return float(self.mean.max())

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        """μ − max μ − 2λΣ(s − b), (m,)."""
        active = weights if self.benchmark is None else weights - self.benchmark
        return np.asarray(self.mean - self.level - 2 * self.risk_aversion * self.covariance @ active)

    def slope(self, weights: np.ndarray, prices: Prices) -> np.ndarray:
        """Gradient less the prices of exposure and limits, (m,)."""
        slope = self.gradient(weights) - (prices.exposure - self.level)
        for limit, eta in zip(self.constraints.limits, prices.limits, strict=True):
            slope = slope - eta * limit.coefficients
        return slope

    def rounding(self, weights: np.ndarray, prices: Prices) -> float:
        """What rounding can hide in a gap: the size of the terms that cancel in it, times the precision."""
        s, rules = weights, self.constraints
        active = s if self.benchmark is None else s - self.benchmark
        terms = np.abs(self.mean - self.level) + 2 * self.risk_aversion * np.abs(self.covariance) @ np.abs(active)
        terms, rest = terms + abs(prices.exposure - self.level), self.cost + max(prices.turnover, 0.0)
        for limit, eta in zip(rules.limits, np.abs(prices.limits), strict=True):
            factors = np.abs(limit.coefficients)
            terms, rest = terms + eta * factors, rest + eta * float(factors @ np.abs(s))
        lower, upper = self._range()
        reach = np.maximum(np.abs(upper - s), np.abs(lower - s))  # a weight that is pinned cancels nothing
        return float(np.finfo(float).eps * ((terms * reach).max() + rest))

    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest weights within bounds and turnover budget, (m,) each."""
        lower, upper = self.constraints.bounds(len(self.start))
        return np.maximum(lower, self.start - self.turnover_l1), np.minimum(upper, self.start + self.turnover_l1)

    def utility(self, weights: np.ndarray) -> float:
        """What is maximised, per period."""
        active = weights if self.benchmark is None else weights - self.benchmark
        risk, rules = active @ self.covariance @ active, self.constraints
        cash = rules.cash_return * (rules.exposure - weights.sum())
        return float(
            self.mean @ weights - self.risk_aversion * risk - self.cost * np.abs(weights - self.start).sum() + cash
        )

    def gain(self, weights: np.ndarray, previous: np.ndarray | None = None) -> dict[str, float]:
        """Utility per period above that of not trading, and its parts: return (that of cash too), risk and cost.

        Trades from `previous` to p, the sales of delisted assets, are forced: both sides make them and pay for them.
        The cost is then c (‖s − previous‖₁ − ‖p − previous‖₁), as what is bought from a sale need not be sold again.
        """
        trade, middle = weights - self.start, weights + self.start
        turnover = np.abs(trade).sum()
        if previous is not None:
            turnover = np.abs(weights - previous).sum() - np.abs(self.start - previous).sum()
        middle = middle if self.benchmark is None else middle - 2 * self.benchmark
        parts = {
            "return": float(self.mean @ trade - self.constraints.cash_return * trade.sum()),
            "risk": float(-self.risk_aversion * (trade @ self.covariance @ middle)),
            "cost": float(-self.cost * turnover),
        }
        return {"utility": sum(parts.values()), **parts}

    @cached_property
    def convexity(self) -> float:
        """What a negative eigenvalue −ε of Σ can add to a utility: λ ε (2γ)², as portfolios are at most 2γ apart."""
        least = float(np.linalg.eigvalsh(self.covariance)[0])
        return self.risk_aversion * max(-least, 0.0) * (2 * self.turnover_l1) ** 2

    @property
    def allowed_gap(self) -> float:
        """The gap up to which weights are called optimal."""
        return min(OPTIMAL * self.scale, MOST_GAP)

    @property
    def scale(self) -> float:
        """Size of the data (differences of slopes at p, curvature, cost), in which a gap is measured."""
        curvature = 2 * self.risk_aversion * self.covariance.diagonal().max()
        rate = (
            abs(self.constraints.cash_return - self.level - self.gradient(self.start).max()) if self._has_cash else 0.0
        )
        return float(max(np.ptp(self.gradient(self.start)), curvature, self.cost, rate, 1e-300))

    @property
    def _has_cash(self) -> bool:
        return self.constraints.cash[1] > self.constraints.cash[0]

    def gap(self, weights: np.ndarray, prices: Prices) -> float:
        """How much utility any feasible portfolio can have above these weights, at most.

        Σ_i max_v [a_i (v − s_i) − (c + θ)(|v − p_i| − |s_i − p_i|)] + θ (γ − ‖s − p‖₁) + limits + cash, with
        a = gradient − ν − Aᵀη and v in [l_i, u_i], which is convex in v on each side of p_i: its ends and p_i suffice.
        `convexity` is added, which is 0 for a covariance.
        """
        s, p, rules = weights, self.start, self.constraints
        theta = max(prices.turnover, 0.0)
        lower, upper = self._range()
        slope, rest = self.slope(s, prices), 0.0
        for limit, eta in zip(rules.limits, prices.limits, strict=True):
            value = float(limit.coefficients @ s)
            rest += (
                eta * max(limit.high - value, 0.0) if eta > 0 else -eta * max(value - limit.low, 0.0) if eta else 0.0
            )
        ends = np.stack([lower, np.clip(p, lower, upper), upper, s])  # (4, m)
        gains = slope * (ends - s) - (self.cost + theta) * (np.abs(ends - p) - np.abs(s - p))
        rest += theta * max(self.turnover_l1 - float(np.abs(s - p).sum()), 0.0)
        if self._has_cash:
            cash, rate = rules.exposure - float(s.sum()), rules.cash_return - prices.exposure
            rest += max(rate * (rules.cash[0] - cash), rate * (rules.cash[1] - cash))
        return float(gains.max(axis=0).sum()) + rest + self.convexity

    def rows(self, weights: np.ndarray, assets: list[str]) -> list[ConstraintRow]:
        """Every constraint with where the weights stand in it."""
        rules = self.constraints
        lower, upper = rules.bounds(len(weights))
        cash = rules.exposure - float(weights.sum())
        found = [
            ConstraintRow("turnover", float(np.abs(weights - self.start).sum()), -np.inf, self.turnover_l1),
            ConstraintRow("cash", cash, *rules.cash),
        ]
        found += [
            ConstraintRow(one.name, float(one.coefficients @ weights), one.low, one.high, _size(one, weights))
            for one in rules.limits
        ]
        bounds = zip(assets, weights, lower, upper, strict=True)
        return found + [
            ConstraintRow(f"weight of {name}", float(s), float(low), float(high)) for name, s, low, high in bounds
        ]

    def proof(
        self, weights: np.ndarray, prices: Prices, assets: list[str], previous: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Every constraint with its slack and its price, the gap that proves optimality, and the gain, for JSON."""
        paid = [prices.turnover, prices.exposure, *prices.limits, *self.bound_prices(weights, prices)]
        rows = [
            {
                "name": row.name,
                "value": row.value,
                "low": _finite(row.low),
                "high": _finite(row.high),
                "slack": row.slack,
                "active": bool(row.slack <= FEASIBLE * row.size),
                "price": float(price),
            }
            for row, price in zip(self.rows(weights, assets), paid, strict=True)
        ]
        limits = {one.name: float(price) for one, price in zip(self.constraints.limits, prices.limits, strict=True)}
        gap = self.gap(weights, prices)
        stated = {"turnover": prices.turnover, "exposure": prices.exposure, "limits": limits}
        found = {"gap": gap, "relative_gap": gap / self.scale, "utility": self.utility(weights), "prices": stated}
        found["gain"] = self.gain(weights, previous)
        return {"constraints": rows, "optimality": found}

    def bound_prices(self, weights: np.ndarray, prices: Prices) -> np.ndarray:
        """What relaxing the bound of an asset is worth: positive at the upper, negative at the lower end, (m,)."""
        slope = self.slope(weights, prices)
        price, moved = self.cost + max(prices.turnover, 0.0), weights - self.start
        least, most = slope - np.where(moved < 0, -price, price), slope - np.where(moved > 0, price, -price)
        lower, upper = self.constraints.bounds(len(weights))
        return np.where((weights >= upper) & (least > 0), least, np.where((weights <= lower) & (most < 0), most, 0.0))

    def to_json(self) -> dict[str, Any]:
        """Everything, exactly: numbers as JSON prints them, Σ packed, null for no bound."""
        m = len(self.mean)
        packed = np.ascontiguousarray(self.covariance[np.triu_indices(m)], dtype="<f8").tobytes()
        return {
            "mean": self.mean.tolist(),
            "covariance": {"form": _FORM, "data": base64.b64encode(packed).decode()},
            "start": self.start.tolist(),
            "risk_aversion": self.risk_aversion,
            "turnover_l1": self.turnover_l1,
            "cost": self.cost,
            "benchmark": None if self.benchmark is None else self.benchmark.tolist(),
            **constraints_to_json(self.constraints, m),
        }

    @classmethod
    def from_json(cls, found: Any, assets: list[str]) -> StatedProblem:
        """The problem of `to_json`; anything else is refused."""
        expect(isinstance(found, dict), "problem", "an object", type(found).__name__)
        try:
            m = len(assets)
            rules = constraints_from_json(found, assets)
            made = cls(
                mean=_vector(found["mean"], m),
                covariance=_unpack(found["covariance"], m),
                start=_vector(found["start"], m),
                risk_aversion=number_from_json(found["risk_aversion"]),
                turnover_l1=number_from_json(found["turnover_l1"]),
                cost=number_from_json(found["cost"]),
                benchmark=None if found["benchmark"] is None else _vector(found["benchmark"], m),
                constraints=rules,
            )
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            text = " ".join(f"{type(error).__name__} {error}".split())[:80]
            raise InputError(f"problem: expected {', '.join(f.name for f in fields(cls))}, found {text}") from None
        least = min(made.risk_aversion, made.turnover_l1, made.cost)
        expect(least >= 0, "problem", "risk aversion, turnover and cost of at least 0", least)
        return made


def constraints_to_json(rules: Constraints, m: int) -> dict[str, Any]:
    """Constraints of m assets, exactly; null for no bound."""
    lower, upper = rules.bounds(m)
    return {
        "lower": [_finite(value) for value in lower.tolist()],
        "upper": [_finite(value) for value in upper.tolist()],
        "exposure": rules.exposure,
        "cash": list(rules.cash),
        "cash_return": rules.cash_return,
        "limits": [
            {
                "name": one.name,
                "coefficients": one.coefficients.tolist(),
                "low": _finite(one.low),
                "high": _finite(one.high),
            }
            for one in rules.limits
        ],
    }


def constraints_from_json(found: dict[str, Any], assets: list[str]) -> Constraints:
    """The constraints of `constraints_to_json`."""
    m = len(assets)
    limits = tuple(
        Limit(str(one["name"]), _vector(one["coefficients"], m), *_ends(one["low"], one["high"]))
        for one in found["limits"]
    )
    lower, upper = (
        np.array([_ends(value, value)[i] for value in found[name]]) for i, name in enumerate(("lower", "upper"))
    )
    least, most = map(number_from_json, found["cash"])
    numbers = number_from_json(found["exposure"]), (least, most), number_from_json(found["cash_return"])
    rules = Constraints(lower, upper, *numbers, limits, tuple(assets))
    rules.bounds(m)
    rules.limits_for(m)
    return rules


def centred_reasons(
    parts: Mapping[str, np.ndarray], weights: np.ndarray, rules: Constraints, known: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Parts g (m,) of marginal utilities in basis points, each less its average over the weights that no bound holds.

    Assets that are not `known` have 0.
    """
    lower, upper = rules.bounds(len(weights))
    free = (weights > lower + _TINY) & (weights < upper - _TINY)
    shares = np.abs(weights) * (free if free.any() else 1.0)
    shares = shares / max(float(shares.sum()), _TINY)
    about = np.ones(len(weights)) if known is None else known
    return {name: 1e4 * about * (part - shares @ part) for name, part in parts.items()}


def _size(limit: Limit, weights: np.ndarray) -> float:
    """In which a tolerance of a limit is measured: its largest coefficient, or the terms of its sum if these are less.

    A large coefficient of an asset that is not held loosens nothing.
    """
    factors = np.abs(limit.coefficients)
    least = float(factors.min(where=factors > 0, initial=np.inf))
    return min(limit.size, float(factors @ np.abs(weights)) + least)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def number_from_json(value: Any) -> float:
    """A number of JSON as it is, neither text nor bool; others raise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise TypeError(f"{value!r:.40} for a number")
    return float(value)


def _ends(low: Any, high: Any) -> tuple[float, float]:
    return -np.inf if low is None else number_from_json(low), np.inf if high is None else number_from_json(high)


def _vector(values: Any, m: int) -> np.ndarray:
    if not isinstance(values, list) or len(values) != m:
        raise TypeError(f"no list of {m} numbers")
    return np.array([number_from_json(value) for value in values])


def _unpack(found: Any, m: int) -> np.ndarray:
    """Σ (m, m) of a packed upper triangle."""
    expect(found["form"] == _FORM, "problem: covariance", f"the form {_FORM!r}", repr(found["form"])[:60])
    expect(m <= _MOST_ASSETS, "problem: covariance", f"at most {_MOST_ASSETS} assets", m)
    try:
        content = base64.b64decode(found["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"problem: covariance: expected base64, found {error}") from None
    expected = 8 * m * (m + 1) // 2
    expect(len(content) == expected, "problem: covariance", f"{expected} bytes", len(content))
    packed = np.frombuffer(content, dtype="<f8").astype(float)
    expect(np.isfinite(packed).all(), "problem: covariance", "finite numbers", "others")
    matrix = np.zeros((m, m))
    matrix[np.triu_indices(m)] = packed
    return matrix + np.triu(matrix, 1).T
