import numpy as np
import pytest
import torch

from time2decide.bench.markets import (
    OracleSteps,
    oracle_step_by_clarabel,
    oracle_step_objective,
    oracle_step_violation,
    sample_oracle_steps,
)
from time2decide.core.validation import InputError
from time2decide.markets import (
    BUDGETS,
    MARKETS,
    LMCConfig,
    covariance_by,
    empirical_covariance,
    mean_variance_step,
    oracle_path,
    synthetic_oracle,
    synthetic_returns,
)
from time2decide.markets.synthetic import synthetic_to_returns

SHORT = LMCConfig(length=200)


@pytest.fixture(scope="module")
def returns():
    return synthetic_returns("noisy", count=3, config=SHORT)


def test_every_step_is_optimal_and_feasible(returns):
    path = oracle_path(returns, 0.75)
    assert path.shape == returns.shape
    np.testing.assert_allclose(path[:, :96], 1 / 16, atol=1e-15)
    for t in range(96, 200, 8):
        previous = path[:, t - 1]
        steps = OracleSteps(returns[:, t], empirical_covariance(returns[:, t - 96 : t]), previous, np.full(3, 0.75))
        assert oracle_step_violation(steps, path[:, t]) < 1e-12
        exact = np.stack([oracle_step_by_clarabel(steps, i) for i in range(3)])
        assert np.abs(oracle_step_objective(steps, exact) - oracle_step_objective(steps, path[:, t])).max() < 1e-9


def test_risk_is_that_of_the_window_before_the_step(returns):
    """With a λ at which risk decides: Σ̂_t knows neither r_t nor anything older than the window."""
    path = oracle_path(returns, 0.75, 100.0, window=20)
    for t in range(20, 200, 9):
        sigma = empirical_covariance(returns[:, t - 20 : t])
        expected = mean_variance_step(returns[:, t], sigma, path[:, t - 1], 0.75, 100.0)
        np.testing.assert_allclose(path[:, t], expected, atol=1e-6)


def test_paper_data_against_a_second_exact_solver():
    for market in ("clean", "noisy"):
        steps = sample_oracle_steps(market, 150, series=3)
        ours = mean_variance_step(*steps)
        exact = np.stack([oracle_step_by_clarabel(steps, i) for i in range(150)])
        assert np.abs(oracle_step_objective(steps, exact) - oracle_step_objective(steps, ours)).max() < 1e-9
        assert oracle_step_violation(steps, ours) < 1e-9


def test_budgets_together_equal_budgets_alone(returns):
    together = oracle_path(returns, BUDGETS)
    assert together.shape == (3, 7, 200, 16)
    np.testing.assert_allclose(together[:, 2], oracle_path(returns, BUDGETS[2]), atol=1e-10)
    np.testing.assert_allclose(together[1, 2], oracle_path(returns[1], 1.0), atol=1e-10)
    tensor = oracle_path(torch.from_numpy(returns), 1.0)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), together[:, 2], atol=1e-10)


def test_later_returns_do_not_change_earlier_labels(returns):
    changed = returns.copy()
    changed[:, 150:] = -changed[:, 150:]
    before, after = oracle_path(returns, 1.0), oracle_path(changed, 1.0)
    np.testing.assert_array_equal(before[:, :150], after[:, :150])
    assert not np.allclose(before[:, 150:], after[:, 150:])


def test_a_free_oracle_is_nearly_one_hot_so_uniform_scores_15_256ths():
    returns = synthetic_returns("clean", count=4)
    free = oracle_path(returns, 2.0)[:, 96:]
    assert ((free - 1 / 16) ** 2).mean() == pytest.approx(15 / 256, abs=1e-4)


def test_covariance_estimators():
    from skfolio.moments import EmpiricalCovariance
    from sklearn.covariance import LedoitWolf

    windows = np.random.default_rng(0).normal(size=(3, 96, 4)) * 0.01
    np.testing.assert_allclose(empirical_covariance(windows), covariance_by(EmpiricalCovariance())(windows), rtol=1e-9)
    shrunk = covariance_by(LedoitWolf())(windows)
    assert shrunk.shape == (3, 4, 4)
    np.testing.assert_allclose(shrunk[1], LedoitWolf().fit(windows[1]).covariance_)
    path = oracle_path(np.random.default_rng(1).normal(size=(2, 100, 4)), 1.0, covariance=covariance_by(LedoitWolf()))
    np.testing.assert_allclose(path.sum(-1), 1, atol=1e-12)


def test_markets_share_series_and_splits_do_not():
    sets = {market: synthetic_returns(market, count=2, config=SHORT) for market in MARKETS}
    noise = sets["noisy"] - sets["clean"]
    np.testing.assert_allclose(sets["noisy-matched"] - sets["clean"], 0.65 * noise, atol=1e-12)
    assert noise.std() == pytest.approx(0.01, rel=0.05)
    np.testing.assert_array_equal(synthetic_returns("noisy", count=1, config=SHORT)[0], sets["noisy"][0])
    splits = [synthetic_returns("clean", s, count=2, config=SHORT) for s in ("train", "validation", "evaluation")]
    firsts = {series[0, 0].tobytes() for split in splits for series in split[:, :, :1].transpose(0, 2, 1)}
    assert len(firsts) == 6


def test_noise_differs_between_series_and_seeds():
    noise = [
        (
            synthetic_returns("noisy", count=2, config=SHORT, seed=s)
            - synthetic_returns("clean", count=2, config=SHORT, seed=s)
        )
        for s in (0, 1)
    ]
    flat = np.concatenate(noise).reshape(4, -1)
    assert np.abs(np.corrcoef(flat) - np.eye(4)).max() < 0.1


def test_returns_are_a_hundredth_of_the_series_between_minus_30_and_80_percent():
    series = np.array([-1e3, -31.0, -29.0, 2.0, 79.0, 81.0, 1e3])
    np.testing.assert_allclose(synthetic_to_returns(series), [-0.3, -0.3, -0.29, 0.02, 0.79, 0.8, 0.8])
    np.testing.assert_allclose(synthetic_to_returns(series[:2], 0.02), [-0.3, -0.29])  # the noise is clipped with them


def test_cached_labels_equal_computed_ones(returns):
    labels = synthetic_oracle("noisy", turnover_l1=(0.5, 2.0), count=3, config=SHORT)
    np.testing.assert_array_equal(labels, oracle_path(returns, [0.5, 2.0]))
    for market, split, seed in (("clean", "evaluation", 0), ("noisy", "train", 0), ("noisy", "evaluation", 1)):
        others = synthetic_returns(market, split, count=3, config=SHORT, seed=seed)
        found = synthetic_oracle(market, split, (0.5, 2.0), count=3, config=SHORT, seed=seed)
        np.testing.assert_array_equal(found, oracle_path(others, [0.5, 2.0]))
    np.testing.assert_array_equal(labels, synthetic_oracle("noisy", turnover_l1=(0.5, 2.0), count=3, config=SHORT))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"returns": np.zeros((2, 90, 3))}, "96 steps"),
        ({"returns": np.zeros(100)}, "returns"),
        ({"returns": np.full((1, 100, 2), np.inf)}, "returns"),
        ({"turnover_l1": [1.0, -0.1]}, "turnover_l1"),
        ({"turnover_l1": []}, "turnover_l1"),
        ({"window": 1}, "window"),
        ({"risk_aversion": np.nan}, "risk_aversion"),
    ],
)
def test_bad_input_is_named(change, name):
    with pytest.raises(InputError, match=name):
        oracle_path(**({"returns": np.zeros((2, 100, 3)), "turnover_l1": 1.0} | change))


def test_a_covariance_that_is_not_finite_is_refused(returns):
    def broken(windows):
        return np.full((len(windows), windows.shape[-1], windows.shape[-1]), np.nan)

    with pytest.raises(InputError, match="covariance: expected finite numbers"):
        oracle_path(returns, 1.0, window=20, covariance=broken)
    with pytest.raises(InputError, match="covariance: expected finite numbers"):
        oracle_path(returns * 1e200, 1.0, window=20)
    with pytest.raises(InputError, match=r"covariance: expected .* found shape"):
        oracle_path(returns, 1.0, window=20, covariance=lambda windows: np.eye(2))


def test_unknown_market_and_split():
    with pytest.raises(InputError, match="market: expected one of clean"):
        synthetic_returns("calm")
    with pytest.raises(InputError, match="split"):
        synthetic_oracle("clean", "test")


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (lambda windows: np.full((1, 3, 3), np.nan), "found NaN or an overflow"),
        (lambda windows: np.full((1, 3, 3), np.inf), "found NaN or an overflow"),
        (lambda windows: 1e308 * np.eye(3)[None], "found NaN or an overflow"),
        (lambda windows: np.eye(3), "found shape"),
        (lambda windows: None, "found dtype"),
        (lambda windows: np.full((1, 3, 3), "a"), "found dtype"),
        (lambda windows: 1j * np.ones((1, 3, 3)), "found dtype"),
        (lambda windows: -np.eye(3)[None], "expected positive semidefinite"),
        (lambda windows: np.triu(np.ones((3, 3)))[None], "expected symmetric"),
        ("empirical", "expected a function"),
    ],
)
def test_a_covariance_that_is_none_is_refused(covariance, message):
    returns = np.random.default_rng(0).normal(0, 0.01, (30, 3))
    with pytest.raises(InputError, match=r"^covariance: expected") as caught:
        oracle_path(returns, 1.0, 10.0, window=20, covariance=covariance)
    assert message in str(caught.value)


def test_overflowing_returns_are_refused():
    returns = np.random.default_rng(0).normal(0, 1e160, (30, 3))
    with pytest.raises(InputError, match="NaN or an overflow"):
        oracle_path(returns, 1.0, window=20)
    with pytest.raises(InputError, match="expected positive semidefinite"):
        mean_variance_step([0.1, 0.2], -np.eye(2), [0.5, 0.5], 1.0)
    with pytest.raises(InputError, match="expected one batch shape"):
        mean_variance_step(np.ones((3, 2)), np.eye(2), np.full((2, 2), 0.5), 1.0)
