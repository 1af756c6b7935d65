"""Covariances of the next row on real markets: how well each states risk, and what minimum variance makes of it.

Every estimator reads the rows up to t and states Σ for t + 1. *QLIKE* is the mean of log v + x²/v over portfolios
with return x and stated variance v: 1/N, and 20 random long-only ones. The *log score* of an asset is the mean of
−(log |Σ| + rᵀΣ⁻¹r) / 2m. The *bias* is the root of the mean of x²/v of 1/N, 1 if risk is as stated, in the autumn of
2008 and the spring of 2020. *Minimum variance* is long-only without costs; the weights go a part of the way to it each
row, as large a part as gives every estimator the same turnover, and are held from the close of the next row on.
Differences are paired, with 95 % intervals of a block bootstrap. Tables come as for the experiment *real-markets*, and
once more by week and month.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from sklearn.covariance import ledoit_wolf

from time2decide.core.provenance import json_digest
from time2decide.core.table import Table
from time2decide.core.validation import expect
from time2decide.experiments.real_markets import real_market_sources
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.forecasting.market_state import MarketState
from time2decide.markets.estimators import EWMA, IteratedEWMA
from time2decide.markets.oracle import best_allocations
from time2decide.markets.periods import frequency_of
from time2decide.markets.tables import load_market
from time2decide.simulation.metrics import PairedBootstrap

OURS = "reactive"
ESTIMATORS = (OURS, "riskmetrics", "iewma", "ledoit-wolf")
_SINGULAR = ("riskmetrics",)  # with more assets than rows that count: no log score
_FIRST = {"day": 520, "week": 260, "month": 100}  # rows before the first Σ
_EVERY = {"week": ("W-FRI", 5), "month": ("ME", 21)}
_CRISES = {"2008": ("2008-09-08", "2008-12-31"), "2020": ("2020-02-20", "2020-04-30")}
_TURNOVER = {"day": 0.01, "week": 0.03, "month": 0.08}  # a row, of all estimators
_CHUNK = 50
_VERSION = 2  # of Σ: the constants of its level


def covariance_tasks(preset: str) -> list[Config]:
    """One task per universe and frequency."""
    sources = {"sp500": "sp500"} if preset == "smoke" else real_market_sources()
    frequencies = ("month",) if preset == "smoke" else ("day", "week", "month")
    return [
        {
            "universe": name,
            "data": _digest(_load(source, "day")),
            "frequency": frequency,
            "version": _VERSION,
            "seed": 0,
        }
        for name, source in sources.items()
        for frequency in frequencies
    ]


def _digest(table: pd.DataFrame) -> str:
    values = table.to_numpy()
    return json_digest({"assets": list(table.columns), "shape": list(values.shape), "values": values.tobytes().hex()})


def _load(source: str, frequency: str) -> pd.DataFrame:
    """Returns of the assets without gaps, by day, week or month; rows without dates by 5 or 21."""
    table = load_market(source, gaps="keep")[0].dropna(axis=1)
    if frequency == "day":
        return table
    rule, rows = _EVERY[frequency]
    dated = frequency_of(table.index).per_year is not None
    labels = pd.to_datetime(table.index) if dated else pd.RangeIndex(len(table)) // rows
    grouped = (1 + table.set_axis(labels)).resample(rule) if dated else (1 + table).groupby(labels)
    return grouped.prod() - 1


def run_covariances(config: Config) -> list[Row]:
    """Figures of every estimator, and differences of the first from the others."""
    source, frequency = real_market_sources()[config["universe"]], config["frequency"]
    expect(_digest(_load(source, "day")) == config["data"], source, f"the data {config['data']}", "others")
    table, first = _load(source, frequency), _FIRST[frequency]
    year = {"day": 252.0, "week": 52.0, "month": 12.0}[frequency]
    returns = table.to_numpy()
    portfolios = np.random.default_rng(config["seed"]).dirichlet(np.full(returns.shape[1], 0.5), 20)
    portfolios = np.vstack([np.full(returns.shape[1], 1 / returns.shape[1]), portfolios])
    found = _judged(returns, first, year, portfolios)
    paths = {
        name: _minimum_variance(part["target"], returns, first, _TURNOVER[frequency]) for name, part in found.items()
    }
    bootstrap = PairedBootstrap(len(returns) - first, seed=config["seed"])
    ours, dates = found[OURS] | {"held": paths[OURS]}, table.index[first:]
    return [
        _row(name, part | {"held": paths[name]}, ours, bootstrap, dates, year) | {"assets": returns.shape[1]}
        for name, part in found.items()
    ]


def _stated(returns: np.ndarray, first: int, year: float) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Σ of every estimator for some rows (T, m, m), and the first of the rows."""
    m = returns.shape[1]
    state = MarketState(m, year).extend(returns[:first])
    averages = {"riskmetrics": EWMA(np.log(0.5) / np.log(0.94), least=3), "iewma": IteratedEWMA(10, 125, least=3)}
    for average in averages.values():
        average.update(returns[:first])
    for start in range(first, len(returns), _CHUNK):
        out: dict[str, list[np.ndarray]] = {name: [] for name in ESTIMATORS}
        for t in range(start, min(start + _CHUNK, len(returns))):
            out[OURS].append(state.covariance())
            out["ledoit-wolf"].append(ledoit_wolf(returns[max(0, t - 252) : t])[0])
            for name, average in averages.items():
                out[name].append(average.covariance())
                average.update(returns[t])
            state.update(returns[t])
        yield start, {name: np.stack(part) for name, part in out.items()}


def _judged(returns: np.ndarray, first: int, year: float, portfolios: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Losses of every row and minimum-variance weights, by estimator."""
    m = returns.shape[1]
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for start, stated in _stated(returns, first, year):
        for name, sigma in stated.items():
            sigma = (sigma + sigma.swapaxes(1, 2)) / 2
            r = returns[start : start + len(sigma)]
            v = np.maximum(np.einsum("pi,tij,pj->tp", portfolios, sigma, portfolios), 1e-14)
            ratio = (r @ portfolios.T) ** 2 / v
            definite = sigma + 1e-9 * np.einsum("tii->t", sigma)[:, None, None] / m * np.eye(m)
            quadratic = np.einsum("ti,ti->t", r, np.linalg.solve(definite, r[..., None])[..., 0])
            equal = np.full((len(r), 1, m), 1 / m)
            rows = {
                "qlike": (np.log(v) + ratio)[:, 0],
                "qlike_random": (np.log(v) + ratio)[:, 1:].mean(1),
                "ratio": ratio[:, 0],
                "score": -(np.linalg.slogdet(definite)[1] + quadratic) / (2 * m),
                "target": best_allocations(0 * equal, definite, equal, np.ones((len(r), 1)))[:, 0],
            }
            for key, value in rows.items():
                found.setdefault(name, {}).setdefault(key, []).append(value)
    return {name: {key: np.concatenate(part) for key, part in parts.items()} for name, parts in found.items()}


def _minimum_variance(targets: np.ndarray, returns: np.ndarray, first: int, turnover: float) -> np.ndarray:
    """Returns of weights that go a part of the way to the targets, the part that gives this turnover a row."""
    low, high = 1e-4, 1.0
    for _ in range(20):
        part = np.sqrt(low * high)
        net, traded = _held(targets, returns[first:], part)
        low, high = (part, high) if traded < turnover else (low, part)
    return net


def _held(targets: np.ndarray, returns: np.ndarray, part: float) -> tuple[np.ndarray, float]:
    """Returns and mean turnover of weights that go a part of the way, from the close after the next."""
    m = returns.shape[1]
    weights, wanted, net, traded = np.full(m, 1 / m), np.full(m, 1 / m), np.empty(len(returns)), 0.0
    for t, r in enumerate(returns):
        moved = weights + part * (wanted - weights)
        traded += float(np.abs(moved - weights).sum())
        net[t] = moved @ r
        weights, wanted = moved * (1 + r) / (1 + net[t]), targets[t]
    return net, traded / len(returns)


def _row(
    name: str,
    part: dict[str, np.ndarray],
    ours: dict[str, np.ndarray],
    bootstrap: PairedBootstrap,
    dates: pd.Index,
    year: float,
) -> Row:
    singular = name in _SINGULAR
    row: Row = {"estimator": name, "steps": len(dates)}
    for key in ("qlike", "qlike_random") if singular else ("qlike", "qlike_random", "score"):
        less = ours[key] - part[key]
        low, high = bootstrap.interval(bootstrap.moments(less)[0])
        row |= {key: float(part[key].mean()), f"ours_{key}": float(less.mean())}
        row |= {f"ours_{key}_low": float(low), f"ours_{key}_high": float(high)}
    own, other = (np.sqrt(bootstrap.moments(one["held"])[1]) for one in (ours, part))
    low, high = bootstrap.interval(own / other - 1)
    row |= {"volatility": float(part["held"].std() * np.sqrt(year)), "ours_volatility_low": float(low)}
    row |= {"ours_volatility": float(ours["held"].std() / part["held"].std() - 1), "ours_volatility_high": float(high)}
    for crisis, (begin, end) in _CRISES.items():
        inside = np.array([begin <= str(date)[:10] <= end for date in dates])
        if inside.any():
            row[f"bias_{crisis}"] = float(np.sqrt(part["ratio"][inside].mean()))
    return row | {"bias": float(np.sqrt(part["ratio"].mean()))}


def covariance_tables(rows: list[Row]) -> list[Table]:
    """One table per frequency."""
    tables = []
    for frequency, here in grouped_rows(rows, "frequency").items():
        lines = []
        for row in sorted(here, key=lambda one: (one["universe"], ESTIMATORS.index(one["estimator"]))):
            crises = [f"{row[f'bias_{one}']:.2f}" if f"bias_{one}" in row else "–" for one in _CRISES]
            volatility = f"{100 * row['volatility']:.2f}"
            kinds = ("qlike", "qlike_random", "score", "volatility")
            mine = row["estimator"] == OURS
            lines.append(
                [row["universe"], row["estimator"], f"{row['bias']:.2f}", *crises, volatility]
                + ["–" if mine or f"ours_{kind}" not in row else _interval(row, kind) for kind in kinds]
            )
        columns = ["universe", "estimator", "bias", *(f"bias {one}" for one in _CRISES), "volatility %"]
        columns += [f"{OURS} less it: {kind}" for kind in ("QLIKE 1/N", "QLIKE random", "log score an asset")]
        note = "QLIKE: less is better. Log score: more is better. Volatility of minimum variance at equal turnover."
        tables.append(Table(f"Covariances, by {frequency}", [*columns, "volatility, relative"], lines, note))
    return tables


def _interval(row: Row, kind: str) -> str:
    value, low, high = (row[f"ours_{kind}{end}"] for end in ("", "_low", "_high"))
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


EXPERIMENTS = (
    Experiment(
        id="covariances",
        title="Covariances of the next row on real markets: QLIKE, log score, bias in crises, minimum variance",
        paper="– (beyond the paper)",
        presets={"smoke": "10 s", "cpu": "1 to 10 min a universe"},
        tasks=covariance_tasks,
        run=run_covariances,
        tables=covariance_tables,
        open_ended=True,
    ),
)
