"""The checkpoint format: safetensors with a JSON header and a checksum, written atomically, never pickle.

A model is a folder with ``model.safetensors`` and ``config.json``, or one such file. The header of the file says all:
architecture, configuration and notes on how the model was made; ``config.json`` repeats it for readers.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints
from zipfile import ZipFile, is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from time2decide.core.files import atomic_path, validate_input_file, validate_path, write_text
from time2decide.core.provenance import INFO, weights_digest
from time2decide.core.validation import InputError, describe_value, expect, refuse

WEIGHTS = "model.safetensors"
_CHECKSUM = "checksum"  # key in the header
_MOST_FOREIGN = 256  # megabytes of a file of another package, packed and unpacked; TimePFN's has about 40
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
Config = TypeVar("Config")


class PretrainedModel(nn.Module):
    """A model with a configuration dataclass that can be saved to a folder and loaded from one."""

    CONFIG: ClassVar[type]  # of `config`
    BUNDLED: ClassVar[Mapping[str, Path]] = {}  # checkpoints that come with the package; the first is the default
    config: Any

    def save_pretrained(self, folder: str | Path, notes: Mapping[str, Any] | None = None) -> Path:
        """Write ``model.safetensors`` and ``config.json`` (configuration, and `notes` on how it was made)."""
        folder = Path(folder)
        facts = model_header(self, type(self).__name__, notes)
        save_tensors(folder / WEIGHTS, self.state_dict(), facts)
        write_text(folder / "config.json", json.dumps(facts, indent=2) + "\n")
        return folder

    @classmethod
    def from_pretrained(cls, name_or_dir: str | Path | None = None) -> Self:
        """The model of a bundled checkpoint, a folder made by `save_pretrained` or the hub, in evaluation mode."""
        name = next(iter(cls.BUNDLED), "") if name_or_dir is None else name_or_dir
        model = load_checkpoint(name, {cls.__name__: cls}, cls.BUNDLED)[0]
        assert isinstance(model, cls)
        return model


def model_header(model: PretrainedModel, architecture: str, notes: Mapping[str, Any] | None) -> dict[str, Any]:
    """The header of a model, as JSON gives it back."""
    facts = {"architecture": architecture, "config": asdict(model.config), "notes": dict(notes or {})}
    plain: dict[str, Any] = json.loads(json.dumps(facts))
    return plain


def load_checkpoint(
    name_or_path: str | Path, models: Mapping[str, type[PretrainedModel]], bundled: Mapping[str, Path] | None = None
) -> tuple[PretrainedModel, dict[str, Any]]:
    """A model in evaluation mode, and the notes on how it was made.

    Parameters
    ----------
    name_or_path : str or Path
        A name in `bundled`, a folder, a file, or ``owner/name`` on the hub if `huggingface_hub` is installed.
    models : architecture -> model class
        What is accepted.
    """
    path = _find(name_or_path, bundled or {})
    tensors, facts = load_tensors(path)
    _match_config_file(path, facts)
    architecture, notes = str(facts.get("architecture")), facts.get("notes", {})
    known = f"a {' or '.join(models)}"
    expect(architecture in models, "checkpoint", known, f"{facts.get('architecture')!r} in {path}")
    expect(isinstance(notes, dict), "checkpoint", "notes that are an object", f"{type(notes).__name__} in {path}")
    finite = all(tensor.is_floating_point() and tensor.isfinite().all() for tensor in tensors.values())
    expect(finite, "checkpoint", "weights that are finite real numbers", f"others in {path}")
    kind = models[architecture]
    config: Any = config_from_header(kind.CONFIG, facts.get("config"))
    try:
        if str(name_or_path) not in (bundled or {}):  # a damaged one may ask for any amount of memory, or none
            with torch.device("meta"), warnings.catch_warnings():  # sizes first; this device takes seconds to import
                warnings.filterwarnings("error", "Initializing zero-element tensors", UserWarning)
                kind(config).load_state_dict(tensors, assign=True)
        with torch.random.fork_rng(devices=[]):  # the first weights are drawn in vain
            model = kind(config)
        model.load_state_dict(tensors)
    except InputError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError, UserWarning) as error:
        found = f"{type(error).__name__}: {error_line(error)}"
        raise InputError(f"checkpoint: expected weights that fit their configuration, found {found}") from None
    return model.eval(), notes


def config_from_header(kind: type[Config], values: object) -> Config:
    """The configuration dataclass of a JSON object; unknown keys and values of another type raise."""
    if not isinstance(values, Mapping):
        found = describe_value(values)
        raise InputError(f"config: expected an object with the fields of {kind.__name__}, found {found}")
    hints = get_type_hints(kind)
    unknown = sorted(str(key) for key in set(values) - set(hints))
    refuse(f"config: expected keys among {', '.join(hints)}, found {key!r}" for key in unknown)
    try:
        return kind(**{key: _typed(key, hints[key], value) for key, value in values.items()})
    except TypeError as error:
        raise InputError(f"config: expected the fields of {kind.__name__}, found {error_line(error)}") from None


def _typed(name: str, hint: Any, value: Any) -> Any:
    """A JSON value as a field of this type: lists become tuples, objects become dataclasses."""
    if is_dataclass(hint) and isinstance(hint, type):
        return config_from_header(hint, value)
    parts = get_args(hint)
    if get_origin(hint) in (UnionType, Union):
        if value is None and NoneType in parts:
            return None
        return _typed(name, next(part for part in parts if part is not NoneType), value)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        inner = [parts[0]] * len(value) if parts[-1] is Ellipsis else list(parts)
        if len(inner) == len(value):
            return tuple(_typed(name, part, item) for part, item in zip(inner, value, strict=True))
    elif isinstance(hint, type):
        accepted = (int, float) if hint is float else hint
        if isinstance(value, accepted) and (hint is bool or not isinstance(value, bool)):
            return value
    expected = getattr(hint, "__name__", hint)
    raise InputError(f"config: expected {name} of type {expected}, found {describe_value(value)}")


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> Path:
    """Write `tensors` and the JSON-able `info` to one file; readers see the old file or the new one, never a part."""
    path = Path(path)
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        one = tensor.detach().to("cpu").contiguous()
        tied = any(one.data_ptr() == other.data_ptr() for other in plain.values())  # the format has no shared memory
        plain[name] = one.clone() if tied else one
    header = {INFO: json.dumps(dict(info)), _CHECKSUM: checkpoint_checksum(plain)}
    with atomic_path(path) as temporary:
        temporary.write_bytes(save(plain, metadata=header))  # `save_file` hides the file from other users
    return path


def load_foreign(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file of another package: safetensors, or a dict of tensors that `torch.save` wrote.

    No code in the file is run, and what it unpacks to is bounded before it is read.
    """
    path = validate_path("path", path)
    validate_input_file(path, megabytes=_MOST_FOREIGN)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)[0]
    try:
        expect(is_zipfile(path), path, "a whole file of torch.save, or a .safetensors file", "something else")
        with ZipFile(path) as parts:
            size = sum(part.file_size for part in parts.infolist()) >> 20
        expect(size < _MOST_FOREIGN, path, f"at most {_MOST_FOREIGN} MB when unpacked", f"{size} MB")
        found = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # a damaged archive or pickle can raise anything, torch explains it at length
        other = f"other objects or damage ({type(error).__name__})"
        raise InputError(f"{path}: expected tensors that torch.save wrote, found {other}") from None
    named = isinstance(found, Mapping) and all(
        isinstance(name, str) and isinstance(one, Tensor) for name, one in found.items()
    )
    expect(named, path, "names with tensors", describe_value(found))
    return dict(found)


def _read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of a safetensors file."""
    special = Path(path).exists() and not Path(path).is_file()  # a pipe would be waited for, in C
    expect(not special, "path", "a safetensors file", f"{path}, which is no regular file")
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except FileNotFoundError:
        raise InputError(f"path: expected a checkpoint, found no file at {path}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"path: expected a safetensors file, found {path} ({error_line(error)})") from None


def load_tensors(
    path: str | Path, device: str | torch.device = "cpu", *, need_checksum: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of a file made by `save_tensors`.

    Its checksum must be right where it has one; older files have none, which `need_checksum` refuses.
    """
    tensors, header = _read_safetensors(path)
    expect(INFO in header, "path", "a file written by time2decide", f"{path} without its header")
    try:
        facts = json.loads(header[INFO])
    except ValueError as error:
        raise InputError(f"path: expected JSON in the header of {path}, found {error_line(error)}") from None
    expect(isinstance(facts, dict), "path", f"a JSON object in the header of {path}", type(facts).__name__)
    right = not (need_checksum or _CHECKSUM in header) or header.get(_CHECKSUM) == checkpoint_checksum(tensors)
    expect(right, "path", "the numbers that were written", f"others in {path} (wrong checksum)")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, facts


def checkpoint_checksum(tensors: Mapping[str, Tensor]) -> str:
    """Digest (32 hexadecimal digits) of names, types, shapes and every bit of the numbers."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return weights_digest(
        (name, str(one.dtype), list(one.shape), one.reshape(-1).view(torch.uint8).numpy().data)
        for name, one in plain.items()
    )


def error_line(error: BaseException) -> str:
    """The message of an error on one line."""
    return " ".join(str(error).split())


def _find(name_or_path: str | Path, bundled: Mapping[str, Path]) -> Path:
    """The file with the weights."""
    expect(isinstance(name_or_path, str | Path), "checkpoint", "a name or a folder", type(name_or_path).__name__)
    path = bundled.get(str(name_or_path), Path(name_or_path))
    for place in (path / WEIGHTS, path):  # os.path: a name that no file can have is none, not an error
        if os.path.isfile(place):
            return place
    if _HUB_NAME.fullmatch(str(name_or_path)) and not os.path.isdir(path):
        found = _from_hub(str(name_or_path))
        if found is not None:
            return found
    known = f"{', '.join(bundled)} or " if bundled else ""
    raise InputError(f"checkpoint: expected {known}a folder with {WEIGHTS}, found {name_or_path}")


def _from_hub(name: str) -> Path | None:
    """The file of a model on the hub; None where `huggingface_hub` is not installed."""
    try:
        hub = import_module("huggingface_hub")
    except ImportError:
        return None
    try:
        return Path(hub.snapshot_download(name, allow_patterns=[WEIGHTS, "config.json"])) / WEIGHTS
    except Exception as error:  # whatever the network, the server or the library has to say
        raise InputError(f"checkpoint: expected {name} as a folder or on the hub, found {error_line(error)}") from None


def _match_config_file(path: Path, facts: Mapping[str, Any]) -> None:
    """Raise where ``config.json`` beside the weights is of another model, as after a kill between the two files."""
    try:
        stored = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise InputError(f"checkpoint: expected JSON in {path.parent}/config.json, found {error_line(error)}") from None
    keys = ("architecture", "config")
    same = isinstance(stored, dict) and all(stored.get(key) == facts.get(key) for key in keys)
    expect(same, "checkpoint", f"{path.name} and config.json of one model", f"two in {path.parent}")
