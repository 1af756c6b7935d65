import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from time2decide import QP, InputError, project_portfolio, solve
from time2decide.qp import project_l1_ball, project_simplex, soft_threshold


def drawn(seed, batch, m, sparse=False):
    rng = np.random.default_rng(seed)
    y = rng.normal(0, 1, (batch, m)) * rng.choice([0.01, 1.0, 30.0])
    previous = rng.dirichlet(np.full(m, 0.1 if sparse else 2.0), batch)
    return y, previous / previous.sum(1, keepdims=True), rng.uniform(0, 2.2, batch)


@given(st.integers(0, 10_000), st.integers(2, 40), st.booleans())
def test_portfolio_projection_is_feasible_and_idempotent(seed, m, sparse):
    y, previous, gamma = drawn(seed, 5, m, sparse)
    x = project_portfolio(y, previous, gamma)
    assert x.min() >= 0
    np.testing.assert_allclose(x.sum(1), 1, atol=1e-12)
    assert (np.abs(x - previous).sum(1) <= gamma + 1e-12).all()
    np.testing.assert_allclose(project_portfolio(x, previous, gamma), x, atol=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 12))
def test_portfolio_projection_is_the_nearest_point(seed, m):
    """Variational inequality: ⟨y − x, z − x⟩ ≤ 0 for every point z of the set."""
    y, previous, gamma = drawn(seed, 4, m)
    x = project_portfolio(y, previous, gamma)
    rng = np.random.default_rng(seed + 1)
    for _ in range(20):
        z = project_portfolio(rng.normal(0, 1, (4, m)), previous, gamma)
        assert ((y - x) * (z - x)).sum(1).max() <= 1e-9 * (1 + np.abs(y).max())


@pytest.mark.parametrize("m", [2, 5, 16, 40])
def test_portfolio_projection_equals_the_exact_qp(m):
    y, previous, gamma = drawn(m, 40, m)
    gamma = np.clip(gamma, 0.05, 2)
    C = np.vstack([-np.eye(m), np.ones(m), -np.ones(m)])
    d = np.concatenate([previous, np.zeros((40, 2))], axis=1)
    moves = solve(QP(np.eye(m), previous - y, C, d, l1_radius=gamma))
    assert set(moves.status) == {"optimal"}
    np.testing.assert_allclose(project_portfolio(y, previous, gamma), previous + moves.x, atol=1e-9)


def test_portfolio_projection_at_the_edges():
    previous = np.array([1.0, 0.0, 0.0])
    y = np.array([0.0, 5.0, 0.0])
    np.testing.assert_array_equal(project_portfolio(y, previous, 0.0), previous)
    np.testing.assert_allclose(project_portfolio(y, previous, 0.5), [0.75, 0.25, 0.0])
    np.testing.assert_allclose(project_portfolio(y, previous, 2.0), [0.0, 1.0, 0.0])
    np.testing.assert_allclose(project_portfolio(y, previous, 99.0), [0.0, 1.0, 0.0])
    np.testing.assert_allclose(project_portfolio([1e16, 1e16, 1e16], previous, 2.0), np.full(3, 1 / 3))
    tied = project_portfolio(np.zeros(4), np.full(4, 0.25), 0.3)
    np.testing.assert_allclose(tied, np.full(4, 0.25))


def test_gradients():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(6, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    previous = torch.softmax(torch.randn(6, 5, dtype=torch.float64, generator=generator), -1)
    for gamma in (0.2, 0.7, 2.0):
        assert torch.autograd.gradcheck(lambda v, g=gamma: project_portfolio(v, previous, g), y)
    move = torch.randn(6, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: project_portfolio(y.detach(), torch.softmax(v, -1), 0.4), move)
    assert torch.autograd.gradcheck(project_simplex, y)
    assert torch.autograd.gradcheck(lambda v: project_l1_ball(v, 1.3), y)


@given(st.integers(0, 10_000), st.integers(1, 30), st.floats(0, 20))
def test_l1_ball(seed, n, radius):
    y = np.random.default_rng(seed).normal(0, 2, (3, n))
    x = project_l1_ball(y, radius)
    assert (np.abs(x).sum(1) <= radius * (1 + 1e-12) + 1e-12).all()
    inside = np.abs(y).sum(1) <= radius
    np.testing.assert_array_equal(x[inside], y[inside])
    level = np.abs(y - x).max(1, keepdims=True)
    np.testing.assert_allclose(x, soft_threshold(torch.tensor(y), torch.tensor(level)).numpy(), atol=1e-10)
    np.testing.assert_allclose(project_l1_ball(y[0], radius), x[0], atol=1e-12)  # alone as in a batch


@given(st.integers(0, 10_000), st.integers(1, 30))
def test_simplex(seed, n):
    y = np.random.default_rng(seed).normal(0, 2, (3, n))
    x = project_simplex(y)
    assert x.min() >= 0
    np.testing.assert_allclose(x.sum(1), 1, atol=1e-12)
    positive = np.where(x > 0, y - x, np.nan)
    assert np.nanmax(np.nanmax(positive, 1) - np.nanmin(positive, 1)) < 1e-10  # one threshold for the support


@pytest.mark.parametrize(
    ("y", "previous", "gamma", "message"),
    [
        ([np.nan, 0.0], [0.5, 0.5], 1.0, "y: expected finite"),
        ([0.0, 0.0], [0.5, 0.4], 1.0, "previous: expected weights that sum to 1"),
        ([0.0, 0.0], [1.5, -0.5], 1.0, "previous: expected non-negative"),
        ([0.0, 0.0], [1.0, 0.0, 0.0], 1.0, "previous: expected 2 weights"),
        ([0.0, 0.0], [0.5, 0.5], -0.1, "turnover_l1: expected a non-negative"),
        ([1e16, 0.0], [0.5, 0.5], 1.0, "y: expected entries within 1e+09 of each other"),
        ("text", [0.5, 0.5], 1.0, "y: expected an array of numbers"),
    ],
)
def test_bad_input(y, previous, gamma, message):
    with pytest.raises(InputError) as caught:
        project_portfolio(y, previous, gamma)
    assert str(caught.value).startswith(message)


def test_current_weights_may_be_off_by_the_rounding_of_their_precision():
    y = torch.tensor([0.5, 0.2, 0.1])
    for dtype, fine, off in ((torch.float64, 5e-7, 1e-5), (torch.float32, 5e-5, 1e-3)):
        held = torch.full((3,), 1 / 3, dtype=dtype)
        assert project_portfolio(y.to(dtype), held + fine / 3, 0.5).sum().item() == pytest.approx(1, abs=1e-6)
        with pytest.raises(InputError, match="previous"):
            project_portfolio(y.to(dtype), held + off / 3, 0.5)


def test_any_batch_of_vectors_is_projected_one_by_one():
    """Of two dimensions, each vector with its own radius or budget."""
    rng = np.random.default_rng(0)
    y, previous, size = rng.normal(size=(2, 3, 5)), rng.dirichlet(np.ones(5), (2, 3)), rng.uniform(0.1, 1.5, (2, 3))
    balls, moves, portfolios = project_l1_ball(y, size), project_portfolio(y, previous, size), project_simplex(y, 0.7)
    one = project_portfolio(y[0, 0], previous, size)  # shared by all
    for i in np.ndindex(2, 3):
        np.testing.assert_allclose(balls[i], project_l1_ball(y[i], size[i]), atol=1e-15)
        np.testing.assert_allclose(moves[i], project_portfolio(y[i], previous[i], size[i]), atol=1e-15)
        np.testing.assert_allclose(portfolios[i], project_simplex(y[i], 0.7), atol=1e-15)
        np.testing.assert_allclose(one[i], project_portfolio(y[0, 0], previous[i], size[i]), atol=1e-15)
    with pytest.raises(InputError, match="radius: expected"):
        project_l1_ball(y, size.T)
    with pytest.raises(InputError, match="turnover_l1: expected"):
        project_portfolio(y, previous, size.T)
