"""Tables of the experiments on decisions: strategies by turnover budget, ours with the paper's figure in brackets."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

from time2decide.experiments import finetuned_pto as tuned
from time2decide.experiments import lambda_sweep as sweep
from time2decide.experiments import portfolio_tables as measured
from time2decide.experiments.decide_ablation import NOTE
from time2decide.experiments.paper import published
from time2decide.markets import BUDGETS
from time2decide.reports.block import Block, estimate

Row = dict[str, Any]
_SCALE = 1e4
_PAPER_BASELINES = {"uniform": "Uniform", "pto-ridge": "Predict-then-Optimize", "averaged-oracle": "Time2Decide"}
_TITLES = {
    "mse": "MSE to the oracle × 1e4 (paper's in brackets)",
    "regret": "regret per step × 1e4",
    "utility": "utility per step × 1e4",
}


def baselines(rows: list[Row]) -> list[Block]:
    """MSE to the oracle, regret and utility by budget: mean ± standard error over seeds."""
    blocks = []
    for market, chosen in _by(rows, "market").items():
        paper = published(measured.PUBLISHED.get(market, measured.PUBLISHED["noisy"]))
        budgets = list(_by(chosen, "turnover_l1"))
        for key, title in _TITLES.items():
            cells = []
            for name, own in _by(chosen, "strategy").items():
                line = [name]
                for budget in budgets:
                    found = [_SCALE * row[key] for row in own if row["turnover_l1"] == budget]
                    theirs = paper.get((f"gamma={budget}", _PAPER_BASELINES.get(name, ""))) if key == "mse" else None
                    line.append(estimate(found, _digits(mean(found or [0.0]))) + _bracket(theirs))
                cells.append(line)
            seeds = len(_by(chosen, "seed"))
            caption = f"{market}: {title}, mean ± standard error over {seeds} seeds"
            blocks.append(Block(caption, ["strategy", *(f"γ={b:g}" for b in budgets)], cells))
    return blocks


def portfolio(rows: list[Row]) -> list[Block]:
    """MSE and regret over all series, then each comparison in pairs."""
    blocks = []
    columns = [f"γ={budget:g}" for budget in BUDGETS]
    for market, chosen in _by(rows, "market").items():
        for key in ("mse", "regret"):
            cells = [
                [name, *(_score(chosen, name, budget, key, market) for budget in BUDGETS)]
                for name in _by(chosen, "strategy")
            ]
            caption = f"{market}: {_TITLES[key]}, mean ± standard error over series"
            blocks.append(Block(caption, ["strategy", *columns], cells))
        for key, what in (("mse", "MSE less by, per cent"), ("regret", "regret less by, × 1e-4")):
            cells = [
                [f"{ours} against {rival}" if key == "mse" else rival, *_gains(chosen, ours, rival, key)]
                for ours, rival, compared in measured.comparisons(chosen)
                if compared == key
            ]
            if not cells:
                continue
            of = f": {measured.UTILITY}" if key == "regret" else ""
            caption = f"{market}{of}: {what}, in pairs on the same series, 95 % intervals"
            blocks.append(Block(caption, ["" if key == "mse" else "against", *columns], cells))
    return _noted(blocks, measured.NOTE)


def _gains(rows: list[Row], ours: str, rival: str, key: str) -> list[str]:
    found = [measured.gain(*measured.pairs(rows, ours, rival, budget, key), key) for budget in BUDGETS]
    return [measured.gain_text(*one, key) for one in found]


def _score(rows: list[Row], name: str, budget: float, key: str, market: str) -> str:
    scores = measured.values(rows, name, budget, key)
    theirs = measured.published_mse(market, name, budget) if key == "mse" else None
    value = _SCALE * float(scores.mean())
    error = f" ± {_SCALE * measured.bootstrap_error(scores):.{_digits(value)}f}" if len(scores) > 1 else ""
    return f"{value:.{_digits(value)}f}{error}{_bracket(theirs)}"


def lambda_sweep(rows: list[Row]) -> list[Block]:
    """A table per market and budget: references, then a column per λ_r and the one chosen on validation series."""
    blocks = []
    for market, here in _by(rows, "market").items():
        paper = published(f"lambda_r_sweep_{market}")
        for budget, chosen in sorted(_by(here, "turnover_l1").items()):
            weights = sorted({row["return_weight"] for row in chosen if row["model"] != "references"})
            cells = []
            for row in (row for row in chosen if row["model"] == "references"):
                theirs = paper.get((f"gamma={budget};lambda_r=0", sweep.REFERENCES[row["strategy"]]))
                cells.append([row["strategy"], *["–"] * len(weights), _with_error(row, theirs)])
            best = sweep.chosen_rows(chosen)
            for model, name in sweep.NAMES.items():
                own = {row["return_weight"]: row for row in chosen if row["model"] == model}
                line = [model]
                for weight in weights:
                    theirs = paper.get((f"gamma={budget};lambda_r={weight}", name))
                    line.append(_with_error(own[weight], theirs) if weight in own else "–")
                if model in best:
                    line.append(f"{_with_error(best[model], None)} at λ_r={best[model]['return_weight']:g}")
                    cells.append(line)
            caption = f"{market}, γ={budget:g}: {_TITLES['mse']}, ± standard error over series"
            blocks.append(Block(caption, ["strategy", *(f"λ_r={w:g}" for w in weights), "chosen on validation"], cells))
    return blocks


def finetuned_pto(rows: list[Row]) -> list[Block]:
    """A table per market: strategies by budget, and the error of the forecast."""
    blocks = []
    for market, here in _by(rows, "market").items():
        paper = published(tuned.TABLE) if market != "clean" else {}
        cells = []
        for name, own in _by(here, "strategy").items():
            found = {row["turnover_l1"]: row for row in own}
            theirs = {b: paper.get((f"gamma={b}", tuned.PAPER_ROWS.get(name, ""))) for b in BUDGETS}
            line = [_with_error(found[b], theirs[b]) if b in found else "–" for b in BUDGETS]
            cells.append([name, *line, f"{_SCALE * own[0]['forecast_mse']:.2f}"])
        caption = f"{market}: {_TITLES['mse']}, ± standard error over series; forecast: its MSE × 1e4"
        blocks.append(Block(caption, ["strategy", *(f"γ={b:g}" for b in BUDGETS), "forecast"], cells))
    note = "-shrunk: deviations of the forecasts from their mean times ρ, chosen per γ on validation series."
    return _noted(blocks, note)


def ablation(rows: list[Row]) -> list[Block]:
    """What the network is told and λ_r, by market and size of the budget, on evaluation series."""
    chosen = [row for row in rows if row["split"] == "evaluation" and row["mse"] is not None]
    places = list(dict.fromkeys((row["market"], row["budgets"]) for row in chosen))
    cells = []
    for name, weight in dict.fromkeys((row["covariance"], row["return_weight"]) for row in chosen):
        own = {
            (r["market"], r["budgets"]): r for r in chosen if (r["covariance"], r["return_weight"]) == (name, weight)
        }
        cells.append([f"{name}, λ_r={weight:g}", *(_with_error(own[p], None) if p in own else "–" for p in places)])
    caption = "MSE × 1e4 with the oracle's past allocations, ± standard error over episodes"
    return [
        Block(caption, ["told of the covariance", *(f"{market}, {budgets}" for market, budgets in places)], cells, NOTE)
    ]


def forecast_errors(rows: list[Row]) -> list[Block]:
    """Errors of one step and of 96, mean over seeds."""
    scales = {"mse": _SCALE, "relative": 1.0, "median": 1.0}
    blocks = []
    for market, here in _by(rows, "market").items():
        cells = []
        for name, own in _by(here, "forecaster").items():
            line = [name]
            for horizon in ("1", "96"):
                line += [f"{s * mean(row[f'{key}_{horizon}'] for row in own):.3g}" for key, s in scales.items()]
            cells.append(line)
        titles = [
            title for steps in ("1 step: ", "96 steps: ") for title in (steps + "MSE × 1e4", "relative", "median")
        ]
        blocks.append(Block(f"{market}: errors of forecasts", ["forecaster", *titles], cells))
    note = (
        "relative: over the mean variance of the windows; median: of a channel's error over the variance of its window."
    )
    return _noted(blocks, note)


def sp500(rows: list[Row]) -> list[Block]:
    """Net figures per budget, best Sharpe ratio first, 95 % intervals in brackets."""
    blocks = []
    for budget, here in _by(rows, "turnover_l1").items():
        cells = [
            [
                row["strategy"],
                f"{row['sharpe']:.2f} [{row['sharpe_low']:.2f}, {row['sharpe_high']:.2f}]",
                f"{row['sharpe_excess']:+.2f} [{row['sharpe_excess_low']:+.2f}, {row['sharpe_excess_high']:+.2f}]",
                f"{100 * row['annual_return']:.1f} "
                f"[{100 * row['annual_return_low']:.0f}, {100 * row['annual_return_high']:.0f}]",
                *(f"{100 * row[key]:.1f}" for key in ("annual_volatility", "max_drawdown")),
                f"{row['traded']:.3f}",
                f"{_SCALE * row['regret']:.1f}",
            ]
            for row in sorted(here, key=lambda row: -row["sharpe"])
        ]
        caption = f"γ={budget:g}, {here[0]['first_day']} to {here[0]['last_day']}, {here[0]['cost_bps']:g} bp per trade"
        columns = ["strategy", "Sharpe", "minus 1/N", "return %", "volatility %", "drawdown %", "traded", "regret bp"]
        blocks.append(Block(caption, columns, cells))
    return blocks


def _noted(blocks: list[Block], note: str) -> list[Block]:
    """The note goes under the last table."""
    return [*blocks[:-1], *(replace(block, note=note) for block in blocks[-1:])]


def _with_error(row: Row, paper: float | None) -> str:
    error = f" ± {_SCALE * row['mse_error']:.0f}" if row.get("mse_error") is not None else ""
    return f"{_SCALE * row['mse']:.0f}{error}{_bracket(paper)}"


def _digits(value: float) -> int:
    return 0 if abs(value) >= 100 else 1


def _bracket(paper: float | None) -> str:
    return f" ({_SCALE * paper:.0f})" if paper is not None else ""


def _by(rows: list[Row], key: str) -> dict[Any, list[Row]]:
    """Rows grouped by a key, in order of appearance."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found
