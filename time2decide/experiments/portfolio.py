"""Time2Decide and everything it is compared with, on the same evaluation series, step by step.

Every row keeps its score on each series, so that strategies are compared in pairs: the difference on the same series,
pooled over seeds, with an interval by bootstrap over series. What is tuned (temperature, shrinkage ρ) is tuned on
validation series. A second experiment takes the network to other numbers of assets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from time2decide.backtesting.baselines import (
    AveragedOracle,
    LagOneOracle,
    PredictThenOptimise,
    SampledOracle,
    SoftForecast,
    Uniform,
    backbone_pto,
)
from time2decide.core.cache import cached_tensors
from time2decide.core.provenance import file_digest as file_fingerprint
from time2decide.core.table import Table, quantity_cell
from time2decide.experiments.claims import OUR_NETWORK, REPAIRED_ARCHITECTURE, Claim, published_mse
from time2decide.experiments.portfolio_baselines import portfolio_baseline_series, tune_portfolio_baseline
from time2decide.experiments.portfolio_scores import (
    CONFIDENCE,
    paired_portfolio_scores,
    portfolio_bootstrap_error,
    portfolio_gain,
    portfolio_scores,
    scored_portfolio_rows,
    shown_oracle_history,
    tasks_on_lmc,
)
from time2decide.experiments.registry import Experiment
from time2decide.experiments.store import LABELS, Config, Row, grouped_rows
from time2decide.forecasting.features import VERSION, CachedFeatures, WindowFeatures, window_features
from time2decide.forecasting.timepfn import TimePFN, TimePFNForecaster
from time2decide.markets.oracle import BUDGETS, WINDOW, oracle_path
from time2decide.markets.synthetic import LMC_VERSION, LMCConfig, synthetic_returns
from time2decide.policy.model import PRETRAINED, NetworkForecast, PolicyStrategy, load_policy
from time2decide.policy.paper_model import PaperModel, PaperModelStrategy, pretrained_paper_model
from time2decide.simulation.engine import Strategy

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
SHRINKAGES = (1.0, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
RETURNS_SCALE = 100.0  # of what the backbone is given: its normalisation cannot resolve returns as they are
SPREADS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.3)
_LABELS = {name: label for label, name in LABELS["portfolio-clean"].items()}
OURS, HINDSIGHT, UTILITY = "time2decide-own", "time2decide", "time2decide-utility"
REPAIRED, REPAIRED_SFT, PTO_TIMEPFN = "paper-repaired", "paper-repaired-sft", "pto-timepfn"
_STRONGER = (
    "lag1-oracle",
    "soft-persistence",
    "pto-network-shrunk",
    "averaged-oracle-network",
    "sampled-oracle-network",
)
_BASELINES = {
    OURS: ("uniform", "pretrained", "sft-own", "pto-network"),
    HINDSIGHT: ("uniform", "pretrained", "sft", "pto-network", *_STRONGER),
    REPAIRED: ("uniform", "pretrained", REPAIRED_SFT, PTO_TIMEPFN),
    UTILITY: ("pto-network", "pto-network-shrunk", "pto-network-shrunk-regret"),
}
_PAPER = {
    "uniform": "Uniform",
    "pretrained": "Pretrained",
    "pto-network": "Predict-then-Optimize",
    "sft-own": "SFT",
    OURS: "Time2Decide",
    REPAIRED: "Time2Decide",
    REPAIRED_SFT: "SFT",
    PTO_TIMEPFN: "Predict-then-Optimize",
}
#: γ to which, on clean returns, the paper has predict-then-optimise below Time2Decide, and from which above it.
CLEAN_PTO_BETTER, CLEAN_PTO_WORSE = 1.25, 1.5
NOISY_PTO_WORSE = 0.75  # γ from which the paper has it above Time2Decide on noisy returns
SIZES_BUDGETS = (0.5, 1.0, 2.0)
_NOTE = (
    "time2decide reads the allocations of the oracle at past steps, which follow from past returns; time2decide-own "
    "its own past allocations, as in the paper; time2decide-utility is trained on realised utility. sft, sft-own: the "
    "same network without covariance inputs. All of these are our network, not the paper's architecture: its kernel "
    "bank is drawn from the same prior that generates the evaluation data. pto-network: exact optimum for the same "
    "network's forecasts; -shrunk: with ρ tuned on validation series for MSE, -shrunk-regret: for regret; "
    "averaged-oracle-network: the oracle's step, averaged over scenarios around them (tuned); sampled-oracle-network: "
    "over draws of the network's own predictive law (nothing tuned). pretrained: the TimePFN "
    "backbone forecasts the allocations, as in the paper. paper-repaired: the paper's architecture on that backbone "
    "with a read-out in common units, trained on its own histories, one model for all γ and all markets, on its own "
    "history; paper-repaired-sft: trained the same without covariance tokens; pto-timepfn, soft-timepfn: exact "
    "optimum, or softmax with a tuned temperature, of the same backbone's forecasts. Regret can be negative: the "
    "paper's oracle knows the next step and nothing of later ones, and a strategy that looks further can earn more. ±"
    " standard error over series by bootstrap. noisy: standard deviation 0.01, as the paper says; noisy-matched: "
    "0.0065, which fits it."
)


def _tasks(markets: tuple[str, ...], preset: str) -> list[Config]:
    """One task per market, seed and strategy, with what it depends on: its grid, the weights of its network."""
    if preset == "smoke":
        sizes, seeds, markets = {"evaluation": 2, "validation": 1, "length": 128}, range(1), markets[:1]
    else:
        sizes = {"evaluation": 30, "validation": 4 if preset == "cpu" else 30, "length": 1024}
        seeds = range(3 if preset == "cpu" else 10)
    return [
        {"market": market, "seed": seed, "strategy": _LABELS.get(name, name), **sizes, **_needs(name)}
        for market in markets
        for seed in seeds
        for name in MAKERS
    ]


def _needs(name: str) -> Config:
    maker = MAKERS[name]
    needs: Config = {"network": network_fingerprint(maker.network)} if maker.network else {}
    needs |= {"grid": list(maker.grid)} if maker.grid else {}
    return needs | ({"aim": maker.aim} if maker.aim != "mse" else {})


def network_fingerprint(name: str) -> str:
    """Of the weights of a bundled network."""
    return file_fingerprint((PRETRAINED | PaperModel.BUNDLED)[name] / "model.safetensors")


def _run(config: Config) -> list[Row]:
    """Tune on validation series if there is something to tune, then score on the evaluation series."""
    label: str = config["strategy"]
    name = LABELS["portfolio-clean"].get(label, label)
    maker = MAKERS[name]
    remembered = RememberedFeatures()
    if maker.network in PaperModel.BUNDLED:
        return _run_paper_model(config, maker.make(PaperModel.from_pretrained(maker.network), remembered, None))
    policy = load_policy(maker.network)[0] if maker.network else None
    series = (
        partial(portfolio_series_with_features, config, remembered=remembered)
        if maker.network
        else partial(portfolio_baseline_series, config)
    )
    parameters: list[float] | None = None
    if maker.grid:
        known = series("validation")
        parameters = tune_portfolio_baseline(
            lambda values: maker.make(policy, remembered, values), config["grid"], *known, maker.aim
        )
    returns, oracle = series("evaluation")
    strategy = maker.make(policy, remembered, tuple(parameters) if parameters else None)
    return scored_portfolio_rows(name, strategy, returns, oracle, parameters)


def _run_paper_model(config: Config, strategy: Strategy) -> list[Row]:
    """Score a model of the paper's architecture, with what it does if it is shown the oracle's history."""
    returns, oracle = portfolio_baseline_series(config, "evaluation")
    rows = scored_portfolio_rows(strategy.name, strategy, returns, oracle)
    shown = shown_oracle_history(strategy, returns, oracle, BUDGETS, every=16)
    return [row | probe for row, probe in zip(rows, shown, strict=True)]


def portfolio_series_with_features(
    config: Config, split: str, remembered: RememberedFeatures
) -> tuple[np.ndarray, np.ndarray]:
    """Returns and the oracle's path of a split, with the features of all windows in memory."""
    returns, oracle = portfolio_baseline_series(config, split)
    key = {"market": config["market"], "split": split, "count": config[split], "seed": config["seed"]}
    remembered.learn(returns, key | {"config": asdict(LMCConfig(length=config["length"]))})
    return returns, oracle


Make = Callable[[Any, "RememberedFeatures", Any], Strategy]


def _pto(policy: Any, look: RememberedFeatures, shrinkage: Any) -> Strategy:
    forecast = NetworkForecast(policy, look)
    return PredictThenOptimise(forecast, 1.0 if shrinkage is None else shrinkage, name="pto-network")


def _network(history: str) -> Make:
    return lambda policy, look, _: PolicyStrategy(policy, history, "network", look)


class _Maker(NamedTuple):
    """How a strategy is made: from a bundled network, cached features and tuned values."""

    make: Make
    network: str | None = None
    grid: tuple[float, ...] | None = None  # of what is tuned
    aim: str = "mse"  # the score that it is tuned for


#: name -> how it is made; the row carries the name
MAKERS: dict[str, _Maker] = {
    "uniform": _Maker(lambda *_: Uniform()),
    "pretrained": _Maker(lambda *_: pretrained_paper_model(TimePFN.from_pretrained(), RETURNS_SCALE)),
    "lag1-oracle": _Maker(lambda *_: LagOneOracle()),
    "soft-persistence": _Maker(lambda _, __, values: SoftForecast(temperature=values), None, TEMPERATURES),
    "pto-network": _Maker(_pto, "decide"),
    "pto-network-shrunk": _Maker(_pto, "decide", SHRINKAGES),
    "pto-network-shrunk-regret": _Maker(_pto, "decide", SHRINKAGES, "regret"),
    "averaged-oracle-network": _Maker(
        lambda p, look, v: AveragedOracle(NetworkForecast(p, look), v), "decide", SPREADS
    ),
    "sampled-oracle-network": _Maker(lambda p, look, _: SampledOracle(NetworkForecast(p, look).law), "decide"),
    "sft-own": _Maker(_network("own"), "decide-blind"),
    "sft": _Maker(_network("hindsight"), "decide-blind"),
    OURS: _Maker(_network("own"), "decide"),
    HINDSIGHT: _Maker(_network("hindsight"), "decide"),
    UTILITY: _Maker(_network("own"), "decide-utility"),
    "soft-network": _Maker(lambda p, look, v: SoftForecast(NetworkForecast(p, look), v), "decide", TEMPERATURES),
    PTO_TIMEPFN: _Maker(lambda *_: backbone_pto(TimePFN.from_pretrained(), RETURNS_SCALE)),
    "soft-timepfn": _Maker(
        lambda _, __, v: SoftForecast(TimePFNForecaster(TimePFN.from_pretrained(), RETURNS_SCALE), v),
        None,
        TEMPERATURES,
    ),
    REPAIRED: _Maker(lambda model, *_: PaperModelStrategy((model,), REPAIRED), "repaired"),
    REPAIRED_SFT: _Maker(lambda model, *_: PaperModelStrategy((model,), REPAIRED_SFT), "repaired-sft"),
}


class RememberedFeatures(CachedFeatures):
    """Features of whole series, kept on disk between tasks, because all networks see the same windows."""

    def learn(self, returns: np.ndarray, key: Config) -> None:
        """Look at every window of returns (series, time, m), or read what was seen under the same key before."""
        steps = range(WINDOW, returns.shape[1])

        def make() -> dict[str, torch.Tensor]:
            looks = [window_features(returns[:, t - WINDOW : t]) for t in steps]
            return {f.name: torch.stack([getattr(one, f.name) for one in looks]) for f in fields(WindowFeatures)}

        tensors = cached_tensors({"kind": "features", "version": [VERSION, LMC_VERSION], **key}, make)
        for i, t in enumerate(steps):
            one = WindowFeatures(**{field: tensor[i] for field, tensor in tensors.items()})
            self.remember(returns[:, t - WINDOW : t], one)


def portfolio_tables(rows: list[Row]) -> list[Table]:
    """MSE and regret per market, the paper's figure in brackets, and comparisons in pairs."""
    found = []
    columns = ["strategy", *(f"γ={budget:g}" for budget in BUDGETS)]
    for market, chosen in grouped_rows(rows, "market").items():
        names = list(grouped_rows(chosen, "strategy"))
        sizes = f"{max(r['evaluation'] for r in chosen)} series × {len(grouped_rows(chosen, 'seed'))} seed(s)"
        titles = {
            "mse": f"{market}: MSE of the raw answer to the oracle × 1e4 (paper's), {sizes}",
            "regret": f"{market}: regret per step × 1e4 of the weights held",
        }
        for key, caption in titles.items():
            cells = [[name, *(_score(chosen, name, g, key) for g in BUDGETS)] for name in names]
            found.append(Table(caption, columns, cells))
        found += [table for key in titles if (table := _comparisons(chosen, key)).rows]
    return [*found[:-1], replace(found[-1], note=f"{found[-1].note} {_NOTE}".strip())]


def _score(rows: list[Row], name: str, budget: float, key: str) -> str:
    scores = 1e4 * portfolio_scores(rows, name, budget, key)
    paper = published_mse(rows[0]["market"], _PAPER.get(name, ""), budget) if key == "mse" else None
    error = portfolio_bootstrap_error(scores) if len(scores) > 1 else None
    return quantity_cell(float(scores.mean()), ".1f", error, None if paper is None else 1e4 * paper, ".0f")


def _comparisons(rows: list[Row], key: str) -> Table:
    """Each strategy of ours against its baselines, on the series that both were run on."""
    cells = []
    for ours in (UTILITY,) if key == "regret" else (OURS, HINDSIGHT, REPAIRED):
        seeds = {name: {row["seed"] for row in own} for name, own in grouped_rows(rows, "strategy").items()}
        for other in (name for name in _BASELINES[ours] if seeds.get(ours, set()) & seeds.get(name, set())):
            gains = [portfolio_gain(*paired_portfolio_scores(rows, ours, other, g, key), key) for g in BUDGETS]
            digits = [0 if key == "mse" else 2 if abs(middle) < 5 else 1 for middle, _, _ in gains]
            texts = [f"{a:.{d}f} [{b:.{d}f}, {c:.{d}f}]" for (a, b, c), d in zip(gains, digits, strict=True)]
            below, sure = (sum(test) for test in ([a >= 0 for a, _, _ in gains], [b > 0 for _, b, _ in gains]))
            cells.append([f"{ours} against {other}", *texts, f"{below} of {len(gains)}", f"{sure}"])
    unit = "MSE less by, per cent" if key == "mse" else "regret less by, × 1e-4"
    worst = max(row["violation"] for row in rows)
    note = " ".join(_below_the_papers(rows, name) for name in (OURS, REPAIRED) if _has(rows, name))
    note += f" Largest violation of the constraints by any strategy at any step: {worst:.1e}.{_probe_note(rows)}"
    columns = ["", *(f"γ={budget:g}" for budget in BUDGETS), "at or below", "interval above 0"]
    caption = f"{rows[0]['market']}: {unit}, compared in pairs on the same series, {CONFIDENCE:.0%} intervals"
    return Table(caption, columns, cells, note if key == "mse" else "")


def _has(rows: list[Row], name: str) -> bool:
    return any(row["strategy"] == name for row in rows)


def _below_the_papers(rows: list[Row], name: str) -> str:
    """At how many budgets a strategy is below the paper's Time2Decide."""
    own = {g: portfolio_scores(rows, name, g, "mse") for g in BUDGETS}
    paper = {g: published_mse(rows[0]["market"], "Time2Decide", g) for g in BUDGETS}
    better = [float(scores.mean()) < figure for g, scores in own.items() if len(scores) and (figure := paper[g])]
    return f"{name} below the paper's Time2Decide: {sum(better)} of {len(better)} budgets."


def _probe_note(rows: list[Row]) -> str:
    """What the paper's models do with the oracle's history, and with the returns of another series beside it."""
    texts = []
    for name in (REPAIRED, REPAIRED_SFT):
        own = [row for row in rows if row["strategy"] == name]
        if own:
            known, other = (
                float(np.mean([row[key] for row in own])) for key in ("shown_oracle_mse", "other_returns_mse")
            )
            texts.append(f"{name} {1e4 * known:.1f}, with the returns of another series {1e4 * other:.1f}")
    return f" Shown the oracle's history, mean over γ: {'; '.join(texts)}." if texts else ""


def _claims(rows: list[Row], market: str) -> list[Claim]:
    """What the paper's table says, judged on our network and on the paper's architecture, apart."""
    return [
        *_claims_of_architecture(rows, market, OUR_NETWORK, OURS, "sft-own", "pto-network"),
        *_claims_of_architecture(rows, market, REPAIRED_ARCHITECTURE, REPAIRED, REPAIRED_SFT, PTO_TIMEPFN),
    ]


def _claims_of_architecture(rows: list[Row], market: str, judged_on: str, ours: str, sft: str, pto: str) -> list[Claim]:
    found = {
        "Time2Decide beats fine-tuning without covariance at every γ": _below(rows, ours, sft),
        "Time2Decide beats the pretrained backbone at every γ": _below(rows, ours, "pretrained"),
    }
    if market == "clean":
        text = f"predict-then-optimise beats Time2Decide for γ ≤ {CLEAN_PTO_BETTER:g}"
        found[text] = _below(rows, pto, ours, most=CLEAN_PTO_BETTER)
    least = CLEAN_PTO_WORSE if market == "clean" else NOISY_PTO_WORSE
    found[f"Time2Decide beats predict-then-optimise for γ ≥ {least:g}"] = _below(rows, ours, pto, least)
    return [Claim(f"{market.capitalize()}: {text}", cases, judged_on=judged_on) for text, cases in found.items()]


def _below(rows: list[Row], ours: str, other: str, least: float = 0.0, most: float = 2.0) -> list[bool]:
    """Whether one strategy has the lower mean MSE, at every market and budget of a range, on the seeds of both."""
    cases = []
    for (_, budget), here in grouped_rows(rows, "market", "turnover_l1").items():
        mine, theirs = ({r.get("seed"): r["mse"] for r in here if r["strategy"] == name} for name in (ours, other))
        seeds = mine.keys() & theirs.keys()  # on the same series
        if least <= budget <= most and seeds:
            cases.append(float(np.mean([mine[k] for k in seeds])) < float(np.mean([theirs[k] for k in seeds])))
    return cases


def _sizes_tasks(preset: str) -> list[Config]:
    """One task per market and number of assets."""
    sizes = {"evaluation": 2, "length": 112} if preset == "smoke" else {"evaluation": 10, "length": 400}
    assets = (3, 8) if preset == "smoke" else (8, 32)
    network = network_fingerprint("decide")
    return [
        {"market": market, "assets": m, "seed": 0, "network": network, **sizes}
        for market in ("clean", "noisy")
        for m in assets
    ]


def _run_sizes(config: Config) -> list[Row]:
    """Score the bundled network and its baselines on another number of assets."""
    lmc = LMCConfig(channels=config["assets"], length=config["length"])
    returns = synthetic_returns(config["market"], count=config["evaluation"], seed=config["seed"], config=lmc)
    oracle = oracle_path(returns, list(SIZES_BUDGETS))
    policy, look = load_policy("decide")[0], RememberedFeatures()
    names = ("uniform", "lag1-oracle", "pto-network", OURS, HINDSIGHT)
    made = {name: MAKERS[name].make(policy, look, None) for name in names}
    return [
        row
        for name, one in made.items()
        for row in scored_portfolio_rows(name, one, returns, oracle, budgets=SIZES_BUDGETS)
    ]


def _sizes_tables(rows: list[Row]) -> list[Table]:
    """MSE × 1e4 per number of assets, and how far the network is below PtO."""
    found = []
    for (market, m), chosen in grouped_rows(rows, "market", "assets").items():
        mse = {
            name: [portfolio_scores(chosen, name, g, "mse") for g in SIZES_BUDGETS]
            for name in grouped_rows(chosen, "strategy")
        }
        cells = [[name, *(f"{1e4 * scores.mean():.1f}" for scores in line)] for name, line in mse.items()]
        for ours in (OURS, HINDSIGHT):
            cuts = [portfolio_gain(*both, "mse") for both in zip(mse[ours], mse["pto-network"], strict=True)]
            cells.append([f"{ours} below pto-network by", *(f"{a:.0f} % [{b:.0f}, {c:.0f}]" for a, b, c in cuts)])
        caption = f"{market}, {m} assets, {chosen[0]['evaluation']} series: MSE × 1e4, {CONFIDENCE:.0%} intervals"
        found.append(Table(caption, ["strategy", *(f"γ={g:g}" for g in SIZES_BUDGETS)], cells))
    return found


def _experiment(market: str, markets: tuple[str, ...], hours: str) -> Experiment:
    return Experiment(
        id=f"portfolio-{market}",
        title=f"Time2Decide against every baseline on {market} returns",
        paper=f"Table of Section 5.2 ({market})",
        presets={"smoke": "20 s", "cpu": hours, "paper": "1 day"},
        tasks=tasks_on_lmc(partial(_tasks, markets)),
        run=_run,
        tables=portfolio_tables,
        claims=partial(_claims, market=market),
    )


EXPERIMENTS = (
    _experiment("clean", ("clean",), "1 h"),
    _experiment("noisy", ("noisy", "noisy-matched"), "2 h"),
    Experiment(
        id="portfolio-sizes",
        title="One network for any number of assets",
        paper="none: the paper's models are for 16 assets",
        presets={"smoke": "10 s", "cpu": "10 min"},
        tasks=tasks_on_lmc(_sizes_tasks),
        run=_run_sizes,
        tables=_sizes_tables,
    ),
)
