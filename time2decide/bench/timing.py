"""Interleaved timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median

import torch
from threadpoolctl import threadpool_limits


def interleaved(
    peers: Mapping[str, Callable[[], object]], *, rounds: int, repeat: dict[str, int] | int = 1
) -> dict[str, list[float]]:
    """Seconds per call of each peer, measured in turn `rounds` times after one call to warm up.

    `repeat` is the number of calls inside one measurement, for calls too short to time alone.
    """
    counts = repeat if isinstance(repeat, dict) else dict.fromkeys(peers, repeat)
    times: dict[str, list[float]] = {name: [] for name in peers}
    for call in peers.values():
        call()
    for turn in range(rounds):
        names = list(peers) if turn % 2 == 0 else list(peers)[::-1]  # neither side always goes first
        for name in names:
            call, count = peers[name], counts[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            times[name].append((time.perf_counter() - start) / count)
    return times


def ratio(times: dict[str, list[float]], name: str, peer: str) -> float:
    """Median over rounds of time(name) / time(peer): each pair was measured side by side."""
    return median(a / b for a, b in zip(times[name], times[peer], strict=True))


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
