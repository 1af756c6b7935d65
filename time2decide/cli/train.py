"""``time2decide train``: the models that come with the package, made again by one command each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from time2decide.cli.console import AsJson, echo
from time2decide.core.files import validate_not_read, validate_output_folder
from time2decide.core.validation import InputError, expect, validate_choice, validate_interval

_MOST_THREADS = 256
_WRITTEN = ("model.safetensors", "config.json", "state.safetensors")  # by a training, to its folder
RECIPES = ("timepfn", "qp", "paper")

Report = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last one
Work = Callable[..., Any]  # (folder, report=, notes=)


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="timepfn: the backbone. qp: the `neural` solver of solve. paper: the paper's decision model."
        ),
    ],
    preset: Annotated[
        str, typer.Option(help="smoke: seconds. cpu: about an hour. paper: GPUs. For timepfn also medium.")
    ] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Output folder (checkpoint and resumable state).")] = None,
    steps: Annotated[int | None, typer.Option(help="Another number of steps; for paper: of epochs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed than the recipe's.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of torch; more than 2 seldom help.")] = 1,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="For paper: TimePFN to start from: a name, a folder, or official:FILE, what its authors publish."
        ),
    ] = None,
    market: Annotated[str | None, typer.Option(help="For paper: clean, noisy or noisy-matched.")] = None,
    turnover_l1: Annotated[float | None, typer.Option(help="For paper: γ, one of the paper's seven budgets.")] = None,
    return_weight: Annotated[float | None, typer.Option(help="For paper: λ_r, weight of the forecasts.")] = None,
    covariance: Annotated[
        bool | None, typer.Option(help="For paper: covariance tokens: Time2Decide with them, SFT without.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model; interrupt it and start it again as you like.

    Start the same command again to resume; the result is the same to the last bit. What decides by default is not
    trained: it needs no recipe.

    Example: time2decide train timepfn --preset cpu --out runs/timepfn
    """
    validate_choice("recipe", recipe, RECIPES)
    own = {"market": market, "turnover_l1": turnover_l1, "return_weight": return_weight, "covariance": covariance}
    given = sorted(_chosen(backbone=backbone, **own))
    expect(recipe == "paper" or not given, ", ".join(given), f"none for the recipe {recipe}", "some")
    folder = Path("runs", recipe) if out is None else out
    read: str | None = None
    if recipe == "paper":
        read = _source(backbone or "small")
        _validate_out(folder, (read,))  # before it is read
        work = _paper(preset, backbone or "small", seed=seed, epochs=steps, **own)
    else:
        work = (_timepfn if recipe == "timepfn" else _qp)(preset, steps=steps, seed=seed)
    _train(partial(work, folder), folder, threads, (read,), preset=preset, **_chosen(backbone=backbone))
    facts = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    line = f"trained in {facts['notes']['seconds']} s: {folder}/model.safetensors"
    echo(json.dumps({"out": str(folder), **facts}) if as_json else line)


def _timepfn(preset: str, **options: Any) -> Work:
    from time2decide.forecasting.pretraining import PRESETS, pretrain

    return partial(pretrain, _recipe(PRESETS, preset, **options))


def _qp(preset: str, **options: Any) -> Work:
    from time2decide.neural.equivariant import PRESETS, train_equivariant

    return partial(train_equivariant, _recipe(PRESETS, preset, **options))


def _paper(preset: str, backbone: str, **options: Any) -> Work:
    from time2decide.forecasting.timepfn import TimePFN
    from time2decide.policy.paper_training import PAPER_MODEL_PRESETS, train_paper_model_to

    config = _recipe(PAPER_MODEL_PRESETS, preset, **options)
    return partial(train_paper_model_to, config, TimePFN.from_pretrained(backbone))


def _source(backbone: str) -> str | None:
    """The file or folder of a backbone; None for one that comes with the package."""
    from time2decide.forecasting.timepfn import TimePFN

    return None if backbone in TimePFN.BUNDLED else backbone.partition(":")[2] or backbone


def _validate_out(out: Path, read: Iterable[str | None]) -> None:
    """Raise if a training to `out` would replace a file that it reads, or a model that it starts from."""
    for source in filter(None, read):
        validate_not_read("--out", out, (source,))  # the folder of a model, or a table in the place of the folder
        for name in _WRITTEN:
            validate_not_read("--out", out / name, (source, Path(source) / name))


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
