"""The verdict of a decision in words, from the records of its forecasts: verify makes the same sentence again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from time2decide.core.validation import expect
from time2decide.markets.stated_problem import number_from_json

_NORMAL = 1.96  # standard errors of a 95 % interval
_FOLLOWED = 0.07  # probability from which the verdict speaks of a forecast that pays


def forecast_label(rows: int, reads: str, period: str) -> str:
    """What a forecast is for and what it is made from, in words, of a table whose rows are days, weeks, …"""
    text = f"the next {period}" if rows == 1 else f"the next {rows} {period}s"
    return text + {"all assets": ", from all assets", "kernel bank": ", from the kernel bank"}.get(reads, "")


@dataclass(frozen=True)
class ForecastRecord:
    """The record of one forecast out of sample.

    days : rows of the table that it is for
    reads : what it is made from: each asset's own past and residuals, all assets, or the kernel bank
    slope, t_value : of outcomes on forecasts
    worth_bps, worth_error_bps : gain per unit traded of a long-short portfolio along it, and its standard error
    probability : that this is the forecast that pays for its costs
    follow : factor by which it enters the decision
    """

    days: int
    reads: str
    slope: float
    t_value: float
    worth_bps: float
    worth_error_bps: float
    probability: float
    follow: float

    @property
    def interval_bps(self) -> tuple[float, float]:
        """95 % interval of `worth_bps`."""
        half = _NORMAL * self.worth_error_bps
        return self.worth_bps - half, self.worth_bps + half


@dataclass(frozen=True)
class Verdict:
    """Is there anything to predict here, net of costs?

    prior_sharpe : Sharpe ratio a year of equal weights in the prior on means
    prior_leads : whether means differ between assets more by the prior than by the forecasts
    period : what a row of the table is called
    """

    records: tuple[ForecastRecord, ...]
    cost_bps: float
    prior_sharpe: float = 0.0
    prior_leads: bool = False
    period: str = "day"

    @property
    def probability(self) -> float:
        """Probability that any of the forecasts pays for its costs."""
        return float(sum(record.probability for record in self.records))

    @property
    def best(self) -> ForecastRecord:
        """The forecast with the greatest probability to pay; where none pays, the one with the best record."""
        if self.probability < _FOLLOWED:
            made = [record for record in self.records if record.worth_error_bps > 0] or list(self.records)
            return max(made, key=lambda record: record.worth_bps / max(record.worth_error_bps, 1e-9))
        return max(self.records, key=lambda record: record.probability)

    @property
    def text(self) -> str:
        """One sentence for a person."""
        best = self.best
        label = forecast_label(best.days, best.reads, self.period)
        low, high = best.interval_bps
        worth = f"{best.worth_bps:.1f} bp per unit traded so far (95 %: {low:.1f} to {high:.1f})"
        if self.probability < _FOLLOWED:
            pays = f"Nothing to predict here that pays its cost of {self.cost_bps:g} bp, so this is about risk"
            about = f" and the {self._prior}, not about forecasts" if self.prior_sharpe else " only"
            return f"{pays}{about}: the most reliable forecast ({label}) earned {worth}."
        against = f"trading costs {self.cost_bps:g} bp"
        beside = f"; the {self._prior} weighs more" if self.prior_leads else ""
        return f"Forecasts ({label}) earned {worth}, {against}: followed at {best.follow:.0%}{beside}."

    @property
    def _prior(self) -> str:
        return f"prior on means (a Sharpe ratio of {self.prior_sharpe:g} a year for equal weights)"

    def to_json(self) -> dict[str, Any]:
        """The sentence and what it is made from, the cost apart."""
        records = [{**asdict(one), "interval_bps": list(one.interval_bps)} for one in self.records]
        prior = {"sharpe": self.prior_sharpe, "leads": self.prior_leads}
        return {"verdict": self.text, "records": records, "prior": prior, "period": self.period}

    @classmethod
    def from_json(
        cls, records: Sequence[Mapping[str, Any]], prior: Mapping[str, Any], cost_bps: float, period: str = "day"
    ) -> Verdict:
        """The verdict of `to_json`; anything else raises."""
        found = []
        for one in records:
            texts: dict[str, Any] = {"days": int(number_from_json(one["days"])), "reads": str(one["reads"])}
            names = [field.name for field in fields(ForecastRecord) if field.name not in texts]
            found.append(ForecastRecord(**texts | {name: number_from_json(one[name]) for name in names}))
        expect(
            found and isinstance(prior["leads"], bool), "verdict", "records and what is known of the prior", "others"
        )
        return cls(tuple(found), cost_bps, number_from_json(prior["sharpe"]), prior["leads"], period)
