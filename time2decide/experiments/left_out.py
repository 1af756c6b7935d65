"""The market policy on universes that it was not trained on, and what its second-order information is worth.

For every universe the policy is trained on the prior of markets and on all other universes, four times: with all of
its covariance tokens, with correlations only, with variances only, and without. Each is run walk-forward on it by
the protocol of `real-markets` at γ = 0.1 and 10 basis points, beside minimum variance with QIS and IEWMA
covariances.
Universes are those of `real-markets`, assets with gaps left out.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np

from time2decide.backtesting.registry import make_strategy
from time2decide.core.table import Table
from time2decide.experiments.real_markets import FIRST, sources
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped
from time2decide.markets.tables import complete_returns
from time2decide.policy.market_policy import SEES, MarketPolicyConfig
from time2decide.policy.market_training import (
    PRESETS,
    MarketTraining,
    TrainingMarket,
    policy_path,
    real_markets,
    trace,
    train_market_policy,
)
from time2decide.simulation.engine import rollout
from time2decide.simulation.metrics import PairedBootstrap, net_returns, realised_utility

_BUDGET, _COST_BPS = 0.1, 10.0
_RISKS = (1.0, 5.0, 25.0)
_BASELINES = ("uniform", "minimum-variance", "minimum-variance-qis", "minimum-variance-iewma", "pooled-rule")
_NOTHING = "market, none"
_DRAWS = 200
_VERSION = 2  # of what the network sees; rows of earlier versions stay in the store


_load = lru_cache(maxsize=8)(complete_returns)


@lru_cache(maxsize=8)
def _traced(name: str, source: str, training: MarketTraining) -> list[TrainingMarket]:
    """What networks train on in a universe: made once for all that do; drawn by its name, wherever the file is."""
    return real_markets(name, _load(source)[0], training)


def tasks(preset: str) -> list[Config]:
    """One task per universe that is left out and kind of second-order information, and one for the baselines."""
    names, training = sorted(sources()), asdict(PRESETS[preset])
    rows = FIRST + 40 if preset == "smoke" else None
    return [
        {
            "universe": name,
            "trained_on": [o for o in names if o != name],
            "rows": rows,
            "sees": sees,
            "version": _VERSION,
            **training,
        }
        for sees in SEES
        for name in names
    ]


def run(config: Config) -> list[Row]:
    """Figures of the policy at every λ, and of the baselines beside the policy that sees all."""
    where = sources()
    training = replace(PRESETS["cpu"], **{name: _plain(config[name]) for name in asdict(PRESETS["cpu"])})
    others = {name: _traced(name, where[name], training) for name in config["trained_on"]}
    returns, periods = _load(where[config["universe"]])
    returns = returns[: config["rows"]]
    bootstrap = PairedBootstrap(len(returns) - FIRST, draws=_DRAWS, seed=0)
    rows = []
    for name in _BASELINES if config["sees"] == SEES[0] else ():
        paths = _baseline(name, returns)
        rows += [_row(name, risk, path, periods, bootstrap) for risk, path in zip(_RISKS, paths, strict=True)]
    network = MarketPolicyConfig(sees=config["sees"])
    with tempfile.TemporaryDirectory() as folder:
        policy = train_market_policy(training, folder, others, policy_config=network).eval()
    market = trace(config["universe"], returns, FIRST)
    for risk in _RISKS:
        path = policy_path(policy, market, risk, _BUDGET, _COST_BPS / 1e4)
        rows.append(_row(f"market, {config['sees']}", risk, path, periods, bootstrap))
    return rows


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _baseline(name: str, returns: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Net returns and what was traded on every day from row 520 on, for every λ."""
    given: dict[str, Any] = {"window": FIRST, "budget_from": "drifted", "cost_bps": _COST_BPS}
    strategy: Any = make_strategy(name)
    paths = []
    for risk in _RISKS if strategy.uses_risk_aversion else _RISKS[:1]:
        result = rollout(returns, strategy, [_BUDGET], risk_aversion=risk, **given)
        net, amount = net_returns(result, returns[None], _COST_BPS)
        paths.append((net[0, 0], amount[0, 0]))
    return paths if len(paths) > 1 else paths * len(_RISKS)


def _row(
    name: str, risk: float, path: tuple[np.ndarray, np.ndarray], periods: float, bootstrap: PairedBootstrap
) -> Row:
    """Figures of a path; its utility in every bootstrap draw is kept, so that any two rows can be compared in pairs."""
    net, amount = path
    mean, variance = bootstrap.moments(net)
    return {
        "strategy": name,
        "risk_aversion": risk,
        "utility": float(realised_utility(net, risk)),
        "volatility": float(net.std() * np.sqrt(periods)),
        "traded": float(amount.mean()),
        "steps": len(net),
        "drawn": [float(f"{value:.5g}") for value in mean - risk * variance],
    }


def tables(rows: list[Row]) -> list[Table]:
    """Volatility, turnover and utility at every λ, and what second-order information is worth."""
    found = []
    for risk, here in sorted(grouped(rows, "risk_aversion").items()):
        lines = []
        for universe, cells in grouped(here, "universe").items():
            nothing = next((row for row in cells if row["strategy"] == _NOTHING), None)
            lines += [
                [
                    universe,
                    row["strategy"],
                    f"{row['volatility']:.4f}",
                    f"{row['traded']:.4f}",
                    f"{1e4 * row['utility']:.2f}",
                    _difference(row, nothing),
                ]
                for row in cells
            ]
        columns = ["left out", "strategy", "volatility", "traded a day", "utility", "over no second order"]
        note = (
            "Market: trained on the prior and on the other universes. Utility in bp a day, net; 95 % intervals of "
            "paired differences from the same policy without covariance tokens."
        )
        found.append(Table(f"Universes that were left out of training, λ = {risk:g}", columns, lines, note))
    return found


def _difference(row: Row, nothing: Row | None) -> str:
    if nothing is None or row is nothing:
        return "–"
    low, high = PairedBootstrap.interval(1e4 * (np.array(row["drawn"]) - np.array(nothing["drawn"])))
    return f"{1e4 * (row['utility'] - nothing['utility']):+.2f} [{low:+.2f}, {high:+.2f}]"


EXPERIMENTS = (
    Experiment(
        id="left-out",
        title="The market policy on universes left out of training, with and without second-order information",
        paper="– (beyond the paper)",
        presets={"smoke": "20 s", "cpu": "6 min a universe and kind"},
        tasks=tasks,
        run=run,
        tables=tables,
        open_ended=True,
    ),
)
