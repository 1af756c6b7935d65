"""Learned QP solvers: R² over layers and heads, shifted condition numbers, other architectures, histograms of errors.

A cell is one model trained on one size. Its configuration fixes every bit of it, so trained models are kept on disk
under a hash of the configuration and serve all experiments: the grid trains the cells, the other three reuse them.
"""

from __future__ import annotations

import contextlib
import re
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from torch import nn

from time2decide.core.cache import cache_directory
from time2decide.core.provenance import json_digest
from time2decide.core.table import Table, quantity_cell, tables_with_last_note
from time2decide.core.validation import InputError
from time2decide.experiments.claims import Claim, published
from time2decide.experiments.qp_recipes import (
    BEST,
    ONE_PASS,
    TRANSFORMERS,
    best_published_qp_cell,
    best_recipe_tasks,
    recipe_claims,
    recipe_is_dead,
    recipe_scaling_tables,
    recipes_table,
)
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row, grouped_rows
from time2decide.neural.datasets import PAPER_SEEDS, LabelledQPs, labelled_qps, paper_counts
from time2decide.neural.metrics import HISTOGRAM_EDGES, evaluate, histograms, r2_score
from time2decide.neural.models import build, count_parameters, live_units, load_model, matched_width, save_model
from time2decide.neural.training import FreshQPs, TrainingConfig, predict, train
from time2decide.qp.generators import KAPPA_RANGES, PAPER_SIZES

HEADS = (1, 2, 4, 8)
CPU_HEADS = (2,)  # of the sizes after the first under `cpu`
_LARGE = 15  # variables from which the paper stops at 8 layers
#: name in the table -> range of κ, None for the distribution of the training set
RANGES = {"none": None} | {f"{low:g}-{high:g}": (low, high) for low, high in KAPPA_RANGES}
ABLATION_SIZES = PAPER_SIZES[:6]
HISTOGRAM_SIZES = ((5, 3), (10, 3), (10, 6), (10, 9))  # those for which the paper draws them
#: "far better" as a number: at most this share of the best baseline's unexplained variance 1 − R²
MUCH_BETTER = 0.5
#: What the paper says of the NMSE of its best LinearTransformer at (5, 3).
PAPER_NMSE = {"median": 0.011, "p95": 0.095}


def _run_cell(config: Config) -> list[Row]:
    """One model on its own test set."""
    return [_measures(config)]


def _grid_tasks(preset: str) -> list[Config]:
    """One task per cell: all nine sizes; under `cpu` the whole grid at (5, 3), elsewhere one number of heads.

    Then the best recipe: one cell per size and architecture, more seeds and shorter trainings at the largest.
    """
    sizes = PAPER_SIZES[:1] if preset == "smoke" else PAPER_SIZES
    plain = [
        qp_cell(preset, n, m, architecture, layers, heads)
        for n, m in sizes
        for layers, heads in _shapes(preset, n, m)
        for architecture in TRANSFORMERS
    ]
    return plain + best_recipe_tasks(preset)


def _shapes(preset: str, n: int, m: int) -> list[tuple[int, int]]:
    """(layers, heads) of the cells of a size."""
    if preset == "smoke":
        return list(product((1, 2), (1, 2)))
    if preset == "cpu" and (n, m) != PAPER_SIZES[0]:
        return list(product((1, 2, 4, 8), CPU_HEADS))
    return list(product((1, 2, 4, 8) if n >= _LARGE else (1, 2, 4, 8, 16), HEADS))


def _grid_tables(rows: list[Row]) -> list[Table]:
    """Both recipes side by side; R² against instances; R² by layers and heads, a table per size and architecture."""
    plain, best = ([row for row in rows if (row.get("recipe") == BEST) == of_best] for of_best in (False, True))
    found = [recipes_table(plain, best), *recipe_scaling_tables(best)] if best else []
    return found + tables_with_last_note(_plain_tables(plain))


def _plain_tables(rows: list[Row]) -> list[Table]:
    """R² by layers and heads, one table per size and architecture."""
    paper, found = published("qp_r2"), []
    for (n, m, name), chosen in grouped_rows(rows, "n", "m", "architecture").items():
        r2 = {(row["layers"], row["heads"]): row["r2"] for row in chosen}
        heads = sorted({h for _, h in r2})
        cells = []
        for layers in sorted({depth for depth, _ in r2}):
            places = [f"n={n};m={m};layers={layers};heads={h}" for h in heads]
            theirs = [paper.get((place, name)) for place in places]
            line = [quantity_cell(r2.get((layers, h)), ".3f", paper=v) for h, v in zip(heads, theirs, strict=True)]
            cells.append([str(layers), *(DEAD_CELL.sub("dead", cell) for cell in line)])
        columns = ["layers", *(f"{h} head{'s' * (h > 1)}" for h in heads)]
        found.append(Table(f"({n}, {m}) {name}: R² on the test set (paper's)", columns, cells, _describe(rows)))
    return found


def _grid_claims(rows: list[Row]) -> list[Claim]:
    """The paper's claims about the grid, over all cells of the plain recipe whose partner is there too and neither is
    dead; and its best R² at each size, which the best recipe is to reach."""
    keys = ("n", "m", "architecture", "layers", "heads")
    plain = {tuple(row[key] for key in keys): row["r2"] for row in rows if row.get("recipe") != BEST}
    r2 = {cell: value for cell, value in plain.items() if not recipe_is_dead(value)}
    against, deeper = {}, {}
    for (n, m, architecture, layers, heads), value in sorted(r2.items()):
        softmax = r2.get((n, m, "SoftmaxTransformer", layers, heads))
        if architecture == "LinearTransformer" and layers >= 2 and softmax is not None:
            against[n, m, f"{layers}×{heads}"] = value >= softmax
        half = r2.get((n, m, architecture, layers // 2, heads))
        if 2 <= layers <= 8 and half is not None:
            deeper[n, m, f"{architecture.removesuffix('Transformer')} {layers}×{heads}"] = value > half
    texts = {"Linear ≥ Softmax from 2 layers on": against, "Accuracy grows with depth, to 8 layers": deeper}
    dead = f"{len(plain) - len(r2)} dead of {len(plain)} models are not counted" if len(plain) > len(r2) else ""
    claims = [
        Claim(text, list(cases.values()), "; ".join(filter(None, [_exceptions(cases), dead])))
        for text, cases in texts.items()
    ]
    return claims + recipe_claims([row for row in rows if row.get("recipe") == BEST])


def _exceptions(cases: dict[tuple[int, int, str], bool]) -> str:
    missing = [name for (_, _, name), agrees in cases.items() if not agrees]
    return f"not at {', '.join(missing)}" if missing else ""


def _shift_tasks(preset: str) -> list[Config]:
    """One task per architecture: the best cell of its grid at (5, 3)."""
    return [best_qp_cell(preset, *PAPER_SIZES[0], architecture) for architecture in TRANSFORMERS]


def _run_shift(config: Config) -> list[Row]:
    """One trained model on five test sets, without retraining."""
    return [{"kappa": name, **_measures(config, kappa)} for name, kappa in RANGES.items()]


def _shift_tables(rows: list[Row]) -> list[Table]:
    """R² and its relative drop per range of κ, ours and the paper's."""
    r2, paper = _by_range(rows), published("qp_distribution_shift")
    cells = []
    for name in RANGES:
        line = [name]
        for architecture in TRANSFORMERS:
            line.append(_with_drop(r2.get((name, architecture)), r2.get(("none", architecture))))
            line.append(_with_drop(paper[f"kappa={name}", architecture], paper["kappa=none", architecture]))
        cells.append(line)
    columns = ["κ", *(title for name in TRANSFORMERS for title in (name, "paper"))]
    return [Table("R² under a shift of the condition number, (5, 3)", columns, cells, _describe(rows))]


def _by_range(rows: list[Row]) -> dict[tuple[str, str], float]:
    return {(row["kappa"], row["architecture"]): row["r2"] for row in rows}


def _with_drop(value: float | None, base: float | None) -> str:
    if value is None or base is None:
        return "–"
    return f"{value:.4f} ({100 * (value - base) / base:+.2f}%)"


def _shift_claims(rows: list[Row]) -> list[Claim]:
    """Accuracy falls as κ grows; Linear stays above Softmax and loses less of its R²."""
    r2 = _by_range(rows)
    names = [name for name in RANGES if all((name, a) in r2 for a in TRANSFORMERS)]
    linear, softmax = ([r2[name, architecture] for name in names] for architecture in TRANSFORMERS)
    falling = [b < a for values in (linear, softmax) for a, b in pairwise(values)]
    above = [a >= b for a, b in zip(linear, softmax, strict=True)]
    losses = [
        (linear[0] - a) / linear[0] <= (softmax[0] - b) / softmax[0]
        for a, b in zip(linear[1:], softmax[1:], strict=True)
    ]
    return [
        Claim("R² falls as κ grows", falling),
        Claim("Linear ≥ Softmax on every range of κ", above),
        Claim("Linear loses a smaller share of its R² than Softmax", losses),
    ]


def _ablation_tasks(preset: str) -> list[Config]:
    """One task per size and architecture."""
    sizes = ABLATION_SIZES[:1] if preset == "smoke" else ABLATION_SIZES
    return [best_qp_cell(preset, n, m, architecture) for n, m in sizes for architecture in (*TRANSFORMERS, *BASELINES)]


def _ablation_tables(rows: list[Row]) -> list[Table]:
    """R² per size and architecture, ours and, in brackets, the paper's; then the numbers of parameters."""
    r2, paper = {(row["n"], row["m"], row["architecture"]): row["r2"] for row in rows}, published("arch_ablation")
    names = (*TRANSFORMERS, *BASELINES)
    cells = [
        [f"{n}, {m}", *(quantity_cell(r2.get((n, m, a)), ".4f", paper=paper[f"n={n};m={m}", a]) for a in names)]
        for n, m in ABLATION_SIZES
    ]
    sizes = {row["architecture"]: row["parameters"] for row in rows}
    counted = ", ".join(f"{name} {sizes[name]:,}" for name in names if name in sizes)
    note = f"{_describe(rows)}; parameters (largest size): {counted}"
    return [Table("R² on the test set by size and architecture (paper's)", ["n, m", *names], cells, note)]


def _ablation_claims(rows: list[Row]) -> list[Claim]:
    """Transformers are far better than the baselines; Linear is at least as good as Softmax."""
    r2 = {(row["n"], row["m"], row["architecture"]): row["r2"] for row in rows}
    complete = [size for size in ABLATION_SIZES if all((*size, name) in r2 for name in (*TRANSFORMERS, *BASELINES))]
    above, far, linear = [], [], []
    for size in complete:
        weakest = min(r2[*size, name] for name in TRANSFORMERS)
        strongest = max(r2[*size, name] for name in BASELINES)
        above.append(weakest > strongest)
        far.append(1 - weakest <= MUCH_BETTER * (1 - strongest))
        linear.append(r2[*size, "LinearTransformer"] >= r2[*size, "SoftmaxTransformer"])
    meaning = f"1 − R² of the weaker transformer at most {MUCH_BETTER:g} times that of the better baseline"
    return [
        Claim("Both transformers above MLP and LSTM at every size", above),
        Claim("Transformers ≫ MLP, LSTM", far, meaning),
        Claim("Linear ≥ Softmax at every size", linear),
    ]


def _histogram_tasks(preset: str) -> list[Config]:
    """One task per size and architecture, the best cell of each."""
    sizes = HISTOGRAM_SIZES[:1] if preset == "smoke" else HISTOGRAM_SIZES
    return [best_qp_cell(preset, n, m, architecture) for n, m in sizes for architecture in TRANSFORMERS]


def _run_histograms(config: Config) -> list[Row]:
    """Counts of the three errors on the test set, with the edges of the bins, and all measures."""
    model, notes = trained_qp_model(config)
    test = _split_of(config, "test")
    x = predict(model, test.tokens())
    counts = {f"{name}_counts": values for name, values in histograms(test, x).items()}
    edges = {f"{name}_edges": np.round(values, 9).tolist() for name, values in HISTOGRAM_EDGES.items()}
    return [{**evaluate(test, x), **counts, **edges, **_facts(notes)}]


def _histogram_tables(rows: list[Row]) -> list[Table]:
    """Mean, median and 95th percentile of the NMSE, the other errors, and a histogram of the NMSE in one line."""
    titles = {"nmse_mean": "NMSE mean", "nmse_median": "NMSE median", "nmse_p95": "NMSE p95"}
    titles |= {"violation": "violation", "gap_absolute": "|gap|", "gap_signed": "gap"}
    cells = [
        [
            f"({row['n']}, {row['m']}) {row['architecture']}",
            *(f"{row[k]:.4f}" for k in titles),
            _bars(row["nmse_counts"]),
        ]
        for row in rows
    ]
    note = (
        f"{_describe(rows)}. Last column: NMSE, one mark per quarter of a decade from 1e-5 to 1e2. Paper, (5, 3) "
        f"LinearTransformer: NMSE median {PAPER_NMSE['median']}, p95 {PAPER_NMSE['p95']}"
    )
    return [Table("Errors on the test set", ["(n, m)", *titles.values(), "NMSE, 1e-5 to 1e2"], cells, note)]


def _bars(counts: list[int]) -> str:
    """Two bins to a mark; height in eighths of the highest."""
    pairs = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]
    marks = "·▁▂▃▄▅▆▇█"
    return "".join(marks[-(-count * 8 // max(max(pairs), 1))] for count in pairs)


def _histogram_claims(rows: list[Row]) -> list[Claim]:
    """The two figures that the paper gives."""
    text = f"The best linear transformer at (5, 3) has median NMSE ≤ {PAPER_NMSE['median']}"
    chosen = [row for row in rows if (row["n"], row["m"], row["architecture"]) == (5, 3, TRANSFORMERS[0])]
    cases = [row[f"nmse_{key}"] <= most for row in chosen for key, most in PAPER_NMSE.items()]
    detail = "; ".join(f"median {r['nmse_median']:.3g}, 95th percentile {r['nmse_p95']:.3g}" for r in chosen)
    return [Claim(f"{text} and 95th percentile ≤ {PAPER_NMSE['p95']}", cases, detail)]


BASELINES = ("MLP", "LSTM")
#: Width, regularisation and training of every preset. `paper` is the paper's; in `smoke` and `cpu` the numbers of
#: instances and steps are the same for all cells.
_SMALL: dict[str, Any] = {"dropout": 0.0, "scaled_init": True, "position_std": 1.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": _SMALL
    | {"d_model": 16, "counts": {"train": 1024, "validation": 256, "test": 256}}
    | {"training": ONE_PASS | {"epochs": 2, "lr": 3e-3, "clip_norm": 1.0}},
    "cpu": _SMALL
    | {"d_model": 32, "counts": {"train": 160_000, "validation": 10_000, "test": 10_000}}
    | {"training": ONE_PASS | {"epochs": 1, "lr": 2e-3, "clip_norm": 0.1}},
    "paper": {
        "dropout": 0.1,
        "scaled_init": False,
        "position_std": 0.02,
        "d_model": 256,
        "counts": None,
        "training": {},
    },
}
#: Layers and heads of the best cell of the grid under the `cpu` preset, by R² on the validation set: of up to 8 layers,
#: the most that every size has. With 16 layers, run at (5, 3) alone, R² is .95 in place of .93 and .88 in place of .84.
BEST_CPU = {"LinearTransformer": (8, 2), "SoftmaxTransformer": (8, 4)}
SMOKE_CELL = (2, 2)
DEAD_CELL = re.compile(r"^-?0\.000\b")


def qp_cell(
    preset: str, n: int, m: int, architecture: str, layers: int | None = None, heads: int | None = None
) -> Config:
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


def best_qp_cell(preset: str, n: int, m: int, architecture: str) -> Config:
    """The cell of the best number of layers and heads: ours of the preset, the paper's own for `paper`."""
    if architecture in BASELINES:
        return qp_cell(preset, n, m, architecture)
    if preset == "paper":
        layers, heads = best_published_qp_cell(n, m, architecture)
    else:
        layers, heads = BEST_CPU[architecture] if preset == "cpu" else SMOKE_CELL
    return qp_cell(preset, n, m, architecture, layers, heads)


def trained_qp_model(config: Config, *, device: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a cell and how its training went; trained now unless it is on disk. A killed one goes on."""
    key = json_digest(config)
    path = cache_directory() / "models" / f"{key}.safetensors"
    with contextlib.suppress(InputError):  # not there, or damaged: trained again
        return load_model(path)
    model = qp_cell_model(config)
    held_out = _pairs(config, _split_of(config, "validation"))
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint = cache_directory() / "runs" / f"{key}.safetensors"
    training = TrainingConfig(**config["training"], seed=config["seed"])
    state = train(model, _examples(config), held_out, training, device=place, checkpoint=checkpoint)
    model.to("cpu")
    notes = {
        "parameters": count_parameters(model),
        "validation_r2": r2_score(predict(model, held_out[0]), held_out[1]),
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "steps": state.step,
        "diverged": state.diverged,
        "train_seconds": round(state.seconds, 1),
        "core_minutes": round(state.core_seconds / 60, 2),
        "instances": state.step * training.batch,
        "device": place,
    }
    save_model(model, path, {**notes, "cell": config})
    checkpoint.unlink(missing_ok=True)
    return load_model(path)


def qp_cell_model(config: Config) -> nn.Module:
    """The untrained model of a cell."""
    keys = ("layers", "heads", "scaled_init", "position_std")
    shape = {key: config[key] for key in keys if config.get(key) is not None} | config.get("start", {})
    return build(
        config["architecture"],
        config["n"],
        config["m"],
        seed=config["seed"],
        d_model=config["d_model"],
        dropout=config["dropout"],
        **shape,
    )


def _examples(config: Config) -> tuple[torch.Tensor, torch.Tensor] | FreshQPs:
    """The training problems of a cell."""
    if config.get("recipe") == BEST:
        return FreshQPs(config["counts"]["train"], config["n"], config["m"], scaled=config["scaled_tokens"])
    return _pairs(config, _split_of(config, "train"))


def _split_of(config: Config, name: str, kappa: tuple[float, float] | None = None) -> LabelledQPs:
    """The training, validation or test set of a cell, the last also with a shifted condition number."""
    return labelled_qps(config["counts"][name], config["n"], config["m"], seed=PAPER_SEEDS[name], kappa=kappa)


def _measures(config: Config, kappa: tuple[float, float] | None = None) -> Row:
    """Train the cell unless it is on disk and measure it on its test set."""
    model, notes = trained_qp_model(config)
    test = _split_of(config, "test", kappa)
    tokens, _ = _pairs(config, test)
    live = live_units(model, tokens)
    measured = evaluate(test, predict(model, tokens)) | ({} if live is None else {"live_units": live})
    return {**measured, **_facts(notes)}


def _facts(notes: dict[str, Any]) -> Row:
    """The fields of a row about its model, besides the measures."""
    return {key: value for key, value in notes.items() if key != "cell"}


def _describe(rows: list[Row]) -> str:
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


def _pairs(config: Config, data: LabelledQPs) -> tuple[torch.Tensor, torch.Tensor]:
    return data.tokens(scaled=config.get("scaled_tokens", False)), data.x


EXPERIMENTS = (
    Experiment(
        id="qp-grid",
        title="R² of learned QP solvers over layers and heads",
        paper="Section 4.2, Appendix E: tables",
        presets={"smoke": "10 s", "cpu": "3 h", "paper": "days on a GPU"},
        tasks=_grid_tasks,
        run=_run_cell,
        tables=_grid_tables,
        claims=_grid_claims,
    ),
    Experiment(
        id="qp-shift",
        title="R² under a shift of the condition number",
        paper="Section 4.2: table of κ ranges",
        presets={"smoke": "5 s", "cpu": "1 min after qp-grid", "paper": "minutes after qp-grid"},
        tasks=_shift_tasks,
        run=_run_shift,
        tables=_shift_tables,
        claims=_shift_claims,
    ),
    Experiment(
        id="qp-histograms",
        title="Distributions of NMSE, violation and objective error",
        paper="Section 4.2, Appendix E: figures",
        presets={"smoke": "5 s", "cpu": "1 min after qp-ablation", "paper": "minutes after qp-grid"},
        tasks=_histogram_tasks,
        run=_run_histograms,
        tables=_histogram_tables,
        claims=_histogram_claims,
    ),
    Experiment(
        id="qp-ablation",
        title="Transformers against MLP and LSTM",
        paper="Appendix D: table",
        presets={"smoke": "10 s", "cpu": "25 to 60 min", "paper": "a day on a GPU"},
        tasks=_ablation_tasks,
        run=_run_cell,
        tables=_ablation_tables,
        claims=_ablation_claims,
    ),
)
