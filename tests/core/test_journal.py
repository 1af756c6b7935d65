"""The journal: whole lines only, torn ones repaired, changed ones refused, one writer at a time."""

import json
import os
import signal
import subprocess
import sys

import pytest

from time2decide.core.journal import Journal
from time2decide.core.validation import InputError


@pytest.fixture
def journal(tmp_path):
    book = Journal(tmp_path / "folder" / "journal.jsonl")
    with book.locked():
        for number in range(3):
            book.append({"number": number, "text": "é"})
    return book


def test_entries_come_back_in_order_with_their_chain(journal):
    entries = journal.entries()
    assert [entry["number"] for entry in entries] == [0, 1, 2]
    assert [entry["after"] for entry in entries] == ["", *(entry["checksum"] for entry in entries[:-1])]
    assert journal.repair() is None
    assert Journal(journal.path.with_name("none")).entries() == []


def test_a_name_twice_in_a_line_is_refused(journal):
    text = journal.path.read_text()
    journal.path.write_text(text.replace('"number": 1,', '"number": 7, "number": 1,'))
    with pytest.raises(InputError, match=r"line 2: expected every name once, found 'number' again"):
        journal.entries()


def test_a_file_made_by_a_run_that_failed_is_removed(tmp_path):
    book = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(KeyError), book.locked():
        raise KeyError
    assert not book.path.exists()


def test_what_was_there_before_a_run_that_failed_stays(tmp_path):
    """An empty file that was there, and a link; of a link that names nothing yet, the file made for it goes."""
    empty, link, loose = (Journal(tmp_path / name) for name in ("empty.jsonl", "link.jsonl", "loose.jsonl"))
    empty.path.touch()
    link.path.symlink_to(empty.path)
    loose.path.symlink_to(tmp_path / "later" / "file.jsonl")
    for book in (empty, link, loose):
        with pytest.raises(KeyError), book.locked():
            raise KeyError
    assert empty.path.is_file()
    assert link.path.is_symlink()
    assert loose.path.is_symlink()
    assert not loose.path.exists()
    with loose.locked():
        loose.append({"number": 0})
    assert loose.path.is_symlink()
    assert (tmp_path / "later" / "file.jsonl").read_bytes() == loose.path.read_bytes() != b""


def test_a_pipe_or_device_is_neither_read_nor_removed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        book = Journal(tmp_path / name)
        with pytest.raises(InputError, match=f"journal: expected a file, found the device .*{name}"):
            book.entries()
        with pytest.raises(InputError, match=f"journal: expected a file, found the device .*{name}"), book.locked():
            pass
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()


def test_a_line_cut_anywhere_is_removed_and_the_journal_goes_on(journal):
    whole = journal.path.read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(start + 1, len(whole) - 1):
        journal.path.write_bytes(whole[:cut])
        assert len(journal.entries()) == 2
        with pytest.raises(InputError, match="torn"):
            journal.append({})
        assert "torn last line" in journal.repair()
        assert journal.path.read_bytes() == whole[:start]
        assert journal.repair() is None
    journal.path.write_bytes(whole[:-1])  # only the end of the line is missing
    assert len(journal.entries()) == 3
    assert "kept" in journal.repair()
    assert journal.path.read_bytes() == whole
    journal.path.write_bytes(whole + b"\0" * 100)  # space that was given and never written
    assert "100 bytes" in journal.repair()
    assert journal.append({"number": 3})["after"] == journal.entries()[2]["checksum"]


def test_lines_that_were_changed_removed_or_put_in_are_refused_by_number(journal):
    lines = journal.path.read_bytes().splitlines(keepends=True)
    for wrong, match in (
        ([lines[0].replace(b'"number": 0', b'"number": 9'), *lines[1:]], "line 1: expected the checksum"),
        ([lines[0], lines[2]], "line 2: expected to follow"),
        ([lines[1], *lines[1:]], "line 1: expected to follow"),
        ([b"{}\n", *lines], "line 1: expected an entry"),
        ([lines[0], b"\xff\n", *lines[1:]], "line 2: expected a JSON object"),
        ([lines[0], b"\n", *lines[1:]], "line 2: expected a JSON object"),
    ):
        journal.path.write_bytes(b"".join(wrong))
        with pytest.raises(InputError, match=match):
            journal.entries()
        with pytest.raises(InputError, match=match):
            journal.repair()


def test_two_at_once_are_refused(journal):
    with journal.locked():
        code = f"from time2decide.core.journal import Journal\nwith Journal({str(journal.path)!r}).locked(): pass"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "expected no other run on this journal, found one at work" in done.stderr


def test_a_killed_writer_loses_at_most_its_last_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    code = (
        "import sys; from time2decide.core.journal import Journal\n"
        f"book = Journal({str(path)!r})\n"
        "for number in range(10**6):\n    book.append({'number': number, 'fill': 5000 * 'x'})\n"
        "    print(number, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
        told = [writer.stdout.readline() for _ in range(5)]
        os.kill(writer.pid, signal.SIGKILL)
        told += writer.stdout.readlines()
    book = Journal(path)
    book.repair()
    numbers = [entry["number"] for entry in book.entries()]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= len([line for line in told if line.endswith("\n")])
    assert json.loads(path.read_bytes().splitlines()[0])["number"] == 0
