"""Files are written whole or not at all, on a full disk, after an interrupt and after a kill."""

import errno
import os
import resource
import time
from contextlib import contextmanager

import pytest

from time2decide.core.files import append_line, atomic_path, validate_not_read, validate_output_file, write_text
from time2decide.core.validation import InputError


@contextmanager
def full_after(size):
    """Files of this process may not grow beyond a number of bytes: a disk that is full by then.

    Only within the block: the log of the tests may be such a file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_file_and_is_named(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with full_after(1000), pytest.raises(OSError, match="File too large") as caught:
        write_text(path, 2000 * "x")
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("room", [0, 1, 999])
def test_a_line_that_does_not_fit_is_taken_back(tmp_path, room):
    path = tmp_path / "lines"
    path.write_bytes(b"first\n")
    with path.open("ab") as file, full_after(6 + room), pytest.raises(OSError, match="File too large") as caught:
        append_line(file, 1000 * b"x" + b"\n")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"first\n"


def test_an_interrupt_takes_a_line_back(tmp_path, monkeypatch):
    path = tmp_path / "lines"

    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with path.open("ab") as file, pytest.raises(KeyboardInterrupt):
        append_line(file, b"line\n")
    assert path.read_bytes() == b""


def test_what_a_killed_process_left_is_removed_after_an_hour(tmp_path):
    old, young, other = (tmp_path / name for name in (f".{'0' * 16}.part", f".{'1' * 16}.part", ".mine.part"))
    for path in (old, young, other):
        path.write_text("x")
    for path in (old, other):
        os.utime(path, (time.time() - 4000,) * 2)
    with atomic_path(tmp_path / "file") as temporary:
        temporary.write_text("y")
    assert {path.name for path in tmp_path.iterdir()} == {young.name, other.name, "file"}


@pytest.mark.parametrize("kind", ["itself", "another way", "symbolic", "hard"])
def test_an_output_that_is_read_is_refused_by_whatever_name(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, other = tmp_path / "data.csv", tmp_path / "other.csv"
    source.write_text("keep me")
    if kind == "symbolic":
        other.symlink_to(source)
    elif kind == "hard":
        os.link(source, other)
    out = {"itself": source, "another way": tmp_path / "sub" / ".." / "data.csv"}.get(kind, other)
    with pytest.raises(InputError, match="out: expected another file than those that are read, found "):
        validate_not_read("out", out, (None, "sp500", "data.csv"))
    validate_not_read("out", tmp_path / "new.csv", (None, "sp500", "data.csv", "x" * 5000, "a\0b"))


def test_no_file_takes_the_place_of_a_device(tmp_path):
    """As root, --out /dev/null would have made it a file, and broken the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for write in (lambda: write_text(pipe, "text"), lambda: validate_output_file("out", pipe)):
        with pytest.raises(InputError, match=r"(file|out): expected a file, found the device .*pipe"):
            write()
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_keeps_pointing_at_the_file_that_is_replaced(tmp_path):
    (tmp_path / "days").mkdir()
    file, link = tmp_path / "days" / "monday.json", tmp_path / "latest.json"
    file.write_text("old")
    link.symlink_to(file)
    write_text(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert [*(tmp_path / "days").iterdir()] == [file]


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for write in (lambda: write_text(loop, "text"), lambda: validate_output_file("out", loop)):
        with pytest.raises(
            InputError, match=r"(file|out): expected a file, found the link .*loop, which leads to itself"
        ):
            write()
    assert loop.is_symlink()
