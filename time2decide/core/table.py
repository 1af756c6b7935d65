"""One table for the shell, the page and Markdown: a caption, the names of the columns, cells of text, a note."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from textwrap import fill

from time2decide.core.validation import printable, printable_lines

_WIDE = 10_000  # columns of a console that folds no cell
_WIDE_TABLE = 120  # letters of a row from which the page stacks figures and their errors
_PROSE = 120  # columns to which captions and notes are folded

_LONG = 40  # characters from which a cell is wrapped


@dataclass(frozen=True)
class Table:
    """Cells of text; the first cell of a row names it."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""

    def text(self, width: int | None = None) -> str:
        """For a shell of `width` columns; without a width nothing is folded. What cannot be printed is escaped."""
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for number, name in enumerate(self.columns):
            left = number == 0 or self._is_prose(number)
            table.add_column(Text(printable(name)), justify="left" if left else "right")
        for row in self.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))  # as text: square brackets are no markup
        out = StringIO()
        Console(file=out, width=width or _WIDE, color_system=None).print(table)
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        prose = min(width or _PROSE, _PROSE)
        caption, note = (fill(printable_lines(text), prose) for text in (self.caption, self.note))
        return "\n".join(line for line in (caption, *lines, note) if line)

    def markdown(self) -> str:
        """For GitHub, caption and note around the table."""
        lines = [self.columns, *self.rows]
        head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        table = "\n".join([head, "|" + "---|" * len(self.columns), *body])
        return "\n\n".join(part for part in (f"**{self.caption}**" if self.caption else "", table, self.note) if part)

    def html(self) -> str:
        """A table in a box that scrolls sideways, and the note under it."""
        kinds = [' class="prose"' if self._is_prose(number) else "" for number in range(len(self.columns))]
        columns = zip(self.columns, kinds, strict=True)
        head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in columns)
        body = ""
        for first, *rest in self.rows:
            cells = zip(rest, kinds[1:], strict=True)
            line = "".join(f"<td{kind}>{escape(cell) if kind else _cell(cell)}</td>" for cell, kind in cells)
            body += f'<tr><th scope="row">{escape(first)}</th>{line}</tr>'
        caption = f"<caption><span>{escape(self.caption)}</span></caption>"
        widths = [max(len(line[number]) for line in (self.columns, *self.rows)) for number in range(len(self.columns))]
        wide = ' class="wide"' if sum(widths) > _WIDE_TABLE else ""
        table = f"<table{wide}>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        return f'<div class="scroll" tabindex="0">{table}</div>{note}'

    def _is_prose(self, column: int) -> bool:
        """Whether a column holds words, or lists of figures, rather than figures."""
        cells = [row[column] for row in self.rows]
        return any(2 * sum(map(str.isalpha, cell)) > len(cell) or len(cell) > _LONG for cell in cells)


def tables_with_last_note(tables: list[Table]) -> list[Table]:
    """Tables that share a note: only the last one keeps it."""
    return [*(replace(table, note="") for table in tables[:-1]), *tables[-1:]]


def quantity_cell(
    value: float | None, form: str, error: float | None = None, paper: float | None = None, paper_form: str = ""
) -> str:
    """``value ± error (paper)`` as text; a dash where there is no value."""
    parts = ["–" if value is None else format(value, form)]
    parts += [] if value is None or error is None else [f"± {error:{form}}"]
    parts += [] if paper is None else [f"({paper:{paper_form or form}})"]
    return " ".join(parts)


def tables_of_rows(caption: str, rows: Iterable[Mapping[str, object]]) -> list[Table]:
    """One table for all rows that have the same keys."""
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for row in rows:
        alike.setdefault(tuple(row), []).append([cell_text(value) for value in row.values()])
    return [Table(caption, list(columns), cells) for columns, cells in alike.items()]


def cell_text(value: object, digits: int = 4) -> str:
    """A cell: so many digits of a float, a dash for None, and the parts of a list or dict in turn."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell_text(one, digits)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(cell_text(one, digits) for one in value)
    return "–" if value is None else f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _cell(cell: str) -> str:
    """A figure, and what stands behind it (error, interval, the paper's figure) in small print."""
    figure, space, tail = cell.partition(" ")
    if not space or tail[0] not in "±([":
        return escape(cell)
    kept = re.sub(r"± |, ", lambda mark: mark[0].replace(" ", "\u00a0"), tail)  # a line may end before "(", not inside
    return f'{escape(figure)}<span class="tail"> {escape(kept)}</span>'
