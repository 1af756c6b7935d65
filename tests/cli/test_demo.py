"""`make run` on a few days."""

import pytest

from time2decide.cli import demo


@pytest.mark.slow
def test_the_demonstration_decides_compares_and_writes(tmp_path, capsys):
    demo.main(rows=160, window=120, folder=tmp_path / "run")
    shown = " ".join(capsys.readouterr().out.split())
    parts = ("Trades after 2022-12-28", "Verdict:", "all constraints hold", "hierarchical", "Findings at")
    places = [shown.index(text) for text in (*parts, "Against uniform: Sharpe", "report.html")]
    assert places == sorted(places)  # the trades first, the words last
    assert "γ = 0.1" in shown
    assert (tmp_path / "run/report.html").stat().st_size < 3_000_000
