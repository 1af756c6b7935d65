"""What every other folder uses, once: input validation, atomic files, checkpoints, the cache, provenance, training.

`lazy_names` lets a folder list what it offers: a module is imported when one of its names is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """`__getattr__` and `__all__` of a package, from {module: "names in it, separated by spaces"}.

    >>> __getattr__, __all__ = lazy_names(__name__, {"problem": "QP", "solution": "Solution kkt"})
    """
    home = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return load, sorted(home)
