"""The training loop: schedules are torch's, interrupts are saved, a resumed run ends with the same bits."""

from __future__ import annotations

import math
import os
import signal
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from time2decide.core import training
from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.training import LoopConfig, TrainingRun, cosine_rate, fit_model, one_cycle_rate, plateau_rate
from time2decide.core.validation import InputError

CONFIG = LoopConfig(steps=20, lr=0.05, warmup=3, clip_norm=1.0, evaluate_every=4, seed=1)


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))


def problem(model: nn.Module, step: int) -> Tensor:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
    return nn.functional.mse_loss(model(x), x.sum(-1, keepdim=True))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def trained(config: LoopConfig = CONFIG, **options) -> tuple[nn.Module, object]:  # type: ignore[no-untyped-def]
    model = options.pop("model", None) or network()
    evaluate, probe = lambda: problem(model, 999).item(), lambda: {"figure": problem(model, 998).item()}
    measured = {"evaluate": evaluate, "probe": probe} if config.evaluate_every else {}
    return model, fit_model(model, lambda step: problem(model, step), config, **(measured | options))


@pytest.mark.parametrize("stop", [1, 4, 11])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimiser": "adam", "schedule": "one_cycle", "fused": True},
        {"schedule": "plateau", "plateau_patience": 0, "patience": 2},
        {"averaging": 0.9, "evaluate_every": None},
        {"evaluate_first": True, "weight_decay": 0.1},
    ],
    ids=["cosine", "one_cycle", "plateau", "averaged", "first"],
)
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path, change: dict, stop: int) -> None:  # type: ignore[type-arg]
    config = replace(CONFIG, **change)
    whole, expected = trained(config)

    def interrupt(done: int, total: int, loss: float) -> None:
        if done == stop:
            raise KeyboardInterrupt

    state = tmp_path / "state"
    if stop < expected.step:  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            trained(config, state=state, report=interrupt)
        assert load_tensors(state)[1]["progress"]["step"] == stop
    resumed, found = trained(config, model=network(5), state=state)
    if stop < expected.step:  # type: ignore[attr-defined]
        assert torch.equal(weights(resumed), weights(whole))
        assert found.history == expected.history  # type: ignore[attr-defined]
        assert all("figure" in entry for entry in found.history)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=["int", "term"]
)
def test_a_signal_ends_the_run_after_its_step_with_its_state_saved(tmp_path: Path, number: int, raised: type) -> None:
    before, whole = signal.getsignal(number), trained()[0]
    model = network()

    def loss(step: int) -> Tensor:
        if step == 6:
            os.kill(os.getpid(), number)
        return problem(model, step)

    with pytest.raises(raised):
        fit_model(model, loss, CONFIG, evaluate=lambda: problem(model, 999).item(), state=tmp_path / "state")
    assert signal.getsignal(number) is before
    assert load_tensors(tmp_path / "state")[1]["progress"]["step"] == 7
    assert torch.equal(weights(trained(state=tmp_path / "state")[0]), weights(whole))


def test_other_threads_can_train() -> None:
    found: list[nn.Module] = []
    thread = threading.Thread(target=lambda: found.append(trained()[0]))
    thread.start()
    thread.join()
    assert torch.equal(weights(found[0]), weights(trained()[0]))


def test_what_is_kept_survives(tmp_path: Path) -> None:
    def run(stop: int | None, state: Path | None) -> tuple[Tensor, Tensor]:
        model, memory = network(), torch.zeros(1)

        def loss(step: int) -> Tensor:
            memory.add_(step)
            return problem(model, step) + memory.sum() * weights(model).sum() * 0 + problem(model, int(memory))

        def report(done: int, total: int, loss: float) -> None:
            if done == stop:
                raise KeyboardInterrupt

        fit_model(
            model, loss, replace(CONFIG, evaluate_every=None), kept={"memory": memory}, state=state, report=report
        )
        return weights(model), memory

    whole = run(None, None)
    with pytest.raises(KeyboardInterrupt):
        run(7, tmp_path / "state")
    resumed = run(None, tmp_path / "state")
    assert torch.equal(resumed[1], whole[1])
    assert torch.equal(resumed[0], whole[0])


def test_gradients_that_are_not_finite_are_skipped_or_end_the_run() -> None:
    for stop in (False, True):
        model = network()

        def loss(step: int, model: nn.Module = model) -> Tensor:
            return problem(model, step) * (math.nan if step == 5 else 1.0)

        config = replace(CONFIG, stop_when_diverged=stop)
        progress = fit_model(model, loss, config, evaluate=lambda model=model: problem(model, 999).item())  # type: ignore[misc]
        assert progress.skipped == 1
        assert bool(torch.isfinite(weights(model)).all())
        assert (progress.step, progress.diverged) == ((6, True) if stop else (20, False))
    with pytest.raises(InputError, match="training: expected finite gradients, found none in 20 steps"):
        fit_model(model, lambda step: problem(model, step) * math.nan, replace(CONFIG, evaluate_every=None))


def test_only_tuned_weights_change() -> None:
    model, before = network(), network()
    fit_model(model, lambda step: problem(model, step), replace(CONFIG, evaluate_every=None), tuned=("2.",))
    assert torch.equal(model[0].weight, before[0].weight)  # type: ignore[index]
    assert not torch.equal(model[2].weight, before[2].weight)  # type: ignore[index]


def test_patience_stops_and_the_best_weights_are_kept() -> None:
    model = nn.Linear(1, 1, bias=False)
    errors = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    seen = []

    def evaluate() -> float:
        seen.append(model.weight.detach().clone())
        return next(errors)

    config = LoopConfig(steps=100, lr=0.1, schedule="one_cycle", evaluate_every=2, patience=2)
    progress = fit_model(model, lambda step: model.weight.sum(), config, evaluate=evaluate)
    assert (progress.step, progress.best_step, progress.best) == (8, 4, 1.0)
    assert (progress.epoch, progress.best_epoch) == (4, 2)
    assert torch.equal(model.weight, seen[1])


def test_the_average_lags_behind_the_weights() -> None:
    config = replace(CONFIG, evaluate_every=None)
    plain, averaged = trained(config)[0], trained(replace(config, averaging=0.9))[0]
    none = trained(replace(config, averaging=0.0))[0]
    assert torch.equal(weights(none), weights(plain))
    assert not torch.allclose(weights(averaged), weights(plain))


def test_one_cycle_is_torchs() -> None:
    optimiser = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=1.0)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=5e-4, total_steps=40, pct_start=0.3)
    for step in range(40):
        group = optimiser.param_groups[0]
        assert one_cycle_rate(step, 40, 5e-4, 0.3) == pytest.approx((group["lr"], group["betas"][0]), rel=1e-9)
        optimiser.step()
        if step < 39:
            cycle.step()


def test_plateau_is_torchs() -> None:
    optimiser = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.5, patience=1, min_lr=0.03)
    losses = [3.0, 2.0, 2.0, 1.99999, 2.1, math.nan, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    for count, loss in enumerate(losses, start=1):
        scheduler.step(loss)
        assert plateau_rate(losses[:count], 1.0, 0.5, 1, 0.03) == optimiser.param_groups[0]["lr"]
    assert plateau_rate(losses, 1.0, 0.5, 1, 0.03) == 0.03


def test_cosine_warms_up_and_falls() -> None:
    rates = [cosine_rate(step, 100, 1.0, 10, 10) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[55] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert 0 < rates[-1] < 1e-3
    rates = [cosine_rate(step, 16_000, 4e-3, 200) for step in range(0, 16_000, 50)]
    assert rates[0] < rates[2] < max(rates) <= 4e-3
    assert 0 < rates[-1] < 1e-6
    assert cosine_rate(0, 10, 1.0) == 1.0


def test_states_of_other_runs_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    trained(state=state, settings={"data": 1})
    with pytest.raises(InputError, match="state: expected a run of the same config and data"):
        trained(state=state, settings={"data": 2})
    with pytest.raises(InputError, match="state: expected a run of the same config and data"):
        trained(replace(CONFIG, lr=1.0), state=state, settings={"data": 1})
    tensors, facts = load_tensors(state)
    save_tensors(state, {name: tensor for name, tensor in tensors.items() if "model/0" not in name}, facts)
    with pytest.raises(InputError, match=r"state: expected a training state, found .* Missing key") as caught:
        trained(state=state, settings={"data": 1})
    assert "\n" not in str(caught.value)
    state.write_bytes(state.read_bytes()[:-3])
    with pytest.raises(InputError, match="path: expected a safetensors file"):
        trained(state=state, settings={"data": 1})


def test_nothing_is_written_without_a_path_and_the_global_generator_stays() -> None:
    before = torch.random.get_rng_state()
    model = network()
    run = TrainingRun(model, lambda step: problem(model, step), replace(CONFIG, evaluate_every=None))
    run.run()
    run.save()
    assert torch.equal(before, torch.random.get_rng_state())
    assert not model.training


def test_the_time_left_does_not_count_what_came_before_the_first_step(monkeypatch, capsys):
    clock = iter([0.0, 600.0, 602.0, 604.0])  # the report is made; ten minutes of preparation; two seconds a step
    monkeypatch.setattr(training.time, "monotonic", lambda: next(clock))
    with training.training_progress_bar(shown=False, lines_every=1.0) as report:
        for step in (1, 2, 3):
            report(step, 11, 0.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["step 1/11 loss 0.50000", "step 2/11 loss 0.50000 left 18 s", "step 3/11 loss 0.50000 left 16 s"]
