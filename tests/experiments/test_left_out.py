"""Universes left out of training: nobody is trained on the universe that it is measured on, and rows are complete."""

import numpy as np
import pandas as pd
import pytest

from time2decide.experiments import left_out, real_markets
from time2decide.experiments.left_out import _load, run, tables, tasks
from time2decide.policy.market_policy import SEES


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two small universes, one with an asset that lists late."""
    rng = np.random.default_rng(0)
    paths = []
    for name in ("one", "two"):
        returns = 0.008 * rng.normal(size=(560, 1)) + 0.01 * rng.normal(size=(560, 5))
        returns[:15, 4] = np.nan if name == "two" else returns[:15, 4]
        paths.append(tmp_path / f"{name}.csv")
        index = pd.bdate_range("2010-01-01", periods=len(returns))
        pd.DataFrame(returns, index=index, columns=list("ABCDE")).to_csv(paths[-1])
    monkeypatch.setenv(real_markets.MARKETS_VARIABLE, ":".join(map(str, paths)))
    monkeypatch.setattr(left_out, "sources", lambda: {path.stem: str(path) for path in paths})
    _load.cache_clear()


def test_a_universe_is_measured_by_networks_that_never_saw_it(two, monkeypatch):
    seen = []
    train = left_out.train_market_policy
    monkeypatch.setattr(
        left_out, "train_market_policy", lambda c, o, u, **kw: seen.append(sorted(u)) or train(c, o, u, **kw)
    )
    found = tasks("smoke")
    assert [(task["universe"], task["trained_on"]) for task in found] == [("one", ["two"]), ("two", ["one"])]
    rows = run(found[1])
    assert seen == [["one"]] * len(SEES)
    assert len(rows) == 3 * (4 + len(SEES))
    nothing = [row for row in rows if row["strategy"] == "market, none"]
    assert all(row["over_none"] == row["over_none_low"] == row["over_none_high"] == 0 for row in nothing)
    assert all(row["steps"] == 40 for row in rows)
    shown = tables([{**found[1], **row} for row in rows])
    assert len(shown) == 3
    assert _load(left_out.sources()["two"])[0].shape == (560, 4)
