"""The size-agnostic network: symmetries, no hidden factorisation, accuracy, gradients, files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from time2decide.neural.equivariant import EquivariantConfig, EquivariantSolver, approximate_inverse
from time2decide.neural.metrics import r2_score
from time2decide.qp import QP, InputError, random_qp, solve_exact

FORBIDDEN = ("linalg", "inverse", "solve", "cholesky", "geqrf", "ormqr", "lu_unpack", "lstsq")
NORM = "linalg_vector_norm"  # the only linalg operation that is none of these
ALLOWED = {"bmm", "baddbmm", "addmm", "mm"}  # the products that the test must see, so that it is not blind


@pytest.fixture(scope="module")
def solver() -> EquivariantSolver:
    return EquivariantSolver.from_pretrained("qp").double()


def data(qp: QP) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return qp.A, qp.b, qp.C, qp.d


class Recorder(TorchDispatchMode):
    """Names of all operations, at the level below autograd, where composite functions are already taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def forbidden(names: set[str]) -> set[str]:
    return {name for name in names - {NORM} if any(part in name for part in FORBIDDEN)}


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_no_inverse_solve_or_factorisation_inside(solver: EquivariantSolver, mode: str) -> None:
    with Recorder() as seen, torch.set_grad_enabled(mode == "training"):
        x, dual = solver(*data(random_qp(4, 6, 5, seed=1)))
        if mode == "training":
            (x.sum() + dual.sum()).backward()
    assert not forbidden(seen.names)
    assert seen.names & ALLOWED


def test_the_recorder_would_notice_them() -> None:
    A = torch.eye(3).expand(2, 3, 3)
    for call in (torch.linalg.inv, torch.linalg.cholesky, torch.linalg.eigh, torch.linalg.svd, torch.linalg.qr):
        with Recorder() as seen:
            call(A)
        assert forbidden(seen.names), call
    with Recorder() as seen:
        torch.linalg.solve(A, A)
    assert forbidden(seen.names)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 9), m=st.integers(1, 9), seed=st.integers(0, 10**6), closing=st.sampled_from([0, 2]))
def test_permutations_and_scales(n: int, m: int, seed: int, closing: int) -> None:
    """Relabelling or rescaling a problem does the same to the prediction, whether or not it is right."""
    # An untrained network with random gates: symmetry must come from the architecture, not from being correct.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = EquivariantSolver(EquivariantConfig(width=8, hidden=16, depth=3, closing=closing)).double()
        torch.nn.init.normal_(model.mlp[-1].weight, std=0.3)
    A, b, C, d = data(random_qp(4, n, m, seed=seed))
    rng = np.random.default_rng(seed)
    P, Q = torch.from_numpy(rng.permutation(m)), torch.from_numpy(rng.permutation(n))
    scale = torch.from_numpy(rng.uniform(0.1, 10, (4, m)))
    with torch.no_grad():
        x, dual = model(A, b, C, d)
        swapped = model(A[:, Q][:, :, Q], b[:, Q], C[:, P][:, :, Q], d[:, P])
        rescaled = model(A * 1e-3, b * 1e-3, C * scale.unsqueeze(-1), d * scale)
    close = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close(swapped, (x[:, Q], dual[:, P]), **close)
    torch.testing.assert_close(rescaled, (x, dual / scale * 1e-3), **close)


def test_rows_of_zeros_are_padding(solver: EquivariantSolver) -> None:
    A, b, C, d = data(random_qp(50, 6, 4, seed=3))
    with torch.no_grad():
        x, dual = solver(A, b, C, d)
        padded_x, padded_dual = solver(A, b, torch.cat([C, torch.zeros(50, 2, 6)], 1), torch.cat([d, d[:, :2]], 1))
    # Newton–Schulz starts from a norm that counts the padding: equal up to what its last steps leave open.
    torch.testing.assert_close((padded_x, padded_dual[:, :4]), (x, dual), rtol=1e-3, atol=1e-4)
    assert not padded_dual[:, 4:].any()


def test_rotations(solver: EquivariantSolver) -> None:
    A, b, C, d = data(random_qp(50, 6, 4, seed=3))
    R = torch.linalg.qr(torch.from_numpy(np.random.default_rng(0).standard_normal((6, 6)))).Q
    with torch.no_grad():
        x, dual = solver(A, b, C, d)
        turned_x, turned_dual = solver(R @ A @ R.mT, b @ R.mT, C @ R.mT, d)
    torch.testing.assert_close((turned_x @ R, turned_dual), (x, dual), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "least"), [((5, 3), 0.99999), ((10, 6), 0.9999), ((20, 16), 0.9999), ((12, 12), 0.9999)]
)
def test_bundled_checkpoint_is_accurate(size: tuple[int, int], least: float) -> None:
    model = EquivariantSolver.from_pretrained("qp")
    qp = random_qp(600, *size, seed=20_260_700)
    answer = solve_exact(qp)
    with torch.no_grad():
        x, dual = model(*(v.float() for v in data(qp)))
        again, _ = model(*(v.float() for v in data(qp)))
    assert r2_score(x.double(), answer.x) > least
    right = ((dual > 0) == (answer.dual > 1e-9)).all(1).double().mean().item()
    assert right > 0.99
    assert torch.equal(x, again)


def test_bundled_checkpoint_is_small_and_says_how_it_was_made() -> None:
    model = EquivariantSolver.from_pretrained()
    notes = json.loads((EquivariantSolver.BUNDLED["qp"] / "config.json").read_text())["notes"]
    assert sum(weight.numel() for weight in model.parameters()) < 20_000
    assert {"recipe", "commit"} <= set(notes)
    assert notes["recipe"]["steps"] >= 1000


def test_training_beats_the_untrained_network_in_the_tail() -> None:
    """More constraints than variables: where the classical method cycles."""
    qp = random_qp(600, 10, 30, seed=20_260_701)
    answer = solve_exact(qp)
    missed = {}
    classical = EquivariantSolver(EquivariantConfig(depth=0, closing=9))
    models = {"classical": classical, "untrained": EquivariantSolver(), "trained": EquivariantSolver.from_pretrained()}
    for name, model in models.items():
        with torch.no_grad():
            missed[name] = 1 - r2_score(model(*(v.float() for v in data(qp)))[0].double(), answer.x)
    assert missed["trained"] < missed["untrained"] / 10 < missed["classical"] / 100


def test_gradient_is_that_of_the_solution(solver: EquivariantSolver) -> None:
    """At the answer the derivative through the network equals that of the active KKT system."""
    qp = random_qp(40, 4, 3, seed=8)
    b, d = qp.b.clone().requires_grad_(), qp.d.clone().requires_grad_()
    x, dual = solver(qp.A, b, qp.C, d)
    x.sum().backward()
    for i in range(len(qp)):
        rows = qp.C[i][dual[i] > 0]
        k = len(rows)
        system = torch.zeros(4 + k, 4 + k, dtype=torch.float64)
        system[:4, :4], system[:4, 4:], system[4:, :4] = qp.A[i], rows.mT, rows
        adjoint = torch.linalg.solve(system, torch.cat([torch.ones(4), torch.zeros(k)]).double())
        torch.testing.assert_close(b.grad[i], -adjoint[:4], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(d.grad[i][dual[i] > 0], adjoint[4:], rtol=1e-5, atol=1e-7)


def test_newton_schulz_inverts_down_to_its_floor() -> None:
    rng = np.random.default_rng(2)
    Q = torch.linalg.qr(torch.from_numpy(rng.standard_normal((30, 8, 8)))).Q
    K = Q @ torch.diag_embed(torch.from_numpy(np.geomspace(1e-3, 1, 8)).expand(30, 8)) @ Q.mT
    torch.testing.assert_close(
        approximate_inverse(K, 1e-4, (8, 3)) @ K, torch.eye(8).double().expand(30, 8, 8), atol=1e-8, rtol=0
    )


def test_newton_schulz_has_the_derivative_of_the_inverse() -> None:
    K = random_qp(3, 4, seed=1).A
    assert torch.autograd.gradcheck(
        lambda K: approximate_inverse(0.5 * (K + K.mT), 1e-4, (9, 4)), (K.requires_grad_(),)
    )


def test_unconstrained_problems(solver: EquivariantSolver) -> None:
    qp = random_qp(20, 5, seed=1)
    x, dual = solver(*data(qp))
    torch.testing.assert_close(x, solve_exact(qp).x, rtol=1e-8, atol=1e-10)
    assert dual.shape == (20, 0)


def test_save_and_load(tmp_path: Path) -> None:
    model = EquivariantSolver(EquivariantConfig(width=4, hidden=8, depth=2))
    model.save_pretrained(tmp_path, {"made": "here"})
    again = EquivariantSolver.from_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["notes"] == {"made": "here"}
    assert again.config == model.config
    assert not again.training
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width: expected a whole number of at least 1"),
        ({"floor": 2.0}, "floor: expected a number in"),
        ({"gate_steps": (3, 0)}, "gate_steps: expected a whole number of at least 1"),
        ({"sharpness": -1.0}, "sharpness: expected a positive number"),
    ],
)
def test_bad_configurations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EquivariantConfig(**change)


def test_depth_is_free(solver: EquivariantSolver) -> None:
    qp = random_qp(300, 20, 16, seed=4)
    answer = solve_exact(qp).x
    bare = EquivariantSolver(replace(solver.config, closing=0)).double()
    bare.load_state_dict(solver.state_dict())
    with torch.no_grad():
        missed = [1 - r2_score(bare(*data(qp), depth=depth)[0], answer) for depth in (1, 3, 6)]
        closed = 1 - r2_score(solver(*data(qp))[0], answer)
    assert missed[0] > missed[1] > missed[2] > closed
    with pytest.raises(InputError, match="depth: expected a whole number of at least 0, found -1"):
        solver(*data(qp), depth=-1)


def test_gradients_of_the_data_are_right_or_refused() -> None:
    """At κ = 1e5 the products no longer invert A, and the derivative of the answer would be wrong."""
    model = EquivariantSolver(EquivariantConfig(width=4, hidden=8, depth=2)).double()
    basis = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]
    b = torch.ones(1, 5, dtype=torch.float64, requires_grad=True)
    none = torch.zeros(1, 0, 5, dtype=torch.float64), torch.zeros(1, 0, dtype=torch.float64)
    for kappa, right in ((1e2, True), (1e7, False)):
        A = (basis @ torch.diag(torch.logspace(0, np.log10(kappa), 5, dtype=torch.float64)) @ basis.mT).unsqueeze(0)
        if right:
            model(A, b, *none)[0].sum().backward()
            torch.testing.assert_close(b.grad, -torch.linalg.solve(A, torch.ones_like(b)), rtol=1e-6, atol=1e-9)
            continue
        with pytest.raises(InputError, match="A: expected a better conditioned matrix for gradients of the data"):
            model(A, b, *none)
