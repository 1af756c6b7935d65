"""The pages that quote results do it from stored rows: tables are made of them, a figure in prose names its row."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MADE = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))
FIGURE = re.compile(
    r"(?<![\w.])[−-]?(?:\d*\.\d+|\d+(?= ?%)|\d+(?=e-\d)|\d+(?= (?:µs|ms|bp|basis points)\b))(?:e-?\d+)?"
)
#: What is no figure: code, addresses, versions, and the values that somebody chose (λ = 0.1, 10 or 100).
NO_FIGURE = (
    r"```.*?```",
    r"`[^`]*`",
    r"\]\([^)]*\)",
    r"Python \d+\.\d+",
    r"[λγκρηnm]\s?[=≤≥<>]\s?[\d.]+(?:(?:, | and | or | to |–)[\d.]+)*",
)
ROW = re.compile(r"( ?%)?<!-- (.*?) -->", re.DOTALL)


def prose(text):
    """A page without what is no figure; what is left keeps its comments."""
    text = MADE["BLOCK"].sub("", text)
    for pattern in NO_FIGURE:
        text = re.sub(pattern, "·", text, flags=re.DOTALL)
    return text


def figures(text):
    """(what is written, the row that it names or None) of every figure of a page outside its tables."""
    text = prose(text)
    comments = [place.span() for place in re.finditer(r"<!--.*?-->", text, re.DOTALL)]
    for found in FIGURE.finditer(text):
        if any(start <= found.start() < end for start, end in comments):
            continue
        row = ROW.match(text, found.end())
        percent = text[found.end() : found.end() + 2].strip().startswith("%")
        yield found[0] + ("%" if percent else ""), row and " ".join(row[2].split())


def written(value, like):
    """A value with as many digits as a figure is written with."""
    percent, like = like.endswith("%"), like.removesuffix("%")
    value *= 100 if percent else 1
    if "e" in like:
        digits = len(like.split("e")[0].partition(".")[2])
        return re.sub(r"e([+-])0", r"e\1", f"{value:.{digits}e}")
    text = f"{value:.{len(like.partition('.')[2])}f}".replace("-", "−" if "−" in like else "-")
    text = text.replace("0.", ".", 1) if like.lstrip("−-").startswith(".") else text
    return text + "%" * percent


@pytest.mark.parametrize("page", MADE["PAGES"])
def test_every_figure_has_a_row(page):
    for like, row in figures((ROOT / page).read_text()):
        assert row, f"{page}: {like} names no row"
        assert written(MADE["figure_of_rows"](row), like) == like, f"{page}: {like}, {row}"


@pytest.mark.parametrize("page", MADE["PAGES"])
def test_tables_are_those_of_the_rows(page):
    text = (ROOT / page).read_text()
    assert MADE["page_with_tables"](text) == text, "run python docs/make_tables.py"


def test_a_figure_without_a_row_is_found():
    row = "<!-- parity r2 arm=x -->"
    assert list(figures("It is 3.3 times worse")) == [("3.3", None)]
    assert list(figures(f"R² .887{row} and 17 %{row}")) == [(".887", "parity r2 arm=x"), ("17%", "parity r2 arm=x")]
    assert list(figures("at 1e-9, −.29 and 12 µs")) == [("1e-9", None), ("−.29", None), ("12", None)]
    assert not list(figures("λ = 0.1, 10 or 100, Python 3.11, `tol=0.1`, 500 constraints"))
    assert [written(0.01234, like) for like in ("0.01", ".012", "1%", "1.2e-2")] == ["0.01", ".012", "1%", "1.2e-2"]
    with pytest.raises(LookupError, match="no row for parity r2 arm=x"):
        MADE["figure_of_rows"]("parity r2 arm=x")
