"""Ctrl-C or SIGTERM in the middle of a training step: the step is finished and saved, and going on loses nothing."""

import signal

import pytest
import torch

from time2decide.core import training
from time2decide.core.checkpoints import load_tensors

AT = 3
COMMANDS = {
    "qp": ["qp", "--preset", "smoke"],
    "timepfn": ["timepfn", "--preset", "smoke"],
    "paper": ["paper", "--preset", "smoke", "--steps", "3"],
}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_saves_and_says_how_to_go_on(run, tmp_path, monkeypatch, command, number, code):
    if number == signal.SIGTERM and command != "qp":
        pytest.skip("the same loop")
    arguments = ["train", *COMMANDS[command], "--out"]
    assert run(*arguments, "whole", cwd=tmp_path).returncode == 0
    original = training.learning_rate  # called in the middle of every step

    def pressed(config, step, history):
        if step == AT:
            signal.raise_signal(number)
        return original(config, step, history)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(training, "learning_rate", pressed)
        done = run(*arguments, "parts", cwd=tmp_path)
    assert done.returncode == code
    assert done.stdout == ""
    expected = f"time2decide: interrupted after step {AT + 1}; all is saved, start the same command again to resume\n"
    assert done.stderr == expected
    assert signal.getsignal(number) is before
    assert load_tensors(tmp_path / "parts/state.safetensors")[1]["progress"]["step"] == AT + 1
    assert not (tmp_path / "parts/model.safetensors").exists()
    assert run(*arguments, "parts", cwd=tmp_path).returncode == 0
    whole, parts = (load_tensors(tmp_path / folder / "model.safetensors")[0] for folder in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(run, tmp_path):
    (tmp_path / "file").write_text("x")
    for command in COMMANDS:
        done = run("train", command, "--preset", "smoke", "--out", "file/sub", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        expected = "time2decide: --out: expected a folder that can be written to, found file/sub (Not a directory)\n"
        assert done.stderr == expected
