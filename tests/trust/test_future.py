"""The future cannot change a decision: of any strategy, on a market whose assets come and go, under constraints."""

from importlib import import_module

import numpy as np
import pandas as pd

from time2decide.backtesting.registry import REGISTRY
from time2decide.backtesting.walk_forward import backtest
from time2decide.markets import Constraints, Limit

OTHERS = ("pto:kernel-bank", "pto:timepfn:small", "pto-ridge:shrinkage=0.1")
ASSETS, ROWS, WINDOW = 16, 130, 96
STEPS = (120,)


def market():
    """Returns (time, assets) with common moves, changing volatility, a late listing, a halt and a delisting."""
    rng = np.random.default_rng(7)
    scale = 0.01 * np.exp(np.cumsum(0.05 * rng.standard_normal((ROWS, 1)), axis=0))
    array = scale * (rng.standard_normal((ROWS, 1)) + rng.standard_normal((ROWS, ASSETS)))
    array[:10, 3] = np.nan
    array[100:104, 5] = np.nan
    array[108:, 9] = np.nan
    return array


def futures(array, step):
    """Other rows from `step` on: wild returns, none of the old gaps, other gaps."""
    rng, rest = np.random.default_rng(step), array[step:]
    yield np.vstack([array[:step], rng.uniform(-0.9, 2.0, rest.shape)])
    yield np.vstack([array[:step], np.where(np.isnan(rest), 0.01 * rng.standard_normal(rest.shape), -rest)])
    yield np.vstack([array[:step], np.where(rng.random(rest.shape) < 0.3, np.nan, rest)])


def held(name, array, constraints):
    table = pd.DataFrame(array, pd.bdate_range("2023-01-02", periods=ROWS), [f"A{i:02d}" for i in range(ASSETS)])
    gaps = "keep" if np.isnan(array).any() else "refuse"
    found = backtest(table, [name], 0.3, window=WINDOW, constraints=constraints, gaps=gaps).rollouts[0]
    return found.raw, found.allocations


def test_every_strategy(record):
    rules = Constraints(0.0, 0.4, limits=(Limit("first half", np.repeat([1.0, 0.0], ASSETS // 2), -np.inf, 0.6),))
    import_module("time2decide.markets.turnover_kernels")  # not in the middle, when enough was decided: it rounds anew
    names, compared = [*REGISTRY, *OTHERS], 0
    for name in names:
        array = market()
        sound = held(name, array, rules)
        for step in STEPS:
            for other in futures(array, step):
                for one, changed in zip(sound, held(name, other, rules), strict=True):
                    np.testing.assert_array_equal(one[:, :, : step + 1], changed[:, :, : step + 1], err_msg=name)
                compared += 1
    record(
        "future",
        "{strategies} strategies, {compared} futures exchanged, every decision before identical to the last bit",
        strategies=len(names),
        compared=compared,
    )
