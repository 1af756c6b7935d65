"""The service under load: eight clients at once against a server in a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from typing import Any

import numpy as np

_SIZES = ((20, 1000), (64, 5960), (500, 1000))  # assets, rows
_REQUESTS = {False: 160, True: 8}
_START = 120.0  # seconds that a server may take to start


def serve_rows(quick: bool = False, clients: int = 8) -> list[dict[str, Any]]:
    """Median, 99th percentile and rate of answers by size of the request, and the distance from serial weights."""
    rows = []
    with _server() as port:
        for assets, days in _SIZES[: 1 if quick else None]:
            bodies = [serve_request_body(assets, days, seed) for seed in range(4)]
            serial = [ask_service(port, body)[1] for body in bodies]
            count = max(_REQUESTS[quick] // (1 if assets * days < 100_000 else 4), clients)
            order = [i % len(bodies) for i in range(count)]
            began = time.perf_counter()
            with ThreadPoolExecutor(clients) as pool:
                answers = list(pool.map(partial(ask_service, port), [bodies[i] for i in order]))
            seconds = time.perf_counter() - began
            times = 1e3 * np.array([one[0] for one in answers])
            apart = [np.abs(found - serial[i]).max() for i, (_, found) in zip(order, answers, strict=True)]
            row: dict[str, Any] = {"assets": assets, "rows": days, "clients": clients, "requests": count}
            row |= {"p50_ms": float(np.median(times)), "p99_ms": float(np.quantile(times, 0.99))}
            rows.append(row | {"per_second": count / seconds, "largest_difference": float(max(apart))})
    return rows


def serve_request_body(assets: int, days: int, seed: int) -> bytes:
    """A request with random returns (days, assets)."""
    returns = 0.01 * np.random.default_rng(seed).standard_normal((days, assets))
    request = {
        "assets": [f"asset {i}" for i in range(assets)],
        "returns": returns.round(6).tolist(),
        "turnover_l1": 0.2,
    }
    return json.dumps(request).encode()


def ask_service(port: int, body: bytes) -> tuple[float, np.ndarray]:
    """Seconds from the request to the answer, and the weights."""
    began = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/decide", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200, content[:200]
    return time.perf_counter() - began, np.array(list(json.loads(content)["weights"].values()))


@contextmanager
def _server() -> Iterator[int]:
    """A server on a free port, ended at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "time2decide.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + _START
        while time.monotonic() < ends and process.poll() is None:
            try:
                connection = HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                connection.getresponse().read()
                connection.close()
                break
            except OSError:
                time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait(30)
