"""The registry of strategies: one name each, used by the command line, experiments, reports and tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from time2decide.backtesting import baselines as rules
from time2decide.backtesting import skfolio_baselines as monthly
from time2decide.core.checkpoints import load_checkpoint
from time2decide.core.validation import InputError, expect
from time2decide.forecasting.backbones import BackboneForecaster, load_backbone
from time2decide.forecasting.features import CachedFeatures
from time2decide.forecasting.simple import ar1, ridge
from time2decide.forecasting.timepfn import TimePFN
from time2decide.policy.backbone_model import DecisionAdapter
from time2decide.policy.market_decision import MarketStrategy, SharedAnswers
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.model import NetworkForecast, PolicyStrategy, default_policy_history, load_policy
from time2decide.policy.network import Policy
from time2decide.policy.paper_model import PaperModel, PaperModelStrategy, pretrained_paper_model
from time2decide.policy.repaired_training import load_backbone_model
from time2decide.simulation.engine import Strategy, validate_strategy

ORACLE = "oracle"  # knows each next return: a measure, not a strategy
_RETURNS_SCALE = 100.0  # of what TimePFN is given: its normalisation cannot resolve returns as they are
_PTO = rules.PredictThenOptimise
_BACKBONE = "pto:"  # before the name of a backbone
#: Strategy -> bundled model of the paper's architecture.
PAPER_MODELS = {"paper-repaired": "repaired", "paper-repaired-sft": "repaired-sft"}
_VARIANT = re.compile(r"([\w-]+):(shrinkage|temperature|spread)=([0-9.eE+-]+)")
#: Strategy -> bundled checkpoint of our network, the history that it reads, and what it is.
_NETWORKS = {
    "time2decide": ("decide", "hindsight", "the decision network; it reads the oracle's past allocations"),
    "time2decide-own": ("decide", "own", "the same network; it reads its own past weights"),
    "time2decide-utility": (
        "decide-utility",
        "own",
        "the network trained on realised utility; it reads its own past weights",
    ),
    "sft": (
        "decide-blind",
        "hindsight",
        "the decision network without covariance tokens; it reads the oracle's past allocations",
    ),
    "sft-own": ("decide-blind", "own", "the same without covariance tokens, on its own past weights"),
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


@cache
def _shared_features() -> CachedFeatures:
    """One cache for all networks of this process: they read the same windows."""
    return CachedFeatures()


def network_strategy(checkpoint: str, history: str, name: str) -> PolicyStrategy:
    """A network of a bundled name or a folder as a strategy."""
    return PolicyStrategy(load_policy(checkpoint)[0], history, name, _shared_features())


def _network_forecast() -> NetworkForecast:
    return NetworkForecast(load_policy("decide")[0], _shared_features())


def _market(follow: bool = True, name: str = "market") -> MarketStrategy:
    """The bundled market policy as a strategy."""
    return MarketStrategy(MarketPolicy.from_pretrained(), name, follow)


REGISTRY: dict[str, Entry] = {
    "market": Entry(_market, "the market policy: covariances, forecasts by their record, and costs, for real returns"),
    "market-risk": Entry(lambda: _market(False, "market-risk"), "the market policy without forecasts: risk alone"),
    **{
        name: Entry(partial(network_strategy, checkpoint, history, name), text)
        for name, (checkpoint, history, text) in _NETWORKS.items()
    },
    "pto-network": Entry(
        lambda: _PTO(_network_forecast(), name="pto-network"),
        "predict then optimise, forecasts of the decision network",
    ),
    "soft-network": Entry(
        lambda: rules.SoftForecast(_network_forecast(), name="soft-network"),
        "softmax of the decision network's forecasts",
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
    """The strategy of a name, of a folder with a network, or a variant such as ``pto-ridge:shrinkage=0.1``.

    ``pto:BACKBONE`` is predict-then-optimise with any backbone of `forecasting.backbones`: ``pto:chronos:FOLDER``. The
    bundled model of the paper's architecture, ``paper-repaired``, is for 16 assets.
    """
    if name in REGISTRY:
        return REGISTRY[name].make()
    if name in PAPER_MODELS:
        return PaperModelStrategy((PaperModel.from_pretrained(PAPER_MODELS[name]),), name)
    if name.startswith(_BACKBONE):
        return _PTO(BackboneForecaster(load_backbone(name.removeprefix(_BACKBONE))), name=name)
    variant = _VARIANT.fullmatch(name)
    if variant and variant[1] in REGISTRY:
        return _variant(REGISTRY[variant[1]].make(), variant[2], variant[3], name)
    if not (Path(name) / "model.safetensors").is_file():
        known = ", ".join((*REGISTRY, ORACLE))
        raise InputError(f"strategies: expected some of {known} or folders of networks, found {name!r}")
    return _of_folder(name)


def _of_folder(name: str) -> Strategy:
    """A network of ours, a model of the paper's architecture, or a decision layer on another backbone."""
    kinds = (MarketPolicy, Policy, PaperModel, DecisionAdapter)
    model, notes = load_checkpoint(name, {kind.__name__: kind for kind in kinds})
    if isinstance(model, MarketPolicy):
        return MarketStrategy(model, name)
    if isinstance(model, Policy):
        return PolicyStrategy(model, default_policy_history(model, notes), name, _shared_features())
    return PaperModelStrategy((model if isinstance(model, PaperModel) else load_backbone_model(name),), name)


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
    shared = SharedAnswers()
    for name, one in zip(strategies, made, strict=True):  # market and market-risk ask the same network
        if isinstance(name, str) and name in REGISTRY and isinstance(one, MarketStrategy):
            one.shared = shared if {"market", "market-risk"} <= set(names) else None
    return made
