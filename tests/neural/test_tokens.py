"""The layout of the tokens, feasible starts and rotations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from time2decide.neural.datasets import feasible_start, random_rotation, rotate_qp_tokens, token_shape, tokenise
from time2decide.qp import QP, InputError, random_qp, solve_exact


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_layout_of_the_paper() -> None:
    qp = random_qp(4, 5, 3, seed=1)
    start = feasible_start(qp, seeded())
    tokens = tokenise(qp, start)
    assert tokens.shape == (4, 11, 5)
    torch.testing.assert_close(tokens[:, :5], qp.A, rtol=0, atol=0)
    torch.testing.assert_close(tokens[:, 5], qp.b, rtol=0, atol=0)
    torch.testing.assert_close(tokens[:, 6:9], qp.C, rtol=0, atol=0)
    torch.testing.assert_close(tokens[:, 9, :3], qp.d, rtol=0, atol=0)
    assert bool((tokens[:, 9, 3:] == 0).all())
    torch.testing.assert_close(tokens[:, 10], start, rtol=0, atol=0)


@given(n=st.integers(1, 6), m=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_every_number_of_the_problem_is_there_once(n: int, m: int) -> None:
    """More constraints than variables, and none at all, are no special cases."""
    qp = random_qp(2, n, m, seed=n * 10 + m)
    start = feasible_start(qp, seeded())
    tokens = tokenise(qp, start)
    assert tokens.shape == (2, *token_shape(n, m))
    entries = torch.cat([part.flatten(1) for part in (qp.A, qp.b, qp.C, qp.d, start)], dim=1)
    found = tokens.flatten(1).sort(dim=1).values
    padded = torch.cat([entries, entries.new_zeros(2, found.shape[1] - entries.shape[1])], dim=1)
    torch.testing.assert_close(found, padded.sort(dim=1).values, rtol=0, atol=0)


@given(n=st.integers(1, 20), m=st.integers(0, 30), seed=st.integers(0, 1000), single=st.booleans())
@settings(max_examples=40, deadline=None)
def test_start_is_feasible(n: int, m: int, seed: int, single: bool) -> None:
    qp = random_qp(20, n, m, seed=seed).to(torch.float32 if single else torch.float64)
    start = feasible_start(qp, seeded(seed), tries=3)
    excess = torch.einsum("bmn,bn->bm", qp.C, start) - qp.d
    assert bool((excess <= 1e-6 if single else excess <= 1e-14).all())
    assert bool((start != 0).any())


def test_start_is_an_unchanged_gaussian_point_where_that_is_feasible() -> None:
    qp = random_qp(3, 4, seed=0)
    expected = torch.randn(3, 4, generator=seeded(7), dtype=torch.float64)
    torch.testing.assert_close(feasible_start(qp, seeded(7)), expected, rtol=0, atol=0)


def test_start_is_deterministic() -> None:
    qp = random_qp(50, 20, 16, seed=0)
    torch.testing.assert_close(feasible_start(qp, seeded(1)), feasible_start(qp, seeded(1)), rtol=0, atol=0)


def test_rotated_tokens_are_those_of_the_rotated_problem() -> None:
    qp = random_qp(6, 4, 7, seed=3)
    start = feasible_start(qp, seeded())
    R = random_rotation(4, seeded(5), torch.float64)
    turned = QP(R @ qp.A @ R.T, qp.b @ R.T, qp.C @ R.T, qp.d)
    torch.testing.assert_close(rotate_qp_tokens(tokenise(qp, start), 4, R), tokenise(turned, start @ R.T))
    torch.testing.assert_close(solve_exact(turned).x, solve_exact(qp).x @ R.T)


def test_rotation_is_orthogonal_and_reaches_both_signs() -> None:
    signs = set()
    for seed in range(20):
        R = random_rotation(5, seeded(seed), torch.float64)
        torch.testing.assert_close(R @ R.T, torch.eye(5, dtype=torch.float64))
        signs.add(round(torch.linalg.det(R).item()))
    assert signs == {-1, 1}


def test_bad_input_is_named() -> None:
    qp = random_qp(2, 3, 2)
    with pytest.raises(InputError, match=r"x_init: expected shape \(2, 3\), found \(2, 4\)"):
        tokenise(qp, torch.zeros(2, 4, dtype=torch.float64))
    with pytest.raises(InputError, match=r"qp: expected linear constraints only .* found class R"):
        tokenise(random_qp(2, 3, kind="R"), torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(InputError, match="qp: expected d >= 0"):
        feasible_start(QP(torch.eye(2), torch.ones(2), torch.ones(1, 2), torch.tensor([-1.0])), seeded())
