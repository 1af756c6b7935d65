"""A portfolio day by day: one decision per date, nothing lost by a kill, no changed past, live equals simulated."""

import json
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from time2decide import backtest
from time2decide.backtesting.journal_replay import replay_journal
from time2decide.core.journal import Journal
from time2decide.core.provenance import json_digest
from time2decide.core.validation import InputError
from time2decide.markets.constraint_files import read_constraints
from time2decide.markets.decision_file import verify_decision
from time2decide.markets.policy_config import MARKET
from time2decide.markets.tables import load_returns
from time2decide.policy import portfolio_run
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.model import Time2Decide
from time2decide.policy.portfolio_config import read_portfolio
from time2decide.policy.portfolio_run import run_portfolio
from time2decide.policy.run_holdings import DRIFTED, EQUAL

NAMES = list("ABCDE")
ROWS = 150


@pytest.fixture
def days():
    rng = np.random.default_rng(2)
    array = 0.006 * rng.normal(size=(ROWS + 20, 1)) + 0.01 * rng.normal(size=(ROWS + 20, 5)) * np.linspace(0.5, 2, 5)
    return pd.DataFrame(array, pd.bdate_range("2023-01-02", periods=len(array), name="date"), NAMES)


@pytest.fixture
def live(tmp_path, days):
    """Runs on the table up to a row, in a folder of its own."""
    (tmp_path / "limits.toml").write_text('[weights]\nupper = 0.6\n[groups.x]\nassets = ["A", "B"]\nupper = 0.5\n')

    def run(rows, text="", table=None, **options):
        (days if table is None else table).iloc[:rows].to_csv(tmp_path / "returns.csv")
        settings = 'table = "returns.csv"\nvalues = "returns"\nturnover = 0.3\ndecisions = "decisions"\n'
        (tmp_path / "portfolio.toml").write_text(settings + text)
        return run_portfolio(read_portfolio(tmp_path / "portfolio.toml"), **options)

    run.folder = tmp_path
    return run


def test_one_decision_per_date_and_a_second_run_changes_nothing(live):
    first = live(ROWS)
    assert (first.number, first.entry["holdings"], first.entry["rows_read"]) == (1, EQUAL, ROWS)
    before = {path: path.read_bytes() for path in live.folder.rglob("*") if path.is_file()}
    again = live(ROWS)
    assert again.decision is None
    assert again.entry == first.entry
    assert {path: path.read_bytes() for path in live.folder.rglob("*") if path.is_file()} == before
    second = live(ROWS + 3)
    assert (second.number, second.entry["holdings"], second.entry["rows_read"]) == (2, DRIFTED, 3)
    assert second.entry["after"] == first.entry["checksum"]


def test_bars_of_half_a_day_have_one_decision_each_also_at_midnight(live, days):
    bars = days.set_axis(pd.date_range("2023-01-01", periods=len(days), freq="12h", name="date"))
    first = live(ROWS + 1, table=bars)  # the last bar is at midnight
    assert first.entry["date"].endswith("T00:00:00")
    again = live(ROWS + 1, table=bars)
    assert (again.number, again.decision, again.entry) == (1, None, first.entry)
    kept = {name: (live.folder / name).read_bytes() for name in ("journal.jsonl", "state.safetensors")}
    live(ROWS + 3, table=bars)
    for name, content in kept.items():  # restored from a copy that is older than the decision files
        (live.folder / name).write_bytes(content)
    with pytest.raises(InputError, match="its line was lost"):
        live(ROWS + 4, table=bars)


@pytest.mark.parametrize("clock", ["19:00", "00:00"])
def test_days_that_are_at_midnight_in_winter_only_go_on_in_summer(live, days, clock):
    zone = "America/New_York" if clock == "19:00" else "Europe/Berlin"  # midnight in UTC, and in Berlin
    last = pd.Timestamp(f"2024-03-29 {clock}", tz=zone).tz_convert("UTC") + pd.Timedelta(days=5)
    index = pd.date_range(end=last, periods=ROWS + 5, freq="24h").tz_convert(zone).rename("date")
    bars = days.iloc[: len(index)].set_axis(index)
    for number in (1, 2, 3):
        assert live(ROWS - 2 + 2 * number, table=bars).number == number
    table = load_returns(live.folder / "returns.csv")
    files = sorted((live.folder / "decisions").iterdir())
    assert len(files) == 3
    assert all(verify_decision(path, table).passed for path in files)
    assert replay_journal(live.folder / "journal.jsonl", table).equal


def test_bars_of_a_time_zone_go_on_when_the_clocks_change(live, days):
    hours = pd.date_range("2024-03-10 12:00", periods=len(days), freq="1h", tz="America/New_York")
    bars = days.set_axis((hours - pd.Timedelta(hours=ROWS + 12)).rename("date"))  # the clocks change at 2:00 that day
    winter = int((bars.index < "2024-03-10 02:00-05:00").sum())
    assert ROWS - 5 < winter < ROWS + 5
    first = live(winter, table=bars)
    assert first.entry["date"] == "2024-03-10T06:00:00+00:00"
    second = live(winter + 2, table=bars)  # two offsets in one file
    assert (second.number, second.entry["date"]) == (2, "2024-03-10T08:00:00+00:00")
    (live.folder / "state.safetensors").unlink()
    assert live(winter + 3, table=bars).number == 3


@pytest.mark.parametrize(
    "name", ["state.safetensors", "journal.jsonl", "decisions/today.json", "decisions/before.json"]
)
def test_a_pipe_in_place_of_a_file_is_named_and_nothing_is_decided(live, days, name):
    live(ROWS)
    kept = (live.folder / "journal.jsonl").read_bytes()
    dates = {"today": days.index[ROWS], "before": days.index[ROWS - 1]}
    stem = (live.folder / name).stem
    pipe = live.folder / (f"decisions/{dates[stem].date()}.json" if stem in dates else name)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=f"expected a file, found the device .*{pipe.name}"):
        live(ROWS + 1)
    assert pipe.is_fifo()
    if pipe.name != "journal.jsonl":
        assert (live.folder / "journal.jsonl").read_bytes() == kept


def test_journal_and_state_may_be_links(live):
    (live.folder / "data").mkdir()
    for name in ("journal.jsonl", "state.safetensors"):
        (live.folder / name).symlink_to(live.folder / "data" / name)
    assert [live(ROWS).number, live(ROWS + 1).number] == [1, 2]
    for name in ("journal.jsonl", "state.safetensors"):
        assert (live.folder / name).is_symlink()
        assert (live.folder / "data" / name).stat().st_size > 0


def test_a_number_that_no_float_can_hold_is_refused(live):
    live(ROWS)
    path = live.folder / "journal.jsonl"
    entry = json.loads(path.read_text())
    entry["terms"]["turnover_l1"] = 10**400
    content = {key: value for key, value in entry.items() if key != "checksum"}
    path.write_text(json.dumps(content | {"checksum": json_digest(content, 64)}) + "\n")
    with pytest.raises(InputError, match="turnover_l1: expected a number"):
        live(ROWS + 1)


@pytest.mark.parametrize("key", ["state", "journal", "decisions", "constraints"])
def test_a_name_that_no_file_can_have_is_refused(live, key):
    (live.folder / "portfolio.toml").write_text(f'table = "returns.csv"\n{key} = "\\u0000"\n')
    with pytest.raises(InputError, match=f"portfolio.toml: {key}: expected text"):
        read_portfolio(live.folder / "portfolio.toml")


def test_files_verify_and_the_journal_replays_bit_by_bit(live, days):
    for rows in range(ROWS, ROWS + 6):
        live(rows, 'constraints = "limits.toml"\n')
    table = load_returns(live.folder / "returns.csv")
    for path in sorted((live.folder / "decisions").iterdir()):
        assert verify_decision(path, table).passed
    found = replay_journal(live.folder / "journal.jsonl", table)
    assert found.equal
    assert found.differences.max() == 0
    assert "bit by bit" in found.text[1]
    assert found.live_return == found.simulated_return
    assert found.held_return == pytest.approx((0.2 * (1 + days.iloc[ROWS : ROWS + 5]).prod()).sum() - 1)


def test_the_current_weights_are_the_last_target_after_drift_or_those_of_a_file(live, days):
    first = live(ROWS, "delay = 0\n").entry["weights"]
    second = live(ROWS + 2, "delay = 0\n").entry["previous"]
    grown = np.array(list(first.values())) * (1 + days.iloc[ROWS : ROWS + 2]).prod().to_numpy()
    np.testing.assert_allclose(list(second.values()), grown / grown.sum(), atol=1e-12)
    (live.folder / "held.csv").write_text("asset,weight\nE,0.2\nA,0.2\nB,0.2\nC,0.1\nD,0.3\n")
    third = live(ROWS + 3, holdings=live.folder / "held.csv").entry
    assert (third["holdings"], third["previous"]["D"]) == ("file held.csv", 0.3)
    found = replay_journal(live.folder / "journal.jsonl", load_returns(live.folder / "returns.csv"))
    assert found.equal
    assert "from a file on 1 dates" in "\n".join(found.text)


@pytest.mark.parametrize("delay", [0, 1])
def test_the_portfolio_is_that_of_the_backtest(live, days, delay):
    settings = f'delay = {delay}\nconstraints = "limits.toml"\n'
    entries = [live(rows, settings).entry for rows in range(ROWS, ROWS + 6)]
    rules = read_constraints(live.folder / "limits.toml", NAMES)
    result = backtest(days.iloc[: ROWS + 6], ["market"], 0.3, window=ROWS, delay=delay, constraints=rules)
    held = result.weights("market", 0.3).to_numpy()
    live_weights = np.array([list(entry["previous" if delay else "weights"].values()) for entry in entries])
    np.testing.assert_allclose(live_weights, held, atol=1e-9)
    assert {entry["terms"]["delay"] for entry in entries} == {delay}
    found = replay_journal(live.folder / "journal.jsonl", days)
    assert found.differences.max() == 0
    other = live(ROWS + 6, f'delay = {1 - delay}\nconstraints = "limits.toml"\n')
    assert other.decision is not None
    assert replay_journal(live.folder / "journal.jsonl", days).equal


def test_a_file_of_current_weights_that_is_not_updated_is_said_loudly(live, days, run):
    held, given = live.folder / "held.csv", 'holdings = "held.csv"\n'
    held.write_text("asset,weight\nE,0.2\nA,0.2\nB,0.2\nC,0.1\nD,0.3\n")
    first = live(ROWS, given)
    assert not first.stale
    assert first.decision.turnover > 0.01
    days.iloc[: ROWS + 1].to_csv(live.folder / "returns.csv")
    told = run("run", "portfolio.toml", cwd=live.folder)
    warning = f"WARNING: held.csv is unchanged since the decision of {first.entry['date']}"
    assert warning in told.stdout
    assert warning in told.stderr
    held.write_text("asset,weight\n" + "".join(f"{name},{w!r}\n" for name, w in first.entry["weights"].items()))
    third = live(ROWS + 2, given)
    assert third.decision is not None
    assert not third.stale


def test_a_changed_past_is_refused_by_date_and_asset_with_the_state_and_without(live, days):
    live(ROWS)
    changed = days.copy()
    changed.iloc[70, 2] += 1e-9
    date = str(days.index[70].date())
    with pytest.raises(InputError, match=f"the return of C on {date} as seen before"):
        live(ROWS + 1, table=changed)
    with pytest.raises(InputError, match="at least the 150 rows"):
        live(ROWS - 1)
    with pytest.raises(InputError, match="assets of the days before"):
        live(ROWS + 1, table=days[NAMES[::-1]])
    with pytest.raises(InputError, match="row 1 of 2023-01-02 as seen before, found 2023-01-03"):
        live(ROWS + 1, table=days.iloc[1:])
    assert live(ROWS + 1, "tolerance = 1e-8\n", table=changed).number == 2
    (live.folder / "state.safetensors").unlink()
    with pytest.raises(InputError, match="that the journal has seen"):
        live(ROWS + 2)
    with pytest.raises(InputError, match="that the journal has seen"):
        live(ROWS + 2, "tolerance = 1e-8\n", table=changed * 1.1)
    assert len(Journal(live.folder / "journal.jsonl").entries()) == 2


def test_without_its_state_or_with_a_damaged_one_the_decision_is_the_same(live):
    live(ROWS)
    state = live.folder / "state.safetensors"
    kept = state.read_bytes(), (live.folder / "journal.jsonl").read_bytes()
    carried = live(ROWS + 1).entry
    for content in (None, kept[0][:1000]):
        (live.folder / "journal.jsonl").write_bytes(kept[1])
        state.unlink()
        (live.folder / "decisions" / f"{carried['date']}.json").unlink()
        if content is not None:
            state.write_bytes(content)
        again = live(ROWS + 1)
        assert again.entry["weights"] == carried["weights"]
        assert len(again.messages) == (content is not None)


def test_a_kill_between_journal_and_state_loses_nothing(live, monkeypatch):
    live(ROWS)

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(portfolio_run, "save_seen_rows", killed)
        with pytest.raises(KeyboardInterrupt):
            live(ROWS + 1)
    assert live(ROWS + 1).decision is None  # the journal has it
    path, state = live.folder / "journal.jsonl", live.folder / "state.safetensors"
    before = state.read_bytes()
    assert live(ROWS + 2).number == 3
    torn = path.read_bytes()[:-30]
    path.write_bytes(torn)
    with pytest.raises(InputError, match="lines were lost"):  # no kill leaves a later state: somebody cut the journal
        live(ROWS + 2)
    assert path.read_bytes() == torn
    state.write_bytes(before)
    repaired = live(ROWS + 2)
    assert "torn last line" in repaired.messages[0]
    assert (repaired.number, repaired.decision is not None) == (3, True)
    assert replay_journal(path, load_returns(live.folder / "returns.csv")).equal


def test_a_kill_between_decision_file_and_journal_is_made_good_by_the_same_run(live, monkeypatch):
    first = live(ROWS).entry
    path = live.folder / "journal.jsonl"
    before = path.read_bytes()

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            live(ROWS + 1)
    assert path.read_bytes() == before
    file = max((live.folder / "decisions").iterdir())  # of today, without its line
    assert file.stem > first["date"]
    left = json.loads(file.read_text())
    with pytest.raises(InputError, match=f"the entry of the decision file {file.name}, found none"):
        live(ROWS + 1, "cost = 5\n")  # another decision than that of the file
    assert path.read_bytes() == before
    done = live(ROWS + 1)
    assert (done.number, done.entry["weights"], done.messages) == (2, left["weights"], ())
    now = json.loads(file.read_text())
    assert {**now, "made": "", "checksum": ""} == {**left, "made": "", "checksum": ""}


def test_other_terms_on_a_decided_date_are_named_and_change_nothing(live, run):
    first = live(ROWS)
    assert first.differs == ()
    (live.folder / "held.csv").write_text("asset,weight\nE,0.2\nA,0.2\nB,0.2\nC,0.1\nD,0.3\n")
    (live.folder / "index.csv").write_text("asset,weight\nE,0.2\nA,0.2\nB,0.2\nC,0.2\nD,0.2\n")
    for text, differs in (
        ("risk_aversion = 3\n", ("risk_aversion 2 then, 3 now",)),
        ("cost = 5\n", ("cost 10 then, 5 now",)),
        ('constraints = "limits.toml"\n', ("other constraints",)),
        ('benchmark = "index.csv"\n', ("other benchmark",)),
    ):
        again = live(ROWS, text)
        assert again.decision is None
        assert again.entry == first.entry
        assert again.differs == differs
        assert "stands" in again.messages[-1]
    assert live(ROWS, holdings=live.folder / "held.csv").differs == ("other current weights",)
    Time2Decide(MarketPolicy(replace(MARKET, equilibrium=0.2))).save_pretrained(live.folder / "mine")
    assert "model market then" in live(ROWS, 'model = "mine"\n').differs[0]
    text = (live.folder / "portfolio.toml").read_text().replace("turnover = 0.3", "turnover = 0.1")
    (live.folder / "portfolio.toml").write_text(text.replace('model = "mine"', ""))
    told = run("run", "portfolio.toml", cwd=live.folder)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("Nothing new")
    assert f"{first.entry['date']} was decided on other terms, and stands: turnover 0.3 then, 0.1 now" in told.stderr


def test_a_decision_file_that_cannot_be_written_is_no_decision(live, days, run):
    live(ROWS)
    journal, state = ((live.folder / name).read_bytes() for name in ("journal.jsonl", "state.safetensors"))
    folder = live.folder / "decisions"
    first = folder / f"{days.index[ROWS - 1]:%Y-%m-%d}.json"
    weights = json.loads(first.read_text())["weights"]
    first.unlink()
    folder.rmdir()
    folder.write_text("in the way")
    again = live(ROWS)  # decided before: the file is missing, the decision stands
    assert (again.decision, again.unwritten) == (None, (first.name,))
    with pytest.raises(OSError, match="exists"):
        live(ROWS + 1)
    told = run("run", "portfolio.toml", cwd=live.folder)
    assert told.returncode == 2
    assert told.stderr == "time2decide: decisions: File exists\n"
    assert [(live.folder / name).read_bytes() for name in ("journal.jsonl", "state.safetensors")] == [journal, state]
    folder.unlink()
    third = live(ROWS + 2)
    assert third.number == 2
    assert [message.split()[0] for message in third.messages if "made again" in message] == [first.name]
    assert json.loads(first.read_text())["weights"] == weights
    for path in folder.iterdir():
        assert verify_decision(path, load_returns(live.folder / "returns.csv")).passed
    assert len(list(folder.iterdir())) == 2
    assert live(ROWS + 2).messages == ()
    first.unlink()
    Time2Decide(MarketPolicy(replace(MARKET, equilibrium=0.2))).save_pretrained(live.folder / "mine")
    assert "cannot be made again" in live(ROWS + 2, 'model = "mine"\n').messages[0]


def test_bad_input_leaves_no_journal_and_no_line(live):
    (live.folder / "far.csv").write_text("asset,weight\nA,1e200\nB,-1e200\nC,0\nD,0\nE,0\n")
    (live.folder / "tight.toml").write_text("[weights]\nupper = 0.1\n")
    for text, match in (
        ('benchmark = "far.csv"\n', "benchmark: expected weights of at most 1e"),
        ('constraints = "missing.toml"\n', "missing.toml"),
        ('constraints = "tight.toml"\n', "expected"),
        ('holdings = "missing.csv"\n', "missing.csv"),
    ):
        with pytest.raises(InputError, match=match):
            live(ROWS, text)
        assert not (live.folder / "journal.jsonl").exists()
    live(ROWS)


def test_what_cannot_be_encoded_is_refused_before_the_journal_has_it(live, monkeypatch):
    whole = portfolio_run.decision_document
    with monkeypatch.context() as patch:
        patch.setattr(portfolio_run, "decision_document", lambda *a, **k: whole(*a, **k) | {"cost": np.inf})
        with pytest.raises(InputError, match="finite numbers"):
            live(ROWS)
    assert live(ROWS).number == 1


def test_a_state_that_cannot_be_written_is_told_with_the_decision(live):
    (live.folder / "blocked").write_text("")
    made = live(ROWS, 'state = "blocked/state.safetensors"\n')
    assert made.decision is not None
    assert made.unwritten == ("state.safetensors",)
    assert "could not be written" in made.messages[-1]


def test_an_empty_decision_file_is_made_again_and_a_lost_line_is_noticed(live):
    live(ROWS)
    entry = live(ROWS + 1).entry
    path, journal = live.folder / "decisions" / f"{entry['date']}.json", live.folder / "journal.jsonl"
    path.write_bytes(b"")
    assert "made again" in live(ROWS + 1).messages[0]
    assert verify_decision(path, load_returns(live.folder / "returns.csv")).passed
    first, _ = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first)
    for rows in (ROWS + 2, ROWS + 3):
        with pytest.raises(InputError, match=f"journal.jsonl: expected the entry of the decision file {path.name}"):
            live(rows)
    assert journal.read_bytes() == first


def test_gaps_and_a_late_listing(live, days):
    table = days.copy()
    table.iloc[: ROWS - 40, 4] = np.nan  # young, and old enough before the end
    table.iloc[ROWS + 1 :, 3] = np.nan  # halted
    for rows in range(ROWS, ROWS + 5):
        live(rows, 'gaps = "keep"\nconstraints = "limits.toml"\n', table=table)
    read = load_returns(live.folder / "returns.csv", gaps="keep")
    found = replay_journal(live.folder / "journal.jsonl", read)
    assert found.differences.max() == 0
    assert (found.live[:, 4] == 0).all()
    np.testing.assert_allclose(found.live[3, 3], found.live[2, 3], atol=0.01)


def test_a_decision_that_was_not_made_by_the_rule_is_found(live):
    for rows in (ROWS, ROWS + 1):
        live(rows)
    path = live.folder / "journal.jsonl"
    first, second = Journal(path).entries()
    second["weights"] |= {"A": second["weights"]["A"] + 0.01, "B": second["weights"]["B"] - 0.01}
    path.unlink()
    for entry in (first, second):
        Journal(path).append({key: value for key, value in entry.items() if key not in ("after", "checksum")})
    found = replay_journal(path, load_returns(live.folder / "returns.csv"))
    assert not found.equal
    assert "DIFFER" in found.text[1]
    assert second["date"] in found.text[2]


def test_bad_configurations_are_refused_by_name(tmp_path):
    for text, match in (
        ("", "the key table"),
        ("table = 3", "table: expected text"),
        ('table = "x"\nturnovr = 1', "keys among .*turnovr"),
        ('table = "x"\nturnover = true', "turnover: expected a number"),
        (f'table = "x"\ndecisions = "{"9" * 300}"', "decisions: expected a name of at most 255 bytes"),
        ('table = "x"\nturnover = 3', "turnover_l1"),
        ('table = "x"\ngaps = "fill"', "gaps"),
        ('table = "x"\nvalues = "yields"', "values"),
        ('table = "x"\ncost = -1', "cost_bps"),
        ("table = ", "TOML"),
    ):
        (tmp_path / "p.toml").write_text(text)
        with pytest.raises(InputError, match=match):
            read_portfolio(tmp_path / "p.toml")


def test_the_command_decides_once_and_backtest_compares(run, live):
    live(ROWS)
    done = run("run", "portfolio.toml", cwd=live.folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Nothing new: ")
    (live.folder / "journal.jsonl").unlink()
    refused = run("run", "portfolio.toml", cwd=live.folder)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "which state.safetensors has read, found none (lines were lost" in refused.stderr
    (live.folder / "state.safetensors").unlink()
    done = run("run", "portfolio.toml", "--explain", cwd=live.folder)
    assert done.returncode == 0, done.stderr
    assert "Trades after" in done.stdout
    assert "Current weights: equal weights. Rows read: 150. Written: journal.jsonl, line 1." in done.stdout
    answer = json.loads(run("run", "portfolio.toml", "--json", cwd=live.folder).stdout)
    assert (answer["number"], answer["new"]) == (1, False)
    asked = ("backtest", "returns.csv", "--returns", "--journal", "journal.jsonl")
    shown = run(*asked, cwd=live.folder)
    assert shown.returncode == 0, shown.stderr
    assert "equal the simulated ones, bit by bit" in shown.stdout
    assert json.loads(run(*asked, "--json", cwd=live.folder).stdout)["equal"]


@pytest.mark.parametrize("key", ["state", "journal"])
def test_files_of_a_portfolio_are_distinct(tmp_path, key):
    table = tmp_path / "r.csv"
    table.write_text("keep me")
    file = tmp_path / "p.toml"
    file.write_text(f'table = "r.csv"\n{key} = "r.csv"\n')
    with pytest.raises(InputError, match=f"one for table and {key}"):
        read_portfolio(file)
    file.write_text(f'table = "r.csv"\ndecisions = "d"\n{key} = "d/2023-01-02.json"\n')
    with pytest.raises(InputError, match=f"only decision files .* found {key}"):
        read_portfolio(file)
    file.write_text(f'table = "r.csv"\n{key} = "p.toml"\n')
    with pytest.raises(InputError, match=f"one for portfolio file and {key}"):
        read_portfolio(file)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"data": None},
        {"data": {"rows": 0.5}},
        {"weights": {"A": "x"}},
        {"date": 3},
        {"date": "../../2023"},
        {"terms": {}},
        {"previous": {"A": 1.0}},
    ],
    ids=str,
)
def test_a_journal_of_another_content_is_refused_by_its_line(live, change):
    live(ROWS)
    path = live.folder / "journal.jsonl"
    (entry,) = Journal(path).entries()
    path.unlink()
    Journal(path).append({key: one for key, one in (entry | change).items() if key not in ("after", "checksum")})
    table = load_returns(live.folder / "returns.csv")
    for use in (lambda: live(ROWS + 1), lambda: replay_journal(path, table)):
        with pytest.raises(InputError, match=r"journal\.jsonl, line 1(, [\w.]+)?: expected"):
            use()


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("later", [0, 1])
def test_a_state_that_is_ahead_of_its_journal_is_refused(live, left, later):
    """A journal that was cut or restored from a backup, with the state of later and no decision files beside it."""
    dates = [live(rows).entry["date"] for rows in (ROWS, ROWS + 1, ROWS + 2)]
    journal, decisions = live.folder / "journal.jsonl", live.folder / "decisions"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:left]))
    for path in decisions.iterdir():
        path.unlink()
    before = {path: path.read_bytes() for path in live.folder.rglob("*") if path.is_file()}
    found = f"{dates[left - 1]} as the last" if left else "none"
    with pytest.raises(InputError, match=f"journal.jsonl: expected the entry of {dates[-1]}, which .* found {found}"):
        live(ROWS + 2 + later)
    after = {path: path.read_bytes() for path in live.folder.rglob("*") if path.is_file()}
    kept = [path for path in before if path.name != "returns.csv" and before[path]]
    assert all(after[path] == before[path] for path in kept)
    journal.write_bytes(b"".join(lines))  # restored: goes on, and makes the decision files again
    live(ROWS + 3)
    assert len(list(decisions.iterdir())) == 4


def test_keeping_gaps_of_a_whole_table_decides_the_same(live, days):
    made = live(ROWS + 1, 'gaps = "refuse"\n')
    for path in live.folder.iterdir():
        if path.name in ("journal.jsonl", "state.safetensors"):
            path.unlink()
    (live.folder / "decisions").rename(live.folder / "before")
    kept = live(ROWS + 1, 'gaps = "keep"\n')
    np.testing.assert_array_equal(kept.decision.weights, made.decision.weights)
    assert kept.entry | {"made": "", "checksum": ""} == made.entry | {"made": "", "checksum": ""}
    assert verify_decision(live.folder / "decisions" / f"{kept.entry['date']}.json", days).passed


def _prices(days):
    return 100 * (1 + days).cumprod()


def test_shares_in_the_configuration_give_orders_in_the_output_the_journal_and_the_file(live, days, run):
    prices, folder = _prices(days), live.folder
    (folder / "held.csv").write_text("asset,shares\nA,300\nB,200\nC,400\nD,100\nE,50\n")
    text = 'holdings = "held.csv"\n'
    prices.iloc[:ROWS].to_csv(folder / "returns.csv")
    settings = 'table = "returns.csv"\nvalues = "prices"\nturnover = 0.3\ndecisions = "decisions"\n'
    (folder / "portfolio.toml").write_text(settings + text)
    told = run("run", "portfolio.toml", cwd=folder)
    assert told.returncode == 0, told.stderr
    assert "Orders in whole shares at the table's last prices" in told.stdout
    entry = json.loads((folder / "journal.jsonl").read_text().splitlines()[0])
    held = np.array([300, 200, 400, 100, 50.0])
    value = float(held @ prices.iloc[ROWS - 1])
    assert entry["orders"]["value"] == pytest.approx(value)
    np.testing.assert_allclose(list(entry["previous"].values()), held * prices.iloc[ROWS - 1] / value, atol=1e-12)
    file = folder / "decisions" / f"{days.index[ROWS - 1]:%Y-%m-%d}.json"
    assert json.loads(file.read_text())["orders"] == entry["orders"]
    decided = run("decide", "returns.csv", "--turnover", "0.3", "--previous", "held.csv", "--json", cwd=folder)
    assert json.loads(decided.stdout)["orders"] == entry["orders"]
    assert verify_decision(file, folder / "returns.csv").passed
    before = json.loads(file.read_text())
    file.unlink()  # as if the disk had been full
    again = run_portfolio(read_portfolio(folder / "portfolio.toml"))
    assert any("made again" in message for message in again.messages)
    assert json.loads(file.read_text())["orders"] == before["orders"]
    prices.iloc[: ROWS + 1].to_csv(folder / "returns.csv")
    assert "held.csv is unchanged" in run_portfolio(read_portfolio(folder / "portfolio.toml")).stale


def test_a_value_and_prices_give_orders_and_returns_alone_do_not(live, days):
    with pytest.raises(InputError, match="a table of prices, or --price-file"):
        live(ROWS, "value = 1e6\n")
    (live.folder / "now.csv").write_text("asset,price\n" + "".join(f"{name},10\n" for name in NAMES))
    found = live(ROWS, 'value = 1e6\nprice_file = "now.csv"\n')
    assert found.orders.at == "now.csv"
    assert found.entry["orders"]["value"] == 1e6
    np.testing.assert_array_equal(found.orders.shares, np.round(found.orders.shares))
    assert live(ROWS + 1).orders is None
    with pytest.raises(InputError, match="value"):
        live(ROWS + 2, "value = -1\n")


def test_the_smallest_trade_is_a_term_of_the_journal(live, days):
    free = live(ROWS).decision
    trades = np.sort(np.abs(free.weights - free.previous))
    least = float(trades[trades > 1e-6][0]) * 1.5
    (live.folder / "journal.jsonl").unlink()
    (live.folder / "state.safetensors").unlink()
    for path in (live.folder / "decisions").iterdir():
        path.unlink()
    made = live(ROWS, f"min_trade = {least!r}\n")
    assert made.entry["terms"]["min_trade"] == least
    trade = np.abs(made.decision.weights - made.decision.previous)
    assert ((trade < 1e-12) | (trade >= least * (1 - 1e-6))).all()
    assert made.decision.untraded.any()
    assert live(ROWS, "min_trade = 0\n").differs == (f"min_trade {least:g} then, 0 now",)
    assert replay_journal(live.folder / "journal.jsonl", load_returns(live.folder / "returns.csv")).equal
    (file,) = (live.folder / "decisions").iterdir()
    assert verify_decision(file, load_returns(live.folder / "returns.csv")).passed
