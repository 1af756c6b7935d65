"""How well the pretrained backbone forecasts: one step and 96 steps ahead, beside simple forecasters.

All see the same window of 96 steps. Persistence, AR(1), ridge and the kernel bank reach further by taking their own
forecast for the next observation, again and again. Errors are given raw, and relative to the variance of the windows,
which is the error of knowing the mean of the window's law and nothing else.
"""

from __future__ import annotations

from functools import partial
from statistics import mean

import numpy as np

from time2decide.core.table import Table, tables_with_last_note
from time2decide.experiments.paper_models import PAPER_BACKBONE, paper_backbone
from time2decide.experiments.portfolio_scores import tasks_on_lmc
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.forecasting.backbones import BackboneForecaster, load_backbone
from time2decide.forecasting.simple import Forecaster, ar1, persistence, ridge
from time2decide.forecasting.timepfn import TimePFNForecaster
from time2decide.markets.oracle import WINDOW
from time2decide.markets.synthetic import MARKETS, LMCConfig, synthetic_returns

_HORIZON = 96
_OTHERS = ("kernel-bank:", "timepfn:medium")  # backbones that are compared with the small TimePFN


def _tasks(preset: str) -> list[Config]:
    """One task per market and seed, and one more for each other backbone."""
    if preset == "smoke":
        shared = {"market": "noisy", "seed": 0, "series": 2, "length": 256, "every": 32}
        return [{**shared, "backbone": backbone} for backbone in ("small", _OTHERS[0])]
    sizes = {"series": 30, "length": 1024, "every": 104, "backbone": "small"}
    if preset == "paper":
        sizes |= {"every": 8, "backbone": PAPER_BACKBONE}
    cells = [{"market": market, "seed": seed, **sizes} for seed in range(3) for market in MARKETS]
    return cells + [cell | {"backbone": backbone} for backbone in _OTHERS for cell in cells]


def _run(config: Config) -> list[Row]:
    """Errors of every forecaster over the same windows of the evaluation series."""
    lmc = LMCConfig(length=config["length"])
    returns = synthetic_returns(config["market"], "evaluation", count=config["series"], seed=config["seed"], config=lmc)
    starts = range(0, config["length"] - WINDOW - _HORIZON + 1, config["every"])
    drawn = np.concatenate([returns[:, s : s + WINDOW + _HORIZON] for s in starts])  # (windows, 192, m)
    window, target = drawn[:, :WINDOW], drawn[:, WINDOW:]
    if config["backbone"] in _OTHERS:
        kind, _, name = config["backbone"].partition(":")
        if kind == "timepfn":
            path = TimePFNForecaster(paper_backbone(name)).path(window)
        else:
            path = iterate_forecasts(BackboneForecaster(load_backbone(config["backbone"])), window, _HORIZON)
        label = f"{kind}-{name}".rstrip("-")
        return [{"forecaster": label, "windows": len(window), **forecast_errors_of(path, window, target)}]
    model = paper_backbone(config["backbone"])
    paths = {
        "timepfn": TimePFNForecaster(model).path(window),
        "timepfn-unscaled": TimePFNForecaster(model, scale=1.0).path(window),
    }
    simple: dict[str, Forecaster] = {"persistence": persistence, "ar1": ar1}
    simple |= {f"ridge-{penalty:g}": partial(ridge, penalty=penalty) for penalty in (0.1, 1.0)}
    paths |= {name: iterate_forecasts(forecaster, window, _HORIZON) for name, forecaster in simple.items()}
    paths["window-mean"] = np.broadcast_to(window.mean(axis=1, keepdims=True), target.shape)
    return [
        {"forecaster": name, "windows": len(window), **forecast_errors_of(path, window, target)}
        for name, path in paths.items()
    ]


def iterate_forecasts(forecaster: Forecaster, window: np.ndarray, horizon: int) -> np.ndarray:
    """(windows, horizon, m): every forecast is appended to the window, and the oldest step dropped."""
    seen = window.copy()
    path = np.empty((len(window), horizon, window.shape[2]))
    for h in range(horizon):
        path[:, h] = forecaster(seen)
        seen = np.concatenate([seen[:, 1:], path[:, h : h + 1]], axis=1)
    return path


def forecast_errors_of(path: np.ndarray, window: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Raw and relative errors of the first step and of the whole horizon."""
    squared = (path - target) ** 2  # (windows, horizon, m)
    variance = window.var(axis=1)  # (windows, m)
    one, whole = squared[:, 0], squared.mean(axis=1)
    floor = 1e-12  # of a channel that does not move
    return {
        "mse_1": float(one.mean()),
        "mse_96": float(whole.mean()),
        "relative_1": float(one.mean() / variance.mean()),
        "relative_96": float(whole.mean() / variance.mean()),
        "median_1": float(np.median(one / (variance + floor))),
        "median_96": float(np.median(whole / (variance + floor))),
    }


def _tables(rows: list[Row]) -> list[Table]:
    """A table per market, mean over seeds; the paper has none of these."""
    keys = ("mse_1", "mse_96", "relative_1", "relative_96", "median_1", "median_96")
    note = (
        "mse: raw; relative: over the mean variance of the windows; median: of a channel's error over the variance "
        "of its own window. 1: first step, 96: mean of 96 steps. timepfn-unscaled: returns are not multiplied by 100 "
        "first, so eps hides most of them. timepfn: 199 k weights; timepfn-medium: 0.99 M. kernel-bank: Gaussian "
        "processes of the prior that generates these series. "
        "The paper reports no forecast errors."
    )
    found = []
    for market, chosen in grouped_rows(rows, "market").items():
        cells = [
            [name, *(f"{mean(row[key] for row in own):.3g}" for key in keys)]
            for name, own in grouped_rows(chosen, "forecaster").items()
        ]
        sizes = f"{chosen[0]['windows']} windows of 16 channels, {len(grouped_rows(chosen, 'seed'))} seed(s)"
        found.append(Table(f"{market}: forecast errors, {sizes}", ["forecaster", *keys], cells, note))
    return tables_with_last_note(found)


EXPERIMENTS = (
    Experiment(
        id="forecast-errors",
        title="Forecast errors of the pretrained backbone and of simple forecasters",
        paper="None: the paper takes a published checkpoint and does not report its errors",
        presets={"smoke": "5 s", "cpu": "10 min", "paper": "2 h"},
        tasks=tasks_on_lmc(_tasks),
        run=_run,
        tables=_tables,
    ),
)
