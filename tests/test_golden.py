"""Bundled checkpoints and the policy answer as they did: to the rounding of float32, and sharply in float64.

``golden.npz`` holds their answers to 20 tables, which are drawn here from a seed, to 40 problems and to one window.
Float64 is the sharp comparison: it notices a matrix of weights times 1 + 1e-8, and processors do not matter.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from time2decide import Time2Decide, random_qp, solve
from time2decide.bench.timing import one_thread
from time2decide.forecasting import TimePFN, kernel_bank
from time2decide.neural.equivariant import EquivariantSolver

GOLDEN = np.load(Path(__file__).parent / "golden.npz")
ROUNDING = 1e-5  # processors that torch reports alike differ in the last bits of float32
# In float64 the instruction sets of torch and LAPACK differ by up to 2e-12; in the kernel bank, which inverts matrices
# of condition 1e7, by more. Decisions are therefore made with another forecast in its place, and it has its own answer.
SHARP = dict.fromkeys(["market", "qp", "timepfn"], 1e-11)
SHARP["kernel-bank"] = 1e-7
REAL_MEANS = kernel_bank.KernelBank.means


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


@pytest.fixture
def _in_float64(monkeypatch):
    """Every float32 of the library is a float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(kernel_bank, "cached_tensors", lambda key, make: make())
    monkeypatch.setattr(kernel_bank.KernelBank, "means", _half_of_the_last)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _half_of_the_last(bank, z, spans):
    """In place of the kernel bank: means of the next steps of windows (rows, T)."""
    return z[:, -1:].expand(-1, len(spans)) / 2


def answers(name):
    """What a checkpoint or the policy answers in float64."""
    if name == "kernel-bank":
        windows = np.random.default_rng(0).normal(size=(40, 96))
        windows[:20] += windows[:20].cumsum(-1)
        return list(REAL_MEANS(kernel_bank.KernelBank(96), torch.from_numpy(windows), [(0, 1), (0, 4)]).T.numpy())
    if name == "timepfn":
        model = TimePFN.from_pretrained().double()
        return [model(torch.from_numpy(np.random.default_rng(0).normal(size=(1, model.config.window, 4)))).numpy()]
    if name == "qp":
        model, qp = EquivariantSolver.from_pretrained().double(), random_qp(40, 7, 5, seed=3)
        return [part.numpy() for part in model.iterate(model.dual_problem(qp.A, qp.b, qp.C, qp.d))[-1]]
    model = Time2Decide.from_pretrained(name)
    decisions = [model.decision(*table, risk_aversion=risk) for *table, risk in cases()]
    return [np.stack([decision.weights, decision.mean]) for decision in decisions]


@pytest.mark.usefixtures("_in_float64")
@pytest.mark.parametrize("name", SHARP)
def test_answers_in_float64(name):
    with one_thread(), torch.no_grad():
        found = answers(name)
    for number, answer in enumerate(found):
        np.testing.assert_allclose(answer, GOLDEN[f"float64/{name}/{number}"], rtol=0, atol=SHARP[name])
