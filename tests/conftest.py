"""Shared settings: one torch thread per test process, and Hypothesis without deadlines on busy machines."""

import os
import sys
from types import SimpleNamespace

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


@pytest.fixture
def run(monkeypatch, capfd):
    """Call the command line in this process: a new one spends seconds on imports."""

    def call(*arguments, cwd):
        monkeypatch.setattr(sys, "argv", ["time2decide", *map(str, arguments)])
        monkeypatch.chdir(cwd)
        capfd.readouterr()
        from time2decide.cli.app import main

        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=out, stderr=err)

    return call
