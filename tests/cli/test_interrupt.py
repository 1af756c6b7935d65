"""Ctrl-C in the middle of a training step: the step is finished and saved, and going on loses nothing."""

import signal

import pytest
import torch

from time2decide.core.checkpoints import load_tensors
from time2decide.forecasting import loop
from time2decide.neural import averaged_run

AT = 3
#: command -> module and function that is called in the middle of every step, and the argument that is the step
COMMANDS = {
    "qp": (averaged_run, "learning_rate", 1),
    "forecast": (loop, "one_cycle", 0),
    "decide": (averaged_run, "learning_rate", 1),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_saves_and_says_how_to_go_on(run, tmp_path, monkeypatch, command):
    module, name, place = COMMANDS[command]
    arguments = ["train", command, "--preset", "smoke", "--out"]
    assert run(*arguments, "whole", cwd=tmp_path).returncode == 0
    original = getattr(module, name)

    def pressed(*given):
        if given[place] == AT:
            signal.raise_signal(signal.SIGINT)
        return original(*given)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, pressed)
        done = run(*arguments, "parts", cwd=tmp_path)
    assert done.returncode == 130
    assert done.stdout == ""
    expected = f"time2decide: interrupted after step {AT + 1}; all is saved, start the same command again to go on\n"
    assert done.stderr == expected
    assert signal.getsignal(signal.SIGINT) is before
    facts = load_tensors(tmp_path / "parts/state.safetensors")[1]
    assert facts.get("progress", facts)["step"] == AT + 1
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
        assert done.stderr == "time2decide: --out: expected a folder that can be written, found file\n"
