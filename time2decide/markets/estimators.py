"""Covariance estimators that are updated day by day: EWMA, iterated EWMA, their combination, quadratic shrinkage.

Every estimator is an `OnlineCovariance`: `update(rows)` takes the next returns, `covariance()` gives the forecast for
the step after them. An update costs O(m²); the estimators never look at a row twice.

Gaps
----
A missing return is NaN. Nothing is filled in:

- every pair of assets has its own average, over the steps on which both were observed; a step without one of them
  leaves the pair as it is;
- the averages start at zero with weight zero and are divided by their weight, so a late listing is not biased;
- an asset with fewer than `least` observations has NaN in its row and column;
- a pair that was never observed together has the mean correlation of the other pairs;
- where gaps leave a matrix that is not positive definite, its eigenvalues are raised and its variances kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from scipy.linalg import solve_triangular
from scipy.signal import lfilter

from time2decide.core.validation import expect, validate_count, validate_interval, validate_positive

LEAST_OBSERVATIONS = 63  # of an asset before its covariances are given: a quarter of a year of days
_WARM = 20  # observations of an asset before its returns are divided by its volatility
_SMALLEST_EIGENVALUE = 1e-6  # of a repaired correlation matrix


class OnlineCovariance(ABC):
    """A covariance that is carried forward: the base class of every estimator here, and of learned ones.

    A subclass implements `_start(m)`, which makes the state for m assets, `_update(rows)`, which takes the next returns
    (steps, m) with NaN for missing ones, `_estimate(assets)`, the forecast of some assets (a mask), and
    `_forget(assets)`, which resets the state of assets. This class checks the input, counts observations and hides
    assets without enough of them.

    Parameters
    ----------
    least : int
        Observations of an asset before its row and column are given; NaN until then.
    """

    def __init__(self, least: int = LEAST_OBSERVATIONS) -> None:
        self.least = validate_count("least", least)
        self.observations = np.zeros(0, dtype=int)

    def update(self, returns: np.ndarray) -> OnlineCovariance:
        """Take the next returns, (m,) or (steps, m), oldest first; NaN where an asset has none."""
        rows = np.atleast_2d(np.asarray(returns, dtype=float))
        good = rows.ndim == 2 and not np.isinf(rows).any()
        expect(good, "returns", "finite numbers (steps, m) or NaN", f"shape {rows.shape}")
        if not self.observations.size:
            self.observations = np.zeros(rows.shape[1], dtype=int)
            self._start(rows.shape[1])
        expect(rows.shape[1] == self.observations.size, "returns", f"{self.observations.size} assets", rows.shape[1])
        self._update(rows)
        self.observations += np.isfinite(rows).sum(axis=0)
        return self

    def covariance(self) -> np.ndarray:
        """The covariance of the next returns, (m, m); NaN for assets with fewer than `least` observations."""
        expect(self.observations.size, "covariance", "returns before it (update)", "none")
        known = self.observations >= self.least
        if known.all():
            return self._estimate(known)
        out = np.full((known.size, known.size), np.nan)
        if known.any():
            out[np.ix_(known, known)] = self._estimate(known)
        return out

    def forget(self, assets: np.ndarray) -> None:
        """Forget what was seen of some assets (a mask): they were delisted, or their names stand for others now."""
        if assets.any():
            self._forget(assets)
            self.observations[assets] = 0

    @abstractmethod
    def _start(self, m: int) -> None: ...

    @abstractmethod
    def _update(self, rows: np.ndarray) -> None: ...

    @abstractmethod
    def _estimate(self, assets: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def _forget(self, assets: np.ndarray) -> None: ...


class _PairAverage:
    """Exponentially weighted mean of x xᵀ, pair by pair: Σ βᵏ x xᵀ / Σ βᵏ over the steps with both observed."""

    def __init__(self, half_life: float, m: int) -> None:
        self.decay = ewma_decay(half_life)
        self.total, self.weight = np.zeros((m, m)), np.zeros((m, m))

    def update(self, rows: np.ndarray) -> None:
        rows = rows[np.isfinite(rows).any(axis=1)]  # a step without any observation changes nothing
        seen = np.isfinite(rows)
        if seen.all():
            steps = len(rows)
            weights = (1 - self.decay) * self.decay ** np.arange(steps - 1, -1, -1.0)
            self.total *= self.decay**steps
            self.total += (rows * weights[:, None]).T @ rows
            self.weight *= self.decay**steps
            self.weight += weights.sum()
            return
        for row, here in zip(rows, seen, strict=True):
            place = np.ix_(here, here)
            self.total[place] += (1 - self.decay) * (np.outer(row[here], row[here]) - self.total[place])
            self.weight[place] += (1 - self.decay) * (1 - self.weight[place])

    def forget(self, assets: np.ndarray) -> None:
        for array in (self.total, self.weight):
            array[assets] = 0.0
            array[:, assets] = 0.0

    def variances(self) -> np.ndarray:
        return _ratio(np.diag(self.total), np.diag(self.weight))

    def correlation(self, assets: np.ndarray) -> np.ndarray:
        """Correlations of some assets, definite; a pair never observed together has the mean of the others."""
        place = np.ix_(assets, assets)
        total, weight = self.total[place], self.weight[place]
        variance = self.variances()[assets]
        scale = np.sqrt(np.outer(variance, variance))
        correlation = _ratio(_ratio(total, weight), scale)
        unknown = ~np.isfinite(correlation)
        if unknown.any():
            known = ~unknown & ~np.eye(len(variance), dtype=bool)
            correlation[unknown] = correlation[known].mean() if known.any() else 0.0
        np.fill_diagonal(correlation, 1.0)
        even = np.ptp(weight) <= 1e-12 * weight.max()
        return correlation if even else definite_correlation(np.clip(correlation, -1, 1))

    def effective_steps(self) -> float:
        """(Σ w)² / Σ w² of the weights βᵏ: how many equally weighted steps they are worth."""
        left = 1 - np.diag(self.weight).max(initial=0.0)  # β to the number of steps
        return max(float((1 + self.decay) / (1 - self.decay) * (1 - left) / (1 + left)), 2.0)


class EWMA(OnlineCovariance):
    """Σ = Σ_k βᵏ r_{t−k} r_{t−k}ᵀ / Σ_k βᵏ with β = 2^(−1/half_life); returns are not centred."""

    def __init__(self, half_life: float = 63.0, least: int = LEAST_OBSERVATIONS) -> None:
        super().__init__(least)
        self.half_life = validate_positive("half_life", half_life)

    def _start(self, m: int) -> None:
        self._pairs = _PairAverage(self.half_life, m)

    def _update(self, rows: np.ndarray) -> None:
        self._pairs.update(rows)

    def _estimate(self, assets: np.ndarray) -> np.ndarray:
        return _scaled(self._pairs.correlation(assets), np.sqrt(self._pairs.variances()[assets]))

    def _forget(self, assets: np.ndarray) -> None:
        self._pairs.forget(assets)


class IteratedEWMA(OnlineCovariance):
    """Volatilities and correlations with a half-life each (Engle 2002; Johansson, Ogut, Pelger, Schmelzer, Boyd 2023).

    With v_t the EWMA of r² up to t − 1, z_t = r_t / √v_t cut off at ± clip, R the correlation of the EWMA of z zᵀ:

        Σ = diag(√v) R diag(√v).

    Parameters
    ----------
    volatility, correlation : float
        Half-lives.
    clip : float
        Largest |z|.
    shrinkage : float in [0, 1]
        Share of constant correlation in R: (1 − a) R + a (ρ̄ 11ᵀ + (1 − ρ̄) I).
    quadratic : bool
        Clean R by quadratic inverse shrinkage (`qis`), for the steps that its exponential weights are worth.
    """

    def __init__(
        self,
        volatility: float = 63.0,
        correlation: float = 125.0,
        *,
        clip: float = 4.2,
        shrinkage: float = 0.0,
        quadratic: bool = False,
        least: int = LEAST_OBSERVATIONS,
    ) -> None:
        super().__init__(least)
        self.volatility = validate_positive("volatility", volatility)
        self.correlation = validate_positive("correlation", correlation)
        self.clip = validate_positive("clip", clip)
        validate_interval("shrinkage", shrinkage, "[0, 1]")
        self.shrinkage, self.quadratic = shrinkage, quadratic

    def _start(self, m: int) -> None:
        self._variance = VarianceEWMA(self.volatility, m)
        self._pairs = _PairAverage(self.correlation, m)

    def _update(self, rows: np.ndarray) -> None:
        self._pairs.update(np.clip(self._variance.standardise(rows), -self.clip, self.clip))

    def _estimate(self, assets: np.ndarray) -> np.ndarray:
        correlation = self._pairs.correlation(assets)
        if self.quadratic:
            correlation = _unit_diagonal(qis(correlation, self._pairs.effective_steps()))
        return _scaled(_shrink_to_constant(correlation, self.shrinkage), np.sqrt(self._variance.value()[assets]))

    def _forget(self, assets: np.ndarray) -> None:
        self._variance.forget(assets)
        self._pairs.forget(assets)


def two_scale(least: int = LEAST_OBSERVATIONS) -> IteratedEWMA:
    """Volatilities with half-life 63, correlations with half-life 250, shrunk by 0.3 to constant correlation."""
    return IteratedEWMA(63.0, 250.0, clip=6.0, shrinkage=0.3, least=least)


class VarianceEWMA:
    """EWMA of squared returns, asset by asset, and returns divided by the volatility known before them."""

    def __init__(self, half_life: float, m: int) -> None:
        self.decay = ewma_decay(half_life)
        self.total, self.count = np.zeros(m), np.zeros(m, dtype=int)

    def value(self) -> np.ndarray:
        """Σ βᵏ r² / Σ βᵏ, (m,); NaN before the first observation."""
        return _ratio(self.total, 1 - self.decay**self.count)

    def standardise(self, rows: np.ndarray) -> np.ndarray:
        """Take rows (steps, m); return r_t / √v_t, (steps, m), NaN during the first 20 observations of an asset."""
        if np.isfinite(rows).all() and (self.count == self.count[0]).all():
            path, _ = lfilter([1 - self.decay], [1, -self.decay], rows**2, axis=0, zi=self.decay * self.total[None])
            before = np.concatenate([self.total[None], path[:-1]])  # (steps, m): known before each row
            counts = self.count[0] + np.arange(len(rows))
            variance = before / np.maximum(1 - self.decay**counts, 1e-300)[:, None]
            self.total = path[-1].copy()
            self.count = self.count + len(rows)
            return np.where(counts[:, None] >= _WARM, _divided(rows, variance), np.nan)
        out = np.empty_like(rows)
        for place, row in enumerate(rows):
            out[place] = np.where(self.count >= _WARM, _divided(row, self.value()), np.nan)
            here = np.isfinite(row)
            self.total[here] += (1 - self.decay) * (row[here] ** 2 - self.total[here])
            self.count[here] += 1
        return out

    def forget(self, assets: np.ndarray) -> None:
        self.total[assets], self.count[assets] = 0.0, 0


class CombinedIEWMA(OnlineCovariance):
    """CM-IEWMA: the Cholesky factors of several iterated EWMAs, mixed by the likelihood of the last steps.

    With Σ_k⁻¹ = L_k L_kᵀ, the mixture is Σ⁻¹ = L Lᵀ, L = Σ_k π_k L_k, where π on the simplex maximises the Gaussian
    log-likelihood of the last `memory` steps, a concave function of π:

        Σ_τ Σ_i log (L_τ)_ii − ½ ‖L_τᵀ r_τ‖².

    Experts are cleaned by `qis`: without it those with short half-lives are singular for more assets than steps.
    A Cholesky factor depends on the order of the assets, and so, a little, does the mixture. A step with gaps counts
    with the assets that were observed. (The package `cvxcovariance` computes the same from a whole table, with one
    modelling-language problem a step and zeros for gaps; here it is carried forward.)

    Parameters
    ----------
    pairs : sequence of (volatility, correlation)
        Half-lives of the experts; those of Johansson et al. for daily stocks by default.
    memory : int
        Steps of the likelihood.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[float, float]] = ((10, 21), (21, 63), (63, 125), (125, 250), (250, 500)),
        memory: int = 10,
        *,
        clip: float = 4.2,
        least: int = LEAST_OBSERVATIONS,
    ) -> None:
        super().__init__(least)
        self.pairs, self.memory = tuple(pairs), validate_count("memory", memory)
        self._experts = [IteratedEWMA(*pair, clip=clip, quadratic=True, least=1) for pair in self.pairs]
        self._diagonals: list[np.ndarray] = []  # of the last steps, (assets, experts) each
        self._residuals: list[np.ndarray] = []  # L_kᵀ r, (assets, experts) each

    def _start(self, m: int) -> None:
        self._factors: np.ndarray | None = None

    def _update(self, rows: np.ndarray) -> None:
        warm = max(0, len(rows) - self.memory - 1)  # earlier rows have left the memory before the next estimate
        if warm:
            for expert in self._experts:
                expert.update(rows[:warm])
            self._factors = None
        count = self.observations + np.isfinite(rows[:warm]).sum(axis=0)
        for row in rows[warm:]:
            here = np.isfinite(row) & (count >= self.least)
            if here.any():
                self._remember(row, here)
            for expert in self._experts:
                expert.update(row)
            self._factors = None
            count = count + np.isfinite(row)

    def _remember(self, row: np.ndarray, here: np.ndarray) -> None:
        if self._factors is None or not here.all():
            factors = self._precision_factors(here)
            self._factors = factors if here.all() else None
        else:
            factors = self._factors
        self._diagonals = [*self._diagonals, np.einsum("kii->ik", factors)][-self.memory :]
        self._residuals = [*self._residuals, np.einsum("kij,i->jk", factors, row[here])][-self.memory :]

    def _precision_factors(self, assets: np.ndarray) -> np.ndarray:
        """L_k with Σ_k⁻¹ = L_k L_kᵀ, lower triangular, (experts, m, m)."""
        return np.stack([precision_factor(expert._estimate(assets)) for expert in self._experts])

    def _estimate(self, assets: np.ndarray) -> np.ndarray:
        factors = self._precision_factors(assets)
        self._factors = factors if assets.all() else None
        mixed = np.tensordot(self.weights(), factors, axes=1)
        root = solve_triangular(mixed, np.eye(len(mixed)), lower=True)
        return np.asarray(root.T @ root)

    def weights(self) -> np.ndarray:
        """π, (experts,)."""
        if not self._diagonals:
            return np.full(len(self.pairs), 1.0 / len(self.pairs))
        residuals = np.concatenate(self._residuals)
        return mixture_weights(np.concatenate(self._diagonals), residuals.T @ residuals)

    def _forget(self, assets: np.ndarray) -> None:
        for expert in self._experts:
            expert.forget(assets)


class RollingQIS(OnlineCovariance):
    """Quadratic inverse shrinkage (Ledoit and Wolf 2022) of the sample covariance of the last `window` rows.

    With gaps the sample covariance is pairwise and the number of observations is the mean over pairs.
    """

    def __init__(self, window: int = 504, least: int = LEAST_OBSERVATIONS) -> None:
        super().__init__(least)
        self.window = validate_count("window", window, least=3)

    def _start(self, m: int) -> None:
        self._rows = np.empty((0, m))

    def _update(self, rows: np.ndarray) -> None:
        self._rows = np.concatenate([self._rows, rows])[-self.window :]

    def _estimate(self, assets: np.ndarray) -> np.ndarray:
        rows = self._rows[:, assets]
        seen = np.isfinite(rows)
        counts = seen.T.astype(float) @ seen  # steps on which both were observed, (k, k)
        mean = _ratio(np.where(seen, rows, 0.0).sum(axis=0), np.diag(counts))
        centred = np.where(seen, rows - mean, 0.0)
        sample = centred.T @ centred / np.maximum(counts - 1, 1.0)
        if not seen.all():
            deviation = np.sqrt(np.diag(sample))
            correlation = np.nan_to_num(_ratio(sample, np.outer(deviation, deviation)))
            np.fill_diagonal(correlation, 1.0)
            sample = _scaled(definite_correlation(np.clip(correlation, -1, 1)), deviation)
        return qis(sample, float(counts.mean()) - 1)

    def _forget(self, assets: np.ndarray) -> None:
        self._rows[:, assets] = np.nan


def qis(sample: np.ndarray, observations: float) -> np.ndarray:
    """Quadratic inverse shrinkage of a sample covariance (m, m) of `observations` degrees of freedom."""
    values, vectors = qis_spectrum(sample, observations)
    return np.asarray((vectors * values) @ vectors.T)


def qis_spectrum(sample: np.ndarray, observations: float) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (m,) after quadratic inverse shrinkage, and the eigenvectors (m, m), which stay.

    Ledoit and Wolf, "Quadratic shrinkage for large covariance matrices", Bernoulli 28 (2022). With c = m / n, the
    inverse eigenvalues x_i = 1/λ_i and their smoothed Stein shrinker θ and Hilbert transform η,

        1/δ_i = (1 − c)² x_i + 2c(1 − c) x_i θ_i + c² x_i (θ_i² + η_i²),

    rescaled to keep the trace; the null space of a sample with m > n gets one value.
    """
    m, n = len(sample), max(float(observations), 2.0)
    values, vectors = np.linalg.eigh((sample + sample.T) / 2)
    values = np.maximum(values, 0.0)
    c = m / n
    zero = max(0, m - int(n)) if c > 1 else 0  # eigenvalues that n observations cannot tell from 0
    floor = np.finfo(float).eps * max(values[-1], np.finfo(float).tiny)
    inverse = 1 / np.maximum(values[zero:], floor)
    h2 = (min(c * c, 1 / c / c) ** 0.35 / m**0.35) ** 2
    gap = inverse[None] - inverse[:, None]  # x_j − x_i
    kernel = inverse[None] / (gap**2 + inverse[None] ** 2 * h2)
    theta, eta = (kernel * gap).mean(axis=1), (kernel * inverse[None]).mean(axis=1) * np.sqrt(h2)
    size = theta**2 + eta**2
    if c <= 1:
        delta = 1 / (inverse * ((1 - c) ** 2 + 2 * c * (1 - c) * theta + c * c * size))
    else:
        delta = np.concatenate([np.full(zero, 1 / ((c - 1) * inverse.mean())), 1 / (inverse * size)])
    delta *= values.sum() / delta.sum()
    return np.asarray(delta), np.asarray(vectors)


def _shrink_to_constant(correlation: np.ndarray, amount: float) -> np.ndarray:
    """(1 − a) R + a (ρ̄ 11ᵀ + (1 − ρ̄) I), ρ̄ the mean correlation."""
    m = len(correlation)
    if not amount or m < 2:
        return correlation
    mean = (correlation.sum() - np.trace(correlation)) / (m * (m - 1))
    target = np.full((m, m), mean)
    np.fill_diagonal(target, 1.0)
    return np.asarray((1 - amount) * correlation + amount * target)


def definite_correlation(correlation: np.ndarray) -> np.ndarray:
    """The same matrix if it is positive definite; else its eigenvalues raised and its diagonal restored."""
    try:
        np.linalg.cholesky(correlation - _SMALLEST_EIGENVALUE * np.eye(len(correlation)))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(correlation)
        raised = np.maximum(values, 2 * _SMALLEST_EIGENVALUE)
        return _unit_diagonal((vectors * raised) @ vectors.T)
    return correlation


def _unit_diagonal(covariance: np.ndarray) -> np.ndarray:
    """The correlation matrix of a covariance."""
    deviation = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviation, deviation)
    np.fill_diagonal(correlation, 1.0)
    return np.asarray(correlation)


def precision_factor(covariance: np.ndarray) -> np.ndarray:
    """The lower triangular L with positive diagonal and Σ⁻¹ = L Lᵀ, without inverting Σ.

    Σ = U Uᵀ with U upper triangular is the Cholesky factorisation in the reversed order, and L = U⁻ᵀ.
    """
    upper = np.linalg.cholesky(covariance[::-1, ::-1])[::-1, ::-1]
    return np.asarray(solve_triangular(upper, np.eye(len(upper)), lower=False).T)


def mixture_weights(diagonals: np.ndarray, gram: np.ndarray, tol: float = 1e-9) -> np.ndarray:
    """argmax Σ log (A π) − ½ πᵀ P π over the simplex, A (n, k) positive, P (k, k): Newton steps on a log barrier."""
    k = diagonals.shape[1]
    weights, barrier = np.full(k, 1.0 / k), float(len(diagonals))
    while barrier > tol * len(diagonals):
        for _ in range(20):
            ratio = diagonals / (diagonals @ weights)[:, None]
            gradient = ratio.sum(axis=0) - gram @ weights + barrier / weights
            system = np.ones((k + 1, k + 1))
            system[:k, :k] = ratio.T @ ratio + gram + np.diag(barrier / weights**2)
            system[k, k] = 0.0
            step = np.linalg.solve(system, np.append(gradient, 0.0))[:k]
            shrinks = step < 0
            longest = float((-weights[shrinks] / step[shrinks]).min(initial=np.inf))
            decrement = float(gradient @ step)
            damping = 1.0 if decrement < 0.25 * barrier else 1 / (1 + np.sqrt(max(decrement / barrier, 0.0)))
            weights = weights + min(damping, 0.9 * longest) * step
            if decrement <= 1e-3 * barrier:
                break
        barrier *= 0.1
    return np.asarray(weights / weights.sum())


def ewma_decay(half_life: float) -> float:
    """β = 2^(−1/half_life)."""
    return float(0.5 ** (1.0 / half_life))


def _scaled(correlation: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    return np.asarray(correlation * np.outer(deviation, deviation))


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, NaN where the denominator is 0."""
    out = np.full(np.shape(numerator), np.nan)
    return np.asarray(np.divide(numerator, denominator, out=out, where=denominator > 0))


def _divided(rows: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """r / √v; 0 where an asset has not moved yet."""
    deviation = np.sqrt(variance)
    return np.asarray(np.divide(rows, deviation, out=np.where(np.isnan(rows), np.nan, 0.0), where=deviation > 0))
