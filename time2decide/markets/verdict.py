"""The verdict of a decision in words, from the records of its forecasts: verify makes the same sentence again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from time2decide.core.validation import expect
from time2decide.markets.stated_problem import number_from_json

_FOLLOWED = 0.5  # probability from which the verdict speaks of a forecast that is followed


@dataclass(frozen=True)
class ForecastRecord:
    """The record of one forecast out of sample.

    first, last : the rows that it is for, counted from the trade
    reads : what it is made from
    slope, error : of outcomes on forecasts (1: it means what it says, 0: it is worth nothing), and its standard error
    probability : that this is the forecast to follow
    follow : factor by which it enters the decision
    """

    first: int
    last: int
    reads: str
    slope: float
    error: float
    probability: float
    follow: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of `slope`."""
        return self.slope - _NORMAL * self.error, self.slope + _NORMAL * self.error

    def label(self, period: str) -> str:
        """What it forecasts and from what, in words, of a table whose rows are days, weeks, …"""
        return f"{horizon_label(self.first, self.last, period)}, from {self.reads}"


def horizon_label(first: int, last: int, period: str) -> str:
    """Rows in words, counted from the trade."""
    if last > first:
        return f"{period}s {first} to {last}"
    return f"the next {period}" if last == 1 else f"{period} {last}"


_NORMAL = 1.96  # standard errors of a 95 % interval


@dataclass(frozen=True)
class Verdict:
    """Is there anything to predict here?

    prior_sharpe : Sharpe ratio a year of equal weights in the prior on means
    prior_leads : whether means differ between assets more by the prior than by the forecasts
    period : name of a row: "day", "month"
    """

    records: tuple[ForecastRecord, ...]
    cost_bps: float
    prior_sharpe: float = 0.0
    prior_leads: bool = False
    period: str = "day"

    @property
    def probability(self) -> float:
        """Probability that some forecast of the horizon with the best one is to be followed."""
        by_horizon: dict[int, float] = {}
        for one in self.records:
            by_horizon[one.first] = by_horizon.get(one.first, 0.0) + one.probability
        return max(by_horizon.values(), default=0.0)

    @property
    def best(self) -> ForecastRecord | None:
        """The forecast that is followed most; where none is, the one with the best record."""
        if self.probability < _FOLLOWED:
            return max(self.records, key=lambda record: record.slope / max(record.error, 1e-9), default=None)
        return max(self.records, key=lambda record: (record.follow, record.probability), default=None)

    @property
    def text(self) -> str:
        """One sentence for a person."""
        best = self.best
        if best is None:
            return "No forecast has been made yet."
        low, high = best.interval
        record = f"outcomes followed {best.slope:.0%} of what it forecast (95 %: {low:.0%} to {high:.0%})"
        if self.probability < _FOLLOWED:
            about = f"risk and the {self._prior}" if self.prior_sharpe else "risk only"
            return (
                f"Nothing to predict here, so this is about {about}: the best forecast is of {self._label}; {record}."
            )
        beside = f"; the {self._prior} weighs more" if self.prior_leads else ""
        return f"The forecast of {self._label} is followed at {best.follow:.0%}: {record}{beside}."

    @property
    def _label(self) -> str:
        return "" if self.best is None else self.best.label(self.period)

    @property
    def _prior(self) -> str:
        return f"prior on means (a Sharpe ratio of {self.prior_sharpe:g} a year for equal weights)"

    def to_json(self) -> dict[str, Any]:
        """The sentence and what it is made from, the cost apart."""
        records = [{**asdict(one), "interval": list(one.interval)} for one in self.records]
        prior = {"sharpe": self.prior_sharpe, "leads": self.prior_leads}
        return {"verdict": self.text, "records": records, "prior": prior, "period": self.period}

    @classmethod
    def from_json(
        cls, records: Sequence[Mapping[str, Any]], prior: Mapping[str, Any], cost_bps: float, period: str = "day"
    ) -> Verdict:
        """The verdict of `to_json`; anything else raises."""
        found = []
        for one in records:
            known: dict[str, Any] = {key: int(number_from_json(one[key])) for key in ("first", "last")}
            known["reads"] = str(one["reads"])
            names = [field.name for field in fields(ForecastRecord) if field.name not in known]
            found.append(ForecastRecord(**known | {name: number_from_json(one[name]) for name in names}))
        expect(isinstance(prior["leads"], bool), "verdict", "what is known of the prior", "others")
        sharpe = number_from_json(prior["sharpe"])
        return cls(tuple(found), cost_bps, sharpe, prior["leads"], str(period))
