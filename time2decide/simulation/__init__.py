"""The engine that runs a strategy step by step on nothing but the past, and the measures of what it did."""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__, {"engine": "Observation Rollout Strategy rollout", "metrics": "Score score"}
)
