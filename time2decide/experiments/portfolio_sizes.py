"""The bundled network on markets with other numbers of assets than it was mostly trained on."""

from __future__ import annotations

from typing import Any

from time2decide.backtesting.baselines import LagOneOracle, PredictThenOptimise, Uniform
from time2decide.experiments.portfolio import Remembered, fingerprint, scored
from time2decide.experiments.portfolio_tables import reduction, values
from time2decide.experiments.registry import Experiment
from time2decide.markets import LMCConfig, oracle_path, synthetic_returns
from time2decide.policy.model import NetworkForecast, PolicyStrategy, load_policy
from time2decide.simulation.engine import Strategy

Config = dict[str, Any]
Row = dict[str, Any]
BUDGETS = (0.5, 1.0, 2.0)


def tasks(preset: str) -> list[Config]:
    """One task per market and number of assets."""
    sizes = {"evaluation": 2, "length": 112} if preset == "smoke" else {"evaluation": 10, "length": 400}
    assets = (3, 8) if preset == "smoke" else (8, 32)
    network = fingerprint("decide")
    return [
        {"market": market, "assets": m, "seed": 0, "network": network, **sizes}
        for market in ("clean", "noisy")
        for m in assets
    ]


def run(config: Config) -> list[Row]:
    """Score the network and its rivals, with own and with hindsight history."""
    lmc = LMCConfig(channels=config["assets"], length=config["length"])
    returns = synthetic_returns(config["market"], count=config["evaluation"], seed=config["seed"], config=lmc)
    oracle = oracle_path(returns, list(BUDGETS))
    policy, look = load_policy("decide")[0], Remembered()
    strategies: list[Strategy] = [
        Uniform(),
        LagOneOracle(),
        PredictThenOptimise(NetworkForecast(policy, look), name="pto"),
        PolicyStrategy(policy, "own", "time2decide (own)", look),
        PolicyStrategy(policy, "hindsight", "time2decide (hindsight)", look),
    ]
    return [row for strategy in strategies for row in scored(strategy, returns, oracle, budgets=BUDGETS)]


def show(rows: list[Row]) -> str:
    """MSE × 1e4 per number of assets, and how far the network is below PtO."""
    blocks = [f"failed: {row['market']}, {row['assets']} assets: {row['error']}" for row in rows if row["error"]]
    measured = [row for row in rows if not row["error"]]
    for market, m in dict.fromkeys((row["market"], row["assets"]) for row in measured):
        chosen = [row for row in measured if (row["market"], row["assets"]) == (market, m)]
        head = f"{market}, {m} assets, {chosen[0]['evaluation']} series: MSE × 1e4"
        lines = [head, "strategy".ljust(27) + "".join(f"γ={g:g}".rjust(12) for g in BUDGETS)]
        for name in dict.fromkeys(row["strategy"] for row in chosen):
            cells = (f"{1e4 * values(chosen, name, g, 'mse').mean():.1f}".rjust(12) for g in BUDGETS)
            lines.append(name.ljust(27) + "".join(cells))
        for ours in ("time2decide (own)", "time2decide (hindsight)"):
            cuts = [reduction(values(chosen, ours, g, "mse"), values(chosen, "pto", g, "mse")) for g in BUDGETS]
            text = " ".join(f"{100 * a:.0f} % [{100 * b:.0f}, {100 * c:.0f}]".rjust(18) for a, b, c in cuts)
            lines.append(f"  {ours} below pto by".ljust(38) + text)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


EXPERIMENTS = (
    Experiment(
        id="portfolio-sizes",
        title="One network for any number of assets",
        paper="none: the paper's models are for 16 assets",
        presets={"smoke": "10 s", "cpu": "10 min"},
        tasks=tasks,
        run=run,
        show=show,
    ),
)
