"""Faults in the tables and terms that people have, found before anything is decided from them."""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "check": "check_returns",
        "findings": "Finding refuse_faults",
    },
)
