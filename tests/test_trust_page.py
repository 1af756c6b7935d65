"""The figures of docs/trust.md are those that the trust tests recorded."""

import re

from tests.trust.figures import PAGE, ROOT, filled, promises, recorded


def test_every_promise_has_the_figure_that_was_recorded():
    page = PAGE.read_text()
    measured = recorded()
    assert set(measured) <= set(promises(page))
    expected = {name: measured.get(name, "–") for name in promises(page)}
    assert promises(page) == expected, "run make trust, or python -m tests.trust.figures after a part of it"
    assert len(promises(page)) == len(re.findall(r"^\| `", page, flags=re.MULTILINE))


def test_every_promise_is_kept_by_a_test_that_exists():
    for target in re.findall(r"`make (\w+)", PAGE.read_text()):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), target
    for path, name in re.findall(r"ONLY=([\w/.]+)(?:::(\w+))?", PAGE.read_text()):
        assert f"def {name}" in (ROOT / path).read_text()


def test_figures_are_filled_in_by_name():
    page = "| `a` | promise | test | old | `make trust` |\n| `b` | other | test | kept | `make trust` |\n"
    assert promises(filled(page, {"a": "new"})) == {"a": "new", "b": "kept"}
