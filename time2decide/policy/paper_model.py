"""The paper's decision model: returns and past allocations in one window of 2m channels, and covariance tokens.

    returns and allocations (batch, 96, 2m) → normalised → 11 patch tokens per channel
    [Time2Decide only] rows of the covariance of the normalised returns → MLP → m tokens, put in front
    → joint encoder → covariance tokens removed → two read-outs: returns and allocations

The first step of the allocations is the raw decision. SFT is the same without covariance tokens; Pretrained is the
backbone itself, which forecasts allocations as it forecasts any channel.

Read literally (the defaults) the model does not know the turnover budget, so there is one model per budget, and its
read-out cannot compare assets. Every repair is a switch of the configuration; `REPAIRED` has those of the published
model, and one model then serves all budgets.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import PretrainedModel
from time2decide.core.validation import InputError, expect, validate_choice, validate_fields
from time2decide.forecasting.timepfn import TimePFN, TimePFNConfig, normalise_channels, patch_positions, timepfn_head
from time2decide.policy.backbone_model import BackboneModel
from time2decide.policy.readout import DecisionReadout, ReadoutConfig, common_units, typical_return_change
from time2decide.simulation.engine import Observation

#: Bundled checkpoints: the repaired model, and its twin without covariance tokens.
PRETRAINED = {name: Path(__file__).parent / "pretrained" / name for name in ("repaired", "repaired-sft")}


@dataclass(frozen=True)
class PaperModelConfig:
    """Sizes and switches; the defaults are the paper's, read literally."""

    assets: int = 16  # m: the length of a covariance row, so a model with covariance tokens is for one m
    covariance: bool = True  # with covariance tokens: Time2Decide; without: SFT
    returns_scale: float = 1.0  # returns are multiplied by it before, and forecasts divided by it after, the backbone
    allocation_scale: float | None = None  # None: allocations are normalised like any channel, so an asset that was
    # not held needs an output of 100 to reach weight 1; a number: (s − 1/m)/number instead
    normalisation: str = "channel"  # of returns; "joint": one mean and one deviation for all return channels
    moments: bool = False  # a covariance row also has the asset's mean and standard deviation, in typical changes
    conditioned: bool = False  # γ and λ as two tokens, put in front and removed like those of the covariance
    readout: ReadoutConfig | None = None  # of allocations; None: the backbone's own head, 96 steps. Else in common
    # units, one step: see `readout.py`
    backbone: TimePFNConfig = field(default_factory=TimePFNConfig)

    def __post_init__(self) -> None:
        validate_fields(self, count="assets", positive="returns_scale allocation_scale")
        validate_choice("normalisation", self.normalisation, ("channel", "joint"))


#: The repairs of the published model, beside the sizes. The gradient of risk in the read-out is not one of them: it
#: brings second-order information past the covariance tokens, which the comparison with SFT is about.
REPAIRED: dict[str, Any] = {
    "returns_scale": 100.0,
    "allocation_scale": 0.25,
    "moments": True,
    "conditioned": True,
    "readout": ReadoutConfig(),
}


class PaperModel(PretrainedModel):
    """Time2Decide, SFT and Pretrained of the paper."""

    CONFIG = PaperModelConfig
    BUNDLED = PRETRAINED

    def __init__(self, config: PaperModelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PaperModelConfig()
        self.backbone = TimePFN(config.backbone)
        d = config.backbone.embed
        self.allocation_head: nn.Module
        if config.readout is None:
            self.allocation_head = timepfn_head(config.backbone)
        else:
            self.allocation_head = DecisionReadout(2 * config.backbone.patches * d, config.readout)
        row = config.assets + (2 if config.moments else 0)
        self.covariance = (
            nn.Sequential(nn.Linear(row, d), nn.GELU(), nn.Linear(d, d), nn.LayerNorm(d)) if config.covariance else None
        )
        self.condition = (
            nn.ModuleList([nn.Sequential(nn.Linear(1, d), nn.GELU(), nn.Linear(d, d)) for _ in range(2)])
            if config.conditioned
            else None
        )

    @property
    def horizon(self) -> int:
        """Steps forecast."""
        return self.config.backbone.horizon

    @classmethod
    def from_backbone(cls, backbone: TimePFN, *, seed: int = 0, **switches: Any) -> PaperModel:
        """A model that starts from a pretrained backbone; `switches` are those of `PaperModelConfig`.

        Both read-outs are copies of the backbone's own, if the one of allocations is the literal one.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # of the weights that the backbone does not have
            model = cls(replace(PaperModelConfig(backbone=backbone.config), **switches))
        model.backbone.load_state_dict(backbone.state_dict())
        if model.config.readout is None:
            model.allocation_head = deepcopy(model.backbone.head)
        return model.eval()

    def forward(
        self, returns: Tensor, allocations: Tensor, gamma: Tensor | None = None, risk: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Next returns (batch, horizon, m) and allocations (batch, horizon or 1, m) of windows (batch, window, m).

        γ and λ, each (batch,), are needed where the configuration has them as tokens or reads out in common units.
        """
        config = self.config
        self._validate(returns, allocations, gamma, risk)
        m = returns.shape[-1]
        window = torch.cat([config.returns_scale * returns, allocations], dim=-1)  # (batch, window, 2m)
        normal, mean, scale = self.normalise(window, m)
        patches = self.backbone.tokens(normal)  # (batch, 2m, patches, embed)
        tokens = torch.cat([*self.front_tokens(returns, normal[..., :m], gamma, risk), patches.flatten(1, 2)], dim=1)
        encoded = self.backbone.encode(tokens)[:, -2 * m * config.backbone.patches :]
        channels = encoded.view_as(patches).flatten(2)  # (batch, 2m, patches · embed)
        forecast = self.backbone.head(channels[:, :m]).mT * scale[..., :m] + mean[..., :m]
        forecast = forecast / config.returns_scale
        if isinstance(self.allocation_head, DecisionReadout):
            both = torch.cat([channels[:, :m], channels[:, m:]], dim=-1)  # (batch, m, 2 · patches · embed)
            decision = self.allocation_head(forecast[:, 0], returns, allocations[:, -1], both, gamma, risk)[:, None]
        else:
            decision = self.allocation_head(channels[:, m:]).mT * scale[..., m:] + mean[..., m:]
        return forecast, decision

    def _validate(self, returns: Tensor, allocations: Tensor, gamma: Tensor | None, risk: Tensor | None) -> None:
        config = self.config
        if returns.shape != allocations.shape or (config.covariance and returns.shape[-1] != config.assets):
            expected = f"(batch, {config.backbone.window}, {config.assets})"
            found = f"{tuple(returns.shape)} and {tuple(allocations.shape)}"
            raise InputError(f"returns, allocations: expected shape {expected}, found {found}")
        given = gamma is not None and risk is not None
        expect(given or not (config.conditioned or config.readout), "gamma, risk", "one of each per window", "none")

    def normalise(self, window: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
        """Window (batch, window, 2m) → (x − mean)/scale, mean and scale, by the rules of the configuration."""
        config = self.config
        normal, mean, scale = normalise_channels(window, config.backbone.eps)
        if config.allocation_scale is None and config.normalisation == "channel":
            return normal, mean, scale
        level, size = mean[..., :m], scale[..., :m]
        if config.normalisation == "joint":
            level = level.mean(-1, keepdim=True).expand_as(level)
            size = ((window[..., :m] - level).square().mean(dim=(1, 2), keepdim=True) + config.backbone.eps).sqrt()
            size = size.expand_as(level)
        middle, unit = mean[..., m:], scale[..., m:]
        if config.allocation_scale is not None:
            middle, unit = torch.full_like(middle, 1 / m), torch.full_like(unit, config.allocation_scale)
        mean, scale = torch.cat([level, middle], dim=-1), torch.cat([size, unit], dim=-1)
        return (window - mean) / scale, mean, scale

    def front_tokens(self, returns: Tensor, normal: Tensor, gamma: Tensor | None, risk: Tensor | None) -> list[Tensor]:
        """What is put in front of the patches, each (batch, tokens, embed): covariance rows, γ and λ."""
        found = []
        if self.covariance is not None:
            found.append(self.covariance_tokens(normal, returns))
        if self.condition is not None:
            assert gamma is not None
            assert risk is not None
            conditions = (gamma[:, None] / 2, (risk[:, None] + 1e-3).log10())
            found.append(
                torch.stack([part(value) for part, value in zip(self.condition, conditions, strict=True)], dim=1)
            )
        return found

    def covariance_tokens(self, normal: Tensor, returns: Tensor | None = None) -> Tensor:
        """One token per row of the covariance of normalised returns (batch, window, m): (batch, m, embed).

        Token i has the position (channel i, one patch after the last) of the same grid as the patches. `returns` are
        needed for moments.
        """
        assert self.covariance is not None
        config = self.config.backbone
        centred = normal - normal.mean(dim=1, keepdim=True)  # already so unless the normalisation is joint
        rows = centred.mT @ centred / (normal.shape[1] - 1)  # (batch, m, m)
        if self.config.moments:
            assert returns is not None
            deviation = returns.std(dim=1, correction=0) / typical_return_change(returns)
            moments = [common_units(returns.mean(dim=1), returns).asinh(), deviation.asinh()]
            rows = torch.cat([rows, torch.stack(moments, dim=-1)], dim=-1)  # (batch, m, m + 2)
        index = torch.arange(normal.shape[2], device=normal.device)
        place = patch_positions(index, torch.tensor([config.patches], device=normal.device), config.embed)[:, 0]
        tokens: Tensor = self.covariance(rows) + place.to(normal.dtype)
        return tokens


DecisionModel = PaperModel | BackboneModel


@dataclass(frozen=True)
class PaperModelStrategy:
    """The raw first step of a model's allocations, from past returns and the strategy's own past allocations.

    `models` has one model per budget of the rollout, or one for all. `start` is what its history begins with:
    "uniform", nothing but equal weights before the first decision; or "oracle", the oracle's (causal) allocations up
    to the step 2·window, so that the first decisions of its own are those from there on.
    """

    models: tuple[DecisionModel, ...]
    name: str = "time2decide-literal"
    start: str = "uniform"
    batch: int = 32  # windows at a time

    def __post_init__(self) -> None:
        validate_choice("start", self.start, ("uniform", "oracle"))

    @property
    def wants_hindsight(self) -> bool:
        """Only for the start."""
        return self.start == "oracle"

    def decide(self, past: Observation) -> np.ndarray:
        past = self._started(past)
        series, budgets, window, m = past.allocations.shape
        expect(len(self.models) in (1, budgets), self.name, f"1 or {budgets} models", len(self.models))
        returns = torch.from_numpy(past.returns).float()
        history = torch.from_numpy(past.allocations).float()
        gamma = torch.from_numpy(past.turnover_l1).float().repeat(series)  # (series · budgets,)
        risk = torch.full_like(gamma, past.risk_aversion)
        if len(self.models) == 1:
            every = returns[:, None].expand(series, budgets, window, m).flatten(0, 1)  # (series · budgets, window, m)
            raw = paper_model_decision(self.models[0], every, history.flatten(0, 1), gamma, risk, self.batch)
            raw = raw.view(series, budgets, m)
        else:
            each = [
                paper_model_decision(model, returns, history[:, k], gamma[k::budgets], risk[k::budgets], self.batch)
                for k, model in enumerate(self.models)
            ]
            raw = torch.stack(each, dim=1)  # (series, budgets, m)
        return np.asarray(raw.double().numpy())

    def _started(self, past: Observation) -> Observation:
        """The observation with the oracle's allocations in place of its own at the steps before 2·window."""
        window = past.allocations.shape[2]
        if self.start == "uniform" or past.step is None or past.step >= 3 * window:
            return past
        assert past.hindsight is not None
        early = (np.arange(past.step - window, past.step) < 2 * window)[:, None]  # (window, 1)
        return replace(past, allocations=np.where(early, past.hindsight, past.allocations))


def paper_model_decision(
    model: DecisionModel, returns: Tensor, history: Tensor, gamma: Tensor, risk: Tensor, batch: int = 32
) -> Tensor:
    """The raw decision (n, m) of windows (n, window, m) at γ and λ, each (n,), some windows at a time."""
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        parts = zip(*(torch.split(one, batch) for one in (returns, history, gamma, risk)), strict=True)
        found = [model(*part)[1][:, 0] for part in parts]
    model.train(was_training)
    return torch.cat(found)


def pretrained_paper_model(backbone: TimePFN, returns_scale: float = 1.0) -> PaperModelStrategy:
    """The backbone without fine-tuning: it forecasts the allocation channels as any others."""
    model = PaperModel.from_backbone(backbone, covariance=False, returns_scale=returns_scale)
    return PaperModelStrategy((model,), name="pretrained")
