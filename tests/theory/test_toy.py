"""The two-asset model: closed forms, simulation against quadrature, and what the proposition says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from time2decide.core.validation import InputError
from time2decide.theory import ToyModel

models = st.builds(
    ToyModel,
    prior_variance=st.floats(1e-3, 1.0),
    return_variance=st.floats(0.05, 2.0),
    risk_aversion=st.floats(0.05, 2.0),
)


def test_the_papers_figures():
    model = ToyModel()
    assert model.noise_variance(50) == pytest.approx(0.02)
    assert model.shrinkage(50) == pytest.approx(1 / 3)
    assert model.weight(0.2) == pytest.approx(0.75)
    assert model.decide("e2e", 0.2, 50) == pytest.approx(0.5 + 0.25 / 3)
    assert model.weight([-9.0, 9.0]).tolist() == [0.0, 1.0]


@given(models, st.floats(-3, 3))
def test_the_weight_maximises_the_utility(model, gap):
    grid = np.linspace(0, 1, 1001)
    assert model.utility(model.weight(gap), gap) >= model.utility(grid, gap).max() - 1e-12


@given(models, st.integers(2, 1000))
def test_end_to_end_is_never_worse(model, n):
    assert 0 < model.regret("e2e", n) <= model.regret("pto", n)


@pytest.mark.parametrize("n", [5, 50, 500])
@pytest.mark.parametrize("rule", ["pto", "e2e"])
def test_simulation_agrees_with_quadrature(rule, n):
    model = ToyModel()
    gap, estimate = model.sample(n, 200_000, np.random.default_rng([7, n]))
    losses = model.losses(rule, gap, estimate, n)
    assert losses.min() >= 0
    error = losses.std() / np.sqrt(len(losses))
    assert abs(losses.mean() - model.regret(rule, n)) < 4 * error


def test_regret_without_clipping_has_a_closed_form():
    """Far from the bounds E2E loses ρs²/(8λ) and PtO s²/(8λ)."""
    model = ToyModel(prior_variance=1e-4, return_variance=0.005, risk_aversion=1.0)
    noise = model.noise_variance(100)
    assert model.regret("pto", 100) == pytest.approx(noise / 8, rel=1e-7)
    assert model.regret("e2e", 100) == pytest.approx(model.shrinkage(100) * noise / 8, rel=1e-7)


def test_decision_error_is_that_of_the_conditional_distribution():
    model, n, estimate = ToyModel(), 50, 0.3
    rho = model.shrinkage(n)
    gap = np.random.default_rng(1).normal(rho * estimate, np.sqrt(rho * model.noise_variance(n)), 400_000)
    for rule in ("pto", "e2e"):
        errors = np.abs(model.decide(rule, estimate, n) - model.weight(gap))
        assert errors.mean() == pytest.approx(model.decision_error(rule, estimate, n), abs=5e-4)


def test_samples_are_reproducible_and_bad_input_is_named():
    model = ToyModel()
    pairs = [model.sample(10, 5, np.random.default_rng(3)) for _ in range(2)]
    assert np.array_equal(pairs[0], pairs[1])
    with pytest.raises(InputError, match="risk_aversion"):
        ToyModel(risk_aversion=0.0)
    with pytest.raises(InputError, match="rule: expected one of pto, e2e"):
        model.regret("plug-in", 5)
    with pytest.raises(InputError, match="n"):
        model.shrinkage(0)
