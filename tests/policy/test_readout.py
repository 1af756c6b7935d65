"""The read-out in common units: where it starts, what it reads, and that it is the same for all assets and units."""

import numpy as np
import pytest
import torch

from time2decide.core.validation import InputError
from time2decide.markets.covariance import empirical_covariance
from time2decide.policy.readout import (
    DecisionReadout,
    ReadoutConfig,
    common_units,
    compare_assets,
    marginal_variance,
    typical_return_change,
)


def example(batch=3, m=5, width=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    returns = 0.01 * torch.randn(batch, 96, m, generator=generator).cumsum(dim=1)
    weights = torch.rand(batch, m, generator=generator).softmax(-1)
    forecast = returns[:, -1] + 0.01 * torch.randn(batch, m, generator=generator)
    tokens = torch.randn(batch, m, width, generator=generator)
    gamma = torch.tensor([0.5, 1.0, 2.0])[:batch]
    return [forecast, returns, weights, tokens, gamma, torch.full((batch,), 0.1)]


def readout(seed=0, trained=True, **config):
    torch.manual_seed(seed)
    made = DecisionReadout(7, ReadoutConfig(**config))
    if trained:
        torch.nn.init.normal_(made.answer.weight)
    return made.eval()


def test_untrained_it_is_the_rule():
    """(1 − γ/2)·s + γ/2·softmax(z/τ), up to the weights that count as none and the clamp at γ = 2."""
    inputs = example()
    forecast, returns, weights, _, gamma, _ = inputs
    rule = (common_units(forecast, returns) / 0.3).softmax(-1)
    share = (gamma / 2)[:, None]
    found = readout(trained=False, temperature=0.3)(*inputs)
    torch.testing.assert_close(found, (1 - share) * weights + share * rule, atol=0.012, rtol=0)


def test_without_the_skip_it_starts_elsewhere():
    inputs = example()
    apart = readout(trained=False, skip=False)(*inputs) - readout(trained=False)(*inputs)
    assert apart.abs().max() > 0.05


@pytest.mark.parametrize("skip", [True, False])
def test_it_answers_with_allocations_whatever_it_learned(skip):
    answer = readout(skip=skip)(*example())
    assert (answer >= 0).all()
    torch.testing.assert_close(answer.sum(-1), torch.ones(3))


def test_assets_can_be_exchanged():
    model, inputs = readout(), example()
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = [inputs[0][:, order], inputs[1][..., order], inputs[2][:, order], inputs[3][:, order], *inputs[4:]]
    torch.testing.assert_close(model(*moved), model(*inputs)[:, order])


def test_the_unit_of_returns_does_not_matter_and_their_level_among_assets_does():
    model, inputs = readout(), example()
    scaled = [100 * inputs[0], 100 * inputs[1], *inputs[2:]]
    torch.testing.assert_close(model(*scaled), model(*inputs), atol=1e-5, rtol=1e-4)
    raised = [inputs[0] + torch.eye(5)[0] * typical_return_change(inputs[1]), *inputs[1:]]
    assert (model(*raised) - model(*inputs)).abs().max() > 1e-3


@pytest.mark.parametrize("number", range(6))
def test_it_reads_all_it_is_given(number):
    model, inputs = readout(), example()
    other = list(inputs)
    other[number] = inputs[number].flip(0) + (0.5 if number > 3 else 0.0)
    assert (model(*other) - model(*inputs)).abs().max() > 1e-4


def test_comparisons_know_what_is_sold_first():
    """The share of the portfolio that an asset beats: none for the worst, all but itself for the best."""
    z, weights = torch.tensor([[-9.0, 0.0, 9.0]]), torch.tensor([[0.2, 0.3, 0.5]])
    beats = compare_assets(z, weights)[0, :, -2]  # at the largest sharpness
    torch.testing.assert_close(beats, torch.tensor([0.1, 0.35, 0.75]))


def test_the_risk_gradient_is_that_of_the_oracles_utility():
    forecast, returns, weights, tokens, gamma, _ = example()
    expected = np.einsum("bij,bj->bi", empirical_covariance(returns.double().numpy()), weights.double().numpy())
    np.testing.assert_allclose(marginal_variance(returns, weights), expected, rtol=1e-4, atol=1e-8)
    risk = torch.tensor([0.0, 10.0, 100.0])
    utility = forecast - 2 * risk[:, None] * torch.from_numpy(expected).float()
    aware, plain = (readout(trained=False, gradient_passes=one) for one in (1, 0))
    zero = torch.zeros(3)  # the untrained rule reads λ nowhere else
    found = aware(forecast, returns, weights, tokens, gamma, risk)
    torch.testing.assert_close(found, plain(utility, returns, weights, tokens, gamma, zero), atol=1e-5, rtol=1e-4)
    assert (found[2] - plain(forecast, returns, weights, tokens, gamma, zero)[2]).abs().max() > 1e-3


def test_passes_lower_the_utility_missed_where_risk_counts():
    """Untrained, at a budget that allows everything: each pass looks at the risk of the answers before it."""
    forecast, returns, weights, tokens, _, _ = example(batch=3)
    gamma, risk = torch.full((3,), 2.0), torch.full((3,), 30.0)
    sigma = torch.from_numpy(empirical_covariance(returns.numpy()))

    def utility(passes):
        s = readout(trained=False, gradient_passes=passes, temperature=0.5)(
            forecast, returns, weights, tokens, gamma, risk
        )
        return float(((s * forecast).sum(-1) - risk * torch.einsum("bi,bij,bj->b", s, sigma, s)).mean().detach())

    assert utility(1) > utility(0)
    assert utility(8) > utility(0)


def test_bad_settings_are_named():
    with pytest.raises(InputError, match="temperature"):
        ReadoutConfig(temperature=0.0)
