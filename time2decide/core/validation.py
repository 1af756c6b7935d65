"""Checks at the public boundary: every error names the argument, what was expected and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

_INTERVALS = {"share": "[0, 1)", "fraction": "[0, 1]", "inside": "(0, 1)"}  # of `validate_fields`
_LONGEST = 2000  # characters of a message
ArrayLike = Any  # numpy array, torch tensor, nested list or number


def printable(text: str) -> str:
    """The text in one line, with what cannot be printed escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The text with what cannot be printed escaped, ends of lines apart."""
    return "\n".join(map(printable, text.split("\n")))


class InputError(ValueError):
    """Bad input from the caller. The message names the argument, what was expected and what was found, in one line.

    It may quote names and cells of any file: what cannot be printed, such as ends of lines and the control sequences
    of terminals, is escaped.
    """

    def __init__(self, message: object) -> None:
        text, half = str(message), _LONGEST // 2
        text = text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"
        super().__init__(printable(text))


def refuse(problems: Iterable[str]) -> None:
    """Raise an `InputError` with the first of the problems that a validator finds, if there is any."""
    for problem in problems:
        raise InputError(problem)


def expect(fits: object, name: object, expected: str, found: object) -> None:
    """Raise the `InputError` "name: expected …, found …" unless `fits`."""
    if not fits:
        raise InputError(f"{name}: expected {expected}, found {found}")


def as_tensor(name: str, value: ArrayLike) -> Tensor:
    """A real float tensor (integers become float64), or an `InputError` that names the argument."""
    import torch  # here, so that bad file names are refused before torch is loaded

    if isinstance(value, torch.Tensor):
        tensor = value
        expect(not tensor.is_meta, name, "a tensor with numbers", "one on the device meta, which has none")
        if tensor.layout != torch.strided:
            raise InputError(f"{name}: expected a dense tensor, found {str(tensor.layout).removeprefix('torch.')}")
    else:
        refuse_masked(name, value)
        try:
            array = np.array(value)  # a copy: read-only and strided arrays are fine
            wide = array.dtype.kind == "f" and (array.itemsize > 8 or not array.dtype.isnative)
            tensor = torch.from_numpy(array.astype(np.float64) if wide else array)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InputError(f"{name}: expected an array of numbers, found {describe_value(value)} ({error})") from None
    if tensor.is_complex():
        raise InputError(f"{name}: expected real numbers, found dtype {tensor.dtype}")
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.to(torch.float64)
    return tensor


def as_floats(name: str, value: ArrayLike) -> np.ndarray:
    """A float64 array of real numbers, not necessarily finite, without torch; or an `InputError`."""
    refuse_masked(name, value)
    with suppress(TypeError, ValueError, RuntimeError):
        array = np.asarray(value)
        if array.dtype.kind in "fiu":
            return array.astype(np.float64)
    raise InputError(f"{name}: expected numbers, found {describe_value(value)}")


def refuse_masked(name: str, value: ArrayLike) -> None:
    """Raise when an array, or one in a list of them, holds masked entries: numpy would read what lies below."""
    rows = value if isinstance(value, (list, tuple)) else ()
    parts = [value, *rows, *(one for row in rows if isinstance(row, (list, tuple)) for one in row)]
    masked = any(isinstance(one, np.ma.MaskedArray) and np.ma.is_masked(one) for one in parts)
    expect(not masked, name, "an array of numbers", "masked ones")


def refuse_booleans(name: str, value: ArrayLike) -> None:
    """Raise when an array, or a list (of lists), holds true or false, which would be read as 1 and 0."""
    kind = str(getattr(value, "dtype", ""))
    expect(kind not in ("bool", "boolean", "torch.bool"), name, "real numbers", f"dtype {kind}")
    rows = value if isinstance(value, (list, tuple)) else ()
    cells = (one for row in rows for one in (row if isinstance(row, (list, tuple)) else (row,)))
    expect(not any(isinstance(one, (bool, np.bool_)) for one in cells), name, "real numbers", "true or false")


def labels_of(value: Any, axis: int = -1) -> list[Any] | None:
    """Names along an axis of an object of pandas; None for any other."""
    if not (hasattr(value, "index") and hasattr(value, "to_numpy")):
        return None
    return list(value.columns if hasattr(value, "columns") and axis == -1 else value.index)


def validate_labels(labels: dict[str, list[Any] | None], what: str) -> None:
    """Raise unless all arguments that name `what` name the same, in the same order: numbers alone are read."""
    found, rows = {name: names for name, names in labels.items() if names is not None}, "'s rows"
    for name, names in found.items():
        first, expected = next(iter(found.items()))
        same = sorted(map(str, names)) == sorted(map(str, expected))
        other = f"their {what} in another order" if same else "others"
        expect(names == expected, name, f"the {what} of {first.removesuffix(rows)} in the same order", other)


def validate_finite(name: str, tensor: Tensor) -> None:
    """Raise when `tensor` holds NaN or infinity, naming the first place."""
    finite = tensor.isfinite()
    if not bool(finite.all()):
        where = tuple(int(i) for i in (~finite).nonzero()[0])
        raise InputError(f"{name}: expected finite numbers, found {tensor[where].item()} at index {where}")


def as_array(name: str, value: ArrayLike) -> np.ndarray:
    """Finite real numbers as a float64 array, or an `InputError` that names the argument."""
    tensor = as_tensor(name, value)
    validate_finite(name, tensor)
    return np.asarray(tensor.detach().cpu().double().numpy())


def per_instance(
    name: str, value: ArrayLike, like: Tensor, lead: tuple[int, ...], *, allow_negative: bool = False
) -> Tensor:
    """A finite number or one for every instance, as a tensor that broadcasts to `lead`, in the dtype of `like`."""
    tensor = as_tensor(name, value).to(like)
    sizes = tuple(reversed(tensor.shape))  # as in broadcasting: last dimension first
    if len(sizes) > len(lead) or any(size not in (1, one) for size, one in zip(sizes, reversed(lead), strict=False)):
        raise InputError(f"{name}: expected a number or shape {lead}, found shape {tuple(tensor.shape)}")
    validate_finite(name, tensor)
    least = 0.0 if allow_negative else tensor.min().item()
    expect(least >= 0, name, "a non-negative number", least)
    return tensor


def validate_simplex(name: str, weights: Any, tolerance: float = 1e-6) -> Any:
    """Weights (..., m), tensor or array, that are ≥ 0 and sum to 1, with rounding up to `tolerance` removed."""
    found = np.asarray(weights.detach().cpu() if hasattr(weights, "detach") else weights)
    least, off = found.min(initial=0.0), np.abs(found.sum(-1) - 1).max(initial=0.0)
    expect(least >= -tolerance, name, "non-negative weights", f"{least:.6g}")
    expect(off <= tolerance, name, "weights that sum to 1", f"a sum off by {off:.3g}")
    weights = weights.clip(min=0)
    return weights / weights.sum(-1)[..., None]


def validate_positive(name: str, value: float, *, allow_zero: bool = False, most: float = np.inf) -> float:
    """A finite positive number of at most `most`, or an `InputError` that names the argument."""
    try:
        if isinstance(value, (str, bool, np.bool_)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InputError(f"{name}: expected a number, found {describe_value(value)}") from None
    if not np.isfinite(number) or number < 0 or (number == 0 and not allow_zero) or number > most:
        expected = f"a {'non-negative' if allow_zero else 'positive'} number"
        expected = f"a number in {'[' if allow_zero else '('}0, {most:g}]" if most < np.inf else expected
        raise InputError(f"{name}: expected {expected}, found {value}")
    return number


def validate_interval(name: str, value: float, interval: str) -> None:
    """Raise unless `value` is a number in an interval, given as in ``"[0, 1)"``."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    inside = real and low <= value <= high
    if not inside or (value == low and interval[0] == "(") or (value == high and interval[-1] == ")"):
        raise InputError(f"{name}: expected a number in {interval}, found {describe_value(value)}")


def validate_count(name: str, value: int, *, least: int = 1) -> int:
    """A whole number of at least `least` and of 64 bits, or an `InputError` that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value < 2**63:
        raise InputError(f"{name}: expected a whole number of at least {least}, found {describe_value(value)}")
    return int(value)


def validate_fields(config: Any, **rules: str) -> None:
    """Validate fields of a configuration dataclass, named by rule and separated by spaces; an optional one may be None.

    Rules are `count` (a whole number ≥ 1), `natural` (≥ 0), `positive`, `non_negative`, `share` (in [0, 1)),
    `fraction` ([0, 1]) and `inside` ((0, 1)).
    """
    optional = {field.name for field in fields(config) if "None" in str(field.type)}
    for name, rule in ((name, rule) for rule, names in rules.items() for name in names.split()):
        value = getattr(config, name)
        if value is None and name in optional:
            continue
        if rule in ("count", "natural"):
            validate_count(name, value, least=int(rule == "count"))
        elif rule in _INTERVALS:
            validate_interval(name, value, _INTERVALS[rule])
        else:
            validate_positive(name, value, allow_zero=rule == "non_negative")


def is_text(value: str) -> bool:
    """Whether a name can be written to a file: half of a character that takes two cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def validate_flag(name: str, value: bool) -> bool:
    """True or False, or an `InputError` that names the argument."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name}: expected True or False, found {describe_value(value)}")
    return bool(value)


def validate_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of the words `choices`."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name}: expected one of {', '.join(known)}, found {describe_value(value)}")


def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON with these keys (`object_pairs_hook`); raises where one is there twice.

    Readers differ in which of the two they take: a file with both says one thing to a program and another to a person.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = Counter(name for name, _ in pairs)
        raise InputError(f"expected every name once, found {describe_value(names.most_common(1)[0][0])} again")
    return found


def describe_value(value: object) -> str:
    """The value and, unless it speaks for itself, its type; never longer than a line."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        text = "a number of very many digits"
    except RecursionError:
        text = "(nested too deeply to be shown)"
    text = " ".join(text.split())
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if isinstance(value, (str, int, float, type(None))) else f"{type(value).__name__} {text}"
