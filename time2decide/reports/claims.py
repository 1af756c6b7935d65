"""The paper's claims, each with a verdict on stored rows: held, not held, or not tested.

Claims about a table or figure come from the `findings` of its experiment. The rest are written down here: those that
need a comparison of their own, and those that no stored row can test yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from time2decide.experiments.registry import Experiment

Row = dict[str, Any]
HELD, NOT_HELD, NOT_TESTED = "held", "not held", "not tested"

#: Experiment -> what the paper claims there, for experiments whose findings are not checked by a function.
OTHER_CLAIMS = {
    "convergence": [
        "The constructions take exactly the steps of the classical iterations (U, R, C, LC)",
    ],
    "qp-histograms": ["The best linear transformer at (5, 3) has median NMSE ≤ 0.011 and 95th percentile ≤ 0.095"],
    "portfolio-clean": [
        "Time2Decide beats fine-tuning without covariance tokens at every γ (clean)",
        "Time2Decide beats predict-then-optimise for γ ≥ 1.5 (clean)",
    ],
    "portfolio-noisy": [
        "Time2Decide beats fine-tuning without covariance tokens at every γ (noisy)",
        "Time2Decide beats predict-then-optimise for γ ≥ 0.75 (noisy)",
    ],
    "lambda-sweep": [
        "Fine-tuning without covariance tokens wants a small weight of the return loss, Time2Decide a large one",
    ],
    "finetuned-pto": ["Fine-tuning the forecaster does not make predict-then-optimise better throughout"],
}


@dataclass(frozen=True)
class Claim:
    """One claim, where it was checked, and the rows that the verdict rests on."""

    text: str
    verdict: str
    experiment: str
    evidence: str


def claims(experiment: Experiment | str, rows: list[Row]) -> list[Claim]:
    """All claims about one experiment; an experiment that is not registered is given by its name and has no rows."""
    name = experiment if isinstance(experiment, str) else experiment.id
    good = [row for row in rows if not row["error"]]
    basis = f"{len(good)} rows of {name}" + (f", preset {good[0]['preset']}" if good else "")
    found = []
    if not isinstance(experiment, str) and experiment.findings is not None and good:
        for item in experiment.findings(rows):
            verdict = (HELD if item["held"] else NOT_HELD) if item["tested"] else NOT_TESTED
            remark = "; ".join(part for part in (item["cases"], item["detail"], basis) if part)
            found.append(Claim(item["finding"], verdict, name, remark))
    elif good and name in _CHECKS:
        holds, detail = _CHECKS[name](good)
        found = [Claim(text, HELD if holds else NOT_HELD, name, f"{detail}; {basis}") for text in OTHER_CLAIMS[name]]
    elif name in OTHER_CLAIMS:
        found = [Claim(text, NOT_TESTED, name, basis) for text in OTHER_CLAIMS[name]]
    elif not good and not isinstance(experiment, str) and experiment.findings is not None:
        found = [Claim(item["finding"], NOT_TESTED, name, basis) for item in experiment.findings([])]
    return found


def _same_steps(rows: list[Row]) -> tuple[bool, str]:
    plain = [row for row in rows if row["method"] in ("gradient", "ista", "projected_gradient", "arrow_hurwicz")]
    worst = max((row["largest_difference"] for row in plain), default=float("nan"))
    return worst < 1e-9, f"largest difference {worst:.0e} over {len(plain)} methods"


def _small_errors(rows: list[Row]) -> tuple[bool, str]:
    chosen = [row for row in rows if (row["n"], row["m"], row["architecture"]) == (5, 3, "LinearTransformer")]
    if not chosen:
        return False, "no row of that cell"
    middle, tail = (median(row[key] for row in chosen) for key in ("nmse_median", "nmse_p95"))
    return middle <= 0.011 and tail <= 0.095, f"median {middle:.3g}, 95th percentile {tail:.3g}"


_CHECKS = {"convergence": _same_steps, "qp-histograms": _small_errors}
