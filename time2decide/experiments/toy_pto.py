"""The paper's figure on predict-then-optimise in the two-asset model: shrinkage, regret, decision error.

Regret is simulated as in the paper and integrated exactly beside it. The exact regret is computed for every number of
samples from 5 to 500, so that "lower at every n" is checked, not sampled.
"""

from __future__ import annotations

import itertools

import numpy as np

from time2decide.core.table import Table, quantity
from time2decide.experiments.claims import Claim
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import Config, Row
from time2decide.theory.toy import RULES, ToyModel

#: Numbers of samples that are simulated.
SIMULATED = (5, 7, 10, 14, 20, 28, 40, 57, 80, 113, 160, 226, 320, 400, 500)
SIGNAL_SAMPLES = 50  # n of the panel over signal strength
SURE_ERRORS = 3  # standard errors beyond which a difference is no chance
SAME_ERROR = 0.1  # relative change of the decision error that counts as none
_TRIALS = {"smoke": 5_000, "cpu": 100_000, "paper": 100_000}
_BINS = np.linspace(0.0, 0.6, 13)


def tasks(preset: str) -> list[Config]:
    """One task for the regret by number of samples, one for the error by signal strength."""
    model = {"prior_variance": 0.01, "return_variance": 0.5, "risk_aversion": 0.2}
    exact = [5, 50, 500] if preset == "smoke" else list(range(5, 501))
    common = {"model": model, "trials": _TRIALS[preset], "seed": 0}
    simulated = [5, 50, 500] if preset == "smoke" else list(SIMULATED)
    return [
        {"part": "regret", "simulated": simulated, "exact": [exact[0], exact[-1], len(exact)], **common},
        {"part": "signal", "n": SIGNAL_SAMPLES, **common},
    ]


def run(config: Config) -> list[Row]:
    """Rows of one panel."""
    model = ToyModel(**config["model"])
    if config["part"] == "signal":
        return _signal(model, config["n"], config["trials"], config["seed"])
    first, last, count = config["exact"]
    numbers = np.unique(np.linspace(first, last, count).round().astype(int)).tolist()
    rows = [_regret(model, n, config["trials"], config["seed"]) for n in config["simulated"]]
    exact = {rule: [model.regret(rule, n) for n in numbers] for rule in RULES}
    rho = [model.shrinkage(n) for n in numbers]
    return [*rows, {"kind": "exact", "numbers": numbers, "rho": rho, **exact}]


def _regret(model: ToyModel, n: int, trials: int, seed: int) -> Row:
    """Simulated regret of both rules on the same trials, their difference, and the exact values."""
    gap, estimate = model.sample(n, trials, np.random.default_rng([seed, n]))
    losses = {rule: model.losses(rule, gap, estimate, n) for rule in RULES}
    losses["difference"] = losses["pto"] - losses["e2e"]
    row: Row = {"kind": "simulated", "n": n, "rho": model.shrinkage(n)}
    for name, values in losses.items():
        row[name] = float(values.mean())
        row[f"{name}_se"] = float(values.std(ddof=1) / np.sqrt(trials))
    return row | {f"{rule}_exact": model.regret(rule, n) for rule in RULES}


def _signal(model: ToyModel, n: int, trials: int, seed: int) -> list[Row]:
    """Mean |w − w*| of both rules by bins of |δ̂|, and the exact curve at the middle of each bin."""
    gap, estimate = model.sample(n, trials, np.random.default_rng([seed, n, 1]))
    errors = {rule: np.abs(model.decide(rule, estimate, n) - model.weight(gap)) for rule in RULES}
    rows: list[Row] = []
    for low, high in itertools.pairwise(_BINS):
        inside = (np.abs(estimate) >= low) & (np.abs(estimate) < high)
        count, middle = int(inside.sum()), float((low + high) / 2)
        row: Row = {"kind": "signal", "signal": middle, "count": count}
        for rule in RULES:
            chosen = errors[rule][inside]
            row[rule] = float(chosen.mean()) if count else None
            row[f"{rule}_se"] = float(chosen.std(ddof=1) / np.sqrt(count)) if count > 1 else None
            row[f"{rule}_exact"] = model.decision_error(rule, middle, n)
        rows.append(row)
    return rows


def claims(rows: list[Row]) -> list[Claim]:
    """What the paper concludes from its figure, and whether simulation and integral agree."""
    simulated, exact, signal = ([row for row in rows if row["kind"] == k] for k in ("simulated", "exact", "signal"))
    lower = [e < p for row in exact for e, p in zip(row["e2e"], row["pto"], strict=True)]
    drawn = [row["difference"] > SURE_ERRORS * row["difference_se"] for row in simulated]
    distances = [abs(row[r] - row[f"{r}_exact"]) / row[f"{r}_se"] for row in simulated for r in RULES]
    gaps = [p - e for row in exact for e, p in zip(row["e2e"], row["pto"], strict=True)]
    pto, e2e = ([row[f"{rule}_exact"] for row in signal] for rule in RULES)
    return [
        Claim("E2E regret < PtO regret at every n (exact)", lower),
        Claim(f"E2E regret < PtO regret in simulation, by more than {SURE_ERRORS} standard errors", drawn),
        Claim(
            f"Simulation within {SURE_ERRORS} standard errors of the integral",
            [d <= SURE_ERRORS for d in distances],
            f"largest {max(distances, default=0):.2f}",
        ),
        Claim("The gap shrinks as n grows", [b < a for a, b in itertools.pairwise(gaps)]),
        Claim("PtO's decision error grows with the signal", [b > a for a, b in itertools.pairwise(pto)]),
        Claim(
            f"E2E's decision error stays the same to {SAME_ERROR:.0%} as the signal grows",
            [abs(e / e2e[0] - 1) < SAME_ERROR for e in e2e],
        ),
    ]


def tables(rows: list[Row]) -> list[Table]:
    """Regret by number of samples and decision error by signal strength."""
    regret, error = [], []
    for row in (row for row in rows if row["kind"] == "simulated"):
        cells = [f"{row['n']}", f"{row['rho']:.3f}"]
        for rule in RULES:
            cells += [_estimate(row, rule), f"{1e3 * row[f'{rule}_exact']:.3f}"]
        regret.append([*cells, _estimate(row, "difference")])
    for row in (row for row in rows if row["kind"] == "signal"):
        cells = [f"{row['signal']:.3f}", str(row["count"])]
        for rule in RULES:
            cells += [quantity(row[rule], ".4f"), f"{row[f'{rule}_exact']:.4f}"]
        error.append(cells)
    caption = f"Regret × 1e3, simulated ± standard error and exact; {rows[0]['trials']:,} trials per point"
    found = [
        Table(caption, ["n", "ρ", "PtO", "exact", "E2E", "exact", "PtO − E2E"], regret),
        Table(
            f"Mean |w − w*| given |δ̂|, n = {SIGNAL_SAMPLES}: simulated and exact",
            ["|δ̂|", "trials", "PtO", "exact", "E2E", "exact"],
            error,
            "The paper shows the three panels without figures.",
        ),
    ]
    return [table for table in found if table.rows]


def _estimate(row: Row, name: str) -> str:
    return quantity(1e3 * row[name], ".3f", 1e3 * row[f"{name}_se"])


EXPERIMENTS = (
    Experiment(
        id="toy-pto",
        title="Two-asset model: regret of predict-then-optimise and end-to-end",
        paper="Appendix F: figure",
        presets={"smoke": "1 s", "cpu": "10 s", "paper": "10 s"},
        tasks=tasks,
        run=run,
        tables=tables,
        claims=claims,
    ),
)
