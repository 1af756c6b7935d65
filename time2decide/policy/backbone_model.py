"""The paper's decision layer on any backbone: covariance tokens and the read-out in common units on top of its tokens.

    returns (batch, window, m) → backbone → tokens of every asset and a forecast
    tokens of an asset side by side → one return token; its last weights → one allocation token
    [unless SFT] rows of the covariance → m tokens, γ and λ → two tokens, all put in front
    → joint attention → tokens in front removed → read-out in common units

`DecisionAdapter` holds all weights that are trained; a checkpoint has these alone, and names its backbone. The backbone
stays as it is. On TimePFN the paper's own frame (`paper_model.py`) goes further: allocations are channels of the
backbone and the tokens in front pass through its encoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import PretrainedModel
from time2decide.core.validation import expect, validate_fields
from time2decide.forecasting.backbones import Backbone, BackboneOutput
from time2decide.forecasting.timepfn import TimePFNConfig, TimePFNLayer, patch_positions
from time2decide.policy.readout import DecisionReadout, ReadoutConfig, common_units, typical_return_change


@dataclass(frozen=True)
class AdapterConfig:
    """Sizes and switches."""

    tokens: int  # per channel, of the backbone
    width: int  # of its tokens
    assets: int = 16  # m, the length of a covariance row
    covariance: bool = True  # with covariance tokens: Time2Decide; without: SFT
    history: int = 16  # past weights of an asset in its allocation token
    embed: int = 64
    layers: int = 2  # of joint attention
    heads: int = 4
    feedforward: int = 128
    readout: ReadoutConfig = field(default_factory=ReadoutConfig)

    def __post_init__(self) -> None:
        validate_fields(self, count="tokens width assets history embed layers heads feedforward")
        fits = self.embed % self.heads == 0 and self.embed % 4 == 0
        expect(fits, "embed", f"a multiple of heads ({self.heads}) and of 4", self.embed)


class DecisionAdapter(PretrainedModel):
    """What is trained on top of a backbone."""

    CONFIG = AdapterConfig

    def __init__(self, config: AdapterConfig) -> None:
        super().__init__()
        self.config = config
        d = config.embed
        self.returns = nn.Sequential(nn.Linear(config.tokens * config.width, d), nn.LayerNorm(d))
        self.allocations = nn.Sequential(nn.Linear(config.history, d), nn.GELU(), nn.Linear(d, d))
        self.condition = nn.ModuleList([_mlp(1, d) for _ in range(2)])
        self.covariance = _mlp(config.assets + 2, d) if config.covariance else None
        sizes = TimePFNConfig(embed=d, heads=config.heads, feedforward=config.feedforward, dropout=0.0)
        self.layers = nn.ModuleList([TimePFNLayer(sizes) for _ in range(config.layers)])
        self.readout = DecisionReadout(2 * d, config.readout)

    def forward(
        self, encoded: BackboneOutput, returns: Tensor, allocations: Tensor, gamma: Tensor, risk: Tensor
    ) -> Tensor:
        """Target weights (batch, m), from the backbone's output and histories (batch, window, m)."""
        m = returns.shape[-1]
        expect(self.covariance is None or m == self.config.assets, "returns", f"{self.config.assets} assets", m)
        past = allocations[:, -self.config.history :].mT  # (batch, m, history)
        place = patch_positions(torch.arange(m), torch.arange(3), self.config.embed).to(returns)  # (m, 3, embed)
        front = [torch.stack([self.condition[0](gamma[:, None] / 2), self.condition[1](_log(risk))], dim=1)]
        if self.covariance is not None:
            front.append(self.covariance(backbone_covariance_rows(returns)) + place[:, 0])
        assets = [self.returns(encoded.tokens.flatten(2)) + place[:, 1], self.allocations(past) + place[:, 2]]
        tokens = torch.cat([*front, *assets], dim=1)  # (batch, front + 2m, embed)
        for layer in self.layers:
            tokens = layer(tokens)
        both = torch.cat([tokens[:, -2 * m : -m], tokens[:, -m:]], dim=-1)  # (batch, m, 2 · embed)
        answer: Tensor = self.readout(encoded.forecast[:, 0], returns, allocations[:, -1], both, gamma, risk)
        return answer


class BackboneModel(nn.Module):
    """A backbone and its adapter as one decision model; only the adapter has gradients."""

    def __init__(self, backbone: Backbone, adapter: DecisionAdapter) -> None:
        super().__init__()
        sizes, own = (f"{one.tokens} tokens of width {one.width}" for one in (adapter.config, backbone))
        expect(sizes == own, "backbone", sizes, f"{own} in {backbone.name}")
        self._backbone = [backbone]  # not a submodule: it is neither trained nor saved
        self.adapter = adapter
        self.horizon = backbone.horizon

    @classmethod
    def on(cls, backbone: Backbone, *, seed: int = 0, **switches: Any) -> BackboneModel:
        """A model with a new adapter; `switches` are those of `AdapterConfig`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(backbone, DecisionAdapter(AdapterConfig(backbone.tokens, backbone.width, **switches)))

    @property
    def backbone(self) -> Backbone:
        """The frozen part."""
        return self._backbone[0]

    def forward(self, returns: Tensor, allocations: Tensor, gamma: Tensor, risk: Tensor) -> tuple[Tensor, Tensor]:
        """Forecast (batch, horizon, m) and decision (batch, 1, m) of windows (batch, window, m)."""
        encoded = self.encode(returns)
        return encoded.forecast, self.adapter(encoded, returns, allocations, gamma, risk)[:, None]

    def encode(self, returns: Tensor) -> BackboneOutput:
        """The backbone's output, which depends on the returns alone; windows that follow each other and are the same
        (one market at several budgets) are encoded once.
        """
        same = (returns[1:] == returns[:-1]).flatten(1).all(dim=1)  # (batch − 1,)
        number = torch.cat([torch.zeros(1, dtype=torch.int64), (~same).long().cumsum(0)])  # of the window to encode
        first = torch.cat([torch.ones(1, dtype=torch.bool), ~same])
        with torch.no_grad():
            encoded = self.backbone.encode(returns[first])
        return BackboneOutput(encoded.tokens[number], encoded.forecast[number])


def backbone_covariance_rows(returns: Tensor) -> Tensor:
    """Correlations of an asset, with its mean and standard deviation in typical changes, (batch, m, m + 2)."""
    centred = returns - returns.mean(dim=1, keepdim=True)
    deviation = centred.square().mean(dim=1).sqrt()  # (batch, m)
    normal = centred / (deviation[:, None] + torch.finfo(returns.dtype).tiny)
    correlation = normal.mT @ normal / returns.shape[1]
    moments = [common_units(returns.mean(dim=1), returns).asinh(), (deviation / typical_return_change(returns)).asinh()]
    return torch.cat([correlation, torch.stack(moments, dim=-1)], dim=-1)


def _log(risk: Tensor) -> Tensor:
    return (risk[:, None] + 1e-3).log10()


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.GELU(), nn.Linear(outputs, outputs), nn.LayerNorm(outputs))
