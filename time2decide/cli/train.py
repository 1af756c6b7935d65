"""``time2decide train``: the models that come with the package, made again by one command each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from time2decide.cli.console import AsJson, Prices, Returns, echo, validate_source, values_flag
from time2decide.core.files import validate_not_read, validate_output_folder
from time2decide.core.validation import InputError, expect, validate_choice, validate_interval

_MOST_THREADS = 256
_LINES_EVERY = 5.0  # seconds
_WRITTEN = ("model.safetensors", "config.json", "state.safetensors")  # by a training, to its folder

Report = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last one
Out = Annotated[Path, typer.Option(help="Output folder (checkpoint and resumable state).")]
Steps = Annotated[int | None, typer.Option(help="Another number of steps than the recipe's.")]
Seed = Annotated[int | None, typer.Option(help="Another seed than the recipe's.")]
Threads = Annotated[int, typer.Option(help="Threads of torch; more than 2 seldom help.")]
app = typer.Typer(help="Train a model; interrupt it and start it again as you like.", no_args_is_help=True)


@app.command()
def qp(
    preset: Annotated[str, typer.Option(help="smoke: seconds. cpu: the bundled checkpoint, about an hour.")] = "cpu",
    out: Out = Path("runs/qp"),
    steps: Steps = None,
    seed: Seed = None,
    threads: Threads = 1,
    as_json: AsJson = False,
) -> None:
    """Train the size-agnostic QP solver, the `neural` method of solve.

    Start the same command again to resume; the result is the same to the last bit.

    Example: time2decide train qp --preset cpu --out runs/qp
    """
    from time2decide.neural.equivariant import PRESETS, train_equivariant

    config = _recipe(PRESETS, preset, steps=steps, seed=seed)
    _train(partial(train_equivariant, config, out), out, threads, preset=preset)
    _print_facts(out, as_json)


@app.command()
def forecast(
    preset: Annotated[
        str,
        typer.Option(help="smoke: seconds. cpu: the small checkpoint, 40 min. medium: 1 h. paper: GPUs."),
    ] = "cpu",
    out: Out = Path("runs/forecast"),
    steps: Steps = None,
    seed: Seed = None,
    threads: Threads = 1,
    as_json: AsJson = False,
) -> None:
    """Pretrain TimePFN, the forecasting backbone, on synthetic series that are drawn while it learns.

    Start the same command again to resume; the result is the same to the last bit.

    Example: time2decide train forecast --preset cpu --out runs/forecast
    """
    from time2decide.forecasting.pretraining import PRESETS, pretrain

    config = _recipe(PRESETS, preset, steps=steps, seed=seed)
    _train(partial(pretrain, config, out), out, threads, preset=preset)
    _print_facts(out, as_json)


@app.command()
def decide(
    preset: Annotated[str, typer.Option(help="smoke: seconds. cpu: the bundled checkpoint, about 15 minutes.")] = "cpu",
    out: Out = Path("runs/decide"),
    objective: Annotated[
        str, typer.Option(help="oracle: the expected best allocation. utility: train --start on what it earns.")
    ] = "oracle",
    covariance: Annotated[
        str, typer.Option(help="What the network sees of it: full, covariance, scale, correlation, none.")
    ] = "full",
    start: Annotated[str | None, typer.Option(help="Network to start from; for utility `decide` by default.")] = None,
    return_weight: Annotated[float | None, typer.Option(help="λ_r, weight of the forecasts in the loss.")] = None,
    steps: Steps = None,
    seed: Seed = None,
    threads: Threads = 1,
    as_json: AsJson = False,
) -> None:
    """Train the decision network of the paper's synthetic markets.

    Start the same command again to resume; the result is the same to the last bit. For real returns use train market
    or train fine-tune.

    Example: time2decide train decide --preset cpu --out runs/decide
    """
    from time2decide.policy.model import PRETRAINED, load_policy
    from time2decide.policy.network import PolicyConfig
    from time2decide.policy.training import PRESETS, UTILITY, train_policy

    validate_choice("preset", preset, PRESETS)
    config = replace(PRESETS[preset], model=PolicyConfig(covariance=covariance, objective=objective))
    if objective == "utility":
        expect(return_weight is None, "return_weight", "none with --objective utility (forecasts stay)", "one")
        config = replace(config, **(UTILITY if preset != "smoke" else {}))
        start = start or "decide"
    config = replace(config, **_chosen(steps=steps, seed=seed, return_weight=return_weight))
    first = load_policy(start)[0] if start else None
    work = partial(train_policy, config, out, start=first)
    _train(work, out, threads, read=(_unless(PRETRAINED, start),), preset=preset, start=start)
    _print_facts(out, as_json)


@app.command()
def market(
    preset: Annotated[str, typer.Option(help="smoke: seconds. cpu: the bundled checkpoint, about 5 minutes.")] = "cpu",
    out: Out = Path("runs/market"),
    data: Annotated[
        list[str] | None, typer.Option(help="A universe to train on: sp500, .csv or .parquet; repeatable.")
    ] = None,
    measure: Annotated[
        list[str] | None, typer.Option(help="A universe to measure on only: sp500, .csv or .parquet; repeatable.")
    ] = None,
    sees: Annotated[str, typer.Option(help="Second-order information: all, correlations, variances or none.")] = "all",
    steps: Steps = None,
    seed: Seed = None,
    threads: Threads = 1,
    as_json: AsJson = False,
) -> None:
    """Train the market policy on the prior of markets and on universes of your own, through the exact solver.

    Assets with gaps are left out. Walk-forward figures of every universe are written into the notes: which were
    trained on, which only measured.
    Start the same command again to resume; the result is the same to the last bit.

    Example: time2decide train market --data us.csv --data eu.csv --measure sp500 --out runs/market
    """
    from time2decide.markets.tables import complete_returns
    from time2decide.policy.market_policy import SEES, MarketPolicyConfig
    from time2decide.policy.market_training import PRESETS, market_policy_figures, train_market_policy

    config = _recipe(PRESETS, preset, steps=steps, seed=seed)
    validate_choice("sees", sees, SEES)
    _validate_out(out, [*(data or []), *(measure or [])])
    names = [Path(name).name for name in [*(data or []), *(measure or [])]]
    twice = sorted({name for name in names if names.count(name) > 1})
    expect(not twice, "data, measure", "files of different names, each once", twice)
    trained, held_out = ({Path(f).name: complete_returns(f)[0] for f in files or []} for files in (data, measure))
    work = partial(train_market_policy, config, out, trained, policy_config=MarketPolicyConfig(sees=sees))
    policy = _train(work, out, threads, preset=preset)
    roles = {"trained on": trained, "measured only": held_out}
    figures = [
        {"universe": name, "role": role, **row}
        for role, universes in roles.items()
        for name, returns in universes.items()
        for row in market_policy_figures(policy, returns)
    ]
    policy.save_pretrained(out, {**_read_facts(out)["notes"], "walk_forward": figures})
    _print_facts(out, as_json)
    for row in [] if as_json else figures:
        numbers = f"volatility {row['volatility']:.4f}, Sharpe {row['sharpe']:.2f}, traded {row['traded']:.4f}"
        echo(f"{row['universe']} ({row['role']}), λ = {row['risk_aversion']:g}: {numbers}")


@app.command()
def fine_tune(
    file: Annotated[str, typer.Argument(help="sp500, or a .csv or .parquet file: dates first, a column per asset.")],
    start: Annotated[
        str, typer.Option(help="Policy to tune: market (the default of decide), decide, or a folder of either.")
    ] = "market",
    out: Out = Path("runs/mine"),
    steps: Steps = None,
    seed: Seed = None,
    cost_bps: Annotated[
        float | None, typer.Option(help="For --start decide: cost of what is traded, in basis points; 10 unless told.")
    ] = None,
    prices: Prices = False,
    returns: Returns = False,
    threads: Threads = 1,
    as_json: AsJson = False,
) -> None:
    """Fine-tune the market policy, or a decision network with --start, on your own universe.

    The rows are split in time: training, validation, and the last 30 %, which is held out. Of the market policy the
    covariance is tuned, for the risk of the portfolios made from it; its start is kept where the validation rows show
    no gain. Of a network such as `decide` the read-out is tuned, for utility net of costs. Assets with gaps are left
    out. Interrupt it as you like: the same command goes on, and the result is the same to the last bit.

    Example: time2decide train fine-tune my.csv --out runs/mine
    """
    validate_source(file)
    stated = values_flag(prices, returns)
    from time2decide.markets.tables import load_market
    from time2decide.policy.fine_tuning import FineTuning, MarketTuning, fine_tune_to
    from time2decide.policy.market_policy import MarketPolicy
    from time2decide.policy.model import PRETRAINED, Time2Decide

    _validate_out(out, (file, _unless(PRETRAINED, start)))
    table, values = load_market(file, stated, gaps="keep")
    complete = table.dropna(axis=1)
    assets = complete.shape[1]
    expect(assets >= 2, file, "at least 2 assets without gaps", assets)
    real = isinstance(Time2Decide.from_pretrained(start).policy, MarketPolicy)
    expect(not real or cost_bps is None, "cost_bps", "none for a market policy: its covariance has no costs", cost_bps)
    config: Any = (MarketTuning if real else FineTuning)(**_chosen(steps=steps, seed=seed, cost_bps=cost_bps))
    work = partial(fine_tune_to, out, complete.to_numpy(copy=True), start, config, prepared=_prepared())
    _train(work, out, threads, data=Path(file).name, values=values, assets=assets)
    _print_facts(out, as_json, _market_gain if real else _network_gain)
    if not as_json:
        if assets < table.shape[1]:
            echo(f"{table.shape[1] - assets} assets with gaps were left out")
        _print_held_out(out, file, complete, real)


def _market_gain(made: dict[str, Any]) -> str:
    losses = made["validation_loss"]
    if not made["kept"]:
        return f"no gain on the validation rows (variance relative to 1/N {losses[0]:.4f}): kept as it was"
    return f"variance relative to 1/N on the validation rows {losses[0]:.4f} before, {min(losses):.4f} after"


def _network_gain(made: dict[str, Any]) -> str:
    if made["holds"]:
        return "nothing it does earns its costs on the validation rows: this network holds what you have"
    first, best = made["validation_utility"][0], max(made["validation_utility"])
    return f"net utility on the validation rows {first:.4f} before, {best:.4f} after {made['steps_kept']} steps"


def _print_held_out(out: Path, file: str, table: Any, real: bool) -> None:
    """Print the figures of the held-out rows, and the command that compares there."""
    from time2decide.markets.oracle import WINDOW

    made = _read_facts(out)["notes"]
    first = table.index[made["untouched_from_row"]]
    echo(f"held out: the rows from {str(first)[:10]} on; compare there with the command below")
    for row in made.get("held_out", []):
        before, after = row["volatility_start"], row["volatility"]
        figures = f"{before:.2%} before, {after:.2%} after (difference {row['low']:+.2%} to {row['high']:+.2%}, 95 %)"
        echo(f"  λ = {row['risk_aversion']:g}: volatility a year {figures}")
    base = made["start"] if real else "uniform"
    rows = len(table) - made["untouched_from_row"] + WINDOW
    echo(f"  time2decide backtest {file} --last {rows} --strategies {base},{out}")


@app.command()
def chronos(
    out: Out = Path("runs/chronos"),
    start: Annotated[
        str | None, typer.Option(help="Weights to start from: a folder or a name on the hub. None: a tiny new model.")
    ] = None,
    kind: Annotated[str, typer.Option(help="Of a new model: bolt or 2.")] = "bolt",
    steps: Steps = None,
    seed: Seed = None,
    threads: Threads = 1,
) -> None:
    """Fine-tune Chronos-Bolt or Chronos-2 on the synthetic series, or train a tiny one from nothing.

    The result is a backbone: backtest it as pto:chronos:FOLDER, or put the decision layer on it with
    train paper --backbone chronos:FOLDER. Start the same command again to resume.

    Example: time2decide train chronos --kind bolt --out runs/chronos
    """
    from time2decide.forecasting.chronos import ChronosTraining, TinyChronos, load_chronos, tiny_chronos, train_chronos

    config = ChronosTraining(**_chosen(steps=steps, seed=seed))
    backbone = load_chronos(start) if start else tiny_chronos(TinyChronos(kind))
    _train(lambda report, notes: train_chronos(backbone, config, out, report=report), out, threads, read=(start,))
    echo(f"trained: {out}/model.safetensors")


@app.command()
def paper(
    preset: Annotated[str, typer.Option(help="smoke: seconds. cpu: the published rows, about 25 minutes.")] = "cpu",
    out: Out = Path("runs/paper"),
    backbone: Annotated[
        str,
        typer.Option(
            help="TimePFN to start from: a name, a folder or official:FILE, the weights that its authors publish; or "
            "chronos:FOLDER, kernel-bank: and such, as is."
        ),
    ] = "small",
    covariance: Annotated[
        bool, typer.Option(help="Covariance tokens: Time2Decide with them, its SFT twin without.")
    ] = True,
    gradient_passes: Annotated[
        int, typer.Option(help="Passes of the read-out over the gradient of risk; 0 made the published rows.")
    ] = 0,
    return_weight: Annotated[float | None, typer.Option(help="λ_r, weight of the forecasts in the loss.")] = None,
    steps: Steps = None,
    seed: Seed = None,
    threads: Threads = 1,
    as_json: AsJson = False,
) -> None:
    """Train the paper's model with its repairs: TimePFN, covariance tokens, one model for all turnover budgets.

    Start the same command again to resume; the result is the same to the last bit. With a backbone
    of another package the same tokens and read-out are trained on top of it.

    Example: time2decide train paper --no-covariance --out runs/paper-sft
    """
    from time2decide.forecasting.backbones import load_backbone
    from time2decide.forecasting.timepfn import OFFICIAL, TimePFN
    from time2decide.policy.repaired_training import REPAIRED_PRESETS, train_adapter, train_repaired

    config = _recipe(REPAIRED_PRESETS, preset, steps=steps, seed=seed, return_weight=return_weight)
    readout = replace(config.model.readout, gradient_passes=gradient_passes)
    config = replace(config, model=replace(config.model, covariance=covariance, readout=readout))
    as_it_is = ":" in backbone and not backbone.startswith(OFFICIAL)
    started = load_backbone(backbone) if as_it_is else TimePFN.from_pretrained(backbone)
    work: Any = train_repaired if isinstance(started, TimePFN) else train_adapter
    source = backbone.partition(":")[2] or _unless(TimePFN.BUNDLED, backbone)
    _train(partial(work, config, started, out), out, threads, read=(source,), preset=preset, backbone=backbone)
    _print_facts(out, as_json)


def _validate_out(out: Path, read: Iterable[str | None]) -> None:
    """Raise if a training to `out` would replace a file that it reads, or a model that it starts from."""
    for source in filter(None, read):
        validate_not_read("--out", out, (source,))  # the folder of a model, or a table in the place of the folder
        for name in _WRITTEN:
            validate_not_read("--out", out / name, (source, Path(source) / name))


def _unless(bundled: Mapping[str, Path], name: str | None) -> str | None:
    """The folder of a model; None for one that comes with the package."""
    return None if name in bundled else name


def _train(work: Callable[..., Any], out: Path, threads: int, read: Iterable[str | None] = (), **notes: Any) -> Any:
    """Run a training with progress and return its result; the notes go into the folder beside the provenance.

    Raises before the work unless the folder can be made and written, and holds nothing of what is read.
    """
    import torch

    from time2decide.core.provenance import provenance

    validate_interval("threads", threads, f"[1, {_MOST_THREADS}]")
    torch.set_num_threads(threads)
    _validate_out(out, read)
    if not (out / "state.safetensors").exists() and (out / "model.safetensors").exists():
        raise InputError(f"--out: expected an empty folder or a run of the same config, found another model in {out}")
    validate_output_folder("--out", out)
    with _progress() as report:
        return work(report=report, notes={**notes, "threads": threads, **provenance()})


def _prepared() -> Callable[[int, int], None]:
    """A line on standard error every few seconds while rows are read, before the first step."""
    last = time.monotonic()

    def prepared(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINES_EVERY:
            print(f"reading the history: {done} of {total}", file=sys.stderr, flush=True)
            last = time.monotonic()

    return prepared


def _print_facts(
    out: Path,
    as_json: bool,
    summary: Callable[[dict[str, Any]], str] = lambda notes: f"trained in {notes['seconds']} s",
) -> None:
    """Print a line on the trained model, or all facts as JSON."""
    facts = _read_facts(out)
    line = f"{summary(facts['notes'])}: {out}/model.safetensors"
    echo(json.dumps({"out": str(out), **facts}) if as_json else line)


def _read_facts(out: Path) -> dict[str, Any]:
    """Configuration and notes of a trained model, as they stand in its folder."""
    return dict(json.loads((out / "config.json").read_text(encoding="utf-8")))


def _recipe(presets: Mapping[str, Any], preset: str, **options: Any) -> Any:
    """The recipe of a preset, changed by the options that are set."""
    validate_choice("preset", preset, presets)
    return replace(presets[preset], **_chosen(**options))


def _chosen(**options: Any) -> dict[str, Any]:
    """The options that are set."""
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def _progress() -> Iterator[Report]:
    """Report on the steps; after Ctrl-C or SIGTERM print where it stopped and how to resume; exit code 130 or 143."""
    from time2decide.core.training import training_progress_bar

    at = 0
    try:
        with training_progress_bar(lines_every=15.0) as show:

            def report(done: int, total: int, loss: float) -> None:
                nonlocal at
                at = done
                show(done, total, loss)

            yield report
    except (KeyboardInterrupt, SystemExit) as error:
        resume = ("all is saved, " if at else "") + "start the same command again to resume"
        print(f"time2decide: interrupted after step {at}; {resume}", file=sys.stderr)
        sys.exit(error.code if isinstance(error, SystemExit) else 130)
