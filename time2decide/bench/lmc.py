"""LMC series against the route through scikit-learn's Gaussian processes, per series."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import reduce
from statistics import median
from typing import Any

import numpy as np

from time2decide.bench.timing import interleaved, one_thread, ratio
from time2decide.markets.lmc import (
    LINEAR_OFFSETS,
    MIXTURES,
    NOISE_LEVELS,
    PERIODS,
    SMOOTH_SCALES,
    LMCConfig,
    kernel_bank,
    lmc_series,
    lmc_set,
)


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """Seconds per series of 16 × 1024 by both routes, and the time of a whole data set."""
    config = LMCConfig(length=128) if quick else LMCConfig()
    each = 1 if quick else 2
    kernel_bank(config.length)  # made once per process
    peers: dict[str, Callable[[], object]] = {
        "ours": lambda: [lmc_series(config, 0, i) for i in range(each)],
        "sklearn": lambda: [sklearn_series(config, 0, i) for i in range(each)],
    }
    with one_thread():
        times = interleaved(peers, rounds=1 if quick else 3)
    count = 4 if quick else 330
    start = time.perf_counter()
    lmc_set(count, config, cache=False)
    whole = time.perf_counter() - start
    return [
        {
            "compared": f"LMC series of {config.channels} × {config.length}",
            "ours_s": median(times["ours"]) / each,
            "sklearn_s": median(times["sklearn"]) / each,
            "ratio": ratio(times, "sklearn", "ours"),
            "series": count,
            "seconds": whole,
        }
    ]


def sklearn_series(config: LMCConfig, seed: int, index: int) -> np.ndarray:
    """The same distribution by composed scikit-learn kernels and `GaussianProcessRegressor.sample_y`."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process import kernels as k

    rng = np.random.default_rng([seed, index])
    bank = [
        *(k.ExpSineSquared(periodicity=p / config.length) for p in PERIODS),
        *(k.DotProduct(sigma_0=s) for s in LINEAR_OFFSETS),
        *(k.RBF(length_scale=s) for s in SMOOTH_SCALES),
        *(k.RationalQuadratic(alpha=a) for a in MIXTURES),
        *(k.WhiteKernel(noise_level=v) for v in NOISE_LEVELS),
        k.ConstantKernel(),
    ]
    grid = np.linspace(0, 1, config.length)[:, None]
    latent = np.empty((config.length, config.channels))
    for j in range(config.channels):
        size = int(rng.integers(1, config.most_kernels + 1))
        chosen = [bank[int(i)] for i in rng.integers(0, len(bank), size)]
        kernel = reduce(lambda a, b: a + b if rng.random() < 0.5 else a * b, chosen)
        process = GaussianProcessRegressor(kernel=kernel, optimizer=None)
        latent[:, j] = process.sample_y(grid, random_state=int(rng.integers(2**31)))[:, 0]
    concentration = rng.uniform(config.dirichlet_min, config.dirichlet_max)
    weights = rng.dirichlet(np.full(config.channels, concentration), size=config.channels)
    return np.asarray(latent @ weights.T)
