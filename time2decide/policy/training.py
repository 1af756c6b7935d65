"""Training of the decision network: one network on a mixture of everything, for one of two losses.

For the oracle (`policy_loss`) the target is s*_t, so that the least loss is at E[s*_t | past], the calibrated answer.
Half of the examples have the oracle's past allocations as history; the other half have the network's own, gathered by
rolling out the network from time to time, so that the histories of training are those of use. For utility
(`policy_utility_loss`) it is trained through the projection that makes its decisions feasible.

Examples are short episodes of synthetic markets with the oracle's path on them (`make_episodes`). An episode has its
own noise level, number of assets, risk aversion and turnover budgets, so that one network sees them all. It begins with
a window and some steps in which the oracle forgets its uniform start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.cache import cached_tensors
from time2decide.core.checkpoints import checkpoint_checksum
from time2decide.core.training import STATE, LoopConfig, Report, TrainingRun
from time2decide.core.validation import expect, validate_fields
from time2decide.forecasting.features import VERSION, WindowFeatures, window_features
from time2decide.markets.covariance import rolling_covariances
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW, best_oracle_path
from time2decide.markets.synthetic import LMC_VERSION, MARKETS, SPLITS, lmc_set, synthetic_to_returns
from time2decide.policy.network import HISTORY, Policy, PolicyConfig, PolicyInput, forecast_error_unit
from time2decide.qp.projections import project_portfolio

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

    tensors = cached_tensors({"kind": "episodes", "version": [_VERSION, VERSION, LMC_VERSION], **asdict(config)}, make)
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


_OWN_SHARE = 0.5  # of examples whose history is the network's own
_SETTLED = 8  # decisions of an episode before its own history no longer remembers how it was started
_FAR = 20.0  # in weights: beyond it a score is decided
_INERTIA = (0.1, 10.0)  # range of ω in `policy_utility_loss`, in units of forecast error
_PAIRS = 160_000  # of assets, in decisions that are made at once while histories are gathered: what caches hold
Place = tuple[Tensor, Tensor, Tensor]  # episode, budget and step of decisions, each (n,)


@dataclass(frozen=True)
class PolicyTraining:
    """The recipe; the defaults made the bundled checkpoint."""

    steps: int = 5_000
    batch: int = 256
    lr: float = 2e-3  # highest learning rate: linear warm-up, then a cosine down to 0
    warmup: int = 200
    weight_decay: float = 1e-3
    clip_norm: float = 1.0
    decay: float = 0.998  # of the running average of the weights, which is what is kept
    return_weight: float = 0.1  # λ_r
    groups: tuple[tuple[int, int, float], ...] = ((16, 1000, 0.7), (8, 200, 0.1), (3, 200, 0.06), (32, 120, 0.14))
    unroll: int = 6  # consecutive decisions of an example, where utility is the objective
    refresh_every: int = 500  # steps between two gatherings of own histories
    refresh_share: float = 0.3  # of the episodes that are rolled out then
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    seed: int = 0
    model: PolicyConfig = field(default_factory=PolicyConfig)
    start: str = ""  # digest of the weights that it starts from; set by `prepare_policy_training`

    def __post_init__(self) -> None:
        validate_fields(self, count="steps batch warmup refresh_every", natural="seed")
        validate_fields(self, positive="lr clip_norm", non_negative="return_weight")
        expect(self.groups, "groups", "at least one (assets, episodes, share)", "none")


#: name -> recipe: a look at whether it runs, and the one that made the bundled checkpoints.
PRESETS = {
    "smoke": PolicyTraining(
        steps=12,
        batch=16,
        warmup=4,
        groups=((4, 6, 1.0),),
        refresh_every=5,
        unroll=2,
        episode=EpisodeConfig(steps=12, burn_in=4, budgets=2, series=4),
    ),
    "cpu": PolicyTraining(),
}
#: What is changed in a recipe that starts from a trained network and trains it on utility.
UTILITY: dict[str, Any] = {
    "steps": 1_000,
    "batch": 64,
    "lr": 3e-3,
    "weight_decay": 0.0,
    "decay": 0.995,
    "unroll": 20,
    "refresh_every": 200,
}


def train_policy(
    config: PolicyTraining,
    out_dir: str | Path,
    *,
    start: Policy | None = None,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> Policy:
    """Train a network, or resume an interrupted run, and write it to `out_dir`.

    Parameters
    ----------
    out_dir : folder
        Gets ``model.safetensors`` and ``config.json``, and ``state.safetensors``, from which a run resumes.
        Belongs to one recipe.
    start : Policy, optional
        Weights to start from, of the same shape.
    report : callable, optional
        Called after every step with the steps done, the steps in all and the loss; may raise KeyboardInterrupt.
    """
    run = prepare_policy_training(config, Path(out_dir), start)
    done = run.run(report=report)
    model = run.model
    assert isinstance(model, Policy)
    made = {"recipe": run.settings["recipe"], "skipped_steps": done.skipped, "seconds": round(done.seconds)}
    model.save_pretrained(out_dir, made | (notes or {}))
    return model


def prepare_policy_training(config: PolicyTraining, folder: Path, start: Policy | None = None) -> TrainingRun:
    """A training at its first step."""
    utility = config.model.objective == "utility"
    groups = [EpisodeGroup(_examples(c, utility)) for c in episode_configs(config)]
    model = Policy(config.model, generator=torch.Generator().manual_seed(config.seed))
    if start is not None:
        shapes = [{name: weight.shape for name, weight in one.named_parameters()} for one in (model, start)]
        expect(shapes[0] == shapes[1], "start", f"a network of the size {config.model}", start.config)
        model.load_state_dict(start.state_dict())
        config = replace(
            config, start=checkpoint_checksum(start.state_dict())[:16]
        )  # a run is not resumed from other weights
    if utility:  # forecasts and features stay as they are: all weights together would fit the training series
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        if start is None or start.config.objective != "utility":
            model.start_scores()

    def loss(step: int) -> Tensor:
        rng = np.random.default_rng([config.seed, step])
        if step and step % config.refresh_every == 0:
            _refresh(run.average, groups, config, step, rng)
        return _loss(model, groups, config, step, rng)

    loop = LoopConfig.of(config, averaging=config.decay)
    kept = {str(number): group.own for number, group in enumerate(groups)}
    run = TrainingRun(model, loss, loop, state=folder / STATE, settings={"recipe": asdict(config)}, kept=kept)
    return run


def _loss(
    model: Policy, groups: list[EpisodeGroup], config: PolicyTraining, number: int, rng: np.random.Generator
) -> Tensor:
    """The loss of step `number`: examples of one group, with own histories once there are any."""
    shares = np.array([share for _, _, share in config.groups])
    group = groups[rng.choice(len(shares), p=shares / shares.sum())]
    count, k = group.data.turnover_l1.shape
    episode, budget = (torch.from_numpy(rng.integers(0, high, config.batch)) for high in (count, k))
    own = torch.from_numpy(rng.random(config.batch) < _OWN_SHARE) & (number > config.refresh_every)
    step = torch.from_numpy(rng.integers(0, group.steps, config.batch))
    if config.model.objective == "utility":
        return policy_utility_loss(
            model, group, (episode, budget, step), draw_policy_inertia(config.batch, rng), config.unroll
        )
    step = torch.where(own, step.clamp_min(min(_SETTLED, group.steps - 1)), step)
    observation = group.observation(episode, budget, step, (~own).float())
    return policy_loss(model, observation, group.data, (episode, budget, step), config.return_weight)


def _refresh(
    average: dict[str, Tensor],
    groups: list[EpisodeGroup],
    config: PolicyTraining,
    number: int,
    rng: np.random.Generator,
) -> None:
    """Gather own histories with the averaged weights, which are those that will be used."""
    model = Policy(config.model)
    model.load_state_dict(average)
    share = 1.0 if number == config.refresh_every else config.refresh_share
    for group in groups:
        count = len(group.data.turnover_l1)
        chosen = rng.choice(count, max(1, round(share * count)), replace=False)
        group.gather(model.eval(), torch.from_numpy(chosen))


def _examples(config: EpisodeConfig, utility: bool) -> Episodes:
    """Episodes; for utility with returns without noise, which teach the same with less variance."""
    data = make_episodes(config)
    return replace(data, returns=episode_signals(config)) if utility else data


def episode_configs(config: PolicyTraining) -> list[EpisodeConfig]:
    """One configuration per group."""
    return [replace(config.episode, assets=assets, count=count) for assets, count, _ in config.groups]


class EpisodeGroup:
    """Episodes with the same number of assets, and the network's own allocations on them."""

    def __init__(self, data: Episodes) -> None:
        self.data = data
        length, m = data.oracle.shape[2:]
        self.steps = length - HISTORY
        self.own = data.oracle.clone()
        stale = 0.5 * self.own[:, :, :1] + 0.5 / m  # nobody knows the oracle's path at the start
        self.own[:, :, :HISTORY] = stale

    def observation(self, episode: Tensor, budget: Tensor, step: Tensor, hindsight: Tensor) -> PolicyInput:
        """Inputs of the network at decisions (episode, budget, step), each (n,)."""
        past = step[:, None] + torch.arange(HISTORY - 1, -1, -1)  # row HISTORY + step is the decision itself
        index = episode[:, None], budget[:, None], past
        history = torch.where(hindsight[:, None, None] > 0, self.data.oracle[index], self.own[index])
        return PolicyInput(
            self.data.features[self.data.windows[episode, step]],
            history.transpose(1, 2),  # (n, m, HISTORY)
            hindsight,
            self.data.turnover_l1[episode, budget],
            self.data.risk_aversion[episode],
        )

    @torch.no_grad()
    def gather(self, model: Policy, chosen: Tensor) -> None:
        """Roll the network out on the chosen episodes and remember its weights."""
        k, m = self.data.turnover_l1.shape[1], self.own.shape[-1]
        for part in torch.split(chosen, max(_PAIRS // (k * m * m), 1)):
            episode, budget = part.repeat_interleave(k), torch.arange(k).repeat(len(part))
            for s in range(self.steps):
                step = torch.full_like(episode, s)
                observation = self.observation(episode, budget, step, torch.zeros(len(episode)))
                target = _target(model, observation, torch.tensor(_INERTIA[0]))
                weights = project_portfolio(target, observation.allocations[..., 0], observation.turnover_l1)
                self.own[episode, budget, HISTORY + s] = torch.as_tensor(weights)


def policy_loss(model: Policy, observation: PolicyInput, data: Episodes, place: Place, return_weight: float) -> Tensor:
    """Weighted ‖ŝ − s*‖² + λ_r·(r̂ − r)²/unit², the latter linear beyond 3 units as Huber has it.

    The weights make every γ and noise level count about the same.
    """
    episode, budget, step = place
    answer = model(observation)
    target = data.oracle[episode, budget, HISTORY + step]
    gamma, noise = observation.turnover_l1.clamp_min(0.25), data.noise[episode]
    weight = gamma**-1.5 / (0.5 + (noise / 0.01).clamp(max=1.0))
    decision = (weight * (answer.weights - target).square().sum(-1)).mean()
    error = (answer.forecast - data.returns[episode, step]) / forecast_error_unit(observation.features)[:, None]
    return decision + return_weight * nn.functional.huber_loss(error, torch.zeros_like(error), delta=3.0)


def policy_utility_loss(
    model: Policy,
    group: EpisodeGroup,
    place: Place,
    inertia: Tensor,
    unroll: int,
    cost: float = 0.0,
) -> Tensor:
    """Minus the utility of consecutive decisions, differentiated through the projection that makes them feasible.

    A network for utility with scores q and curvature κ moves the weights p to argmax qᵀs − 2λ pᵀΣs − κ/2 ‖s‖² −
    ω/2 ‖s − p‖², that is Π((q − 2λΣp + ωp)/(κ + ω)), with a random ω (`inertia`): small ones act like the exact
    optimum that is used later, large ones have gradients everywhere. Any other network is taken at its word, s = Π(ŝ).
    Utility is that above equal weights less `cost` times what is traded, in units of the volatility of the assets and
    of what a budget can move.
    """
    data, (episode, budget, step) = group.data, place
    first = step.clamp_max(max(group.steps - unroll, 0))
    history, total = None, torch.zeros(())
    for ahead in range(min(unroll, group.steps)):
        now = first + ahead
        observation = group.observation(episode, budget, now, torch.zeros(len(episode)))
        history = observation.allocations if history is None else history
        observation = replace(observation, allocations=history)
        current = history[..., 0]
        weights = project_portfolio(_target(model, observation, inertia), current, observation.turnover_l1)
        weights = torch.as_tensor(weights)
        earned = _utility(weights, data.returns[episode, now], data.covariance[episode, now], observation.risk_aversion)
        earned = earned - cost * (weights - current).abs().sum(-1)
        total = total - (earned / _size(observation.features.scale, observation.turnover_l1)).mean()
        history = torch.cat([weights[..., None], history[..., :-1]], dim=-1)
    return total / unroll


def draw_policy_inertia(count: int, rng: np.random.Generator) -> Tensor:
    """ω of `policy_utility_loss` in units of forecast error, log-uniform, (count, 1)."""
    low, high = np.log(_INERTIA)
    return torch.from_numpy(np.exp(rng.uniform(low, high, (count, 1)))).float()


def _target(model: Policy, observation: PolicyInput, inertia: Tensor) -> Tensor:
    """Target weights before they are projected, (n, m)."""
    answer = model(observation)
    if model.config.objective == "oracle":
        return answer.weights
    o, current = observation.features, observation.allocations[..., 0]
    risk = (
        2 * observation.risk_aversion[:, None] * o.scale * torch.einsum("nij,nj->ni", o.correlation, o.scale * current)
    )
    gradient = answer.scores - risk
    omega = inertia * forecast_error_unit(o)[:, None]
    pull = (gradient - gradient.mean(-1, keepdim=True)) / (answer.curvature[:, None] + omega)
    return pull.clamp(-_FAR, _FAR) + current * omega / (answer.curvature[:, None] + omega)


def own_rollout_utility(group: EpisodeGroup, cost: float) -> Tensor:
    """Utility as in `policy_utility_loss` of what was gathered last, mean over episodes and budgets, (S,)."""
    data = group.data
    current, weights = group.own[:, :, HISTORY - 1 : -1], group.own[:, :, HISTORY:]  # (n, k, S, m) each
    earned = _utility(weights, data.returns[:, None], data.covariance[:, None], data.risk_aversion[:, None, None])
    earned = earned - cost * (weights - current).abs().sum(-1)
    scale = data.features.scale[data.windows][:, None]  # (n, 1, S, m)
    return (earned / _size(scale, data.turnover_l1[..., None])).mean((0, 1))


def _utility(weights: Tensor, returns: Tensor, covariance: Tensor, risk_aversion: Tensor) -> Tensor:
    """(s − 1/m)ᵀr − λ sᵀΣs of weights (…, m)."""
    earned = (weights * (returns - returns.mean(-1, keepdim=True))).sum(-1)
    return earned - risk_aversion * torch.einsum("...i,...ij,...j->...", weights, covariance, weights)


def _size(scale: Tensor, turnover_l1: Tensor) -> Tensor:
    """The unit of a utility: what a budget can move, of assets with deviations `scale` (…, m)."""
    return scale.square().mean(-1).sqrt() * turnover_l1.clamp_min(0.25)
