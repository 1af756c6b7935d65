import re
from xml.etree import ElementTree

import pytest

from time2decide.core.files import atomic_path
from time2decide.reports import draw
from time2decide.reports.figures import FIGURES, figure_svg


def histogram_row(architecture, n, m):
    errors = {name: {"edges": [1e-3, 1e-2, 1e-1], "counts": [5, 10, 20, 1]} for name in ("nmse", "violation")}
    errors["objective_error"] = errors["nmse"]
    row = {f"{name}_{part}": values for name, parts in errors.items() for part, values in parts.items()}
    return row | {"architecture": architecture, "n": n, "m": m, "nmse_median": 0.01, "nmse_p95": 0.09, "error": None}


def curve_row(kind, method):
    residuals = [10.0 ** (-k) for k in range(20)]
    return {"kind": kind, "method": method, "construction": residuals, "classical": residuals, "error": None}


def toy_rows():
    rules = {"pto": 0.05, "e2e": 0.01}
    point = rules | {f"{rule}_se": 1e-3 for rule in rules} | {f"{rule}_exact": v for rule, v in rules.items()}
    exact = {"kind": "exact", "numbers": [5, 50], "rho": [0.1, 0.3], "pto": [0.05, 0.02], "e2e": [0.01, 0.008]}
    rows = [
        exact,
        {"kind": "simulated", "n": 5} | point,
        {"kind": "signal", "signal": 0.1, "n": 50, "count": 9} | point,
    ]
    return [row | {"error": None} for row in rows]


def parity_row(arm, r2, oddness):
    return {"arm": arm, "model": {"layers": 4, "heads": 2}, "r2": r2, "oddness": oddness, "error": None}


def portfolio_rows(market):
    names = ("uniform", "pto-network", "time2decide-own", "time2decide-utility")
    common = {"market": market, "seed": 0, "error": None}
    return [
        {
            **common,
            "strategy": name,
            "turnover_l1": g,
            "mse": 0.01 * g,
            "mse_series": [0.01 * g, 0.02],
            "regret_series": [0.001, 0.002],
        }
        for name in names
        for g in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    ]


def grid_row(architecture, layers):
    return {"n": 5, "m": 3, "architecture": architecture, "layers": layers, "heads": 2, "r2": 0.5, "error": None}


ROWS = {
    "qp-grid": [grid_row(a, layers) for a in ("LinearTransformer", "SoftmaxTransformer") for layers in (1, 2)],
    "portfolio-baselines": portfolio_rows("clean") + portfolio_rows("noisy"),
    "toy-pto": toy_rows(),
    "parity": [parity_row("LinearTransformer 4×2", 0.99, 2.0), parity_row("pure attention", -0.7, 0.0)],
    "convergence": [curve_row("U", "gradient"), curve_row("U", "nesterov"), curve_row("LC", "arrow_hurwicz")],
    "qp-histograms": [histogram_row(a, 5, 3) for a in ("LinearTransformer", "SoftmaxTransformer")],
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_a_function_of_rows(name, tmp_path):
    failed = {"kind": "U", "method": "gradient", "n": 5, "m": 3, "error": "RuntimeError: diverged"}
    (path,) = draw(name, [*ROWS[name], failed], "smoke", tmp_path)
    assert path == tmp_path / "figures" / f"{name}-smoke.png"
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG")
    draw(name, [*ROWS[name], failed], "smoke", tmp_path)
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_gets_the_same_figure_in_its_own_colours(name):
    text = figure_svg(name, ROWS[name])
    assert text == figure_svg(name, ROWS[name])
    root = ElementTree.fromstring(text)  # well-formed on its own
    assert root.tag.endswith("svg")
    assert "currentColor" in text
    assert "#3a414b" not in text  # the ink of the files
    ids = re.findall(r'<(\w+) [^>]*?id="', text)
    assert set(ids) <= {"clipPath", "path"}  # groups have none: several figures share a page
    assert "<metadata" not in text
    assert figure_svg(name, []) == ""


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "new" / "one.txt"
    with atomic_path(path) as first, atomic_path(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"  # the last to end counts
    with pytest.raises(FileNotFoundError), atomic_path(path):
        (tmp_path / "missing").read_text()
    assert [(p.name, p.read_text()) for p in path.parent.iterdir()] == [("one.txt", "first")]


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_drawn_when_every_task_failed(name, tmp_path):
    failed = {"kind": "U", "method": "gradient", "error": "RuntimeError: diverged"}
    assert draw(name, [failed, failed], "smoke", tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_an_experiment_without_a_figure_draws_none(tmp_path):
    assert draw("qp-shift", [{"error": None}], "cpu", tmp_path) == []
    assert not list(tmp_path.iterdir())
