"""The paper's market: LMC series turned into returns, clean and noisy, split by series, with their oracle.

Series follow the linear model of coregionalisation (LMC): channels that mix random Gaussian processes. A latent process
has a random covariance function, J ~ U{1..5} kernels of the bank folded left to right with + or ×. It is drawn without
forming that covariance where possible, because Gaussian processes compose:

    f_{A+K} = f_A + f_K                      (independent draws)
    f_{A×K} = Σ_r F_r ⊙ f_A^(r)              (F the factor of K, f_A^(r) independent draws: cov is Σ_r F_r F_rᵀ ⊙ A)
    f_{A×white} = sqrt(level · diag A) ⊙ z

Only where a long product would need more draws than there are points is its Gram matrix formed and factored.

The bank has 33 covariance functions on a grid, each as a tall factor of its Gram matrix. On [0, 1] every kernel here
but white noise is smooth, so its Gram matrix K has a numerical rank of at most 31: a factor F with FFᵀ = K to 1e-12 is
1024 × 31 instead of 1024 × 1024. That is four digits closer to K than the usual Cholesky factor of K + 1e-8·I.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from time2decide.core.cache import cached_array
from time2decide.core.validation import expect, validate_choice, validate_count, validate_fields
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW, oracle_path

_LMC_VERSION = 1  # of the random stream: raise it when the same seed gives other numbers, so that caches are not mixed

#: Periods of the periodic kernels in steps; those that occur several times are drawn more often, as in TimePFN.
PERIODS = (24, 48, 96, 168, 336, 672, 7, 14, 30, 60, 365, 730, 4, 26, 52, 4, 6, 12, 4, 40, 10)
LINEAR_OFFSETS = (0.0, 1.0, 10.0)
SMOOTH_SCALES = (0.1, 1.0, 10.0)
MIXTURES = (0.1, 1.0, 10.0)
NOISE_LEVELS = (0.1, 1.0)
_TOLERANCE = 1e-12  # of the largest variance
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

    factor : (T, rank) with FFᵀ = K, or (T, 0) for white noise, whose K = diag(variance) has no tall factor
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
        latent[:, j] = draw_lmc_process(_random_fold(bank, config.most_kernels, rng), 1, rng)[:, 0]
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
    key = {"kind": "lmc", "version": _LMC_VERSION, **asdict(config), "seed": seed, "first": first, "count": count}
    return cached_array(key, lambda: _generate(config, seed, first, count, workers), enabled=cache)


def lmc_generator(seed: int, *key: int) -> np.random.Generator:
    """The random stream of one series (or of one purpose of one series): independent for every key."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def draw_lmc_process(fold: tuple[LMCTerm, ...], count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` independent draws, (T, count), of the zero-mean process whose covariance is the folded one."""
    kernel, product = fold[-1]
    length = len(kernel.variance)
    if len(fold) == 1 or not product:
        shape = (length if kernel.white else kernel.factor.shape[1], count)
        noise = rng.standard_normal(shape)
        scaled = np.sqrt(kernel.variance)[:, None] * noise if kernel.white else kernel.factor @ noise
        fresh: np.ndarray = np.asarray(scaled)
        return fresh if len(fold) == 1 else fresh + draw_lmc_process(fold[:-1], count, rng)
    if kernel.white:
        deviation = np.sqrt(kernel.variance * _variance(fold[:-1]))
        return np.asarray(deviation[:, None] * rng.standard_normal((length, count)))
    rank = kernel.factor.shape[1]
    if count * rank > length:
        factor = _tall_factor(_gram(fold))
        return np.asarray(factor @ rng.standard_normal((factor.shape[1], count)))
    inner = draw_lmc_process(fold[:-1], count * rank, rng).reshape(length, count, rank)  # (T, count, rank)
    return np.asarray(np.einsum("tcr,tr->tc", inner, kernel.factor))


def _random_fold(bank: tuple[LMCKernel, ...], most: int, rng: np.random.Generator) -> tuple[LMCTerm, ...]:
    size = int(rng.integers(1, most + 1))
    chosen = rng.integers(0, len(bank), size)
    products = rng.random(size) < 0.5
    return tuple(LMCTerm(bank[k], bool(p)) for k, p in zip(chosen, products, strict=True))


def _variance(fold: tuple[LMCTerm, ...]) -> np.ndarray:
    """Diagonal of the folded covariance, (T,)."""
    total = fold[0].kernel.variance
    for kernel, product in fold[1:]:
        total = total * kernel.variance if product else total + kernel.variance
    return total


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
    from scipy.linalg import toeplitz

    grid = np.linspace(0.0, 1.0, length)
    periodic = {p: _from_gram(toeplitz(np.exp(-2 * np.sin(np.pi * grid * length / p) ** 2))) for p in set(PERIODS)}
    stationary = [np.exp(-0.5 * (grid / scale) ** 2) for scale in SMOOTH_SCALES]
    stationary += [(1 + grid**2 / (2 * alpha)) ** -alpha for alpha in MIXTURES]
    return (
        *(periodic[p] for p in PERIODS),
        *(_from_factor(np.column_stack([grid, np.full(length, s)]) if s else grid[:, None]) for s in LINEAR_OFFSETS),
        *(_from_gram(toeplitz(column)) for column in stationary),
        *(LMCKernel(np.zeros((length, 0)), np.full(length, level), True) for level in NOISE_LEVELS),
        _from_factor(np.ones((length, 1))),
    )


def _tall_factor(gram: np.ndarray) -> np.ndarray:
    """F (T, rank) with FFᵀ = gram up to 1e-12 of the largest variance, by Cholesky with pivoting."""
    tolerance = _TOLERANCE * float(gram.diagonal().max())
    from scipy.linalg import lapack

    lower, pivots, rank, _ = lapack.dpstrf(gram, tol=tolerance, lower=1)
    factor = np.empty((len(gram), rank))
    factor[pivots - 1] = np.tril(lower)[:, :rank]
    return factor


def _from_gram(gram: np.ndarray) -> LMCKernel:
    return LMCKernel(_tall_factor(gram), gram.diagonal().copy(), False)


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
    key = {"kind": "oracle", "version": _VERSION, "market": market, "split": split, "count": number, "seed": seed}
    key |= {**asdict(config or LMCConfig()), "budgets": [float(g) for g in turnover_l1]}
    key |= {"window": WINDOW, "risk_aversion": risk_aversion}

    def make() -> np.ndarray:
        returns = synthetic_returns(market, split, count=number, seed=seed, config=config, cache=cache)
        return np.asarray(oracle_path(returns, list(turnover_l1), risk_aversion))

    return cached_array(key, make, enabled=cache)


def _choose(name: str, value: str, table: dict[str, T]) -> T:
    validate_choice(name, value, table)
    return table[value]
