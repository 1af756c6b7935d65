"""An append-only journal of JSON lines that survives crashes and shows changes.

Every line carries the checksum of its content and that of the line before: a line that was changed, removed or put in
later breaks the chain. A line is written and synchronised as a whole. A torn last line, of a process that was killed
while it wrote, is no entry: `repair` removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from time2decide.core.files import append_line, expect_regular
from time2decide.core.provenance import json_digest
from time2decide.core.validation import InputError, distinct_keys, expect

_CHAIN, _CHECKSUM = "after", "checksum"  # fields of every line: checksum of the line before, and of this one


class Journal:
    """The journal of a file, which need not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the journal against other processes; a second one is refused.

        A file that was made for this and is empty when an error ends it is removed again; one that was there, and a
        link, stay.
        """
        file, made = self._open()
        with file:
            busy = f"{self.path}: expected no other run on this journal, found one at work"
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(busy) from None
            if os.fstat(file.fileno()).st_nlink == 0:  # removed by another run since it was opened
                raise InputError(busy)
            try:
                yield
            except BaseException:
                if made and os.fstat(file.fileno()).st_size == 0:
                    self._file.unlink(missing_ok=True)
                raise

    @property
    def _file(self) -> Path:
        """The file itself, where the path is a link to it."""
        return Path(os.path.realpath(self.path))

    def _open(self) -> tuple[IO[bytes], bool]:
        """The file, opened to be locked, and whether it was made by that."""
        expect_regular("journal", self.path)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self._file.open("x+b"), True
        except FileExistsError:
            return self._file.open("r+b"), False

    def entries(self) -> list[dict[str, Any]]:
        """All entries, oldest first; a torn last line is left out, any other damage is an `InputError`."""
        return self._read()[0]

    def repair(self) -> str | None:
        """Remove a torn last line; what was done, if anything."""
        entries, good, size = self._read()
        if good == size:
            return None
        whole = entries and _line(entries[-1]) == self.path.read_bytes()[good:]
        with self.path.open("r+b") as file:
            if whole:  # only the end of the line is missing
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
            else:
                file.truncate(good)
            _synchronise(file)
        if whole:
            return f"{self.path.name}: the last line had no end; it is whole and was kept"
        return f"{self.path.name}: a torn last line of {size - good} bytes was removed; its process was killed"

    def append(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write one entry and wait until it is on the disk; the entry as it was written."""
        entries, good, size = self._read()
        expect(good == size, self.path, "whole lines", "a torn last line (repair it first)")
        after = entries[-1][_CHECKSUM] if entries else ""
        entry = {**content, _CHAIN: after}
        entry[_CHECKSUM] = json_digest(entry, 64)
        with self.path.open("ab") as file:
            append_line(file, _line(entry) + b"\n")
        if not entries:  # the file is new
            _synchronise_folder(self._file.parent)
        return dict(json.loads(_line(entry)))

    def _read(self) -> tuple[list[dict[str, Any]], int, int]:
        """Entries, the length of the lines that end well, and the length of the file."""
        expect_regular("journal", self.path)
        content = self.path.read_bytes() if self.path.exists() else b""
        *lines, rest = content.split(b"\n")
        entries: list[dict[str, Any]] = []
        for number, line in enumerate(lines, start=1):
            entries.append(_entry(line, entries[-1][_CHECKSUM] if entries else "", f"{self.path}, line {number}"))
        if rest:
            with suppress(InputError):  # torn
                entries.append(_entry(rest, entries[-1][_CHECKSUM] if entries else "", "rest"))
        return entries, len(content) - len(rest), len(content)


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, allow_nan=False).encode()


def _entry(line: bytes, after: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line, object_pairs_hook=distinct_keys)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{place}: expected a JSON object, found {line[:40]!r}") from None
    is_entry = isinstance(found, dict) and isinstance(found.get(_CHECKSUM), str)
    expect(is_entry, place, "an entry of a journal", repr(line[:40]))
    own = json_digest({key: value for key, value in found.items() if key != _CHECKSUM}, 64)
    expect(own == found[_CHECKSUM], place, "the checksum of its content", "another: the line was changed")
    expect(found.get(_CHAIN) == after, place, "to follow the line before it", "a line removed or put in")
    return dict(found)


def _synchronise(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _synchronise_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
