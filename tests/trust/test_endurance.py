"""Ten thousand decisions in one process do not grow it; eight threads give the serial answers to the last bit."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import numpy as np

from time2decide import Time2Decide
from time2decide.markets import portfolio, turnover_decision

_MOST_GROWTH = 16  # megabytes from the 1,000th to the 10,000th decision
_ROUNDING = 1e-12  # by which weights of the two forms of the solver may differ
DECISIONS = """
import json, resource, time
from pathlib import Path
import numpy as np
import pandas as pd
from time2decide import Time2Decide
from time2decide.markets import Constraints, Limit

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

market, network = Time2Decide.from_pretrained("market"), Time2Decide.from_pretrained("decide")
days = pd.bdate_range("2020-01-01", periods=600)
table = pd.DataFrame(0.01 * np.random.default_rng(0).standard_normal((600, 12)), days, [f"A{i}" for i in range(12)])
gaps = table.copy()
gaps.iloc[:450, 3] = np.nan
rules = Constraints(0.0, 0.4, limits=(Limit("half", np.repeat([1.0, 0.0], 6), -np.inf, 0.7),))
held, times, used = None, [], {}
for number in range(1, 10_001):
    rows = slice(number % 480, number % 480 + 110)
    began = time.perf_counter()
    if number % 10 == 0:
        market.decide(gaps.iloc[rows].dropna(axis=1, how="all"), turnover_l1=0.2, gaps="keep")
    elif number % 10 == 1:
        market.decision(table.iloc[rows], held, 0.2, constraints=rules)
    elif number % 10 == 2:
        network.decide(table.iloc[rows], held, 0.5)
    else:
        held = market.decide(table.iloc[rows], held, 0.2)
        times.append(time.perf_counter() - began)
    if number in (1000, 10_000):
        used[number] = megabytes()
print(json.dumps({"growth": used[10_000] - used[1000], "p50": 1e3 * float(np.median(times)),
                  "p99": 1e3 * float(np.quantile(times, 0.99))}))
"""


def test_ten_thousand_decisions(record):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", DECISIONS], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert found["growth"] <= _MOST_GROWTH
    record(
        "endurance",
        "{growth:.1f} MB more after 10,000 decisions than after 1,000; p50 {p50:.1f} ms, p99 {p99:.1f} ms for 12 "
        "assets and 110 rows",
        **found,
    )


def test_eight_threads(record, monkeypatch):
    kernels, model = import_module("time2decide.markets.turnover_kernels"), Time2Decide.from_pretrained()
    rng = np.random.default_rng(0)
    tables = [0.01 * rng.standard_normal((rows, m)) for m, rows in ((20, 400), (100, 300), (500, 120)) for _ in "ab"]

    def weights(number):
        return model.decide(tables[number % len(tables)], turnover_l1=0.3)

    serial, asked = [weights(number) for number in range(len(tables))], range(8 * len(tables))
    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(weights, asked)):
            np.testing.assert_array_equal(found, serial[number % len(tables)])
    largest = 0.0
    for module in (turnover_decision, kernels):  # what a process uses before and after it has compiled the solver
        monkeypatch.setattr(portfolio, "turnover_engine", lambda rows, m, module=module: module)
        largest = max(largest, *(float(np.abs(weights(i) - serial[i]).max()) for i in range(len(tables))))
    assert largest <= _ROUNDING
    record(
        "threads",
        "{decisions} decisions of 20, 100 and 500 assets identical to the last bit; before and after the solver is "
        "compiled weights differ by at most {largest:.0e}",
        decisions=len(asked),
        largest=largest,
    )
