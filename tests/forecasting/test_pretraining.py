"""Pretraining: deterministic, resumable to the bit, its corruptions as said, its schedule torch's."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from time2decide.cli.app import app
from time2decide.core import training
from time2decide.core.validation import InputError
from time2decide.forecasting import PRESETS, TimePFN, TimePFNForecaster, pretrain
from time2decide.forecasting.pretraining import Pool, corrupt_windows, forecast_loss
from time2decide.markets.synthetic import LMCConfig, lmc_series

SMOKE = PRESETS["smoke"]


class KilledError(Exception):
    pass


def test_a_killed_run_ends_with_the_same_bits(tmp_path, monkeypatch):
    def kill(done, total, loss):
        if done == 3:
            raise KilledError

    whole = pretrain(SMOKE, tmp_path / "whole")
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    with pytest.raises(KilledError):
        pretrain(SMOKE, tmp_path / "parts", report=kill)
    parts = pretrain(SMOKE, tmp_path / "parts")
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, parts.state_dict()[name]), name
    loaded = TimePFN.from_pretrained(tmp_path / "parts")
    assert torch.equal(loaded.norm.weight, whole.norm.weight)
    with pytest.raises(InputError, match="same config"):
        pretrain(replace(SMOKE, lr=1e-3), tmp_path / "parts")


def test_averaged_weights_are_kept_where_the_recipe_says_so(tmp_path):
    """A decay near 1 follows the last weights only slowly; the medium preset has such an average."""
    last, mean = (pretrain(replace(SMOKE, averaging=a), tmp_path / str(a)) for a in (None, 0.999))
    start = TimePFN.from_pretrained(pretrain_nothing(tmp_path))
    moved = [(one.norm.bias - start.norm.bias).abs().max() for one in (mean, last)]
    assert 0 < moved[0] < moved[1]
    assert PRESETS["medium"].averaging is not None
    made = json.loads((TimePFN.BUNDLED["medium"] / "config.json").read_text())["notes"]["recipe"]
    assert made == json.loads(json.dumps(asdict(PRESETS["medium"])))
    assert 0.8e6 < sum(weight.numel() for weight in TimePFN(PRESETS["medium"].model).parameters()) < 1.5e6


def pretrain_nothing(folder):
    """The weights that a run starts from: one step at a rate of almost nothing."""
    pretrain(replace(SMOKE, steps=1, lr=1e-30), folder / "nothing")
    return folder / "nothing"


def test_the_windows_of_a_step_depend_on_the_step_alone():
    fresh, worn = Pool(SMOKE), Pool(SMOKE)
    for step in range(5):
        last = worn.batch(step)
    assert torch.equal(fresh.batch(4).window, last.window)
    assert len(worn.series) == SMOKE.pool
    assert not torch.equal(fresh.batch(5).window, last.window)


def test_corruptions():
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((400, 192, 3))
    clean = replace(SMOKE, multiplicative_share=0.0, rescaled_share=0.0, noisy_share=0.0)
    window, target, _ = corrupt_windows(drawn, 96, clean, rng)
    np.testing.assert_array_equal(np.concatenate([window, target], axis=1), drawn)
    noisy = replace(clean, noisy_share=1.0)
    window, target, _ = corrupt_windows(drawn, 96, noisy, rng)
    np.testing.assert_array_equal(target, drawn[:, 96:])
    added = (window - drawn[:, :96]).std(axis=(1, 2))
    assert added.min() > 0.05
    assert added.max() < 6
    scaled = replace(clean, rescaled_share=1.0)
    window, _, deviation = corrupt_windows(drawn, 96, scaled, rng)
    assert window.std(axis=(1, 2)).min() < 0.01 < deviation.max()
    multiplied = replace(clean, multiplicative_share=1.0)
    window, _, _ = corrupt_windows(drawn, 96, multiplied, rng)
    assert (window / drawn[:, :96]).std() == pytest.approx(0.1, rel=0.02)


def test_training_lowers_the_loss(tmp_path):
    config = replace(SMOKE, steps=60, batch=8, lr=1e-2, noisy_share=0.0, pool=4, seed=2)
    batch = Pool(config).batch(30)
    before = forecast_loss(TimePFN(config.model).eval(), batch, config).item()
    after = forecast_loss(pretrain(config, tmp_path), batch, config).item()
    assert after < 0.8 * before


def test_the_command_trains_and_says_where(tmp_path):
    out = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", "timepfn", "--preset", "smoke", "--out", str(out), "--json"])
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert facts["notes"]["preset"] == "smoke"
    assert TimePFN.from_pretrained(out).config == SMOKE.model
    wrong = CliRunner().invoke(app, ["train", "timepfn", "--preset", "big", "--out", str(out)])
    assert isinstance(wrong.exception, InputError)


@pytest.mark.parametrize(("name", "preset"), [("small", "cpu"), ("medium", "medium")])
def test_bundled_checkpoints_forecast(name, preset):
    """Below persistence and the mean of the window, one step ahead, on noisy series they have not seen."""
    model = TimePFN.from_pretrained(name)
    assert model.config == PRESETS[preset].model
    series = np.stack([lmc_series(LMCConfig(), 12345, number) for number in range(4)])
    returns = 0.01 * series + 0.0065 * np.random.default_rng(0).standard_normal(series.shape)
    drawn = np.concatenate([returns[:, s : s + 97] for s in range(0, 900, 30)])
    window, target = drawn[:, :96], drawn[:, 96]
    error = ((TimePFNForecaster(model)(window) - target) ** 2).mean()
    assert error < 0.8 * ((window[:, -1] - target) ** 2).mean()
    assert error < 0.8 * ((window.mean(axis=1) - target) ** 2).mean()


@pytest.mark.parametrize(("field", "value"), [("steps", 0), ("positions", 2), ("noisy_share", 1.5)])
def test_bad_recipes_are_named(field, value):
    with pytest.raises(InputError, match=field):
        replace(SMOKE, **{field: value})
