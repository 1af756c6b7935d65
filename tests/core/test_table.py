"""One table, three forms: the same cells in each, and nothing of them is markup."""

import pytest

from time2decide.core.table import Table, cell_text, quantity_cell, tables_of_rows, tables_with_last_note

TABLE = Table(
    "Caption", ["name", "R²", "words"], [["a|b <i>", "1.07 [0.53, 1.71]", "not met"], ["c", "–", ""]], "A note."
)


def test_the_shell_shows_caption_cells_and_note_and_folds_nothing():
    lines = TABLE.text().splitlines()
    assert lines[0] == "Caption"
    assert lines[1].split() == ["name", "R²", "words"]
    assert lines[3].split() == ["a|b", "<i>", "1.07", "[0.53,", "1.71]", "not", "met"]
    assert lines[-1] == "A note."
    wide = Table("", ["x"], [["y" * 500]])
    assert "y" * 500 in wide.text()
    assert max(map(len, wide.text(80).splitlines())) <= 80


def test_markdown_is_a_table_of_github():
    assert TABLE.markdown() == (
        "**Caption**\n\n| name | R² | words |\n|---|---|---|\n| a\\|b <i> | 1.07 [0.53, 1.71] | not met |\n"
        "| c | – |  |\n\nA note."
    )


def test_html_escapes_and_puts_errors_in_small_print():
    text = TABLE.html()
    assert "a|b &lt;i&gt;" in text
    assert '1.07<span class="tail"> [0.53,\u00a01.71]</span>' in text
    assert '<td class="prose">not met</td>' in text  # words are on the left
    assert '<table class="wide">' not in text
    assert '<table class="wide">' in Table("", ["x"] * 8, [["0.0453 ± 0.0006 (0.0425)"] * 8]).html()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.5, ".2f"), "0.50"),
        ((0.5, ".2f", 0.125), "0.50 ± 0.12"),
        ((0.5, ".2f", None, 3.0, ".0f"), "0.50 (3)"),
        ((0.5, ".2f", 0.0, 3.0), "0.50 ± 0.00 (3.00)"),
        ((None, ".2f"), "–"),
        ((None, ".2f", 0.1, 0.25), "– (0.25)"),
    ],
)
def test_a_quantity_carries_its_error_and_the_papers_figure(arguments, expected):
    assert quantity_cell(*arguments) == expected


def test_a_shared_note_stands_under_the_last_table():
    assert [table.note for table in tables_with_last_note([TABLE, TABLE])] == ["", "A note."]
    assert tables_with_last_note([]) == []


def test_rows_of_the_same_keys_share_a_table():
    rows = [{"n": 1, "us": 12.34567}, {"error": None}, {"n": 2, "us": {"a": 0.5, "b": [1, 2.0]}}]
    first, second = tables_of_rows("times", rows)
    assert (first.caption, first.columns, first.rows) == (
        "times",
        ["n", "us"],
        [["1", "12.35"], ["2", "a 0.5, b 1, 2"]],
    )
    assert (second.columns, second.rows) == (["error"], [["–"]])
    assert cell_text(12.34567, 2) == "12"
