"""The market policy on universes that it was not trained on, and what its second-order information is worth.

For every universe the policy is trained on the prior of markets and on all other universes, four times: with all of
its covariance tokens, with correlations only, with variances only, and without. Each walks through the universe by the
protocol of `real-markets` at γ = 0.1 and 10 basis points, beside minimum variance with QIS and IEWMA covariances.
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
from time2decide.experiments.real_markets import FIRST, interval_text, sources
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped
from time2decide.markets.tables import complete_returns
from time2decide.policy.market_policy import SEES, MarketPolicyConfig
from time2decide.policy.market_training import PRESETS, trace, train_market_policy, walk_forward
from time2decide.simulation.engine import rollout
from time2decide.simulation.metrics import PairedBootstrap, net_returns, realised_utility

_BUDGET, _COST_BPS = 0.1, 10.0
_RISKS = (1.0, 5.0, 25.0)
_BASELINES = ("uniform", "minimum-variance", "minimum-variance-qis", "minimum-variance-iewma")
_NOTHING = "market, none"


_load = lru_cache(maxsize=8)(complete_returns)


def tasks(preset: str) -> list[Config]:
    """One task per universe that is left out."""
    names, training = sorted(sources()), asdict(PRESETS[preset])
    rows = FIRST + 40 if preset == "smoke" else None
    return [
        {"universe": name, "trained_on": [o for o in names if o != name], "rows": rows, **training} for name in names
    ]


def run(config: Config) -> list[Row]:
    """Figures of every network and baseline at every λ, and utility less that without second-order information."""
    where = sources()
    training = replace(PRESETS["cpu"], **{name: _plain(config[name]) for name in asdict(PRESETS["cpu"])})
    others = {name: _load(where[name])[0] for name in config["trained_on"]}
    returns, periods = _load(where[config["universe"]])
    returns = returns[: config["rows"]]
    paths: dict[Any, tuple[np.ndarray, np.ndarray]] = {name: _baseline(name, returns) for name in _BASELINES}
    market = trace(config["universe"], returns, FIRST)
    for sees in SEES:
        with tempfile.TemporaryDirectory() as folder:
            policy = train_market_policy(training, folder, others, policy_config=MarketPolicyConfig(sees=sees)).eval()
        for risk in _RISKS:
            paths[f"market, {sees}", risk] = walk_forward(policy, market, risk, _BUDGET, _COST_BPS / 1e4)
    return _rows(paths, periods)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _baseline(name: str, returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Net returns and what was traded on every day from row 520 on."""
    given: dict[str, Any] = {"window": FIRST, "budget_from": "drifted", "cost_bps": _COST_BPS}
    result = rollout(returns, make_strategy(name), [_BUDGET], risk_aversion=_RISKS[-1], **given)
    net, amount = net_returns(result, returns[None], _COST_BPS)
    return net[0, 0], amount[0, 0]


def _rows(paths: dict[Any, tuple[np.ndarray, np.ndarray]], periods: float) -> list[Row]:
    steps = len(next(iter(paths.values()))[0])
    bootstrap, rows = PairedBootstrap(steps, seed=0), []
    for risk in _RISKS:
        nothing = paths[_NOTHING, risk][0]
        for key, (net, amount) in paths.items():
            name, at = key if isinstance(key, tuple) else (key, risk)
            if at != risk:
                continue
            mean, variance = bootstrap.moments(np.stack([net, nothing]))
            drawn = mean - risk * variance
            low, high = bootstrap.interval(drawn[0] - drawn[1])
            utility = float(realised_utility(net, risk))
            row: Row = {"strategy": name, "risk_aversion": risk, "utility": utility, "steps": steps}
            row |= {"volatility": float(net.std() * np.sqrt(periods)), "traded": float(amount.mean())}
            row |= {"over_none": utility - float(realised_utility(nothing, risk))}
            rows.append(row | {"over_none_low": float(low), "over_none_high": float(high)})
    return rows


def tables(rows: list[Row]) -> list[Table]:
    """Volatility and turnover at the largest λ, and what second-order information is worth at every λ."""
    found = []
    for risk in _RISKS:
        lines = [
            [
                universe,
                row["strategy"],
                f"{row['volatility']:.4f}",
                f"{row['traded']:.4f}",
                f"{1e4 * row['utility']:.2f}",
                interval_text(row, "over_none"),
            ]
            for universe, here in grouped(rows, "universe").items()
            for row in here
            if row["risk_aversion"] == risk
        ]
        columns = ["left out", "strategy", "volatility", "traded a day", "utility", "over no second order"]
        note = (
            "Market: trained on the prior and on the other universes. Utility in bp a day, net; 95 % intervals of "
            "paired differences from the same policy without covariance tokens."
        )
        found.append(Table(f"Universes that were left out of training, λ = {risk:g}", columns, lines, note))
    return found


EXPERIMENTS = (
    Experiment(
        id="left-out",
        title="The market policy on universes left out of training, with and without second-order information",
        paper="– (beyond the paper)",
        presets={"smoke": "20 s", "cpu": "5 to 10 min a universe"},
        tasks=tasks,
        run=run,
        tables=tables,
        open_ended=True,
    ),
)
