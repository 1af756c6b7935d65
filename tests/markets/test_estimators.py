"""Covariance estimators that are carried forward: references, gaps, definiteness, bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from time2decide.core.validation import InputError
from time2decide.markets import estimators
from time2decide.markets.estimators import (
    EWMA,
    CombinedIEWMA,
    IteratedEWMA,
    OnlineCovariance,
    RollingQIS,
    mixture_weights,
    precision_factor,
    qis,
    two_scale,
)

ESTIMATORS = {
    "ewma": lambda: EWMA(30),
    "iewma": lambda: IteratedEWMA(20, 40),
    "iewma-qis": lambda: IteratedEWMA(20, 40, quadratic=True),
    "two-scale": two_scale,
    "cm-iewma": lambda: CombinedIEWMA(((10, 21), (21, 63))),
    "qis": lambda: RollingQIS(100),
}


def market(steps=300, m=5, seed=0):
    """One factor, unlike volatilities."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(steps, 1)) + rng.normal(size=(steps, m))) * np.linspace(0.005, 0.02, m)


@pytest.fixture(params=ESTIMATORS, ids=list(ESTIMATORS))
def make(request):
    return ESTIMATORS[request.param]


def test_rows_one_by_one_give_the_same_as_all_at_once(make):
    returns = market()
    whole, carried = make().update(returns), make()
    for row in returns:
        carried.update(row)
    np.testing.assert_allclose(carried.covariance(), whole.covariance(), rtol=1e-9)


def test_the_order_of_assets_does_not_matter(make):
    returns, order = market(), np.array([3, 0, 4, 1, 2])
    there, here = make().update(returns[:, order]).covariance(), make().update(returns).covariance()
    tolerance = 0.05 if isinstance(make(), CombinedIEWMA) else 1e-9  # Cholesky factors know the order
    np.testing.assert_allclose(there, here[np.ix_(order, order)], rtol=tolerance, atol=tolerance * here.max())


def test_it_follows_the_unit_of_returns(make):
    small, large = make().update(market()).covariance(), make().update(100 * market()).covariance()
    np.testing.assert_allclose(large, 1e4 * small, rtol=1e-7)


def test_it_finds_the_covariance_of_a_still_market(make):
    returns = market(steps=4000)
    truth = np.outer(*(2 * [np.linspace(0.005, 0.02, 5)])) * (1 + np.eye(5))
    error = np.abs(make().update(returns).covariance() - truth).max() / truth.max()
    assert error < 0.6  # short half-lives are noisy; a wrong scale or a lost correlation is far beyond


def test_gaps_touch_only_the_pairs_of_the_asset(make):
    """Late listing, a missed day and a delisting of the last asset; the others are as if it were not there."""
    returns = market(m=4)
    returns[:150, 3], returns[200, 3], returns[290:, 3] = np.nan, np.nan, np.nan
    covariance = make().update(returns).covariance()
    assert np.isfinite(covariance).all()
    assert np.linalg.eigvalsh(covariance).min() > 0
    if type(make()) is EWMA or (isinstance(make(), IteratedEWMA) and make().shrinkage == 0 and not make().quadratic):
        alone = make().update(returns[:, :3]).covariance()
        np.testing.assert_allclose(covariance[:3, :3], alone, rtol=1e-9)


def test_an_asset_without_enough_observations_is_hidden_and_changes_nothing(make):
    returns = market()
    returns[:-62, 1] = np.nan
    covariance = make().update(returns).covariance()
    assert np.isnan(covariance[1]).all()
    assert np.isnan(covariance[:, 1]).all()
    others = [0, 2, 3, 4]
    alone = make().update(returns[:, others]).covariance()
    np.testing.assert_allclose(covariance[np.ix_(others, others)], alone, rtol=1e-9)
    returns = np.concatenate([returns, market(steps=1, seed=1)])
    assert np.isfinite(make().update(returns).covariance()).all()  # 63 observations are enough


def test_forgotten_assets_start_anew(make):
    returns = market()
    estimator = make().update(returns)
    estimator.forget(np.arange(5) == 2)
    assert np.isnan(estimator.covariance()[2]).all()
    later = market(steps=70, seed=5)  # fewer than any window
    estimator.update(later)
    assert np.isfinite(estimator.covariance()).all()
    returns[:, 2] = np.nan  # as if it had not been there
    np.testing.assert_allclose(estimator.covariance(), make().update(returns).update(later).covariance(), rtol=1e-9)


@given(st.integers(0, 10_000), st.floats(0.05, 0.5))
@settings(max_examples=25, deadline=None)
def test_whatever_is_missing_the_matrix_is_definite(seed, share):
    rng = np.random.default_rng(seed)
    returns = market(steps=200, m=6, seed=seed)
    returns[rng.random(returns.shape) < share] = np.nan
    for make_one in ESTIMATORS.values():
        covariance = make_one().update(returns).covariance()
        known = np.isfinite(np.diag(covariance))
        block = covariance[np.ix_(known, known)]
        assert np.isfinite(block).all()
        assert np.linalg.eigvalsh(block).min() > 0


def test_ewma_equals_skfolio():
    from skfolio.moments import EWCovariance

    returns = market()
    theirs = EWCovariance(half_life=30, nearest=False).fit(returns).covariance_
    np.testing.assert_allclose(EWMA(30).update(returns).covariance(), theirs, rtol=1e-10)


def test_iterated_ewma_equals_its_formula():
    returns, b, g = market(), 0.5 ** (1 / 20), 0.5 ** (1 / 40)
    pairs, weight = np.zeros((5, 5)), 0.0
    for t in range(20, 300):
        powers = b ** np.arange(t - 1, -1, -1.0)
        deviation = np.sqrt((powers[:, None] * returns[:t] ** 2).sum(0) / powers.sum())
        z = np.clip(returns[t] / deviation, -4.2, 4.2)
        pairs, weight = g * pairs + np.outer(z, z), g * weight + 1
    powers = b ** np.arange(299, -1, -1.0)
    deviation = np.sqrt((powers[:, None] * returns**2).sum(0) / powers.sum())
    root = np.sqrt(np.diag(pairs))
    expected = pairs / np.outer(root, root) * np.outer(deviation, deviation)
    np.testing.assert_allclose(IteratedEWMA(20, 40).update(returns).covariance(), expected, rtol=1e-9)


@pytest.mark.parametrize(("m", "n"), [(8, 60), (40, 60), (60, 40)])
def test_qis_equals_its_formula_written_with_loops(m, n):
    rng = np.random.default_rng(0)
    returns = rng.normal(size=(n + 1, m)) * np.linspace(1, 3, m)
    sample = np.cov(returns.T)
    values, vectors = np.linalg.eigh(sample)
    c, tail = m / n, values[max(0, m - n) :]
    h = min(c**2, 1 / c**2) ** 0.35 / m**0.35
    delta = []
    for x in 1 / tail:
        theta = np.mean([y * (y - x) / ((y - x) ** 2 + h**2 * y**2) for y in 1 / tail])
        eta = np.mean([y * h * y / ((y - x) ** 2 + h**2 * y**2) for y in 1 / tail])
        if c <= 1:
            delta.append(1 / ((1 - c) ** 2 * x + 2 * c * (1 - c) * x * theta + c**2 * x * (theta**2 + eta**2)))
        else:
            delta.append(1 / (x * (theta**2 + eta**2)))
    delta = [1 / ((c - 1) * np.mean(1 / tail))] * max(0, m - n) + delta
    delta = np.array(delta) * values.sum() / np.sum(delta)
    np.testing.assert_allclose(qis(sample, n), (vectors * delta) @ vectors.T, rtol=1e-7, atol=1e-9)


def test_qis_is_nearer_to_the_truth_than_the_sample():
    rng = np.random.default_rng(1)
    truth = np.diag(np.linspace(1, 4, 50))
    errors = []
    for _ in range(5):
        sample = np.cov(rng.multivariate_normal(np.zeros(50), truth, size=81).T)
        errors.append([np.linalg.norm(one - truth) for one in (sample, qis(sample, 80))])
    assert np.mean(errors, axis=0)[1] < 0.5 * np.mean(errors, axis=0)[0]


def test_precision_factor():
    covariance = np.cov(market().T)
    factor = precision_factor(covariance)
    assert (np.triu(factor, 1) == 0).all()
    assert (np.diag(factor) > 0).all()
    np.testing.assert_allclose(factor @ factor.T @ covariance, np.eye(5), atol=1e-8)


def test_mixture_weights_equal_cvxpy():
    import cvxpy as cp

    rng = np.random.default_rng(3)
    for _ in range(5):
        diagonals = rng.uniform(0.5, 2, (120, 4)) * rng.uniform(0.5, 2, 4)
        residuals = rng.normal(size=(120, 4)) + 2 * rng.normal(size=(120, 1))
        weights = cp.Variable(4)
        value = cp.sum(cp.log(diagonals @ weights)) - 0.5 * cp.sum_squares(residuals @ weights)
        cp.Problem(cp.Maximize(value), [weights >= 0, cp.sum(weights) == 1]).solve(solver=cp.CLARABEL)
        ours = mixture_weights(diagonals, residuals.T @ residuals)
        np.testing.assert_allclose(ours, weights.value, atol=1e-5)


def test_the_mixture_goes_with_the_expert_that_fits():
    """Volatility jumps fourfold: the fast expert is right a few days later."""
    returns = market(steps=400)
    returns[380:] *= 4
    estimator = CombinedIEWMA(((5, 200), (250, 200))).update(returns[:380])
    estimator.update(returns[380:])
    assert estimator.weights()[0] > 0.9


def test_a_pair_never_seen_together_has_the_mean_correlation_of_the_others():
    returns = market(steps=400, m=4)
    returns[:200, 0], returns[200:, 1] = np.nan, np.nan
    found = EWMA(1000.0).update(returns).covariance()
    volatility = np.sqrt(found.diagonal())
    correlation = found / np.outer(volatility, volatility)
    others = correlation[np.triu_indices(4, 1)][1:]  # all but that of the first two
    assert correlation[0, 1] == pytest.approx(others.mean(), rel=1e-12)
    assert 0.2 < correlation[0, 1] < 0.8


def test_fast_experts_are_of_use_with_more_assets_than_steps():
    """Half-lives of a few days know ten steps, and forty assets need a matrix that can be inverted all the same."""
    estimate = CombinedIEWMA(((3, 4), (4, 5))).update(market(steps=120, m=40)).covariance()
    values = np.linalg.eigvalsh(estimate)
    truth = np.cov(market(steps=4000, m=40), rowvar=False)
    assert values[0] > 0.05 * np.linalg.eigvalsh(truth)[0]
    assert values[-1] < 20 * np.linalg.eigvalsh(truth)[-1]


def test_bad_input():
    with pytest.raises(InputError, match="half_life"):
        EWMA(-1)
    with pytest.raises(InputError, match="shrinkage"):
        IteratedEWMA(shrinkage=1.5)
    with pytest.raises(InputError, match="finite"):
        EWMA().update(np.array([[0.1, np.inf]]))
    with pytest.raises(InputError, match="2 assets"):
        EWMA().update(np.zeros((3, 2))).update(np.zeros((3, 4)))
    with pytest.raises(InputError, match="update"):
        EWMA().covariance()


def test_a_learned_estimator_needs_four_functions():
    class Diagonal(OnlineCovariance):
        def _start(self, m):
            self.total = np.zeros(m)

        def _update(self, rows):
            self.total += np.nansum(rows**2, axis=0)

        def _estimate(self, assets):
            return np.diag(self.total[assets] / self.observations[assets])

        def _forget(self, assets):
            self.total[assets] = 0

    returns = market()
    returns[:250, 0] = np.nan
    covariance = Diagonal().update(returns).covariance()
    assert np.isnan(covariance[0]).all()
    np.testing.assert_allclose(np.diag(covariance)[1:], (returns[:, 1:] ** 2).mean(0))


def test_only_what_is_not_definite_is_repaired():
    good = np.array([[1.0, 0.9, 0.8], [0.9, 1.0, 0.9], [0.8, 0.9, 1.0]])
    assert estimators.definite_correlation(good) is good
    for bad in (np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]]), np.ones((3, 3))):
        repaired = estimators.definite_correlation(bad)
        np.testing.assert_array_equal(np.diag(repaired), 1.0)
        np.testing.assert_allclose(repaired, repaired.T, atol=1e-15)
        assert np.linalg.eigvalsh(repaired)[0] > 1e-6
    np.testing.assert_allclose(estimators.definite_correlation(np.ones((3, 3))), 1.0, atol=1e-5)


@pytest.mark.parametrize("missing", [0.05, 0.4])
def test_with_gaps_the_rolling_sample_is_pairwise_and_made_definite(missing):
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((12, 5)) @ rng.standard_normal((5, 5))
    rows[rng.random(rows.shape) < missing] = np.nan
    sample, counts = np.empty((5, 5)), np.empty((5, 5))
    mean = np.nanmean(rows, axis=0)
    for i in range(5):
        for j in range(5):
            both = np.isfinite(rows[:, i]) & np.isfinite(rows[:, j])
            products = (rows[both, i] - mean[i]) * (rows[both, j] - mean[j])
            counts[i, j], sample[i, j] = both.sum(), products.sum() / (both.sum() - 1)
    deviation = np.sqrt(np.diag(sample))
    correlation = np.clip(sample / np.outer(deviation, deviation), -1, 1)
    assert (np.linalg.eigvalsh(correlation)[0] < 0) == (missing > 0.1)  # many gaps leave no covariance
    definite = estimators.definite_correlation(correlation) * np.outer(deviation, deviation)
    found = RollingQIS(12, least=3).update(rows).covariance()
    np.testing.assert_allclose(found, qis(definite, counts.mean() - 1), rtol=1e-10)
    assert np.linalg.eigvalsh(found)[0] > 0


def test_a_window_is_that_of_its_last_rows():
    rows = np.random.default_rng(5).standard_normal((30, 3))
    whole = RollingQIS(10, least=1).update(rows).covariance()
    np.testing.assert_allclose(whole, RollingQIS(10, least=1).update(rows[-10:]).covariance(), rtol=1e-12)
    by_steps = RollingQIS(10, least=1)
    for row in rows:
        by_steps.update(row)
    np.testing.assert_allclose(by_steps.covariance(), whole, rtol=1e-12)
    assert RollingQIS(3).window == 3
    with pytest.raises(InputError, match="window: expected a whole number of at least 3"):
        RollingQIS(2)


def test_fewer_than_two_observations_count_as_two():
    sample = np.diag([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(qis(sample, 1.0), qis(sample, 2.0))
    assert not np.allclose(qis(sample, 2.0), qis(sample, 3.0))


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_the_mixture_is_the_best_on_the_simplex(spread):
    """Experts of very different scale, some alike, some of no use: the conditions of the maximum hold."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        diagonals = np.exp(spread * rng.normal(size=(30, 4)))
        residuals = rng.normal(size=(30, 4)) * np.exp(spread * rng.normal(size=4))
        diagonals[:, 3] = diagonals[:, 2]
        weights = mixture_weights(diagonals, residuals.T @ residuals)
        assert weights.sum() == pytest.approx(1, abs=1e-12)
        assert (weights >= 0).all()
        slope = (diagonals / (diagonals @ weights)[:, None]).sum(0) - residuals.T @ (residuals @ weights)
        assert slope.max() - slope @ weights < 1e-6 * 30, seed


def test_what_is_not_given_is_what_the_documentation_says():
    """And each of these numbers matters."""
    returns = market(steps=700)
    returns[20::45] *= 6  # cut off
    pairs = ((10, 21), (21, 63), (63, 125), (125, 250), (250, 500))
    for default, stated, others in (
        (EWMA(), EWMA(63.0), (EWMA(64.0),)),
        (
            IteratedEWMA(),
            IteratedEWMA(63.0, 125.0, clip=4.2, shrinkage=0.0, quadratic=False),
            (IteratedEWMA(64.0), IteratedEWMA(63.0, 126.0), IteratedEWMA(shrinkage=0.1), IteratedEWMA(clip=5.2)),
        ),
        (
            CombinedIEWMA(),
            CombinedIEWMA(pairs, clip=4.2, memory=10),
            (CombinedIEWMA(clip=5.2), CombinedIEWMA(memory=11)),
        ),
        (RollingQIS(), RollingQIS(504), (RollingQIS(505),)),
    ):
        found = default.update(returns).covariance()
        np.testing.assert_array_equal(found, stated.update(returns).covariance())
        assert default.least == stated.least == estimators.LEAST_OBSERVATIONS == 63
        for other in others:
            assert np.abs(other.update(returns).covariance() - found).max() > 0
    np.testing.assert_array_equal(CombinedIEWMA().pairs, pairs)


@pytest.mark.parametrize("half_life", [3.0, 40.0])
def test_exponential_weights_are_worth_as_many_steps_as_equal_ones_of_the_same_noise(half_life):
    """(Σ w)² / Σ w² of the weights so far, and two at least."""
    pairs, rows = estimators._PairAverage(half_life, 2), np.ones((30, 2))
    for count in (1, 5, 30):
        pairs = estimators._PairAverage(half_life, 2)
        pairs.update(rows[:count])
        weights = 0.5 ** (np.arange(count) / half_life)
        expected = max(weights.sum() ** 2 / (weights**2).sum(), 2.0)
        assert pairs.effective_steps() == pytest.approx(expected, rel=1e-12)
