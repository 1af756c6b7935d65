"""Checks at the public boundary: every error names the argument, what was expected and what was found."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

ArrayLike = Any  # numpy array, torch tensor, nested list or number


class InputError(ValueError):
    """Bad input from the caller. The message names the argument, what was expected and what was found."""


def as_tensor(name: str, value: ArrayLike) -> Tensor:
    """A real float tensor (integers become float64), or an `InputError` that names the argument."""
    if isinstance(value, Tensor):
        tensor = value
    else:
        try:
            tensor = torch.from_numpy(np.array(value))  # a copy: read-only and strided arrays are fine
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}: expected an array of numbers, found {_describe(value)} ({error})") from None
    if tensor.is_complex():
        raise InputError(f"{name}: expected real numbers, found dtype {tensor.dtype}")
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.to(torch.float64)
    return tensor


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise when `tensor` holds NaN or infinity, naming the first place."""
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        where = tuple(int(i) for i in (~finite).nonzero()[0])
        raise InputError(f"{name}: expected finite numbers, found {tensor[where].item()} at index {where}")


def check_shape(name: str, tensor: Tensor, expected: tuple[int | None, ...], meaning: str) -> None:
    """Raise unless the trailing dimensions of `tensor` are `expected` (None matches any size)."""
    found = tuple(tensor.shape)
    fits = len(found) == len(expected) and all(e is None or e == f for e, f in zip(expected, found, strict=True))
    if not fits:
        raise InputError(f"{name}: expected shape {meaning}, found {found}")


def check_positive(name: str, value: float, *, allow_zero: bool = False) -> float:
    """A finite positive number, or an `InputError` that names the argument."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected a number, found {_describe(value)}") from None
    if not np.isfinite(number) or number < 0 or (number == 0 and not allow_zero):
        raise InputError(f"{name}: expected a {'non-negative' if allow_zero else 'positive'} number, found {value}")
    return number


def check_count(name: str, value: int, *, least: int = 1) -> int:
    """A whole number of at least `least`, or an `InputError` that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name}: expected a whole number of at least {least}, found {value!r}")
    return int(value)


def _describe(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
