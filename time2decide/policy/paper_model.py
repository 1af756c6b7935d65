"""The paper's decision model: returns and past allocations in one window of 2m channels, and covariance tokens.

    returns and allocations (batch, 96, 2m) → normalised → 11 patch tokens per channel
    [Time2Decide only] rows of the covariance of the normalised returns → MLP → m tokens, put in front
    → joint encoder → covariance tokens removed → two read-outs: returns and allocations

The first step of the allocations is the raw decision. SFT is the same without covariance tokens; Pretrained is the
backbone itself, which forecasts allocations as it forecasts any channel.

The model does not know the turnover budget, so there is one model per budget.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import PretrainedModel
from time2decide.core.validation import InputError, expect, validate_choice, validate_fields
from time2decide.forecasting.timepfn import TimePFN, TimePFNConfig, normalise_channels, patch_positions, timepfn_head
from time2decide.simulation.engine import Observation


@dataclass(frozen=True)
class PaperModelConfig:
    """Sizes and switches."""

    assets: int = 16  # m: the length of a covariance row, so a model with covariance tokens is for one m
    covariance: bool = True  # with covariance tokens: Time2Decide; without: SFT
    returns_scale: float = 1.0  # returns are multiplied by it before, and forecasts divided by it after, the backbone
    backbone: TimePFNConfig = field(default_factory=TimePFNConfig)

    def __post_init__(self) -> None:
        validate_fields(self, count="assets", positive="returns_scale")


class PaperModel(PretrainedModel):
    """Time2Decide, SFT and Pretrained of the paper."""

    CONFIG = PaperModelConfig

    def __init__(self, config: PaperModelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PaperModelConfig()
        self.backbone = TimePFN(config.backbone)
        d = config.backbone.embed
        self.allocation_head = timepfn_head(config.backbone)
        self.covariance = (
            nn.Sequential(nn.Linear(config.assets, d), nn.GELU(), nn.Linear(d, d), nn.LayerNorm(d))
            if config.covariance
            else None
        )

    @property
    def horizon(self) -> int:
        """Steps forecast."""
        return self.config.backbone.horizon

    @classmethod
    def from_backbone(cls, backbone: TimePFN, *, seed: int = 0, **switches: Any) -> PaperModel:
        """A model that starts from a pretrained backbone; `switches` are those of `PaperModelConfig`.

        Both read-outs are copies of the backbone's own.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # of the weights that the backbone does not have
            model = cls(replace(PaperModelConfig(backbone=backbone.config), **switches))
        model.backbone.load_state_dict(backbone.state_dict())
        model.allocation_head = deepcopy(model.backbone.head)
        return model.eval()

    def forward(self, returns: Tensor, allocations: Tensor) -> tuple[Tensor, Tensor]:
        """Next returns and allocations, (batch, horizon, m) each, of windows (batch, window, m)."""
        config, m = self.config, returns.shape[-1]
        if returns.shape != allocations.shape or (config.covariance and m != config.assets):
            expected = f"(batch, {config.backbone.window}, {config.assets})"
            found = f"{tuple(returns.shape)} and {tuple(allocations.shape)}"
            raise InputError(f"returns, allocations: expected shape {expected}, found {found}")
        window = torch.cat([config.returns_scale * returns, allocations], dim=-1)  # (batch, window, 2m)
        normal, mean, scale = normalise_channels(window, config.backbone.eps)
        patches = self.backbone.tokens(normal)  # (batch, 2m, patches, embed)
        tokens = patches.flatten(1, 2)
        if self.covariance is not None:
            tokens = torch.cat([self.covariance_tokens(normal[..., :m]), tokens], dim=1)
        encoded = self.backbone.encode(tokens)[:, -2 * m * config.backbone.patches :]
        channels = encoded.view_as(patches).flatten(2)  # (batch, 2m, patches · embed)
        forecast = self.backbone.head(channels[:, :m]).mT * scale[..., :m] + mean[..., :m]
        decision = self.allocation_head(channels[:, m:]).mT * scale[..., m:] + mean[..., m:]
        return forecast / config.returns_scale, decision

    def covariance_tokens(self, normal: Tensor) -> Tensor:
        """One token per row of the covariance of normalised returns (batch, window, m): (batch, m, embed).

        Token i has the position (channel i, one patch after the last) of the same grid as the patches.
        """
        assert self.covariance is not None
        config = self.config.backbone
        centred = normal - normal.mean(dim=1, keepdim=True)  # of the rounding
        rows = centred.mT @ centred / (normal.shape[1] - 1)  # (batch, m, m)
        index = torch.arange(normal.shape[2], device=normal.device)
        place = patch_positions(index, torch.tensor([config.patches], device=normal.device), config.embed)[:, 0]
        tokens: Tensor = self.covariance(rows) + place.to(normal.dtype)
        return tokens


@dataclass(frozen=True)
class PaperModelStrategy:
    """The raw first step of a model's allocations, from past returns and the strategy's own past allocations.

    `models` has one model per budget of the rollout, or one for all. `start` is what its history begins with:
    "uniform", nothing but equal weights before the first decision; or "oracle", the oracle's (causal) allocations up
    to the step 2·window, so that the first decisions of its own are those from there on.
    """

    models: tuple[PaperModel, ...]
    name: str = "paper-time2decide"
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
        if len(self.models) == 1:
            every = returns[:, None].expand(series, budgets, window, m).flatten(0, 1)  # (series · budgets, window, m)
            raw = paper_model_decision(self.models[0], every, history.flatten(0, 1), self.batch)
            raw = raw.view(series, budgets, m)
        else:
            each = [
                paper_model_decision(model, returns, history[:, k], self.batch) for k, model in enumerate(self.models)
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


def paper_model_decision(model: PaperModel, returns: Tensor, history: Tensor, batch: int = 32) -> Tensor:
    """The raw decision (n, m) of windows (n, window, m), some windows at a time."""
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        parts = zip(torch.split(returns, batch), torch.split(history, batch), strict=True)
        found = [model(*part)[1][:, 0] for part in parts]
    model.train(was_training)
    return torch.cat(found)


def pretrained_paper_model(backbone: TimePFN, returns_scale: float = 1.0) -> PaperModelStrategy:
    """The backbone without fine-tuning: it forecasts the allocation channels as any others."""
    model = PaperModel.from_backbone(backbone, covariance=False, returns_scale=returns_scale)
    return PaperModelStrategy((model,), name="pretrained")
