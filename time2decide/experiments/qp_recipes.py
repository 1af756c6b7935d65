"""A recipe in which the read-out of the paper's transformers stays alive, beside the plain one: tasks, tables, claims.

Its departures from the plain recipe, each a switch by name: the start of the weights (`TransformerConfig`), scaled
tokens, fresh problems seen once, Muon for the layers' matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from time2decide.core.table import Table
from time2decide.experiments.claims import Claim, published
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.qp.generators import PAPER_SIZES

TRANSFORMERS = ("LinearTransformer", "SoftmaxTransformer")
ONE_PASS: dict[str, Any] = {"batch": 64, "schedule": "cosine", "stop_after": None}
BEST = "best"
BEST_RECIPE: dict[str, Any] = {
    "recipe": BEST,
    "layers": 4,
    "heads": 1,
    "d_model": 64,
    "dropout": 0.0,
    "start": {"ff_multiple": 2, "orthogonal": True, "zero_branches": True, "answer_scale": 0.1},
    "scaled_tokens": True,
    "training": ONE_PASS
    | {"batch": 64, "epochs": 4, "lr": 1.4e-3, "clip_norm": 0.1, "optimiser": "muon", "weight_decay": 0.0},
}
DEAD_R2 = 1e-3  # a constant answer scores 0 up to the difference of two means
#: Instances for the linear and the softmax one at each size under `cpu`: what two cores could pay for.
BEST_INSTANCES = {
    (5, 3): (800_000, 100_000),
    (7, 3): (800_000, 100_000),
    (7, 6): (600_000, 100_000),
    (10, 3): (600_000, 100_000),
    (10, 6): (500_000, 100_000),
    (10, 9): (500_000, 100_000),
    (15, 10): (600_000, 100_000),
    (20, 8): (500_000, 100_000),
    (20, 16): (700_000, 100_000),
}


def best_recipe_tasks(preset: str) -> list[Config]:
    """One task per size and architecture; three seeds and shorter trainings of the linear one at the largest size."""
    if preset == "smoke":
        small = {"d_model": 16, "layers": 2, "counts": {"train": 2048, "validation": 256, "test": 256}}
        return [best_recipe_cell(*PAPER_SIZES[0], TRANSFORMERS[0], 2048) | small]
    if preset == "paper":
        return []
    linear, largest = TRANSFORMERS[0], PAPER_SIZES[-1]
    most = BEST_INSTANCES[largest][0]
    found = [
        best_recipe_cell(*size, architecture, count)
        for size, counts in BEST_INSTANCES.items()
        for architecture, count in zip(TRANSFORMERS, counts, strict=True)
    ]
    found += [best_recipe_cell(*largest, linear, most, seed=seed) for seed in (43, 44)]
    return found + [best_recipe_cell(*largest, linear, most // part) for part in (2, 4, 8)]


def best_recipe_cell(n: int, m: int, architecture: str, instances: int, seed: int = 42) -> Config:
    """The configuration of a transformer of the best recipe."""
    counts = {"train": instances, "validation": 10_000, "test": 10_000}
    return {"n": n, "m": m, "architecture": architecture} | BEST_RECIPE | {"counts": counts, "seed": seed}


def recipes_table(plain: list[Row], best: list[Row]) -> Table:
    """The best cell of the plain recipe, every full training of the best one, the paper's best cell."""
    cells = []
    for row in _full_recipe(best):
        n, m, name = place = row["n"], row["m"], row["architecture"]
        ours = [r["r2"] for r in plain if (r["n"], r["m"], r["architecture"]) == place]
        line = [f"({n}, {m}) {name.removesuffix('Transformer')}", str(row["seed"])]
        line += [recipe_r2_text(max(ours)) if ours else "–", recipe_r2_text(row["r2"], row["live_units"])]
        line += [f"{best_published_r2(n, m, name):.3f}", f"{100 * row['live_units']:.0f}%"]
        cells.append([*line, f"{row['instances']:,}", f"{row['core_minutes']:.1f}"])
    row = best[0]
    shape = f"{row['layers']} layers, width {row['d_model']}, batch {row['training']['batch']}"
    note = f"best recipe: {shape}; plain: its best cell; dead: no unit of a read-out layer fires, x̂ is a constant"
    columns = ["(n, m)", "seed", "plain R²", "best R²", "paper's best", "live units", "instances", "core-minutes"]
    return Table("R² of the two recipes on the test set", columns, cells, note)


def _full_recipe(best: list[Row]) -> list[Row]:
    """Without the shorter trainings of the scaling curve."""
    most: dict[Any, int] = {}
    for row in best:
        key = row["n"], row["m"], row["architecture"]
        most[key] = max(most.get(key, 0), row["instances"])
    return [row for row in best if row["instances"] == most[row["n"], row["m"], row["architecture"]]]


def recipe_scaling_tables(best: list[Row]) -> list[Table]:
    """R² against the number of instances, where a size was trained for several; one seed."""
    cells, notes = [], []
    for (n, m, name, _), some in grouped_rows(best, "n", "m", "architecture", "seed").items():
        some = sorted(some, key=lambda row: row["instances"])
        for row in some if len(some) > 1 else []:
            line = [f"({n}, {m}) {name}", f"{row['instances']:,}", recipe_r2_text(row["r2"], row["live_units"])]
            cells.append([*line, f"{row['core_minutes']:.1f}", f"{_teraflop(row, row['instances']):.0f}"])
        notes += [_scaling_note(some[-2], some[-1])] if len(some) > 1 else []
    columns = ["(n, m)", "instances", "R²", "core-minutes", "TFLOP"]
    return [Table("R² against instances, best recipe", columns, cells, " ".join(notes))] if cells else []


def _teraflop(row: Row, instances: float) -> float:
    """Operations (1e12) of a training: 6 for every weight, token and instance."""
    return 6e-12 * float(row["parameters"]) * (row["n"] + row["m"] + 3) * instances


def _scaling_note(shorter: Row, longest: Row) -> str:
    """What more would take if 1 − R² went on falling by the power of instances of the last two trainings."""
    missed = (1 - shorter["r2"], 1 - longest["r2"])
    power = np.log(missed[0] / missed[1]) / np.log(longest["instances"] / shorter["instances"])
    if not power > 0:
        return ""
    needed = {r2: longest["instances"] * (missed[1] / (1 - r2)) ** (1 / power) for r2 in (0.95, 0.99)}
    wanted = [f"{count:.1e} instances, {_teraflop(longest, count):.1e} TFLOP, for {r2}" for r2, count in needed.items()]
    return (
        f"Extrapolated, 1 − R² falling as instances to the power −{power:.2f}: {'; '.join(wanted)}. A GPU that does 10 "
        f"TFLOP/s on such matrices would need {_teraflop(longest, needed[0.99]) / 10 / 60:.0f} minutes for the last."
    )


def recipe_r2_text(r2: float, live: float | None = None) -> str:
    """A dead model is no result: its answer is a constant, which early rows show by R² alone."""
    return "dead" if recipe_is_dead(r2, live) else f"{r2:.3f}"


def recipe_is_dead(r2: float, live: float | None = None) -> bool:
    return live == 0 or (live is None and abs(r2) < DEAD_R2)


def best_published_r2(n: int, m: int, architecture: str) -> float:
    """The paper's highest R² at a size."""
    layers, heads = best_published_qp_cell(n, m, architecture)
    return published("qp_r2")[f"n={n};m={m};layers={layers};heads={heads}", architecture]


def recipe_claims(best: list[Row]) -> list[Claim]:
    """Whether the best recipe reaches the paper's best R² at each size, in the mean over seeds."""
    return [_reached(name, [row for row in _full_recipe(best) if row["architecture"] == name]) for name in TRANSFORMERS]


def _reached(name: str, best: list[Row]) -> Claim:
    """Whether the mean over seeds is at least the paper's best cell."""
    cases = {}
    for (n, m), some in grouped_rows(best, "n", "m").items():
        cases[n, m, name] = np.mean([row["r2"] for row in some]) >= best_published_r2(n, m, name)
    text = f"{name} has the R² of the paper's best cell, at every size (best recipe)"
    missing = ", ".join(f"({n}, {m})" for (n, m, _), agrees in cases.items() if not agrees)
    return Claim(text, [bool(agrees) for agrees in cases.values()], f"not at {missing}" if missing else "")


def best_published_qp_cell(n: int, m: int, architecture: str) -> tuple[int, int]:
    """(layers, heads) of the highest R² in the paper's grid of that size."""
    prefix = f"n={n};m={m};"
    grid = {place: value for (place, row), value in published("qp_r2").items() if row == architecture}
    best = max((place for place in grid if place.startswith(prefix)), key=lambda place: _or_lowest(grid[place]))
    parts = dict(item.split("=") for item in best.split(";"))
    return int(parts["layers"]), int(parts["heads"])


def _or_lowest(value: float) -> float:
    return -np.inf if value != value else value  # the paper prints NaN for a negative R²
