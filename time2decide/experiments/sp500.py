"""Twenty stocks of the S&P 500, walk-forward with costs: Time2Decide as shipped and fine-tuned beside the field's.

The last 30 % of the days are the test. The fine-tuned network is fitted again several times on the way, each time to
days that end a window before the first one it decides about; every other strategy sees the days before the one it
decides, as the engine gives them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass

import numpy as np
import torch

from time2decide.backtesting.walk_forward import backtest, with_intervals
from time2decide.core.table import Table
from time2decide.experiments.portfolio import network_fingerprint
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Row, grouped_rows
from time2decide.forecasting.features import CachedFeatures
from time2decide.markets.oracle import WINDOW
from time2decide.markets.tables import load_returns
from time2decide.policy.fine_tuning import FineTuning, fine_tune
from time2decide.policy.model import PolicyStrategy, load_policy
from time2decide.simulation.engine import Observation

STRATEGIES = ("uniform", "inverse-volatility", "minimum-variance", "mean-variance-shrunk", "pto-ar1")
BUDGETS = [0.1, 0.5, 1.0]
_SMALL = FineTuning(share=1.0, steps=4, batch=8, episodes=2, decisions=4, check_every=2, budgets=(0.5,), risks=(0.1,))
_KEYS = ("annual_return", "annual_volatility", "sharpe", "max_drawdown", "turnover", "traded", "regret", "mse")


def _tasks(preset: str) -> list[Row]:
    """One task: the fine-tunings and all rollouts share the same days."""
    networks = {name: network_fingerprint(name) for name in ("decide", "decide-utility")}
    common: Row = {"seed": 0, "cost_bps": 10.0, "share": 0.7, "networks": networks}
    if preset == "smoke":
        small = {"rows": 900, "assets": 4, "budgets": [0.5], "last": 30, "refit_every": 20}
        return [common | small | {"tuning": _tuning(_SMALL)}]
    full = {"rows": None, "assets": None, "budgets": BUDGETS, "last": None, "refit_every": 840}
    return [common | full | {"tuning": _tuning(FineTuning(share=1.0))}]


def _tuning(recipe: FineTuning) -> Row:
    """The recipe as stored rows are keyed by it: `episodes` had another name when they were measured."""
    values = asdict(recipe)
    return values | {"stretches": values.pop("episodes")}


@dataclass(frozen=True)
class _Refitted:
    """A network fitted again on the way: from step `starts[i]` on, `networks[i]` decides."""

    starts: tuple[int, ...]
    networks: tuple[PolicyStrategy, ...]
    name: str = "time2decide-tuned"
    wants_hindsight: bool = False

    def decide(self, past: Observation) -> np.ndarray:
        assert past.step is not None  # the engine's are numbered
        return self.networks[bisect_right(self.starts, past.step) - 1].decide(past)


def _run(config: Row) -> list[Row]:
    """Walk over the last days with every strategy; the fine-tuned network first learns from the days before."""
    torch.set_num_threads(1)
    table = load_returns("sp500")
    table = table.iloc[-(config["rows"] or len(table)) :, : config["assets"] or table.shape[1]]
    first = int(config["share"] * len(table))
    table = table.iloc[: first + (config["last"] or len(table))]
    test = table.iloc[first - WINDOW :]  # the first decision is about the first day of the test
    look = CachedFeatures(most=len(test))
    tuned, notes = _refitted(table.to_numpy(), first, config, look)
    shipped = {"time2decide": ("decide", "hindsight"), "time2decide-own": ("decide", "own")}
    shipped["time2decide-utility"] = ("decide-utility", "own")
    ours = [PolicyStrategy(load_policy(model)[0], history, name, look) for name, (model, history) in shipped.items()]
    options = {"cost_bps": config["cost_bps"], "budget_from": "previous", "delay": 0}  # as the stored rows
    result = backtest(test, [*ours, tuned, *STRATEGIES], config["budgets"], **options)
    about = {"first_day": str(test.index[WINDOW].date()), "last_day": str(test.index[-1].date()), **notes}
    rows = []
    for row in with_intervals(result).to_dict(orient="records"):
        kept = {key: float(row[key]) for key in row if key.startswith(_KEYS)}
        rows.append({"strategy": row["strategy"], "turnover_l1": float(row["turnover_l1"]), **kept, **about})
    return rows


def _refitted(returns: np.ndarray, first: int, config: Row, look: CachedFeatures) -> tuple[_Refitted, Row]:
    """The network fitted to the rows before `first` and again every `refit_every` rows, and notes on how."""
    plain: Row = {key: tuple(value) if isinstance(value, list) else value for key, value in config["tuning"].items()}
    plain["episodes"] = plain.pop("stretches")
    recipe = FineTuning(**(plain | {"seed": config["seed"], "cost_bps": config["cost_bps"]}))
    starts = range(first, len(returns), config["refit_every"])
    fits = [fine_tune(returns[:start], load_policy("decide")[0], recipe) for start in starts]
    steps = tuple(start - first + WINDOW for start in starts)  # the rollout begins a window before the first decision
    networks = tuple(PolicyStrategy(policy, "own", "tuned", look) for policy, _ in fits)
    notes = {key: [note[key] for _, note in fits] for key in ("steps_kept", "holds", "validation_utility")}
    return _Refitted(steps, networks), notes


def _tables(rows: list[Row]) -> list[Table]:
    """One table per budget, best Sharpe ratio first, and which strategies differ from 1/N beyond the interval."""
    columns = ["strategy", "net Sharpe", "minus 1/N", "return", "volatility", "drawdown", "traded", "regret bp"]
    found = []
    for budget, here in grouped_rows(rows, "turnover_l1").items():
        field = sorted(here, key=lambda row: -row["sharpe"])
        first = field[0]
        days = f"{first['first_day']} to {first['last_day']}"
        caption = f"S&P 500 set, γ = {budget:g}, {days}, {first['cost_bps']:g} bp per amount traded"
        better = [row["strategy"] for row in field if row["sharpe_excess_low"] > 0]
        worse = [row["strategy"] for row in field if row["sharpe_excess_high"] < 0]
        note = (
            f"Better than 1/N beyond the interval: {', '.join(better) or 'none'}; worse: {', '.join(worse) or 'none'}. "
            "95 % intervals by block bootstrap. time2decide-tuned: fine-tuned "
            f"{len(first['steps_kept'])} times on the way; steps kept: {first['steps_kept']}, holding still instead: "
            f"{first['holds']}."
        )
        found.append(Table(caption, columns, [_cells(row) for row in field], note))
    return found


def _cells(row: Row) -> list[str]:
    return [
        row["strategy"],
        f"{row['sharpe']:.2f} [{row['sharpe_low']:.2f}, {row['sharpe_high']:.2f}]",
        f"{row['sharpe_excess']:+.2f} [{row['sharpe_excess_low']:+.2f}, {row['sharpe_excess_high']:+.2f}]",
        f"{row['annual_return']:.1%} [{row['annual_return_low']:.1%}, {row['annual_return_high']:.1%}]",
        f"{row['annual_volatility']:.1%}",
        f"{row['max_drawdown']:.1%}",
        f"{row['traded']:.3f}",
        f"{1e4 * row['regret']:.1f}",
    ]


EXPERIMENTS = (
    Experiment(
        id="sp500",
        title="Real prices: walk-forward on 20 stocks with costs, as shipped and fine-tuned",
        paper="– (beyond the paper)",
        presets={"smoke": "20 s", "cpu": "12 min"},
        tasks=_tasks,
        run=_run,
        tables=_tables,
    ),
)
