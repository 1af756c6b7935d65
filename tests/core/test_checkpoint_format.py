"""Checkpoints: they come back, bundled ones load, and whatever is wrong is said in one line."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from time2decide.core.checkpoints import (
    PretrainedModel,
    config_from_header,
    load_checkpoint,
    load_tensors,
    save_tensors,
)
from time2decide.core.validation import InputError
from time2decide.forecasting import TimePFN
from time2decide.neural import EquivariantSolver


@dataclass(frozen=True)
class Inner:
    width: int = 2


@dataclass(frozen=True)
class ToyConfig:
    inputs: int = 3
    scale: float = 1.0
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[int, int] = (1, 2)
    name: str = "a"
    on: bool = True
    limit: float | None = None
    inner: Inner = field(default_factory=Inner)


class Toy(PretrainedModel):
    CONFIG = ToyConfig

    def __init__(self, config: ToyConfig | None = None) -> None:
        super().__init__()
        self.config = config or ToyConfig()
        self.linear = nn.Linear(self.config.inputs, self.config.inner.width)


def header(**changes: Any) -> dict[str, Any]:
    return {"architecture": "Toy", "config": {"inputs": 3}, "notes": {}} | changes


@pytest.mark.parametrize("model", [EquivariantSolver, TimePFN])
def test_bundled_checkpoints_load_and_come_back(model: type[PretrainedModel], tmp_path: Path) -> None:
    for name, folder in model.BUNDLED.items():
        stored = load_tensors(folder / "model.safetensors")[0]
        loaded = model.from_pretrained(name)
        assert not loaded.training
        loaded.save_pretrained(tmp_path / name)
        again = model.from_pretrained(tmp_path / name)
        assert again.config == loaded.config
        for key, weight in stored.items():
            assert torch.equal(weight, loaded.state_dict()[key])
            assert torch.equal(weight, again.state_dict()[key])


def test_a_folder_and_a_file_come_back(tmp_path: Path) -> None:
    model = Toy(ToyConfig(4, 0.5, (3,), (4, 5), "b", False, 2.0, Inner(3)))
    model.save_pretrained(tmp_path, {"why": (1, 2)})
    before = torch.random.get_rng_state()
    for place in (tmp_path, str(tmp_path), tmp_path / "model.safetensors"):
        again, notes = load_checkpoint(place, {"Toy": Toy})
        assert again.config == model.config
        assert notes == {"why": [1, 2]}
        assert torch.equal(again.linear.weight, model.linear.weight)  # type: ignore[union-attr,arg-type]
    assert torch.equal(before, torch.random.get_rng_state())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    (tmp_path / "config.json").unlink()
    assert Toy.from_pretrained(tmp_path).config == model.config


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "config: expected an object with the fields of ToyConfig, found None"),
        (0.5, "config: expected an object with the fields of ToyConfig, found 0.5"),
        ([1, 2], "config: expected an object with the fields of ToyConfig, found list \\[1, 2\\]"),
        ({"colour": 1}, "config: expected keys among inputs, .* found 'colour'"),
        ({"inputs": "3"}, "config: expected inputs of type int, found '3'"),
        ({"inputs": 3.5}, "config: expected inputs of type int, found 3.5"),
        ({"inputs": True}, "config: expected inputs of type int, found True"),
        ({"scale": None}, "config: expected scale of type float, found None"),
        ({"on": 1}, "config: expected on of type bool, found 1"),
        ({"sizes": 3}, "config: expected sizes of type tuple.*, found 3"),
        ({"sizes": [1, "x"]}, "config: expected sizes of type int, found 'x'"),
        ({"pair": [1, 2, 3]}, "config: expected pair of type tuple"),
        ({"limit": "x"}, "config: expected limit of type float, found 'x'"),
        ({"inner": 7}, "config: expected an object with the fields of Inner, found 7"),
        ({"inner": {"depth": 7}}, "config: expected keys among width, found 'depth'"),
        ({"inputs": -1}, "checkpoint: expected weights that fit their configuration, found RuntimeError"),
        ({"inputs": 10**6, "inner": {"width": 10**6}}, "checkpoint: expected weights that fit their configuration"),
        ({"inputs": 10**30}, "checkpoint: expected weights that fit their configuration"),
    ],
)
def test_bad_configurations_are_named_in_one_line(tmp_path: Path, config: object, words: str) -> None:
    save_tensors(tmp_path / "model.safetensors", Toy().state_dict(), header(config=config))
    with pytest.raises(InputError, match=words) as caught:
        Toy.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


def test_other_damage_is_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    weights = Toy().state_dict()
    nan = {name: weight * float("nan") for name, weight in weights.items()}

    def refused(words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            Toy.from_pretrained(tmp_path)
        assert "\n" not in str(caught.value)

    refused(r"checkpoint: expected a folder with model\.safetensors")
    path.write_bytes(b"not a checkpoint")
    refused("path: expected a safetensors file")
    save_file(weights, path)
    refused("path: expected a file written by time2decide")
    for text, words in (("{", "JSON in the header"), ("[]", "JSON object in the header")):
        save_file(weights, path, metadata={"time2decide": text})
        refused(words)
    for changes, words in (
        ({"architecture": "LSTM"}, "checkpoint: expected a Toy, found 'LSTM'"),
        ({"architecture": ["Toy"]}, "checkpoint: expected a Toy, found"),
        ({"notes": [1]}, "expected notes that are an object, found list"),
    ):
        save_tensors(path, weights, header(**changes))
        refused(words)
    for wrong in (nan, {name: weight.int() for name, weight in weights.items()}):
        save_tensors(path, wrong, header())
        refused("checkpoint: expected weights that are finite real numbers")
    save_tensors(path, {"linear.weight": weights["linear.weight"]}, header())
    refused("found RuntimeError: .* Missing key")
    with pytest.raises(InputError, match="checkpoint: expected a name or a folder, found int"):
        Toy.from_pretrained(3)  # type: ignore[arg-type]


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    Toy().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="wrong checksum"):
        Toy.from_pretrained(tmp_path)


def test_two_files_of_two_models_are_refused(tmp_path: Path) -> None:
    Toy().save_pretrained(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    facts["config"]["inputs"] = 5
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match="of one model, found two"):
        Toy.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="checkpoint: expected JSON"):
        Toy.from_pretrained(tmp_path)


def test_the_hub_is_asked_for_owner_and_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Toy().save_pretrained(tmp_path / "there")
    asked: list[str] = []

    def download(name: str, **_: object) -> str:
        asked.append(name)
        if name != "some/model":
            raise RuntimeError("no such\nmodel")
        return str(tmp_path / "there")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    assert Toy.from_pretrained("some/model").config == ToyConfig()
    with pytest.raises(
        InputError, match="checkpoint: expected some/other as a folder or on the hub, found no such model"
    ):
        Toy.from_pretrained("some/other")
    (tmp_path / "mine" / "empty").mkdir(parents=True)
    for name in ("plain", "mine/empty", "a/b/c", "/some/model"):
        with pytest.raises(InputError, match="checkpoint: expected a folder"):
            Toy.from_pretrained(name)
    assert asked == ["some/model", "some/other"]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="checkpoint: expected a folder"):
        Toy.from_pretrained("some/model")


def test_missing_fields_are_named() -> None:
    @dataclass(frozen=True)
    class Needs:
        n: int

    with pytest.raises(InputError, match=r"config: expected the fields of Needs, found .*missing"):
        config_from_header(Needs, {})


def test_tied_tensors_are_written_and_read(tmp_path):
    shared = torch.arange(3.0)
    save_tensors(tmp_path / "x.safetensors", {"a": shared, "b": shared}, {})
    found, _ = load_tensors(tmp_path / "x.safetensors")
    assert torch.equal(found["a"], shared)
    assert torch.equal(found["b"], shared)
