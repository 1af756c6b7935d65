"""A backtest as one interactive page: no server, no network, light and dark, wide and narrow screens."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from time2decide.backtesting.walk_forward import (
    Backtest,
    backtest_findings,
    differences_from_own,
    own_policy_of_backtest,
)
from time2decide.core.files import write_text
from time2decide.simulation.execution import when_traded

_MOST_POINTS = 800  # of a line; more cannot be seen
_MOST_AREAS = 160  # points of an allocation chart
_MOST_ASSETS = 12  # of an allocation chart; the others are drawn as one
_FOLDER = Path(__file__).parent / "backtest_assets"
#: Distinct in both themes and for the colour-blind (Okabe and Ito, extended).
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A63D2"),
    *("#7F7F7F", "#B5A300", "#A0522D", "#2E8B8B", "#E0567A", "#5B8C2A", "#4A5FD0"),
)


def write_page(
    result: Backtest,
    summary: pd.DataFrame,
    path: str | Path,
    facts: dict[str, Any],
    decision: dict[str, Any] | None = None,
) -> Path:
    """Write the page of a backtest of one series.

    Parameters
    ----------
    summary : DataFrame
        Of `with_intervals`.
    facts : dict
        `source`, `values`, `cost_bps`, `window`, and `columns`: the meaning of the columns by name; `constraints`, if
        any, in words.
    decision : dict, optional
        Of `decision_facts`: the page then starts with it, and says so if its `input` is `simulated`.
    """
    path = Path(path)
    write_text(path, _backtest_page(result, summary, facts, decision))
    return path


def _backtest_page(
    result: Backtest, summary: pd.DataFrame, facts: dict[str, Any], decision: dict[str, Any] | None = None
) -> str:
    """The page as text."""
    data = backtest_page_data(result, summary, facts, decision)
    title = f"Walk-forward comparison: {facts['source']}"
    if decision is not None:
        whose = " of the simulated portfolio" if decision["input"].get("simulated") else ""
        title = f"{facts['source']}: rebalancing{whose} after {decision['input']['last']}, and its record"
    # "<" inside a script element could end it early.
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "title": html.escape(title),
        "css": (_FOLDER / "page.css").read_text(encoding="utf-8"),
        "plotly": _packed_plotly(),
        "data": embedded,
        "script": (_FOLDER / "page.js").read_text(encoding="utf-8"),
    }
    text = (_FOLDER / "page.html").read_text(encoding="utf-8")
    return re.sub(r"<!--(\w+)-->", lambda mark: parts[mark[1]], text)


def _packed_plotly() -> str:
    """The chart library, compressed: the page unpacks it, and is a third as large."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def backtest_page_data(
    result: Backtest, summary: pd.DataFrame, facts: dict[str, Any], decision: dict[str, Any] | None
) -> dict[str, Any]:
    """What the page shows, for JSON: the decision, the record and the findings, paths by budget and strategy."""
    frame = result.frame[result.frame["series"] == 0]
    names = [str(name) for name in frame["strategy"].unique()]
    budgets = [float(budget) for budget in frame["turnover_l1"].unique()]
    times = frame["time"].unique()
    lines = _places(len(times), _MOST_POINTS)
    areas = _places(len(times), _MOST_AREAS)
    groups = {key: group for key, group in frame.groupby(["strategy", "turnover_l1"], sort=False)}
    differences = differences_from_own(result)
    return {
        "facts": {key: value for key, value in facts.items() if key != "columns"}
        | {"assets": len(result.assets), "first": _label(times[0]), "last": _label(times[-1]), "steps": len(times)}
        | {"risk_aversion": result.rollouts[0].risk_aversion, "periods": result.periods_per_year}
        | {"span": result.frequency.span, "traded": when_traded(result.delay, result.frequency.period)},
        "columns": facts["columns"],
        "names": names,
        "colours": {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)},
        "palette": COLOURS,
        "budgets": budgets,
        "time": [_label(times[i]) for i in lines],
        "areaTime": [_label(times[i]) for i in areas],
        "own": own_policy_of_backtest(names),
        "paths": [{name: _paths(groups[name, g], lines) for name in names} for g in budgets],
        "areas": [{name: _areas(result, name, g, areas) for name in names} for g in budgets],
        "summary": backtest_page_records(summary),
        "differences": [] if differences is None else backtest_page_records(differences),
        "findings": list(backtest_findings(result, summary, differences).values()),
        "decision": decision,
    }


def _paths(group: pd.DataFrame, places: np.ndarray) -> dict[str, list[float]]:
    """Wealth, drawdown, rolling turnover and accumulated regret of one strategy at one budget."""
    width = max(1, len(group) // 40)
    traded = group["traded"].rolling(width, min_periods=1).mean().to_numpy()
    wealth = group["wealth"].to_numpy()
    drawdown = wealth / np.maximum.accumulate(np.maximum(wealth, 1.0)) - 1
    return {
        "wealth": _rounded(wealth[places], 4),
        "drawdown": _rounded(100 * drawdown[places], 2),
        "traded": _rounded(traded[places], 4),
        "regret": _rounded(1e2 * group["regret"].to_numpy().cumsum()[places], 2),  # per cent
    }


def _areas(result: Backtest, name: str, budget: float, places: np.ndarray) -> list[dict[str, Any]]:
    """The weights of the assets with the largest mean weight, and of all others together."""
    weights = result.weights(name, budget).to_numpy()  # (steps, m)
    order = np.argsort(-weights.mean(axis=0), kind="stable")
    single = order if len(order) <= _MOST_ASSETS + 1 else order[:_MOST_ASSETS]
    parts = [{"name": result.assets[i], "weights": _rounded(weights[places, i], 4)} for i in single]
    rest = order[len(single) :]
    if len(rest):
        together = weights[np.ix_(places, rest)].sum(axis=1)
        parts.append({"name": f"{len(rest)} others", "weights": _rounded(together, 4)})
    return parts


def backtest_page_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table for JSON: a figure that does not exist (the Sharpe ratio of no movement) is null."""
    return [{str(key): _plain(value) for key, value in row.items()} for row in frame.to_dict(orient="records")]


def _places(length: int, most: int) -> np.ndarray:
    """At most `most` places of a path, with its last one."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int))


def _rounded(values: np.ndarray, digits: int) -> list[float]:
    return [float(value) for value in np.round(values, digits)]


def _label(time: object) -> str:
    return str(pd.Timestamp(time).date()) if isinstance(time, (np.datetime64, pd.Timestamp)) else str(time)


def _plain(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
