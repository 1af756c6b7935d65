"""Timing: calls in turn, ratios of pairs, one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

_Answer = TypeVar("_Answer")


def interleaved_times(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    repeat: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call of each name, measured in turn `rounds` times after one call to warm up.

    `repeat` is the number of calls inside one measurement, for calls too short to time alone; `clock` may be that of
    the processor, for one thread on a busy machine.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:  # neither side always goes first
            call, count = calls[name], repeat[name] if repeat else 1
            start = clock()
            for _ in range(count):
                call()
            times[name].append((clock() - start) / count)
    return times


def time_ratio(times: dict[str, list[float]], name: str, other: str) -> float:
    """Median over rounds of time(name) / time(other): each pair was measured side by side."""
    return median(a / b for a, b in zip(times[name], times[other], strict=True))


def timed_call(call: Callable[..., _Answer], *arguments: Any) -> tuple[float, _Answer]:
    """Seconds of one call, and its answer."""
    start = time.perf_counter()
    answer = call(*arguments)
    return time.perf_counter() - start, answer


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch and BLAS on one thread: small kernels gain nothing from more, and a busy machine makes them slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
