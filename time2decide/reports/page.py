"""The report: one section per experiment and benchmark from the store, and the claims.

As one HTML page that needs nothing else, and as Markdown. Both have the same content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path

from time2decide.core.files import validate_output_file, write_text
from time2decide.core.table import Table, cell_text, tables_of_rows
from time2decide.core.validation import expect
from time2decide.experiments.claims import (
    GENERAL,
    NOT_SUPPORTED,
    NOT_TESTED,
    OUR_NETWORK,
    SUPPORTED,
    Claim,
    claim_judged_on,
    claims_by_architecture,
)
from time2decide.experiments.registry import Experiment, experiment_ids, find_store, get_experiment, stored_ids
from time2decide.experiments.store import Row, last_error_line, make_from_stored_rows, measured_rows, task_key
from time2decide.reports.figures import figure_path, figure_svg

TITLE = "Covariance-aware transformers for quadratic programming and decision making, measured"
_INTRO = (
    "Every table and figure of the paper that runs here, from stored rows alone. Figures in round brackets and "
    "columns headed “paper” are the paper's; the others are ours. Presets other than “paper” are smaller than the "
    "paper's experiments, and their rows are not the same measurement. A claim is judged on the rows of one "
    "architecture, which is named above it: what our network does says nothing about the paper's, and the other way "
    "round."
)


def write_report(out: str | Path, root: str | Path | None = None) -> tuple[Path, Path]:
    """Write the HTML page to `out` and the Markdown beside it; returns both paths."""
    page = Path(out)
    text = page.with_suffix(".md")
    for path in (page, text):
        validate_output_file("out", path)
    ours = not text.exists() or text.read_bytes().startswith(f"# {TITLE}\n".encode())
    expect(ours, "out", "no file or an older report beside the page", f"another text in {text}")
    found = report_sections(root)
    write_text(page, _html(found))
    write_text(text, _markdown(found, page.parent))
    return page, text


def _html(found: list[Section]) -> str:
    """One self-contained page: style and figures are inside, and there is no script."""
    parts = {
        "TITLE": escape(TITLE),
        "INTRO": escape(_INTRO),
        "CONTENTS": "".join(f'<li><a href="#{s.id}">{escape(s.title)}</a></li>' for s in found),
        "CLAIMS": "".join(
            f"<h3>{escape(_heading(judged_on))}</h3><p>{escape(_summary(claims))}</p>{_claims_html(claims)}"
            for judged_on, claims in _by_architecture(found).items()
        ),
        "SECTIONS": "".join(map(_section_html, found)),
    }
    page = resources.files("time2decide.reports").joinpath("page.html").read_text(encoding="utf-8")
    for name, value in parts.items():
        page = page.replace(f"%%{name}%%", value)
    return page


def _markdown(found: list[Section], folder: Path) -> str:
    """The same as GitHub Markdown; pictures are linked relative to `folder`."""
    lines = [f"# {TITLE}", "", _INTRO, "", "## The paper's claims", ""]
    for judged_on, claims in _by_architecture(found).items():
        rows = [[claim.verdict, claim.text, f"[{s.id}](#{s.id})", _evidence(claim, s)] for claim, s in claims]
        table = Table("", ["verdict", "claim", "experiment", "evidence"], rows)
        lines += [f"### {_heading(judged_on)}", "", _summary(claims), "", table.markdown(), ""]
    for section in found:
        lines += ["", f'<a id="{section.id}"></a>', f"## {section.title}", ""]
        lines += [f"`{section.id}` · {section.paper} · {section.provenance}", ""]
        if section.picture is not None:
            lines += [f"![{section.title}]({os.path.relpath(section.picture, folder)})", ""]
        for table in section.tables:
            lines += [table.markdown(), ""]
    return "\n".join(lines).rstrip() + "\n"


def _section_html(section: Section) -> str:
    parts = [
        f'<section id="{section.id}"><h2>{escape(section.title)}</h2>',
        f'<p class="meta"><code>{section.id}</code> · {escape(section.paper)} · {escape(section.provenance)}</p>',
        f'<div class="figure" tabindex="0">{section.figure}</div>' if section.figure else "",
        *(
            f"<h3>Claims{escape(claim_judged_on(some))}</h3>{_claims_html([(claim, section) for claim in some])}"
            for some in claims_by_architecture(section.claims).values()
        ),
        *(table.html() for table in section.tables),
    ]
    if section.preset is None:
        parts.append(f"<p>Run it: <code>time2decide reproduce {section.id}</code></p>")
    return "".join(parts) + "</section>"


def _by_architecture(found: list[Section]) -> dict[str, list[tuple[Claim, Section]]]:
    """All claims with their sections, by what they are judged on; our own network comes last."""
    groups: dict[str, list[tuple[Claim, Section]]] = {}
    for section in found:
        for claim in section.claims:
            groups.setdefault(claim.judged_on, []).append((claim, section))
    return dict(sorted(groups.items(), key=lambda group: group[0] == OUR_NETWORK))


def _heading(judged_on: str) -> str:
    if judged_on == GENERAL:
        return judged_on[0].upper() + judged_on[1:]
    return f"Decisions, judged on {judged_on}"


def _claims_html(claims: list[tuple[Claim, Section]]) -> str:
    rows = "".join(
        f'<li><span class="mark {claim.verdict.replace(" ", "-")}">{claim.verdict}</span><span class="claim">'
        f'{escape(claim.text)}<small><a href="#{s.id}">{s.id}</a> · {escape(_evidence(claim, s))}</small></span></li>'
        for claim, s in claims
    )
    return f'<ul class="claims">{rows}</ul>'


def _evidence(claim: Claim, section: Section) -> str:
    basis = f"preset {section.preset}" if section.preset else "no rows yet"
    return "; ".join(part for part in (claim.evidence, basis) if part)


def _summary(claims: list[tuple[Claim, Section]]) -> str:
    verdicts = [claim.verdict for claim, _ in claims]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (SUPPORTED, NOT_SUPPORTED, NOT_TESTED))
    return f"Of {len(claims)} claims, {counts}."


_ORDER = ("paper", "cpu", "smoke")  # which preset is shown when several are complete to the same degree


@dataclass(frozen=True)
class Section:
    """One table or figure: the rows of the preset that is most complete."""

    id: str
    title: str
    paper: str
    preset: str | None
    provenance: str
    tables: list[Table]
    claims: Sequence[Claim] = ()
    figure: str = ""  # SVG, or nothing
    picture: Path | None = None  # the same as PNG


def report_sections(root: str | Path | None = None) -> list[Section]:
    """Every registered experiment, in the order of the paper, then the stored benchmarks."""
    return [_section(get_experiment(name), root) for name in experiment_ids()] + _benchmarks(root)


def results_of(experiment: Experiment, rows: list[Row]) -> tuple[list[Table], list[Claim]]:
    """Tables and claims of stored rows; failed tasks are the first table."""
    good = measured_rows(rows)
    failed = [[_settings(row), last_error_line(row["error"])] for row in rows if row["error"]]
    tables = [Table("Failed tasks", ["task", "error"], failed)] if failed else []
    tables += make_from_stored_rows(experiment.tables, good) if good else []
    return tables, make_from_stored_rows(experiment.claims, good)


def _settings(row: Row) -> str:
    """The part of a configuration that fits in a line."""
    hidden = ("preset", "error")
    return " ".join(f"{k}={v}" for k, v in row.items() if k not in hidden and not isinstance(v, dict | list))


def _section(experiment: Experiment, root: str | Path | None) -> Section:
    preset, lines, total = _most_complete(experiment, root)
    store = find_store(experiment.id, preset or _ORDER[0], root)
    rows = store.rows(set(lines))
    tables, claims = results_of(experiment, rows)
    picture = figure_path(experiment.id, preset, root)
    return Section(
        id=experiment.id,
        title=experiment.title[0].upper() + experiment.title[1:],
        paper=experiment.paper,
        preset=preset,
        provenance=_provenance(list(lines.values()), preset, total),
        tables=tables,
        claims=claims,
        figure=figure_svg(experiment.id, rows),
        picture=picture if picture.exists() else None,
    )


def _benchmarks(root: str | Path | None) -> list[Section]:
    """A section for each benchmark that ``time2decide bench NAME --store`` has stored."""
    found = []
    for name in (name for name in stored_ids(root) if name.startswith("bench-")):
        store = find_store(name, "cpu", root)
        lines = list(store.lines().values())
        if not lines or not re.fullmatch(r"[\w-]+", store.experiment):  # an id of the page: no folder of ours else
            continue
        name = store.experiment.removeprefix("bench-")
        found.append(
            Section(
                id=store.experiment,
                title=f"Benchmark: {name}",
                paper="not in the paper: other solvers timed in the same run",
                preset=store.preset,
                provenance=_provenance(lines, store.preset, len(lines)),
                tables=make_from_stored_rows(partial(_bench_tables, name), store.measured()),
            )
        )
    return found


def _bench_tables(name: str, rows: list[Row]) -> list[Table]:
    """One table for all rows that have the same columns; of the other solvers' errors the largest."""
    shown = []
    for full in rows:
        row = {key: value for key, value in full.items() if key != "kind" and not key.endswith("_error")}
        errors = [value for key, value in full.items() if key.endswith("_error") and value is not None]
        row |= {"largest error of the others": max(errors)} if errors else {}
        digits = {key: 2 if key.endswith(("error", "gap")) else 4 for key in row}
        shown.append({key.replace("_", " "): cell_text(value, digits[key]) for key, value in row.items()})
    return tables_of_rows(f"time2decide bench {name}", shown)


def _most_complete(experiment: Experiment, root: str | Path | None) -> tuple[str | None, dict[str, Row], int]:
    """The preset with the largest share of its tasks stored, their last lines, and the number of tasks."""
    best: tuple[str | None, dict[str, Row], int] = (None, {}, 0)
    share = 0.0
    for preset in (name for name in _ORDER if name in experiment.presets):
        keys = {task_key(config) for config in experiment.tasks(preset)}
        lines = {key: line for key, line in find_store(experiment.id, preset, root).lines().items() if key in keys}
        if len(lines) / len(keys) > share:
            best, share = (preset, lines, len(keys)), len(lines) / len(keys)
    return best


def _provenance(lines: list[Row], preset: str | None, total: int) -> str:
    if preset is None:
        return "no rows yet"
    failed = sum(line["error"] is not None for line in lines)
    commits = ", ".join(dict.fromkeys(str(line.get("commit")) for line in lines))
    seconds = sum(each for line in lines if isinstance(each := line.get("seconds"), int | float))
    days = sorted(str(line.get("time"))[:10] for line in lines)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    text = f"preset {preset}: {len(lines)} of {total} tasks, {_duration(seconds)}, {when}, commit {commits}"
    return text + (f"; {failed} failed" if failed else "")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
