"""A market whose assets come and go: who can be held and traded when some returns are missing, and what it earns.

`Availability` says it for one decision after the last row, `Universe` for every step of a backtest. The rules of the
latter, for a table of returns with NaN where an asset has none:

- **Not listed.** An asset without any return in the table, as one delisted before its first row, is never held.
- **Listed late.** An asset enters once `window` rows have passed since its first return and 95 % of them were observed;
  before that it cannot be bought. Every strategy has the same rule, so all choose from the same assets.
- **Missed rows and halts.** While an asset has no return its price stands still: it earns 0, and the return over the
  gap is earned in the row in which it comes back. Without a return on the last row an asset cannot be traded: its
  weight stays. Without a return in the last 21 rows no strategy sees it: the others are decided as a portfolio of their
  own. What is held of it is sold when it has a price again, and it enters as a new one does.
- **Delisted.** A column that ends is delisted, not halted; of all facts about the future this one alone is used, since
  it is announced, and no strategy sees it. 21 rows after its last return a holding is paid out at `delisting_return` on
  its last price, and the proceeds go, in proportion, to the other holdings that can be traded. Sales of this kind are
  outside the turnover budget; their costs are charged.
- **Constraints.** The bounds of an asset that cannot be traded wait, as do groups and exposures of such assets only.
  Where halted weights leave no portfolio that meets the rest, nothing is traded.

Nothing else is filled in. A strategy sees the assets of the moment with complete windows.

For one decision constraints and a benchmark are stated for all assets. An asset that cannot be traded keeps its weight:
its bounds wait, and so do groups and exposures of such assets only. Other groups and exposures and the net exposure
count it; what is left of them binds the others. A young asset is not bought. One that is held can be sold, and counts
in the risk as a mean asset of the others does: with their mean volatility and beta.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from time2decide.core.validation import InputError, expect, validate_count, validate_interval
from time2decide.markets.constraints import LONG_ONLY, Constraints
from time2decide.markets.orders import unmet
from time2decide.markets.validation import looks_like_prices

ENOUGH = 0.95  # share of the window that must have been observed before a backtest buys an asset
DELISTED = 21  # rows without a return after which no strategy sees an asset
#: Mean return of stocks delisted for poor performance: Shumway, "The delisting bias in CRSP data" (1997).
DELISTING_RETURN = -0.3
_BOUGHT = 63  # returns that an asset must have before one decision buys it
_WHOLE = 0.8  # share of a shorter table that is enough
_TOLERANCE = 1e-9  # of a benchmark


@dataclass(frozen=True)
class Availability:
    """Which assets of a table with gaps can be traded, (m,) bool each.

    delisted : no return in the last 21 rows, as one that is halted for long; its weight stays, too
    halted : no return on the last row; its weight stays
    young : fewer than 63 returns, and none on a fifth of the rows; it is not bought, and may be sold
    held : with a current weight
    """

    delisted: np.ndarray
    halted: np.ndarray
    young: np.ndarray
    held: np.ndarray

    @classmethod
    def of(cls, returns: np.ndarray, previous: np.ndarray | None = None) -> Availability:
        """From returns (time, m) with NaN where there are none, and current weights (m,), if any."""
        seen = np.isfinite(returns)
        held = np.zeros(seen.shape[1], dtype=bool) if previous is None else previous != 0
        delisted = ~seen[-DELISTED:].any(axis=0)
        few = seen.sum(axis=0) < min(_BOUGHT, _WHOLE * len(seen))
        return cls(delisted, ~seen[-1] & ~delisted, few & (held | ~delisted), held)

    @property
    def mature(self) -> np.ndarray:
        """Assets whose own returns say their risk."""
        return ~((self.delisted & ~self.held) | self.young)

    @property
    def known(self) -> np.ndarray:
        """Assets that a decision is about: the risk of young ones that are held is taken from the mature."""
        return self.mature | (self.young & self.held)

    def after_sales(self, previous: np.ndarray) -> np.ndarray:
        """Current weights (..., m) of a backtest after delisted assets are paid out.

        The proceeds go to those that can be traded, in proportion to their weights; to all known ones where
        none can.
        """
        open_ = self.known & ~self.halted
        open_ = open_ if open_.any() else self.known
        weights = np.where(open_, np.maximum(previous, 0.0), 0.0)
        total, even = weights.sum(-1, keepdims=True), np.broadcast_to(open_ / open_.sum(), weights.shape)
        share = np.divide(weights, total, out=even.copy(), where=total > 0)
        proceeds = previous[..., self.delisted].sum(-1, keepdims=True)
        return np.asarray(np.where(self.delisted, 0.0, previous) + share * proceeds)

    @property
    def fixed(self) -> np.ndarray:
        """Assets whose weight the decision does not change."""
        return ~self.known | self.halted | self.delisted

    def constraints(self, stated: Constraints | None, start: np.ndarray) -> Constraints:
        """The constraints of all assets with those fixed that cannot be traded; young ones are not bought."""
        closed = self.fixed | self.young
        rules = (LONG_ONLY if stated is None else stated).fix(start, closed)
        sold, bounds = closed & ~self.fixed, (LONG_ONLY if stated is None else stated).bounds(len(start))
        least, most = np.minimum(start, 0.0), np.maximum(start, 0.0)  # of what can be sold, or bought back
        ends = zip(bounds, rules.bounds(len(start)), strict=True)
        lower, upper = (np.where(sold, np.clip(one, least, most), kept) for one, kept in ends)
        return replace(rules, lower=lower, upper=upper)

    def outside(self, stated: Constraints | None, start: np.ndarray, names: Sequence[str]) -> dict[str, str]:
        """What is not met because it cannot be traded, in words by name: assets outside their bounds, and limits on
        such assets only."""
        rules = LONG_ONLY if stated is None else stated
        lower, upper = rules.bounds(len(start))
        rows = zip(names, start, lower, upper, strict=True)
        closed = self.fixed | self.young
        found = {row[0]: unmet(*row) for row, kept in zip(rows, closed, strict=True) if kept}
        kept = {one.name for one in self.constraints(stated, start).limits}
        for one in rules.limits:
            if one.name not in kept:
                value = float(one.coefficients @ start)
                found[one.name] = unmet(one.name, value, one.low, one.high, one.size) or f"{one.name} {value:.6g}"
        return {name: words for name, words in found.items() if words}

    def benchmark(self, stated: np.ndarray | None, start: np.ndarray) -> np.ndarray | None:
        """The benchmark over all assets: what it has in unknown ones beyond `start` goes to the known in proportion."""
        if stated is None:
            return None
        inside = np.where(self.known, stated, 0.0)
        rest = float((stated - start)[~self.known].sum())
        factor = 1.0 + rest / inside.sum() if (inside >= 0).all() and inside.sum() > _TOLERANCE else 1.0
        return np.where(self.known, factor * stated, start)

    def describe(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Names by kind."""
        kinds = {"delisted": self.delisted, "halted": self.halted, "young": self.young}
        return {kind: [names[int(i)] for i in np.flatnonzero(mask)] for kind, mask in kinds.items()}


def with_untradable_weights(weights: Any, names: Sequence[Any] | None, returns: np.ndarray) -> Any:
    """Current weights with 0 for assets of returns (time, m) that a Series leaves out and that cannot be traded."""
    if not hasattr(weights, "reindex") or names is None or weights.index.has_duplicates:
        return weights
    can = Availability.of(returns)
    absent = [names[int(i)] for i in np.flatnonzero(can.fixed) if names[int(i)] not in weights.index]
    return weights.reindex([*weights.index, *absent], fill_value=0.0) if absent else weights


def gap_summary(returns: np.ndarray) -> str:
    """The gaps of returns (time, m) in one line: how many assets miss returns, and of which kind; a late one that is
    halted counts twice."""
    seen, can = np.isfinite(returns), Availability.of(returns)
    holes = int((~seen.all(axis=0)).sum())
    if not holes:
        return "Gaps: none, every asset has a return on every row."
    first, last = seen.argmax(axis=0), len(seen) - 1 - seen[::-1].argmax(axis=0)
    young, broken = int(can.young.sum()), (last - first + 1 > seen.sum(axis=0)) & seen.any(axis=0)
    kinds = {
        "listed late" + (f" ({young} too young to be bought)" if young else ""): (first > 0) | can.young,
        "halted": can.halted,
        "delisted": can.delisted,
        "with returns missing in between": broken,
    }
    counts = ", ".join(f"{int(mask.sum())} {kind}" for kind, mask in kinds.items() if mask.any())
    return f"Gaps: {holes} of {len(first)} assets miss returns: {counts}."


def enough_universe_assets(can: Availability) -> None:
    """Raise unless a decision has a choice."""
    expect((can.mature & ~can.fixed).sum() >= 2, "returns", f"2 assets with {_BOUGHT} returns and one today", "fewer")


@dataclass(frozen=True)
class _Segment:
    """Steps start … stop − 1, on which the universe has the same assets (their indices)."""

    start: int
    stop: int
    assets: np.ndarray


@dataclass(frozen=True)
class Universe:
    """Returns of a changing universe, as `universe_of` makes it.

    Attributes
    ----------
    returns : (time, m)
        What a holding earns: 0 where no return was observed.
    members : (time, m), bool
        Whether an asset can be held at the step, known before it.
    tradable : (time, m), bool
        Whether its weight can change at the step: it had a price on the row before.
    locked : (time, m), bool
        Whether what is held of it cannot be sold at the step though it is no member: it is halted for long.
    window : int
        Rows of history that an asset must have.
    """

    returns: np.ndarray
    members: np.ndarray
    tradable: np.ndarray
    locked: np.ndarray
    window: int

    def terms(
        self, segment: _Segment, constraints: Constraints | None, benchmark: np.ndarray | None
    ) -> tuple[Constraints | None, np.ndarray | None]:
        """Constraints and benchmark of all assets as they hold for those of a segment; the others hold nothing.

        Their bounds wait, and so do limits on none but them; what the benchmark has in them goes to those of the
        segment.
        """
        m = self.returns.shape[1]
        inside, nobody, nothing = np.isin(np.arange(m), segment.assets), np.zeros(m, dtype=bool), np.zeros(m)
        can = Availability(~inside, nobody, nobody, nobody)
        rules = None if constraints is None else can.constraints(constraints, nothing).among(nothing, inside)
        reference = can.benchmark(benchmark, nothing)
        return rules, None if reference is None else reference[inside]

    def availability(self, step: int) -> Availability:
        """The availability at a step: those without a price are halted, others that are not members are sold."""
        inside, locked = self.members[step], self.locked[step]
        nobody = np.zeros_like(inside)
        return Availability(~inside & ~locked, (inside & ~self.tradable[step]) | locked, nobody, nobody)

    def segments(self) -> Iterator[_Segment]:
        """The steps from `window` on, cut where the universe changes."""
        inside = self.members[self.window :]
        changes = np.flatnonzero((inside[1:] != inside[:-1]).any(axis=1)) + 1 + self.window
        edges = [self.window, *changes.tolist(), len(self.returns)]
        for start, stop in pairwise(edges):
            yield _Segment(start, stop, np.flatnonzero(self.members[start]))


def universe_of(returns: np.ndarray, window: int, *, delisting_return: float = DELISTING_RETURN) -> Universe:
    """The universe of simple returns (time, m) with NaN for missing ones.

    Parameters
    ----------
    returns : (time, m)
        In prices with gaps, the first return after a gap is that from the last price before it, as `load_returns`
        computes it.
    window : int
        Rows of history that a strategy sees, and that an asset must have before it is bought.
    delisting_return : float in [−1, 1]
        On the last price of an asset whose column ends, when its holding is paid out 21 rows later. The default is the
        mean of stocks delisted for poor performance (Shumway 1997); 0 suits mergers, −1 is a total loss.
    """
    array = np.array(returns, dtype=float)
    validate_count("window", window, least=2)
    validate_interval("delisting_return", delisting_return, "[-1, 1]")
    expect(array.ndim == 2 and array.size, "returns", "shape (time, assets)", array.shape)
    seen = np.isfinite(array)
    known = array[seen]
    expect(not np.isinf(array).any(), "returns", "finite numbers or NaN", "an infinite one")
    expect(seen.any(), "returns", "some return", "none")
    expect(not looks_like_prices(known), "returns", "returns", "what look like prices")
    expect(known.min() >= -1, "returns", "returns of at least -1", f"{known.min():g}")
    expect(len(array) > window, "returns", f"more than {window} steps (the window)", len(array))
    first, last = seen.argmax(axis=0), len(seen) - 1 - seen[::-1].argmax(axis=0)  # without any: never a member
    members = _members(seen, first, window)
    short = np.flatnonzero(members[window:].sum(axis=1) < 2)
    if short.size:
        raise InputError(f"returns: expected 2 assets with {window} rows at every step, found fewer at step {short[0]}")
    earned = np.where(seen, array, 0.0)
    gone = np.flatnonzero(last + DELISTED < len(array))
    earned[last[gone] + DELISTED, gone] = delisting_return
    tradable, steps = np.concatenate([seen[:1], seen[:-1]]), np.arange(len(seen))[:, None]
    locked = ~members & ~tradable & (first < steps) & (steps <= last)
    return Universe(earned, members, tradable, locked, window)


def _members(seen: np.ndarray, first: np.ndarray, window: int) -> np.ndarray:
    """Members at each step, known before it: entered with enough history, seen in the last 21 rows, (time, m)."""
    steps = np.arange(len(seen))[:, None]
    total = np.concatenate([np.zeros((1, seen.shape[1])), np.cumsum(seen, axis=0)])  # returns before each step
    share = np.zeros(seen.shape)
    share[window:] = (total[window:-1] - total[: -1 - window]) / window
    enough = (steps - first >= window) & (share >= ENOUGH)
    recent = total[:-1] > total[np.maximum(np.arange(len(seen)) - DELISTED, 0)]
    members = np.zeros(seen.shape, dtype=bool)
    for step in range(1, len(seen)):  # a halt of fewer rows does not expel an asset
        members[step] = recent[step] & (enough[step] | members[step - 1])
    return members
