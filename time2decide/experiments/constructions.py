"""The constructions beside classical iterations: convergence layer by layer, and time per step.

Convergence, besides the curves: the largest difference between construction and classical iterates, and the number of
layers to a KKT residual of 1e-6. Times come from the machinery of ``time2decide.bench.solvers``: interleaved, one
thread, medians of many rounds. Times are those of the machine named in the rows; the overhead is what can be compared
with the paper's.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from time2decide.attention.loop import iterates
from time2decide.attention.methods import build
from time2decide.bench.solvers import RUNTIME_SIZES, time_construction
from time2decide.bench.timing import one_thread
from time2decide.core.table import Table, quantity_cell
from time2decide.experiments.claims import Claim, published
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row
from time2decide.qp.generators import PAPER_SIZES, random_qp
from time2decide.qp.problem import QP
from time2decide.qp.solution import kkt
from time2decide.solving import solve

#: class -> the paper's method, then the accelerated ones.
CURVES = {
    "U": ("gradient", "nesterov", "newton_schulz"),
    "R": ("ista", "fista", "admm"),
    "C": ("projected_gradient", "fista", "admm"),
    "LC": ("arrow_hurwicz", "admm"),
}
SAME_STEPS = 1e-9  # largest difference of iterates that counts as rounding
_LAYERS = {"smoke": 50, "cpu": 1000, "paper": 1000}
_PROBLEMS = {"smoke": 9, "cpu": 207, "paper": 207}
_TITLES = {"U": "gradient descent", "R": "ISTA", "C": "projected gradient", "LC": "Arrow–Hurwicz"}
#: "Near parity" as a number: the largest overhead that the paper prints for U, R and LC.
NEAR_PARITY = 1.35
_ROUNDS = {"smoke": 5, "cpu": 101, "paper": 101}
_BATCHES = (1, 256)


def _convergence_tasks(preset: str) -> list[Config]:
    """One task per class and method."""
    return [
        {"kind": kind, "method": method, "layers": _LAYERS[preset], "problems": _PROBLEMS[preset], "seed": 0}
        for kind, methods in CURVES.items()
        for method in methods
    ]


def _convergence_run(config: Config) -> list[Row]:
    """Residuals of one (n, m) = (10, 6) problem layer by layer, and layers to 1e-6 over the paper's sizes."""
    kind, method = config["kind"], config["method"]
    with one_thread():
        curve = random_qp(1, 10, 6 if kind == "LC" else 0, kind=kind, seed=config["seed"])
        layers = min(config["layers"], 40) if method == "newton_schulz" else config["layers"]
        residuals, difference = _side_by_side(curve, method, layers)
        counts = []
        smoke = config["layers"] < 100
        for n, m in PAPER_SIZES[::4] if smoke else PAPER_SIZES:
            rng = np.random.default_rng([config["seed"], n, m])
            qp = random_qp(config["problems"] // 9, n, m if kind == "LC" else 0, kind=kind, seed=rng)
            solution = solve(qp, method, tol=1e-6, check_every=1, max_steps=100 if smoke else 100_000)
            counts += solution.steps.tolist()
    return [
        {
            "construction": residuals["state"],
            "classical": residuals["classical"],
            "largest_difference": difference,
            "layers_to_1e-6": {"median": float(np.median(counts)), "max": int(max(counts)), "each": counts},
        }
    ]


@torch.no_grad()
def _side_by_side(qp: QP, method: str, layers: int) -> tuple[dict[str, list[float]], float]:
    """KKT residual per layer of both forms and the largest difference of their iterates."""
    zero = qp.b.new_zeros(len(qp), qp.n), qp.b.new_zeros(len(qp), qp.m)
    state, classical = (iterates(build(qp, method, form), *zero, layers) for form in ("state", "classical"))
    residuals: dict[str, list[float]] = {"state": [], "classical": []}
    difference = 0.0
    for ours, theirs in zip(state, classical, strict=True):
        residuals["state"].append(kkt(qp, *ours).worst.item())
        residuals["classical"].append(kkt(qp, *theirs).worst.item())
        difference = max(difference, (ours[0] - theirs[0]).abs().max().item())
    return residuals, difference


def _convergence_tables(rows: list[Row]) -> list[Table]:
    """Layers to 1e-6 and the largest difference to the classical iteration."""
    plain = {row["kind"]: row for row in rows if row["method"] == CURVES[row["kind"]][0]}
    cells = []
    for row in rows:
        counts, fewer = row["layers_to_1e-6"], ""
        if row["kind"] in plain and row is not plain[row["kind"]]:
            ratios = np.array(plain[row["kind"]]["layers_to_1e-6"]["each"]) / np.maximum(counts["each"], 1)
            fewer = f"{np.median(ratios):.1f}x"
        figures = [f"{counts['median']:.0f}", str(counts["max"]), fewer, f"{row['largest_difference']:.1e}"]
        cells.append([f"{row['kind']} {row['method']}", *figures])
    caption = (
        "Layers to a KKT residual of 1e-6 over the paper's sizes; largest |construction − classical| over the curve"
    )
    note = (
        "Constructions in their state form. The paper shows the curves of U, R and C without figures; they overlap "
        "there, as they do here."
    )
    return [Table(caption, ["class, method", "median", "largest", "fewer than plain", "difference"], cells, note)]


def _convergence_claims(rows: list[Row]) -> list[Claim]:
    """The curves of a construction and of its classical iteration are the same."""
    differences = [row["largest_difference"] for row in rows if row["method"] == CURVES[row["kind"]][0]]
    return [
        Claim(
            "The constructions take exactly the steps of the classical iterations (U, R, C, LC)",
            [difference < SAME_STEPS for difference in differences],
            f"largest difference {max(differences):.0e}, at most {SAME_STEPS:.0e} counts as none"
            if differences
            else "",
        )
    ]


def _runtime_tasks(preset: str, kind: str) -> list[Config]:
    """One task per size, each with a single problem and a batch."""
    return [
        {"kind": kind, "n": n, "m": m, "batches": list(_BATCHES), "rounds": _ROUNDS[preset], "seed": n + m}
        for n, m in RUNTIME_SIZES[kind][: 1 if preset == "smoke" else None]
    ]


def _runtime_run(config: Config) -> list[Row]:
    """Time the classical step and both forms of the layer for every batch size."""
    with one_thread(), torch.no_grad():
        return [
            time_construction(config["kind"], config["n"], config["m"], batch, rounds=config["rounds"])
            for batch in config["batches"]
        ]


def _runtime_claims(rows: list[Row], kind: str) -> list[Claim]:
    """Near parity, as the paper claims, in numbers: a layer against its classical step, both forms."""
    state = [row["overhead"] for row in rows]
    literal = [row["literal_overhead"] for row in rows if "literal_overhead" in row]
    cheaper = [row["overhead"] <= _paper(row, "overhead") for row in rows if row["batch"] == 1]
    note = "; the same operation as the classical step" if kind in ("U", "R") else ""
    return [
        Claim(
            f"({kind}), state form{note}: a layer costs at most {NEAR_PARITY:g} classical steps",
            [value <= NEAR_PARITY for value in state],
            f"worst {max(state):.2f}" if state else "",
        ),
        Claim(
            f"({kind}), literal form: a layer costs at most {NEAR_PARITY:g} classical steps",
            [value <= NEAR_PARITY for value in literal],
            f"worst {max(literal):.2f}" if literal else "the stored rows time the state form only",
        ),
        Claim(f"({kind}), state form: overhead of a single problem at most the paper's", cheaper),
    ]


def _runtime_tables(rows: list[Row]) -> list[Table]:
    """Times in µs and overhead, ours beside the paper's."""
    cells = []
    for row in rows:
        size = f"{row['n']}, {row['m']}" if row["m"] else str(row["n"])
        ours = [f"{row['classical_us']:.1f}", f"{row['attention_us']:.1f}", f"{row['overhead']:.2f}"]
        ours += [quantity_cell(row.get("literal_us"), ".1f"), quantity_cell(row.get("literal_overhead"), ".2f")]
        theirs = ["–"] * 3
        if row["batch"] == 1:
            times = [f"{1e3 * _paper(row, name):.0f}" for name in ("classical_ms", "transformer_ms")]
            theirs = [*times, f"{_paper(row, 'overhead'):.2f}"]
        cells.append([f"{row['kind']} {size}", str(row["batch"]), *ours, *theirs])
    columns = ["class, n, m", "batch", "classical", "state", "overhead", "literal", "overhead"]
    columns += ["paper: classical", "paper: attention", "paper: overhead"]
    note = (
        "State form: KᵀV of linear attention is formed once per problem and a step applies it; for U and R that is the "
        "same operation as the classical step, so their overhead says nothing about attention. Literal form: scores "
        "and networks of every layer, over keys and values of the data tokens that are formed once, as in a decoder. "
        "The paper's overhead is measured against its own classical step, 3 to 245 times as long as ours, and cannot "
        "be compared. A dash: not timed."
    )
    return [Table(f"One step in µs per batch, preset {rows[0]['preset']}, one thread", columns, cells, note)]


def _paper(row: Row, name: str) -> float:
    place = f"problem={row['kind']};n={row['n']}" + (f";m={row['m']}" if row["m"] else "")
    return published("runtime")[place, name]


EXPERIMENTS = (
    Experiment(
        id="convergence",
        title="constructions against classical iterations, and accelerated ones",
        paper="Figure 2",
        presets={"smoke": "10 s", "cpu": "2 min", "paper": "2 min"},
        tasks=_convergence_tasks,
        run=_convergence_run,
        tables=_convergence_tables,
        claims=_convergence_claims,
    ),
    *(
        Experiment(
            id=f"runtime-{kind.lower()}",
            title=f"Time per step: {name}",
            paper="Appendix B: table of " + ("(LC)" if kind == "LC" else "(U), (R), (C)"),
            presets={"smoke": "1 s", "cpu": "1 min", "paper": "1 min"},
            tasks=partial(_runtime_tasks, kind=kind),
            run=_runtime_run,
            tables=_runtime_tables,
            claims=partial(_runtime_claims, kind=kind),
        )
        for kind, name in _TITLES.items()
    ),
)
