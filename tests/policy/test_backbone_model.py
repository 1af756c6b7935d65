"""The decision layer on other backbones: what it reads, trains and saves; the whole path with a Chronos."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from time2decide.backtesting.registry import make_strategy
from time2decide.core.validation import InputError
from time2decide.forecasting.backbones import KernelBankBackbone, load_backbone
from time2decide.markets.oracle import WINDOW
from time2decide.policy.backbone_model import BackboneModel, backbone_covariance_rows
from time2decide.policy.paper_model import PaperModelStrategy
from time2decide.policy.repaired_training import REPAIRED_PRESETS, load_backbone_model, train_adapter
from time2decide.simulation.engine import rollout

SMOKE = REPAIRED_PRESETS["smoke"]


def model(**switches):
    made = BackboneModel.on(KernelBankBackbone(), **switches)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        torch.nn.init.normal_(made.adapter.readout.answer.weight)  # as if it had been trained
    return made.eval()


def inputs(batch=3, m=16):
    rng = np.random.default_rng(0)
    returns = 0.01 * rng.standard_normal((batch, WINDOW, m)).cumsum(axis=1)
    held = rng.dirichlet(np.full(m, 0.5), size=(batch, WINDOW))
    return [torch.from_numpy(a).float() for a in (returns, held, np.full(batch, 1.0), np.full(batch, 0.1))]


@pytest.mark.parametrize("number", range(4))
def test_it_reads_all_it_is_given(number):
    made, seen = model(), inputs()
    other = list(seen)
    other[number] = seen[number].flip(0) if number < 2 else 1.5 * seen[number]
    with torch.inference_mode():
        assert (made(*other)[1] - made(*seen)[1]).abs().max() > 1e-4


def test_covariance_tokens_do_something_and_are_rows_of_the_covariance():
    seen = inputs()
    with torch.inference_mode():
        assert (model()(*seen)[1] - model(covariance=False)(*seen)[1]).abs().max() > 1e-4
    rows = backbone_covariance_rows(seen[0])
    expected = torch.stack([torch.corrcoef(one.T) for one in seen[0]])
    torch.testing.assert_close(rows[..., :16], expected, atol=1e-4, rtol=1e-4)


def test_equal_windows_are_encoded_once(monkeypatch):
    made, (returns, held, gamma, risk) = model(), inputs()
    twice = returns.repeat_interleave(2, dim=0)
    rows = []
    encode = KernelBankBackbone.encode
    monkeypatch.setattr(KernelBankBackbone, "encode", lambda self, x: rows.append(len(x)) or encode(self, x))
    with torch.inference_mode():
        found = made(twice, *(a.repeat_interleave(2, dim=0) for a in (held, gamma, risk)))
        alone = made(returns, held, gamma, risk)
    assert rows == [3, 3]
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one[::2], other)
        torch.testing.assert_close(one[1::2], other)


@pytest.mark.filterwarnings("default")
def test_the_whole_path_with_a_chronos(tmp_path):
    """Random weights → trained on LMC windows → predict-then-optimise → decision layer → rollout, all read back."""
    pytest.importorskip("chronos")
    from time2decide.forecasting.chronos import ChronosTraining, TinyChronos, tiny_chronos, train_chronos

    start = tiny_chronos(TinyChronos(width=16, layers=1, heads=2, feedforward=16))
    before = {name: weight.clone() for name, weight in start.named_parameters()}
    train_chronos(start, ChronosTraining(steps=2, batch=1, pool=2), tmp_path / "chronos")
    assert any(not torch.equal(before[name], weight) for name, weight in start.named_parameters())
    name = f"chronos:{tmp_path / 'chronos'}"
    trained = train_adapter(replace(SMOKE, steps=3), load_backbone(name), tmp_path / "adapter")
    loaded = load_backbone_model(tmp_path / "adapter")
    seen = inputs()
    with torch.inference_mode():
        torch.testing.assert_close(loaded(*seen)[1], trained(*seen)[1])
    returns = 0.01 * np.random.default_rng(0).standard_normal((1, 98, 16)).cumsum(axis=1)
    adapter = make_strategy(str(tmp_path / "adapter"))  # a folder is a strategy
    for strategy in (PaperModelStrategy((loaded,)), adapter, make_strategy(f"pto:{name}")):
        result = rollout(returns, strategy, [0.5, 2.0])
        np.testing.assert_allclose(result.allocations.sum(-1), 1.0, atol=1e-9)


def test_training_an_adapter_resumes_to_the_bit(tmp_path):
    def stop(done, total, loss):
        if done == 3:
            raise KeyboardInterrupt

    whole = train_adapter(SMOKE, KernelBankBackbone(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_adapter(SMOKE, KernelBankBackbone(), tmp_path / "parts", report=stop)
    parts = train_adapter(SMOKE, KernelBankBackbone(), tmp_path / "parts")
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, parts.state_dict()[name]), name


def test_bad_input_is_named():
    made = model()
    with pytest.raises(InputError, match="16 assets"):
        made(*inputs(m=5))
    with pytest.raises(InputError, match="backbone"):
        BackboneModel(load_backbone("timepfn:small"), made.adapter)
