"""The paper's claims, each with a verdict on stored rows: held, not held, or not tested.

Claims about a table or figure come from the `findings` of its experiment; those about experiments without findings are
written down here.
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


def claims(experiment: Experiment, rows: list[Row]) -> list[Claim]:
    """All claims about one experiment; without rows none of them is tested."""
    name = experiment.id
    good = [row for row in rows if not row["error"]]
    basis = f"{len(good)} rows, preset {good[0]['preset']}" if good else "no rows yet"
    found = []
    for item in experiment.findings(rows if good else []) if experiment.findings is not None else []:
        verdict = (HELD if item["held"] else NOT_HELD) if item["tested"] else NOT_TESTED
        remark = "; ".join(part for part in (item["cases"] if item["tested"] else "", item["detail"], basis) if part)
        found.append(Claim(item["finding"][0].upper() + item["finding"][1:], verdict, name, remark))
    for text, check in OTHER_CLAIMS.get(name, []):
        holds, detail = check(good) if good else (None, "")
        verdict = NOT_TESTED if holds is None else HELD if holds else NOT_HELD
        found.append(Claim(text, verdict, name, f"{detail}; {basis}" if detail else basis))
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


def _lower_mse(rows: list[Row], ours: str, rival: str, least: float = 0.0, most: float = 2.0) -> Verdict:
    """Whether one strategy has the lower mean MSE at every market and budget of a range where both have rows."""
    means: dict[tuple[str, float], dict[str, float]] = {}
    for market, budget in dict.fromkeys((row["market"], row["turnover_l1"]) for row in rows):
        here = [row for row in rows if (row["market"], row["turnover_l1"]) == (market, budget)]
        found = {name: [row["mse"] for row in here if row["strategy"] == name] for name in (ours, rival)}
        if least <= budget <= most and all(found.values()):
            means[market, budget] = {name: mean(values) for name, values in found.items()}
    better = [pair[ours] < pair[rival] for pair in means.values()]
    return (all(better) if better else None), (f"at {sum(better)} of {len(better)} budgets" if better else "")


_OURS, _TUNED, _PTO, _BACKBONE = "time2decide (own)", "sft (own)", "pto", "pretrained"


def _than(rival: str, least: float = 0.0) -> Check:
    return partial(_lower_mse, ours=_OURS, rival=rival, least=least)


#: Experiment -> what the paper claims there and how rows decide, for experiments without `findings`.
OTHER_CLAIMS: dict[str, list[tuple[str, Check]]] = {
    "convergence": [
        ("The constructions take exactly the steps of the classical iterations (U, R, C, LC)", _same_steps)
    ],
    "qp-histograms": [
        ("The best linear transformer at (5, 3) has median NMSE ≤ 0.011 and 95th percentile ≤ 0.095", _small_errors)
    ],
    "portfolio-clean": [
        ("Clean: Time2Decide beats fine-tuning without covariance at every γ", _than(_TUNED)),
        ("Clean: Time2Decide beats the pretrained backbone at every γ", _than(_BACKBONE)),
        (
            "Clean: predict-then-optimise beats Time2Decide for γ ≤ 1.25",
            partial(_lower_mse, ours=_PTO, rival=_OURS, most=1.25),
        ),
        ("Clean: Time2Decide beats predict-then-optimise for γ ≥ 1.5", _than(_PTO, 1.5)),
    ],
    "portfolio-noisy": [
        ("Noisy: Time2Decide beats fine-tuning without covariance at every γ", _than(_TUNED)),
        ("Noisy: Time2Decide beats the pretrained backbone at every γ", _than(_BACKBONE)),
        ("Noisy: Time2Decide beats predict-then-optimise for γ ≥ 0.75", _than(_PTO, 0.75)),
    ],
}
