"""Start the service on Ray Serve with two replicas, ask it from eight clients, and print what came back as JSON."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from time2decide.bench.serving import ask_service, serve_request_body

CLIENTS, REQUESTS = 8, 64
#: Ray gives its workers the lowest priority, and its proxies five seconds: too little on a busy machine.
SETTINGS = {
    "RAY_worker_niceness": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_AUTH_MODE": "disabled",  # the cluster listens on this machine only
}


def status(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, dict]:
    """Status and content of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def main() -> None:
    os.environ.update(SETTINGS)
    import ray
    from ray import serve

    from time2decide.service.ray_app import ray_application

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    place = {"PYTHONPATH": str(Path(__file__).parents[2])}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": place})
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(ray_application(replicas=2), name="decisions")
        bodies = [serve_request_body(20, 300, seed) for seed in range(4)]
        serial = [ask_service(port, body)[1] for body in bodies]
        began = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(partial(ask_service, port), [bodies[i % 4] for i in range(REQUESTS)]))
        found = {
            "health": status(port, "GET", "/health"),
            "models": status(port, "GET", "/models"),
            "bad": status(port, "POST", "/decide", b"{}"),
            "per_second": REQUESTS / (time.perf_counter() - began),
            "largest": max(float(np.abs(one[1] - serial[i % 4]).max()) for i, one in enumerate(answers)),
            "p50_ms": 1e3 * float(np.median([one[0] for one in answers])),
        }
    finally:
        serve.shutdown()
        ray.shutdown()
    print(json.dumps(found), file=sys.stdout)


if __name__ == "__main__":
    main()
