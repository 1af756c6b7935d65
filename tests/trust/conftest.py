"""What the trust tests share: all of them are marked, and each records the figure that it measured."""

import time
from pathlib import Path

import pytest

from tests.trust import figures

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trust)


@pytest.fixture
def record():
    """Store the figure of a promise of docs/trust.md: ``record("kill-journal", "{kills} kills, {lost} lost", …)``.

    Call it at the end of a test, when nothing can fail any more.
    """
    started = time.monotonic()
    return lambda name, text, **numbers: figures.record(name, text, time.monotonic() - started, **numbers)
