"""A decision read-out in common units, for any backbone that forecasts returns and gives tokens per channel.

A backbone standardises every channel, so its tokens cannot be compared between assets. This read-out is given the
forecast in the unit of returns and compares assets by differences in units of the typical one-step change u,

    z_i = (r̂_i − mean r̂)/u,   u² = mean over time and assets of (r_t − r_{t−1})²,

together with the current weights s, γ, λ and the backbone's tokens. It answers with

    ŝ = (1 − g)·softmax(log s + k) + g·softmax(e^a·z/τ + b),

where k and b (one per asset), a and g are read from all of these by a small network that is the same for all assets.
Untrained it is the rule k = b = a = 0, g = γ/2: what a budget allows to move goes to softmax(r̂/τ), the rest stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from time2decide.core.validation import validate_fields

SHARPNESS = (0.3, 1.0, 3.0, 10.0)  # c of the comparisons σ(c·(z_i − z_j))
_OWN = 8  # features of an asset: z, last return, mean, standard deviation, weight, its logarithm, γ, λ
_LEAST_WEIGHT = 1e-3  # below it a weight counts as none


@dataclass(frozen=True)
class ReadoutConfig:
    """Sizes and switches."""

    hidden: int = 64
    token_features: int = 32  # that the tokens of an asset are reduced to
    skip: bool = True  # start from the rule above; False: ŝ = softmax(b), everything learned
    temperature: float = 0.5  # τ at the start, in typical changes; learned from there
    gradient_passes: int = 0  # 0: assets are compared by r̂. Else by r̂ − 2λΣ̂s, the gradient of the utility, first at
    # the current weights, then at the mean of the answers so far: what attention over covariance tokens would compute

    def __post_init__(self) -> None:
        validate_fields(self, count="hidden token_features", natural="gradient_passes", positive="temperature")


class DecisionReadout(nn.Module):
    """The read-out; `width` is the length of the tokens of one asset side by side."""

    def __init__(self, width: int, config: ReadoutConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ReadoutConfig()
        features = _OWN + 3 * len(SHARPNESS) + config.token_features
        self.reduce = nn.Sequential(nn.Linear(width, config.token_features), nn.LayerNorm(config.token_features))
        self.own = nn.Sequential(nn.Linear(features, config.hidden), nn.GELU())
        self.mixed = nn.Sequential(nn.Linear(2 * config.hidden, config.hidden), nn.GELU())
        self.answer = nn.Linear(config.hidden, 4)  # k, b, and the parts of a and g
        self.log_temperature = nn.Parameter(torch.tensor(config.temperature).log())
        if config.skip:
            nn.init.zeros_(self.answer.weight)
            nn.init.zeros_(self.answer.bias)

    def forward(
        self, forecast: Tensor, returns: Tensor, weights: Tensor, tokens: Tensor, gamma: Tensor, risk: Tensor
    ) -> Tensor:
        """Target weights (batch, m).

        Parameters
        ----------
        forecast : (batch, m), of the next step, in the unit of returns
        returns : (batch, window, m)
        weights : (batch, m), current
        tokens : (batch, m, width), encoded
        gamma, risk : (batch,), γ and λ
        """
        reduced, point, answers = self.reduce(tokens), weights, []
        for _ in range(max(1, self.config.gradient_passes)):
            score = forecast
            if self.config.gradient_passes:
                score = forecast - 2 * risk[:, None] * marginal_variance(returns, point)
            answers.append(self._answer(common_units(score, returns), returns, weights, reduced, gamma, risk))
            point = torch.stack(answers).mean(0)
        return answers[-1]

    def _answer(
        self, z: Tensor, returns: Tensor, weights: Tensor, reduced: Tensor, gamma: Tensor, risk: Tensor
    ) -> Tensor:
        """ŝ from scores z in common units, (batch, m)."""
        features = torch.cat([compare_assets(z, weights), _describe(z, returns, weights, gamma, risk), reduced], dim=-1)
        own = self.own(features)  # (batch, m, hidden)
        everyone = own.mean(dim=1, keepdim=True).expand_as(own)
        keep, buy, sharper, more = self.answer(self.mixed(torch.cat([own, everyone], dim=-1))).unbind(-1)
        if not self.config.skip:
            return buy.softmax(-1)
        score = z * (sharper.mean(-1, keepdim=True) - self.log_temperature).exp() + buy
        moved = (gamma / 2).clamp(0.02, 0.99).logit() + more.mean(-1)
        share = moved.sigmoid()[:, None]  # (batch, 1)
        kept = ((weights + _LEAST_WEIGHT).log() + keep).softmax(-1)
        return (1 - share) * kept + share * score.softmax(-1)


def typical_return_change(returns: Tensor) -> Tensor:
    """u: root mean square one-step change of returns (batch, window, m), (batch, 1)."""
    square: Tensor = returns.diff(dim=1).square().mean(dim=(1, 2))
    return (square + torch.finfo(returns.dtype).tiny).sqrt()[:, None]


def common_units(values: Tensor, returns: Tensor) -> Tensor:
    """(values − their mean over assets)/u, (batch, m)."""
    return (values - values.mean(dim=-1, keepdim=True)) / typical_return_change(returns)


def marginal_variance(returns: Tensor, weights: Tensor) -> Tensor:
    """Σ̂s of windows (batch, window, m) at weights s (batch, m): each asset's covariance with the portfolio."""
    centred = returns - returns.mean(dim=1, keepdim=True)
    portfolio = centred @ weights[..., None]  # (batch, window, 1)
    return (centred.mT @ portfolio)[..., 0] / (returns.shape[1] - 1)


def compare_assets(z: Tensor, weights: Tensor) -> Tensor:
    """How asset i stands among the others at several sharpnesses c, (batch, m, 3·c).

    The mean of σ(c·(z_i − z_j)) over assets, the same over what is held (the share of the portfolio that i beats, so
    whether i is sold first), and softmax(c·z)_i.
    """
    parts = []
    for sharpness in SHARPNESS:
        beats = torch.sigmoid(sharpness * (z[:, :, None] - z[:, None, :]))  # (batch, i, j)
        parts += [beats.mean(-1), (beats @ weights[..., None])[..., 0], (sharpness * z).softmax(-1)]
    return torch.stack(parts, dim=-1)


def _describe(z: Tensor, returns: Tensor, weights: Tensor, gamma: Tensor, risk: Tensor) -> Tensor:
    """The asset itself: forecast, last return, mean and standard deviation in units of u, weight; γ and λ."""
    unit = typical_return_change(returns)
    deviation = returns.std(dim=1, correction=0) / unit
    own = [
        z.asinh(),
        common_units(returns[:, -1], returns).asinh(),
        common_units(returns.mean(dim=1), returns).asinh(),
        deviation.asinh(),
        weights,
        (weights + _LEAST_WEIGHT).log() / 3,
        (gamma / 2)[:, None].expand_as(weights),
        (risk + 1e-3).log10()[:, None].expand_as(weights),
    ]
    return torch.stack(own, dim=-1)
