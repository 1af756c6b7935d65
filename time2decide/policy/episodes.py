"""Training examples of the decision network: short episodes of synthetic markets with the oracle's path on them.

An episode has its own noise level, number of assets, risk aversion and turnover budgets, so that one network sees
them all. It begins with a window and some steps in which the oracle forgets its uniform start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

import numpy as np
import torch
from torch import Tensor

from time2decide.core.cache import cached_tensors
from time2decide.forecasting.features import VERSION, WindowFeatures, window_features
from time2decide.markets.covariance import rolling_covariances
from time2decide.markets.lmc import lmc_set
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW, best_oracle_path
from time2decide.markets.synthetic import MARKETS, SPLITS, synthetic_to_returns

_SEEN_MARKETS = (0.4, 0.15, 0.15)  # shares of the clean, noisy and noisy-matched market; the rest has other noise
_MOST_NOISE = 0.015
_USUAL_RISK = 0.75  # share of episodes with the paper's risk aversion; the rest is log-uniform
SEEN_RISKS = (0.01, 30.0)
_LEAST_BUDGET = 0.05
_VERSION = 1  # of the numbers
_BLOCK = 64  # windows per call of `window_features`


@dataclass(frozen=True)
class EpisodeConfig:
    """Number and shape of episodes."""

    assets: int = 16
    count: int = 1500
    steps: int = 48  # decisions per episode
    burn_in: int = 24  # steps before them in which the oracle already trades
    budgets: int = 4  # turnover budgets per episode, half of them the paper's
    series: int = 300  # of the training split that episodes are cut from
    split: str = "train"
    seed: int = 0


@dataclass(frozen=True)
class Episodes:
    """n episodes with S decisions, k budgets and m assets each.

    features : WindowFeatures of the windows before the decisions, each once
    windows : (n, S) which of them is before each decision
    returns : (n, S, m) that followed the windows
    covariance : (n, S, m, m)
    oracle : (n, k, 3 + S, m), beginning three steps before the first decision
    turnover_l1 : (n, k)
    risk_aversion : (n,)
    noise : (n,)
    """

    features: WindowFeatures
    windows: Tensor
    returns: Tensor
    covariance: Tensor
    oracle: Tensor
    turnover_l1: Tensor
    risk_aversion: Tensor
    noise: Tensor


def make_episodes(config: EpisodeConfig) -> Episodes:
    """Episodes of the configuration, kept on disk; the same configuration gives the same numbers."""

    def make() -> dict[str, Tensor]:
        made = _make(config)
        plain = {f.name: getattr(made, f.name) for f in fields(made) if f.name not in ("features", "windows")}
        return plain | {f"features/{f.name}": getattr(made.features, f.name) for f in fields(WindowFeatures)}

    tensors = cached_tensors({"kind": "episodes", "version": [_VERSION, VERSION], **asdict(config)}, make)
    parts = {name.removeprefix("features/"): tensors.pop(name) for name in list(tensors) if "/" in name}
    return Episodes(features=WindowFeatures(**parts), windows=_in_order(tensors["returns"]), **tensors)


def _in_order(returns: Tensor) -> Tensor:
    """Numbers of the windows of episodes that share none, (n, S)."""
    return torch.arange(returns[..., 0].numel()).view(returns.shape[:2])


def episode_signals(config: EpisodeConfig) -> Tensor:
    """`Episodes.returns` of the configuration without their noise, (n, S, m).

    Noise is independent of the past, so that both have the same conditional mean, and this one has less variance.
    """
    _, cut = _draw(config, _generator(config))
    return _tensor(synthetic_to_returns(cut)[:, WINDOW + config.burn_in :])


def _generator(config: EpisodeConfig) -> np.random.Generator:
    return np.random.default_rng([config.seed, config.assets, SPLITS[config.split][0]])


def _draw(config: EpisodeConfig, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noise levels (n,) and pieces of series (n, length, m)."""
    series = lmc_set(config.series, None, seed=0, first=SPLITS[config.split][0])
    length = WINDOW + config.burn_in + config.steps
    noise = _noise_levels(config.count, rng)
    return noise, np.stack([_cut(series, config.assets, length, rng) for _ in range(config.count)])


def _make(config: EpisodeConfig) -> Episodes:
    rng = _generator(config)
    noise, cut = _draw(config, rng)
    returns = synthetic_to_returns(cut, noise[:, None, None] * rng.standard_normal(cut.shape))
    low, high = np.log(SEEN_RISKS)
    usual = rng.random(config.count) < _USUAL_RISK
    risk = np.where(usual, RISK_AVERSION, np.exp(rng.uniform(low, high, config.count)))
    free = rng.uniform(_LEAST_BUDGET, 2.0, (config.count, config.budgets))
    paper = rng.choice(BUDGETS, (config.count, config.budgets))
    budgets = np.where(np.arange(config.budgets) % 2 == 0, paper, free)
    return episodes_of(returns, budgets, risk, noise, config.burn_in)


def episodes_of(
    returns: np.ndarray, budgets: np.ndarray, risk: np.ndarray, noise: np.ndarray, burn_in: int
) -> Episodes:
    """Episodes from any returns (n, window + burn_in + S, m), with budgets (n, k), risk aversion and noise (n,)."""
    covariance = rolling_covariances(returns[:, :-1], WINDOW)  # known before each step
    path = episode_oracle_paths(returns[:, WINDOW:], covariance, budgets, risk)
    first = WINDOW + burn_in
    windows = np.lib.stride_tricks.sliding_window_view(returns, WINDOW, axis=1)  # (n, starts, m, T)
    chosen = windows[:, burn_in:-1].swapaxes(-1, -2)  # (n, S, T, m)
    return Episodes(
        features=episode_features(chosen.reshape(-1, *chosen.shape[2:])),
        windows=_in_order(_tensor(returns[:, first:])),
        returns=_tensor(returns[:, first:]),
        covariance=_tensor(covariance[:, burn_in:]),
        oracle=_tensor(path[:, :, burn_in - 3 :]),
        turnover_l1=_tensor(budgets),
        risk_aversion=_tensor(risk),
        noise=_tensor(noise),
    )


def _noise_levels(count: int, rng: np.random.Generator) -> np.ndarray:
    shares = [*_SEEN_MARKETS, 1 - sum(_SEEN_MARKETS)]
    kind = rng.choice(len(shares), count, p=shares)
    known = np.array([*MARKETS.values(), 0.0])[kind]
    return np.where(kind == len(MARKETS), rng.uniform(0.0, _MOST_NOISE, count), known)


def _cut(series: np.ndarray, assets: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """A random place of a random series with random assets, (length, m); more assets than it has come from others."""
    start = int(rng.integers(0, series.shape[1] - length + 1))
    needed = -(-assets // series.shape[2])
    chosen = rng.choice(len(series), needed, replace=False)
    channels = np.concatenate([series[i, start : start + length] for i in chosen], axis=-1)
    return channels[:, rng.permutation(channels.shape[1])[:assets]]


def episode_oracle_paths(
    returns: np.ndarray, covariance: np.ndarray, budgets: np.ndarray, risk: np.ndarray
) -> np.ndarray:
    """The oracle's path from uniform, (n, k, steps, m)."""
    return best_oracle_path(returns, lambda t: 2 * risk[:, None, None] * covariance[:, t], budgets / 2)


def episode_features(windows: np.ndarray, done: Callable[[int], None] | None = None) -> WindowFeatures:
    """Features of many windows (n, T, m), a block at a time; `done` is told how many are."""
    parts = []
    for first in range(0, len(windows), _BLOCK):
        parts.append(window_features(windows[first : first + _BLOCK]))
        if done:
            done(min(first + _BLOCK, len(windows)))
    return WindowFeatures(**{f.name: torch.cat([getattr(p, f.name) for p in parts]) for f in fields(WindowFeatures)})


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).float()
