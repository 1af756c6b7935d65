"""The service under load: `time2decide serve` and the same application on Ray Serve, eight clients each."""

import json
import subprocess
import sys

import pytest

from tests.trust.ray_service import CLIENTS, REQUESTS
from time2decide.bench.serving import serve_rows


def test_serve(record):
    rows = serve_rows(clients=CLIENTS)
    assert [row["largest_difference"] for row in rows] == [0.0] * len(rows)
    times = ", ".join(f"{row['p50_ms']:.0f} and {row['p99_ms']:.0f} ms for {row['assets']} assets" for row in rows)
    record(
        "load-serve",
        "{requests} requests of {clients} clients, every answer identical to the serial one; p50 and p99 {times}",
        requests=sum(row["requests"] for row in rows),
        clients=CLIENTS,
        times=times,
    )


def test_ray_serve(record):
    pytest.importorskip("grpc", reason="of ray[serve]")
    pytest.importorskip("ray.serve", reason="pip install 'ray[serve]'")
    ran = subprocess.run([sys.executable, "-m", "tests.trust.ray_service"], capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["health"][0] == 200
    assert found["models"] == [200, [found["models"][1][0]]]
    assert found["models"][1][0]["name"] == "market"
    assert (found["bad"][0], "assets" in found["bad"][1]["detail"]) == (422, True)
    assert found["largest"] == 0.0
    record(
        "load-ray",
        "{requests} requests of {clients} clients to 2 replicas, every answer identical to the serial one; p50 "
        "{p50_ms:.0f} ms",
        requests=REQUESTS,
        clients=CLIENTS,
        p50_ms=found["p50_ms"],
    )
