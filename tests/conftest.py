"""Shared settings: one torch thread per test process, and Hypothesis without deadlines on busy machines."""

import os
import signal
import sys
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
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
def cvxpy_portfolio():
    """argmax μᵀs − λ (s−b)ᵀΣ(s−b) − c ‖s − p‖₁ + cash · its return, written down again in CVXPY."""

    def solve(mean, covariance, p, *, risk_aversion, turnover_l1, cost=0.0, benchmark=None, constraints=None):
        import cvxpy as cp

        m = len(mean)
        s, b, size = cp.Variable(m), np.zeros(m) if benchmark is None else benchmark, np.ptp(mean) + np.max(covariance)
        utility = mean @ s - risk_aversion * cp.quad_form(s - b, cp.psd_wrap((covariance + covariance.T) / 2))
        limits = [cp.norm1(s - p) <= turnover_l1]
        if constraints is None:
            limits += [s >= 0, cp.sum(s) == 1]
        else:
            cash = constraints.exposure - cp.sum(s)
            utility = utility + constraints.cash_return * cash
            limits += [cash >= constraints.cash[0], cash <= constraints.cash[1], s >= constraints.lower]
            limits += [s[i] <= u for i, u in enumerate(np.broadcast_to(constraints.upper, m)) if u < np.inf]
            limits += [one.coefficients @ s <= one.high for one in constraints.limits if one.high < np.inf]
            limits += [one.coefficients @ s >= one.low for one in constraints.limits if one.low > -np.inf]
        cp.Problem(cp.Maximize((utility - cost * cp.norm1(s - p)) / size), limits).solve(
            solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )
        return np.asarray(s.value)

    return solve


@pytest.fixture
def run(monkeypatch, capfd):
    """Call the command line in this process: a new one spends seconds on imports."""

    def call(*arguments, cwd):
        monkeypatch.setattr(sys, "argv", ["time2decide", *map(str, arguments)])
        monkeypatch.chdir(cwd)
        capfd.readouterr()
        from time2decide.cli import main

        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # `main` expects a process of its own
        with pytest.raises(SystemExit) as ended:
            main()
        for number, handler in before.items():
            signal.signal(number, handler)
        out, err = capfd.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=out, stderr=err)

    return call
