"""Single moves against the noise around them, and what became of the move."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from time2decide.data.panel import TO_DEVIATION, Panel, median

_RATIOS = np.array([2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 100, 1000.0])  # of splits and units
_SURE = 3  # from 3 : 1 a split stops: shares do halve in a day (AAPL, 29 September 2000)
SENTINELS = frozenset(
    sign * value for sign in (1, -1) for value in (99, 999, 9999, 99999, 999999, 9999999, 99.99, 999.99, 1e10)
)
_MOST_CELLS = 400  # that are looked at one by one
_LEAST = 0.26  # of a move beside the market's, in logarithms
_NOTABLE = 9.0  # times the noise around it


def find_jumps(panel: Panel) -> None:
    """Moves that no market makes, of one asset or of most of them."""
    live = np.flatnonzero(panel.live)
    if not live.size:
        return
    _find_impossible(panel, live)
    _Jumps(panel, live).find()


def _find_impossible(panel: Panel, live: np.ndarray) -> None:
    """Returns of −1 and below."""
    x = panel.returns
    for t, k in np.argwhere(x[:, live] <= -1)[:50]:
        j = live[k]
        later = x[t + 1 :, j]
        gone = x[t, j] == -1 and not (np.abs(np.nan_to_num(later)) > 0).any()
        name = "total_loss" if gone else "sentinel" if x[t, j] in SENTINELS else "below_minus_one"
        panel.found.add(name, panel.at(t, j), f"a return of {x[t, j]:.6g}", stops=not gone)


class _Jumps:
    """The large moves of a panel; columns count among the live ones."""

    def __init__(self, panel: Panel, live: np.ndarray) -> None:
        self.panel, self.live, self.found = panel, live, panel.found
        x = panel.returns[:, live]
        self.scale = panel.scale[live]
        self.logs = np.log1p(np.where(x > -1, x, np.nan))
        rows = median(x, axis=1) if len(live) >= 4 else np.zeros(len(x))
        self.market = np.log1p(np.maximum(np.nan_to_num(rows), -0.99))
        self.alone = self.logs - self.market[:, None]

    def find(self) -> None:
        self._rows()
        large = (np.abs(self.alone) > np.maximum(_LEAST, 7 * self.scale)) & (np.abs(self.logs) > 0.2)
        cells = np.argwhere(large)
        cells = cells[np.argsort(-np.abs(self.alone[tuple(cells.T)]), kind="stable")[:_MOST_CELLS]]
        done = self._swaps(cells) if self.panel.prices is not None else set()
        for t, k in sorted((int(t), int(k)) for t, k in cells):
            if (t, k) not in done and ((t - 1, k) not in done or abs(self.alone[t, k]) > 0.6):
                done.update((t + later, k) for later in range(self._name(t, k) + 1))

    def _rows(self) -> None:
        """Rows in which most assets move alike."""
        few = np.isfinite(self.logs).sum(1) < 4
        move = np.where(few, 0, self.market)
        usual, span = float(np.median(self.scale)), self.panel.span
        for t in np.flatnonzero(np.abs(move) > max(0.3 * span**0.25, (12 if span < 2 else 8) * usual)):
            text = f"most assets move by the factor {np.exp(move[t]):.3g} in one row"
            self.found.add("row_jump", self.panel.date(t), text, stops=bool(abs(move[t]) > max(0.65, 15 * usual)))

    def _swaps(self, cells: np.ndarray) -> set[tuple[int, int]]:
        """Two assets that take each other's price."""
        done: set[tuple[int, int]] = set()
        assert self.panel.prices is not None
        for t in np.flatnonzero(np.isin(np.bincount(cells[:, 0], minlength=1), (2, 3, 4))):
            for a, b in combinations(sorted(cells[cells[:, 0] == t, 1]), 2):
                before, after = self.panel.prices[t : t + 2, self.live[[a, b]]]
                if np.abs(np.log(after[::-1] / before)).max() < 0.2 * np.abs(np.log(after / before)).max():
                    other = self.panel.names[self.live[b]]
                    text = f"takes the price of {other} and gives it its own"
                    self.found.add("columns_swapped", self.panel.at(t, self.live[a]), text)
                    done |= {(int(t), int(a)), (int(t), int(b))}
        return done

    def _noise(self, t: int, k: int) -> tuple[float, list[float]]:
        """The usual move around a row, the row and what follows it at once apart; before and after, where known."""
        column = self.alone[:, k]
        near = [
            part[np.isfinite(part) & (part != 0)]
            for part in (column[max(t - 31, 0) : max(t - 1, 0)], column[t + 7 : t + 37])
        ]
        calm = [TO_DEVIATION * float(np.median(np.abs(part))) for part in near if len(part) >= 8]
        return max(float(np.mean(calm)), 0.4 * self.scale[k]) if calm else float(self.scale[k]), calm

    def _name(self, t: int, k: int) -> int:
        """Name the move of an asset in a row; the number of later rows that belong to it."""
        size = abs(self.alone[t, k])
        local, calm = self._noise(t, k)
        if size / local < _NOTABLE:
            return -1
        place = self.panel.at(t, self.live[k])
        quoted = self.panel.cells[t + (self.panel.prices is not None), self.live[k]]
        if quoted in SENTINELS:
            self.found.add("sentinel", place, f"the value {quoted:.9g}")
            return 2
        back = self._comes_back(t, k, local, size)
        if back:
            self._add_print(t, k, local, size, back)
            return back
        self._add_step(t, k, local, size, calm)
        return 0

    def _asleep(self, t: int, k: int) -> bool:
        """Whether the price often does not change around a row."""
        around = self.panel.returns[max(t - 60, 0) : t + 60, self.live[k]]
        return bool((around == 0).mean() > 0.3)

    def _comes_back(self, t: int, k: int, local: float, size: float) -> int:
        """The number of rows after which a move is taken back, at most 5; else 0."""
        column = self.alone[:, k]
        for rows in range(1, min(6, len(column) - t)):
            back = column[t + rows] * column[t] < 0 and abs(column[t + rows]) > 0.6 * size
            left = abs(np.nansum(column[t : t + rows + 1]))
            near = 3 * local * (rows + 1) ** 0.5 + 0.05 * max(size - 0.4, 0.2)
            if back and left < max(near, 0.15 * size if size > 1.1 else 0.0):
                return rows
        return 0

    def _add_print(self, t: int, k: int, local: float, size: float, back: int) -> None:
        """A move that is taken back: a bad print, or a price in another unit."""
        unit = min(abs(size - np.log(100)), abs(size - np.log(1000))) < 4 * local + 0.02
        asleep, long = self._asleep(t, k), (self.panel.days or 1) > 1
        enough = 1.9 if asleep else 1.3 if local > 0.03 or long else np.log(_SURE - 0.8)
        sure = size > enough and size / local > (_NOTABLE if long else 12)
        name = "quote_unit" if unit else "bad_print" if sure else "jump"
        moved = f"times {np.exp(self.logs[t, k]):.4g}, usual move {local:.2%}"
        text = f"{moved}, back after {back} row{'s' * (back > 1)}"
        self.found.add(name, self.panel.at(t, self.live[k]), text, stops=name != "jump")

    def _add_step(self, t: int, k: int, local: float, size: float, calm: list[float]) -> None:
        """A move that stays: a split, another unit, or the market."""
        log, span, z = self.logs[t, k], self.panel.span, size / local
        ends = len(calm) < 2
        quiet = not ends and calm[1] < 2 * max(calm[0], 0.5 * self.scale[k])
        asleep = self._asleep(t, k) or (self.panel.days or 1) > 1
        ratio = _RATIOS[np.argmin(np.abs(np.log(_RATIOS) - size))]
        miss = min(abs(np.log(ratio) - size), abs(np.log(ratio) - abs(log)))
        exact = miss < 2.5 * local + 0.004 or (ratio >= 100 and miss < 0.25)
        place, moved = self.panel.at(t, self.live[k]), f"times {np.exp(log):.4g}, usual move {local:.2%}"
        about = f"{moved}, about {ratio:.0f} : 1"
        if exact and ratio >= 100:
            self.found.add("quote_unit", place, about)
        elif exact and (quiet or (ends and ratio >= 4)) and z > 12:
            low = (local < 0.03 and ratio >= 4) or (local < 0.028 and miss < 1.7 * local + 0.003)
            sure = bool(ratio >= _SURE and ((ratio >= 8 and local < 0.06) or (low and not asleep)))
            self.found.add("split" if sure else "jump", place, f"{about} on a quiet day", stops=sure)
        elif calm and z > 10 and abs(np.log(ratio) - abs(log)) < 1.5 * min(calm) + 0.004:
            self.found.add("jump", place, about, stops=False)
        elif size > 0.6 and z > 12 and (quiet or ends or size > 2.2):
            vast = z > 15 and size > np.log(9) * (1 if span < 2 else 1.5)
            self.found.add("jump", place, moved, stops=bool(vast and (log > 0 or quiet or ends)))
        elif size > 0.9:
            self.found.add("jump", place, moved, stops=False)
