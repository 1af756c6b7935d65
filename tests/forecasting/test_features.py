"""The kernel bank against Gaussian process regression, lag regression against ridge."""

import numpy as np
import torch

from time2decide.forecasting.features import PENALTIES, lag_forecast
from time2decide.forecasting.kernel_bank import AHEAD, KernelBank, _random_grams, _split
from time2decide.markets.synthetic import LMCConfig, lmc_channel_gram

WINDOW = 32


def test_a_bank_of_one_kernel_is_gaussian_process_regression() -> None:
    bank = KernelBank(WINDOW, members=1, seed=3)
    gram = _random_grams(WINDOW, 1, 3, AHEAD)[0]
    z = np.random.default_rng(0).standard_normal((6, WINDOW)) @ np.linalg.cholesky(gram[:WINDOW, :WINDOW]).T
    z -= z.mean(1, keepdims=True)
    z /= z.std(1, keepdims=True)
    values, vectors = np.linalg.eigh(gram[:WINDOW, :WINDOW])
    floor, high = _split(values[None])
    past = (vectors * np.where(high[0], values, floor[0])) @ vectors.T  # small eigenvalues are made equal
    cross = gram[:WINDOW, WINDOW]
    weights = np.linalg.solve(past, cross)
    mean, ahead = bank.means(torch.from_numpy(z), [(0, 1), (0, AHEAD)]).T
    assert np.allclose(mean, z @ weights, atol=1e-3)
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
    forecast = KernelBank(WINDOW, 128, 1).means(torch.from_numpy(z[:, :-1]), [(0, 1)])[:, 0].numpy()
    ours, last, average = (np.median(np.abs(z[:, -1] - f)) for f in (forecast, z[:, -2], 0 * z[:, -2]))
    assert ours < 0.7 * last
    assert ours < 0.7 * average


def test_lag_forecast_is_ridge_weighted_by_the_errors_of_leaving_rows_out() -> None:
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
    assert np.isclose(lag_forecast(torch.from_numpy(z), lags), weights @ means, atol=1e-10)


def test_a_bank_made_in_inference_mode_can_be_differentiated_through() -> None:
    with torch.inference_mode():
        bank = KernelBank(WINDOW, members=2, seed=5)
    z = torch.randn(3, WINDOW, generator=torch.Generator().manual_seed(0), requires_grad=True)
    bank.means(z, [(0, 1)]).sum().backward()
    assert z.grad is not None
    assert z.grad.abs().max() > 0
