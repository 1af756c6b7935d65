"""The report as one HTML page that needs nothing else, and as Markdown. Both say the same."""

from __future__ import annotations

import os
from html import escape
from importlib import resources
from pathlib import Path

from time2decide.core.files import validate_output_file, write_text
from time2decide.core.table import Table
from time2decide.core.validation import InputError
from time2decide.experiments.claims import (
    GENERAL,
    NOT_SUPPORTED,
    NOT_TESTED,
    OUR_NETWORK,
    SUPPORTED,
    Claim,
    by_architecture,
    judged_on_text,
)
from time2decide.reports.content import Section, sections

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
    if text.exists() and not text.read_bytes().startswith(f"# {TITLE}\n".encode()):
        raise InputError(f"out: expected no file or an older report beside the page, found another text in {text}")
    found = sections(root)
    write_text(page, html(found))
    write_text(text, markdown(found, page.parent))
    return page, text


def html(found: list[Section]) -> str:
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


def markdown(found: list[Section], folder: Path) -> str:
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
            f"<h3>Claims{escape(judged_on_text(some))}</h3>{_claims_html([(claim, section) for claim in some])}"
            for some in by_architecture(section.claims).values()
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
