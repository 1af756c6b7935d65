"""The decision network: on the simplex, indifferent to order and units, blind where it should be, and trainable."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from time2decide.core.validation import InputError
from time2decide.forecasting.features import window_features
from time2decide.markets.oracle import oracle_path
from time2decide.policy.model import PolicyStrategy, load_policy
from time2decide.policy.network import COVARIANCES, HISTORY, Policy, PolicyConfig, PolicyInput, PolicyOutput
from time2decide.policy.training import (
    PRESETS,
    EpisodeConfig,
    EpisodeGroup,
    _examples,
    draw_policy_inertia,
    episode_configs,
    episode_signals,
    episodes_of,
    make_episodes,
    policy_loss,
    policy_utility_loss,
    prepare_policy_training,
    train_policy,
)
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.engine import Observation


def observation(n: int = 6, m: int = 5, seed: int = 0, scale: float = 0.01) -> tuple[np.ndarray, PolicyInput]:
    rng = np.random.default_rng(seed)
    windows = scale * np.cumsum(rng.standard_normal((n, 96, m)), axis=1) / 5
    allocations = torch.from_numpy(rng.dirichlet(np.ones(m), (n, HISTORY)).transpose(0, 2, 1).copy()).float()
    gamma = torch.from_numpy(rng.uniform(0.1, 2.0, n)).float()
    return windows, PolicyInput(window_features(windows), allocations, torch.ones(n), gamma, torch.full((n,), 0.1))


def network(covariance: str = "full", seed: int = 1) -> Policy:
    return Policy(PolicyConfig(covariance=covariance), generator=torch.Generator().manual_seed(seed)).eval()


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("m", [2, 5, 40])
def test_answers_are_on_the_simplex(covariance: str, m: int) -> None:
    weights = network(covariance)(observation(m=m)[1]).weights
    assert weights.min() >= 0
    assert torch.allclose(weights.sum(-1), torch.ones(len(weights)), atol=1e-5)


def test_permuting_assets_permutes_the_answer() -> None:
    windows, plain = observation()
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = replace(
        plain, features=window_features(windows[..., order.numpy()]), allocations=plain.allocations[:, order]
    )
    assert torch.allclose(network()(moved).weights, network()(plain).weights[:, order], atol=1e-5)


def test_units_of_returns_do_not_matter_without_risk() -> None:
    (_, small), (_, large) = observation(scale=0.01), observation(scale=1.0)
    small, large = (replace(s, risk_aversion=torch.zeros(6)) for s in (small, large))
    assert torch.allclose(network()(small).weights, network()(large).weights, atol=1e-4)


def test_a_blind_network_does_not_see_scale_level_or_correlation_and_a_full_one_does() -> None:
    windows, plain = observation()
    stretched = replace(plain, features=window_features(windows * np.array([1.0, 5.0, 1.0, 0.2, 1.0]) + 0.01))
    blind, full = network("none"), network("full")
    assert torch.allclose(blind(stretched).weights, blind(plain).weights, atol=1e-5)
    assert (full(stretched).weights - full(plain).weights).abs().max() > 1e-3


def test_errors_that_move_together_make_a_comparison_more_certain() -> None:
    """var(e_i − e_j) falls with the correlation of the errors: the best forecast is then bought with more resolve."""
    windows = 0.01 * np.random.default_rng(0).standard_normal((6, 96, 4))  # forecasts that differ little
    _, plain = observation(m=4)
    plain = replace(plain, features=window_features(windows), allocations=torch.full((6, 4, HISTORY), 0.25))
    model = network()
    with torch.no_grad():
        model.head.weight.zero_()  # what is left is not learned: who beats whom
    most = []
    for correlation in (-0.3, 0.0, 0.6, 0.95):
        together = torch.full((6, 4, 4), correlation) + (1 - correlation) * torch.eye(4)
        most.append(model(replace(plain, features=replace(plain.features, innovation=together))).weights.amax(-1))
    assert (torch.stack(most).diff(dim=0) > 0).all()


def test_unknown_configuration_is_refused() -> None:
    with pytest.raises(InputError, match="covariance: expected one of"):
        PolicyConfig(covariance="some")
    with pytest.raises(InputError, match="objective: expected one of"):
        PolicyConfig(objective="fame")


def test_episodes_hold_the_oracle_and_what_followed() -> None:
    config = EpisodeConfig(assets=4, count=5, steps=10, burn_in=8, budgets=2, series=3, seed=7)
    data = make_episodes(config)
    assert data.oracle.shape == (5, 2, HISTORY + 10, 4)
    assert torch.allclose(data.oracle.sum(-1), torch.ones(5, 2, HISTORY + 10), atol=1e-5)
    change = data.oracle.diff(dim=2).abs().sum(-1)
    assert (change <= data.turnover_l1[..., None] + 1e-5).all()
    again = make_episodes(config)
    assert torch.equal(again.oracle, data.oracle)
    assert torch.equal(again.features.forecasts, data.features.forecasts)


def test_signals_are_the_returns_without_their_noise() -> None:
    config = EpisodeConfig(assets=4, count=30, steps=12, burn_in=4, budgets=2, series=4)
    data = make_episodes(config)
    noise = data.returns - episode_signals(config)
    clean = data.noise == 0
    assert 0 < clean.sum() < 30
    assert noise[clean].abs().max() == 0
    assert noise[~clean].std(dim=(1, 2)) / data.noise[~clean] == pytest.approx(1.0, abs=0.4)


def test_oracle_of_an_episode_is_the_oracle() -> None:
    from time2decide.markets.covariance import empirical_covariance
    from time2decide.policy.training import episode_oracle_paths

    returns = 0.01 * np.random.default_rng(3).standard_normal((2, 110, 4))
    covariance = np.stack([empirical_covariance(returns[:, t - 96 : t]) for t in range(96, 110)], axis=1)
    path = episode_oracle_paths(returns[:, 96:], covariance, np.full((2, 1), 0.5), np.full(2, 0.1))
    assert np.allclose(path[:, 0], np.asarray(oracle_path(returns, 0.5))[:, 96:], atol=1e-9)


def test_an_example_of_training_is_what_the_strategy_is_shown_at_that_step() -> None:
    """Window, hindsight and covariance end before the step; the target is the oracle's answer to it."""
    returns = 0.01 * np.random.default_rng(3).standard_normal((2, 96 + 5 + 4, 4))
    data = episodes_of(returns, np.array([[0.5, 1.5], [0.2, 1.0]]), np.array([20.0, 50.0]), np.zeros(2), burn_in=5)
    group = EpisodeGroup(data)
    for episode, budget, step in ((0, 1, 0), (1, 0, 3)):
        t, gamma, risk = 101 + step, float(data.turnover_l1[episode, budget]), float(data.risk_aversion[episode])
        oracle = np.asarray(oracle_path(returns[episode], [gamma], risk))  # (1, 1, time, m)
        oracle = oracle.reshape(1, 1, *returns.shape[1:])
        window = returns[episode : episode + 1, t - 96 : t]
        past = Observation(window, oracle[:, :, t - 96 : t], oracle[:, :, t - 96 : t], np.array([gamma]), risk)
        expected = PolicyStrategy(network()).inputs(past)
        place = tuple(torch.tensor([i]) for i in (episode, budget, step))
        found = group.observation(*place, torch.ones(1))
        for name in ("allocations", "hindsight", "turnover_l1", "risk_aversion"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name).to(torch.float32), msg=name)
        for name in ("level", "scale", "forecasts", "recent", "correlation"):
            one, other = getattr(found.features, name), getattr(expected.features, name)
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, msg=name)
        np.testing.assert_allclose(data.covariance[episode, step].numpy(), past.covariance[0], rtol=1e-4, atol=1e-9)
        target, following = (
            torch.from_numpy(oracle[0, :, t]).float(),
            torch.from_numpy(returns[episode, None, t]).float(),
        )
        right = PolicyOutput(target, following, following, following, torch.zeros(1))
        assert policy_loss(lambda _, right=right: right, found, data, place, 1.0).item() < 1e-8


def test_own_histories_of_training_are_told_from_hindsight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[PolicyInput] = []

    def spy(model: Policy, situation: PolicyInput, *rest: object) -> torch.Tensor:
        shown.append(situation)
        return policy_loss(model, situation, *rest)

    monkeypatch.setattr("time2decide.policy.training.policy_loss", spy)
    train_policy(replace(PRESETS["smoke"], steps=12, batch=64), tmp_path)
    own = torch.cat([1 - one.hindsight for one in shown])
    assert own[: 5 * 64].sum() == 0  # before the first histories are gathered
    assert own[-5 * 64 :].mean() == pytest.approx(0.5, abs=0.15)


def test_initial_weights_depend_on_the_seed(tmp_path: Path) -> None:
    first, other = (prepare_policy_training(replace(PRESETS["smoke"], seed=seed), tmp_path).model for seed in (0, 1))
    assert not torch.equal(first.embed[0].weight, other.embed[0].weight)


def test_more_risk_aversion_sells_more_of_the_only_holding() -> None:
    """Between assets that are alike the risk of a further unit, 2λΣs, is that of what is held already."""
    _, plain = observation(m=4)
    alike = {
        name: torch.zeros_like(getattr(plain.features, name)) for name in ("level", "forecasts", "ahead", "recent")
    }
    eye = torch.eye(4).expand(6, 4, 4)
    alike |= {
        "scale": torch.full((6, 4), 0.01),
        "deviations": torch.ones(6, 4, 2),
        "correlation": eye,
        "innovation": eye,
    }
    held = torch.zeros(6, 4, HISTORY)
    held[:, 0] = 1.0
    model = network()
    with torch.no_grad():
        model.head.weight.zero_()
    kept = [
        model(
            replace(
                plain, features=replace(plain.features, **alike), allocations=held, risk_aversion=torch.full((6,), lam)
            )
        ).weights[:, 0]
        for lam in (0.0, 30.0, 100.0)
    ]
    assert (torch.stack(kept).diff(dim=0) < -1e-3).all()


def test_gathered_histories_are_feasible() -> None:
    group = EpisodeGroup(
        make_episodes(PRESETS["smoke"].episode.__class__(assets=4, count=6, steps=12, burn_in=4, budgets=2, series=4))
    )
    group.gather(network(), torch.arange(6))
    change = group.own[:, :, HISTORY - 1 :].diff(dim=2).abs().sum(-1)
    assert (change <= group.data.turnover_l1[..., None] + 1e-4).all()
    assert torch.allclose(group.own.sum(-1), torch.ones(group.own.shape[:-1]), atol=1e-4)


def test_training_learns_and_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    recipe = replace(PRESETS["smoke"], steps=40, lr=5e-3)
    losses: list[float] = []
    whole = train_policy(recipe, tmp_path / "whole", report=lambda done, total, loss: losses.append(loss))
    assert np.mean(losses[-8:]) < np.mean(losses[:5])
    run = prepare_policy_training(recipe, tmp_path / "killed")
    for _ in range(17):
        run.one_step()
    run.save()
    resumed = train_policy(recipe, tmp_path / "killed")
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    loaded, notes = load_policy(tmp_path / "whole")
    assert torch.equal(loaded.head.weight, whole.head.weight)
    assert notes["recipe"]["steps"] == 40


def test_another_recipe_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    train_policy(replace(PRESETS["smoke"], steps=2), tmp_path)
    with pytest.raises(InputError, match="run of the same config"):
        train_policy(replace(PRESETS["smoke"], steps=3), tmp_path)


def test_training_on_utility_earns_more_on_the_same_decisions(tmp_path: Path) -> None:
    recipe = replace(
        PRESETS["smoke"], steps=40, lr=1e-2, batch=32, model=replace(PRESETS["smoke"].model, objective="utility")
    )
    run = prepare_policy_training(recipe, tmp_path, network())
    group = EpisodeGroup(_examples(episode_configs(recipe)[0], utility=True))
    episode, budget = torch.arange(6).repeat_interleave(2), torch.arange(2).repeat(6)
    place = episode, budget, torch.full_like(episode, 3)

    def earned(model: Policy) -> float:
        return -policy_utility_loss(model, group, place, draw_policy_inertia(12, np.random.default_rng(0)), 4).item()

    before, gate = earned(run.model), run.model.gate[0].weight.clone()
    assert earned(train_policy(recipe, tmp_path, start=network())) > before
    assert torch.equal(load_policy(tmp_path)[0].gate[0].weight, gate)  # forecasts stay as they were


def test_costs_are_taken_from_utility() -> None:
    group = EpisodeGroup(make_episodes(EpisodeConfig(assets=4, count=6, steps=12, burn_in=4, budgets=2, series=4)))
    place = torch.arange(6), torch.arange(6) % 2, torch.full((6,), 3)
    losses = [
        policy_utility_loss(network(), group, place, draw_policy_inertia(6, np.random.default_rng(0)), 4, cost).item()
        for cost in (0, 0.01, 0.02)
    ]
    assert losses[1] - losses[0] == pytest.approx(losses[2] - losses[1], rel=1e-2)
    assert losses[1] - losses[0] > 0


def test_scores_start_as_the_mean_of_this_step_and_later_ones_and_as_the_forecast_where_all_can_be_sold() -> None:
    _, some = observation()
    model = network()
    model.start_scores()
    half, all_, more = (model(replace(some, turnover_l1=torch.full((6,), gamma))) for gamma in (1.0, 2.0, 3.0))
    later = some.features.level + some.features.scale * some.features.ahead
    assert torch.allclose(half.scores, (half.forecast + 0.5 * later) / 1.5, atol=1e-8)  # (1 − ½)²/½
    assert (half.curvature > 0).all()
    assert torch.equal(all_.scores, all_.forecast)
    assert torch.equal(more.scores, more.forecast)
    assert (all_.curvature == 0).all()
    assert (more.curvature == 0).all()


@pytest.mark.parametrize("gamma", [0.3, 1.0, 1.9])
def test_a_network_for_utility_decides_for_the_greatest_score_less_risk_and_concentration(gamma: float) -> None:
    rng = np.random.default_rng(5)
    returns, previous = 0.01 * rng.standard_normal((2, 96, 6)), rng.dirichlet(np.ones(6), (2, 1))
    past = Observation(returns, np.repeat(previous[:, :, None], 96, axis=2), None, np.array([gamma]), 2.0, 96)
    strategy = PolicyStrategy(load_policy("decide-utility")[0], "own")
    answer = strategy.output(strategy.inputs(past))
    best = strategy.target(answer, past)
    scores, kappa = answer.scores.double().numpy()[:, None], answer.curvature.double().numpy()[:, None]

    def worth(s: np.ndarray) -> np.ndarray:
        risk = np.einsum("nki,nij,nkj->nk", s, past.covariance, s)
        return (scores * s).sum(-1) - 2.0 * risk - kappa / 2 * (s**2).sum(-1)

    assert np.abs(best - previous).sum(-1).max() <= gamma + 1e-12
    assert np.allclose(best.sum(-1), 1.0)
    for _ in range(300):
        other = np.asarray(project_portfolio(best + 0.1 * rng.standard_normal(best.shape), previous, gamma))
        assert (worth(other) <= worth(best) + 1e-12).all()


def test_a_start_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="start: expected a network of the size"):
        prepare_policy_training(PRESETS["smoke"], tmp_path, Policy(PolicyConfig(width=24)))


def test_a_run_is_not_resumed_from_another_start(tmp_path: Path) -> None:
    recipe = replace(PRESETS["smoke"], steps=2)
    train_policy(recipe, tmp_path, start=network())
    with pytest.raises(InputError, match="run of the same config"):
        train_policy(recipe, tmp_path, start=network(seed=2))
    with pytest.raises(InputError, match="run of the same config"):
        train_policy(recipe, tmp_path)
