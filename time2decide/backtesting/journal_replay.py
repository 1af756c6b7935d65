"""Live decisions of a journal beside simulated ones: the same rows, read from the start, decided again date by date."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from time2decide.core.journal import Journal
from time2decide.core.validation import InputError, expect
from time2decide.markets.constraints import Constraints
from time2decide.markets.decision_file import data_fingerprint, label_texts
from time2decide.policy.model import Time2Decide
from time2decide.policy.portfolio_run import decide_run, read_run_entries, run_terms_from_entry
from time2decide.policy.run_holdings import EQUAL, FILE, entry_delay, weights_since_entry
from time2decide.simulation.execution import drifted_weights, portfolio_returns

_EQUAL = 1e-9  # largest difference of a weight that is called equal


@dataclass(frozen=True)
class Replay:
    """Live and simulated weights of every date, (dates, m), and what they earned.

    holdings : where the live current weights came from, by date; those of a file are taken as they are
    other_model : dates whose live model had other weights than the one that was asked now
    live_return, simulated_return, held_return : net of costs since the first date; `held` keeps its first weights
    """

    dates: list[str]
    assets: list[str]
    live: np.ndarray
    simulated: np.ndarray
    holdings: list[str]
    other_model: list[str]
    live_return: float
    simulated_return: float
    held_return: float

    @property
    def differences(self) -> np.ndarray:
        """Largest difference of a weight on each date."""
        return np.asarray(np.abs(self.live - self.simulated).max(axis=1))

    @property
    def equal(self) -> bool:
        return bool(self.differences.max() <= _EQUAL)

    @property
    def text(self) -> list[str]:
        """The comparison in lines of text."""
        off, n = self.differences, len(self.dates)
        exact = int((off == 0).sum())
        lines = [f"Journal: {n} decisions, {self.dates[0]} to {self.dates[-1]}, {len(self.assets)} assets."]
        if exact == n:
            lines.append("Live decisions equal the simulated ones, bit by bit.")
        elif self.equal:
            lines.append(
                f"Live decisions equal the simulated ones, {exact} of {n} bit by bit, the others to {off.max():.1e}."
            )
        else:
            worst = int(off.argmax())
            many, asset = int((off > _EQUAL).sum()), int(np.abs(self.live - self.simulated)[worst].argmax())
            values = f"{self.live[worst, asset]:.4%} live, {self.simulated[worst, asset]:.4%} simulated"
            lines.append(f"LIVE DECISIONS DIFFER from the simulated ones on {many} of {n} dates.")
            lines.append(f"Most on {self.dates[worst]}: {self.assets[asset]} {values}.")
        if files := sum(one.startswith(FILE) for one in self.holdings):
            lines.append(f"Current weights were read from a file on {files} dates and are taken as they were.")
        if self.other_model:
            lines.append(f"The model had other weights on {len(self.other_model)} dates, {self.other_model[0]} first.")
        lines.append(
            f"Net of costs since the first date: live {self.live_return:+.2%}, simulated {self.simulated_return:+.2%}, "
            f"without any trade {self.held_return:+.2%}."
        )
        return lines


def replay_journal(path: str | Path, table: pd.DataFrame) -> Replay:
    """Decide again on every date of a journal, from the table of returns alone.

    The state is read anew from the first row. Current weights are the simulated target after drift, and those of the
    journal where it read them from a file. γ, λ, cost, constraints and benchmark are those of each entry.
    """
    entries = read_run_entries(Journal(path))
    expect(entries, str(path), "a journal with decisions", "none")
    try:
        return _replay(entries, table)
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"{path}: expected entries of a portfolio, found {type(error).__name__} {error}") from None


def _replay(entries: list[dict[str, Any]], table: pd.DataFrame) -> Replay:
    names = [str(column) for column in table.columns]
    _match(entries, table, names)
    returns, rules = table.to_numpy(), []
    live, before = (
        np.array([[entry[key][name] for name in names] for entry in entries]) for key in ("weights", "previous")
    )
    simulated, starts, other = np.empty_like(live), np.empty_like(live), []
    load = cache(lambda name: Time2Decide.from_pretrained(name).policy)
    for k, entry in enumerate(entries):
        rows, terms = int(entry["data"]["rows"]), run_terms_from_entry(entry, names)
        rules.append(terms["constraints"])
        from_journal = k == 0 or entry["holdings"].startswith(FILE)
        current = before[k]
        if not from_journal:
            since = returns[int(entries[k - 1]["data"]["rows"]) : rows]
            current = weights_since_entry(entries[k - 1], starts[k - 1], simulated[k - 1], since, rules[k])
        equal = k == 0 and entry["holdings"] == EQUAL
        policy = load(entry["model"]["name"])
        made = decide_run(policy, returns[:rows], None if equal else current, terms)
        simulated[k], starts[k] = made.weights, made.previous
        other += [] if policy.fingerprint == entry["model"]["fingerprint"] else [entry["date"]]
    return Replay(
        [entry["date"] for entry in entries],
        names,
        live,
        simulated,
        [entry["holdings"] for entry in entries],
        other,
        live_return=_earned(entries, live, before, returns, rules),
        simulated_return=_earned(entries, simulated, starts, returns, rules),
        held_return=_earned(entries[:1], before[:1], before[:1], returns, rules),
    )


def _match(entries: list[dict[str, Any]], table: pd.DataFrame, names: list[str]) -> None:
    """Raise unless the table holds the rows that the decisions were made from."""
    last = entries[-1]
    expect(list(last["weights"]) == names, "table", "the assets of the journal in their order", "others")
    dates = label_texts(table.index)
    for entry in entries:
        rows, date = int(entry["data"]["rows"]), entry["date"]
        fits = 0 < rows <= len(table) and dates[rows - 1] == date
        expect(fits, "table", f"{date} in row {rows}, as in the journal", f"{len(table)} rows")
    same = data_fingerprint(table.iloc[: int(last["data"]["rows"])])["sha256"] == last["data"]["sha256"]
    expect(same, "table", f"the returns up to {last['date']} that the journal has seen", "others")


def _earned(
    entries: list[dict[str, Any]],
    weights: np.ndarray,
    before: np.ndarray,
    returns: np.ndarray,
    rules: list[Constraints | None],
) -> float:
    """Net return of targets (dates, m) that were decided from `before` and traded after their delay, up to the end."""
    wealth, now, terms, first = 1.0, before[0], rules[0], int(entries[0]["data"]["rows"])
    due: dict[int, list[int]] = {}  # row before which a trade is made -> its entries
    for k, entry in enumerate(entries):
        due.setdefault(int(entry["data"]["rows"]) + entry_delay(entry), []).append(k)
    for row in range(first, len(returns) + 1):
        for k in due.get(row, ()):
            wealth *= 1.0 - np.abs(weights[k] - before[k]).sum() * entries[k]["terms"]["cost_bps"] / 1e4
            now, terms = now if np.array_equal(weights[k], before[k]) else weights[k], rules[k]
        for earned in np.nan_to_num(returns[row : row + 1]):
            wealth *= 1.0 + float(portfolio_returns(now, earned, terms))
            now = drifted_weights(now, earned, terms)
    expect(math.isfinite(wealth), "journal", "weights that keep wealth finite", "others")
    return float(wealth - 1.0)
