"""Every table and figure of the paper by name, and the one way to run them."""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from time2decide.experiments.store import Config, Row, Store, task_key
from time2decide.qp.checks import InputError

PRESETS = ("smoke", "cpu", "paper")

#: id -> module that has it among its EXPERIMENTS; a module is imported only when its experiment is asked for.
_MODULES = {
    "convergence": "convergence",
    "qp-grid": "qp_grid",
    "qp-shift": "qp_shift",
    "qp-histograms": "qp_histograms",
    "qp-ablation": "qp_ablation",
    "qp-agnostic": "qp_agnostic",
    "portfolio-baselines": "portfolio_baselines",
    "portfolio-clean": "portfolio",
    "portfolio-noisy": "portfolio",
    "decide-ablation": "decide_ablation",
    "sp500": "sp500",
}


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
    show : rows -> text
        The stored rows as a table, ours beside the paper's.
    """

    id: str
    title: str
    paper: str
    presets: dict[str, str]
    tasks: Callable[[str], list[Config]]
    run: Callable[[Config], list[Row]]
    show: Callable[[list[Row]], str]


def experiment_ids() -> list[str]:
    """All experiments, in the order of the paper."""
    return list(_MODULES)


def get_experiment(name: str) -> Experiment:
    """The experiment of that id."""
    if name not in _MODULES:
        raise InputError(f"experiment: expected one of {', '.join(_MODULES)}, found {name!r}")
    module = importlib.import_module(f"time2decide.experiments.{_MODULES[name]}")
    experiments: dict[str, Experiment] = {e.id: e for e in getattr(module, "EXPERIMENTS", ())}
    return experiments[name]


def reproduce(
    experiment: Experiment,
    preset: str,
    *,
    root: str | Path | None = None,
    progress: Callable[[int, int, Config], None] | None = None,
) -> list[Row]:
    """Run the tasks that have no result yet, in this process, and return all stored rows of the preset.

    A task that raises is stored as a line with its error and the next one goes on; it is tried again when the
    experiment is started again.
    """
    if preset not in experiment.presets:
        raise InputError(f"preset: expected one of {', '.join(experiment.presets)}, found {preset!r}")
    store = Store(experiment.id, preset, root)
    done = store.done()
    tasks = [config for config in experiment.tasks(preset) if task_key(config) not in done]
    for number, config in enumerate(tasks):
        if progress:
            progress(number, len(tasks), config)
        start = time.perf_counter()
        try:
            rows, error = experiment.run(config), None
        except Exception:
            rows, error = [], traceback.format_exc(limit=3).strip().splitlines()[-1]
        store.append(config, rows, time.perf_counter() - start, error)
    return store.rows({task_key(config) for config in experiment.tasks(preset)})
