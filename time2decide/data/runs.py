"""Runs without a change, and rows that stand there twice."""

from __future__ import annotations

import numpy as np

from time2decide.data.panel import Panel

_STILL = 1e-10  # of a return that is none
_OFTEN = 0.08  # of an asset's returns that are 0 between others
_SHARE = 0.5  # of the assets that stand still in a last row that is not complete


def find_still_rows(panel: Panel) -> np.ndarray:
    """Rows in which nothing moves; those in which the others do, by number."""
    live = np.flatnonzero(panel.live)
    finite = panel.finite[:, live]
    zero = (np.abs(panel.returns[:, live]) < _STILL) & finite
    some, still = finite.sum(1), zero.sum(1)
    flat = (still == some) & (some > 2)
    rows = len(flat)
    if flat[-1]:
        text = "nothing moves in the last row"
        panel.found.add("last_row_again", panel.date(-1), text, stops=bool(flat.sum() <= max(2, 0.002 * rows)))
    elif some[-1] >= 4 and still[-1] > _SHARE * some[-1] and (still > 0.3 * np.maximum(some, 1))[:-1].mean() < 0.01:
        text = f"{still[-1]} of {some[-1]} assets do not move in the last row"
        panel.found.add("last_row_partial", panel.date(-1), text, stops=False)
    on_end = flat[:-2] & flat[1:-1] & flat[2:] if rows > 2 else flat[:0]
    if flat.mean() > 0.5:
        text = f"nothing moves in {flat.mean():.0%} of the rows"
        panel.found.add("valued_seldom", "table", text)
    elif flat[:-1].mean() > 0.01 or on_end.any():
        places = [panel.date(int(t)) for t in np.flatnonzero(flat)]
        panel.found.add("holidays_filled", places, f"{flat.sum()} rows in which nothing moves", stops=False)
    return np.flatnonzero(still < 0.5 * np.maximum(some, 1)) if live.size > 2 else np.arange(rows)


def find_runs(panel: Panel) -> None:
    """Runs without a change of one asset, in the rows in which the others move."""
    active = find_still_rows(panel)
    if len(active) < 20:
        return
    still = (np.abs(panel.returns[active]) < _STILL) & panel.finite[active]
    known = np.maximum(panel.finite[active].sum(0), 1)
    share, lone = still.sum(0) / known, (still[1:-1] & ~still[:-2] & ~still[2:]).sum(0) / known
    often = (lone > _OFTEN) & (lone > 5 * np.median(lone[panel.live]) + 0.03) & (share < 0.6)
    text = [f"{one:.0%} of its returns are 0 while others move" for one in share]
    panel.mark(often, "stale", text.__getitem__, stops=False, drop=False)
    for j in np.flatnonzero(panel.live & (still.sum(0) >= 5)):
        _find_runs_of(panel, int(j), still[:, j], panel.finite[active, j], active)


def _find_runs_of(panel: Panel, j: int, zero: np.ndarray, finite: np.ndarray, active: np.ndarray) -> None:
    edges = np.flatnonzero(np.diff(np.r_[False, zero, False]))
    start, length = edges[::2], np.diff(edges)[::2]
    pause = np.diff(np.flatnonzero(~zero & finite))
    share, longest = zero.sum() / max(finite.sum(), 1), max(length, default=0)
    if share > 0.6 and len(pause) >= 6 and longest < 4 * np.median(pause) and np.median(pause) >= 3:
        regular = np.subtract(*np.quantile(pause, (0.9, 0.1))) <= 0.35 * np.median(pause) + 2
        text = f"moves in {1 - share:.0%} of the rows, every {np.median(pause):.0f}"
        panel.found.add("valued_seldom", panel.names[j], text, stops=bool(regular))
        return
    chance = np.log(max((zero.sum() - longest) / max(finite.sum() - longest, 1), 0.03))
    for i in np.argsort(-length)[:3]:
        if length[i] < 6 or np.log(len(active)) + length[i] * chance > np.log(1e-4):
            break
        end = start[i] + length[i]
        after = zero[end : end + 120]
        lively = bool(after.size and after.mean() < 0.3 and not (length[start > end] >= 15).any())
        first = start[i] == np.argmax(finite) and chance < np.log(0.4)
        _add_run(panel, j, int(start[i]), int(length[i]), active, first, lively)


def _add_run(panel: Panel, j: int, start: int, rows: int, active: np.ndarray, first: bool, lively: bool) -> None:
    """One run of an asset; `first`: before its first move, `lively`: it moves in nearly every row after it."""
    days, place = rows * (panel.days or 1.0), panel.at(active[start], j)
    if first:
        name = "zeros_before_listing" if lively else "stale"
        panel.found.add(name, place, f"{rows} rows of 0 before it moves", stops=days >= 40 and lively)
    elif start + rows == len(active):
        panel.found.add("stale", place, f"no change in the last {rows} rows while others move", stops=days >= 60)
    elif rows >= 15 or (panel.days or 1.0) > 2:
        panel.found.add("stale", place, f"{rows} rows without a change while others move", stops=days >= 250)


def find_copies(panel: Panel) -> None:
    """Rows of one value, prices on a line, and rows that stand there before, to the last bit."""
    live = np.flatnonzero(panel.live)
    x = panel.returns[:, live]
    y = np.nan_to_num(x)
    moves = np.abs(y) > _STILL
    if live.size >= 4:
        filled = np.where(panel.finite[:, live], x, np.nan)
        one = (np.nanmax(filled, axis=1) == np.nanmin(filled, axis=1)) & (moves.sum(1) >= 4)
        if one.any():
            places = [panel.date(int(t)) for t in np.flatnonzero(one)]
            panel.found.add("row_of_one_value", places, "every asset has the same return")
    _find_lines(panel, live, y)
    _find_repeated_rows(panel, y, moves)


def _find_lines(panel: Panel, live: np.ndarray, y: np.ndarray) -> None:
    """Prices on a line, or returns that do not change, over five rows."""
    if len(y) < 6:
        return
    step, later = np.abs(np.diff(y, axis=0)), np.abs(y[1:])
    if not _four((step < 0.5 * later) & (later > 1e-9)).any():
        return
    with_next = np.abs(np.diff(1 / y, axis=0) - 1) < 1e-7 * np.abs(1 / y[1:])
    run = _four((with_next | (step < 1e-7 * later)) & (later > 1e-9))
    columns = np.flatnonzero(run.any(axis=0))
    if columns.size:
        places = [panel.at(np.argmax(run[:, k]), live[k]) for k in columns]
        panel.found.add("interpolated", places, f"{run.sum() + 4} prices on a line", stops=False)


def _four(mask: np.ndarray) -> np.ndarray:
    """Where a mask is true in four rows on end."""
    pairs = mask[:-1] & mask[1:]
    return np.asarray(pairs[:-2] & pairs[2:])


def _find_repeated_rows(panel: Panel, y: np.ndarray, moves: np.ndarray) -> None:
    width, moving = y.shape[1], moves[-1]
    if len(y) > 1 and np.array_equal(y[-1], y[-2]) and moving.sum() >= 3 and np.unique(y[-1][moving]).size >= 3:
        text = "the last row of returns stands there twice"
        panel.found.add("last_row_again", panel.date(-1), text)
    join = int(np.ceil(6 / width))  # rows that hold enough numbers to be told from chance
    if len(y) <= join:
        return
    rich = np.lib.stride_tricks.sliding_window_view(moves.sum(1), join).sum(1) >= max(4, 0.5 * width)
    seen: dict[bytes, int] = {}
    again = []
    for t in map(int, np.flatnonzero(rich)):
        part = y[t : t + join]
        key = part.tobytes()
        if key in seen and np.unique(part).size > max(3, 0.3 * min(width, 20)):
            again.append((t + join - 1, t - seen[key]))
        seen[key] = t
    if again:
        last = again == [(len(y) - 1, 1)]
        text = f"{len(again)} rows equal those {again[-1][1]} rows before"
        panel.found.add("last_row_again" if last else "rows_repeated", panel.date(again[0][0]), text)
