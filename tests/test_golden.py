"""Bundled checkpoints answer as they did at commit 0727069, to the rounding of float32.

``golden.npz`` holds their answers to 20 tables, which are drawn here from a seed, to 40 problems and to one window.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from time2decide import Time2Decide, random_qp, solve
from time2decide.bench.timing import one_thread
from time2decide.forecasting import TimePFN

GOLDEN = np.load(Path(__file__).parent / "golden.npz")
ROUNDING = 1e-5  # processors that torch reports alike differ in the last bits of float32


def cases():
    """Returns (rows, m), previous weights or None, γ and λ of 20 tables of all sizes."""
    rng = np.random.default_rng(20_261_118)
    for number in range(20):
        m = (2, 3, 5, 8, 12, 16, 20, 30, 50, 100)[number % 10]
        rows = (20, 40, 96, 120, 300, 700)[number % 6]
        common = rng.normal(0, 0.01, (rows, 1))
        drift = np.cumsum(rng.normal(0, 0.002, (rows, m)), axis=0) * (number % 3 == 0)
        returns = 0.5 * common + drift + rng.normal(0, 10.0 ** rng.uniform(-3, -1.5), (rows, m))
        previous = rng.dirichlet(np.ones(m)) if number % 4 else None
        yield np.clip(returns, -0.5, 0.8), previous, (0.05, 0.3, 1.0, 2.0)[number % 4], (0.1, 0.0, 5.0)[number % 3]


@pytest.mark.parametrize("name", ["decide", "decide-blind", "decide-utility"])
def test_decisions(name):
    model = Time2Decide.from_pretrained(name)
    with one_thread():
        for number, (returns, previous, gamma, risk) in enumerate(cases()):
            weights = model.decide(returns, previous, gamma, risk_aversion=risk)
            np.testing.assert_allclose(weights, GOLDEN[f"{name}/{number}"], rtol=0, atol=ROUNDING)


def test_learned_solver():
    with one_thread():
        answer = solve(random_qp(40, 7, 5, seed=3), "neural")
    for part in ("x", "dual"):
        np.testing.assert_allclose(getattr(answer, part), GOLDEN[f"neural/{part}"], rtol=0, atol=ROUNDING)


def test_backbone():
    model = TimePFN.from_pretrained()
    window = torch.randn(3, model.config.window, 4, generator=torch.Generator().manual_seed(0))
    with one_thread(), torch.no_grad():
        forecast = model(window).numpy()
    np.testing.assert_allclose(forecast, GOLDEN["timepfn"], rtol=0, atol=ROUNDING)
