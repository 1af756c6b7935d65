"""The decision network: from the features of a window and past allocations to the expected oracle allocation.

One set of weights serves every turnover budget γ, risk aversion λ, noise level and number of assets, and permuting
the assets permutes the answer. Each asset is one token. Three things are written down rather than learned:

- Units. All returns are put on one scale by the covariance; what is left has no unit.
- Comparisons. The oracle sells the worst holdings and buys the best asset, so all that matters is who beats whom:
  sigmoid(k (g_i − g_j) / s_ij) for a few learned sharpnesses k, in place of P(r_i > r_j), with g the forecast utility
  gradient and s_ij² = v_i² + v_j² − 2 c_ij v_i v_j from the covariance of forecast errors. Token i reads row i of that
  matrix: holdings worse than i, rank, chance to be best; and attention is biased by it.
- The answer is a trade: the share f_i of each holding that is sold, and the distribution b of what is bought,
  ŝ = a ⊙ (1 − f) + b · aᵀf. It is on the simplex by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from time2decide.core.checkpoints import PretrainedModel
from time2decide.core.validation import validate_choice
from time2decide.forecasting.features import EXPERTS, WindowFeatures
from time2decide.forecasting.timepfn import gelu_mlp

#: What the model sees beside standardised windows: nothing (then it is SFT), correlations, standard deviations and
#: means, standard deviations and correlations, all three.
COVARIANCES = ("none", "correlation", "scale", "covariance", "full")
OBJECTIVES = ("oracle", "utility")
HISTORY = 3  # past allocations that are read
_CHOICE = 0.4  # in units of forecast error: κ of `PolicyOutput` where nothing can be sold; chosen on validation series


@dataclass(frozen=True)
class PolicyConfig:
    """Size of the network and what it may read."""

    width: int = 48
    layers: int = 3
    heads: int = 4
    comparisons: int = 4  # sharpness levels of the comparison features
    covariance: str = "full"  # one of COVARIANCES
    objective: str = "oracle"  # what it was trained for: E[s*], or the utility that its scores earn

    def __post_init__(self) -> None:
        validate_choice("covariance", self.covariance, COVARIANCES)
        validate_choice("objective", self.objective, OBJECTIVES)


@dataclass(frozen=True)
class PolicyInput:
    """Inputs of the network for n decisions.

    features : WindowFeatures of n windows
    allocations : (n, m, HISTORY), latest first: the oracle's past allocations or the strategy's own
    hindsight : (n,) 1 where `allocations` are the oracle's, 0 where they are the strategy's own
    turnover_l1, risk_aversion : (n,)
    """

    features: WindowFeatures
    allocations: Tensor
    hindsight: Tensor
    turnover_l1: Tensor
    risk_aversion: Tensor


@dataclass(frozen=True)
class PolicyOutput:
    """weights ŝ, the forecast of the next returns with its standard error, and scores of assets, each (n, m).

    Weights answer for the oracle. A network for utility gives scores q and `curvature` κ, (n,), instead, and the
    answer is the feasible s of greatest qᵀs − λ sᵀΣs − κ/2 ‖s‖². Both look beyond the next step, as far as γ < 2
    makes a decision last:

    - q is what an asset earns per step while it is held: the mean of the forecasts of the next step and, weighted by
      `_patience`, of the next four; and a learned correction, in units of the smaller of two: the error of a forecast
      and the differences between assets.
    - κ is the worth of a choice: what cannot be sold next time stays with the best of the holdings then, and that is
      better if there are several.
    """

    weights: Tensor
    forecast: Tensor
    deviation: Tensor
    scores: Tensor
    curvature: Tensor


class Policy(PretrainedModel):
    """The decision network of `PolicyConfig`."""

    CONFIG = PolicyConfig
    # the calibrated network, the same without knowledge of the covariance (SFT), the one trained on realised utility
    BUNDLED: ClassVar = {
        name: Path(__file__).parent / "pretrained" / name for name in ("decide", "decide-blind", "decide-utility")
    }

    def __init__(self, config: PolicyConfig | None = None, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config = config or PolicyConfig()
        d, k = config.width, config.comparisons
        inputs = (5 + EXPERTS) + 3 + HISTORY + 5 + 2 * EXPERTS + 2 * 3 * k
        self.gate = gelu_mlp(2 * EXPERTS + 2, 16, EXPERTS + 1)
        self.sharpness = nn.Parameter(torch.linspace(-1.0, 2.0, k).exp())
        self.embed = gelu_mlp(inputs, 2 * d, d)
        self.relation = nn.Linear(k + 4, config.layers * config.heads, bias=False)
        self.blocks = nn.ModuleList(_Block(d, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 3)
        self.skip = nn.Parameter(torch.tensor([0.5, 2.0]))
        _initialise(self, generator)

    def forward(self, observation: PolicyInput) -> PolicyOutput:
        """The answer to n decisions."""
        view = _View(observation, self.config.covariance)
        shares, width = self._expert_weights(view)
        forecast, deviation = (shares * view.forecasts).sum(-1), width * (shares * view.deviations).sum(-1)
        current = observation.allocations[..., 0]  # (n, m)
        gradient = forecast - view.risk
        t = _comparisons(gradient, deviation, view.innovation)  # (n, m, m)
        seen = _comparisons(view.recent[..., 0] - view.risk, deviation, view.innovation)
        wins, now = self._standing(t, current)
        _, before = self._standing(seen, observation.allocations[..., 1])
        tokens = torch.cat([self._inputs(view, observation, forecast, deviation), now, before], dim=-1)
        bias = self._bias(wins, seen, view, current)
        h = self.embed(tokens)
        for number, block in enumerate(self.blocks):
            h = block(h, bias[number])
        out = self.head(self.norm(h))
        k = self.config.comparisons
        best, worse = now[..., 2 * k + k // 2], now[..., k // 2]
        buy = torch.softmax(out[..., 0] + self.skip[0] * best * t.shape[-1], dim=-1)
        sell = torch.sigmoid(out[..., 1] + self.skip[1] * (observation.turnover_l1[:, None] / 2 - worse))
        sold = current * sell
        weights = current - sold + buy * sold.sum(-1, keepdim=True)
        expected, error = _in_returns(observation.features, shares, width)
        o, gamma = observation.features, observation.turnover_l1
        patience = _patience(gamma)[:, None]
        lasting = (expected + patience * (o.level + o.scale * o.ahead)) / (1 + patience)
        differences = lasting.std(-1, keepdim=True)  # where forecasts say nothing there is nothing to correct
        doubt = error * differences / (error + differences).clamp_min(1e-30)
        scores = lasting + _stuck(gamma)[:, None].square() / (1 + patience) * doubt * out[..., 2]
        return PolicyOutput(weights, expected, error, scores, _CHOICE * _stuck(gamma) * forecast_error_unit(o))

    def expect(self, observation: PolicyInput) -> tuple[Tensor, Tensor]:
        """The forecast of the next returns and its standard error alone, (n, m) each."""
        return _in_returns(observation.features, *self._expert_weights(_View(observation, self.config.covariance)))

    @torch.no_grad()
    def start_scores(self) -> None:
        """Set the learned correction of the scores to zero."""
        self.head.weight[2] = 0.0
        self.head.bias[2] = 0.0

    def _expert_weights(self, view: _View) -> tuple[Tensor, Tensor]:
        """Weights of the experts, (n, m, experts), and a factor for the standard error, (n, m)."""
        disagreement = view.forecasts[..., :1] - view.forecasts[..., 1:]
        features = torch.cat(
            [view.deviations.log(), view.raw_deviations.log(), torch.asinh(disagreement), view.dispersion], dim=-1
        )
        out = self.gate(features)
        shares = torch.softmax(out[..., :EXPERTS] - 2 * view.deviations.log(), dim=-1)
        return shares, out[..., EXPERTS].clamp(-3, 3).exp()

    def _standing(self, t: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
        """Comparisons at every sharpness, (n, m, m, k), and the standing of each asset in them, (n, m, 3k)."""
        m = t.shape[-1]
        logits = t[..., None] * self.sharpness.abs()  # (n, m, m, k)
        wins = torch.sigmoid(logits)
        worse = torch.einsum("nijk,nj->nik", wins, current) - 0.5 * current[..., None]
        rank = (wins.sum(2) - 0.5) / m
        best = (functional.logsigmoid(logits).sum(2) + 0.6931) / m
        return wins, torch.cat([worse, rank, best.clamp_min(-4.0)], dim=-1)

    def _inputs(self, view: _View, observation: PolicyInput, forecast: Tensor, deviation: Tensor) -> Tensor:
        """Features of each asset, (n, m, features); asinh keeps sign and order of large values."""
        own = torch.stack([forecast, view.recent[..., 0], view.recent[..., 1], view.ahead, view.risk], dim=-1)
        both = torch.cat([own, view.forecasts], dim=-1)
        relative = torch.asinh(both - both.mean(1, keepdim=True))
        scale = torch.stack([view.log_scale, view.level, deviation.log()], dim=-1)
        gamma = observation.turnover_l1
        common = torch.stack(
            [
                gamma / 2,
                gamma.clamp_min(1e-3).log(),
                observation.hindsight,
                view.risk_share,
                torch.full_like(gamma, forecast.shape[1]).log() - 2.8,
            ],
            dim=-1,
        )
        shared = common[:, None].expand(*forecast.shape, -1)  # (n, m, 5)
        experts = torch.cat([view.deviations.log(), view.raw_deviations.log()], dim=-1)
        return torch.cat(
            [relative, torch.asinh(scale), 4 * observation.allocations, shared, torch.asinh(experts)], dim=-1
        )

    def _bias(self, wins: Tensor, seen: Tensor, view: _View, current: Tensor) -> Tensor:
        """Attention biases of every layer and head, (layers, n, heads, m, m)."""
        n, m, _, _ = wins.shape
        own = torch.eye(m).expand(n, m, m)
        other = current[:, None].expand(n, m, m)
        pairs = torch.cat([wins, torch.stack([torch.tanh(seen), own, other, view.innovation], dim=-1)], dim=-1)
        weight = self.relation.weight.view(self.config.layers, self.config.heads, -1)
        return torch.einsum("nijc,lhc->lnhij", pairs, weight)


class _View:
    """The observation as a model with this knowledge of the covariance sees it, in one unit for all assets."""

    def __init__(self, observation: PolicyInput, covariance: str) -> None:
        o = observation.features
        n, m = o.level.shape
        knows_scale, knows_level = covariance in ("scale", "covariance", "full"), covariance in ("scale", "full")
        knows_correlation = covariance in ("correlation", "covariance", "full")
        scale = o.scale if knows_scale else torch.ones_like(o.scale)
        level = o.level if knows_level else torch.zeros_like(o.level)
        unit = (scale[..., None] * o.deviations).square().mean((1, 2)).sqrt()[:, None].clamp_min(1e-30)  # (n, 1)
        relative = scale / unit
        level = (level - level.mean(-1, keepdim=True)) / unit
        self.level, self.log_scale = level, relative.log()
        self.forecasts = level[..., None] + relative[..., None] * o.forecasts  # (n, m, experts)
        self.raw_deviations = o.deviations.clamp_min(1e-6)
        self.deviations = (relative[..., None] * o.deviations).clamp_min(1e-3)
        self.ahead = level + relative * o.ahead
        self.recent = level[..., None] + relative[..., None] * o.recent  # (n, m, 2)
        eye = torch.eye(m).expand(n, m, m)
        self.innovation = o.innovation if knows_correlation else eye
        correlation = o.correlation if knows_correlation else eye
        current = observation.allocations[..., 0]
        lam = observation.risk_aversion[:, None]
        risk = 2 * lam * scale * torch.einsum("nij,nj->ni", correlation, scale * current) / unit
        self.risk = risk if knows_scale else torch.zeros_like(risk)
        self.risk_share = torch.log1p(10 * self.risk.std(-1))
        self.dispersion = torch.log(self.forecasts[..., 0].std(-1) + 1e-3)[:, None, None].expand(n, m, 1)


class _Block(nn.Module):
    """Pre-norm attention with given biases, then an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = gelu_mlp(width, 2 * width, width)

    def forward(self, h: Tensor, bias: Tensor) -> Tensor:
        n, m, d = h.shape
        qkv = self.qkv(self.norm1(h)).view(n, m, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (n, heads, m, d / heads) each
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        h = h + self.out(mixed.transpose(1, 2).reshape(n, m, d))
        return h + self.mlp(self.norm2(h))


def forecast_error_unit(o: WindowFeatures) -> Tensor:
    """The size of forecast errors, as a return, (n,)."""
    return (o.scale[..., None] * o.deviations).square().mean((1, 2)).sqrt().clamp_min(1e-30)


def _stuck(turnover_l1: Tensor) -> Tensor:
    """1 − γ/2: what cannot be sold in one step; a γ above 2 means the same as 2."""
    return (1 - turnover_l1 / 2).clamp_min(0.0)


def _patience(turnover_l1: Tensor) -> Tensor:
    """The weight of the later steps beside the next one.

    If a share x = γ/2 were sold of everything, what is bought would be held for 1/x steps, and the weight would be
    (1 − x)/x. But what disappoints is sold first, and forecasts fade: (1 − x)²/x did better on validation series.
    """
    x = (turnover_l1 / 2).clamp(1e-3, 1.0)
    return (1 - x).square() / x


def _in_returns(o: WindowFeatures, shares: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Experts averaged by their shares, as returns: forecast and standard error, (n, m) each."""
    return o.level + o.scale * (shares * o.forecasts).sum(-1), o.scale * width * (shares * o.deviations).sum(-1)


def _comparisons(gradient: Tensor, deviation: Tensor, innovation: Tensor) -> Tensor:
    """(g_i − g_j) / s_ij, (n, m, m); 0 on the diagonal."""
    pair = deviation[:, :, None] * deviation[:, None]
    squares = deviation.square()
    variance = squares[:, :, None] + squares[:, None] - 2 * innovation * pair
    difference = gradient[:, :, None] - gradient[:, None]
    return (difference / variance.clamp_min(1e-4).sqrt()).clamp(-30.0, 30.0)


def _initialise(model: nn.Module, generator: torch.Generator | None) -> None:
    """Normal weights of variance 1/fan-in from the generator; what adds to a residual stream starts small."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            small = name.endswith(("out.weight", "mlp.2.weight")) or name.startswith(("head", "gate.2", "relation"))
            deviation = (0.1 if small else 1.0) / parameter.shape[1] ** 0.5
            nn.init.normal_(parameter, 0.0, deviation, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
