"""The paper's claims, each with a verdict on stored rows: held, not held, or not tested.

Claims about a table or figure come from the `findings` of its experiment. The rest are written down here: those that
need a comparison of their own, and those that no stored row can test yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from time2decide.experiments.registry import Experiment

Row = dict[str, Any]
Verdict = tuple[bool | None, str]  # None: the rows cannot tell
Check = Callable[[list[Row]], Verdict]
HELD, NOT_HELD, NOT_TESTED = "held", "not held", "not tested"


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
    elif name in OTHER_CLAIMS:
        for text, check in OTHER_CLAIMS[name]:
            holds, detail = check(good) if check is not None and good else (None, "")
            verdict = NOT_TESTED if holds is None else HELD if holds else NOT_HELD
            found.append(Claim(text, verdict, name, f"{detail}; {basis}" if detail else basis))
    elif not good and not isinstance(experiment, str) and experiment.findings is not None:
        found = [Claim(item["finding"], NOT_TESTED, name, basis) for item in experiment.findings([])]
    return found


def _same_steps(rows: list[Row]) -> Verdict:
    plain = [row for row in rows if row["method"] in ("gradient", "ista", "projected_gradient", "arrow_hurwicz")]
    if not plain:
        return None, ""
    worst = max(row["largest_difference"] for row in plain)
    return worst < 1e-9, f"largest difference {worst:.0e} over {len(plain)} methods"


def _small_errors(rows: list[Row]) -> Verdict:
    chosen = [row for row in rows if (row["n"], row["m"], row["architecture"]) == (5, 3, "LinearTransformer")]
    if not chosen:
        return None, ""
    middle, tail = (mean(row[key] for row in chosen) for key in ("nmse_median", "nmse_p95"))
    return middle <= 0.011 and tail <= 0.095, f"median {middle:.3g}, 95th percentile {tail:.3g}"


def _lower_mse(rows: list[Row], ours: str, rival: str, least: float) -> Verdict:
    """Whether one strategy has the lower mean MSE at every market and budget from `least` on where both have rows."""
    means: dict[tuple[str, float], dict[str, float]] = {}
    for market, budget in dict.fromkeys((row["market"], row["turnover_l1"]) for row in rows):
        here = [row for row in rows if (row["market"], row["turnover_l1"]) == (market, budget)]
        found = {name: [row["mse"] for row in here if row["strategy"] == name] for name in (ours, rival)}
        if budget >= least and all(found.values()):
            means[market, budget] = {name: mean(values) for name, values in found.items()}
    better = [pair[ours] < pair[rival] for pair in means.values()]
    return (all(better) if better else None), (f"at {sum(better)} of {len(better)} budgets" if better else "")


def _than(rival: str, least: float) -> Check:
    return partial(_lower_mse, ours="time2decide (own)", rival=rival, least=least)


_TUNED, _PTO = "sft (own)", "pto"
#: Experiment -> what the paper claims there and how rows decide, for experiments without `findings`.
OTHER_CLAIMS: dict[str, list[tuple[str, Check | None]]] = {
    "convergence": [
        ("The constructions take exactly the steps of the classical iterations (U, R, C, LC)", _same_steps)
    ],
    "qp-histograms": [
        ("The best linear transformer at (5, 3) has median NMSE ≤ 0.011 and 95th percentile ≤ 0.095", _small_errors)
    ],
    "portfolio-clean": [
        ("Clean: Time2Decide beats fine-tuning without covariance at every γ", _than(_TUNED, 0.0)),
        ("Clean: Time2Decide beats predict-then-optimise for γ ≥ 1.5", _than(_PTO, 1.5)),
    ],
    "portfolio-noisy": [
        ("Noisy: Time2Decide beats fine-tuning without covariance at every γ", _than(_TUNED, 0.0)),
        ("Noisy: Time2Decide beats predict-then-optimise for γ ≥ 0.75", _than(_PTO, 0.75)),
    ],
    "lambda-sweep": [
        ("Fine-tuning without covariance wants a small weight of the return loss, Time2Decide a large one", None)
    ],
    "finetuned-pto": [("Fine-tuning the forecaster does not make predict-then-optimise better throughout", None)],
}
