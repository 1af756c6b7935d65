"""The code in the documentation of the learned solver runs."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "neural_solver.md"
BLOCKS = [
    textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
]


def test_there_are_blocks() -> None:
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("code", BLOCKS)
def test_block(code: str) -> None:
    exec(compile(code, str(PAGE), "exec"), {})
