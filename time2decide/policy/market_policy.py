"""The policy for real markets: covariance tokens and forecasts with their record in, a portfolio problem out.

A network of some thousand weights looks at `MarketTokens` and answers with the data of one portfolio problem:

- Σ = D R D: each asset's volatility is a mixture of its volatilities at several half-lives, R a
  mixture of correlation matrices, the constant one and the identity, so that Σ is positive definite by construction;
- μ = a prior (equilibrium and equal Sharpe ratios) + forecasts, each followed with the posterior probability that it
  is the one that pays for its costs, given the records of all;
- how many days a trade lasts, over which its cost is spread.

Σ comes from the network, the same for every λ, γ and cost; μ and days are rules without trained weights.

The exact solver answers, and gives the gradient by which the network is trained. The network is
permutation-equivariant, serves any number of assets, and starts from a rule that needs no training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import PretrainedModel
from time2decide.forecasting.market_state import (
    CORRELATION_HALF_LIVES,
    EXPERTS,
    VOLATILITY_HALF_LIVES,
    MarketTokens,
    effective_state_rows,
    forecast_record_rows,
)
from time2decide.forecasting.timepfn import gelu_mlp

SEES = ("all", "correlations", "variances", "none")
_REFERENCE = 2  # index of the half-life that volatilities are compared with: 63 days
_SLOW = 4  # index of the half-life by which assets are compared: 250 days
_ODDS = 4.5  # log of the prior odds against a forecast: at 3 standard errors it is as likely luck as not
_PRIOR_LOG_ODDS = (-1.0, 0.0, 0.0, 0.0, -1.0, -1.0)  # log odds of each forecast beside those of its record
_COST_SHARE = 0.5  # the solver trades where a forecast is large, so the average forecast need not earn all of its cost
_MOST_EVIDENCE = 40.0  # standard errors
_PROVEN = 5.0  # standard errors beyond which forecasts are compared by what they earn a day
_MOST_BEYOND = 30.0  # near equals are averaged
# The rule that training starts from.
_VOLATILITY_MIX = (0.01, 0.04, 0.75, 0.10, 0.05, 0.05)
_CORRELATION_MIX = (0.02, 0.35, 0.10, 0.35, 0.15, 0.03)  # the last two: constant correlation, identity
_CAUTION = 0.5  # see `forecast_shrinkage`
_LASTS = 10.0  # days for which a forecast of a few days is worth something
_DAYS, _AT, _MOST_DAYS = 3.7, 0.375, 40.0  # days that a trade lasts at λσ = 0.375; at most
_CONSTANT_RISK = 8.0  # factor on the holding period where volatility is constant
_VARYING = 0.02  # difference in QLIKE that shows that it is not


@dataclass(frozen=True)
class MarketPolicyConfig:
    """Size of the network, what it sees, and the prior on means."""

    width: int = 16
    hidden: int = 32
    layers: int = 2
    sees: str = "all"  # second-order information: one of SEES
    equilibrium: float = 0.1  # prior Sharpe ratio a year of the equally weighted portfolio, spread by betas
    equal_sharpe: float = 0.2  # more of it, spread by volatilities: every asset has the same Sharpe ratio


@dataclass(frozen=True)
class MarketBatch:
    """Tokens of B decisions as tensors, with the risk aversion and the cost of each.

    Shapes: volatility (B, K, m), correlation (B, K', m, m), forecast (B, E, m), slope, t_value, worth, worth_error
    and pace (B, E), score (B, K), age (B, m), rows, periods_per_year and delay (B,); risk_aversion and cost (of one
    unit of turnover) (B,).
    """

    volatility: Tensor
    correlation: Tensor
    forecast: Tensor
    slope: Tensor
    t_value: Tensor
    worth: Tensor
    worth_error: Tensor
    pace: Tensor
    score: Tensor
    age: Tensor
    rows: Tensor
    periods_per_year: Tensor
    delay: Tensor
    risk_aversion: Tensor
    cost: Tensor

    @classmethod
    def of(cls, tokens: Sequence[MarketTokens], risk_aversion: float, cost: float) -> MarketBatch:
        """Tokens of one universe's size, all with one risk aversion and cost."""
        read = {field.name: np.stack([getattr(one, field.name) for one in tokens]) for field in fields(MarketTokens)}
        same = {"risk_aversion": risk_aversion, "cost": cost}
        read |= {name: np.full(len(tokens), float(value)) for name, value in same.items()}
        return cls(**{name: torch.from_numpy(np.asarray(array, dtype=np.float32)) for name, array in read.items()})


@dataclass(frozen=True)
class MarketOutput:
    """The portfolio problem that the network poses, for B decisions.

    mean : (B, m) μ, prior + signal
    prior, signal : (B, m) its two parts
    covariance : (B, m, m) Σ
    days : (B,) over which the cost of a trade is spread
    probability : (B, E) of each forecast to be the one that pays for its costs
    follow : (B, E) factor on each forecast
    correlation_mix : (B, K' + 2), volatility_mix : (B, m, K), what Σ is made of
    """

    mean: Tensor
    prior: Tensor
    signal: Tensor
    covariance: Tensor
    days: Tensor
    probability: Tensor
    follow: Tensor
    correlation_mix: Tensor
    volatility_mix: Tensor


class MarketPolicy(PretrainedModel):
    """Tokens in, a portfolio problem out."""

    CONFIG: ClassVar[type] = MarketPolicyConfig
    BUNDLED: ClassVar[dict[str, Path]] = {"market": Path(__file__).parent / "pretrained" / "market"}
    config: MarketPolicyConfig

    def __init__(self, config: MarketPolicyConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or MarketPolicyConfig()
        w, h = config.width, config.hidden
        vols, corrs = len(VOLATILITY_HALF_LIVES), len(CORRELATION_HALF_LIVES)
        asset, context = vols + corrs + 1, 2 + corrs + vols + corrs
        self.enter = gelu_mlp(asset + context, h, w)
        self.layers = nn.ModuleList(gelu_mlp(4 * w, h, w) for _ in range(config.layers))
        self.to_volatility = nn.Linear(w, vols)
        self.to_market = gelu_mlp(w + context, h, corrs + 2)
        with torch.no_grad():  # the untrained network is the rule
            last = self.to_market[-1]
            assert isinstance(last, nn.Linear)
            self.to_volatility.weight.zero_()
            last.weight.zero_()
            self.to_volatility.bias.copy_(torch.tensor(_VOLATILITY_MIX).log())
            last.bias.copy_(torch.tensor(_CORRELATION_MIX).log())

    def forward(self, batch: MarketBatch) -> MarketOutput:
        volatility, correlation = self._seen(batch)
        context = _context(batch, volatility, correlation)
        h = self.enter(torch.cat([_asset_features(batch, volatility, correlation), _repeat(context, volatility)], -1))
        for layer in self.layers:
            h = h + layer(torch.cat([h, *_attend(correlation, h), _repeat(h.mean(1), volatility)], -1))
        volatility_mix = self.to_volatility(h).softmax(-1)  # (B, m, K)
        mix = self.to_market(torch.cat([h.mean(1), context], -1)).softmax(-1)
        sigma = (volatility_mix * volatility.log().transpose(1, 2)).sum(-1).exp()  # (B, m)
        covariance = _mixed(correlation, mix) * sigma[:, :, None] * sigma[:, None, :]
        probability = forecast_posterior(batch)
        followed = probability * forecast_shrinkage(batch)
        days = holding_days(batch, followed.sum(-1))
        fading = (_LASTS / days).clamp_max(1.0)[:, None]  # of a forecast's worth, over the days that a trade lasts
        follow = followed * batch.slope.clamp(0.0, 1.2) * fading
        signal = (follow[..., None] * batch.forecast).sum(1)
        prior = self._prior_mean(covariance, sigma) / batch.periods_per_year.sqrt()[:, None]
        return MarketOutput(prior + signal, prior, signal, covariance, days, probability, follow, mix, volatility_mix)

    def _seen(self, batch: MarketBatch) -> tuple[Tensor, Tensor]:
        """The second-order information that the configuration lets through."""
        volatility, correlation = batch.volatility.clamp_min(1e-6), batch.correlation
        if self.config.sees in ("correlations", "none"):  # every asset has the typical volatility
            volatility = volatility.log().mean(-1, keepdim=True).exp().expand_as(volatility)
        if self.config.sees in ("variances", "none"):
            correlation = torch.eye(correlation.shape[-1]).expand_as(correlation)
        return volatility, correlation

    def _prior_mean(self, covariance: Tensor, sigma: Tensor) -> Tensor:
        """Means a year^½ under which 1/N is efficient, plus the same Sharpe ratio for every asset, (B, m).

        Each part gives the equally weighted portfolio its Sharpe ratio; diversification does not multiply it.
        """
        beside = covariance.mean(-1)  # covariance with the equally weighted portfolio
        risk = beside.mean(-1, keepdim=True).clamp_min(1e-12).sqrt()
        equal = sigma * risk / sigma.mean(-1, keepdim=True)
        return self.config.equilibrium * beside / risk + self.config.equal_sharpe * equal


def _net_evidence(batch: MarketBatch) -> Tensor:
    """Gain of each forecast per unit traded beyond half the cost, in standard errors, (B, E)."""
    net = batch.worth - _COST_SHARE * batch.cost[:, None]
    return (net / batch.worth_error.clamp_min(1e-9)).clamp(-_MOST_EVIDENCE, _MOST_EVIDENCE)


def forecast_posterior(batch: MarketBatch) -> Tensor:
    """Probability of each forecast to be the one that pays for its costs, (B, E); the rest is that none does.

    Forecasts have log odds ½ e² (less 1 for some) with e their net evidence, none has 4.5: at three standard errors
    a forecast is as likely luck as not. As probabilities they do not count the same effect twice. Evidence beyond
    five standard errors counts for each in proportion to its net gain per day: of two that surely pay, the better
    one is followed.
    """
    evidence = _net_evidence(batch).clamp_min(0.0)
    gain = ((batch.worth - _COST_SHARE * batch.cost[:, None]) * batch.pace).clamp_min(0.0)
    beyond = (evidence.max(-1, keepdim=True).values ** 2 - _PROVEN**2).clamp(0.0, _MOST_BEYOND) / 2
    share = gain / gain.max(-1, keepdim=True).values.clamp_min(1e-12)
    odds = evidence.clamp_max(_PROVEN) ** 2 / 2 + share * beyond + torch.tensor(_PRIOR_LOG_ODDS)
    none = torch.full_like(odds[:, :1], _ODDS)
    return torch.cat([none, odds], -1).softmax(-1)[:, 1:]


def forecast_shrinkage(batch: MarketBatch) -> Tensor:
    """IC² / (IC² + (c λσ)²): shrinkage factor of each forecast, (B, E).

    c goes from 0.5 at small λσ to 1 at λσ ≥ 0.35: c² = 0.25 min(1 + (λσ/0.2)², 4).

    IC is the information coefficient so far, the correlation of a forecast with the outcome. Following a forecast
    concentrates the portfolio in assets that have just moved, which is riskier than any covariance shows. Strong
    forecasts are worth that at every λ, weak ones at small λ only.
    """
    m = batch.volatility.shape[-1]
    typical = batch.volatility[:, _REFERENCE].clamp_min(1e-6).log().mean(-1).exp()
    pairs = m * forecast_record_rows(batch.rows)  # (B,)
    squared = batch.t_value**2 * torch.tensor(EXPERTS).float() / pairs[:, None]
    relative_risk = batch.risk_aversion * typical
    caution = _CAUTION * relative_risk * (1 + (relative_risk / 0.2) ** 2).clamp_max(4.0).sqrt()
    return squared / (squared + caution[:, None] ** 2 + 1e-12)


def holding_days(batch: MarketBatch, followed: Tensor) -> Tensor:
    """Days over which the cost of a trade is spread, (B,).

    3.7 · 0.375/(λσ), at most 40; with the third root above λσ = 0.375. At small λσ rebalancing is rare, so
    that a trade lasts long: in the theory of small proportional costs the band in which nothing is traded is the wider
    the smaller λσ². Where volatility is constant a trade lasts eight times longer; the volatility of 1000
    days then predicts no worse than that of 63. `followed` in [0, 1] is the share of forecasts: as far as they are
    followed, a trade lasts no longer than they do.
    """
    typical = batch.volatility[:, _REFERENCE].clamp_min(1e-6).log().mean(-1).exp()
    relative_risk = (batch.risk_aversion * typical / _AT).clamp_min(1e-6)
    relative_risk = torch.where(relative_risk < 1, relative_risk, relative_risk ** (1 / 3))
    varying = ((batch.score[:, -1] - batch.score[:, _REFERENCE]) / _VARYING).clamp(0.0, 1.0)
    days = (_DAYS / relative_risk).clamp_max(_MOST_DAYS).log() + (1 - varying) * math.log(_CONSTANT_RISK)
    days = days + followed * (math.log(_LASTS) - days).clamp_max(0.0)
    return days.clamp_min(0.0).minimum(batch.periods_per_year.log().clamp_min(0.0)).exp()


def _repeat(context: Tensor, volatility: Tensor) -> Tensor:
    """(B, F) for every asset, (B, m, F)."""
    return context[:, None].expand(-1, volatility.shape[-1], -1)


def _attend(correlation: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Linear attention of the assets to the rows of the fastest and the slowest correlation matrix, (B, m, w) each."""
    fast, slow = (correlation[:, k] / correlation[:, k].abs().sum(-1, keepdim=True) for k in (0, -1))
    return fast @ h, slow @ h


def _mixed(correlation: Tensor, mix: Tensor) -> Tensor:
    """Σ_k w_k R_k with the constant correlation and the identity last, (B, m, m)."""
    m = correlation.shape[-1]
    one = torch.eye(m)
    mean = ((correlation[:, -2].sum((-2, -1)) - m) / max(m * (m - 1), 1)).clamp(0.0, 0.999)[:, None, None]
    parts = torch.cat([correlation, (mean + (1 - mean) * one)[:, None], one.expand(len(mix), 1, m, m)], 1)
    return (mix[:, :, None, None] * parts).sum(1)


def _asset_features(batch: MarketBatch, volatility: Tensor, correlation: Tensor) -> Tensor:
    """Features of each asset, (B, m, K + K' + 1)."""
    logs = volatility.log()
    faster = [logs[:, k] - logs[:, _REFERENCE] for k in range(logs.shape[1]) if k != _REFERENCE]
    level = logs[:, _SLOW] - logs[:, _SLOW].mean(-1, keepdim=True)
    beside = correlation.mean(-1).unbind(1)
    age = (batch.age.clamp_min(1.0) / batch.periods_per_year[:, None]).log()
    return torch.stack([*faster, level, *beside, age], -1)


def _context(batch: MarketBatch, volatility: Tensor, correlation: Tensor) -> Tensor:
    """Features of the market, (B, F); without a unit.

    Nothing of λ, γ and costs: Σ is an estimate, the same for every decision made from it.
    """
    m = volatility.shape[-1]
    typical = volatility[:, _REFERENCE].log().mean(-1).exp()  # (B,)
    rows = batch.rows.double().numpy()
    effective = effective_state_rows(rows[:, None], np.array(CORRELATION_HALF_LIVES))  # (B, K')
    concentration = (m / torch.from_numpy(effective).float()).log() / 2
    numbers = [torch.full_like(typical, math.log(m) / 3), (batch.rows / batch.periods_per_year).log()]
    scores = 5 * batch.score.clamp(0.0, 0.3)
    return torch.cat([torch.stack(numbers, -1), concentration, scores, correlation.mean((-2, -1))], -1)
