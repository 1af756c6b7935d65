"""The report as one HTML page that needs nothing else, and as Markdown. Both say the same."""

from __future__ import annotations

import json
import os
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from time2decide.core.files import validate_output_file, write_text
from time2decide.core.validation import InputError
from time2decide.reports.block import Block
from time2decide.reports.claims import HELD, NOT_HELD, NOT_TESTED, Claim
from time2decide.reports.content import Section, sections

TITLE = "Covariance-aware transformers for quadratic programming and decision making, measured"
_INTRO = (
    "Every table and figure of the paper that runs here, from stored rows alone. Figures in brackets and columns "
    "headed “paper” are the paper's; the others are ours. Presets other than “paper” are smaller than the paper's "
    "experiments, and their rows are not the same measurement."
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
    """One self-contained page: plotly, style and data are inside."""
    from plotly.offline import get_plotlyjs

    everything = [claim for section in found for claim in section.claims]
    panels = {f"{section.id}-{i}": panel for section in found for i, panel in enumerate(section.panels)}
    contents = "".join(f'<li><a href="#{s.id}">{escape(s.title)}</a></li>' for s in found)
    body = "".join(_section_html(section) for section in found)
    template = resources.files("time2decide.reports").joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": escape(TITLE),
        "INTRO": escape(_INTRO),
        "SUMMARY": escape(_summary(everything)),
        "CONTENTS": contents,
        "CLAIMS": _claims_html(everything),
        "SECTIONS": body,
        "PANELS": json.dumps(panels, allow_nan=False).replace("</", "<\\/"),
        "PLOTLY": get_plotlyjs() if panels else "",
    }
    for name, value in parts.items():
        template = template.replace(f"%%{name}%%", value)
    return template


def markdown(found: list[Section], folder: Path) -> str:
    """The same as GitHub Markdown; pictures are linked relative to `folder`."""
    everything = [claim for section in found for claim in section.claims]
    lines = [f"# {TITLE}", "", _INTRO, "", "## The paper's claims", "", _summary(everything), ""]
    rows = [[c.verdict, c.text, f"[{c.experiment}](#{c.experiment})", c.evidence] for c in everything]
    lines += _table(Block("", ["verdict", "claim", "experiment", "evidence"], rows))
    for section in found:
        lines += ["", f'<a id="{section.id}"></a>', f"## {section.title}", ""]
        lines += [f"`{section.id}` · {section.paper} · {section.provenance}", ""]
        if section.picture is not None:
            lines += [f"![{section.title}]({os.path.relpath(section.picture, folder)})", ""]
        for block in section.tables:
            lines += [f"**{block.caption}**", "", *_table(block), ""]
            lines += [block.note, ""] if block.note else []
        if section.text is not None:
            lines += ["```", section.text, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _section_html(section: Section) -> str:
    plots = "".join(f'<div class="panel" id="{section.id}-{i}"></div>' for i in range(len(section.panels)))
    parts = [
        f'<section id="{section.id}"><h2>{escape(section.title)}</h2>',
        f'<p class="meta"><code>{section.id}</code> · {escape(section.paper)} · {escape(section.provenance)}</p>',
        f'<div class="panels">{plots}</div>' if plots else "",
        _claims_html(section.claims) if section.claims else "",
        *(_table_html(block) for block in section.tables),
        f'<div class="scroll" tabindex="0"><pre>{escape(section.text)}</pre></div>' if section.text is not None else "",
    ]
    if section.preset is None:
        parts.append(f"<p>Run it: <code>time2decide reproduce {section.id}</code></p>")
    return "".join(parts) + "</section>"


def _table_html(block: Block) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in block.columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{_cell_html(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in block.cells
    )
    caption = f"<caption><span>{escape(block.caption)}</span></caption>"
    table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    note = f'<p class="meta">{escape(block.note)}</p>' if block.note else ""
    return f'<div class="scroll" tabindex="0">{table}</div>{note}'


def _cell_html(cell: str) -> str:
    """A figure, and what stands behind it (error, interval, the paper's figure) in small print."""
    figure, space, tail = cell.partition(" ")
    return f'{escape(figure)}<span class="tail"> {escape(tail)}</span>' if space and tail[0] in "±([" else escape(cell)


def _claims_html(claims: list[Claim]) -> str:
    marks = {HELD: "held", NOT_HELD: "nothold", NOT_TESTED: "untested"}
    rows = "".join(
        f'<li><span class="mark {marks[c.verdict]}">{c.verdict}</span><span class="claim">{escape(c.text)}'
        f'<small><a href="#{c.experiment}">{c.experiment}</a> · {escape(c.evidence)}</small></span></li>'
        for c in claims
    )
    return f'<ul class="claims">{rows}</ul>'


def _summary(claims: list[Claim]) -> str:
    counts = {verdict: sum(c.verdict == verdict for c in claims) for verdict in (HELD, NOT_HELD, NOT_TESTED)}
    return f"Of {len(claims)} claims, " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."


def _table(block: Block) -> list[str]:
    def line(cells: list[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(block.columns), "|" + "---|" * len(block.columns), *map(line, block.cells)]
