"""Files: places for output validated before the work, atomic writing."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from time2decide.core.validation import InputError, describe_value, expect

_ABANDONED = 3600.0  # seconds after which nobody writes to a temporary file any more
_MOST_MEGABYTES = 256  # of a file that is read whole: a hundred years of daily returns of 100 assets are 60 MB
_MOST_TOML = 16  # megabytes; ten seconds to read


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which then takes its place; readers see the old one or the new one.

    Its name is not used twice, so that several processes may write at once; the last one counts. What a killed process
    left behind is removed an hour later. Of a link the file that it names is replaced; a device or pipe, which a file
    would take the place of, is refused. An `OSError` names `path`.
    """
    expect_regular("file", path)
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{secrets.token_hex(8)}.part"
    _remove_abandoned(target.parent)
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # not the temporary one; a full disk names none
        raise
    finally:
        temporary.unlink(missing_ok=True)


def expect_regular(name: str, path: Path) -> None:
    """Raise an `InputError` that begins with `name` if there is something other than a file at `path`.

    Devices and pipes can be read without end, and a file that takes their place destroys them.
    """
    expect(not os.path.isdir(path), name, "a file", f"the folder {path}")
    expect(not os.path.exists(path) or os.path.isfile(path), name, "a file", f"the device {path}")
    expect(not os.path.islink(os.path.realpath(path)), name, "a file", f"the link {path}, which leads to itself")


def _remove_abandoned(folder: Path) -> None:
    for left in folder.glob(f".{16 * '[0-9a-f]'}.part"):
        with suppress(OSError):  # another process was first
            if time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()


def append_line(file: BinaryIO, line: bytes) -> None:
    """Write a line to a file opened for appending and wait until it is on the disk; the whole of it, or nothing."""
    handle = file.fileno()
    end = os.fstat(handle).st_size
    try:
        while line:  # a disk that fills takes a part first, without an error
            line = line[os.write(handle, line) :]
        os.fsync(handle)
    except BaseException as error:  # an interrupt too
        os.ftruncate(handle, end)
        if isinstance(error, OSError):
            error.filename = str(file.name)
        raise


def validate_output_folder(name: str, path: Path) -> None:
    """Raise an `InputError` that begins with `name` unless `path` is, or can be made, a folder to write to."""
    try:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):  # permissions alone do not tell: a disk may be read-only
            return
    except OSError as error:
        raise InputError(f"{name}: expected a folder that can be written to, found {path} ({error.strerror})") from None


def validate_output_file(name: str, path: Path) -> None:
    """Raise an `InputError` that begins with `name` unless a file can be written at `path`."""
    validate_output_folder(name, path.parent)
    expect_regular(name, path)


def validate_not_read(name: str, path: Path, read: Iterable[str | Path | None]) -> None:
    """Raise an `InputError` that begins with `name` if `path`, to be written, is one of the files that are read."""
    for one in read:
        expect(one is None or not _one_file(one, path), name, "another file than those that are read", path)


def _one_file(one: str | Path, other: str | Path) -> bool:
    """Whether two names are of one file, also by a link or by letters of either case."""
    try:
        return os.path.realpath(one) == os.path.realpath(other) or os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them is not there, or no file can have that name
        return False


def write_text(path: Path, text: str) -> None:
    """Write a text file; readers see the old one or the new one, never a part."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def validate_path(name: str, value: object) -> Path:
    """The path that an argument names, or an `InputError` that begins with `name`."""
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{name}: expected the path of a file, found {describe_value(value)}")
    return Path(value)


def validate_input_file(path: Path, *, megabytes: int = _MOST_MEGABYTES) -> None:
    """Raise an `InputError` unless `path` is a file that can be read, of at most so many megabytes."""
    if not os.path.isfile(path):  # of os.path: a name that no file can have is none, not an error
        kind = "none" if not os.path.exists(path) else "a folder" if os.path.isdir(path) else "a device"
        raise InputError(f"{path}: expected a file, found {kind}")
    found = path.stat().st_size >> 20
    expect(found < megabytes, path.name, f"at most {megabytes} MB", f"{found} MB")


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, or an `InputError`."""
    validate_input_file(path, megabytes=_MOST_TOML)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, very long numbers, very deep nesting
        raise InputError(f"{path.name}: expected TOML ({error})") from None
