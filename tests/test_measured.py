"""The figures of docs/measured.md are those of the stored rows."""

import re
from pathlib import Path
from statistics import median

from time2decide.experiments.portfolio_scores import check_same_data
from time2decide.experiments.registry import get_experiment
from time2decide.experiments.store import Store, task_key
from time2decide.qp import PAPER_SIZES

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "docs" / "measured.md").read_text().split("<!-- measured -->")[1].split("\n\n")[0]


def rows(name):
    """Stored rows of the tasks that the preset cpu has now."""
    keys = None if name.startswith("bench-") else {task_key(task) for task in get_experiment(name).tasks("cpu")}
    return Store(name, "cpu", ROOT / "results").rows(keys)


def line(*words):
    """The one line of the table that has all these words."""
    (found,) = [row for row in TABLE.splitlines() if all(word in row for word in words)]
    return found


def short(value, digits=4):
    """.0031 as the table writes it, −.29 with a minus sign."""
    return f"{value:.{digits}f}".replace("0.", ".").replace("-", "−")


def test_overheads():
    found = [rows(f"runtime-{kind}") for kind in ("u", "r", "lc", "c")]
    largest = " / ".join(f"{max(row['overhead'] for row in kind):.2f}" for kind in found)
    assert f"≤ {largest}" in line("in its state form**")
    literal = [[row["literal_overhead"] for row in kind] for kind in found]
    assert " / ".join(f"{median(kind):.1f}" for kind in literal) in line("in its literal form**")


def test_layers():
    found = {(row["kind"], row["method"]): row for row in rows("convergence")}
    plain = (("U", "gradient"), ("LC", "arrow_hurwicz"), ("R", "ista"), ("C", "projected_gradient"))
    differences = [max(found[key]["largest_difference"] for key in keys) for keys in (plain, found)]
    assert " / ".join(f"{value:.0e}".replace("e-0", "e-") for value in differences) in line("classical steps, largest")
    layers = {key: row["layers_to_1e-6"]["median"] for key, row in found.items()}
    best = {kind: min(layers[key] for key in found if key[0] == kind) for kind, _ in plain}
    for kind, method in plain:
        assert re.search(rf"{kind} {layers[kind, method]:.0f} →.* {best[kind]:.0f}\b", line("layers to 1e-6"))


def test_learned_solver():
    found = [row for row in rows("qp-agnostic") if row["model"] == "trained"]
    own = [row for row in found if row["kappa"] is None and (row["n"], row["m"]) in PAPER_SIZES]
    assert f"≤ {max(row['missed'] for row in own):.0e}".replace("e-0", "e-") in line("1 − R² at the nine sizes")
    (shifted,) = [row for row in found if row["kappa"] == [10.0, 20.0] and (row["n"], row["m"]) == (5, 3)]
    assert f"{shifted['missed']:.0e}" in line("κ 10–20")
    assert {row["certified_without_fallback"] for row in own if (row["n"], row["m"]) in ((5, 3), (20, 16))} == {1.0}


def test_theory():
    (exact,) = [row for row in rows("toy-pto") if row["kind"] == "exact"]
    pairs = dict(zip(exact["numbers"], zip(exact["pto"], exact["e2e"], strict=True), strict=True))
    for number, digits in ((5, 4), (50, 4), (500, 5)):
        assert " / ".join(short(value, digits) for value in pairs[number]) in line("two-asset model")
    r2 = {row["arm"]: row["r2"] for row in rows("parity")}
    best = [max(value for arm, value in r2.items() if arm.startswith(name)) for name in ("Linear", "Basic")]
    assert " / ".join(short(value, 3) for value in best) in line("covariance learnt")
    for arm, digits in (("no projection, width 16", 3), ("pure attention", 2), ("pure + constant channel", 3)):
        assert short(r2[arm], digits) in line("without projection at equal width")


def test_ratios():
    oracle = [row["ratio"] for row in rows("bench-oracle") if row["ratio"]]
    assert " / ".join(f"{round(value, -2):,.0f}" for value in oracle) in line("exact oracle")
    labels = [row["ratio"] for row in rows("bench-labels")]
    assert f"{round(min(labels), -1):.0f}–{round(max(labels), -1):.0f}" in line("exact labels")
    projection = [row["ratio"] for row in rows("bench-projection") if row["assets"] == 16 and row["batch"] > 1]
    assert " / ".join(f"{round(value, -2):,.0f}" for value in projection) in line("portfolio projection")


def test_rows_of_one_cell_have_one_data_set():
    """Utility + regret is the oracle's utility: equal for all strategies of a market, seed, γ and λ, in every store."""
    checked = 0
    for path in sorted((ROOT / "results").glob("*/cpu.jsonl")):
        cells = {}
        for row in Store(path.parent.name, "cpu", ROOT / "results").rows():
            if {"utility", "regret", "turnover_l1"} <= row.keys():
                keys = ("market", "seed", "turnover_l1", "risk_aversion", "evaluation")
                cells.setdefault(str([row.get(key) for key in keys]), []).append(row)
        for some in cells.values():
            check_same_data(some)
            checked += len(some) > 1
    assert checked
