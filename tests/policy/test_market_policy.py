"""The market policy: what Σ is made of, when forecasts are followed, symmetry, and what it is not shown."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from time2decide.forecasting.market_state import EXPERTS, MarketState
from time2decide.policy.market_policy import (
    SEES,
    MarketBatch,
    MarketPolicy,
    MarketPolicyConfig,
    forecast_posterior,
    forecast_shrinkage,
    holding_days,
)


@pytest.fixture(scope="module")
def tokens():
    rng = np.random.default_rng(0)
    common = rng.normal(size=(400, 1))
    returns = (0.006 * common + 0.008 * rng.normal(size=(400, 6))) * np.linspace(0.5, 2, 6)
    return MarketState(6).extend(returns).tokens()


@pytest.fixture(scope="module")
def policy():
    """A network away from its start, so that every part acts."""
    torch.manual_seed(0)
    made = MarketPolicy()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made.eval()


def batch(tokens, risk=5.0, cost=1e-3, **changes):
    return replace(MarketBatch.of([tokens], risk, cost), **changes)


def typical_volatility(tokens):
    return float(np.exp(np.log(tokens.volatility[2]).mean()))


def test_the_untrained_network_is_the_rule(tokens):
    answer = MarketPolicy()(batch(tokens))
    torch.testing.assert_close(answer.volatility_mix[0, 0], torch.tensor([0.01, 0.04, 0.75, 0.10, 0.05, 0.05]))
    assert answer.correlation_mix.sum().item() == pytest.approx(1)


def days(tokens, risk=25.0, followed=0.0, varying=0.02):
    score = torch.tensor([[0.1, 0.0, 0.0, 0.0, 0.0, varying]])
    return holding_days(batch(tokens, risk, score=score), torch.tensor([followed])).item()


def test_a_trade_lasts_long_for_those_who_mind_risk_little_and_where_risks_are_constant(tokens):
    relative_risk = 25.0 * typical_volatility(tokens) / 0.375
    assert relative_risk < 1
    assert days(tokens) == days(tokens, varying=0.3) == pytest.approx(3.7 / relative_risk, rel=1e-4)
    assert days(tokens, 50 / relative_risk) == pytest.approx(3.7 * 2 ** (-1 / 3), rel=1e-4)
    assert days(tokens, 1e-3) == pytest.approx(40, rel=1e-4)
    assert days(tokens, varying=-0.01) == pytest.approx(8 * 3.7 / relative_risk, rel=1e-4)
    assert days(tokens, varying=0.01) == pytest.approx(8**0.5 * 3.7 / relative_risk, rel=1e-4)
    assert days(tokens, 1e-3, followed=1.0) == pytest.approx(10, rel=1e-4)
    assert days(tokens, 1e9) == pytest.approx(1)


@pytest.mark.parametrize("sees", SEES)
def test_the_covariance_is_positive_definite(tokens, sees):
    torch.manual_seed(1)
    policy = MarketPolicy(MarketPolicyConfig(sees=sees))
    sigma = policy(batch(tokens)).covariance[0].double()
    torch.testing.assert_close(sigma, sigma.T)
    assert torch.linalg.eigvalsh(sigma).min() > 0


def test_what_is_hidden_has_no_effect(tokens, policy):
    other = batch(tokens, correlation=torch.eye(6).expand(1, 4, 6, 6))
    assert not torch.equal(policy(batch(tokens)).covariance, policy(other).covariance)
    blind = MarketPolicy(MarketPolicyConfig(sees="variances"))
    blind.load_state_dict(policy.state_dict())
    torch.testing.assert_close(blind(batch(tokens)).covariance, blind(other).covariance)
    flat = MarketPolicy(MarketPolicyConfig(sees="correlations"))
    flat.load_state_dict(policy.state_dict())
    sigma = flat(batch(tokens)).covariance[0]
    assert (sigma.diag() / sigma.diag().mean()).std() < 0.2  # only the mixtures differ between assets


def test_permuting_assets_permutes_the_problem(tokens, policy):
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    plain, whole = policy(batch(tokens)), batch(tokens)
    moved = policy(
        replace(
            whole,
            volatility=whole.volatility[:, :, order],
            correlation=whole.correlation[:, :, order][:, :, :, order],
            forecast=whole.forecast[:, :, order],
            age=whole.age[:, order],
        )
    )
    torch.testing.assert_close(moved.mean, plain.mean[:, order], rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(moved.covariance, plain.covariance[:, order][:, :, order], rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(moved.days, plain.days, rtol=1e-4, atol=1e-4)


def record(tokens, worth, error=2e-4, cost=1e-3, risk=5.0):
    given = {"worth": torch.tensor([worth]), "worth_error": torch.full((1, len(EXPERTS)), error)}
    given["pace"] = torch.ones(1, len(EXPERTS))
    return batch(
        tokens, risk, cost, slope=torch.ones(1, len(EXPERTS)), t_value=torch.full((1, len(EXPERTS)), 4.0), **given
    )


def test_forecasts_without_a_record_are_not_followed(tokens):
    seen = record(tokens, [0.0, 1e-4, -5e-4, 2e-4, 0.0, 0.0])
    assert forecast_posterior(seen).sum() < 0.07
    assert MarketPolicy()(seen).signal.abs().max() < 0.1 * seen.forecast.abs().max()


def test_a_forecast_counts_for_what_it_earns_net_of_costs(tokens):
    worth = [3e-4, 16e-4, 3e-4, 0.0, 0.0, 0.0]
    followed = forecast_posterior(record(tokens, worth))[0]
    assert followed[1] > 0.9
    assert followed.sum() <= 1
    assert forecast_posterior(record(tokens, worth, cost=40e-4)).sum() < 0.07
    free = forecast_posterior(record(tokens, [16e-4] * 6, cost=0.0))[0]
    assert free.sum() == pytest.approx(1, abs=1e-3)  # the same effect is counted once
    torch.testing.assert_close(free[1:4], free[1].expand(3))


def test_of_two_forecasts_that_surely_pay_the_better_one_is_followed(tokens):
    seen = record(tokens, [60e-4, 60e-4, 0.0, 0.0, 0.0, 0.0], error=3e-4)
    pace = torch.tensor([[0.5, 1.0, 1.0, 1.0, 1.0, 1.0]])
    sure = {"worth_error": torch.tensor([[3e-4, 8e-4, 3e-4, 3e-4, 3e-4, 3e-4]])}  # the better one is known less well
    assert forecast_posterior(replace(seen, pace=pace, **sure))[0, 1] > 0.95


def test_weak_forecasts_are_for_those_who_mind_risk_little(tokens):
    shares = [forecast_shrinkage(record(tokens, [0.0] * 6, risk=risk))[0, 0].item() for risk in (0.1, 5.0, 25.0, 100.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.99
    strong = replace(record(tokens, [0.0] * 6, risk=25.0), t_value=torch.full((1, 6), 40.0))
    assert forecast_shrinkage(strong).min() > 0.8


def test_the_prior_makes_equal_weights_efficient_or_sharpe_ratios_equal(tokens):
    equilibrium = MarketPolicy(MarketPolicyConfig(equal_sharpe=0.0))(batch(tokens))
    beta = equilibrium.covariance[0].mean(-1)
    torch.testing.assert_close(equilibrium.prior[0] / beta, (equilibrium.prior[0] / beta).mean().expand(6))
    risk = equilibrium.covariance[0].mean().sqrt()
    assert (equilibrium.prior[0].mean() / risk).item() * 252**0.5 == pytest.approx(0.1, rel=1e-4)
    equal = MarketPolicy(MarketPolicyConfig(equilibrium=0.0))(batch(tokens))
    ratio = equal.prior[0] / equal.covariance[0].diag().sqrt()
    torch.testing.assert_close(ratio, ratio.mean().expand(6))
    assert (equal.prior[0].mean() / risk).item() * 252**0.5 == pytest.approx(0.2, rel=1e-4)


def test_the_covariance_is_the_same_for_every_risk_aversion_and_cost(tokens, policy):
    one, other = (policy(batch(tokens, risk, cost)).covariance for risk, cost in ((1.0, 0.0), (100.0, 3e-3)))
    assert torch.equal(one, other)
