"""Tables and findings of the portfolio experiments: ours beside the paper's, and comparisons in pairs.

A comparison of two strategies is the difference on the same series, pooled over seeds; its interval comes from a
bootstrap over series.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from time2decide.experiments.paper import published
from time2decide.markets import BUDGETS

Row = dict[str, Any]
PUBLISHED = {
    "clean": "time2decide_mse_summary",
    "noisy": "time2decide_mse_summary_noisy",
    "noisy-matched": "time2decide_mse_summary_noisy",
}
_PAPER = {
    "uniform": "Uniform",
    "pretrained": "Pretrained",
    "pto": "Predict-then-Optimize",
    "sft (own)": "SFT",
    "time2decide (own)": "Time2Decide",
}
OURS, HINDSIGHT, UTILITY = "time2decide (own)", "time2decide (hindsight)", "time2decide-utility (own)"
OWN_RIVALS = ("uniform", "pretrained", "sft (own)", "pto")
_STRONGER = ("lag1-oracle", "soft-persistence", "pto-shrunk", "averaged-oracle")
HINDSIGHT_RIVALS = ("uniform", "pretrained", "sft (hindsight)", "pto", *_STRONGER)
UTILITY_RIVALS = ("pto", "pto-shrunk", "pto-shrunk (regret)")
_DRAWS = 2000
NOTE = (
    "(own): the strategy reads its own past allocations, as in the paper; (hindsight): the oracle's, which past "
    "returns tell.\nsft: the same network, told nothing of the covariance. pto: exact optimum for the same "
    "network's forecasts; shrunk: with ρ tuned on validation series, for MSE or for regret; averaged-oracle: the "
    "oracle's step, averaged over scenarios around them.\npretrained: the TimePFN "
    "backbone forecasts the allocations, as in the paper. Regret can be negative: the paper's oracle knows the next "
    "step and nothing of later ones,\nand who looks further can earn more. ± standard error over series by bootstrap. "
    "noisy: standard deviation 0.01, as the paper says; noisy-matched: 0.0065, which fits it."
)


def show(rows: list[Row]) -> str:
    """MSE and regret per market, the paper's figure in brackets, and what was to be shown."""
    blocks = [f"failed: {row['market']} seed {row['seed']}: {row['error']}" for row in rows if row["error"]]
    measured = [row for row in rows if not row["error"]]
    for market in dict.fromkeys(row["market"] for row in measured):
        chosen = [row for row in measured if row["market"] == market]
        seeds = len({row["seed"] for row in chosen})
        sizes = f"{max(r['evaluation'] for r in chosen)} series × {seeds} seed(s), preset {chosen[0]['preset']}"
        blocks.append(
            _table(f"{market}: MSE of the raw answer to the oracle × 1e4, {sizes} [paper]", chosen, "mse", 1e4)
        )
        blocks.append(_table(f"{market}: regret per step × 1e4 of the weights held", chosen, "regret", 1e4))
        blocks.append("\n".join([f"{market}: compared in pairs, 95 % intervals", *findings(chosen)]))
    blocks.append(NOTE)
    return "\n\n".join(blocks)


def findings(rows: list[Row]) -> list[str]:
    """One line per comparison over the seven budgets of one market."""
    market = rows[0]["market"]
    lines = [_compare(rows, *names) for names in comparisons(rows)]
    means = {g: scores.mean() for g in BUDGETS if (scores := values(rows, OURS, g, "mse")).size}
    below = [means[g] < paper for g in means if (paper := published_mse(market, OURS, g))]
    lines.append(f"  {OURS} below the paper's Time2Decide: {sum(below)} of {len(below)} budgets")
    worst = max(row["violation"] for row in rows)
    lines.append(f"  largest violation of the constraints by any strategy at any step: {worst:.1e}")
    return lines


def comparisons(rows: list[Row]) -> list[tuple[str, str, str]]:
    """(ours, rival, score) of everything that is compared and was run for the same seed."""
    found = [(OURS, rival, "mse") for rival in OWN_RIVALS]
    found += [(HINDSIGHT, rival, "mse") for rival in HINDSIGHT_RIVALS]
    found += [(UTILITY, rival, "regret") for rival in UTILITY_RIVALS]
    return [names for names in found if _comparable(rows, *names[:2])]


def values(rows: list[Row], strategy: str, budget: float, key: str) -> np.ndarray:
    """Scores of every series of every seed, in order, (series · seeds,)."""
    chosen = sorted((r["seed"], r[f"{key}_series"]) for r in rows if _is(r, strategy, budget))
    return np.concatenate([np.asarray(scores) for _, scores in chosen]) if chosen else np.empty(0)


def pairs(rows: list[Row], ours: str, rival: str, budget: float, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores of both on the series that both were run on."""
    found = [{r["seed"]: r[f"{key}_series"] for r in rows if _is(r, name, budget)} for name in (ours, rival)]
    seeds = sorted(found[0].keys() & found[1].keys())
    mine, theirs = (np.concatenate([np.asarray(scores[seed]) for seed in seeds]) for scores in found)
    return mine, theirs


def reduction(ours: np.ndarray, theirs: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """1 − mean(ours)/mean(theirs) with its 95 % interval, by bootstrap over paired series."""
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(ours), (_DRAWS, len(ours)))
    least = np.finfo(float).tiny  # a rival without any error is beaten by nobody
    ratios = 1 - (ours[draws].mean(1) + least) / (theirs[draws].mean(1) + least)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(1 - (ours.mean() + least) / (theirs.mean() + least)), float(low), float(high)


def gain(ours: np.ndarray, theirs: np.ndarray, key: str) -> tuple[float, float, float]:
    """How much less ours is, with its 95 % interval by bootstrap over paired series.

    In per cent for the MSE; in 1e-4 for regret, which may be negative and has no per cent.
    """
    if key == "mse":
        middle, low, high = reduction(ours, theirs)
        return 100 * middle, 100 * low, 100 * high
    less = 1e4 * (theirs - ours)
    draws = np.random.default_rng(0).integers(0, len(less), (_DRAWS, len(less)))
    low, high = np.quantile(less[draws].mean(1), [0.025, 0.975])
    return float(less.mean()), float(low), float(high)


def gain_text(middle: float, low: float, high: float, key: str) -> str:
    """A gain with its interval."""
    digits = 0 if key == "mse" else 2 if abs(middle) < 5 else 1
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _comparable(rows: list[Row], ours: str, rival: str) -> bool:
    """Whether there is a seed for which both were run."""
    seeds = [{row["seed"] for row in rows if row["strategy"] == name} for name in (ours, rival)]
    return bool(seeds[0] & seeds[1])


def _compare(rows: list[Row], ours: str, rival: str, key: str) -> str:
    cells = [gain(*pairs(rows, ours, rival, g, key), key) for g in BUDGETS]
    below = sum(middle >= 0 for middle, _, _ in cells)
    sure = sum(low > 0 for _, low, _ in cells)
    text = ", ".join(gain_text(*cell, key) for cell in cells)
    unit = "% less" if key == "mse" else "less by × 1e-4"
    return f"  {key} of {ours} at or below {rival}: {below} of 7 (interval above 0 in {sure}); {unit}: {text}"


def _table(title: str, rows: list[Row], key: str, scale: float) -> str:
    width = 20
    lines = [title, "strategy".ljust(27) + "".join(f"γ={budget:g}".rjust(width) for budget in BUDGETS)]
    for name in dict.fromkeys(row["strategy"] for row in rows):
        lines.append(name.ljust(27) + "".join(_cell(rows, name, g, key, scale).rjust(width) for g in BUDGETS))
    return "\n".join(lines)


def _cell(rows: list[Row], name: str, budget: float, key: str, scale: float) -> str:
    scores = values(rows, name, budget, key)
    paper = published_mse(rows[0]["market"], name, budget) if key == "mse" else None
    error = f"±{scale * bootstrap_error(scores):.1f}" if len(scores) > 1 else ""
    return f"{scale * scores.mean():.1f}{error}" + (f" [{scale * paper:.0f}]" if paper else "")


def bootstrap_error(scores: np.ndarray, seed: int = 0) -> float:
    """Standard error of the mean over series, by bootstrap."""
    draws = np.random.default_rng(seed).integers(0, len(scores), (_DRAWS, len(scores)))
    return float(scores[draws].mean(1).std(ddof=1))


def published_mse(market: str, strategy: str, budget: float) -> float | None:
    """The paper's figure for a strategy that it has."""
    name = _PAPER.get(strategy)
    return published(PUBLISHED[market]).get((f"gamma={budget}", name)) if name else None


def _is(row: Row, strategy: str, budget: float) -> bool:
    return row["strategy"] == strategy and row["turnover_l1"] == budget


__all__: Sequence[str] = ["bootstrap_error", "findings", "reduction", "show", "values"]
