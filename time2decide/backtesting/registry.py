"""The registry of strategies: one name each, used by the command line, experiments, reports and tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from time2decide.backtesting import baselines as rules
from time2decide.backtesting import skfolio_baselines as monthly
from time2decide.core.checkpoints import load_checkpoint
from time2decide.core.validation import InputError, expect
from time2decide.forecasting.backbones import BackboneForecaster, load_backbone
from time2decide.forecasting.simple import ar1, ridge
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.policy_config import NAMED
from time2decide.policy.market_decision import MarketStrategy, SharedReading
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.model import CONFIG_FILE, Time2Decide
from time2decide.policy.paper_model import PaperModel, PaperModelStrategy, pretrained_paper_model
from time2decide.simulation.engine import Strategy, validate_strategy

ORACLE = "oracle"  # knows each next return: a measure, not a strategy
_RETURNS_SCALE = 100.0  # of what TimePFN is given: its normalisation cannot resolve returns as they are
_PTO = rules.PredictThenOptimise
_BACKBONE = "pto:"  # before the name of a backbone
_VARIANT = re.compile(r"([\w-]+):(shrinkage|temperature|spread)=([0-9.eE+-]+)")
#: Names that are gone, and what took their place.
REPLACED_STRATEGIES = {
    **dict.fromkeys(("time2decide-own", "time2decide-utility", "paper-repaired", "soft-network"), "time2decide"),
    **dict.fromkeys(("sft", "sft-own", "paper-repaired-sft"), "time2decide-nocov"),
    "pto-network": "pto:kernel-bank:",
}
_COVARIANCES = {
    "lw": "Ledoit–Wolf covariance",
    "qis": "quadratic inverse shrinkage",
    "ewma": "EWMA covariance (half-life 63)",
    "iewma": "iterated EWMA (half-lives 63 and 125)",
}


@dataclass(frozen=True)
class Entry:
    """How to make a strategy, and one line on what it does."""

    make: Callable[[], Strategy]
    description: str


def _policy(name: str, follow: bool = True) -> MarketStrategy:
    """A named policy as a strategy, without its forecasts if they are not to be followed."""
    return MarketStrategy(MarketPolicy(NAMED[name]), name if follow else f"{name}-risk", follow)


REGISTRY: dict[str, Entry] = {
    "market": Entry(
        lambda: _policy("market"), "the default policy: risk, forecasts as far as their record goes, a prior, costs"
    ),
    "market-risk": Entry(lambda: _policy("market", follow=False), "the same without forecasts: risk, prior and costs"),
    "time2decide": Entry(
        lambda: _policy("time2decide"), "the same policy in the paper's setting: TimePFN, covariance of the window"
    ),
    "time2decide-nocov": Entry(
        lambda: _policy("time2decide-nocov"), "the same without covariance tokens: mean variance · I in their place"
    ),
    "pretrained": Entry(
        lambda: pretrained_paper_model(TimePFN.from_pretrained(), _RETURNS_SCALE),
        "TimePFN forecasts returns and allocations alike, without fine-tuning",
    ),
    "pto-timepfn": Entry(
        lambda: rules.backbone_pto(TimePFN.from_pretrained(), _RETURNS_SCALE),
        "predict then optimise, forecasts of TimePFN",
    ),
    "uniform": Entry(rules.Uniform, "1/N of every asset, always"),
    "lag1-oracle": Entry(rules.LagOneOracle, "the oracle's allocation of the step before"),
    "soft-persistence": Entry(rules.SoftForecast, "softmax of the last returns"),
    "pto-persistence": Entry(_PTO, "predict then optimise: the next return is the last one"),
    "pto-ar1": Entry(partial(_PTO, ar1, name="pto-ar1"), "predict then optimise, forecasts by AR(1)"),
    "pto-ridge": Entry(partial(_PTO, ridge, name="pto-ridge"), "predict then optimise, forecasts by ridge regression"),
    "averaged-oracle": Entry(rules.AveragedOracle, "the oracle's step averaged over scenarios"),
    "inverse-volatility": Entry(
        monthly.skfolio_inverse_volatility, "weights proportional to 1/volatility, refitted every month"
    ),
    "minimum-variance": Entry(
        monthly.skfolio_minimum_variance, "skfolio: minimum variance, Ledoit–Wolf covariance, refitted every month"
    ),
    "mean-variance-shrunk": Entry(
        monthly.skfolio_mean_variance, "skfolio: best ratio of shrunk mean to risk, refitted every month"
    ),
    "hierarchical": Entry(monthly.skfolio_hierarchical, "skfolio: hierarchical risk parity, refitted every month"),
    "risk-budgeting": Entry(monthly.skfolio_risk_budgeting, "skfolio: equal risk contributions, refitted every month"),
    **{
        f"{name}-variance-{key}": Entry(
            partial(monthly.skfolio_mean_variance_under, key, with_mean=name == "mean"),
            f"{rule}, {text}, refitted every month",
        )
        for name, rule in (("minimum", "minimum variance"), ("mean", "mean-variance at λ"))
        for key, text in _COVARIANCES.items()
        if (name, key) != ("minimum", "lw")  # that is minimum-variance
    },
    "two-scale-minvar": Entry(
        rules.TwoScaleMinimumVariance, "minimum variance every step, two-scale covariance, costs weighed"
    ),
    "pooled-rule": Entry(
        rules.PooledRule,
        "mean-variance every step, forecasts pooled over assets and attenuated by their record, costs weighed",
    ),
}


def make_strategy(name: str) -> Strategy:
    """The strategy of a name, of a folder with a policy or a model, or a variant such as ``pto-ridge:shrinkage=0.1``.

    ``pto:BACKBONE`` is predict-then-optimise with any backbone of `forecasting.backbones`: ``pto:chronos:FOLDER``.
    """
    if name in REGISTRY:
        return REGISTRY[name].make()
    if name in REPLACED_STRATEGIES:
        raise InputError(f"strategies: {name} is gone; {REPLACED_STRATEGIES[name]} took its place")
    if name.startswith(_BACKBONE):
        return _PTO(BackboneForecaster(load_backbone(name.removeprefix(_BACKBONE))), name=name)
    variant = _VARIANT.fullmatch(name)
    if variant and variant[1] in REGISTRY:
        return _variant(REGISTRY[variant[1]].make(), variant[2], variant[3], name)
    if not any((Path(name) / file).is_file() for file in ("model.safetensors", CONFIG_FILE)):
        known = ", ".join((*REGISTRY, ORACLE))
        raise InputError(f"strategies: expected some of {known} or folders of models, found {name!r}")
    return _of_folder(name)


def _of_folder(name: str) -> Strategy:
    """A policy of a configuration, or a model of the paper's architecture."""
    if (Path(name) / CONFIG_FILE).is_file():
        return Time2Decide.from_pretrained(name).strategy()
    model, _ = load_checkpoint(name, {"PaperModel": PaperModel})
    assert isinstance(model, PaperModel)
    return PaperModelStrategy((model,), name)


def _variant(strategy: Any, parameter: str, value: str, name: str) -> Strategy:
    try:
        return replace(strategy, **{parameter: float(value)}, name=name)
    except (TypeError, ValueError):
        raise InputError(f"strategies: expected a number for a parameter of the strategy, found {name!r}") from None


def make_strategies(strategies: Sequence[str | Strategy]) -> list[Strategy | str]:
    """Strategies for names, which must be known and distinct, and the word "oracle" for itself."""
    fits = isinstance(strategies, (list, tuple)) and strategies
    expect(fits, "strategies", "a list of names or strategies", repr(strategies))
    for one in strategies:
        if not isinstance(one, str):
            validate_strategy(one)
    names = [s if isinstance(s, str) else s.name for s in strategies]
    repeated = next((name for i, name in enumerate(names) if name in names[:i]), None)
    expect(repeated is None, "strategies", "distinct names", f"{repeated!r} twice")
    made = [make_strategy(s) if isinstance(s, str) and s != ORACLE else s for s in strategies]
    shared = SharedReading()
    for name, one in zip(strategies, made, strict=True):  # market and market-risk read the same rows
        if name in ("market", "market-risk") and isinstance(one, MarketStrategy):
            one.shared = shared if {"market", "market-risk"} <= set(names) else None
    return made
