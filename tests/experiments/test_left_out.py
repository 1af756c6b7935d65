"""Universes left out of training: nobody is trained on the universe that it is measured on, and rows are complete."""

import numpy as np
import pandas as pd
import pytest

from time2decide.experiments import real_markets
from time2decide.experiments.real_markets import _load_complete, left_out_tables, left_out_tasks, run_left_out
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
    monkeypatch.setattr(real_markets, "real_market_sources", lambda: {path.stem: str(path) for path in paths})
    _load_complete.cache_clear()


def test_a_universe_is_measured_by_networks_that_never_saw_it(two, monkeypatch):
    seen = []
    train = real_markets.train_market_policy
    monkeypatch.setattr(
        real_markets, "train_market_policy", lambda c, o, u, **kw: seen.append(sorted(u)) or train(c, o, u, **kw)
    )
    found = {(task["universe"], task["sees"]): task for task in left_out_tasks("smoke")}
    assert set(found) == {(name, sees) for name in ("one", "two") for sees in SEES}
    rows = []
    for sees in ("all", "none"):
        task = found["two", sees]
        assert task["trained_on"] == ["one"]
        rows += [{**task, **row} for row in run_left_out(task)]
    assert seen == [["one"]] * 2
    assert len(rows) == 3 * (5 + 2)
    assert all(row["steps"] == 40 for row in rows)
    shown = left_out_tables(rows)
    assert [line[-1] for line in shown[0].rows if line[1] == "market, none"] == ["–"]
    assert "[" in next(line[-1] for line in shown[0].rows if line[1] == "market, all")
    drawn = np.array(rows[0]["drawn"])
    assert abs(drawn.mean() - rows[0]["utility"]) < 4 * drawn.std()
    assert _load_complete(real_markets.real_market_sources()["two"])[0].shape == (560, 4)
