"""The paper's published figures and its claims: each claim is judged on stored rows, case by case.

A claim is supported only if every case agrees and at least one was there; what the paper says of most cases needs
more than half of them. A claim about the decision model names the network that its rows were measured with.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from time2decide.core.table import Table

SUPPORTED, NOT_SUPPORTED, NOT_TESTED = "supported", "not supported", "not tested"
#: What claims are judged on. The literal model's training is part of its name: see `paper_architecture`.
GENERAL = "constructions, learned QP solvers and theory"
OUR_NETWORK = "our policy with TimePFN forecasts (a rule, nothing but TimePFN is trained)"


def paper_architecture(training: str) -> str:
    """The paper's decision model, and how long ours was trained."""
    return f"the paper's architecture (TimePFN with covariance tokens, as literally described, {training})"


def claim_judged_on(claims: Sequence[Claim]) -> str:
    """ ", judged on …" for claims about the decision model, nothing for the others."""
    named = dict.fromkeys(claim.judged_on for claim in claims if claim.judged_on != GENERAL)
    return f", judged on {'; '.join(named)}" if named else ""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper, whether each case agrees, a remark, and what it is judged on."""

    text: str
    cases: Sequence[bool]
    detail: str = ""
    judged_on: str = GENERAL
    most: bool = False  # more than half of the cases are enough

    @property
    def verdict(self) -> str:
        """Supported, not supported or, without cases, not tested."""
        if not self.cases:
            return NOT_TESTED
        agrees = sum(self.cases) > len(self.cases) / 2 if self.most else all(self.cases)
        return SUPPORTED if agrees else NOT_SUPPORTED

    @property
    def evidence(self) -> str:
        """How many cases agree, and the remark."""
        counted = f"{sum(self.cases)} of {len(self.cases)} cases" if self.cases else ""
        return "; ".join(part for part in (counted, self.detail) if part)


def claims_by_architecture(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    """Claims by what they are judged on, in order of appearance."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        found.setdefault(claim.judged_on, []).append(claim)
    return found


def claims_tables(claims: Sequence[Claim]) -> list[Table]:
    """Claims of one experiment as tables, one for every model that they are judged on."""
    return [
        Table(
            f"The paper's claims{claim_judged_on(some)}",
            ["verdict", "claim", "evidence"],
            [[claim.verdict, claim.text, claim.evidence] for claim in some],
        )
        for some in claims_by_architecture(claims).values()
    ]


@cache
def published(table: str) -> dict[tuple[str, str], float]:
    """(cell, row) -> value of one of the paper's tables; cells are written as in ``n=5;m=3;layers=1;heads=1``."""
    source = resources.files("time2decide.experiments").joinpath("published.csv")
    with source.open(encoding="utf-8") as file:
        return {
            (line["cell"], line["row"]): float(line["value"]) for line in csv.DictReader(file) if line["table"] == table
        }


def published_mse(market: str, row: str, budget: float) -> float | None:
    """The MSE to the oracle in the paper's tables of decisions; its noisy table serves both noisy markets."""
    table = published("time2decide_mse_summary" + ("" if market == "clean" else "_noisy"))
    return table.get((f"gamma={budget}", row))
