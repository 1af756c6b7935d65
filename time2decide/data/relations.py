"""Each asset against the others: in the same row, a row before, a row after."""

from __future__ import annotations

import numpy as np

from time2decide.data.panel import Panel

_LAGS = (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)
_FEWEST = 60  # rows
_TWIN = 0.9985  # correlation of moves, clipped
_DECAY = 0.9 ** np.arange(40)


def find_relations(panel: Panel) -> None:
    """Assets that are one, late, turned, in another unit, or a mixture of the others."""
    live = np.flatnonzero(panel.live)
    rows = len(panel.returns)
    if live.size < 2 or rows < _FEWEST:
        return
    raw = np.where(panel.finite[:, live], panel.returns[:, live], 0.0) / panel.scale[live]
    twin = _find_twins(panel, live, raw)
    if live.size < 4:
        return
    moves = _unit(np.clip(raw, -4, 4).astype(np.float32))
    half = rows // 2
    for part in (slice(None), slice(None, half), slice(half, None)) if rows >= 400 else (slice(None),):
        _find_shifted(panel, live, moves[part], twin | twin.T, part)
    now = _with_others(moves)
    _find_sign_and_unit(panel, live, now)
    _find_turned(panel, live, moves)
    _find_mixture(panel, live, raw, now, twin | twin.T)


def find_direction(panel: Panel) -> None:
    """Falls come before large moves; in a table that runs backwards they come after them."""
    live = np.flatnonzero(panel.live)
    if live.size < 5 or len(panel.returns) < 250:
        return
    moves = np.where(panel.finite[:, live], np.clip(panel.returns[:, live] / panel.scale[live], -6, 6), np.nan)
    market = np.nanmean(moves, axis=1)
    market = np.where(np.isfinite(market), market - np.nanmedian(market), 0)
    size = np.minimum(np.abs(market), 5 * np.median(np.abs(market)))
    ahead, behind = (np.convolve(v - v.mean(), np.r_[0, _DECAY])[: len(market)] for v in (size[::-1], size))
    lean = market * (ahead[::-1] - behind)
    z = lean.mean() / max(lean.std(), 1e-300) * len(market) ** 0.5
    if z > 3:
        text = f"moves are larger before falls than after them (z = {z:.1f}; stocks: below 0)"
        panel.found.add("runs_backwards", "table", text, stops=False)


def _unit(z: np.ndarray) -> np.ndarray:
    """Columns without their mean, of length 1."""
    z = z - z.mean(0)
    return z / np.maximum(np.sqrt((z**2).sum(0)), 1e-12)


def _with_others(moves: np.ndarray) -> np.ndarray:
    """Correlation of every column with the sum of the others."""
    rest = moves.sum(1)[:, None] - moves
    return (moves * rest).sum(0) / np.maximum(np.sqrt((rest**2).sum(0)), 1e-12)


def _find_twins(panel: Panel, live: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """Pairs of columns whose moves are the same, in all rows or in the last third."""
    twin = np.zeros((live.size, live.size), dtype=bool)
    rows = len(raw)
    for part in (slice(None), slice(-(rows // 3), None)):
        moving = np.where(panel.moving[part][:, live], np.abs(raw[part]), 0.0)
        usual = moving.sum(0) / np.maximum((moving > 0).sum(0), 1)
        moves = _unit(np.clip(raw[part] / np.where(usual > 0, usual, 1), -6, 6).astype(np.float32))
        new = np.triu(np.abs(moves.T @ moves) > _TWIN, 1) & ~twin
        twin |= new
        for i, j in np.argwhere(new)[:20]:
            _add_twins(panel, live[i], live[j], part)
    return twin


def _add_twins(panel: Panel, i: int, j: int, part: slice) -> None:
    both = panel.finite[part][:, [i, j]].all(1)
    a, b = (np.where(both, panel.returns[part, k], np.nan) for k in (i, j))
    telling = np.abs(b) > panel.scale[j]
    if not (telling & both).any():
        return
    times = float(np.nanmedian((a / b)[telling]))
    apart = float(np.nanmedian(np.abs(a - b * times))) / panel.scale[i]
    text = f"their moves differ by {apart:.1e} of a usual move"
    stops = apart < 0.005 and abs(times - 1) < 0.02
    panel.found.add("same_asset", f"{panel.names[i]} = {times:.3g} {panel.names[j]}", text, stops=bool(stops))


def _rows_apart(rows: int, lag: int) -> tuple[slice, slice]:
    """Rows of a column, and those of the others that many rows off."""
    return slice(max(lag, 0), rows + min(lag, 0)), slice(max(-lag, 0), rows - max(lag, 0))


def _find_shifted(panel: Panel, live: np.ndarray, part_moves: np.ndarray, twin: np.ndarray, part: slice) -> None:
    """Columns that go with the others some rows off rather than in the same row."""
    moves = _unit(part_moves)
    rest = _unit(moves.sum(1)[:, None] - moves)
    now = (moves * rest).sum(0)
    pairs = [_rows_apart(len(moves), lag) for lag in _LAGS]
    off = np.array([(moves[own] * rest[other]).sum(0) for own, other in pairs])
    best, error = off.max(0), 1 / np.sqrt(panel.finite[part][:, live].sum(0).clip(1))
    whole = part == slice(None)
    late = (best - now > 0.06 + (3 if whole else 4) * error) & (now < 0.6 * best)
    for k in np.flatnonzero(late) if np.median(now) > 0.1 else ():
        which = int(off[:, k].argmax())
        own, other = pairs[which]
        others = ~twin[k] & (np.arange(len(now)) != k)
        peer = np.abs(moves.T @ moves[:, k])[others].max(initial=0)
        lagged = np.abs(moves[other].T @ moves[own, k])[others].max(initial=0)
        name = panel.names[live[k]]
        if lagged <= peer or name in panel.found.where("shifted"):
            continue
        lag = _LAGS[which]
        text = f"correlation with the others {now[k]:.2f}, {abs(lag)} row{'s' * (abs(lag) > 1)}"
        text += f" {'later' if lag > 0 else 'earlier'} {best[k]:.2f}"
        stops = best[k] - now[k] > 0.1 + 4 * error[k] and lagged > peer + 2 * error[k]
        panel.found.add("shifted", name, text, stops=bool(stops))


def _find_sign_and_unit(panel: Panel, live: np.ndarray, now: np.ndarray) -> None:
    """The one column that goes against all others, and those that go with them by a hundredth."""
    error, k = 1 / np.sqrt(panel.count[live]), np.argmin(now)
    against = now < -np.maximum(0.15, 6 * error)
    if live.size >= 5 and against.sum() == 1 and np.median(now) > 0.25 and (np.delete(now, k) > -0.03).all():
        text = f"correlation with the others {now[k]:.2f}, and theirs are positive"
        panel.found.add("sign", panel.names[live[k]], text, stops=False)
    scale = panel.scale[live]
    for k in np.flatnonzero((scale < np.median(scale) / 25) & (now > 0.25)):
        text = f"usual move {scale[k]:.2g} where the others have {np.median(scale):.2g}"
        text += f", and moves with them ({now[k]:.2f})"
        panel.found.add("column_unit", panel.names[live[k]], text, stops=False)


def _find_turned(panel: Panel, live: np.ndarray, moves: np.ndarray) -> None:
    """Columns that go with the others in a part of the rows, and against them in another."""
    parts = [part for part in np.array_split(moves, 4) if len(part) >= _FEWEST]
    if len(parts) < 2 or live.size < 5:
        return
    known = np.array([part.sum(0) for part in np.array_split(panel.finite[:, live], 4)])
    now = np.array([_with_others(_unit(part)) for part in parts])  # (parts, m)
    now = np.where(known >= _FEWEST, now, 0.0)
    together = np.median(now, axis=1) > 0.25
    least = now[together].min(0, initial=1.0) if together.any() else np.ones(live.size)
    most = now[together].max(0, initial=-1.0) if together.any() else np.ones(live.size)
    for k in np.flatnonzero((least < -max(0.25, 6 / len(parts[0]) ** 0.5)) & (most > 0.25)):
        text = f"correlation with the others {most[k]:.2f} in a quarter of the rows, {least[k]:.2f} in another"
        panel.found.add("sign", panel.names[live[k]], text, stops=False)


def _find_mixture(panel: Panel, live: np.ndarray, raw: np.ndarray, now: np.ndarray, twin: np.ndarray) -> None:
    """A column that the others explain."""
    n, rows = live.size, len(raw)
    if rows > 3 * n >= 18:
        moves = np.clip(raw, -20, 20)
        moves = moves / np.maximum(np.sqrt((moves**2).sum(0)), 1e-12)
        own = 1 / np.diag(np.linalg.inv(moves.T @ moves + 1e-7 * np.eye(n)))  # variance that the others leave
        own[twin.any(0)] = 1
        for k in np.argsort(own)[:3]:
            if own[k] < min(0.02, 0.4 * np.median(own), 30 * own.min()) and now[k] > 0.7:
                text = f"{1 - own[k]:.2%} of it is a mixture of the others"
                panel.found.add("index_of_members", panel.names[live[k]], text, stops=False)
    elif n >= 6 and 1 - now.max() < min(0.06, 0.4 * (1 - np.sort(now)[-2])):
        text = f"correlation {now.max():.3f} with the mean of the others"
        panel.found.add("index_of_members", panel.names[live[int(np.argmax(now))]], text, stops=False)
