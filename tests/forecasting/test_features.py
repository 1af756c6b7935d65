"""The kernel bank against Gaussian process regression, lag regression against ridge, the outlook's symmetries."""

import numpy as np
import pytest
import torch

from time2decide.core.validation import InputError
from time2decide.forecasting.features import LEAST_WINDOW, PENALTIES, lag_forecast, window_features
from time2decide.forecasting.kernel_bank import AHEAD, KernelBank, _random_grams, _split
from time2decide.markets import synthetic_returns
from time2decide.markets.synthetic import LMCConfig, lmc_channel_gram

WINDOW = 32


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    """(8, 96, 5) clean returns."""
    returns = synthetic_returns("clean", "train", count=2, config=LMCConfig(channels=5, length=400), cache=False)
    return np.stack([returns[i, t : t + 96] for i in range(2) for t in (0, 70, 140, 210)])


def test_a_bank_of_one_kernel_is_gaussian_process_regression() -> None:
    bank = KernelBank(WINDOW, members=1, seed=3)
    gram = _random_grams(WINDOW, 1, 3)[0]
    z = np.random.default_rng(0).standard_normal((6, WINDOW)) @ np.linalg.cholesky(gram[:WINDOW, :WINDOW]).T
    z -= z.mean(1, keepdims=True)
    z /= z.std(1, keepdims=True)
    values, vectors = np.linalg.eigh(gram[:WINDOW, :WINDOW])
    floor, high = _split(values[None])
    past = (vectors * np.where(high[0], values, floor[0])) @ vectors.T  # small eigenvalues are made equal
    cross = gram[:WINDOW, WINDOW]
    weights = np.linalg.solve(past, cross)
    amplitude = np.einsum("ni,ni->n", z, np.linalg.solve(past, z.T).T) / WINDOW
    mean, deviation, ahead = bank.forecast(torch.from_numpy(z))
    assert np.allclose(mean, z @ weights, atol=1e-3)
    variance = (gram[WINDOW, WINDOW] - cross @ weights) * amplitude
    assert np.allclose(deviation, np.sqrt(variance), rtol=1e-2)
    later = np.linalg.solve(past, gram[:WINDOW, WINDOW:].mean(1))
    assert gram.shape == (WINDOW + AHEAD, WINDOW + AHEAD)
    assert np.allclose(ahead, z @ later, atol=1e-3)


def test_the_bank_forecasts_its_own_prior_better_than_persistence_and_the_mean() -> None:
    rng = np.random.default_rng(5)
    draws = []
    for _ in range(150):
        gram = lmc_channel_gram(LMCConfig(), WINDOW + 1, rng)
        draws.append(
            np.linalg.cholesky(gram + 1e-8 * np.trace(gram) * np.eye(WINDOW + 1)) @ rng.standard_normal(WINDOW + 1)
        )
    series = np.array(draws)
    mean, scale = series[:, :-1].mean(1), series[:, :-1].std(1)
    z = (series - mean[:, None]) / scale[:, None]
    forecast = KernelBank(WINDOW, 128, 1).forecast(torch.from_numpy(z[:, :-1]))[0].numpy()
    ours, last, average = (np.median(np.abs(z[:, -1] - f)) for f in (forecast, z[:, -2], 0 * z[:, -2]))
    assert ours < 0.7 * last
    assert ours < 0.7 * average


def test_lag_forecast_is_ridge_and_its_errors_are_those_of_leaving_rows_out() -> None:
    rng = np.random.default_rng(1)
    z, lags = rng.standard_normal(40), 4
    rows = np.lib.stride_tricks.sliding_window_view(z, lags)
    X, y = rows[:-1], z[lags:]
    means, errors = [], []
    for penalty in PENALTIES:
        ridge = penalty * len(y) * np.eye(lags)
        means.append(rows[-1] @ np.linalg.solve(X.T @ X + ridge, X.T @ y))
        keep = [np.delete(np.arange(len(y)), i) for i in range(len(y))]
        errors.append([y[i] - X[i] @ np.linalg.solve(X[k].T @ X[k] + ridge, X[k].T @ y[k]) for i, k in enumerate(keep)])
    scores = np.square(errors).mean(1) ** -10.0
    weights = scores / scores.sum()
    result = lag_forecast(torch.from_numpy(z), lags)
    assert np.isclose(result.mean, weights @ means, atol=1e-10)
    assert np.allclose(result.residuals, weights @ np.array(errors), atol=1e-10)


def test_outlook_does_not_depend_on_units_or_on_the_order_of_assets(windows: np.ndarray) -> None:
    order = np.random.default_rng(0).permutation(windows.shape[2])
    plain, moved = window_features(windows), window_features(50.0 * windows[..., order])
    assert torch.allclose(moved.forecasts, plain.forecasts[:, order], atol=1e-4)
    assert torch.allclose(moved.deviations, plain.deviations[:, order], rtol=1e-3, atol=1e-5)
    assert torch.allclose(moved.level, 50 * plain.level[:, order], rtol=1e-5, atol=1e-7)
    assert torch.allclose(moved.innovation, plain.innovation[:, order][:, :, order], atol=1e-4)


def test_outlook_of_a_motionless_asset_is_that_it_stays(windows: np.ndarray) -> None:
    still = windows.copy()
    still[..., 0] = 0.001
    o = window_features(still)
    assert all(torch.isfinite(getattr(o, name)).all() for name in ("forecasts", "deviations", "innovation", "scale"))
    assert torch.allclose(o.forecasts[:, 0], torch.zeros(len(still), 2), atol=1e-6)


def test_a_window_that_is_too_short_is_refused() -> None:
    with pytest.raises(InputError, match=f"at least {LEAST_WINDOW} steps"):
        window_features(np.zeros((1, LEAST_WINDOW - 1, 3)))


def test_a_bank_made_in_inference_mode_can_be_differentiated_through() -> None:
    with torch.inference_mode():
        bank = KernelBank(WINDOW, members=2, seed=5)
    z = torch.randn(3, WINDOW, generator=torch.Generator().manual_seed(0), requires_grad=True)
    bank.forecast(z)[0].sum().backward()
    assert z.grad is not None
    assert z.grad.abs().max() > 0
