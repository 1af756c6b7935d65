"""Returns beyond what an asset's volatility allows: cut off, held back for a row, or taken for a bad price.

A return of more than six standard deviations (of the volatility before it) is *far*. A far return

- that other assets share is cut off at six standard deviations;
- of one asset alone waits for the asset's next return. If that takes it back, so that of both together a quarter and
  not more than six standard deviations are left, or three, the price between them was bad and neither counts. Else the
  far one counts, cut off, a row late;
- after another far one of like size is a jump in the level of volatility: it is cut off at six times the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FAR = 6.0  # standard deviations
UNUSUAL = ("cut off", "bad price")
_BACK, _LEAST_BACK = 0.25, 3.0  # part of a far (log) return that may be left of a bad price, and standard deviations


class UnusualReturns(NamedTuple):
    """Returns of an asset that did not count as they are: how many, and after how many rows the last one."""

    asset: int
    kind: str  # one of UNUSUAL
    times: int
    last_row: int


class Screened(NamedTuple):
    """A row of returns as it counts, (m,) each.

    returns : cut off, 0 where they do not count
    counts : bool, of this row
    late : size of the return that waited and counts now, else 0
    far : return of this row if it is far, else 0; of a gap that of the row before
    waits : bool, whether `far` waits for the next return
    cut, bad : bool, where a return was cut off, and where this and the one before were a bad price
    """

    returns: np.ndarray
    counts: np.ndarray
    late: np.ndarray
    far: np.ndarray
    waits: np.ndarray
    cut: np.ndarray
    bad: np.ndarray


def screen_row(
    returns: np.ndarray, seen: np.ndarray, old: np.ndarray, unit: np.ndarray, far: np.ndarray, waits: np.ndarray
) -> Screened | None:
    """Screen returns (m,), 0 in gaps; `seen` are there and `old` have a volatility `unit`. None if nothing is far.

    `far` and `waits` are those of the row before.
    """
    size = np.abs(returns) / unit
    beyond = old & (size > FAR)
    if not (beyond.any() or far.any()):
        return None
    before = np.abs(far)
    left = np.clip(_BACK * np.abs(np.log1p(np.maximum(far, -0.99))), _LEAST_BACK * unit, FAR * unit)
    bad = seen & waits & (np.abs((1 + far) * (1 + returns) - 1) <= left)
    most = np.where(old, FAR * np.maximum(unit, before), np.inf)
    alone = (np.abs(returns) > most) & ~bad & (size > FAR * max(1.0, _typical(size[old])))
    released = seen & waits & ~bad
    confirmed = np.where(beyond & ~alone, np.abs(returns), 0.0)
    counts = seen & ~bad & ~alone
    return Screened(
        returns=np.where(counts, np.clip(returns, -most, most), 0.0),
        counts=counts,
        late=np.where(released, np.minimum(before, FAR * np.maximum(unit, confirmed)), 0.0),
        far=np.where(seen, np.where(beyond & ~bad, returns, 0.0), far),
        waits=np.where(seen, alone, waits),
        cut=(counts & (np.abs(returns) > most)) | (released & (before > FAR * np.maximum(unit, confirmed))),
        bad=bad,
    )


def _typical(size: np.ndarray) -> float:
    """Median size of the others of a far asset: of all but the largest."""
    rest = len(size) - 1
    return float(np.partition(size, (rest - 1) // 2)[(rest - 1) // 2]) if rest > 0 else 0.0


def unusual_returns(found: np.ndarray) -> list[UnusualReturns]:
    """Counts and last rows (kinds, 2, m) as a list."""
    return [
        UnusualReturns(int(asset), kind, int(count[asset]), int(last[asset]))
        for kind, (count, last) in zip(UNUSUAL, found, strict=True)
        for asset in np.flatnonzero(count)
    ]
