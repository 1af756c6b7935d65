"""Every strategy that has a name on the command line, with one line on what it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from time2decide.backtesting import skfolio_baselines as peers
from time2decide.backtesting.baselines import STRATEGIES
from time2decide.core.validation import InputError
from time2decide.forecasting.features import CachedFeatures
from time2decide.policy.model import PolicyStrategy, default_history, load_policy
from time2decide.simulation.engine import Strategy, validate_strategy

ORACLE = "oracle"  # knows each next return: a measure, not a strategy


@dataclass(frozen=True)
class Entry:
    """How to make a strategy and what it is."""

    make: Callable[[], Strategy]
    what: str


@cache
def shared_features() -> CachedFeatures:
    """One memory for all networks of this process: they walk over the same windows."""
    return CachedFeatures()


def learned(checkpoint: str, history: str, name: str) -> PolicyStrategy:
    """A network of a bundled name or a folder as a strategy."""
    return PolicyStrategy(load_policy(checkpoint)[0], history, name, shared_features())


_WHAT = {
    "uniform": "1/m of every asset, always",
    "lag1-oracle": "what would have been best one step ago",
    "soft-persistence": "more of what rose last, softly",
    "pto-persistence": "predict then optimise: tomorrow is like today",
    "pto-ar1": "predict then optimise, forecasts by AR(1)",
    "pto-ridge": "predict then optimise, forecasts by ridge regression",
    "averaged-oracle": "the oracle's step averaged over scenarios",
}
REGISTRY: dict[str, Entry] = {
    "time2decide": Entry(
        lambda: learned("decide", "hindsight", "time2decide"),
        "the decision network; it reads what would have been best at past steps",
    ),
    "time2decide-own": Entry(
        lambda: learned("decide", "own", "time2decide-own"), "the same network; it reads its own past weights"
    ),
    "time2decide-utility": Entry(
        lambda: learned("decide-utility", "own", "time2decide-utility"),
        "the network trained on realised utility; it reads its own past weights",
    ),
    **{name: Entry(make, _WHAT.get(name, name)) for name, make in STRATEGIES.items()},
    "inverse-volatility": Entry(peers.inverse_volatility, "skfolio: 1/volatility, refitted every 21 steps"),
    "minimum-variance": Entry(
        peers.minimum_variance, "skfolio: least variance, Ledoit–Wolf covariance, refitted every 21 steps"
    ),
    "mean-variance-shrunk": Entry(
        peers.mean_variance_shrunk, "skfolio: best ratio of shrunk mean to risk, refitted every 21 steps"
    ),
}


def choose(strategies: Sequence[str | Strategy]) -> list[Strategy | str]:
    """Strategy objects for names, and the word "oracle" for itself; names must be known and distinct."""
    if not isinstance(strategies, (list, tuple)) or not strategies:
        raise InputError(f"strategies: expected a list of names or strategies, found {strategies!r}")
    for one in strategies:
        if not isinstance(one, str):
            validate_strategy(one)
    names = [s if isinstance(s, str) else s.name for s in strategies]
    for i, name in enumerate(names):
        if isinstance(strategies[i], str) and name not in (*REGISTRY, ORACLE) and not _is_folder(name):
            known = ", ".join((*REGISTRY, ORACLE))
            raise InputError(f"strategies: expected some of {known} or folders of networks, found {name!r}")
        if name in names[:i]:
            raise InputError(f"strategies: expected distinct names, found {name!r} twice")
    return [_made(s) if isinstance(s, str) and s != ORACLE else s for s in strategies]


def _is_folder(name: str) -> bool:
    return (Path(name) / "model.safetensors").is_file()


def _made(name: str) -> Strategy:
    """The strategy of a name, or the network of a folder with the history that it was trained for."""
    if name in REGISTRY:
        return REGISTRY[name].make()
    policy, notes = load_policy(name)
    return PolicyStrategy(policy, default_history(policy, notes), name, shared_features())
