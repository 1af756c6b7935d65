"""The paper's runtime tables, one per class: a classical step against the attention layer that does the same.

Measured by the machinery of ``time2decide bench constructions``: interleaved, one thread, medians of many rounds. Times
are those of the machine named in the rows; the overhead is what can be compared with the paper's.
"""

from __future__ import annotations

from functools import partial

import torch

from time2decide.bench.constructions import measure
from time2decide.bench.timing import one_thread
from time2decide.experiments.findings import held, show_findings
from time2decide.experiments.paper import published
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row

_TITLES = {"U": "gradient descent", "R": "ISTA", "C": "projected gradient", "LC": "Arrow–Hurwicz"}
_ROUNDS = {"smoke": 5, "cpu": 101, "paper": 101}
_BATCHES = (1, 256)


def sizes(kind: str) -> list[tuple[int, int]]:
    """(n, m) of the paper's table of one class; m is 0 where there are no constraints."""
    found = []
    for place, row in published("runtime"):
        parts = dict(item.split("=") for item in place.split(";"))
        if parts["problem"] == kind and row == "overhead":
            found.append((int(parts["n"]), int(parts.get("m", 0))))
    return found


def tasks(preset: str, kind: str) -> list[Config]:
    """One task per size, each with a single problem and a batch."""
    chosen = sizes(kind)[:1] if preset == "smoke" else sizes(kind)
    return [
        {"kind": kind, "n": n, "m": m, "batches": list(_BATCHES), "rounds": _ROUNDS[preset], "seed": n + m}
        for n, m in chosen
    ]


def run(config: Config) -> list[Row]:
    """Time both forms for every batch size."""
    with one_thread(), torch.no_grad():
        return [
            measure(config["kind"], config["n"], config["m"], batch, rounds=config["rounds"])
            for batch in config["batches"]
        ]


def findings(rows: list[Row], kind: str) -> list[Row]:
    """Near parity, as the paper claims, in numbers: no layer costs a third more than its classical step."""
    good = [row for row in rows if not row["error"]]
    worst = max((row["overhead"] for row in good), default=0.0)
    cheaper = [row["overhead"] <= _paper(row, "overhead") for row in good if row["batch"] == 1]
    return [
        held(
            f"({kind}): a layer costs at most 1.35 classical steps",
            [row["overhead"] <= 1.35 for row in good],
            f"worst {worst:.2f}" if good else "",
        ),
        held(f"({kind}): overhead of a single problem at most the paper's", cheaper),
    ]


def show(rows: list[Row], kind: str) -> str:
    """Times in µs and overhead, ours beside the paper's."""
    preset = rows[0]["preset"] if rows else "none"
    lines = [
        f"One step in µs per batch, and overhead = attention / classical; preset {preset}, one thread",
        f"{'class':<6}{'n, m':<9}{'batch':>6}{'classical':>11}{'attention':>11}{'overhead':>10}   "
        f"{'paper: classical':>16}{'attention':>11}{'overhead':>10}",
    ]
    for row in rows:
        size = f"{row['n']}, {row['m']}" if row["m"] else str(row["n"])
        if row["error"]:
            lines.append(f"{row['kind']:<6}{size:<9}failed: {row['error']}")
            continue
        ours = f"{row['classical_us']:>11.1f}{row['attention_us']:>11.1f}{row['overhead']:>10.2f}"
        theirs = ""
        if row["batch"] == 1:
            times = [1e3 * _paper(row, name) for name in ("classical_ms", "transformer_ms")]
            theirs = f"   {times[0]:>16.0f}{times[1]:>11.0f}{_paper(row, 'overhead'):>10.2f}"
        lines.append(f"{row['kind']:<6}{size:<9}{row['batch']:>6}{ours}{theirs}")
    return "\n".join([*lines, "", show_findings(findings(rows, kind))])


def _paper(row: Row, name: str) -> float:
    place = f"problem={row['kind']};n={row['n']}" + (f";m={row['m']}" if row["m"] else "")
    return published("runtime")[place, name]


EXPERIMENTS = tuple(
    Experiment(
        id=f"runtime-{kind.lower()}",
        title=f"Time per step: {name}",
        paper="Appendix B: table of " + ("(LC)" if kind == "LC" else "(U), (R), (C)"),
        presets={"smoke": "1 s", "cpu": "1 min", "paper": "1 min"},
        tasks=partial(tasks, kind=kind),
        run=run,
        show=partial(show, kind=kind),
        findings=partial(findings, kind=kind),
    )
    for kind, name in _TITLES.items()
)
