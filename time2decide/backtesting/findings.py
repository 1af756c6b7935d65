"""The findings of a backtest as sentences, each backed by an interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from time2decide.backtesting.registry import ORACLE
from time2decide.backtesting.walk_forward import Backtest, paired_strategy_differences

_NAMED = ("uniform", "minimum-variance")  # baselines whose difference is given in figures
_POLICIES = ("market", "time2decide", "time2decide-utility")  # the product's own, the default first


def own_policy_of_backtest(names: Sequence[str]) -> str | None:
    """The policy of this package that a comparison is about: the market policy if it takes part."""
    return next((name for name in _POLICIES if name in names), None)


def differences_from_own(result: Backtest) -> pd.DataFrame | None:
    """`paired_strategy_differences` of the package's own policy from every other one; None if it did not take part."""
    own = own_policy_of_backtest([one.name for one in result.rollouts])
    return None if own is None or len(result.rollouts) < 2 else paired_strategy_differences(result, own)


def backtest_findings(
    result: Backtest, summary: pd.DataFrame, differences: pd.DataFrame | None
) -> dict[float, list[str]]:
    """Sentences by turnover budget: who ranks where, and which differences exceed their 95 % interval.

    Parameters
    ----------
    summary, differences
        Of `with_intervals` and `differences_from_own`.
    """
    own = own_policy_of_backtest([one.name for one in result.rollouts])
    usual = summary[summary["strategy"] != ORACLE].sort_values("sharpe", ascending=False)
    sentences: dict[float, list[str]] = {}
    for budget in dict.fromkeys(summary["turnover_l1"]):
        rows = usual[usual["turnover_l1"] == budget].to_dict(orient="records")
        if own is None or differences is None:
            sentences[float(budget)] = [_best(rows)]
            continue
        others = differences[(differences["turnover_l1"] == budget) & (differences["strategy"] != ORACLE)]
        utility = f"In net utility (λ = {result.rollouts[0].risk_aversion:g})"
        sentences[float(budget)] = [
            _rank(rows, own),
            *_differences(others, result.periods_per_year),
            _beyond(others, "sharpe", own, "In net Sharpe ratio"),
            _beyond(others, "net_utility", own, utility),
        ]
    return sentences


def _rank(rows: list[dict[str, Any]], own: str) -> str:
    place = next(i for i, row in enumerate(rows) if row["strategy"] == own)
    row, best = rows[place], rows[0]
    text = f"{own}: net Sharpe ratio {row['sharpe']:.2f} (95 %: {row['sharpe_low']:.2f} to "
    text += f"{row['sharpe_high']:.2f}), rank {place + 1} of {len(rows)}"
    text += f", volatility {row['annual_volatility']:.1%} a year, turnover {row['traded']:.2%} a step"
    return text + ("." if place == 0 else f"; {best['strategy']} is first with {best['sharpe']:.2f}.")


def _differences(rows: pd.DataFrame, periods: float) -> list[str]:
    """The differences from the baselines that everybody knows, in figures."""
    sentences = []
    for row in rows[rows["strategy"].isin(_NAMED)].to_dict(orient="records"):
        utility = [f"{periods * row[f'net_utility{end}']:+.1%}" for end in ("", "_low", "_high")]
        sharpe = [f"{row[f'sharpe{end}']:+.2f}" for end in ("", "_low", "_high")]
        sentences.append(
            f"Against {row['strategy']}: Sharpe {sharpe[0]} [{sharpe[1]}, {sharpe[2]}], "
            f"utility {utility[0]} a year [{utility[1]}, {utility[2]}]."
        )
    return sentences


def _beyond(rows: pd.DataFrame, key: str, own: str, measure: str) -> str:
    better = rows.loc[rows[f"{key}_low"] > 0, "strategy"].tolist()
    worse = rows.loc[rows[f"{key}_high"] < 0, "strategy"].tolist()
    parts = [f"{word} {_listed(names)}" for word, names in (("above", better), ("below", worse)) if names]
    if not parts:
        return f"{measure} no difference between {own} and another strategy exceeds its 95 % interval."
    rest = len(rows) - len(better) - len(worse)
    text = f"{measure} {own} is {' and '.join(parts)} beyond the 95 % interval of the difference"
    return text + (f"; {rest} cannot be told apart from it." if rest else ".")


def _best(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "Only the oracle was run."
    text = f"The highest net Sharpe ratio is {rows[0]['sharpe']:.2f}, of {rows[0]['strategy']}"
    if "sharpe_excess" not in rows[0]:
        return f"{text}."
    better = [row["strategy"] for row in rows if row["sharpe_excess_low"] > 0]
    worse = [row["strategy"] for row in rows if row["sharpe_excess_high"] < 0]
    return f"{text}; above 1/N beyond the 95 % interval: {_listed(better)}; below: {_listed(worse)}."


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
