"""The parity barrier as algebra, to float precision, and the experiment on it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from time2decide.core.validation import InputError
from time2decide.experiments import get_experiment, reproduce
from time2decide.experiments.theory import CLEAN, ODD
from time2decide.theory import ParityConfig, ParityTransformer, covariance_series

PURE = ParityConfig(norm=False, bias=False, feed_forward=False)


def sums(config, seed=0, count=8):
    """|f(X) + f(−X)| relative to |f(X)|, in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = ParityTransformer(config, generator).double()
    with torch.no_grad():
        for weight in model.parameters():  # biases and norms start at 0 and 1: any weights must do
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
        series = torch.randn(count, 20, config.variables, generator=generator, dtype=torch.float64)
        there, back = model(series), model(-series)
    return ((there + back).abs().max() / there.abs().max()).item()


@given(st.integers(0, 1000), st.integers(1, 4), st.sampled_from([1, 2, 4]), st.booleans(), st.booleans())
def test_pure_linear_attention_is_odd(seed, layers, heads, projection, norm):
    config = replace(PURE, layers=layers, heads=heads, projection=projection, norm=norm)
    assert sums(config, seed) < 1e-12


@pytest.mark.parametrize(
    "change", [{"constant": True}, {"covariance": True}, {"bias": True}, {"feed_forward": True}], ids=str
)
def test_one_addition_breaks_the_symmetry(change):
    assert sums(replace(PURE, **change)) > 1e-3


def test_covariance_tokens_alone_can_carry_the_answer():
    """Without data tokens' help: the read-out of the row tokens is even, so that f(X) + f(−X) = 2·f_even(X)."""
    config = replace(PURE, covariance=True, layers=1)
    model = ParityTransformer(config, torch.Generator().manual_seed(0)).double()
    series = torch.randn(4, 20, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        for layer in model.layers:
            layer.out.weight.zero_()
        model.embedding.weight.zero_()
        assert torch.allclose(model(series), model(-series), atol=1e-14)
        assert model(series).abs().max() > 0


def test_series_and_covariances():
    series, truth = covariance_series(6, 50, 4, np.random.default_rng(0))
    assert series.shape == (6, 50, 4)
    expected = np.stack([np.cov(x.T, bias=True) for x in series.double().numpy()]).reshape(6, 16)
    assert np.allclose(truth.numpy(), expected, atol=1e-5)
    again, _ = covariance_series(6, 50, 4, np.random.default_rng(0))
    assert torch.equal(series, again)


def test_bad_input_is_named():
    with pytest.raises(InputError, match="heads: expected a divisor"):
        ParityConfig(heads=3)
    with pytest.raises(InputError, match="width: expected at least 5"):
        ParityConfig(width=4, projection=False, constant=True)
    with pytest.raises(InputError, match="series: expected shape"):
        ParityTransformer(PURE)(torch.zeros(2, 5, 3))


def test_smoke_run_and_table(tmp_path):
    experiment = get_experiment("parity")
    rows = reproduce(experiment, "smoke", root=tmp_path)
    assert not [row["error"] for row in rows if row["error"]]
    assert {row["arm"] for row in rows if row["oddness"] < 1e-4} == set(ODD)
    text = "\n".join(table.text() for table in experiment.tables(rows))
    assert "0.9935" in text
    assert all(arm in text for arm in CLEAN)
