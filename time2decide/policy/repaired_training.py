"""Training of the repaired paper model: one model for all budgets, on histories like those it will meet.

The loss is the paper's, λ_r‖r̂ − r‖² + ‖ŝ − s*‖². What a window shows as past allocations is drawn: the oracle's path
(the paper's teacher forcing), a corrupted path, or the model's own projected decisions. A pool of episodes, each one
series, one budget and some consecutive decisions, holds the latter; part of it is rolled out anew every few steps with
the averaged weights. What a step sees is a function of (seed, step) and of the pool, which the state file keeps.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from time2decide.core.checkpoints import checkpoint_checksum, load_checkpoint
from time2decide.core.training import STATE, LoopConfig, Report, TrainingRun
from time2decide.core.validation import expect, validate_choice, validate_fields, validate_positive
from time2decide.forecasting.backbones import Backbone, load_backbone
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW
from time2decide.markets.synthetic import MARKETS, LMCConfig, synthetic_oracle, synthetic_returns
from time2decide.policy.backbone_model import BackboneModel, DecisionAdapter
from time2decide.policy.paper_model import REPAIRED, DecisionModel, PaperModel, PaperModelConfig, paper_model_decision
from time2decide.policy.readout import ReadoutConfig, common_units
from time2decide.qp.projections import project_portfolio

_EXAMPLES, _EPISODES = 1, 2  # streams of random numbers
TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)  # τ that are tried, in typical changes


@dataclass(frozen=True)
class RepairedTraining:
    """The recipe; the defaults made the published rows."""

    markets: tuple[str, ...] = ("clean", "noisy-matched", "noisy")
    risks: tuple[float, ...] = (RISK_AVERSION, 10.0, 100.0)  # λ; every series is there once for each
    series: int = 100  # training series of each market
    validation: int = 4  # series of each market on which τ is chosen
    length: int = 1024
    steps: int = 3_000
    batch: int = 32
    lr: float = 5e-4  # highest rate: linear warm-up, then a cosine down to 0
    warmup: int = 50
    clip_norm: float = 1.0
    averaging: float = 0.99  # decay of the running average of the weights, which is what is kept
    return_weight: float = 300.0  # λ_r
    first_step: float = 1.0  # extra weight of the first step, which is the one that decides
    budget_power: float = 1.0  # windows are weighted by γ^−power: decisions at small γ have small errors
    corrupted: float = 0.4  # share of the windows whose history is a corrupted path of the oracle
    own: float = 0.5  # share of those whose history is the model's own, once there is one; the rest: the oracle's
    refresh_every: int = 100  # steps between two rollouts of the pool
    refresh_share: float = 0.33  # of the pool that is rolled out then
    episodes: int = 96
    episode_steps: int = 128
    seed: int = 0
    model: PaperModelConfig = field(default_factory=lambda: PaperModelConfig(**REPAIRED))  # the backbone's part is set
    start: str = ""  # digest of the backbone that it starts from; set by `prepare_repaired`

    def __post_init__(self) -> None:
        validate_fields(self, count="series validation steps batch warmup refresh_every episodes episode_steps")
        validate_fields(self, positive="lr clip_norm", non_negative="return_weight first_step budget_power")
        validate_fields(self, fraction="corrupted own refresh_share")
        expect(self.corrupted + self.own <= 1, "corrupted, own", "at most 1 in all", self.corrupted + self.own)
        for market in self.markets:
            validate_choice("markets", market, MARKETS)
        for risk in self.risks:
            validate_positive("risks", risk, allow_zero=True)
        expect(self.markets, "markets", "at least one", "none")
        expect(self.risks, "risks", "at least one", "none")


#: name -> recipe: a look at whether it runs, and the one that made the published rows.
REPAIRED_PRESETS = {
    "smoke": RepairedTraining(
        markets=("clean",),
        risks=(RISK_AVERSION,),  # larger ones load the compiled solver first
        series=2,
        validation=1,
        length=224,
        steps=6,
        batch=4,
        warmup=2,
        refresh_every=2,
        episodes=3,
        episode_steps=3,
    ),
    "cpu": RepairedTraining(),
}


@dataclass(frozen=True)
class RepairedExamples:
    """Returns (series, time, m), the oracle's path (series, budgets, time, m) and λ (series,) of all markets."""

    returns: Tensor
    oracle: Tensor
    risk: Tensor

    @classmethod
    def of(cls, config: RepairedTraining, split: str) -> RepairedExamples:
        """The series of a split of every market of the recipe."""
        count = config.series if split == "train" else config.validation
        options: dict[str, Any] = {"count": count, "seed": config.seed, "config": LMCConfig(length=config.length)}
        cells = [(market, risk) for market in config.markets for risk in config.risks]
        returns = [synthetic_returns(market, split, **options) for market, _ in cells]
        oracle = [synthetic_oracle(market, split, BUDGETS, risk_aversion=risk, **options) for market, risk in cells]
        risk = [np.full(count, risk) for _, risk in cells]
        return cls(*(torch.from_numpy(np.concatenate(parts)).float() for parts in (returns, oracle, risk)))

    def windows(self, series: Tensor, step: Tensor, before: int, after: int) -> Tensor:
        """Returns of the steps step − before … step + after − 1, (n, before + after, m)."""
        return self.returns[series[:, None], step[:, None] + torch.arange(-before, after)]

    def paths(self, series: Tensor, budget: Tensor, step: Tensor, before: int, after: int) -> Tensor:
        """The oracle's allocations of the same steps at these budgets."""
        return self.oracle[series[:, None], budget[:, None], step[:, None] + torch.arange(-before, after)]


class OwnHistories:
    """Episodes with the model's own projected decisions: the first `WINDOW` rows are what each was started from."""

    def __init__(self, config: RepairedTraining, assets: int) -> None:
        self.config = config
        self.own = torch.zeros(config.episodes, WINDOW + config.episode_steps, assets)
        self.place = torch.zeros(config.episodes, 3, dtype=torch.int64)  # series, budget, first step

    def refresh(self, model: DecisionModel, data: RepairedExamples, step: int) -> None:
        """Roll out a share of the episodes anew, all of them at first, half from uniform weights."""
        config = self.config
        rng = np.random.default_rng([config.seed, _EPISODES, step])
        share = 1.0 if step <= config.refresh_every else config.refresh_share
        chosen = torch.from_numpy(rng.permutation(config.episodes)[: max(1, round(share * config.episodes))])
        count, budgets, length, m = data.oracle.shape
        last = length - config.episode_steps - model.horizon
        series, budget = (torch.from_numpy(rng.integers(0, high, len(chosen))) for high in (count, budgets))
        first = torch.from_numpy(rng.integers(WINDOW, last + 1, len(chosen)))
        begun = corrupt_histories(data.paths(series, budget, first, WINDOW, 0), rng)
        uniform = torch.from_numpy(rng.random(len(chosen)) < 0.5)
        own = self.own[chosen]
        own[:, :WINDOW] = torch.where(uniform[:, None, None], torch.full_like(begun, 1 / m), begun)
        gamma = torch.tensor(BUDGETS)[budget]
        for k in range(config.episode_steps):
            seen = data.windows(series, first + k, WINDOW, 0)
            raw = paper_model_decision(
                model, seen, own[:, k : k + WINDOW], gamma, data.risk[series], batch=config.batch
            )
            weights = project_portfolio(raw.double().clamp(-5, 5), own[:, k + WINDOW - 1].double(), gamma.double())
            own[:, k + WINDOW] = torch.as_tensor(weights).float()
        self.own[chosen] = own
        self.place[chosen] = torch.stack([series, budget, first], dim=1)


def corrupt_histories(path: Tensor, rng: np.random.Generator) -> Tensor:
    """Histories (n, window, m) mixed with others, so that the last row no longer is the oracle's last allocation.

    (1 − α)·path + α·other, α uniform on [0, 1]; the other is uniform weights, the path of another window or the same
    path with its assets exchanged. Rows stay allocations.
    """
    n, _, m = path.shape
    others = torch.stack(
        [
            torch.full_like(path, 1 / m),
            path[torch.from_numpy(rng.permutation(n))],
            path[..., torch.from_numpy(rng.permutation(m))],
        ]
    )
    chosen = others[torch.from_numpy(rng.integers(0, len(others), n)), torch.arange(n)]
    share = torch.from_numpy(rng.random((n, 1, 1))).to(path.dtype)
    return (1 - share) * path + share * chosen


@dataclass(frozen=True)
class _Batch:
    """Windows with what follows them, (n, window + horizon, m); histories (n, window, m); targets; γ and λ (n,)."""

    returns: Tensor
    history: Tensor
    target: Tensor
    gamma: Tensor
    risk: Tensor


def draw_repaired_batch(
    config: RepairedTraining, data: RepairedExamples, histories: OwnHistories, step: int, horizon: int
) -> _Batch:
    """The examples of a step."""
    rng = np.random.default_rng([config.seed, _EXAMPLES, step])
    count, budgets, length, _ = data.oracle.shape
    n = config.batch
    series, budget = (torch.from_numpy(rng.integers(0, high, n)) for high in (count, budgets))
    at = torch.from_numpy(rng.integers(WINDOW, length - horizon + 1, n))
    kind = torch.from_numpy(rng.random(n))
    episode = torch.from_numpy(rng.integers(0, config.episodes, n))
    k = torch.from_numpy(rng.integers(0, config.episode_steps, n))
    own = (kind < config.own) & (step >= config.refresh_every)
    place = histories.place[episode]
    series, budget = torch.where(own, place[:, 0], series), torch.where(own, place[:, 1], budget)
    at = torch.where(own, place[:, 2] + k, at)
    path = data.paths(series, budget, at, WINDOW, horizon)
    shown = torch.where((kind < config.own + config.corrupted)[:, None, None], corrupt_histories(path, rng), path)[
        :, :WINDOW
    ]
    decided = histories.own[episode[:, None], k[:, None] + torch.arange(WINDOW)]
    history = torch.where(own[:, None, None], decided, shown)
    gamma = torch.tensor(BUDGETS)[budget]
    return _Batch(data.windows(series, at, WINDOW, horizon), history, path[:, WINDOW:], gamma, data.risk[series])


def repaired_loss(model: DecisionModel, batch: _Batch, config: RepairedTraining) -> Tensor:
    """λ_r‖r̂ − r‖² + w(γ)·‖ŝ − s*‖², w of mean 1 over the budgets; the decision is as long as the read-out makes it."""
    forecast, decision = model(batch.returns[:, :WINDOW], batch.history, batch.gamma, batch.risk)
    usual = torch.tensor(BUDGETS).pow(-config.budget_power).mean()
    weight = (batch.gamma.pow(-config.budget_power) / usual)[:, None, None]
    missed = weight * (decision - batch.target[:, : decision.shape[1]]).square()
    loss = missed.mean() + (config.first_step * missed[:, 0].mean() if decision.shape[1] > 1 else 0.0)
    if not config.return_weight:
        return loss
    error = (forecast - batch.returns[:, WINDOW:]).square()
    return loss + config.return_weight * (error.mean() + config.first_step * error[:, 0].mean())


def best_skip_temperature(model: DecisionModel, data: RepairedExamples, every: int = 16) -> float:
    """τ with the least error of softmax(z/τ) to the oracle at the largest budget, over windows of these series."""
    squared = torch.zeros(len(TEMPERATURES))
    gamma = torch.full((len(data.returns),), BUDGETS[-1])
    for step in range(WINDOW, data.returns.shape[1], every):
        window = data.returns[:, step - WINDOW : step]
        uniform = torch.full_like(window, 1 / window.shape[-1])
        with torch.inference_mode():
            z = common_units(model(window, uniform, gamma, data.risk)[0][:, 0], window)
        answers = torch.stack([(z / value).softmax(-1) for value in TEMPERATURES])  # (τ, series, m)
        squared += (answers - data.oracle[:, -1, step]).square().mean(dim=(1, 2))
    return TEMPERATURES[int(squared.argmin())]


def train_repaired(
    config: RepairedTraining,
    backbone: TimePFN,
    out_dir: str | Path,
    *,
    save_every: float | None = None,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> PaperModel:
    """Fine-tune `backbone` (which is left as it is) into a repaired model, or resume an interrupted run.

    The folder gets ``model.safetensors``, ``config.json`` and ``state.safetensors``; it belongs to one recipe.
    """
    run = prepare_repaired(config, backbone, Path(out_dir))
    done = run.run(save_every, report)
    model = run.model
    assert isinstance(model, PaperModel)
    made = {"recipe": run.settings["recipe"], "steps": done.step, "seconds": round(done.seconds)}
    model.save_pretrained(out_dir, made | (notes or {}))
    return model


def prepare_repaired(config: RepairedTraining, backbone: TimePFN, folder: Path) -> TrainingRun:
    """A training at its first step, τ of its skip chosen on validation series."""
    switches = {name: value for name, value in vars(config.model).items() if name != "backbone"}
    switches["assets"] = LMCConfig().channels
    model = PaperModel.from_backbone(backbone, seed=config.seed, **switches)
    if config.model.readout is not None and config.model.readout.skip:
        temperature = best_skip_temperature(model, RepairedExamples.of(config, "validation"))
        switches["readout"] = replace(config.model.readout, temperature=temperature)
        model = PaperModel.from_backbone(backbone, seed=config.seed, **switches)
    config = replace(config, model=model.config, start=checkpoint_checksum(backbone.state_dict())[:16])
    return _training_run(config, model, folder)


def _training_run(config: RepairedTraining, model: DecisionModel, folder: Path) -> TrainingRun:
    """The training of any decision model by this recipe, at its first step."""
    data = RepairedExamples.of(config, "train")
    histories = OwnHistories(config, data.returns.shape[-1])
    averaged = deepcopy(model)

    def loss(step: int) -> Tensor:
        if config.own and step and step % config.refresh_every == 0:
            averaged.load_state_dict(run.average, strict=False)
            histories.refresh(averaged, data, step)
        return repaired_loss(model, draw_repaired_batch(config, data, histories, step, model.horizon), config)

    loop = LoopConfig.of(config)
    kept = {"own": histories.own, "place": histories.place}
    run = TrainingRun(model, loss, loop, state=folder / STATE, settings={"recipe": asdict(config)}, kept=kept)
    return run


def train_adapter(
    config: RepairedTraining,
    backbone: Backbone,
    out_dir: str | Path,
    *,
    save_every: float | None = None,
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> BackboneModel:
    """Train covariance tokens and the read-out on top of any backbone, which is left as it is; resumable.

    Of the recipe's model the switch `covariance` and the read-out count; forecasts are not trained, so λ_r has no
    meaning here.
    """
    config = replace(config, return_weight=0.0, start=backbone.name)
    readout = config.model.readout or ReadoutConfig()
    model = BackboneModel.on(backbone, seed=config.seed, covariance=config.model.covariance)
    readout = replace(readout, temperature=best_skip_temperature(model, RepairedExamples.of(config, "validation")))
    model = BackboneModel.on(backbone, seed=config.seed, covariance=config.model.covariance, readout=readout)
    run = _training_run(config, model, Path(out_dir))
    done = run.run(save_every, report)
    made = {"recipe": run.settings["recipe"], "backbone": backbone.name, "steps": done.step}
    model.adapter.save_pretrained(out_dir, made | {"seconds": round(done.seconds)} | (notes or {}))
    return model.eval()


def load_backbone_model(folder: str | Path) -> BackboneModel:
    """The adapter of a folder with the backbone that its notes name."""
    adapter, notes = load_checkpoint(folder, {"DecisionAdapter": DecisionAdapter})
    assert isinstance(adapter, DecisionAdapter)
    named = isinstance(notes.get("backbone"), str)
    expect(named, "checkpoint", "the name of a backbone in its notes", f"none in {folder}")
    return BackboneModel(load_backbone(notes["backbone"]), adapter).eval()
