"""The Bayes forecast under the LMC prior: Gaussian processes of many random kernels, averaged by evidence.

A prior-fitted network such as TimePFN learns the map from a window to E[next | window] under a prior over series.
For the LMC prior that map can be written down: draw N kernels of one channel from the prior; under each, everything
is linear algebra with weights that do not depend on the data,

    mean_k = w_kᵀ z,   w_k = K_k⁻¹ k_k,   s_k = zᵀK_k⁻¹z / T
    log evidence_k = −½ (T log s_k + log|K_k|)   (the amplitude is estimated, so that units do not matter)

and the forecast is the mean of the mixture. It is one wide layer with squared units, softmax attention over the N
kernels, and a read-out, all with fixed weights. (window, members, seed) fix every number; they are kept
in the cache, because the first making takes a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from time2decide.core.cache import cached_tensors
from time2decide.core.validation import validate_count
from time2decide.markets.synthetic import LMCConfig, lmc_channel_gram

AHEAD = 4  # steps of the longer forecast
_JITTER = 1e-4  # of the variance of the window: what float32 can resolve
_LEVEL_VARIANCE = 25.0  # of the unknown level, so that the forecast does not shrink towards the mean of the window
_NOISY_SHARE = 0.6  # of the kernels have white noise added, as the noisy market has
_NOISE_EXPONENTS = (-2.0, 1.5)  # log10 of its variance relative to the channel's
_FLOOR_WIDTH = 1.5  # eigenvalues within this factor of the smallest are taken as equal
_TEMPER = 0.5  # of the evidence: none of the N kernels is the right one, so none may win by too much
_VERSION = 2  # of the numbers in the cache
_ROWS = 512  # windows per block: bounds memory


class KernelBank:
    """N kernels of the prior for windows of T steps.

    Parameters
    ----------
    window : int
        T, the length of the windows.
    members : int
        N
    seed : int
        Of the draw of the kernels.
    ahead : int
        Steps that are forecast.
    """

    def __init__(self, window: int = 96, members: int = 256, seed: int = 1, ahead: int = AHEAD) -> None:
        validate_count("window", window, least=3)
        validate_count("members", members)
        key = {"kind": "kernel-bank", "version": _VERSION, "window": window, "members": members, "seed": seed}
        key |= {"ahead": ahead}
        with torch.inference_mode(False):  # the bank outlives its first caller, and others differentiate through it
            parts = cached_tensors(key, lambda: _weights(window, members, seed, ahead))
        self.window, self.members, self.ahead = window, members, ahead
        self.path_weights = parts["path"]  # (ahead, T, N)
        self._means: dict[tuple[tuple[int, int], ...], Tensor] = {}
        self.directions, self.ranks = parts["directions"], parts["ranks"]  # (Σ ranks, T) and (N,)
        self.floor, self.log_determinant = parts["floor"], parts["log_determinant"]

    def means(self, windows: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
        """Mean of the values a + 1 … b after standardised windows (rows, T), for each span (a, b), (rows, spans)."""
        key = tuple(spans)
        if key not in self._means:  # a policy asks for the same spans at every row
            self._means[key] = torch.stack([self.path_weights[a:b].mean(0) for a, b in key])  # (spans, T, N)
        weights = self._means[key]
        parts = []
        for z in torch.split(windows.float(), _ROWS):
            posterior = self._posterior(z)
            parts.append(torch.stack([(posterior * (z @ one)).sum(-1) for one in weights], dim=-1))
        return torch.cat(parts)

    def _posterior(self, z: Tensor) -> Tensor:
        """Weights of the kernels, (rows, N)."""
        explained = (self.directions @ z.T).square()  # (Σ ranks, rows)
        sums = torch.segment_reduce(explained, "sum", lengths=self.ranks, axis=0).T  # (rows, N)
        amplitude = (z.square().sum(-1, keepdim=True) - sums).clamp_min(1e-6) / (self.floor * self.window)
        evidence = -0.5 * (self.window * amplitude.log() + self.log_determinant)
        return torch.softmax(_TEMPER * evidence, dim=-1)


@lru_cache(maxsize=4)
def kernel_bank(window: int = 96, members: int = 256, seed: int = 1, ahead: int = AHEAD) -> KernelBank:
    """The bank of these parameters, loaded once per process."""
    return KernelBank(window, members, seed, ahead)


def _weights(window: int, members: int, seed: int, ahead: int) -> dict[str, Tensor]:
    """The fixed weights of a bank, by name."""
    gram = _random_grams(window, members, seed, ahead)  # (N, T + ahead, T + ahead)
    past, cross = gram[:, :window, :window], gram[:, :window, window:]
    values, vectors = np.linalg.eigh(past)  # (N, T) ascending, (N, T, T)
    floor, high = _split(values)
    values = np.where(high, values, floor[:, None])
    inverse = (vectors / values[:, None]) @ vectors.transpose(0, 2, 1)
    path = np.einsum("nij,njs->sin", inverse, cross, optimize=True)
    member, place = np.nonzero(high)
    made = {
        "path": path,
        "directions": vectors[member, :, place] * np.sqrt(1 - floor[member] / values[member, place])[:, None],
        "floor": floor,
        "log_determinant": np.log(values).sum(axis=1),
    }
    tensors = {name: torch.from_numpy(array.copy()).float() for name, array in made.items()}
    return tensors | {"ranks": torch.from_numpy(high.sum(axis=1))}


def _split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The floor of each spectrum (N, T) and the eigenvalues above it: the rest is as good as white noise.

    With K = floor·I + V diag(λ − floor) Vᵀ the quadratic form needs the few directions above the floor only:
    zᵀK⁻¹z = (|z|² − Σ (1 − floor/λ_i)(v_iᵀz)²) / floor.
    """
    high = values > _FLOOR_WIDTH * values[:, :1]
    high[:, -1] = True  # at least one, so that no group is empty
    floor = np.where(high, 0.0, values).sum(axis=1) / np.maximum((~high).sum(axis=1), 1)
    return np.where(floor > 0, floor, values[:, 0]), high


def _random_grams(window: int, members: int, seed: int, ahead: int) -> np.ndarray:
    """Covariances of T + ahead consecutive values of a channel with variance 1 about its mean."""
    rng = np.random.default_rng(seed)
    steps = window + ahead
    config = LMCConfig(length=max(1024, steps))
    centre = np.eye(steps) - 1 / steps
    grams: list[np.ndarray] = []
    while len(grams) < members:
        gram = lmc_channel_gram(config, steps, rng)
        variance = np.trace(centre @ gram @ centre) / steps
        if not variance > 1e-9:  # a constant
            continue
        gram /= variance
        if rng.random() < _NOISY_SHARE:
            noise = 10.0 ** rng.uniform(*_NOISE_EXPONENTS)
            gram = (gram + noise * np.eye(steps)) / (1 + noise * (1 - 1 / steps))
        grams.append(gram + _JITTER * np.eye(steps) + _LEVEL_VARIANCE)
    return np.stack(grams)
