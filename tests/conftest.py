"""Shared settings: one torch thread per test process, and Hypothesis without deadlines on busy machines."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("project", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _cache_in_a_temporary_folder(tmp_path_factory, monkeypatch):
    """Data sets that tests generate are shared between tests, never with the user's cache."""
    monkeypatch.setenv("TIME2DECIDE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
