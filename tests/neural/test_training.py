"""The training loop: converges, is deterministic, restores the best weights, survives being killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from time2decide.core import training as core_training
from time2decide.core.checkpoints import load_tensors
from time2decide.core.validation import InputError
from time2decide.neural import TrainingConfig, build, labelled_qps, predict, r2_score, train
from time2decide.neural.training import FreshQPs

FAST = TrainingConfig(epochs=3, batch=32, lr=3e-3, schedule="cosine", clip_norm=1.0)
# Everything that makes resuming hard: dropout, rotations, the plateau schedule, a last batch that is not full.
HARD = TrainingConfig(epochs=6, batch=30, lr=1e-2, patience=0, rotate=True, clip_norm=0.5)


def pairs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    data = labelled_qps(count, 3, 2, seed=seed, cache=False)
    return data.tokens(), data.x


def small(dropout: float = 0.1) -> nn.Module:
    return build("LinearTransformer", 3, 2, d_model=8, layers=2, heads=2, dropout=dropout)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def test_learns_to_solve() -> None:
    easy = [labelled_qps(count, 2, 1, seed=seed, cache=False) for count, seed in ((3000, 1), (500, 2))]
    data, held_out = ((part.tokens(), part.x) for part in easy)
    model = build("LinearTransformer", 2, 1, d_model=16, layers=2, heads=1, dropout=0.0)
    state = train(model, data, held_out, replace(FAST, epochs=6, lr=1e-2), progress=False)
    assert state.history[-1]["train"] < 0.7 * state.history[0]["train"]
    assert r2_score(predict(model, held_out[0]), held_out[1]) > 0.5
    assert not model.training


@pytest.mark.parametrize("config", [FAST, HARD], ids=["cosine", "plateau"])
def test_deterministic_by_seed_and_apart_from_the_global_generator(config: TrainingConfig) -> None:
    data, held_out = pairs(100, 1), pairs(50, 2)
    results = []
    for seed in (config.seed, config.seed, config.seed + 1):
        torch.rand(1)  # the global generator moves on between runs
        before = torch.random.get_rng_state()
        model = small()
        train(model, data, held_out, replace(config, seed=seed))
        assert torch.equal(before, torch.random.get_rng_state())
        results.append(weights(model))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_best_weights_are_restored_not_the_last() -> None:
    held_out = pairs(50, 2)
    model = small(dropout=0.0)
    state = train(model, pairs(64, 1), held_out, replace(HARD, epochs=40, lr=3e-2, rotate=False, patience=50))
    losses = [entry["validation"] for entry in state.history]
    assert state.best_epoch == losses.index(min(losses)) + 1 < len(losses)
    loss = nn.functional.mse_loss(predict(model, held_out[0]), held_out[1]).item()
    assert loss == pytest.approx(state.best, rel=1e-6)
    assert loss < losses[-1]


def test_stops_when_nothing_improves_and_lowers_the_rate_before() -> None:
    config = TrainingConfig(epochs=200, batch=64, lr=1e-1, patience=1, stop_after=4)
    state = train(small(), pairs(64, 1), pairs(50, 2), config)
    assert state.epoch == state.best_epoch + 4 < 200
    assert state.history[-1]["lr"] < config.lr


def test_divergence_ends_the_run_with_the_best_weights() -> None:
    model = small()
    state = train(model, pairs(64, 1), pairs(50, 2), replace(HARD, lr=1e30, clip_norm=None))
    assert state.diverged
    assert state.finished
    assert bool(torch.isfinite(weights(model)).all())


class StoppedError(Exception):
    """Stands for a kill at a known step."""


@pytest.mark.parametrize("stop", [1, 3, 4, 7, 8, 17])
def test_resumed_run_ends_with_the_same_bits(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, held_out, path = pairs(100, 1), pairs(50, 2), tmp_path / "run.safetensors"
    whole = small()
    expected = train(whole, data, held_out, HARD)
    calls, step = 0, torch.optim.AdamW.step

    def failing(self, *arguments, **options):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == stop:
            raise StoppedError
        return step(self, *arguments, **options)

    interrupted = small()
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", failing)
        patch.setattr(core_training, "SAVE_EVERY", 0.0)
        with pytest.raises(StoppedError):
            train(interrupted, data, held_out, HARD, checkpoint=path)
    resumed = build("LinearTransformer", 3, 2, seed=99, d_model=8, layers=2, heads=2)  # its weights must not matter
    if stop == 1:
        resumed = small()  # nothing was saved yet: a start from the beginning
    state = train(resumed, data, held_out, HARD, checkpoint=path)
    assert torch.equal(weights(resumed), weights(whole))
    assert state.history == expected.history
    again = train(fresh := small(), data, held_out, HARD, checkpoint=path)
    assert again.step == state.step
    assert torch.equal(weights(fresh), weights(whole))


_SCRIPT = """
import torch
from tests.neural.test_training import long_run
from time2decide.core import training
from time2decide.neural import save_model
training.SAVE_EVERY = 0.0
torch.set_num_threads({threads})
save_model(long_run({run!r}), {final!r})
"""


def long_run(checkpoint: str | None) -> nn.Module:
    model = small()
    train(model, pairs(600, 1), pairs(50, 2), replace(HARD, epochs=10), checkpoint=checkpoint)
    return model


def start(run: Path, final: Path) -> subprocess.Popen[bytes]:
    script = _SCRIPT.format(run=str(run), final=str(final), threads=torch.get_num_threads())
    return subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])


@pytest.mark.slow
def test_killed_at_a_random_moment_ends_with_the_same_weights(tmp_path: Path) -> None:
    run, final = tmp_path / "run", tmp_path / "final"
    process = start(run, final)
    while process.poll() is None and not run.exists():
        time.sleep(0.002)  # the first checkpoint: it is training now
    time.sleep(random.SystemRandom().uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not load_tensors(run)[1]["progress"]["finished"]
    assert start(run, final).wait(120) == 0
    resumed, whole = load_tensors(final)[0], long_run(None).state_dict()
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[key], whole[key]) for key in whole)


def test_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    data, held_out, path = pairs(64, 1), pairs(50, 2), tmp_path / "run"
    train(small(), data, held_out, FAST, checkpoint=path)
    with pytest.raises(InputError, match="state: expected a run of the same config and data"):
        train(small(), data, held_out, replace(FAST, lr=1e-3), checkpoint=path)
    with pytest.raises(InputError, match="state: expected a run of the same config and data"):
        train(small(), pairs(64, 3), held_out, FAST, checkpoint=path)


def test_progress_shows_the_time_left(capfd: pytest.CaptureFixture[str]) -> None:
    train(small(), pairs(64, 1), pairs(50, 2), FAST, progress=True)
    assert "left" in capfd.readouterr().err
    train(small(), pairs(64, 1), pairs(50, 2), FAST)
    assert capfd.readouterr().err == ""


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="schedule: expected one of plateau, cosine, found 'step'"):
        TrainingConfig(schedule="step")
    with pytest.raises(InputError, match="lr: expected a positive number, found 0"):
        TrainingConfig(lr=0)
    with pytest.raises(InputError, match="batch: expected a whole number of at least 1, found 0"):
        TrainingConfig(batch=0)
    with pytest.raises(InputError, match="clip_norm: expected a positive number, found -1"):
        TrainingConfig(clip_norm=-1)
    tokens, x = pairs(10, 1)
    with pytest.raises(InputError, match="validation: expected as many answers as problems, found 9 and 10"):
        train(small(), (tokens, x), (tokens, x[:9]), FAST)


def test_fresh_problems_and_muon_resume_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(FAST, epochs=2, batch=16, optimiser="muon")
    fresh, held_out, path = FreshQPs(200, 3, 2, scaled=True), pairs(50, 2), tmp_path / "run.safetensors"
    whole = small()
    expected = train(whole, fresh, held_out, config)
    assert expected.step == 14  # two epochs of 100 problems in batches of 16
    draw, drawn = FreshQPs.draw, []
    monkeypatch.setattr(core_training, "SAVE_EVERY", 0.0)
    monkeypatch.setattr("time2decide.neural.training._CHUNK", 64)

    def failing(self: FreshQPs, count: int, seed: int) -> tuple[Tensor, Tensor]:
        drawn.append(seed)
        if len(drawn) == 3:
            raise StoppedError
        return draw(self, count, seed)

    interrupted, resumed = small(), small()
    with monkeypatch.context() as patch:
        patch.setattr(FreshQPs, "draw", failing)
        with pytest.raises(StoppedError):
            train(interrupted, fresh, held_out, config, checkpoint=path)
    assert len(set(drawn)) == 3  # no problem is seen twice
    train(resumed, fresh, held_out, config, checkpoint=path)
    again = small()
    train(again, fresh, held_out, config)
    assert torch.equal(weights(resumed), weights(again))


def test_muon_turns_every_direction_at_one_rate() -> None:
    X = torch.randn(5, 16, 16, generator=torch.Generator().manual_seed(0))
    sizes = torch.linalg.svdvals(core_training.orthogonalised(X))
    assert sizes.median() == pytest.approx(1.0, abs=0.2)
    assert sizes.max() < 1.3
    model = small(dropout=0.0)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    config = replace(FAST, epochs=1, batch=64, lr=1e-2, warmup=0.0, optimiser="muon")
    state = train(model, FreshQPs(64, 3, 2), pairs(50, 2), config)
    assert state.step == 1
    moved = dict(model.named_parameters())
    for part in ("qkv", "out", "up", "down"):  # tall, square and wide
        name = f"layers.0.{part}.weight"
        step = moved[name].detach() - before[name]
        blocks = (step.mT if part == "down" else step).reshape(-1, 8, 8)
        assert 0.02 < torch.linalg.svdvals(blocks).median() < 0.05  # 4 times lr
