"""Which assets of a table with gaps a decision is about, and what becomes of the others.

Constraints and a benchmark are stated for all assets. An asset that cannot be traded keeps its weight, whatever its
bounds say, and groups, exposures and the net exposure count it; what is left of them binds the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from time2decide.core.validation import InputError, expect
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
        """Current weights after delisted assets are sold and the proceeds spread over those that can be traded."""
        open_ = self.known & ~self.halted
        held = np.where(open_, np.maximum(previous, 0.0), 0.0)
        share = held / held.sum() if held.sum() > 0 else open_ / open_.sum()
        return np.asarray(np.where(self.delisted, 0.0, previous) + share * previous[self.delisted].sum())

    @property
    def fixed(self) -> np.ndarray:
        """Assets whose weight the decision does not change."""
        return ~self.known | self.halted

    def constraints(self, given: Constraints | None, start: np.ndarray) -> Constraints:
        """The constraints of all assets with those fixed that cannot be traded, from the weights after sales.

        A lower bound that asks for an asset which cannot be bought is refused.
        """
        rules = LONG_ONLY if given is None else given
        names = rules.assets or tuple(f"asset {i}" for i in range(len(start)))
        lower = rules.bounds(len(start))[0]
        for kind, mask in (("delisted", self.delisted), ("too young to be bought", self.young)):
            for i in np.flatnonzero(mask & (lower > np.maximum(start, 0.0) + _TOLERANCE)):
                found = f"{lower[i]:g}, but {names[i]} is {kind}"
                raise InputError(
                    f"constraints: expected a lower bound of {names[i]} of at most {start[i]:g}, found {found}"
                )
        return rules.fix(start, self.fixed)

    def outside(self, given: Constraints | None, start: np.ndarray) -> np.ndarray:
        """Assets that cannot be traded and are outside their bounds, (m,) bool."""
        lower, upper = (given or LONG_ONLY).bounds(len(start))
        off = (start < lower - _TOLERANCE) | (start > upper + _TOLERANCE)
        return np.asarray(self.fixed & ~self.delisted & off)

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
