"""Tables and columns that are no simple returns, or not in the unit of the others."""

from __future__ import annotations

import numpy as np

from time2decide.data.panel import TO_DEVIATION, Panel, median, memory_of

_WILD = 0.11  # a day: no table of assets has a usual move that large
_WILD_UNDATED = 0.35
_HIGHEST_RATE = 0.0015  # a day: 45 % a year, without ever falling
_CHANGED = 35.0  # times its usual move, in a row of most assets: a crash has 20
_IMPOSSIBLE = 0.4  # a day: the usual size of a row's moves
_BLOCKS = 8
_TIES = 5  # returns that are exactly the largest of their column
_MISS = 0.15  # by which an autocorrelation differs from that of overlapping returns
_LONGEST = 30  # rows that returns may overlap


def find_table_faults(panel: Panel) -> bool:
    """Faults of the table as a whole; whether its columns are worth a look."""
    panel.mark(panel.finite.sum(0) < 3, "no_data", lambda j: "fewer than 3 numbers", stops=False)
    flat = panel.high - panel.low <= 1e-12 * np.maximum(np.abs(panel.high), 1e-3)
    large = bool((flat & panel.live & (np.abs(panel.high) > 0.05)).any())
    panel.mark(flat, "constant", lambda j: f"is always {panel.high[j]:.6g}", stops=large)
    if not panel.live.any():
        return False
    return not (_overlaps(panel) or _is_other_kind(panel) or _is_other_unit(panel))


def _is_other_kind(panel: Panel) -> bool:
    """Prices for returns and the reverse, logarithms of prices, gross returns."""
    x, live, root = panel.returns, panel.live, panel.root
    if panel.prices is not None:
        return _prices_are_none(panel)
    level = live & (panel.memory > 0.9) & (panel.deviation > 0.02 * root)
    level |= live & (panel.memory > 0.8) & (panel.low > 0) & (panel.centre > 0.02 * root)
    if level.sum() > 0.5 * live.sum():
        middle = np.abs(panel.centre[level])
        change = TO_DEVIATION * median(np.abs(np.diff(x[:, level], axis=0)))
        small = np.median(change / middle) < 0.006 * root or (panel.low[level] <= 0).mean() > 0.2
        log = small and np.median(change) < 0.15 * root and np.median(middle) < 15
        text = f"values around {np.median(panel.centre[level]):.4g} follow their own last value"
        text += f" (autocorrelation {np.median(panel.memory[level]):.3f})"
        panel.found.add("log_prices" if log else "prices_given_as_returns", "table", text)
        return True
    spread = TO_DEVIATION * median(np.abs(x - panel.centre))
    near_one = (np.abs(panel.centre - 1) < 0.25) & (spread < min(0.3 * root, 0.5)) & (panel.low > 0)
    if (near_one & live).sum() > 0.5 * live.sum():
        panel.found.add("gross_returns", "table", f"values lie around {np.median(panel.centre[live]):.4f}")
        return True
    panel.mark(near_one, "gross_returns", lambda j: f"values lie around {panel.centre[j]:.4f}")
    return False


def _prices_are_none(panel: Panel) -> bool:
    """Whether what was given as prices has no memory of its level, or is the logarithm of prices."""
    cells, live = panel.cells, panel.live
    if (cells < 0).mean() > 0.2:
        panel.found.add("returns_given_as_prices", "table", "a fifth of the prices is negative")
        return True
    middle = median(cells)
    spread = TO_DEVIATION * median(np.abs(cells - middle))
    memory = memory_of(np.clip((cells - middle) / np.maximum(spread, 1e-300), -4, 4))
    if np.median(memory[live]) < 0.5 and len(cells) >= 40:
        ones = np.median(np.abs(middle[live] - 1)) < 0.25
        text = f"values around {np.median(middle[live]):.4g} do not follow their own last value"
        panel.found.add("gross_returns" if ones else "returns_given_as_prices", "table", text)
        return True
    change = TO_DEVIATION * median(np.abs(np.diff(cells, axis=0)))[live]
    level = middle[live]
    digits = np.abs(cells * 1e4 - np.round(cells * 1e4))[np.isfinite(cells)].mean() > 0.05  # more than 4 decimals
    apart = np.nanstd(cells[np.argmax(np.isfinite(cells).all(1))]) > 0.1
    moves = np.median(change / level) < 0.006 * panel.root and np.median(change) > 0.004 * panel.root
    if (
        panel.days
        and live.sum() >= 3
        and digits
        and apart
        and moves
        and 2 < np.median(level) < 9.5
        and level.max() < 12
    ):
        panel.found.add(
            "log_prices", "table", f"values around {np.median(level):.3g} change by {np.median(change):.2g}"
        )
        return True
    return False


def _is_other_unit(panel: Panel) -> bool:
    """Per cent or basis points, in all rows or from one row on."""
    live, root = panel.live, panel.root
    wild = _WILD * root if panel.days else _WILD_UNDATED
    impossible = (panel.below > np.maximum(0.01 * panel.count, 1))[live].mean() > 0.5
    if (impossible or panel.usual > wild) and not _changes_unit(panel):
        low = float(panel.below.sum())
        name = "percent" if panel.usual / root < 15 else "basis_points"
        panel.found.add(name, "table", f"a usual move is {panel.usual:.3g}, {low:.0f} returns lie below -1")
        return True
    if panel.prices is None:
        _find_changed_rows(panel)
    return False


def _changes_unit(panel: Panel) -> bool:
    """Whether a part of the rows is in the unit that the others are not in."""
    sizes = _block_scales(panel)
    return bool(np.nanmax(sizes) > 30 * np.nanmin(sizes)) if np.isfinite(sizes).sum() > 1 else False


def _block_scales(panel: Panel) -> np.ndarray:
    """The usual move of the usual asset in stretches of rows."""
    blocks = np.array_split(np.abs(np.where(panel.moving, panel.returns, np.nan)[:, panel.live]), _BLOCKS)
    sizes = [median(median(block)) if np.isfinite(block).any() else np.nan for block in blocks]
    return np.array(sizes, dtype=float)


def _find_changed_rows(panel: Panel) -> None:
    """Rows in which most assets move by many times what is usual; they are left out of what follows."""
    live = np.flatnonzero(panel.live & (panel.scale > 0))
    if len(live) < 3:
        return
    sizes = _block_scales(panel)
    usual = panel.scale[live]
    if np.isfinite(sizes).any() and np.nanmax(sizes) > 30 * np.nanmin(sizes):
        usual = usual * np.nanmin(sizes) * TO_DEVIATION / max(panel.usual, 1e-300)
    ratio = median(np.where(panel.finite[:, live], np.abs(panel.returns[:, live]) / usual, np.nan), axis=1)
    size = median(np.where(panel.finite[:, live], np.abs(panel.returns[:, live]), np.nan), axis=1)
    for t in np.flatnonzero((ratio > 10) & (ratio <= _CHANGED)):  # a calm row in per cent
        ratio[t] = np.nanquantile(np.abs(panel.returns[t, live]) / usual, 0.7)
    rows = np.flatnonzero((ratio > _CHANGED) | ((ratio > 10) & (size > _IMPOSSIBLE * panel.span**0.25)))
    if rows.size:
        places = [panel.date(int(t)) for t in rows]
        text = f"{rows.size} rows with moves of {np.median(ratio[rows]):.0f} times the usual ones"
        panel.found.add("unit_changes", places, text)
        near = np.flatnonzero(ratio > 12)
        panel.returns = panel.returns.copy()
        panel.returns[near if rows.size > 2 else rows] = np.nan
        panel.finite = np.isfinite(panel.returns)
        panel.measure()


def _overlaps(panel: Panel) -> bool:
    """Returns over k rows, in every row: the autocorrelation falls on a line to 0 at k."""
    x = panel.returns[:, panel.live]
    if panel.prices is not None or len(x) < 60 or np.median(panel.low[panel.live]) > 0:
        return False
    x = np.clip((x - panel.centre[panel.live]) / panel.deviation[panel.live], -4, 4)
    if np.median(memory_of(x)) < 0.4:
        return False
    got = [float(np.median(memory_of(x, lag))) for lag in range(1, min(_LONGEST, len(x) // 4))]
    misses = {
        k: max(abs(one - max(1 - lag / k, 0)) for lag, one in enumerate(got[: k + 2], 1))
        for k in range(2, _LONGEST - 4)
    }
    k = min(misses, key=lambda rows: misses[rows])
    if misses[k] > _MISS:
        return False
    panel.found.add("overlapping", "table", f"returns over {k} rows in every row (autocorrelation {got[0]:.2f})")
    return True


def find_column_faults(panel: Panel) -> None:
    """Columns that are no returns, or in another unit; they take no part in what follows."""
    x, low, scale, count, live = panel.returns, panel.low, panel.scale, panel.count, panel.live
    usual = panel.usual
    panel.mark(_rises_evenly(panel), "row_numbers", lambda j: "rises by the same step in every row")
    _find_rates(panel, usual)
    middle = np.abs(panel.centre)
    level = (low > 0) & (panel.centre > 0.2) | (panel.memory > 0.9) & (middle > 0.2)
    level |= (panel.memory > 0.95) & (scale > 0.02 * panel.root)
    panel.mark(level, "levels", lambda j: f"values around {panel.centre[j]:.4g} are no returns")
    logs = np.log1p(np.where(x > -1, x, np.nan))
    noise = TO_DEVIATION * median(np.abs(logs))
    back = memory_of(np.clip(logs / np.maximum(noise, 1e-12), -4, 4))
    among = np.median(noise[live]) if live.any() else 0.0
    volume = (noise > max(6 * among, 0.12)) & (back < -0.15) & (panel.below == 0)
    panel.mark(
        volume,
        "volume",
        lambda j: f"usual change {noise[j]:.0%}, taken back in the next row (correlation {back[j]:.2f})",
    )
    wild = _WILD * panel.root if panel.days else _WILD_UNDATED
    unit = (panel.below > np.maximum(0.003 * count, 2)) | (scale * panel.moving.mean(0) ** 0.5 > wild)
    text = "usual move {:.3g} where the others have {:.3g}, {} returns below -1"
    panel.mark(unit, "column_unit", lambda j: text.format(scale[j], usual, panel.below[j]))
    never = (low >= 0) & (count > 60) & (scale > 0.1 * usual)
    panel.mark(never, "never_falls", lambda j: f"{count[j]} returns, none below 0")
    _find_changed_columns(panel)
    panel.mark(
        (panel.memory > 0.6) & (count > 100),
        "smoothed",
        lambda j: f"each return resembles the last ({panel.memory[j]:.2f})",
        stops=False,
    )
    _find_clipped(panel)
    panel.live &= panel.scale > 0


def _rises_evenly(panel: Panel) -> np.ndarray:
    """Columns that are numbers of rows, as levels or as returns of them."""
    x, step = panel.returns, np.diff(panel.cells, axis=0)
    even = median(step)
    steady = (np.nanmax(np.abs(step - even), axis=0) <= 1e-6 * np.abs(even)) & (even != 0)
    grow = np.diff(1 / np.where(x == 0, np.nan, x), axis=0)
    counted = (np.nanmax(np.abs(grow - 1), axis=0) < 1e-3) & (panel.low > 0)
    return (steady | counted) & (np.isfinite(step).sum(0) > 18)


def _find_rates(panel: Panel, usual: float) -> None:
    """Columns that never fall: cash, a rate a year, or returns without their signs."""
    low, count, scale = panel.low, panel.count, panel.scale
    rate = (low >= 0) & ((count > 60) & (panel.memory > 0.7) | (count > 250) & (scale < 0.1 * usual))
    rate &= panel.centre < 0.2
    high = rate & (panel.centre > _HIGHEST_RATE * panel.span)
    panel.mark(high, "cash_rate_unit", lambda j: f"never falls, and earns {panel.centre[j]:.3g} in every row")
    panel.mark(rate, "cash_rate", lambda j: "never falls: a risk-free rate or cash", stops=False)


def _find_changed_columns(panel: Panel) -> None:
    """Columns whose moves become many times as large, or as small, while those of the others do not."""
    if len(panel.returns) < 20 * _BLOCKS:
        return
    starts = np.linspace(0, len(panel.returns), _BLOCKS, endpoint=False).astype(int)
    size = np.where(panel.moving, np.minimum(np.abs(panel.returns), 1.0), 0.0)
    total, count = (np.add.reduceat(part, starts, axis=0, dtype=float) for part in (size, panel.moving))
    sizes = np.log(np.where(count >= 5, total / np.maximum(count, 1), np.nan))  # (blocks, m)
    change = np.abs(sizes[2:] - sizes[:-2])
    own = change - median(change, axis=1)[:, None]
    most = np.nanmax(np.where(np.isfinite(own), own, 0.0), axis=0)
    text = [f"its usual move becomes {np.exp(one):.0f} times as large, or as small" for one in most]
    panel.mark(most > np.log(25), "unit_changes", text.__getitem__, stops=False, drop=False)


def _find_clipped(panel: Panel) -> None:
    """Columns whose largest moves are all the same."""
    for sign, end in ((1, panel.high), (-1, panel.low)):
        ties = (panel.finite & (np.abs(panel.returns - end) < 1e-12)).sum(0)
        cut = (ties >= np.maximum(_TIES, 0.004 * panel.count)) & (sign * end > 1.2 * panel.scale) & (panel.count > 40)
        text = [f"{n} returns are exactly {value:.4g}" for n, value in zip(ties, end, strict=True)]
        panel.mark(cut, "clipped", text.__getitem__, stops=False, drop=False)
