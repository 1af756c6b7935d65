"""How a backtest says what is done and how long it takes."""

import pytest

from time2decide.cli import console


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_counts_steps_by_what_they_cost(clock):
    found = console._StepClock(["market", "uniform"])
    assert found.step("market", 0, 10) == (0.0, float("inf"))
    clock[0] += 25.0
    share, left = found.step("market", 5, 10)
    assert share == pytest.approx(12.5 / 26)
    assert left == pytest.approx(25.0 * 13.5 / 12.5)  # 25 s for the rest of market, one more for uniform
    clock[0] += 25.0
    share, left = found.step("uniform", 0, 10)
    assert share == pytest.approx(25 / 26)
    assert left == pytest.approx(2.0)


def test_without_a_terminal_there_is_a_line_early_and_then_every_half_minute(clock, capsys, monkeypatch):
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: False, raising=False)
    with console.step_progress(["market", "market-risk"]) as show:
        for step in range(100):
            show("market", step, 100)
            clock[0] += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "2 strategies, 100 steps each; at market: 4% of all done, about 2 min left"
    assert len(lines) == 4  # after 5, 35, 65 and 95 s
    assert lines[-1] == "at market: 77% of all done, about 29 s left"


def test_on_a_terminal_a_bar_says_the_time_left(clock, monkeypatch):
    said = []
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("rich.progress.Progress.update", lambda self, task, **fields: said.append(fields))
    with console.step_progress(["uniform"]) as show:
        for step in range(3):
            show("uniform", step, 10)
            clock[0] += 10.0
    assert [one["left"] for one in said] == ["", "about 90 s left", "about 80 s left"]
    assert [one["completed"] for one in said] == pytest.approx([0.0, 0.1, 0.2])
