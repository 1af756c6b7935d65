"""Every table and figure of the paper by name, and the one way to run them."""

from __future__ import annotations

import importlib
import os
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from time2decide.core.table import Table
from time2decide.core.validation import expect, validate_choice
from time2decide.experiments.claims import Claim
from time2decide.experiments.engines import Engine, run_tasks
from time2decide.experiments.store import Config, Row, Store, check_store_writable, results_root, task_key

PRESETS = ("smoke", "cpu", "paper")

#: Module -> ids of its EXPERIMENTS, in the order of the paper; a module is imported only when one of them is asked for.
#: A new table or figure needs a module and its id here, nothing else.
_MODULES = {
    "constructions": "convergence runtime-u runtime-r runtime-c runtime-lc",
    "qp_models": "qp-grid qp-shift qp-histograms qp-ablation",
    "qp_agnostic": "qp-agnostic",
    "portfolio_baselines": "portfolio-baselines",
    "forecast_errors": "forecast-errors",
    "lambda_sweep": "lambda-sweep",
    "covariance_worth": "covariance-worth policy-worth",
    "paper_models": "finetuned-pto literal-starts literal-curve",
    "pto_scale": "pto-scale",
    "theory": "toy-pto parity",
    "real_markets": "real-markets",
    "covariances": "covariances",
    "stylised_markets": "stylised-markets",
    "scale": "scale",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
#: Rows of the preset cpu that came with the package, only read; a wheel alone has this archive (hatch_build.py).
PACKAGED = Path(__file__).parents[1] / "results.zip"


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes
    ----------
    id, title, paper : str
        Name on the command line, what it is, and where the paper has it.
    presets : dict
        Preset -> expected time, as text.
    tasks : preset -> list of configurations
        Units of work, each a JSON-able dict with its seed. The configuration is the key of its rows.
    run : configuration -> rows
        A module-level function, so that it can be sent to another process or machine.
    tables : rows -> tables
        Measured rows as tables, ours beside the paper's; not called without rows.
    claims : rows -> claims
        The paper's claims about this table or figure; without rows none of them is tested.
    open_ended : bool
        Tasks depend on files of the user; `reproduce` returns the stored rows of other files too.
    """

    id: str
    title: str
    paper: str
    presets: dict[str, str]
    tasks: Callable[[str], list[Config]]
    run: Callable[[Config], list[Row]]
    tables: Callable[[list[Row]], list[Table]]
    claims: Callable[[list[Row]], list[Claim]] = lambda rows: []
    open_ended: bool = False


def experiment_ids() -> list[str]:
    """All experiments, in the order of the paper."""
    return list(_HOMES)


def get_experiment(name: str) -> Experiment:
    """The experiment of that id."""
    validate_choice("experiment", name, _HOMES)
    module = importlib.import_module(f"time2decide.experiments.{_HOMES[name]}")
    return next(experiment for experiment in module.EXPERIMENTS if experiment.id == name)


def reads_package(root: str | Path | None = None) -> bool:
    """Whether rows that `results_root` does not have are those of the package: if it has any and no folder is named."""
    return PACKAGED.is_file() and not (root or os.environ.get("TIME2DECIDE_RESULTS"))


def find_store(experiment: str, preset: str, root: str | Path | None = None) -> Store:
    """The store in `results_root`; where there is none, that of the package, if it has one."""
    store = Store(experiment, preset, root)
    if not store.path.exists() and reads_package(root):
        packaged: Any = zipfile.Path(PACKAGED, f"{experiment}/{preset}.jsonl")
        store.path = packaged if packaged.exists() else store.path
    return store


def is_packaged(store: Store) -> bool:
    """Whether a store is one of the package."""
    return PACKAGED in Path(str(store.path)).parents


def stored_ids(root: str | Path | None = None) -> list[str]:
    """Experiments and benchmarks with rows of the preset cpu."""
    found = {path.parent.name for path in results_root(root).glob("*/cpu.jsonl")}
    if reads_package(root):
        found |= {path.name for path in zipfile.Path(PACKAGED).iterdir()}
    return sorted(found)


def reproduce(
    experiment: Experiment,
    preset: str,
    *,
    root: str | Path | None = None,
    progress: Callable[[int, int, Config], None] | None = None,
    engine: Engine | None = None,
    only: str = "",
) -> list[Row]:
    """Run the tasks that have no result yet and return all stored rows of the preset.

    `only`, such as ``strategy=uniform,seed=0``, leaves the other tasks for later.

    A task that raises is stored as a line with its traceback and the next one goes on; it is tried again when the
    experiment is started again. Without an `engine` tasks run in this process, one after another. Only this process
    writes the store. `progress` is called with the number of finished tasks, the number of tasks and the task that
    starts, or with several workers, ends.

    Rows of the package are shown as they are: what they lack runs only with a `root`.
    """
    validate_choice("preset", preset, experiment.presets)
    store = find_store(experiment.id, preset, root)
    done = store.done()
    tasks = [config for config in _chosen_tasks(experiment.tasks(preset), only) if task_key(config) not in done]
    if is_packaged(store):
        tasks = []
    if tasks:
        check_store_writable(root)
    engine = engine or Engine()

    def run_shown(config: Config) -> list[Row]:
        if progress:
            progress(tasks.index(config), len(tasks), config)
        return experiment.run(config)

    results = run_tasks(run_shown if engine.in_this_process else experiment.run, tasks, engine)
    with closing(results):  # an interrupt ends the workers
        for number, (config, outcome) in enumerate(results if tasks else ()):
            store.append(config, outcome.rows, outcome.seconds, outcome.error)
            if progress and not engine.in_this_process:
                progress(number, len(tasks), config)
    keys = {task_key(config) for config in experiment.tasks(preset)}
    return store.rows(None if experiment.open_ended else keys)


def _chosen_tasks(tasks: list[Config], only: str) -> list[Config]:
    """The tasks whose fields have the values of ``field=value,field=value``; all of them without any."""
    wanted = [pair.partition("=") for pair in only.split(",") if pair.strip()]
    for name, sign, _ in wanted:
        known = sorted({key for task in tasks for key in task})
        expect(sign and name.strip() in known, "only", f"field=value with a field of {', '.join(known)}", repr(only))
    values = {name.strip(): value.strip() for name, _, value in wanted}
    return [task for task in tasks if all(str(task.get(name)) == value for name, value in values.items())]


def stored_tasks(
    experiment: Experiment, preset: str, root: str | Path | None = None, only: str = ""
) -> tuple[int, int]:
    """How many tasks of a preset have a result, and how many there are."""
    keys = {task_key(config) for config in _chosen_tasks(experiment.tasks(preset), only)}
    return len(keys & find_store(experiment.id, preset, root).done()), len(keys)
