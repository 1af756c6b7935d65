"""The paper's tables and figures, presets, and the results store.

An `Experiment` lists its tasks, runs one, and turns stored rows into tables and verdicts on the paper's claims;
`reproduce` runs what is missing. Every measured row is stored under ``results/`` with its configuration, seed, commit,
versions and preset.
"""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "claims": "published",
        "registry": "PRESETS Experiment experiment_ids get_experiment reproduce stored_tasks",
        "store": "Store",
    },
)
