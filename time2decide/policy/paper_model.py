"""The paper's decision models, read literally: returns and past allocations in one window of 2m channels.

    returns and allocations (batch, 96, 2m) → normalised per channel → 11 patch tokens per channel
    [Time2Decide only] rows of the covariance of the normalised returns → MLP → m tokens, put in front
    → joint encoder → covariance tokens removed → two read-outs: returns and allocations, 96 steps each

The first step of the allocations is the raw decision. SFT is the same without covariance tokens; Pretrained is the
backbone itself, which forecasts allocations as it forecasts any channel. Neither knows the turnover budget, so there
is one model per budget.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import PretrainedModel
from time2decide.core.validation import InputError, expect, validate_count, validate_positive
from time2decide.forecasting.timepfn import TimePFN, TimePFNConfig, make_head, normalise, positions
from time2decide.simulation.engine import Observation


@dataclass(frozen=True)
class PaperModelConfig:
    """Sizes; the defaults are the paper's."""

    assets: int = 16  # m: the length of a covariance row, so a model with covariance tokens is for one m
    covariance: bool = True  # with covariance tokens: Time2Decide; without: SFT
    returns_scale: float = 1.0  # returns are multiplied by it before, and forecasts divided by it after, the backbone
    allocation_scale: float | None = None  # None: allocations are normalised like any channel, so an asset that was
    # not held needs an output of 100 to reach weight 1; a number: (s − 1/m)/number instead
    backbone: TimePFNConfig = field(default_factory=TimePFNConfig)

    def __post_init__(self) -> None:
        validate_count("assets", self.assets)
        validate_positive("returns_scale", self.returns_scale)
        if self.allocation_scale is not None:
            validate_positive("allocation_scale", self.allocation_scale)


class PaperModel(PretrainedModel):
    """Time2Decide, SFT and Pretrained of the paper."""

    CONFIG = PaperModelConfig

    def __init__(self, config: PaperModelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PaperModelConfig()
        self.backbone = TimePFN(config.backbone)
        self.allocation_head = make_head(config.backbone)
        d = config.backbone.embed
        self.covariance = (
            nn.Sequential(nn.Linear(config.assets, d), nn.GELU(), nn.Linear(d, d), nn.LayerNorm(d))
            if config.covariance
            else None
        )

    @classmethod
    def from_backbone(
        cls,
        backbone: TimePFN,
        *,
        assets: int = 16,
        covariance: bool = True,
        returns_scale: float = 1.0,
        allocation_scale: float | None = None,
        seed: int = 0,
    ) -> PaperModel:
        """A model that starts from a pretrained backbone; both read-outs are copies of the backbone's own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # of the covariance tokens' weights
            model = cls(PaperModelConfig(assets, covariance, returns_scale, allocation_scale, backbone.config))
        model.backbone.load_state_dict(backbone.state_dict())
        model.allocation_head = deepcopy(model.backbone.head)
        return model.eval()

    def forward(self, returns: Tensor, allocations: Tensor) -> tuple[Tensor, Tensor]:
        """Next returns and allocations, each (batch, horizon, m), of windows (batch, window, m)."""
        config = self.config
        m = returns.shape[-1]
        if returns.shape != allocations.shape or (config.covariance and m != config.assets):
            expected = f"(batch, {config.backbone.window}, {config.assets})"
            found = f"{tuple(returns.shape)} and {tuple(allocations.shape)}"
            raise InputError(f"returns, allocations: expected shape {expected}, found {found}")
        window = torch.cat([config.returns_scale * returns, allocations], dim=-1)  # (batch, window, 2m)
        normal, mean, scale = self.normalise(window, m)
        patches = self.backbone.tokens(normal)  # (batch, 2m, patches, embed)
        tokens = patches.flatten(1, 2)
        if self.covariance is not None:
            tokens = torch.cat([self.covariance_tokens(normal[..., :m]), tokens], dim=1)
        encoded = self.backbone.encode(tokens)[:, tokens.shape[1] - 2 * m * config.backbone.patches :]
        channels = encoded.view_as(patches).flatten(2)  # (batch, 2m, patches · embed)
        forecast = self.backbone.head(channels[:, :m]).mT * scale[..., :m] + mean[..., :m]
        decision = self.allocation_head(channels[:, m:]).mT * scale[..., m:] + mean[..., m:]
        return forecast / config.returns_scale, decision

    def normalise(self, window: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
        """The backbone's normalisation of (batch, window, 2m), or a fixed one of the last m channels."""
        normal, mean, scale = normalise(window, self.config.backbone.eps)
        if self.config.allocation_scale is None:
            return normal, mean, scale
        mean = torch.cat([mean[..., :m], torch.full_like(mean[..., m:], 1 / m)], dim=-1)
        scale = torch.cat([scale[..., :m], torch.full_like(scale[..., m:], self.config.allocation_scale)], dim=-1)
        return (window - mean) / scale, mean, scale

    def covariance_tokens(self, normal: Tensor) -> Tensor:
        """One token per row of the covariance of normalised returns (batch, window, m): (batch, m, embed).

        Token i has the position (channel i, one patch after the last) of the same grid as the patches.
        """
        assert self.covariance is not None
        config = self.config.backbone
        covariance = normal.mT @ normal / (normal.shape[1] - 1)  # (batch, m, m); the mean over time is 0
        rows = torch.arange(normal.shape[2], device=normal.device)
        place = positions(rows, torch.tensor([config.patches], device=normal.device), config.embed)[:, 0]
        tokens: Tensor = self.covariance(covariance) + place.to(normal.dtype)
        return tokens


@dataclass(frozen=True)
class PaperModelStrategy:
    """The raw first step of a model's allocations, from past returns and the strategy's own past allocations.

    `models` has one model per budget of the rollout, or one for all.
    """

    models: tuple[PaperModel, ...]
    name: str = "time2decide-literal"
    wants_hindsight: bool = False
    batch: int = 32  # windows at a time

    def decide(self, past: Observation) -> np.ndarray:
        series, budgets, window, m = past.allocations.shape
        expect(len(self.models) in (1, budgets), self.name, f"1 or {budgets} models", len(self.models))
        returns = torch.from_numpy(past.returns).float()
        held = torch.from_numpy(past.allocations).float()
        if len(self.models) == 1:
            every = returns[:, None].expand(series, budgets, window, m).flatten(0, 1)  # (series · budgets, window, m)
            raw = _first_step(self.models[0], every, held.flatten(0, 1), self.batch).view(series, budgets, m)
        else:
            each = [_first_step(model, returns, held[:, k], self.batch) for k, model in enumerate(self.models)]
            raw = torch.stack(each, dim=1)  # (series, budgets, m)
        return np.asarray(raw.double().numpy())


def _first_step(model: PaperModel, returns: Tensor, held: Tensor, batch: int) -> Tensor:
    model.eval()
    with torch.inference_mode():
        parts = zip(torch.split(returns, batch), torch.split(held, batch), strict=True)
        return torch.cat([model(r, s)[1][:, 0] for r, s in parts])


def pretrained_strategy(backbone: TimePFN, returns_scale: float = 1.0) -> PaperModelStrategy:
    """The backbone without fine-tuning: it forecasts the allocation channels as any others."""
    model = PaperModel.from_backbone(backbone, covariance=False, returns_scale=returns_scale)
    return PaperModelStrategy((model,), name="pretrained")
