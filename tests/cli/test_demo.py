"""`make run` on a few days."""

import pytest

from time2decide.cli import demo


@pytest.mark.slow
def test_the_demonstration_decides_compares_and_writes(tmp_path, capsys):
    demo.main(rows=120, folder=tmp_path / "run")
    shown = capsys.readouterr().out
    for text in ("Rebalancing after 2022-12-28", "all constraints hold", "In words", "report.html"):
        assert text in shown
    assert (tmp_path / "run/report.html").stat().st_size > 1_000_000
