"""The paper's convergence figure: construction and classical iteration layer by layer, and the accelerated ones.

Besides the curves every task measures, on its problems, the largest difference between construction and classical
iterates, and the number of layers to a KKT residual of 1e-6.
"""

from __future__ import annotations

import numpy as np
import torch

from time2decide.attention import METHODS, build
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row
from time2decide.qp import PAPER_SIZES, kkt, random_qp
from time2decide.solving import solve

#: class -> the paper's method, then the accelerated ones.
CURVES = {
    "U": ("gradient", "nesterov", "newton_schulz"),
    "R": ("ista", "fista", "admm"),
    "C": ("projected_gradient", "fista", "admm"),
    "LC": ("arrow_hurwicz", "admm"),
}
_LAYERS = {"smoke": 50, "cpu": 1000, "paper": 1000}
_PROBLEMS = {"smoke": 9, "cpu": 207, "paper": 207}


def tasks(preset: str) -> list[Config]:
    """One task per class and method."""
    return [
        {"kind": kind, "method": method, "layers": _LAYERS[preset], "problems": _PROBLEMS[preset], "seed": 0}
        for kind, methods in CURVES.items()
        for method in methods
    ]


def run(config: Config) -> list[Row]:
    """Residuals of one (n, m) = (10, 6) problem layer by layer, and layers to 1e-6 over the paper's sizes."""
    kind, method = config["kind"], config["method"]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        curve = random_qp(1, 10, 6 if kind == "LC" else 0, kind=kind, seed=config["seed"])
        layers = min(config["layers"], 40) if method == "newton_schulz" else config["layers"]
        residuals, difference = _side_by_side(curve, method, layers)
        counts = []
        smoke = config["layers"] < 100
        for n, m in PAPER_SIZES[::4] if smoke else PAPER_SIZES:
            seed = [config["seed"], n, m]
            qp = random_qp(
                config["problems"] // 9, n, m if kind == "LC" else 0, kind=kind, seed=np.random.default_rng(seed)
            )
            solution = solve(qp, method, tol=1e-6, check_every=1, max_steps=100 if smoke else 100_000)
            counts += solution.steps.tolist()
    finally:
        torch.set_num_threads(before)
    return [
        {
            "construction": residuals["state"],
            "classical": residuals["classical"],
            "largest_difference": difference,
            "layers_to_1e-6": {"median": float(np.median(counts)), "max": int(max(counts)), "each": counts},
        }
    ]


@torch.no_grad()
def _side_by_side(qp, method: str, layers: int) -> tuple[dict[str, list[float]], float]:  # type: ignore[no-untyped-def]
    """KKT residual per layer of both forms and the largest difference of their iterates."""
    forms = {form: build(qp, method, form) for form in ("state", "classical")}
    zero = qp.b.new_zeros(len(qp), qp.n), qp.b.new_zeros(len(qp), qp.m)
    states = {form: algorithm.start(*zero) for form, algorithm in forms.items()}
    residuals: dict[str, list[float]] = {form: [] for form in forms}
    difference = 0.0
    for layer in range(layers + 1):
        points = {form: algorithm.read(states[form]) for form, algorithm in forms.items()}
        for form, point in points.items():
            residuals[form].append(kkt(qp, *point).worst.item())
        difference = max(difference, (points["state"][0] - points["classical"][0]).abs().max().item())
        if layer < layers:
            states = {form: algorithm.step(states[form]) for form, algorithm in forms.items()}
    return residuals, difference


def show(rows: list[Row]) -> str:
    """Layers to 1e-6 and the largest difference to the classical iteration."""
    lines = [
        "Layers to a KKT residual of 1e-6 over the paper's sizes; largest |construction - classical| over the curve",
        f"{'class':<6}{'method':<20}{'median':>8}{'max':>8}{'fewer than plain':>18}{'difference':>12}  preset",
    ]
    plain = {row["kind"]: row for row in rows if row["method"] == CURVES[row["kind"]][0] and not row["error"]}
    for row in rows:
        if row["error"]:
            lines.append(f"{row['kind']:<6}{row['method']:<20}  failed: {row['error']}")
            continue
        counts = row["layers_to_1e-6"]
        fewer = ""
        if row["kind"] in plain and row is not plain[row["kind"]]:
            ratios = np.array(plain[row["kind"]]["layers_to_1e-6"]["each"]) / np.maximum(counts["each"], 1)
            fewer = f"{np.median(ratios):.1f}x"
        lines.append(
            f"{row['kind']:<6}{row['method']:<20}{counts['median']:>8.0f}{counts['max']:>8}{fewer:>18}"
            f"{row['largest_difference']:>12.1e}  {row['preset']}"
        )
    lines.append("The paper shows the curves of U, R and C without figures; they overlap there, as they do here.")
    return "\n".join(lines)


EXPERIMENTS = (
    Experiment(
        id="convergence",
        title="constructions against classical iterations, and accelerated ones",
        paper="Figure 2",
        presets={"smoke": "10 s", "cpu": "2 min", "paper": "2 min"},
        tasks=tasks,
        run=run,
        show=show,
    ),
)
assert {method for methods in CURVES.values() for method in methods} <= set(METHODS)
