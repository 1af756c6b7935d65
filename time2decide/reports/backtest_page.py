"""A backtest as one interactive page: no server, no network, light and dark, wide and narrow screens."""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from time2decide.backtesting.walk_forward import Backtest
from time2decide.core.files import write_text

_MOST_POINTS = 1200  # of a line; more cannot be seen
_MOST_AREAS = 160  # points of an allocation chart
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
        `source`, `values`, `cost_bps`, `window`, and `columns`: the meaning of the columns by name.
    decision : dict, optional
        Of `decision_facts`: adds the section on the latest decision.
    """
    path = Path(path)
    write_text(path, page(result, summary, facts, decision))
    return path


def page(result: Backtest, summary: pd.DataFrame, facts: dict[str, Any], decision: dict[str, Any] | None = None) -> str:
    """The page as text."""
    from plotly.offline import get_plotlyjs

    data = page_data(result, summary, facts, decision)
    title = f"Walk-forward comparison: {facts['source']}"
    # "<" inside a script element could end it early.
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "title": html.escape(title),
        "css": (_FOLDER / "page.css").read_text(encoding="utf-8"),
        "plotly": get_plotlyjs(),
        "data": embedded,
        "script": (_FOLDER / "page.js").read_text(encoding="utf-8"),
    }
    text = (_FOLDER / "page.html").read_text(encoding="utf-8")
    return re.sub(r"<!--(\w+)-->", lambda mark: parts[mark[1]], text)


def page_data(
    result: Backtest, summary: pd.DataFrame, facts: dict[str, Any], decision: dict[str, Any] | None
) -> dict[str, Any]:
    """What the page shows, for JSON: paths by budget and strategy, the table, the decision."""
    frame = result.frame[result.frame["series"] == 0]
    names = [str(name) for name in frame["strategy"].unique()]
    budgets = [float(budget) for budget in frame["turnover_l1"].unique()]
    times = frame["time"].unique()
    lines = _places(len(times), _MOST_POINTS)
    areas = _places(len(times), _MOST_AREAS)
    groups = {key: group for key, group in frame.groupby(["strategy", "turnover_l1"], sort=False)}
    return {
        "facts": {key: value for key, value in facts.items() if key != "columns"}
        | {"assets": len(result.assets), "first": _label(times[0]), "last": _label(times[-1]), "steps": len(times)},
        "columns": facts["columns"],
        "names": names,
        "colours": {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)},
        "palette": COLOURS,
        "budgets": budgets,
        "time": [_label(times[i]) for i in lines],
        "areaTime": [_label(times[i]) for i in areas],
        "assets": result.assets,
        "paths": [{name: _paths(groups[name, g], lines) for name in names} for g in budgets],
        "areas": [{name: _areas(result, name, g, areas) for name in names} for g in budgets],
        "summary": [{key: _plain(value) for key, value in row.items()} for row in summary.to_dict(orient="records")],
        "decision": decision,
    }


def _paths(group: pd.DataFrame, places: np.ndarray) -> dict[str, list[float]]:
    """Wealth, rolling amount traded, and accumulated regret of one strategy at one budget."""
    width = max(1, len(group) // 40)
    traded = group["traded"].rolling(width, min_periods=1).mean().to_numpy()
    wealth = group["wealth"].to_numpy()
    drawdown = wealth / np.maximum.accumulate(np.maximum(wealth, 1.0)) - 1
    return {
        "wealth": _rounded(wealth[places], 5),
        "drawdown": _rounded(100 * drawdown[places], 3),
        "traded": _rounded(traded[places], 5),
        "regret": _rounded(1e2 * group["regret"].to_numpy().cumsum()[places], 4),  # per cent
    }


def _areas(result: Backtest, name: str, budget: float, places: np.ndarray) -> list[list[float]]:
    weights = result.weights(name, budget).to_numpy()[places]  # (points, m)
    return [_rounded(column, 4) for column in weights.T]


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
