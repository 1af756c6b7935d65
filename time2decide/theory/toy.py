"""Two assets, one unknown mean gap: plugging in an estimate against shrinking it first.

The gap δ = μ₁ − μ₂ is drawn from N(0, τ²) and estimated from n returns per asset, δ̂ | δ ~ N(δ, s²) with s² = 2σ²/n.
A decision w ∈ [0, 1] is the weight of asset 1; with u = w − ½ its utility is, up to terms that no decision changes,

    U(w; δ) = uδ − 2λu².

Three rules have the form w = Π_[0,1](½ + g/(4λ)): the oracle with g = δ, predict-then-optimise with g = δ̂, and the
end-to-end (Bayes) rule with g = E[δ | δ̂] = ρδ̂, ρ = τ²/(τ² + s²).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad

from time2decide.core.validation import validate_choice, validate_count, validate_fields

RULES = ("pto", "e2e")
_REACH = 12.0  # standard deviations beyond which a Gaussian density is zero in double precision


@dataclass(frozen=True)
class ToyModel:
    """The model and its closed forms; the defaults are the paper's."""

    prior_variance: float = 0.01  # τ², of the gap
    return_variance: float = 0.5  # σ², of one return
    risk_aversion: float = 0.2  # λ, with the variance of the assets absorbed

    def __post_init__(self) -> None:
        validate_fields(self, positive="prior_variance return_variance risk_aversion")

    def noise_variance(self, n: int) -> float:
        """s² = 2σ²/n."""
        validate_count("n", n)
        return 2 * self.return_variance / n

    def shrinkage(self, n: int) -> float:
        """ρ = τ²/(τ² + s²)."""
        return self.prior_variance / (self.prior_variance + self.noise_variance(n))

    def weight(self, gap: np.ndarray | float) -> np.ndarray:
        """Π_[0,1](½ + gap/(4λ)): the best weight of asset 1 if `gap` were the truth."""
        return np.clip(0.5 + np.asarray(gap) / (4 * self.risk_aversion), 0.0, 1.0)

    def decide(self, rule: str, estimate: np.ndarray | float, n: int) -> np.ndarray:
        """The weight that a rule chooses at an estimate δ̂ from n returns per asset."""
        return self.weight(np.asarray(estimate) * self._factor(rule, n))

    def utility(self, weight: np.ndarray | float, gap: np.ndarray | float) -> np.ndarray:
        """U(w; δ) = uδ − 2λu² with u = w − ½."""
        u = np.asarray(weight) - 0.5
        return u * gap - 2 * self.risk_aversion * u**2

    def sample(self, n: int, trials: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Independent pairs (δ, δ̂), each (trials,)."""
        validate_count("trials", trials)
        gap = generator.normal(0.0, math.sqrt(self.prior_variance), trials)
        return gap, gap + generator.normal(0.0, math.sqrt(self.noise_variance(n)), trials)

    def losses(self, rule: str, gap: np.ndarray, estimate: np.ndarray, n: int) -> np.ndarray:
        """U(w*; δ) − U(w(δ̂); δ) ≥ 0 of every trial, exact for clipped oracles too."""
        return self.utility(self.weight(gap), gap) - self.utility(self.decide(rule, estimate, n), gap)

    def regret(self, rule: str, n: int) -> float:
        """The expected loss by quadrature, E[U(w*; δ)] − E[U(w(δ̂); δ)].

        Given δ̂ the utility is linear in δ, so that δ can be replaced by ρδ̂ and both expectations are integrals over
        one Gaussian. The integrands have kinks where weights are clipped; the quadrature is told where.
        """
        factor, rho = self._factor(rule, n), self.shrinkage(n)
        oracle = self._expect(lambda gap: float(self.utility(self.weight(gap), gap)), self.prior_variance, 1.0)
        variance = self.prior_variance + self.noise_variance(n)
        chosen = self._expect(lambda x: float(self.utility(self.weight(factor * x), rho * x)), variance, factor)
        return oracle - chosen

    def decision_error(self, rule: str, estimate: float, n: int) -> float:
        """E[|w(δ̂) − w*(δ)| | δ̂] by quadrature; given δ̂, δ ~ N(ρδ̂, ρs²)."""
        weight, rho = float(self.decide(rule, estimate, n)), self.shrinkage(n)
        centre, scale = rho * estimate, math.sqrt(rho * self.noise_variance(n))
        edge = 2 * self.risk_aversion
        kinks = [(gap - centre) / scale for gap in (-edge, edge, 4 * self.risk_aversion * (weight - 0.5))]
        return _gaussian_mean(lambda z: abs(weight - float(self.weight(centre + scale * z))), kinks)

    def _factor(self, rule: str, n: int) -> float:
        validate_choice("rule", rule, RULES)
        return 1.0 if rule == "pto" else self.shrinkage(n)

    def _expect(self, function, variance: float, factor: float) -> float:  # type: ignore[no-untyped-def]
        """The mean of a function over N(0, variance), with kinks where factor·x = ±2λ."""
        scale = math.sqrt(variance)
        edge = 2 * self.risk_aversion / (factor * scale)
        return _gaussian_mean(lambda z: function(scale * z), [-edge, edge])


def _gaussian_mean(function, kinks: list[float]) -> float:  # type: ignore[no-untyped-def]
    """∫ f(z) φ(z) dz, piece by piece between the kinks."""
    inside = sorted(kink for kink in kinks if abs(kink) < _REACH)
    edges = [-_REACH, *inside, _REACH]
    pieces = (
        quad(lambda z: function(z) * math.exp(-0.5 * z * z), low, high, epsabs=1e-14, epsrel=1e-10)[0]
        for low, high in itertools.pairwise(edges)
        if high > low
    )
    return sum(pieces) / math.sqrt(2 * math.pi)
