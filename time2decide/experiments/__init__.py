"""The paper's tables and figures, presets, and the results store.

An `Experiment` lists its tasks, runs one, and turns stored rows into tables and verdicts on the paper's claims;
`reproduce` runs what is missing. Every measured
row is stored under ``results/`` with its configuration, seed, commit, versions and preset.
"""

from time2decide.experiments.claims import published
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
