"""Fine-tuning looks at nothing it must not, repeats by seed, and never keeps what is worse on validation."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from time2decide.core.validation import InputError
from time2decide.markets.oracle import WINDOW
from time2decide.policy.fine_tuning import FineTuning, _one_episode, fine_tune, fine_tune_to, split_tuning_rows
from time2decide.policy.model import PolicyStrategy, Time2Decide, load_policy
from time2decide.policy.network import HISTORY, Policy
from time2decide.policy.training import EpisodeGroup, own_rollout_utility
from time2decide.simulation.engine import rollout

QUICK = FineTuning(
    steps=6, batch=8, unroll=3, episodes=3, decisions=4, burn_in=4, check_every=2, budgets=(0.5,), risks=(0.1,)
)


@pytest.fixture(scope="module")
def returns():
    return np.random.default_rng(0).normal(0, 0.01, (700, 3))


def test_rows_are_a_window_apart():
    split = split_tuning_rows(1000, 0.7, FineTuning().length)
    assert split.training.stop + WINDOW == split.validation.start
    assert split.validation.stop + WINDOW == split.untouched.start == 700
    with pytest.raises(InputError, match="expected at least"):
        split_tuning_rows(400, 0.7, FineTuning().length)


@pytest.fixture(scope="module")
def waves():
    """Returns with a pattern that pays: what is learned here is kept."""
    steps = np.sin(np.arange(700)[:, None] / 3 + np.arange(3)) * 0.02
    return steps + 1e-3 * np.random.default_rng(0).standard_normal(steps.shape)


def untrained():
    return Policy(generator=torch.Generator().manual_seed(0)).eval()


def test_it_repeats_and_does_not_see_the_held_out_rows(waves):
    """Not one loss, validation figure or weight depends on the rows that are held out or under embargo."""

    def run(returns):
        losses = []
        recipe = replace(QUICK, episodes=40, batch=64)  # of 40 episodes a leak of 30 % would be seen
        tuned, notes = fine_tune(returns, untrained(), recipe, lambda done, total, loss: losses.append(loss))
        return losses, notes["validation_utility"], torch.cat([p.detach().ravel() for p in tuned.parameters()]), notes

    def altered(rows):
        changed = waves.copy()
        changed[rows] *= -3
        return changed

    split = split_tuning_rows(len(waves), QUICK.share, QUICK.length)
    losses, figures, weights, notes = run(waves)
    assert notes["history"] == "own"
    assert len(figures) == 4
    assert notes["steps_kept"] > 0  # so that the weights tell what was trained on
    assert not notes["holds"]
    for rows in (slice(split.validation.stop, None), slice(split.training.stop, split.validation.start)):
        again = run(altered(rows))
        assert again[:2] == (losses, figures)
        assert torch.equal(again[2], weights)
    assert run(altered(split.validation))[0] == losses  # nothing is fitted to the rows that only judge
    assert run(altered(split.validation))[1] != figures
    assert run(altered(split.training))[0] != losses


def test_the_start_is_left_alone_and_the_folder_loads(returns, tmp_path):
    before = [p.clone() for p in load_policy("decide")[0].parameters()]
    folder = fine_tune_to(tmp_path / "mine", returns, "decide", QUICK)
    model = Time2Decide.from_pretrained(folder)
    assert model.strategy().history == "own"
    weights = model.decide(returns, [0.2, 0.3, 0.5], 0.4)
    assert weights.sum() == pytest.approx(1)
    assert np.abs(weights - [0.2, 0.3, 0.5]).sum() <= 0.4 + 1e-9
    for one, other in zip(before, load_policy("decide")[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_network_that_cannot_get_better_is_not_kept_and_nothing_is_traded():
    returns = np.random.default_rng(0).normal(0, 0.01, (1500, 3))
    tuned, notes = fine_tune(returns, untrained(), replace(QUICK, lr=1e3, cost_bps=100.0))  # hopeless steps and costs
    assert (notes["steps_kept"], notes["holds"]) == (0, True)
    held = rollout(returns[None, :200], PolicyStrategy(tuned, "own"), [0.1, 2.0]).allocations
    assert np.abs(held - 1 / 3).max() < 1e-6


def test_where_there_is_a_pattern_it_is_traded(waves):
    _, notes = fine_tune(waves, load_policy("decide")[0], QUICK)
    assert not notes["holds"]


def test_validation_is_net_of_costs_and_the_best_of_it_is_kept(waves):
    """Steps that are too large: the figures go up and down, and not the last weights but the best are kept."""
    wild = replace(QUICK, lr=3.0, steps=8, patience=4)
    _, free = fine_tune(waves, untrained(), replace(wild, cost_bps=0.0))
    _, dear = fine_tune(waves, untrained(), replace(wild, cost_bps=50.0))
    assert dear["validation_utility"][0] < free["validation_utility"][0]
    best = int(np.argmax(free["validation_utility"]))
    assert 0 < best < len(free["validation_utility"]) - 1
    assert free["steps_kept"] == 2 * best


def test_on_noise_it_learns_to_leave_the_money_where_it_is(returns):
    recipe = replace(QUICK, steps=60, batch=32, decisions=8, episodes=12, check_every=20, lr=0.05, cost_bps=100.0)
    start = load_policy("decide")[0]
    tuned, _ = fine_tune(returns, start, recipe)
    shipped, learned = (
        rollout(returns[None, 400:600], PolicyStrategy(policy, "own"), 0.5).allocations[0, 0]
        for policy in (start, tuned)
    )
    assert np.abs(np.diff(learned, axis=0)).sum() < 0.3 * np.abs(np.diff(shipped, axis=0)).sum()


def test_only_the_read_out_is_tuned(returns, waves):
    start = untrained()
    tuned, notes = fine_tune(waves, start, QUICK)
    assert notes["steps_kept"] > 0
    assert not notes["holds"]
    pairs = zip(start.named_parameters(), tuned.parameters(), strict=True)
    changed = {name for (name, one), other in pairs if not torch.equal(one, other)}
    assert "head.weight" in changed
    assert changed <= {"head.weight", "head.bias", "skip"}
    with pytest.raises(InputError, match="start: expected a network trained for the oracle"):
        fine_tune(returns, load_policy("decide-utility")[0], QUICK)


def test_the_utility_of_a_walk_is_net_of_costs(returns):
    config = replace(QUICK, budgets=(0.5, 1.0), risks=(0.1, 2.0))
    group = EpisodeGroup(_one_episode(returns[:200], config))
    group.gather(load_policy("decide")[0], torch.arange(2))
    found, data = [], group.data
    for i, k, s in itertools.product(range(2), range(2), range(group.steps)):
        held, weights = (group.own[i, k, HISTORY + s - back].double().numpy() for back in (1, 0))
        r, window = returns[WINDOW + 4 + s], returns[4 + s : WINDOW + 4 + s]
        utility = weights @ r - r.mean() - config.risks[i] * (window @ weights).var(ddof=1)
        scale = data.features.scale[data.windows[i, s]].square().mean().sqrt().item()
        found.append((utility - 0.002 * np.abs(weights - held).sum()) / scale / config.budgets[k])
    assert own_rollout_utility(group, 0.002).mean().item() == pytest.approx(np.mean(found), rel=1e-4)


@pytest.mark.parametrize(
    "change", [{"steps": 0}, {"lr": -1.0}, {"cost_bps": -1.0}, {"unroll": 0}, {"share": 1.5}, {"burn_in": 1}]
)
def test_bad_recipes_are_named(change):
    with pytest.raises(InputError, match=next(iter(change))):
        FineTuning(**change)


def test_windows_that_episodes_share_are_read_once_and_progress_is_told(returns):
    seen = []
    recipe = replace(QUICK, episodes=200)
    fine_tune(returns, untrained(), recipe, prepared=lambda done, total: seen.append((done, total)))
    split = split_tuning_rows(len(returns), recipe.share, recipe.length)
    walk = split.validation.stop - split.validation.start - WINDOW - recipe.burn_in
    assert seen[-1] == (seen[-1][1],) * 2
    assert seen[-1][1] == walk + split.training.stop  # fewer than 200 episodes of 4 windows
    group = EpisodeGroup(_one_episode(returns[:200], replace(recipe, risks=(0.1, 1.0, 10.0))))
    assert len(group.data.features.level) == group.steps  # the same for every λ
