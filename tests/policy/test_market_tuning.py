"""Fine-tuning of the market policy: it repeats, resumes, looks at no later row, and keeps what does not get better."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from time2decide.backtesting.registry import make_strategy
from time2decide.core.training import STATE
from time2decide.core.validation import InputError
from time2decide.policy.fine_tuning import MarketTuning, fine_tune_to, split_tuning_rows, tune_market_policy
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.model import Time2Decide

QUICK = MarketTuning(steps=8, lr=0.1, portfolios=8, check_every=4)


@pytest.fixture(scope="module")
def returns():
    """One factor, volatilities that differ and change slowly."""
    rng = np.random.default_rng(0)
    calm = 0.01 * np.exp(0.5 * np.sin(np.arange(1200) / 150))[:, None]
    return calm * (0.7 * rng.standard_normal((1200, 1)) + rng.uniform(0.5, 1.5, 5) * rng.standard_normal((1200, 5)))


def poor_start():
    """A policy that knows nothing but the fastest volatility and no correlation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = MarketPolicy().eval()
    with torch.no_grad():
        policy.to_volatility.bias.copy_(torch.tensor([2.0, 0, 0, 0, 0, 0]))
        policy.to_market[-1].bias.copy_(torch.tensor([0.0, 0, 0, 0, 0, 2]))
    return policy


def weights_of(policy):
    return torch.cat([p.detach().ravel() for p in policy.parameters()])


def test_it_repeats_and_its_weights_depend_on_no_held_out_row(returns):
    def run(table):
        losses = []
        policy, notes = tune_market_policy(table, poor_start(), QUICK, lambda done, total, loss: losses.append(loss))
        return losses, notes, weights_of(policy)

    losses, notes, weights = run(returns)
    assert notes["kept"]
    assert notes["validation_loss"][-1] < notes["validation_loss"][0]
    split = split_tuning_rows(len(returns), QUICK.share, 2 * 63 + 21)
    changed = returns.copy()
    changed[split.validation.stop :] *= -3
    again = run(changed)
    assert again[0] == losses
    assert again[1]["validation_loss"] == notes["validation_loss"]
    assert again[1]["held_out"] != notes["held_out"]
    assert torch.equal(again[2], weights)
    changed = returns.copy()
    changed[split.training.stop :] *= -3
    assert run(changed)[0] == pytest.approx(losses, rel=1e-12)  # nothing is fitted to the rows that only judge


def test_a_policy_that_gets_no_better_is_kept_as_it_was(returns):
    start = MarketPolicy.from_pretrained("market")
    tuned, notes = tune_market_policy(returns, start, replace(QUICK, lr=1e-9))  # too small to change anything
    assert (notes["kept"], notes["steps_kept"], notes["held_out"]) == (False, 0, [])
    assert torch.equal(weights_of(tuned), weights_of(start))


def test_an_interrupted_run_goes_on_and_the_folder_is_a_model_and_a_strategy(returns, tmp_path):
    def stop(done, total, loss):
        if done == 3:
            raise KeyboardInterrupt

    poor_start().save_pretrained(tmp_path / "start")
    whole = fine_tune_to(tmp_path / "whole", returns, tmp_path / "start", QUICK)
    with pytest.raises(KeyboardInterrupt):
        fine_tune_to(tmp_path / "parts", returns, tmp_path / "start", QUICK, report=stop)
    assert (tmp_path / "parts" / STATE).is_file()
    parts = fine_tune_to(tmp_path / "parts", returns, tmp_path / "start", QUICK)
    one, other = (Time2Decide.from_pretrained(folder) for folder in (whole, parts))
    assert torch.equal(weights_of(one.policy), weights_of(other.policy))
    assert other.decide(returns, turnover_l1=0.5).sum() == pytest.approx(1)
    assert make_strategy(str(parts)).name == str(parts)


def test_large_universes_are_tuned_in_parts_and_progress_is_told_before_the_first_step(returns):
    wide = np.random.default_rng(1).standard_normal((700, 70)) * 0.01
    seen = []
    recipe = replace(QUICK, steps=1, portfolios=2, check_every=1)
    tune_market_policy(wide, poor_start(), recipe, prepared=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == 2 * (int(0.7 * 700) - 96 - 60)
    assert sorted(seen) == seen


@pytest.mark.parametrize("change", [{"steps": 0}, {"lr": -1.0}, {"share": 1.5}, {"turnover_weight": -1.0}])
def test_bad_recipes_are_named(change):
    with pytest.raises(InputError, match=next(iter(change))):
        MarketTuning(**change)


def test_too_few_rows_are_refused(returns):
    with pytest.raises(InputError, match="data: expected at least"):
        tune_market_policy(returns[:300], poor_start(), QUICK)
