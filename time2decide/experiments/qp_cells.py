"""Cells of the experiments on learned QP solvers: presets, configurations, trained models.

A cell is one model trained on one size. Its configuration fixes every bit of it, so trained models are kept on disk
under a hash of the configuration and serve all experiments.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from time2decide.core.cache import cache_directory, digest
from time2decide.core.validation import InputError
from time2decide.experiments.claims import published
from time2decide.experiments.store import Config, Row
from time2decide.neural.datasets import PAPER_SEEDS, LabelledQPs, labelled_qps, paper_counts
from time2decide.neural.metrics import evaluate, r2_score
from time2decide.neural.models import build, count_parameters, load_model, matched_width, save_model
from time2decide.neural.training import TrainingConfig, predict, train

TRANSFORMERS = ("LinearTransformer", "SoftmaxTransformer")
BASELINES = ("MLP", "LSTM")
#: Width, regularisation and training of every preset. `paper` is the paper's; in `smoke` and `cpu` the numbers of
#: instances and steps are the same for all cells.
_SMALL: dict[str, Any] = {"dropout": 0.0, "scaled_init": True, "position_std": 1.0}
_ONCE: dict[str, Any] = {"batch": 64, "schedule": "cosine", "stop_after": None}
SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": _SMALL
    | {"d_model": 16, "counts": {"train": 1024, "validation": 256, "test": 256}}
    | {"training": _ONCE | {"epochs": 2, "lr": 3e-3, "clip_norm": 1.0}},
    "cpu": _SMALL
    | {"d_model": 32, "counts": {"train": 160_000, "validation": 10_000, "test": 10_000}}
    | {"training": _ONCE | {"epochs": 1, "lr": 2e-3, "clip_norm": 0.1}},
    "paper": {
        "dropout": 0.1,
        "scaled_init": False,
        "position_std": 0.02,
        "d_model": 256,
        "counts": None,
        "training": {},
    },
}
#: Layers and heads of the best cell of the grid under the `cpu` preset, by the loss on the validation set.
BEST_CPU = {"LinearTransformer": (8, 2), "SoftmaxTransformer": (8, 4)}
SMOKE_CELL = (2, 2)


def cell(preset: str, n: int, m: int, architecture: str, layers: int | None = None, heads: int | None = None) -> Config:
    """The configuration of one model; layers and heads are for transformers, the baselines get a matched width."""
    settings = SETTINGS[preset]
    config = {
        "n": n,
        "m": m,
        "architecture": architecture,
        "layers": layers,
        "heads": heads,
        "d_model": settings["d_model"],
        "dropout": settings["dropout"],
        "scaled_init": settings["scaled_init"],
        "counts": settings["counts"] or paper_counts(n),
        "training": settings["training"],
        "seed": 42,
    }
    if architecture in BASELINES:
        config |= {"layers": None, "heads": None, "scaled_init": None}
        if preset != "paper":  # the paper keeps 256 for all, which matches nothing
            config["d_model"] = _matched(preset, n, m, architecture)
    else:
        config["position_std"] = settings["position_std"]
    return config


def best_cell(preset: str, n: int, m: int, architecture: str) -> Config:
    """The cell of the best number of layers and heads: ours of the preset, the paper's own for `paper`."""
    if architecture in BASELINES:
        return cell(preset, n, m, architecture)
    if preset == "paper":
        layers, heads = best_published(n, m, architecture)
    else:
        layers, heads = BEST_CPU[architecture] if preset == "cpu" else SMOKE_CELL
    return cell(preset, n, m, architecture, layers, heads)


def best_published(n: int, m: int, architecture: str) -> tuple[int, int]:
    """(layers, heads) of the highest R² in the paper's grid of that size."""
    prefix = f"n={n};m={m};"
    grid = {place: value for (place, row), value in published("qp_r2").items() if row == architecture}
    best = max((place for place in grid if place.startswith(prefix)), key=lambda place: _or_lowest(grid[place]))
    parts = dict(item.split("=") for item in best.split(";"))
    return int(parts["layers"]), int(parts["heads"])


def trained(config: Config, *, device: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a cell and how its training went; trained now unless it is on disk. A killed one goes on."""
    key = digest(config)
    path = cache_directory() / "models" / f"{key}.safetensors"
    with contextlib.suppress(InputError):  # not there, or damaged: trained again
        return load_model(path)
    model = new_model(config)
    examples, held_out = (_pairs(split_of(config, name)) for name in ("train", "validation"))
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint = cache_directory() / "runs" / f"{key}.safetensors"
    training = TrainingConfig(**config["training"], seed=config["seed"])
    state = train(model, examples, held_out, training, device=place, checkpoint=checkpoint)
    model.to("cpu")
    notes = {
        "parameters": count_parameters(model),
        "validation_r2": r2_score(predict(model, held_out[0]), held_out[1]),
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "steps": state.step,
        "diverged": state.diverged,
        "train_seconds": round(state.seconds, 1),
        "device": place,
    }
    save_model(model, path, {**notes, "cell": config})
    checkpoint.unlink(missing_ok=True)
    return load_model(path)


def new_model(config: Config) -> nn.Module:
    """The untrained model of a cell."""
    keys = ("layers", "heads", "scaled_init", "position_std")
    shape = {key: config[key] for key in keys if config.get(key) is not None}
    return build(
        config["architecture"],
        config["n"],
        config["m"],
        seed=config["seed"],
        d_model=config["d_model"],
        dropout=config["dropout"],
        **shape,
    )


def split_of(config: Config, name: str, kappa: tuple[float, float] | None = None) -> LabelledQPs:
    """The training, validation or test set of a cell, the last also with a shifted condition number."""
    return labelled_qps(config["counts"][name], config["n"], config["m"], seed=PAPER_SEEDS[name], kappa=kappa)


def measures(config: Config, kappa: tuple[float, float] | None = None) -> Row:
    """Train the cell unless it is on disk and measure it on its test set."""
    model, notes = trained(config)
    test = split_of(config, "test", kappa)
    return {**evaluate(test, predict(model, test.tokens())), **facts(notes)}


def facts(notes: dict[str, Any]) -> Row:
    """What a row says about its model besides the measures."""
    return {key: value for key, value in notes.items() if key != "cell"}


def describe(rows: list[Row]) -> str:
    """One line on preset, width and budget of rows."""
    row = rows[0]
    schedule = TrainingConfig(**row["training"])
    budget = f"{schedule.epochs} epoch{'s' * (schedule.epochs > 1)} of {row['counts']['train']:,} instances"
    return f"preset {row['preset']}: width {SETTINGS[row['preset']]['d_model']}, {budget}, batch {schedule.batch}"


def _matched(preset: str, n: int, m: int, architecture: str) -> int:
    settings = SETTINGS[preset]
    layers, heads = BEST_CPU["LinearTransformer"] if preset == "cpu" else SMOKE_CELL
    transformer = build("LinearTransformer", n, m, seed=None, d_model=settings["d_model"], layers=layers, heads=heads)
    return matched_width(architecture, n, m, count_parameters(transformer))


def _pairs(data: LabelledQPs) -> tuple[torch.Tensor, torch.Tensor]:
    return data.tokens(), data.x


def _or_lowest(value: float) -> float:
    return -torch.inf if value != value else value  # the paper prints NaN for a negative R²
