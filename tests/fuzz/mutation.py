"""Damage: to bytes, to text, to what JSON holds. A case is a function of its `random.Random` and of a sound input."""

from __future__ import annotations

import copy
import random
import sys
from typing import Any

#: Words that readers of numbers, dates, tables, TOML, JSON and archives stumble over.
WORDS = (
    "", " ", "0", "-0", "-1", "1e308", "-1e308", "1e-320", "1e999", "nan", "NaN", "inf", "-inf", "Infinity", "null",
    "None", "true", "1_000", "0x10", "١٢", "½", "9" * 400, "9" * 5000, "99999999999999999999", "2024-02-30",
    "0000-01-01", "9999-12-31", "2024-01-01T25:00", "1677-01-01", "1e5", ",", ";", '"', '""', "'", "\\", "\n", "\r",
    "\r\n", "\t", "\x00", "\x1b[31m", "\ufeff", "\u2028", "\ud7ff", "𝔸", "é", "{", "}", "[", "]", "=", "#", "[" * 3000,
    "{" * 3000, "a." * 2000, "../../etc/passwd", "/dev/zero", "a" * 300, "%s%n", "<script>", "[[a]]", '"""',
)  # fmt: skip


def odd_value(rng: random.Random) -> Any:
    """Something that JSON can hold and that hardly any field expects."""
    return rng.choice(
        [None, True, False, 0, 1, -1, 2, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.0, -0.0, 0.5, 1e308, -1e308,
         5e-324, float("nan"), float("inf"), -float("inf"), "", "x", "1", "nan", "\x00", "a\nb", "𝔸" * 20, "z" * 5000,
         [], {}, [[]], [None], [1, "a"], {"a": 1}, {"": None}]
    )  # fmt: skip


def _deep(rng: random.Random) -> Any:
    deep: Any = rng.choice([[], {}, 1])
    for _ in range(rng.choice([50, 300, 900])):
        deep = rng.choice([[deep], {"a": deep}])
    return deep


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a value."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        _places(value[key], found)
    return found


def damaged_value(rng: random.Random, sound: Any, times: int | None = None) -> Any:
    """A copy of a JSON value with fields replaced, removed, renamed, doubled, exchanged or nested."""
    value = copy.deepcopy(sound)
    for _ in range(times or rng.choice([1, 1, 1, 2, 4])):
        places = _places(value, [])
        if not places or rng.random() < 0.01:
            return odd_value(rng)
        container, key = rng.choice(places)
        if rng.random() < 0.01:
            container[key] = _deep(rng)
            return value  # which nothing here could walk through
        kind = rng.randrange(8)
        if kind == 0:
            del container[key]
        elif kind == 1:
            other, place = rng.choice(places)
            container[key] = copy.deepcopy(other[place])
        elif kind == 2 and isinstance(container, dict):
            container[rng.choice(WORDS)] = container.pop(key)
        elif kind == 3:
            container[key] = rng.choice([[container[key]], {"a": container[key]}, [container[key]] * 3])
        elif kind == 4 and isinstance(container[key], (int, float)):
            factor = rng.choice([-1, 0, 2, 1e-9, 1e12, 0.5, -1e300])
            fits = isinstance(factor, int) or abs(container[key]) <= sys.float_info.max
            container[key] = factor * container[key] if fits else factor  # whole numbers may be beyond every float
        elif kind == 5 and isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            container[key] = odd_value(rng)
    return value


def damaged_bytes(rng: random.Random, sound: bytes) -> bytes:
    """Bytes with some changed, cut out, put in or repeated; now and then only a beginning, or nothing of it."""
    content = bytearray(sound)
    for _ in range(rng.choice([1, 1, 2, 3, 20])):
        at = rng.randrange(len(content) + 1)
        if rng.random() < 0.3:
            at = rng.randrange(min(len(content), 400) + 1)  # formats have much to say in their first bytes
        span = slice(at, at + rng.choice([1, 1, 2, 8, 100]))
        kind = rng.randrange(6)
        if kind == 0:
            content[span] = b""
        elif kind == 1:
            content[at:at] = rng.choice(WORDS).encode("utf-8", "surrogatepass")
        elif kind == 2:
            content[at:at] = content[span] * rng.choice([1, 2, 50])
        elif kind == 3:
            content[span] = rng.randbytes(len(content[span]))
        elif content[span]:
            content[at : at + 1] = bytes([content[at] ^ (1 << rng.randrange(8))])
    if rng.random() < 0.15:
        content = content[: rng.randrange(len(content) + 1)]
    return bytes(content) if rng.random() > 0.01 else rng.randbytes(rng.choice([0, 1, 50, 4000]))


def damaged_cells(rng: random.Random, rows: list[list[str]]) -> str:
    """The CSV text of rows with cells, rows and columns changed, removed, doubled or exchanged."""
    rows = [list(row) for row in rows]
    for _ in range(rng.choice([1, 1, 2, 5])):
        i = 0 if rng.random() < 0.2 else rng.randrange(len(rows))
        j = rng.randrange(max(len(rows[i]), 1))
        kind = rng.randrange(7)
        if kind == 0 and len(rows) > 1:
            del rows[i]
        elif kind == 1:
            rows.insert(i, list(rng.choice(rows)))
        elif kind == 2:
            rows = [row[:j] + row[j + 1 :] for row in rows]
        elif kind == 3:
            word = rng.choice(WORDS)
            rows = [[*row[:j], word, *row[j + 1 :]] for row in rows]
        elif kind == 4:
            k = rng.randrange(len(rows))
            rows[i], rows[k] = rows[k], rows[i]
        elif rows[i]:
            rows[i][j] = rng.choice(WORDS)
    return rng.choice(["\n", "\n", "\r\n"]).join(",".join(row) for row in rows)
