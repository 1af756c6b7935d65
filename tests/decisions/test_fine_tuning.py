"""Fine-tuning looks at nothing it must not, repeats by seed, and never keeps what is worse on validation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from time2decide.decisions.fine_tuning import FineTuning, fine_tune, fine_tune_to, split_rows
from time2decide.decisions.policy import Policy
from time2decide.decisions.time2decide import Time2Decide, load_policy
from time2decide.markets.oracle import WINDOW
from time2decide.qp import InputError

QUICK = FineTuning(steps=6, batch=8, stretches=3, decisions=4, burn_in=4, check_every=2, budgets=(0.5,))


@pytest.fixture(scope="module")
def returns():
    return np.random.default_rng(0).normal(0, 0.01, (700, 3))


def test_rows_are_a_window_apart():
    split = split_rows(1000, FineTuning())
    assert split.training.stop + WINDOW == split.validation.start
    assert split.validation.stop + WINDOW == split.untouched.start == 700
    with pytest.raises(InputError, match="expected at least"):
        split_rows(400, FineTuning())


def test_it_repeats_and_does_not_see_the_last_rows(returns, tmp_path):
    start = load_policy("decide")[0]
    first, notes = fine_tune(returns, start, QUICK)
    changed = returns.copy()
    changed[int(0.7 * len(returns)) - WINDOW :] *= -3
    second, _ = fine_tune(changed, start, QUICK)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert min(notes["validation_losses"]) <= notes["validation_losses"][0]
    assert len(notes["validation_losses"]) == 4
    assert notes["history"] == "own"


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


def test_a_network_that_cannot_get_better_is_kept(returns):
    start = Policy(generator=torch.Generator().manual_seed(0)).eval()
    tuned, notes = fine_tune(returns, start, replace(QUICK, lr=1e3))  # hopeless steps
    assert notes["steps_kept"] == 0
    for one, other in zip(start.parameters(), tuned.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("change", [{"steps": 0}, {"lr": -1.0}, {"share": 1.5}, {"burn_in": 1}])
def test_bad_recipes_are_named(change):
    with pytest.raises(InputError, match=next(iter(change))):
        FineTuning(**change)
