import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

from time2decide.core.validation import InputError
from time2decide.markets import synthetic
from time2decide.markets.synthetic import (
    LINEAR_OFFSETS,
    MIXTURES,
    NOISE_LEVELS,
    PERIODS,
    SMOOTH_SCALES,
    LMCConfig,
    LMCTerm,
    _gram,
    draw_lmc_process,
    lmc_kernels,
    lmc_series,
    lmc_set,
)

SMALL = LMCConfig(channels=5, length=60)


def test_kernels_equal_those_of_scikit_learn():
    length = 200
    grid = np.linspace(0, 1, length)[:, None]
    theirs = [
        *(sk.ExpSineSquared(periodicity=p / length) for p in PERIODS),
        *(sk.DotProduct(sigma_0=s) for s in LINEAR_OFFSETS),
        *(sk.RBF(length_scale=s) for s in SMOOTH_SCALES),
        *(sk.RationalQuadratic(alpha=a) for a in MIXTURES),
        *(sk.WhiteKernel(noise_level=v) for v in NOISE_LEVELS),
        sk.ConstantKernel(),
    ]
    bank = lmc_kernels(length)
    assert len(bank) == len(theirs) == 33
    for ours, kernel in zip(bank, theirs, strict=True):
        expected = kernel(grid)
        gram = np.diag(ours.variance) if ours.white else ours.factor @ ours.factor.T
        np.testing.assert_allclose(gram, expected, atol=1e-10 * expected.max())


def test_smooth_kernels_have_small_factors():
    assert max(kernel.factor.shape[1] for kernel in lmc_kernels(1024)) <= 40


@pytest.mark.parametrize(
    "choice",
    [
        [(0, False), (22, True)],  # periodic × linear
        [(24, False), (6, False), (23, True)],  # (Gaussian + periodic) × linear
        [(27, False), (1, True), (30, True)],  # (rational quadratic × periodic) × white
        [(31, False), (25, True), (32, False)],  # white × Gaussian + constant
        [(2, False), (7, True), (9, True), (26, True)],  # a product of four
        [(30, False), (3, False), (24, True), (21, False)],  # (white + periodic) × Gaussian + linear
    ],
)
def test_draws_have_the_folded_covariance(choice):
    bank, rng, count = lmc_kernels(32), np.random.default_rng(0), 6000
    fold = tuple(LMCTerm(bank[k], product) for k, product in choice)
    sample = np.stack([draw_lmc_process(fold, rng) for _ in range(count)], axis=1)
    gram = _gram(fold)
    spread = np.sqrt((np.outer(gram.diagonal(), gram.diagonal()) + gram**2) / count)
    assert (np.abs(sample @ sample.T / count - gram) < 5.5 * spread + 1e-12).all()


def test_a_series_depends_on_seed_and_number_only():
    whole = lmc_set(6, SMALL, seed=3, cache=False)
    np.testing.assert_array_equal(whole[4], lmc_series(SMALL, 3, 4))
    np.testing.assert_array_equal(whole[2:5], lmc_set(3, SMALL, seed=3, first=2, cache=False))
    assert not np.allclose(whole[0], lmc_series(SMALL, 4, 0))


@pytest.mark.slow
def test_the_number_of_processes_does_not_matter():
    alone = lmc_set(5, SMALL, seed=3, workers=1, cache=False)
    np.testing.assert_array_equal(alone, lmc_set(5, SMALL, seed=3, workers=2, cache=False))


def test_the_cache_returns_what_was_made_and_survives_damage(tmp_path, monkeypatch):
    monkeypatch.setenv("TIME2DECIDE_CACHE", str(tmp_path / "new"))
    first = lmc_set(2, SMALL)
    (file,) = (tmp_path / "new").iterdir()
    np.testing.assert_array_equal(lmc_set(2, SMALL), first)
    file.write_bytes(b"torn")
    np.testing.assert_array_equal(lmc_set(2, SMALL), first)
    assert list((tmp_path / "new").iterdir()) == [file]


def test_a_cache_that_cannot_be_written_costs_only_speed(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("TIME2DECIDE_CACHE", str(tmp_path / "file"))
    assert lmc_set(1, SMALL).shape == (1, 60, 5)


def test_channels_are_convex_mixtures_of_fewer_or_equal_processes():
    series = lmc_series(LMCConfig(channels=60, length=80, weibull_scale=3.0), 0, 0)
    assert series.shape == (80, 60)
    assert np.linalg.matrix_rank(series, tol=1e-9 * np.abs(series).max()) <= 10


def test_processes_fold_one_to_five_kernels_by_sums_and_products_alike(monkeypatch):
    folds = []
    monkeypatch.setattr(synthetic, "draw_lmc_process", lambda fold, rng: folds.append(fold) or np.zeros(60))
    for index in range(600):
        lmc_series(SMALL, 0, index)
    sizes = np.bincount([len(fold) for fold in folds], minlength=6)[1:]
    assert len(sizes) == 5
    np.testing.assert_allclose(sizes / len(folds), 1 / 5, atol=0.03)
    later = [term.product for fold in folds for term in fold[1:]]  # the first kernel has nothing to combine with
    assert np.mean(later) == pytest.approx(1 / 2, abs=0.03)
    bank = [id(kernel.variance) for kernel in lmc_kernels(60)]
    assert {id(term.kernel.variance) for fold in folds for term in fold} == set(bank)


def test_the_covariance_of_a_channel_is_that_of_its_mixture(monkeypatch):
    """Four processes of variance 1, weighed equally: X = Σ f_j / 4 has the variance 4 / 16."""
    constant = lmc_kernels(50)[-1]
    monkeypatch.setattr(synthetic, "lmc_kernels", lambda length: (constant,))
    equal = LMCConfig(channels=4, length=50, most_kernels=1, dirichlet_min=1e8, dirichlet_max=1e8)
    gram = synthetic.lmc_channel_gram(equal, 10, np.random.default_rng(0))
    np.testing.assert_allclose(gram, np.full((10, 10), 1 / 4), rtol=1e-2)
    values = [lmc_series(equal, 0, index)[0, 0] for index in range(400)]
    assert np.var(values) == pytest.approx(1 / 4, rel=0.2)


def test_the_concentration_of_the_mixing_weights_is_uniform_over_series(monkeypatch):
    """With unit vectors as latent processes a series shows its weights, and Σ w² of a channel tells its α."""
    config = LMCConfig(channels=64, length=64)
    found = []
    for index in range(80):
        units = iter(np.eye(64))
        monkeypatch.setattr(synthetic, "draw_lmc_process", lambda fold, rng, units=units: next(units))
        weights = lmc_series(config, 0, index).T  # (channels, latent processes)
        np.testing.assert_allclose(weights.sum(1), 1)
        square = (weights**2).sum(1).mean()  # (1 + α) / (1 + 64α) in expectation
        found.append((1 - square) / (64 * square - 1))
    low, high = config.dirichlet_min, config.dirichlet_max
    assert np.mean(found) == pytest.approx((low + high) / 2, abs=0.08)
    assert np.std(found) == pytest.approx((high - low) / 12**0.5, abs=0.05)


@pytest.mark.parametrize(
    ("field", "value"), [("channels", 0), ("length", 1), ("dirichlet_min", -1.0), ("dirichlet_min", 0.9)]
)
def test_bad_parameters_are_named(field, value):
    with pytest.raises(InputError, match=field):
        LMCConfig(**{field: value})
