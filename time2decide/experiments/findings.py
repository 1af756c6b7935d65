"""A finding of the paper, checked on stored rows: held only if every case agrees and at least one was there.

What the paper says of most cases needs more than half of them.
"""

from __future__ import annotations

from time2decide.experiments.store import Row


def held(finding: str, cases: list[bool], detail: str = "", *, most: bool = False) -> Row:
    """A finding with its verdict, the number of cases that agree, and a remark."""
    agree = f"{sum(cases)} of {len(cases)} cases"
    verdict = sum(cases) > len(cases) / 2 if most else bool(cases) and all(cases)
    return {"finding": finding, "held": verdict, "tested": bool(cases), "cases": agree, "detail": detail}


def show_findings(findings: list[Row]) -> str:
    """Findings as lines of text."""
    lines = []
    for item in findings:
        verdict = ("held    " if item["held"] else "NOT held") if item["tested"] else "untested"
        notes = "; ".join(note for note in (item["cases"], item["detail"]) if note)
        lines.append(f"  {verdict}  {item['finding']} ({notes})")
    return "\n".join(["Findings of the paper on these rows:", *lines])
