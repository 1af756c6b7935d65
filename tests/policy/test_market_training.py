"""Training of the market policy: gradients reach what each loss teaches, runs repeat and resume, Σ learns risk."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from time2decide.core.validation import InputError
from time2decide.markets.prior import random_market
from time2decide.policy.market_decision import MarketStrategy
from time2decide.policy.market_policy import MarketPolicy
from time2decide.policy.market_training import (
    PRESETS,
    draw_training_days,
    market_policy_path,
    market_risk_loss,
    prior_training_markets,
    real_training_markets,
    trace_market,
    train_market_policy,
)
from time2decide.simulation.engine import rollout
from time2decide.simulation.metrics import net_returns

SMOKE = PRESETS["smoke"]


@pytest.fixture(scope="module")
def pool():
    drawn = random_market(6, 260, np.random.default_rng(0), "reversal")
    return [trace_market("one", drawn.returns, 60, drawn.covariance(np.arange(60, 260)))]


def test_tokens_of_a_day_do_not_know_it(pool):
    drawn = random_market(6, 260, np.random.default_rng(0), "reversal")
    changed = drawn.returns.copy()
    changed[150:] = 0.03
    again = trace_market("two", changed, 60)
    for name, tokens in pool[0].tokens.items():
        torch.testing.assert_close(tokens[:91], again.tokens[name][:91], rtol=0, atol=0)


def test_realised_targets_lie_ahead():
    returns = np.random.default_rng(1).normal(0, 0.01, (200, 3))
    traced = trace_market("real", returns, 100)
    window = returns[130:151]
    np.testing.assert_allclose(traced.covariance[30].numpy(), window.T @ window / 21, rtol=1e-4, atol=1e-9)


def test_the_loss_teaches_what_the_covariance_is_made_of(pool):
    policy, rng = MarketPolicy(), np.random.default_rng(0)
    market_risk_loss(policy, draw_training_days(pool, 8, 5, rng), SMOKE.turnover_weight).backward()
    for head in (policy.to_market[-1], policy.to_volatility):
        assert float(head.bias.grad.abs().sum()) > 0


def test_a_run_repeats_and_resumes_to_the_last_bit(tmp_path):
    whole = train_market_policy(SMOKE, tmp_path / "whole")

    def interrupt(done, total, loss):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_market_policy(SMOKE, tmp_path / "parts", report=interrupt)
    resumed = train_market_policy(SMOKE, tmp_path / "parts")
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(weight, resumed.state_dict()[name], rtol=0, atol=0)
    loaded = MarketPolicy.from_pretrained(tmp_path / "whole")
    assert any(not torch.equal(a, b) for a, b in zip(loaded.parameters(), MarketPolicy().parameters(), strict=True))


def test_real_universes_are_named_in_the_notes_and_checked(tmp_path):
    rng = np.random.default_rng(0)
    universe = {"mine": 0.01 * rng.normal(size=(420, 8))}
    train_market_policy(SMOKE, tmp_path / "run", universe)
    assert '"mine"' in (tmp_path / "run" / "config.json").read_text()
    assert {traced.assets for traced in real_training_markets("mine", universe["mine"], SMOKE)} == {6}
    assert len(prior_training_markets(SMOKE)) == SMOKE.prior_markets
    with pytest.raises(InputError, match="mine: expected at least 400 rows of finite returns"):
        train_market_policy(SMOKE, tmp_path / "other", {"mine": np.full((500, 3), np.nan)})


def test_the_command_trains_measures_and_says_which_universes_were_which(tmp_path):
    rng = np.random.default_rng(0)
    for name, assets in (("one", 7), ("two", 4)):
        days = pd.bdate_range("2020-01-01", periods=450)
        table = pd.DataFrame(0.01 * rng.normal(size=(450, assets)), index=days, columns=list("ABCDEFG")[:assets])
        table.to_csv(tmp_path / f"{name}.csv", index_label="date")
    command = ["train", "market", "--preset", "smoke", "--data", "one.csv", "--measure", "two.csv", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "time2decide.cli", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "two.csv (measured only), λ = 25" in done.stdout
    notes = json.loads((tmp_path / "run" / "config.json").read_text())["notes"]
    assert {row["universe"]: row["role"] for row in notes["walk_forward"]} == {
        "one.csv": "trained on",
        "two.csv": "measured only",
    }
    assert all(row["volatility"] > 0 for row in notes["walk_forward"])


def test_walking_a_traced_market_is_the_rollout_of_the_strategy():
    returns = np.random.default_rng(4).normal(0.0005, 0.01, (160, 5)) * np.linspace(0.5, 2, 5)
    policy = MarketPolicy().eval()
    net, amount = market_policy_path(policy, trace_market("one", returns, 100), 25.0, 0.1, 1e-3)
    given = {"risk_aversion": 25.0, "window": 100, "budget_from": "drifted", "cost_bps": 10.0}
    result = rollout(returns, MarketStrategy(policy), [0.1], **given)
    expected = net_returns(result, returns[None], 10.0)
    np.testing.assert_allclose(net, expected[0][0, 0], atol=1e-8)
    np.testing.assert_allclose(amount, expected[1][0, 0], atol=1e-6)
    assert amount.sum() > 0.1
