"""A prior of markets: random universes of daily returns whose conditional mean and covariance are known.

A market draws its own world: a few factors with group structure, volatilities that cluster (a common and an own
log-AR(1)), tails from normal to Student with 3 degrees of freedom, jumps, loadings that drift, regimes of correlation,
premia for risk, and weak predictability from none to reversals of residuals, slow trends and effects between assets.
Policies are trained on it. What they learn is judged by the *conditional* mean and covariance, which have the same
expectation as realised returns and far less variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from time2decide.markets.periods import YEAR

_LARGEST = 0.5  # of a return in absolute value
KINDS = ("none", "reversal", "trend", "cross", "own")  # of predictability
_SHARES = (0.4, 0.3, 0.1, 0.1, 0.1)


@dataclass(frozen=True)
class Market:
    """Returns (time, m) of a random market, and what was known to nature before each: all arrays start at step 0.

    mean : (time, m) conditional mean of each return
    loadings : (time, m, k) of the factors, and factor_scale : (time, k) their volatilities
    own_scale : (time, m) volatilities of what the factors leave
    kind : of predictability, one of `KINDS`
    """

    returns: np.ndarray
    mean: np.ndarray
    loadings: np.ndarray
    factor_scale: np.ndarray
    own_scale: np.ndarray
    kind: str

    def covariance(self, step: int | np.ndarray) -> np.ndarray:
        """Conditional covariance of the returns of a step or of steps, (..., m, m)."""
        scaled = self.loadings[step] * self.factor_scale[step][..., None, :]  # (..., m, k)
        own = self.own_scale[step]
        return np.asarray(scaled @ scaled.swapaxes(-1, -2) + own[..., None] ** 2 * np.eye(own.shape[-1]))


def random_market(assets: int, steps: int, generator: np.random.Generator, kind: str | None = None) -> Market:
    """Draw a market of the prior.

    Parameters
    ----------
    assets, steps : int
    generator : numpy Generator
    kind : one of `KINDS`, optional
        Drawn if not given.
    """
    rng = generator
    chosen = str(rng.choice(KINDS, p=_SHARES)) if kind is None else kind
    factors = int(rng.integers(1, 6))
    own = 0.2 / np.sqrt(YEAR) * np.exp(rng.normal(0, 1) * 0.3 + rng.normal(size=assets) * rng.uniform(0.1, 0.9))
    loadings = _loadings(assets, factors, own, rng) + _drift(steps, assets, factors, own, rng)
    persistence, amplitude = rng.uniform(0.95, 0.995), rng.uniform(0.0, 0.6)
    common = _log_ar1(steps, 1, persistence, amplitude, rng)
    factor_scale = np.exp(common + _log_ar1(steps, factors, persistence, amplitude * rng.uniform(0, 0.7), rng))
    mixed = rng.uniform(0, 1) * common + _log_ar1(steps, assets, persistence, amplitude * rng.uniform(0.2, 1), rng)
    own_scale = own * rng.uniform(0.5, 1.2) * np.exp(mixed)
    if rng.uniform() < 0.3:  # regimes: the first factor counts for more in some years
        factor_scale[:, 0] *= np.where(_regimes(steps, rng.uniform(100, 600), rng), rng.uniform(1.0, 2.0), 1.0)
    freedom = float(rng.choice([3.5, 5.0, 8.0, np.inf]))
    factor_shocks, own_shocks = _shocks((steps, factors), freedom, rng), _shocks((steps, assets), freedom, rng)
    jumps = (rng.uniform(size=(steps, assets)) < rng.uniform(0, 0.004)) * rng.normal(0, 5, (steps, assets))
    residual = own_scale * (own_shocks + jumps)
    shared = np.einsum("tmk,tk,tk->tm", loadings, factor_scale, factor_shocks)
    premium = _premium(loadings, factor_scale, own_scale, rng)
    returns, mean = _with_predictability(shared, residual, premium, own_scale, chosen, rng)
    own_scale = own_scale * np.sqrt(1 + jumps.var())
    return Market(returns, mean, loadings, factor_scale, own_scale, chosen)


def _loadings(assets: int, factors: int, own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A market factor and group factors, (1, m, k), in units of each asset's own volatility."""
    market = own * np.abs(rng.normal(rng.uniform(0.2, 1.0), rng.uniform(0, 0.5), assets))
    groups = rng.integers(0, max(factors - 1, 1), assets)
    member = np.eye(max(factors - 1, 1))[groups] * rng.uniform(0, 0.9)
    rest = own[:, None] * (member + rng.normal(0, 0.15, member.shape))
    return np.column_stack([market, rest])[None, :, :factors]


def _drift(steps: int, assets: int, factors: int, own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Slow changes of the loadings, (time, m, k)."""
    size = rng.uniform(0, 0.4) * (rng.uniform() < 0.6)
    walk = _log_ar1(steps, assets * factors, 0.998, size, rng)
    return walk.reshape(steps, assets, factors) * own[:, None]


def _log_ar1(steps: int, width: int, persistence: float, amplitude: float, rng: np.random.Generator) -> np.ndarray:
    """Stationary AR(1) paths of standard deviation `amplitude`, (time, width)."""
    from scipy.signal import lfilter

    shocks = rng.normal(size=(steps, width)) * np.sqrt(1 - persistence**2)
    shocks[0] = rng.normal(size=width)
    return np.asarray(lfilter([1.0], [1.0, -persistence], shocks, axis=0)) * amplitude


def _regimes(steps: int, length: float, rng: np.random.Generator) -> np.ndarray:
    """Two states with geometric durations, (time,)."""
    return np.cumsum(rng.uniform(size=steps) < 1 / length) % 2 == 1


def _shocks(shape: tuple[int, int], freedom: float, rng: np.random.Generator) -> np.ndarray:
    """Independent shocks of variance 1."""
    if np.isinf(freedom):
        return rng.normal(size=shape)
    return rng.standard_t(freedom, shape) * np.sqrt((freedom - 2) / freedom)


def _premium(loadings: np.ndarray, factor: np.ndarray, own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Constant expected returns: for the market factor, for volatility, and a little luck of each asset, (m,)."""
    beta = loadings[..., 0].mean(0) * factor[:, 0].mean()
    total = np.sqrt(((loadings.mean(0) * factor.mean(0)) ** 2).sum(1) + own.mean(0) ** 2)
    market, volatility = rng.normal(0.35, 0.25), np.abs(rng.normal(0, 0.25))
    return (market * beta + volatility * total + rng.normal(0, 0.15, len(total)) * total) / np.sqrt(YEAR)


def _with_predictability(
    shared: np.ndarray,
    residual: np.ndarray,
    premium: np.ndarray,
    scale: np.ndarray,
    kind: str,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns and their conditional means, (time, m) each."""
    steps, m = residual.shape
    mean = np.tile(premium, (steps, 1))
    shocks = shared + residual
    if kind == "reversal":
        size = -rng.uniform(0.01, 0.15)
        fade = rng.uniform(0.2, 0.9)
        mean += size * _echo(residual, fade)
    elif kind == "trend":
        slow = _log_ar1(steps, m, rng.uniform(0.95, 0.995), rng.uniform(0.02, 0.15), rng)
        mean += slow * scale.mean(0)
    elif kind == "cross":
        unit = scale.mean(0)
        effect = rng.normal(size=(m, m)) * rng.uniform(0.02, 0.5) / np.sqrt(m)
        effect = effect * unit[:, None] / unit
        for t in range(1, steps):
            mean[t] += effect @ np.clip(mean[t - 1] - premium + shocks[t - 1], -10 * unit, 10 * unit)
    elif kind == "own":
        persistence = rng.uniform(-0.3, 0.3, m)
        for t in range(1, steps):
            mean[t] += persistence * (mean[t - 1] - premium + shocks[t - 1])
    mean = np.clip(mean, -0.1, 0.1)
    return np.clip(mean + shocks, -_LARGEST, _LARGEST), mean


def _echo(shocks: np.ndarray, fade: float) -> np.ndarray:
    """Σ_j fade^(j−1) shocks_{t−j} (1 − fade) for j ≥ 1, (time, m): known before step t."""
    from scipy.signal import lfilter

    filtered = lfilter([1 - fade], [1.0, -fade], shocks, axis=0)
    return np.vstack([np.zeros((1, shocks.shape[1])), filtered[:-1]])
