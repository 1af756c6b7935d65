"""The paper's market: LMC series turned into returns, clean and noisy, split by series, with their oracle.

Series follow the linear model of coregionalisation (LMC): channels that mix random Gaussian processes. A latent process
has a random covariance function, J ~ U{1..5} kernels of the bank folded left to right with + or ×. Multiplied out, it
is a sum of products of kernels, and the process is the sum of one independent draw for each product:

    f_{K1 × K2 × …} = Σ_{i j …} F1_i ⊙ F2_j ⊙ … · z_{i j …}     (F the factor of K; z independent normals)
    f_{K × white}   = sqrt(level · diag K) ⊙ z

**The same numbers on every processor.** A factor is written down, not found: harmonics with Bessel weights for periodic
kernels, and for the six smooth ones Cholesky with fixed pivots (Chebyshev nodes, both ends first, then halves). A
factorisation that searches its pivots or eigenvectors in a nearly singular Gram matrix gives another factor wherever
rounding breaks a tie, and so another series from the same normals. Here rounding of 1e-16 moves a factor by 1e-11 at
most; FFᵀ = K to 1e-10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from time2decide.core.cache import cached_array
from time2decide.core.validation import expect, validate_choice, validate_count, validate_fields
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW, oracle_path

LMC_VERSION = 2  # of the random stream: raise it when the same seed gives other numbers; it is part of task keys

#: Periods of the periodic kernels in steps; those that occur several times are drawn more often, as in TimePFN.
PERIODS = (24, 48, 96, 168, 336, 672, 7, 14, 30, 60, 365, 730, 4, 26, 52, 4, 6, 12, 4, 40, 10)
LINEAR_OFFSETS = (0.0, 1.0, 10.0)
SMOOTH_SCALES = (0.1, 1.0, 10.0)
MIXTURES = (0.1, 1.0, 10.0)
NOISE_LEVELS = (0.1, 1.0)
_TOLERANCE = 1e-10  # of the variance; a pivot below it is left out
_NODES = 32  # intervals of the pivots of smooth kernels
_HARMONICS = 11  # of periodic kernels: the next has a variance of 1e-11
_ENTRIES = 2**22  # numbers in the largest array of a contraction
_PARALLEL_FROM = 128  # below this, starting worker processes costs more than it saves


@dataclass(frozen=True)
class LMCConfig:
    """The generator's parameters; the defaults are the paper's."""

    channels: int = 16
    length: int = 1024  # points on [0, 1]
    most_kernels: int = 5  # kernels folded into one covariance, at most
    dirichlet_min: float = 0.01  # the concentration of a series' mixing weights is uniform on [min, max]
    dirichlet_max: float = 0.75
    weibull_shape: float = 6.0  # of the number of latent processes; with 16 channels it is always 16
    weibull_scale: float = 125.0

    def __post_init__(self) -> None:
        validate_fields(self, count="channels most_kernels")
        validate_fields(self, positive="dirichlet_min dirichlet_max weibull_shape weibull_scale")
        validate_count("length", self.length, least=2)
        low, high = self.dirichlet_min, self.dirichlet_max
        expect(low <= high, "dirichlet_min", f"at most {high}", low)


class LMCKernel(NamedTuple):
    """A covariance function on a grid of T points.

    factor : (T, rank) with FFᵀ = K to 1e-10, or (T, 0) for white noise, whose K = diag(variance) has no tall factor
    variance : (T,) diagonal of K
    """

    factor: np.ndarray
    variance: np.ndarray
    white: bool


class LMCTerm(NamedTuple):
    """One step of a fold: combine what came before with `kernel`, by product or by sum."""

    kernel: LMCKernel
    product: bool


def lmc_series(config: LMCConfig, seed: int, index: int) -> np.ndarray:
    """Series number `index` of the stream `seed`, (length, channels).

    X_i(t) = Σ_j w_ij f_j(t) with r = clip(round(scale·Weibull(shape) + 1), max(2, C//20), C) latent processes f and
    weights w_i ~ Dirichlet(α·1_r), α uniform once per series. A series depends on (seed, index) and nothing else.
    """
    rng = lmc_generator(seed, index)
    bank = lmc_kernels(config.length)
    rank = round(config.weibull_scale * rng.weibull(config.weibull_shape) + 1)
    rank = min(max(rank, 2, config.channels // 20), config.channels)
    latent = np.empty((config.length, rank))
    for j in range(rank):
        latent[:, j] = draw_lmc_process(_random_fold(bank, config.most_kernels, rng), rng)
    concentration = rng.uniform(config.dirichlet_min, config.dirichlet_max)
    weights = rng.dirichlet(np.full(rank, concentration), size=config.channels)  # (channels, rank)
    return latent @ weights.T


def lmc_channel_gram(config: LMCConfig, steps: int, rng: np.random.Generator, most_latents: int = 4) -> np.ndarray:
    """The covariance of `steps` consecutive values of one random channel at a random place, (steps, steps).

    It is Σ_j w_j² K_j over the latent processes that matter most to the channel, given their kernels K and the
    channel's weights w.
    """
    concentration = rng.uniform(config.dirichlet_min, config.dirichlet_max)
    weights = np.sort(rng.dirichlet(np.full(config.channels, concentration)))[::-1][:most_latents]
    start = int(rng.integers(0, config.length - steps + 1))
    part = slice(start, start + steps)
    bank = tuple(LMCKernel(k.factor[part], k.variance[part], k.white) for k in lmc_kernels(config.length))
    return sum(
        (w**2 * _gram(_random_fold(bank, config.most_kernels, rng)) for w in weights), start=np.zeros((steps, steps))
    )


def lmc_set(
    count: int,
    config: LMCConfig | None = None,
    *,
    seed: int = 0,
    first: int = 0,
    workers: int | None = None,
    cache: bool = True,
) -> np.ndarray:
    """Series `first` … `first + count − 1` of the stream `seed`, (count, length, channels).

    The answer is the same for any number of worker processes (all cores by default, one for small sets) and is
    kept on disk unless `cache` is false.
    """
    config = config or LMCConfig()
    validate_count("count", count)
    validate_count("first", first, least=0)
    key = {"kind": "lmc", "version": LMC_VERSION, **asdict(config), "seed": seed, "first": first, "count": count}
    return cached_array(key, lambda: _generate(config, seed, first, count, workers), enabled=cache)


def lmc_generator(seed: int, *key: int) -> np.random.Generator:
    """The random stream of one series (or of one purpose of one series): independent for every key."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def draw_lmc_process(fold: tuple[LMCTerm, ...], rng: np.random.Generator) -> np.ndarray:
    """One draw, (T,), of the zero-mean process whose covariance is the folded one."""
    products: list[tuple[LMCKernel, ...]] = []
    for kernel, product in fold:
        products = [(*one, kernel) for one in products] if product and products else [*products, (kernel,)]
    return sum((_draw_product(one, rng) for one in products), start=np.zeros(len(fold[0].kernel.variance)))


def _draw_product(kernels: tuple[LMCKernel, ...], rng: np.random.Generator) -> np.ndarray:
    """One draw, (T,), of the process whose covariance is the product of these kernels."""
    length = len(kernels[0].variance)
    if any(kernel.white for kernel in kernels):
        variance = np.prod([kernel.variance for kernel in kernels], axis=0)
        return np.asarray(np.sqrt(variance) * rng.standard_normal(length))
    ranks = [kernel.factor.shape[1] for kernel in kernels]
    noise = rng.standard_normal((ranks[0], int(np.prod(ranks[1:]))))
    step = max(1, _ENTRIES // noise.shape[1])
    drawn = np.empty(length)
    for start in range(0, length, step):
        part = slice(start, start + step)
        rest = kernels[0].factor[part] @ noise  # (step, r2 · r3 · …)
        for kernel in kernels[1:]:
            rows = kernel.factor[part, None]  # (step, 1, r)
            rest = (rows @ rest.reshape(len(rest), rows.shape[-1], -1))[:, 0]
        drawn[part] = rest[:, 0]
    return drawn


def _random_fold(bank: tuple[LMCKernel, ...], most: int, rng: np.random.Generator) -> tuple[LMCTerm, ...]:
    size = int(rng.integers(1, most + 1))
    chosen = rng.integers(0, len(bank), size)
    products = rng.random(size) < 0.5
    return tuple(LMCTerm(bank[k], bool(p)) for k, p in zip(chosen, products, strict=True))


def _gram(fold: tuple[LMCTerm, ...]) -> np.ndarray:
    """The folded covariance itself, (T, T)."""
    total = _kernel_gram(fold[0].kernel)
    for kernel, product in fold[1:]:
        gram = _kernel_gram(kernel)
        total = total * gram if product else total + gram
    return total


def _kernel_gram(kernel: LMCKernel) -> np.ndarray:
    return np.diag(kernel.variance) if kernel.white else kernel.factor @ kernel.factor.T


def _generate(config: LMCConfig, seed: int, first: int, count: int, workers: int | None) -> np.ndarray:
    from joblib import Parallel, cpu_count, delayed  # here: a decision needs none of it

    processes = min(workers or (cpu_count() if count >= _PARALLEL_FROM else 1), count)
    edges = first + np.linspace(0, count, (4 * processes if processes > 1 else 1) + 1).astype(int)
    parts = Parallel(n_jobs=processes)(
        delayed(_generate_part)(config, seed, int(i), int(j)) for i, j in pairwise(edges) if j > i
    )
    return np.concatenate(parts)


def _generate_part(config: LMCConfig, seed: int, start: int, stop: int) -> np.ndarray:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # one thread per process: faster here, and the same rounding everywhere
        return np.stack([lmc_series(config, seed, i) for i in range(start, stop)])


@lru_cache(maxsize=4)
def lmc_kernels(length: int) -> tuple[LMCKernel, ...]:
    """The 33 kernels on `length` equally spaced points of [0, 1]; a period of p steps is p/length.

    periodic exp(−2 sin²(πd/p)), linear xx' + σ₀², Gaussian exp(−d²/2ℓ²), rational quadratic (1 + d²/2α)^−α,
    white noise and the constant 1, with d = |x − x'|.
    """
    grid = np.linspace(0.0, 1.0, length)
    smooth = [partial(_gaussian, scale=scale) for scale in SMOOTH_SCALES]
    smooth += [partial(_rational_quadratic, alpha=alpha) for alpha in MIXTURES]
    periodic = {period: _from_factor(_harmonics(grid * length / period)) for period in set(PERIODS)}
    return (
        *(periodic[period] for period in PERIODS),
        *(_from_factor(np.column_stack([grid, np.full(length, s)]) if s else grid[:, None]) for s in LINEAR_OFFSETS),
        *(_from_factor(_smooth_factor(kernel, grid)) for kernel in smooth),
        *(LMCKernel(np.zeros((length, 0)), np.full(length, level), True) for level in NOISE_LEVELS),
        _from_factor(np.ones((length, 1))),
    )


def _gaussian(distance: np.ndarray, scale: float) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * (distance / scale) ** 2))


def _rational_quadratic(distance: np.ndarray, alpha: float) -> np.ndarray:
    return np.asarray((1 + distance**2 / (2 * alpha)) ** -alpha)


def _harmonics(turns: np.ndarray) -> np.ndarray:
    """F of exp(−2 sin²(π(s − t))) = e⁻¹ Σ_k (2 − [k = 0]) I_k(1) cos(2πk(s − t)), at times in periods."""
    from scipy.special import ive

    k = np.arange(_HARMONICS)
    angles = 2 * np.pi * turns[:, None] * k
    waves = np.concatenate([np.cos(angles), np.sin(angles[:, 1:])], axis=1)
    size = np.sqrt(np.where(k, 2.0, 1.0) * ive(k, 1.0))
    return np.asarray(waves * np.concatenate([size, size[1:]]))


def _smooth_factor(kernel: Callable[[np.ndarray], np.ndarray], grid: np.ndarray) -> np.ndarray:
    """F of a smooth stationary kernel by Cholesky with fixed pivots: Chebyshev nodes, both ends first, then halves."""
    order, step = [0, _NODES], _NODES
    while step > 1:
        order += range(step // 2, _NODES, step)
        step //= 2
    nodes = 0.5 - 0.5 * np.cos(np.pi * np.array(order) / _NODES)
    left = kernel(np.concatenate([nodes, grid])[:, None] - nodes)  # (nodes + T, nodes), what is not yet explained
    columns = []
    for j in range(len(nodes)):
        if left[j, j] > _TOLERANCE:
            column = left[:, j] / np.sqrt(left[j, j])
            left = left - column[:, None] * column[: len(nodes)]
            columns.append(column[len(nodes) :])
    return np.column_stack(columns)


def _from_factor(factor: np.ndarray) -> LMCKernel:
    return LMCKernel(factor, np.einsum("ij,ij->i", factor, factor), False)


#: Standard deviation of the noise of each market. The paper says 0.01; at 0.0065 the ratio of Uniform's noisy to its
#: clean row is the paper's.
MARKETS = {"clean": 0.0, "noisy": 0.01, "noisy-matched": 0.0065}
#: Series of each split: (number of the first, default count). The ranges can grow without meeting.
SPLITS = {"train": (0, 300), "validation": (1_000_000, 30), "evaluation": (2_000_000, 30)}
_SCALE, _LOWEST, _HIGHEST = 0.01, -0.3, 0.8
_NOISE_STREAM = 1  # second key of the noise generator, so that noise and series are independent
_VERSION = 1  # of the labels: raise it when the oracle gives other numbers

T = TypeVar("T")


def synthetic_returns(
    market: str = "clean",
    split: str = "evaluation",
    *,
    count: int | None = None,
    seed: int = 0,
    config: LMCConfig | None = None,
    cache: bool = True,
) -> np.ndarray:
    """Returns clip(0.01·x + noise, −0.3, 0.8) of LMC series x, (series, time, assets).

    `market` is one of `MARKETS` and `split` one of `SPLITS`; no series is in two splits. A series depends only on
    the seed and its number: the first ten of thirty are the same as the first ten of a hundred, and the three
    markets share their series and their noise, at three levels.
    """
    deviation = _choose("market", market, MARKETS)
    first, default = _choose("split", split, SPLITS)
    number = validate_count("count", default if count is None else count)
    series = lmc_set(number, config, seed=seed, first=first, cache=cache)
    noise = np.zeros_like(series)
    if deviation:
        for i in range(number):
            noise[i] = deviation * lmc_generator(seed, first + i, _NOISE_STREAM).standard_normal(series.shape[1:])
    return synthetic_to_returns(series, noise)


def synthetic_to_returns(series: np.ndarray, noise: np.ndarray | float = 0.0) -> np.ndarray:
    """clip(0.01·x + noise, −0.3, 0.8)"""
    return np.clip(_SCALE * series + noise, _LOWEST, _HIGHEST)


def synthetic_oracle(
    market: str = "clean",
    split: str = "evaluation",
    turnover_l1: Sequence[float] = BUDGETS,
    *,
    count: int | None = None,
    seed: int = 0,
    config: LMCConfig | None = None,
    cache: bool = True,
    risk_aversion: float = RISK_AVERSION,
) -> np.ndarray:
    """`oracle_path` of `synthetic_returns` for several budgets, (series, budgets, time, assets), kept on disk."""
    number = validate_count("count", _choose("split", split, SPLITS)[1] if count is None else count)
    key = {
        "kind": "oracle",
        "version": [_VERSION, LMC_VERSION],
        "market": market,
        "split": split,
        "count": number,
        "seed": seed,
    }
    key |= {**asdict(config or LMCConfig()), "budgets": [float(g) for g in turnover_l1]}
    key |= {"window": WINDOW, "risk_aversion": risk_aversion}

    def make() -> np.ndarray:
        returns = synthetic_returns(market, split, count=number, seed=seed, config=config, cache=cache)
        return np.asarray(oracle_path(returns, list(turnover_l1), risk_aversion))

    return cached_array(key, make, enabled=cache)


def _choose(name: str, value: str, table: dict[str, T]) -> T:
    validate_choice(name, value, table)
    return table[value]
