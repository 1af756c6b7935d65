"""Which assets of a table with gaps a decision is about, and what becomes of the others.

Constraints and a benchmark are stated for all assets. An asset that cannot be traded keeps its weight: its bounds wait,
and so do groups and exposures of such assets only. Other groups and exposures and the net exposure count it; what is
left of them binds the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from time2decide.core.validation import expect
from time2decide.markets.constraints import LONG_ONLY, Constraints

DELISTED, _ENOUGH = 21, 63  # rows without a return that mean delisted; returns that an asset must have to be bought
_WHOLE = 0.8  # share of a shorter table that is enough
_TOLERANCE = 1e-9  # of a bound


@dataclass(frozen=True)
class Availability:
    """What can be done with each asset of a table with gaps, (m,) bool each.

    delisted : no return in the last 21 rows; it is sold, and the proceeds go to the others in proportion
    halted : no return on the last row; its weight stays
    young : fewer than 63 returns, and none on a fifth of the rows; it is not bought, and what is held of it stays
    """

    delisted: np.ndarray
    halted: np.ndarray
    young: np.ndarray

    @classmethod
    def of(cls, returns: np.ndarray) -> Availability:
        """From returns (time, m) with NaN where there are none."""
        seen = np.isfinite(returns)
        delisted = ~seen[-DELISTED:].any(axis=0)
        enough = min(_ENOUGH, _WHOLE * len(seen))
        return cls(delisted, ~seen[-1] & ~delisted, (seen.sum(axis=0) < enough) & ~delisted)

    @property
    def known(self) -> np.ndarray:
        """Assets that a decision is about."""
        return ~(self.delisted | self.young)

    def after_sales(self, previous: np.ndarray) -> np.ndarray:
        """Current weights (..., m) after delisted assets are sold.

        The proceeds go to those that can be traded, in proportion to what is held of them; to all known ones where
        none can.
        """
        open_ = self.known & ~self.halted
        open_ = open_ if open_.any() else self.known
        held = np.where(open_, np.maximum(previous, 0.0), 0.0)
        total, even = held.sum(-1, keepdims=True), np.broadcast_to(open_ / open_.sum(), held.shape)
        share = np.divide(held, total, out=even.copy(), where=total > 0)
        proceeds = previous[..., self.delisted].sum(-1, keepdims=True)
        return np.asarray(np.where(self.delisted, 0.0, previous) + share * proceeds)

    @property
    def fixed(self) -> np.ndarray:
        """Assets whose weight the decision does not change."""
        return ~self.known | self.halted

    def constraints(self, given: Constraints | None, start: np.ndarray) -> Constraints:
        """The constraints of all assets with those fixed that cannot be traded, from the weights after sales."""
        return (LONG_ONLY if given is None else given).fix(start, self.fixed)

    def outside(self, given: Constraints | None, start: np.ndarray, names: Sequence[str]) -> list[str]:
        """What waits until assets can be traded: those outside their bounds, and groups and exposures of them only."""
        rules = LONG_ONLY if given is None else given
        lower, upper = rules.bounds(len(start))
        off = self.fixed & ((start < lower - _TOLERANCE) | (start > upper + _TOLERANCE))
        kept = {one.name for one in self.constraints(given, start).limits}
        return [names[int(i)] for i in np.flatnonzero(off)] + [one.name for one in rules.limits if one.name not in kept]

    def benchmark(self, given: np.ndarray | None, start: np.ndarray) -> np.ndarray | None:
        """The benchmark over all assets: what it has in unknown ones beyond `start` goes to the known in proportion."""
        if given is None:
            return None
        inside = np.where(self.known, given, 0.0)
        rest = float((given - start)[~self.known].sum())
        factor = 1.0 + rest / inside.sum() if (inside >= 0).all() and inside.sum() > _TOLERANCE else 1.0
        return np.where(self.known, factor * given, start)

    def describe(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Names by kind."""
        kinds = {"delisted": self.delisted, "halted": self.halted, "young": self.young}
        return {kind: [names[int(i)] for i in np.flatnonzero(mask)] for kind, mask in kinds.items()}


def enough_assets(can: Availability) -> None:
    """Raise unless a decision has a choice."""
    expect((can.known & ~can.halted).sum() >= 2, "returns", f"2 assets with {_ENOUGH} returns and one today", "fewer")
