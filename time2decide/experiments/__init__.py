"""One file per table or figure of the paper, presets, and the results store.

An `Experiment` lists its tasks, runs one, and shows stored rows; `reproduce` runs what is missing. Every measured
row is stored under ``results/`` with its configuration, seed, commit, versions and preset.
"""

from time2decide.experiments.paper import published
from time2decide.experiments.registry import (
    PRESETS,
    Experiment,
    experiment_ids,
    get_experiment,
    reproduce,
    stored_tasks,
)
from time2decide.experiments.store import Store

__all__ = [
    "PRESETS",
    "Experiment",
    "Store",
    "experiment_ids",
    "get_experiment",
    "published",
    "reproduce",
    "stored_tasks",
]
